"""Exceptions that users see: bad input, bad files, bad options, unsupported models.

Every message names the file, component or option at fault, what was expected, what was found, and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self, overload


class Problem(str):
    """What is wrong, as a sentence that knows its parts: ``subject: text; remedy``.

    A text like any other for who prints, joins or compares it (docs/adr/0023). Parts that are empty leave no sign.

    Parameters
    ----------
    subject : object
        The file, model, argument or option at fault, by the name that the caller knows it by. Empty for what is no
        single one's fault.
    text : str
        What is wrong with it: what was expected, and what was found.
    remedy : str, optional
        What to do about it, in the imperative. Default: said in the text, or none.

    Examples
    --------
    >>> problem = Problem("a.safetensors", "is empty", "write it again")
    >>> problem
    'a.safetensors: is empty; write it again'
    >>> problem.about("lund").subject
    'lund'
    """

    subject: str
    text: str
    remedy: str

    def __new__(cls, subject: object, text: str, remedy: str = "") -> Self:
        """Make the sentence of its parts."""
        name = str(subject)
        problem = super().__new__(cls, f"{name}: " * bool(name) + text + f"; {remedy}" * bool(remedy))
        problem.subject, problem.text, problem.remedy = name, text, remedy
        return problem

    def __getnewargs__(self) -> tuple[str, str, str]:  # type: ignore[override]
        """Return the parts, for pickles and copies; those of a text would be the sentence alone."""
        return self.subject, self.text, self.remedy

    @classmethod
    def of(cls, sentence: str) -> Problem:
        """Return a problem as it is, and a bare sentence as one without a subject."""
        return sentence if isinstance(sentence, Problem) else cls("", sentence)

    def about(self, subject: object) -> Problem:
        """Return the problem as another's fault: of the input, say, whose part the subject so far is."""
        return Problem(subject, f"{self.subject}: " * bool(self.subject) + self.text, self.remedy)

    def renamed(self, old: object, new: object) -> Problem:
        """Return the problem with a name replaced wherever it stands: a path on a server, say, by the site's."""
        return Problem(*(part.replace(str(old), str(new)) for part in (self.subject, self.text, self.remedy)))

    def without_subject(self) -> Problem:
        """Return the problem for where the subject is named already."""
        return Problem("", self.text, self.remedy)


class ConsilienceError(Exception):
    """Base of everything this library raises on purpose.

    Parameters
    ----------
    problems : str or iterable of str
        `Problem` values, or sentences without a subject; a single one counts as one. Or, with a `text`, the subject of
        a single problem.
    text, remedy : str, optional
        The other parts of a single problem.

    Examples
    --------
    >>> InputError("a.safetensors", "is empty", "write it again").problems
    ('a.safetensors: is empty; write it again',)
    >>> error = InputError([Problem("a.safetensors", "is empty"), Problem("b.safetensors", "is empty")])
    >>> [problem.subject for problem in error.problems]
    ['a.safetensors', 'b.safetensors']
    """

    @overload
    def __init__(self, problems: str | Iterable[str], /) -> None: ...
    @overload
    def __init__(self, subject: object, text: str, remedy: str = "", /) -> None: ...
    def __init__(self, problems: Any, text: str | None = None, remedy: str = "") -> None:
        if text is not None:
            problems = Problem(problems, text, remedy)
        sentences = (problems,) if isinstance(problems, str) else problems
        self.problems: tuple[Problem, ...] = tuple(map(Problem.of, sentences))
        super().__init__("\n".join(self.problems))


class InputError(ConsilienceError, ValueError):
    """The models handed in cannot be used as they are."""


class FileFormatError(InputError):
    """A file is not what its reader can read: truncated, of another format, or of a newer version."""


class OptionError(ConsilienceError, ValueError):
    """An option has a value that the method does not take, or does not exist."""


class UnsupportedError(ConsilienceError, TypeError):
    """The kind of model, family or method is not supported for what was asked."""


class WithheldWarning(UserWarning):
    """Components were left out of a model's description; those of too few observations stay with ``min_count=0``."""


class RobustWarning(UserWarning):
    """An option undoes part of what robust fusion is for."""
