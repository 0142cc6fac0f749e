"""The shapes of a drawing, read back from its text."""

import re

# Coordinates in a drawing have one decimal.
DECIMALS = 0.051


def shapes(markup, tag, kind):
    """Return the numbers of all elements of a tag whose class begins with a kind, by attribute."""
    found = re.findall(rf'<{tag} [^>]*class="{kind}[^"]*"[^>]*>', str(markup))
    return [{name: float(value) for name, value in re.findall(r' (\w+)="(-?[\d.]+)"', one)} for one in found]
