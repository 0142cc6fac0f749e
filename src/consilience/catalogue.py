"""The catalogue of codes that messages end with, and hints: what was probably meant by a name that is not known."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from consilience.errors import FAMILIES, Problem

CATALOGUE: Mapping[str, str] = {
    "E-ADAPTER": "adapters that cannot be merged as they are",
    "E-ATTRIBUTE": "an attribute that a value or module does not have",
    "E-COLUMN": "a column that the models expect is not in the data",
    "E-COMMAND": "a command that does not exist",
    "E-CONFIG": "configurations or tokenizers that differ",
    "E-COUNT": "one model where two or more are expected",
    "E-DATA": "data given as a model",
    "E-DESCRIBE": "an estimator that does not keep what is summed",
    "E-EXTRA": "a library that is not installed",
    "E-FAULT": "a fault of this library",
    "E-FEW": "too few observations to leave a site, or to be calculated with",
    "E-FILE": "a file that is not what its reader can read",
    "E-INPUT": "models or data that cannot be used as they are, for another reason",
    "E-METHOD": "a method that does not exist",
    "E-MISMATCH": "models or files that do not go together",
    "E-MISSING": "a file that is not there",
    "E-MODEL": "a model that cannot be fused",
    "E-NARROWER": "a target narrower than the networks",
    "E-NEEDED": "something that is needed and was not given",
    "E-NUMBER": "numbers that nothing can be calculated with",
    "E-OBSERVATIONS": "a model whose number of observations is not known",
    "E-OPTION": "an option that does not exist",
    "E-OUTPUT": "an output that cannot be written where it is to go",
    "E-REBUILD": "something that cannot be rebuilt",
    "E-RECIPE": "a key that a recipe does not have",
    "E-ROUND": "a round that goes wrong, or a message of it that is refused",
    "E-SHAPE": "an array, a table or a list of another shape than expected",
    "E-SUPPORT": "something that is not supported for this kind of model",
    "E-SYSTEM": "a fault of the machine: disk, memory, interruption",
    "E-TRACE": "a module that cannot be traced",
    "E-TWICE": "something that would count twice",
    "E-TYPE": "a value of another type than expected",
    "E-UNFITTED": "a model that was not fitted",
    "E-USAGE": "a command line that cannot be understood",
    "E-VALUE": "an option whose value is not taken, or that does not belong there",
    "W-APPROXIMATE": "sums of a site that are approximate",
    "W-CONVERGED": "an iteration that stopped early",
    "W-DIFFER": "sites that used different hyper-parameters",
    "W-HARM": "a fused model that is worse than a site's own",
    "W-RARE": "columns that set few rows apart",
    "W-ROBUST": "an option that undoes part of robust fusion",
    "W-SINGULAR": "columns that do not determine the coefficients",
    "W-SPELLING": "class labels that differ in spelling only",
    "W-TWICE": "a model, or its rows, given twice",
    "W-UNCOMPARED": "a fused network that nothing compares with the sites' own",
    "W-UNITS": "a column that may be in another unit at one site",
    "W-UNPROVED": "a symmetry that is not proved",
    "W-WIDE": "a posterior that is wider than its prior",
    "W-WITHHELD": "components that do not leave a site",
}
"""Problems (E) and warnings (W) by the code that their messages end with. Those that newcomers meet first have a code
of their own; all others have that of their family, which is their exception's (`ConsilienceError.code`).
cli/explanations.md has a section for each, with an example, what is meant and what to do: the page of the docs, and
what ``consilience explain`` prints; a test holds both against the source."""


ALIASES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("seed", "random_state", "random_seed", "generator"), ("rng", "seed", "random_state")),
    "rng": ("seed", "random_state"),
    **dict.fromkeys(("n_clusters", "k", "K", "num_components", "n_topics", "num_topics", "n_states", "num_clusters"),
                    ("n_components",)),
    **dict.fromkeys(("merge_method", "algorithm", "strategy"), ("method",)),
    **dict.fromkeys(("max_iter", "n_iter", "iterations", "num_iterations", "epochs"),
                    ("max_iterations", "steps", "max_iter")),
    "max_iterations": ("max_iter",),
    "tol": ("tolerance",),
    "tolerance": ("tol",),
    "n_init": ("restarts",),
    **dict.fromkeys(("weight", "sample_weight", "alphas"), ("weights",)),
    **dict.fromkeys(("base_model", "pretrained"), ("base",)),
    **dict.fromkeys(("lambda", "lambda_", "scaling_coefficient"), ("scaling", "regularization", "alpha")),
    "regularization": ("alpha", "C", "reg_covar"),
    **dict.fromkeys(("reg", "reg_covar", "lam"), ("regularization", "ridge")),
    **dict.fromkeys(("lr", "learning_rate_init"), ("learning_rate",)),
    **dict.fromkeys(("verbose", "progress_bar", "disp"), ("progress",)),
    **dict.fromkeys(("n_samples", "samples", "n_obs", "sizes", "counts", "n"), ("n_observations",)),
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


def no_attribute(owner: object, name: str, remedy: str = "", known: Collection[str] | None = None) -> AttributeError:
    """Return the error of a name that an object or module does not have.

    Parameters
    ----------
    owner : object
        The object, or what a message calls it, such as "module 'consilience'".
    name : str
        What it was asked for.
    remedy : str, optional
        Where to find that instead. Default: none.
    known : collection of str, optional
        Its public names, among which a misspelt one is looked for. Default: those of the object.

    Examples
    --------
    >>> no_attribute("module 'consilience'", "fues", known=["fuse"])
    AttributeError("module 'consilience' has no attribute 'fues', did you mean fuse? [E-ATTRIBUTE]")
    """
    called = owner if isinstance(owner, str) else type(owner).__name__
    public = [one for one in dir(owner) if not one.startswith("_")] if known is None else known
    meant = "" if remedy or name.startswith("_") else suggestion(name, public)
    return AttributeError(str(Problem("", f"{called} has no attribute {name!r}{meant}", remedy, "E-ATTRIBUTE")))


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


def with_suggestions(names: Iterable[object], known: Collection[str]) -> str:
    """Return names that are not known in one line, each with the one that was probably meant.

    Examples
    --------
    >>> with_suggestions(["bta", "z"], ["alpha", "beta"])
    'bta, did you mean beta?, z'
    """
    return ", ".join(f"{name}{suggestion(name, known)}" for name in names)


_VERB = re.compile(r"(is|was|has|does|states|lacks|needs|sets|says|keeps|holds)\b")
"""A verb of one subject, with which the text of a problem begins."""


def said_once(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems of the catalogue that several subjects share as one of all of them; all others as they are.

    Examples
    --------
    >>> said_once([Problem("a", "is data", "fit a model", "E-DATA"), Problem("b", "is data", "fit a model", "E-DATA")])
    ['a, b: each is data; fit a model [E-DATA]']
    """
    sharing: dict[Problem, list[Problem]] = {}  # by the problem without its subject, or as it is
    for problem in problems:
        is_shared = problem.subject and problem.code and problem.code not in FAMILIES
        shared = problem.without_subject() if is_shared else problem
        sharing.setdefault(shared, []).append(problem)
    once: list[Problem] = []
    for shared, parts in sharing.items():
        names = [problem.subject for problem in parts]
        if not shared.subject and names[0]:
            text = f"each {shared.text}" if len(names) > 1 and _VERB.match(shared.text) else shared.text
            once.append(Problem(_enumerated(names), text, shared.remedy, shared.code))
            once[-1].parts = tuple(parts)
        else:
            once += [shared] * len(names)
    return once


_MAX_SUBJECTS = 5
"""Subjects that one problem names; more are counted. Chosen by hand."""


def _enumerated(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_SUBJECTS} more" if len(names) > _MAX_SUBJECTS else ""
    return ", ".join(names[:_MAX_SUBJECTS]) + more


def unreadable(path: object, error: OSError | ValueError) -> Problem:
    """Return why a file cannot be read; for one that is missing, which file beside it was probably meant.

    A ValueError is of a name that no file can have, with a zero byte.
    """
    text = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if not isinstance(error, FileNotFoundError):
        return Problem(path, text, "give a file in it" if isinstance(error, IsADirectoryError) else "")
    place = Path(str(path))
    try:  # by stems: what follows the last dot is alike in most folders
        siblings = {one.stem: one for one in islice(place.parent.iterdir(), _MAX_SIBLINGS)}
    except OSError:
        siblings = {}
    meant = did_you_mean(place.stem, siblings)
    remedy = f"give {siblings[meant]}, if that was meant" if meant else "give the path of a file that is there"
    return Problem(path, text, remedy, "E-MISSING")
