"""Exceptions that users see: bad input, bad files, bad options, unsupported models.

Every message names the file, component or option at fault, what was expected, what was found, and the remedy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Self, overload


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
        Its entry in the catalogue of problems (docs/errors.md), such as "E-OPTION". Default: none.

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

    def __new__(cls, subject: object, text: str, remedy: str = "", code: str = "") -> Self:
        """Make the sentence of its parts."""
        name = str(subject)
        sentence = f"{name}: " * bool(name) + text + f"; {remedy}" * bool(remedy) + f" [{code}]" * bool(code)
        problem = super().__new__(cls, sentence)
        problem.subject, problem.text, problem.remedy, problem.code = name, text, remedy, code
        return problem

    def __getnewargs__(self) -> tuple[str, str, str, str]:  # type: ignore[override]
        """Return the parts, for pickles and copies; those of a text would be the sentence alone."""
        return self.subject, self.text, self.remedy, self.code

    @classmethod
    def of(cls, sentence: str) -> Problem:
        """Return a problem as it is, and a bare sentence as one without a subject."""
        return sentence if isinstance(sentence, Problem) else cls("", sentence)

    def about(self, subject: object) -> Problem:
        """Return the problem as another's fault: of the input, say, whose part the subject so far is."""
        return Problem(subject, f"{self.subject}: " * bool(self.subject) + self.text, self.remedy, self.code)

    def renamed(self, old: object, new: object) -> Problem:
        """Return the problem with a name replaced wherever it stands: a path on a server, say, by the site's."""
        subject, text, remedy = (part.replace(str(old), str(new)) for part in (self.subject, self.text, self.remedy))
        return Problem(subject, text, remedy, self.code)

    def without_subject(self) -> Problem:
        """Return the problem for where the subject is named already."""
        return Problem("", self.text, self.remedy, self.code)


class ConsilienceError(Exception):
    """Base of everything this library raises on purpose.

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
    ('a.safetensors: is empty; write it again',)
    >>> error = InputError([Problem("a.safetensors", "is empty"), Problem("b.safetensors", "is empty")])
    >>> [problem.subject for problem in error.problems]
    ['a.safetensors', 'b.safetensors']
    """

    @overload
    def __init__(self, problems: str | Iterable[str], /) -> None: ...
    @overload
    def __init__(self, subject: object, text: str, remedy: str = "", code: str = "", /) -> None: ...
    def __init__(self, problems: Any, text: str | None = None, remedy: str = "", code: str = "") -> None:
        if text is not None:
            problems = Problem(problems, text, remedy, code)
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

    code = "W-WITHHELD"


class RobustWarning(UserWarning):
    """An option undoes part of what robust fusion is for."""


CATALOGUE: Mapping[str, str] = {
    "E-ADAPTER": "adapters that cannot be merged as they are",
    "E-COLUMN": "a column that the models expect is not in the data",
    "E-COMMAND": "a command that does not exist",
    "E-CONFIG": "configurations or tokenizers that differ",
    "E-COUNT": "one model where two or more are expected",
    "E-DATA": "data given as a model",
    "E-EXTRA": "a library that is not installed",
    "E-METHOD": "a method that does not exist",
    "E-MISSING": "a file that is not there",
    "E-MODEL": "a model that cannot be fused",
    "E-NARROWER": "a target narrower than the networks",
    "E-OPTION": "an option that does not exist",
    "E-REBUILD": "something that cannot be rebuilt",
    "E-RECIPE": "a key that a recipe does not have",
    "E-TRACE": "a module that cannot be traced",
    "E-UNFITTED": "a model that was not fitted",
    "W-HARM": "a fused model that is worse than a site's own",
    "W-UNPROVED": "a symmetry that is not proved",
    "W-WITHHELD": "components that do not leave a site",
}
"""Problems (E) and warnings (W) by the code that their messages end with: what newcomers meet first. docs/errors.md has
a section for each, with an example, what is meant and what to do; a test holds both against the source."""


