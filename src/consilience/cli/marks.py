"""Lines on stderr that begin with a mark, in colour on a terminal."""

from __future__ import annotations

import os
from shutil import get_terminal_size

import click

MAX_WIDTH = 100
"""Letters of a line of prose at most, however wide the terminal. Chosen by hand, for legible lines."""


def terminal_width() -> int:
    """Return how many letters a line of prose has: those of the terminal, or of COLUMNS, and `MAX_WIDTH` at most."""
    return max(20, min(MAX_WIDTH, get_terminal_size((MAX_WIDTH, 24)).columns))


def echo_marked(mark: str, text: str, colour: str) -> None:
    """Print a line to stderr; its mark is coloured on a terminal, unless NO_COLOR is set (no-color.org).

    Parameters
    ----------
    mark : str
        What the line begins with.
    text : str
        The rest, without control characters.
    colour : str
        A colour of the terminal, such as "red".
    """
    wanted = None if not os.environ.get("NO_COLOR") else False  # None: click looks whether it is a terminal
    click.echo(f"{click.style(mark, fg=colour, bold=True)} {text}", err=True, color=wanted)
