"""Charts and pages from plain values: SVG, blocks of HTML, words."""