ALIASES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("seed", "random_state", "random_seed", "generator"), ("rng", "seed")),
    "rng": ("seed",),
    **dict.fromkeys(("n_clusters", "k", "K", "num_components", "n_topics", "num_topics", "n_states", "num_clusters"),
                    ("n_components",)),
    **dict.fromkeys(("merge_method", "algorithm", "strategy"), ("method",)),
    **dict.fromkeys(("max_iter", "n_iter", "iterations", "num_iterations", "epochs"), ("max_iterations", "steps")),
    "tol": ("tolerance",),
    "n_init": ("restarts",),
    **dict.fromkeys(("weight", "sample_weight", "alphas"), ("weights",)),
    **dict.fromkeys(("base_model", "pretrained"), ("base",)),
    **dict.fromkeys(("lambda", "lambda_", "scaling_coefficient"), ("scaling", "regularization")),
    **dict.fromkeys(("reg", "reg_covar", "lam"), ("regularization", "ridge")),
    **dict.fromkeys(("lr", "learning_rate_init"), ("learning_rate",)),
    **dict.fromkeys(("verbose", "progress_bar", "disp"), ("progress",)),
    **dict.fromkeys(("n_samples", "n_obs", "sizes", "counts", "n"), ("n_observations",)),
    **dict.fromkeys(("torch_dtype", "out_dtype"), ("dtype",)),
    **dict.fromkeys(("n_jobs", "num_workers"), ("threads", "engine")),
    **dict.fromkeys(("dummy_input", "example_input", "example_inputs", "sample_input"), ("example",)),
    **dict.fromkeys(("keep_ratio", "top_k", "topk", "param_value_mask_rate"), ("density",)),
    **dict.fromkeys(("mean", "linear", "soup", "fedavg"), ("average",)),
    # Verbs, of functions and commands.
    **dict.fromkeys(("fit", "aggregate", "combine", "run", "ensemble"), ("fuse",)),
    **dict.fromkeys(("validate", "verify"), ("check",)),
    **dict.fromkeys(("read", "open", "from_file"), ("load",)),
    **dict.fromkeys(("write", "dump", "to_file"), ("save",)),
    **dict.fromkeys(("show", "info", "view"), ("inspect",)),
    **dict.fromkeys(("score", "compare", "test"), ("evaluate",)),
    **dict.fromkeys(("list", "options", "algorithms"), ("methods",)),
    **dict.fromkeys(("version", "env", "status"), ("doctor",)),
    **dict.fromkeys(("train", "tutorial"), ("demo",)),
    **dict.fromkeys(("mergekit", "merge-checkpoints"), ("merge",)),
    **dict.fromkeys(("plot", "html", "card"), ("report",)),
    **dict.fromkeys(("upload", "submit"), ("send",)),
}  # fmt: skip
"""What other libraries (scikit-learn, mergekit, PyTorch) call an option, and what this one calls it; the first that is
known where it was given counts."""

_MAX_SIBLINGS = 1000
"""Files of a folder among which a misspelt name is looked for. A bound on time."""


_CUTOFF = 0.7
"""Likeness from which a name is taken for a misspelling, 2 M / T of difflib: "kll" and "kl" have 0.8, "spham" and
"spahm" 0.8, "mean" and "kmeans" 0.8, "median" and "mean" 0.6."""


def did_you_mean(name: object, known: Collection[str]) -> str:
    """Return the known name that was probably meant: another library's word for it, or a misspelling; else "".

    Examples
    --------
    >>> did_you_mean("random_state", ["rng", "method"]), did_you_mean("regularisation", ["regularization"])
    ('rng', 'regularization')
    >>> did_you_mean("colour", ["rng", "method"])
    ''
    """
    word = str(name)
    for alias in ALIASES.get(word, ()):
        if alias in known:
            return alias
    folded = {one.casefold(): one for one in known}
    close = get_close_matches(word.casefold().replace("-", "_"), folded, n=1, cutoff=_CUTOFF)
    return folded[close[0]] if close else ""


def suggestion(name: object, known: Collection[str]) -> str:
    """Return ``, did you mean NAME?`` for a name that is not known, or nothing."""
    meant = did_you_mean(name, known)
    return f", did you mean {meant}?" if meant else ""


def said_once(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems of the catalogue that several subjects share as one of all of them; all others as they are.

    Examples
    --------
    >>> said_once([Problem("a", "is data", "fit a model", "E-DATA"), Problem("b", "is data", "fit a model", "E-DATA")])
    ['a, b: is data; fit a model [E-DATA]']
    """
    subjects: dict[Problem, list[str]] = {}  # by the problem without its subject, or as it is
    for problem in problems:
        shared = problem.without_subject() if problem.code and problem.subject else problem
        subjects.setdefault(shared, []).append(problem.subject)
    once: list[Problem] = []
    for shared, names in subjects.items():
        if shared.code and names[0]:
            once.append(shared.about(_enumerated(names)))
        else:
            once += [shared] * len(names)
    return once


_MAX_SUBJECTS = 5
"""Subjects that one problem names; more are counted. Chosen by hand."""


def _enumerated(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_SUBJECTS} more" if len(names) > _MAX_SUBJECTS else ""
    return ", ".join(names[:_MAX_SUBJECTS]) + more


def unreadable(path: object, error: OSError) -> Problem:
    """Return why a file cannot be read; for one that is missing, which file beside it was probably meant."""
    text = f"cannot be read: {error.strerror or error}"
    if not isinstance(error, FileNotFoundError):
        return Problem(path, text)
    place = Path(str(path))
    try:  # by stems: what follows the last dot is alike in most folders
        siblings = {one.stem: one for one in islice(place.parent.iterdir(), _MAX_SIBLINGS)}
    except OSError:
        siblings = {}
    meant = did_you_mean(place.stem, siblings)
    remedy = f"give {siblings[meant]}, if that was meant" if meant else "give the path of a file that is there"
    return Problem(path, text, remedy, "E-MISSING")
