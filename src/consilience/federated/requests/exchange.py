"""Requests, answers and their reduction without a transport: what servers and sites call, and what experiments do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Json, is_count, is_number
from consilience.core.features import Features
from consilience.core.fusion import Fusion
from consilience.core.min_count import MIN_COUNT
from consilience.errors import InputError, OptionError, Problem
from consilience.estimators.removal import differencing_of
from consilience.federated.requests.base import (
    Answer,
    Reduction,
    RoundRequest,
    StandingAnswer,
    read_answer,
    read_request,
)
from consilience.federated.requests.table import Then, request_kind
from consilience.files.safetensors_file import SafetensorsFile


@dataclass(frozen=True, eq=False)
class Round:
    """One request with what came of it."""

    request: RoundRequest  # the request
    reduction: Reduction  # what the answers came to

    @property
    def next_request(self) -> RoundRequest | None:
        """The request that follows; None after the last one, and where nothing would change any more."""
        if self.request.number >= self.request.rounds or self.reduction.is_last:
            return None
        return replace(self.request, number=self.request.number + 1, content=self.reduction.content)

    @property
    def objective(self) -> float:
        """Value of the objective at the new state."""
        return self.reduction.objective

    def to_json(self) -> dict[str, Json]:
        """Return the record of the round that a fused file's provenance has."""
        reduction = self.reduction
        return {
            "request": self.request.digest,
            "number": self.request.number,
            "answers": {site: one.answer.digest for site, one in reduction.standing.items()},
            "n_observations": {site: one.answer.n_observations for site, one in reduction.standing.items()},
            "carried": {site: reduction.standing[site].answer.number for site in reduction.carried},
            "objective_before": reduction.objective_before,
            "objective": reduction.objective,
        }


def request(kind: str, fusion: Any, *, rounds: int = 1, allow_differencing: bool = False) -> RoundRequest:
    """Return the first request of a kind, from a fused model.

    Parameters
    ----------
    kind : str
        Name of the kind, such as ``"em"`` or ``"refine"``.
    fusion : PosteriorFusion, Posterior, EstimatorFusion or Statistics
        The fused model that it starts from.
    rounds : int
        Number of requests in all. Default: 1.
    allow_differencing : bool
        Whether a result of `cs.add` or `cs.remove` may be published, from which and the one before it whoever has both
        gets a site's sums. Default: False.

    Raises
    ------
    OptionError
        For an unknown kind, with a list of all.
    UnsupportedError
        For a fused model of which there is no such request.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.mixture import BayesianGaussianMixture
    >>> import consilience as cs
    >>> rng = np.random.default_rng(0)
    >>> sites = {site: rng.normal(size=(60, 1)) + 5 * rng.integers(2, size=(60, 1)) for site in ("a", "b")}
    >>> fit = BayesianGaussianMixture(n_components=2, random_state=0).fit
    >>> fitted = {site: cs.describe(fit(rows)) for site, rows in sites.items()}
    >>> first = cs.federated.request("em", cs.fuse(list(fitted.values())))
    >>> answers = {site: cs.federated.answer(first, rows) for site, rows in sites.items()}
    >>> cs.federated.reduce(first, answers).reduction.sites
    ('a', 'b')
    """
    if not is_count(rounds):
        raise OptionError("rounds", f"expected a positive whole number, found {rounds!r}")
    then = Then(kind, int(rounds))
    method = fusion.provenance.get("method") if isinstance(fusion, Fusion) else None
    if not allow_differencing and (text := differencing_of(method)):
        raise InputError("the fusion", text, "fuse what all sites that remain sent, or give `allow_differencing=True`")
    content = request_kind(kind).start(fusion)
    posterior = getattr(fusion, "posterior", fusion)
    return RoundRequest(kind, 1, then.rounds, content, getattr(posterior, "features", Features()))


def check_request(message: RoundRequest, label: object = "") -> RoundRequest:
    """Return a request whose kind finds nothing wrong with it.

    Raises OptionError or InputError for an unknown kind, and for what is wrong with the content.
    """
    kind = request_kind(message.kind)
    if message.number > message.rounds:
        raise InputError(label or "request", f"is number {message.number} of {message.rounds}", code="E-ROUND")
    if problems := kind.request_problems(message):
        raise InputError(problem.about(label) if str(label) else problem for problem in problems)
    return message


def answer(
    message: RoundRequest | str | Path, data: Any, *, min_count: float = MIN_COUNT, module: Any = None
) -> Answer:
    """Return a site's answer to a request, from its rows: sums, and no row.

    Parameters
    ----------
    message : Request or path
        The request, or its file.
    data : array_like, DataFrame, tuple, str or Path
        The rows of the site: an array, a table, or the path of a .csv, .npy or .npz; for estimators that are fitted to
        targets ``(X, y)`` or ``(X, y, sample_weight)``.
    min_count : float
        A sum over fewer observations does not leave the site. Default: 5.
    module : object, optional
        For kinds that need one: the torch module of the fused network, for `chain` the site's own trained one.

    Raises
    ------
    InputError
        For a request that is none, for data that do not fit it, and for fewer rows than `min_count`.
    OptionError
        For a kind that this version does not know, and a module that the kind has no use for.
    """
    label = "" if isinstance(message, RoundRequest) else message
    message = check_request(message if isinstance(message, RoundRequest) else read_request(Path(message)), label)
    kind = request_kind(message.kind)
    if not is_number(min_count):
        raise OptionError("min_count", f"expected a number that is not negative, found {min_count!r}")
    if (module is not None) and not kind.needs_module:
        raise OptionError("module", f"is for networks, and {kind.name} asks for {kind.supports}")
    if module is None and kind.needs_module:
        raise OptionError("module", f"is needed: {kind.name} asks for {kind.supports}", f"give {kind.module}")
    data = str(data) if isinstance(data, Path) else data
    n_observations, content = kind.answer(message, data, min_count=float(min_count), module=module)
    return Answer(kind.name, message.number, message.digest, n_observations, float(min_count), content)


