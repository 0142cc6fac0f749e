"""Networks whose units may be renumbered: symmetry, methods, repair, landscape, information, files and reports."""
