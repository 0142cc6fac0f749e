"""The shapes of a drawing, read back from its text."""

import re

# Coordinates in a drawing have one decimal.
DECIMALS = 0.051


def shapes(markup, tag, kind):
    """Return the numbers of all elements of a tag whose class begins with a kind, by attribute."""
    found = re.findall(rf'<{tag} [^>]*class="{kind}[^"]*"[^>]*>', str(markup))
    return [{name: float(value) for name, value in re.findall(r' (\w+)="(-?[\d.]+)"', one)} for one in found]


def ticks(markup, axis):
    """Return the places and the values (n, 2) of the ticks of an axis, "x" or "y"."""
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="tick" text-anchor="(\w+)">([\d.]+)</text>', str(markup))
    if axis == "y":
        return [(float(y) - 4, float(label)) for x, y, anchor, label in found if anchor == "end"]
    below = min(float(y) for x, y, anchor, label in found if anchor == "middle")  # a legend stands lower
    return [(float(x), float(label)) for x, y, anchor, label in found if anchor == "middle" and float(y) == below]
