"""Exceptions that users see: bad input, bad files, bad options, unsupported models.

Every message names the file, component or option at fault, what was expected, what was found, and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable


class ConsilienceError(Exception):
    """Base of everything this library raises on purpose."""


class InputError(ConsilienceError, ValueError):
    """The models handed in cannot be used as they are.

    Parameters
    ----------
    problems : str or iterable of str
        One line for each problem; a single string counts as one.

    Examples
    --------
    >>> InputError(["a.safetensors: is empty", "b.safetensors: is empty"]).problems
    ('a.safetensors: is empty', 'b.safetensors: is empty')
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class FileFormatError(InputError):
    """A file is not what its reader can read: truncated, of another format, or of a newer version."""


class OptionError(ConsilienceError, ValueError):
    """An option has a value that the method does not take, or does not exist."""


class UnsupportedError(ConsilienceError, TypeError):
    """The kind of model, family or method is not supported for what was asked."""
