"""Warnings that point at the line of the caller, however deep in the library they arise."""

from __future__ import annotations

import sys
import warnings

from consilience.errors import split_codes

_PACKAGE = __name__.partition(".")[0]


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn at the first line outside of this package; the text ends with the category's code in the catalogue."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    code = getattr(category, "code", "")
    warnings.warn(f"{split_codes(text)[0]} [{code}]" if code else text, category, stacklevel=level)
