"""Exceptions that users see: bad input, bad files, bad options, unsupported models.

Every message names the file, component or option at fault, what was expected, what was found, and the remedy. What
is in backticks is code: an option (`min_count=0`), a call (`consilience.describe(model, data)`) or a command,
which the command line writes in its own words and pages write as code (docs/adr/0045).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self, overload

_CODE = re.compile(r" \[([EW]-[A-Z]{3,})\]")
_BACKTICKS = re.compile(r"`([^`]+)`")


def split_codes(text: str) -> tuple[str, str]:
    """Return a text without the codes of the catalogue in it, and the first of them; "" where it has none.

    Examples
    --------
    >>> split_codes("cannot be read (is empty [E-FILE])")
    ('cannot be read (is empty)', 'E-FILE')
    """
    found = _CODE.search(text)
    return (text, "") if found is None else (_CODE.sub("", text), found[1])


def replace_code(text: str, written: Callable[[str], str]) -> str:
    """Return a message with the code in its backticks, options, calls and commands, as `written` writes it.

    Examples
    --------
    >>> replace_code("give `min_count=0` to keep them", str.upper)
    'give `MIN_COUNT=0` to keep them'
    """
    return _BACKTICKS.sub(lambda found: f"`{written(found[1])}`", text)


def split_code(text: str) -> list[str]:
    """Return the parts of a message: words and, at odd places, the code in backticks.

    Examples
    --------
    >>> split_code("give `min_count=0` to keep them")
    ['give ', 'min_count=0', ' to keep them']
    """
    return _BACKTICKS.split(text)


def reason_of(error: BaseException) -> str:
    """Return the message of an error in one line, without codes, for a note that goes on without it."""
    return " ".join(split_codes(str(error))[0].split())


def fault_of(error: BaseException, remedy: str = "") -> Problem:
    """Return an exception that nobody expected as a problem in one line: a fault of this library, not of its caller.

    Examples
    --------
    >>> fault_of(KeyError("weights"))
    "fails in a way that consilience does not expect (KeyError: 'weights') [E-FAULT]"
    """
    said = " ".join(str(error).split())
    text = f"fails in a way that consilience does not expect ({type(error).__name__}{f': {said:.200}' if said else ''})"
    return Problem("", text, remedy, "E-FAULT")


class Problem(str):
    """What is wrong, as a sentence that knows its parts: ``subject: text; remedy [code]``.

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
    code : str, optional
        Its entry in the catalogue of problems (cli/explanations.md), such as "E-OPTION". Default: that of the error
        which it is raised with.
    ends_with_code : bool, optional
        Whether the sentence ends with the code. Default: True; False for a line of a report whose last line does.

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
    code: str
    ends_with_code: bool
    parts: tuple[Problem, ...] = ()
    """The problems of single subjects that it stands for; empty where it is one itself."""

    def __new__(cls, subject: object, text: str, remedy: str = "", code: str = "", ends_with_code: bool = True) -> Self:
        """Make the sentence of its parts."""
        name = str(subject)
        text, code_of_cause = split_codes(text)  # what is said of another error says it without its code
        code = code or code_of_cause
        ending = f" [{code}]" if code and ends_with_code else ""
        problem = super().__new__(cls, f"{name}: " * bool(name) + text + f"; {remedy}" * bool(remedy) + ending)
        problem.subject, problem.text, problem.remedy, problem.code = name, text, remedy, code
        problem.ends_with_code = ends_with_code
        return problem

    def __getnewargs__(self) -> tuple[str, str, str, str, bool]:  # type: ignore[override]
        """Return the parts, for pickles and copies; those of a text would be the sentence alone."""
        return self.subject, self.text, self.remedy, self.code, self.ends_with_code

    def with_parts(self, **parts: Any) -> Problem:
        """Return the problem with other parts in place of some."""
        names = ("subject", "text", "remedy", "code", "ends_with_code")
        return Problem(**{name: getattr(self, name) for name in names} | parts)

    @classmethod
    def of(cls, sentence: str) -> Problem:
        """Return a problem as it is, and a bare sentence as one without a subject."""
        return sentence if isinstance(sentence, Problem) else cls("", sentence)

    def coded(self, code: str) -> Problem:
        """Return the problem with a code where it has none of its own."""
        return self if self.code else self.with_parts(code=code)

    def about(self, subject: object) -> Problem:
        """Return the problem as another's fault: of the input, say, whose part the subject so far is."""
        return self.with_parts(subject=subject, text=f"{self.subject}: " * bool(self.subject) + self.text)

    def renamed(self, old: object, new: object) -> Problem:
        """Return the problem with a name replaced wherever it stands: a path on a server, say, by the site's."""
        subject, text, remedy = (part.replace(str(old), str(new)) for part in (self.subject, self.text, self.remedy))
        return self.with_parts(subject=subject, text=text, remedy=remedy)

    def without_subject(self) -> Problem:
        """Return the problem for where the subject is named already."""
        return self.with_parts(subject="")


