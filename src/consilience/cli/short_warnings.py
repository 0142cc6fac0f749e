"""Warnings of the library as lines of the command, without the source lines that Python adds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from consilience.cli.dialect import said
from consilience.cli.marks import echo_marked
from consilience.drawing.words import printable
from consilience.errors import HarmWarning, UnprovedSymmetryWarning

_UNPROVED_SYMMETRY = (
    "the symmetry of these networks is unproved: if it is wrong, so is the fused network; "
    f"--module with --example proves it [{UnprovedSymmetryWarning.code}]"
)


@contextmanager
def short_warnings() -> Iterator[None]:
    """Print warnings of this library as one line each on stderr, those of unproved symmetries and of harm always."""
    with warnings.catch_warnings():
        for category in (UnprovedSymmetryWarning, HarmWarning):
            warnings.simplefilter("always", category)
        show_others = warnings.showwarning

        def show(message: Any, category: Any, *location: Any, **keywords: Any) -> None:
            if issubclass(category, UnprovedSymmetryWarning):
                echo_marked("consilience: warning:", _UNPROVED_SYMMETRY, "yellow")
            elif hasattr(category, "code"):  # of this library
                echo_marked("consilience: warning:", printable(said(str(message))), "yellow")
            else:
                show_others(message, category, *location, **keywords)

        warnings.showwarning = show
        yield
