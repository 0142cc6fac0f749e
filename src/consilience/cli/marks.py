"""Lines of a command: prose that fits the terminal, and lines on stderr that begin with a mark, in colour there."""

from __future__ import annotations

import os
import sys
from shutil import get_terminal_size
from textwrap import fill

import click

MAX_WIDTH = 100
"""Letters of a line of prose at most, however wide the terminal. Chosen by hand, for legible lines."""


INDENT = " " * 13
"""What stands before what is said of a name, below it: names of methods and extras have 12 letters at most."""


def terminal_width() -> int:
    """Return how many letters a line of prose has: those of the terminal, or of COLUMNS, and `MAX_WIDTH` at most."""
    return max(20, min(MAX_WIDTH, get_terminal_size((MAX_WIDTH, 24)).columns))


def echo_prose(text: str, indent: str = "  ") -> None:
    """Print lines to stdout, those that are too wide for the terminal broken between words.

    In a pipe or file a line stays whole, for those who search it, unless COLUMNS is set. `indent` stands before the
    rest of a line that was broken.
    """
    if not (sys.stdout.isatty() or os.environ.get("COLUMNS")):
        click.echo(text)
        return
    width = terminal_width()
    for line in text.split("\n"):
        if len(line) > width:
            below = indent[: width // 2]
            line = fill(line, width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False)
        click.echo(line)


def echo_marked(mark: str, text: str, colour: str) -> None:
    """Print a line to stderr; its mark is coloured on a terminal, unless NO_COLOR is set (no-color.org).

    The text is without control characters.
    """
    wanted = None if not os.environ.get("NO_COLOR") else False  # None: click looks whether it is a terminal
    click.echo(f"{click.style(mark, fg=colour, bold=True)} {text}", err=True, color=wanted)
