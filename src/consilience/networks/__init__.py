"""Networks whose units may be renumbered: which arrays move together, and how they are moved."""