def rows_for(message: RoundRequest, data: Any, held_out: Any) -> Any:
    """Return the rows that a site answers from: those held out of training where it has them and they are asked of."""
    return held_out if held_out is not None and request_kind(message.kind).asks_held_out else data


def answer_problems(message: RoundRequest, one: Answer) -> list[Problem]:
    """Return why an answer is rejected: it is one to another request, or its sums are those of no rows."""
    for subject, found, expected in (
        ("kind", one.kind, message.kind),
        ("number", one.number, message.number),
        ("request", one.request[:12], message.digest[:12]),
    ):
        if found != expected:
            return [Problem("answer", f"answers another request: its {subject} is {found}, expected {expected}")]
    return request_kind(message.kind).answer_problems(message, one)


def reduce(
    message: RoundRequest,
    answers: Mapping[str, Answer | str | Path],
    standing: Mapping[str, StandingAnswer] | None = None,
    late: Mapping[str, StandingAnswer] | None = None,
) -> Round:
    """Return what the answers of sites to a request come to: the next state, its objective, and who counts in it.

    Parameters
    ----------
    message : Request
        The request.
    answers : mapping of str to Answer or path
        Answers to it, by site.
    standing : mapping of str to StandingAnswer, optional
        Answers to earlier requests, by site, which are carried on where there is none to this one:
        ``reduce(...).reduction.standing`` of the round before. Default: none.
    late : mapping of str to StandingAnswer, optional
        Answers to earlier requests that came since, of sites that are not in `answers`. Default: none.

    Raises
    ------
    InputError
        Naming every answer that is rejected, with the reason; and where no site has answered.
    """
    read = {
        site: one if isinstance(one, Answer) else read_answer(SafetensorsFile(one, site))
        for site, one in sorted(answers.items())
    }
    problems = [problem.about(site) for site, one in read.items() for problem in answer_problems(message, one)]
    if problems:
        raise InputError(problems)
    new = {**(late or {}), **{site: StandingAnswer(message, one) for site, one in read.items()}}
    return Round(message, request_kind(message.kind).reduce(message, dict(sorted(new.items())), dict(standing or {})))


def finish(fusion: Any, rounds: list[Round]) -> Any:
    """Return the fused model after some rounds of requests; a fusion's provenance has them.

    Parameters
    ----------
    fusion : PosteriorFusion or Posterior
        What the first request was made from.
    rounds : list of Round
        The rounds, in order.
    """
    kind = request_kind(rounds[-1].request.kind)
    finished = kind.finish(fusion, rounds[-1].reduction.content)
    if not isinstance(fusion, Fusion):
        return finished
    history = np.array([rounds[0].reduction.objective_before, *(one.objective for one in rounds)])
    record = {"kind": kind.name, "rounds": [one.to_json() for one in rounds]}
    # How the components of the start were averaged says nothing of these.
    if "then" in finished.details:  # requests of another kind came before
        record["behind"] = finished.details["then"]
    result, details = (
        {**{name: value for name, value in earlier.items() if name not in ("average", "hierarchical")}, "then": record}
        for earlier in (finished.provenance["result"], finished.details)
    )
    provenance = {**finished.provenance, "result": result}
    return replace(finished, provenance=provenance, details=details, objective=float(history[-1]), history=history)


def exchange(
    kind: str,
    fusion: Any,
    data: Mapping[str, Any],
    *,
    rounds: int = 1,
    min_count: float = MIN_COUNT,
    allow_differencing: bool = False,
    module: Any = None,
) -> Any:
    """Return the fused model after some rounds of requests, all sites in one memory: for experiments.

    Parameters
    ----------
    kind, fusion, rounds, allow_differencing
        As for `request`.
    data : mapping of str to array_like, DataFrame, str or Path
        The rows of every site.
    min_count : float
        As for `answer`. Default: 5.
    module : object or mapping of str to object, optional
        As for `answer`, one for all sites or one by site. Default, for kinds that need one: the fused module, or for
        `chain` each site's own.

    Returns
    -------
    PosteriorFusion or Posterior
        As `fusion`. `history` is the objective at the start and after each round; ``provenance["result"]["then"]``
        has the rounds.

    Raises
    ------
    InputError, OptionError, UnsupportedError
        As `request`, `answer` and `reduce`.
    """
    message: RoundRequest | None = request(kind, fusion, rounds=rounds, allow_differencing=allow_differencing)
    modules = dict(module) if isinstance(module, Mapping) else dict.fromkeys(data, module)
    if module is None and request_kind(kind).needs_module:
        modules = {site: request_kind(kind).site_module(fusion, site) for site in data}
    if missing := sorted(set(data) - set(modules)):
        raise OptionError("module", f"says nothing of {', '.join(missing)}", "give one for every site")
    done: list[Round] = []
    standing: Mapping[str, StandingAnswer] = {}
    while message is not None:
        answers = {
            site: answer(message, rows, min_count=min_count, module=modules[site]) for site, rows in data.items()
        }
        done.append(reduce(message, answers, standing))
        message, standing = done[-1].next_request, done[-1].reduction.standing
    return finish(fusion, done)
