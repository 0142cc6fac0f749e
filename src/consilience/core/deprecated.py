"""Keyword arguments that were renamed: the old name works for one minor version, with a warning."""

from __future__ import annotations

import warnings
from typing import Any

from consilience.errors import OptionError


def renamed_keyword(old: str, old_value: Any, new: str, new_value: Any, stacklevel: int = 3) -> Any:
    """Return the value that was given under the new or the old name of a keyword; None where neither was.

    Raises
    ------
    OptionError
        When both were given.
    """
    if old_value is None:
        return new_value
    if new_value is not None:
        raise OptionError(f"{old}, {new}: are one argument; give {new}")
    warnings.warn(
        f"{old}= is deprecated since 0.2 and goes in 0.3; use {new}= [W-DEPRECATED]",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
    return old_value
