"""Warnings of the library as lines of the command, without the source lines that Python adds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from consilience.cli.marks import echo_marked
from consilience.cli.shell_wording import in_words_of_the_command
from consilience.drawing.words import printable
from consilience.errors import HarmWarning, UnprovedSymmetryWarning


@contextmanager
def short_warnings() -> Iterator[None]:
    """Print warnings of this library as one line each on stderr, those of unproved symmetries and of harm always."""
    with warnings.catch_warnings():
        for category in (UnprovedSymmetryWarning, HarmWarning):
            warnings.simplefilter("always", category)
        show_others = warnings.showwarning

        def show(message: Any, category: Any, *location: Any, **keywords: Any) -> None:
            if hasattr(category, "code"):  # of this library
                echo_marked("consilience: warning:", printable(in_words_of_the_command(str(message))), "yellow")
            else:
                show_others(message, category, *location, **keywords)

        warnings.showwarning = show
        yield
