"""Charts and pages from plain values: SVG, HTML templates, words."""