class ConsilienceError(Exception):
    """Base of everything this library raises on purpose.

    Every problem ends with its code in the catalogue: its own, or that of its family, which is the class's.

    Parameters
    ----------
    problems : str or iterable of str
        `Problem` values, or sentences without a subject; a single one counts as one. Or, with a `text`, the subject of
        a single problem.
    text, remedy, code : str, optional
        The other parts of a single problem.

    Examples
    --------
    >>> InputError("a.safetensors", "is empty", "write it again").problems
    ('a.safetensors: is empty; write it again [E-INPUT]',)
    >>> error = InputError([Problem("a.safetensors", "is empty"), Problem("b.safetensors", "is empty")])
    >>> [problem.subject for problem in error.problems]
    ['a.safetensors', 'b.safetensors']
    """

    code: ClassVar[str] = "E-INPUT"

    @overload
    def __init__(self, problems: str | Iterable[str], /) -> None: ...
    @overload
    def __init__(self, subject: object, text: str, /, remedy: str = "", code: str = "") -> None: ...
    def __init__(self, problems: Any, text: str | None = None, remedy: str = "", code: str = "") -> None:
        if text is not None:
            problems = Problem(problems, text, remedy, code)
        sentences = (problems,) if isinstance(problems, str) else problems
        self.problems: tuple[Problem, ...] = tuple(Problem.of(sentence).coded(self.code) for sentence in sentences)
        super().__init__("\n".join(self.problems))

    @property
    def may_pass(self) -> bool:
        """Whether the machine is at fault, such as a full disk, and not what was handed in."""
        return any(problem.code == "E-SYSTEM" for problem in self.problems)


class InputError(ConsilienceError, ValueError):
    """The models handed in cannot be used as they are."""


class FileFormatError(InputError):
    """A file is not what its reader can read: truncated, of another format, or of a newer version."""

    code = "E-FILE"


class OptionError(ConsilienceError, ValueError):
    """An option has a value that the method does not take, or does not exist."""

    code = "E-VALUE"


class UnsupportedError(ConsilienceError, TypeError):
    """The kind of model, family or method is not supported for what was asked."""

    code = "E-SUPPORT"


FAMILIES = (
    *(error.code for error in (InputError, FileFormatError, OptionError, UnsupportedError)),
    "E-FAULT", "E-FEW", "E-MISMATCH", "E-NEEDED", "E-NUMBER", "E-OUTPUT", "E-ROUND", "E-SHAPE", "E-SYSTEM", "E-TWICE",
    "E-TYPE", "E-USAGE",
)  # fmt: skip
"""Codes of families: of problems that have no narrower one."""


class WithheldWarning(UserWarning):
    """Components were left out of a model's description; those of too few observations stay with ``min_count=0``."""

    code = "W-WITHHELD"


class RareColumnWarning(UserWarning):
    """Columns set so few rows apart that what leaves a site holds them; ``min_count=0`` says that they may be known."""

    code = "W-RARE"


class TwiceWarning(UserWarning):
    """A model, its contents or its sums are given twice, so that the same observations may count twice."""

    code = "W-TWICE"


class UnitsWarning(UserWarning):
    """A column lies so far from the same column of other sites that it may be in another unit."""

    code = "W-UNITS"


class SpellingWarning(UserWarning):
    """Class labels of sites differ in their spelling only, and count as different classes."""

    code = "W-SPELLING"


class RobustWarning(UserWarning):
    """An option undoes part of what robust fusion is for."""

    code = "W-ROBUST"


class HarmWarning(UserWarning):
    """A fused model is taken up that is known to be worse than the best of the models that went in.

    Silenced by intent with ``warnings.simplefilter("ignore", consilience.errors.HarmWarning)``.
    """

    code = "W-HARM"


class UncomparedWarning(UserWarning):
    """Nothing says whether a fused network is better than each site's, since candidates cannot be compared.

    Silenced by intent with ``warnings.simplefilter("ignore", consilience.errors.UncomparedWarning)``.
    """

    code = "W-UNCOMPARED"


class UnprovedSymmetryWarning(UserWarning):
    """A symmetry is used that nobody proved: if it is wrong, so is the fused network.

    Silenced by intent with ``warnings.simplefilter("ignore", consilience.errors.UnprovedSymmetryWarning)``.
    """

    code = "W-UNPROVED"
