"""Evaluation of a fused model against a site's own: scores, paired differences, and a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from consilience.checks import Array, Json, Labels
from consilience.core.scores import LEVEL, PairedDifference, ScoreKind
from consilience.drawing.display import MAX_NAMES, Displayed, Tabular
from consilience.drawing.plots import Chart, Plotted, draw_intervals

MIN_OBSERVATIONS = 50
"""Observations below which a note calls the interval rough: it is easily too narrow.

Chosen by hand. In simulations with 10 normal and 20 log-normal values the interval covered the truth in 96 % and 86 %
of cases (``core.scores.paired_difference``); nobody has measured from how many on it is right.
"""


MAX_LISTED_CLASSES = 20
"""Classes up to which each has a line in the text. Chosen by hand, to fit on a screen."""


@dataclass(frozen=True)
class Score:
    """One score of both models on the same data.

    Parameters
    ----------
    name : str
        What is measured.
    unit : str
        Its unit; empty for a pure number.
    larger_is_better : bool or None
        Whether a larger score is a better one; None where it is neither.
    fused, own : float
        The score of the fused model and of the site's own.
    kind : ScoreKind, optional
        What the score is: a predictive density, one at a point estimate, a bound ... Default: None, where it is not
        known.
    """

    name: str
    unit: str
    larger_is_better: bool | None
    fused: float
    own: float
    kind: ScoreKind | None = None


RowScore = tuple[str, str, bool, Array, ScoreKind]
"""Name of a score, its unit, whether larger is better, its value of every row (n,), and what it is."""


@dataclass(frozen=True, eq=False)
class ComponentUsage:
    """How many rows or tokens belong to each component of both models."""

    fused: Labels  # (G,), of each fused component
    own: Labels  # (K,), of each component of the site's own model
    unit: str  # what is counted: ``rows`` or ``tokens``

    @property
    def unseen(self) -> Labels:
        """Fused components that none of these data belong to (at most G,): what the site learns of others."""
        return np.flatnonzero(self.fused == 0)


@dataclass(frozen=True)
class ClassScore:
    """Accuracy of both models on the rows of one class."""

    label: int  # number of the class
    rows: int  # number of rows of this class
    # fused, own: accuracy of each model on these, in percent
    fused: float
    own: float


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Displayed, Plotted, Tabular):
    """How a fused model and a site's own compare on the site's data.

    Parameters
    ----------
    scores : tuple of Score
        The scores of both models; `difference` is about the first.
    difference : PairedDifference
        Fused minus own, paired by observation, in the unit of the first score.
    notes : tuple of str, optional
        Limits of the comparison, a sentence each. Default: none.
    what : str, optional
        What was fused: a model, network, estimator, or draws. Default: ``model``.
    observations : str, optional
        What differences are paired by, in the plural: ``rows``, ``documents``, or ``parameters`` of draws. Default:
        ``rows``.
    unit : str, optional
        Unit of the difference in words. Default: that of the first score.
    skipped : int, optional
        Number of observations that could not be scored: documents too short to be split. Default: 0.
    usage : ComponentUsage, optional
        Which components the data belong to. Default: None, for models without components.
    loss_difference : PairedDifference, optional
        Fused minus own cross-entropy of networks, paired by row, in nats. Default: None.
    classes : tuple of ClassScore, optional
        Accuracies of networks by class, of the classes that the data have. Default: none.
    """

    scores: tuple[Score, ...]
    difference: PairedDifference
    notes: tuple[str, ...] = ()
    what: str = field(default="model", kw_only=True)
    observations: str = field(default="rows", kw_only=True)
    unit: str | None = field(default=None, kw_only=True)
    skipped: int = field(default=0, kw_only=True)
    usage: ComponentUsage | None = field(default=None, kw_only=True)
    loss_difference: PairedDifference | None = field(default=None, kw_only=True)
    classes: tuple[ClassScore, ...] = field(default=(), kw_only=True)

    def _headline(self) -> str:
        return f"fused {self.what} and a site's own on {self.difference.n_observations:,} {self.observations}"

    def _facts(self) -> dict[str, object | None]:
        facts = {"": self.verdict, **_score_facts(self.scores)}
        if self.usage is None:
            return facts
        return {**facts, "fused components never seen here": _numbered(self.usage.unseen[:MAX_NAMES])}

    def _charts(self) -> Mapping[str, Chart | str]:
        difference, first = self.difference, self.scores[0]
        unit = f", {first.unit}" if first.unit else ""
        title = f"{first.name}: fused minus own{unit}, {100 * LEVEL:.0f} % interval"
        name = f"better to the {'right' if first.larger_is_better else 'left'}"
        means, ends = np.array([difference.mean]), np.array([difference.interval])
        return {"difference": partial(draw_intervals, names=[name], means=means, intervals=ends, title=title)}

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each score of both models."""
        return {name: [getattr(score, name) for score in self.scores] for name in ("name", "unit", "fused", "own")}

    def summary(self) -> str:
        """Return the comparison as text: the verdict, both models' scores, and its limits."""
        return str(self)

    @property
    def better(self) -> str | None:
        """``"fused"`` or ``"own"``, by the sign of the interval of `difference`; None when it does not tell."""
        sign = self.difference.sign * (1 if self.scores[0].larger_is_better else -1)
        return {1: "fused", -1: "own", 0: None}[sign]

    @property
    def verdict(self) -> str:
        """One sentence: which model is better here, and by how much."""
        unit = self.scores[0].unit if self.unit is None else self.unit
        return verdict_sentence(self.difference, unit, self.observations, self.better)

    def to_json(self) -> dict[str, Json]:
        """Return everything as JSON values; what is infinite or not a number is None."""
        document: dict[str, Any] = {
            "verdict": self.verdict,
            "better": self.better,
            "observations": self.observations,
            "scores": [asdict(score) for score in self.scores],
            "difference": difference_to_json(self.difference),
            "notes": list(self.notes),
        }
        if (usage := self.usage) is not None:
            counts = {"fused": usage.fused.tolist(), "own": usage.own.tolist(), "unseen": usage.unseen.tolist()}
            document |= {"skipped": self.skipped, "usage": {"unit": usage.unit, **counts}}
        if self.loss_difference is not None:
            document["loss_difference"] = difference_to_json(self.loss_difference)
        if self.classes:
            document["classes"] = [asdict(score) for score in self.classes]
        finite: dict[str, Json] = finite_json(document)
        return finite

    def __str__(self) -> str:
        lines = score_lines(self.scores) if self.usage is None else _usage_lines(self.scores, self.usage)
        if self.loss_difference is not None:
            low, high = self.loss_difference.interval
            loss = f"{self.loss_difference.mean:.4g} nats, {low:.4g} to {high:.4g}"
            lines += ["", f"cross-entropy, fused minus own: {loss}"]
        if 0 < len(self.classes) <= MAX_LISTED_CLASSES:
            lines += ["accuracy by class, %:", f"{'class':>7}  {'rows':>7}  {'your own':>8}  {'fused':>8}"]
            lines += [
                f"{score.label:7}  {score.rows:7}  {score.own:8.2f}  {score.fused:8.2f}" for score in self.classes
            ]
        return "\n".join([self.verdict, "", *lines, *(f"note: {note}" for note in self.notes)])


def _numbered(components: Labels) -> str:
    """Return components by their numbers, which without a word would read as a count."""
    return ", ".join(f"component {number}" for number in components.tolist()) or "none"


def _usage_lines(scores: Sequence[Score], usage: ComponentUsage) -> list[str]:
    """Return a table of scores with the components that are used, and how many data belong to each fused one."""
    used = [f"{np.count_nonzero(counts)} of {len(counts)}" for counts in (usage.own, usage.fused)]
    return [
        *score_lines(scores, ("components used", used[0], used[1], "")),
        "",
        f"{usage.unit} of each fused component: {', '.join(map(str, usage.fused))}",
        f"fused components never seen here: {_numbered(usage.unseen)}",
    ]


def verdict_sentence(difference: PairedDifference, unit: str, observations: str, better: str | None) -> str:
    """Return in one sentence which model is better, and by how much, with a 95 % interval.

    `difference` is fused minus own; `better` is "fused" or "own", None where the difference does not tell.
    """
    if difference.n_observations < 2:
        return f"no difference can be estimated from fewer than two {observations}"
    if not difference.margin and not difference.mean:
        return f"both are the same on all {difference.n_observations} {observations}: the fused model may be this one"
    basis = f"95 % interval, {difference.n_observations} {observations}"
    mean = _rounded_to_margin(abs(difference.mean), difference.margin)
    margin = _rounded_to_margin(difference.margin, difference.margin)
    size = f"{mean} ± {margin} {unit} ({basis})"
    if better == "fused":
        return f"the fused model is better by {size}"
    if better == "own":
        return f"your own model is better here, by {size}"
    sign = "-" if difference.mean < 0 else ""
    return f"no significant difference: fused minus own is {sign}{size}"


def _score_facts(scores: Sequence[Score]) -> dict[str, object | None]:
    """Return both models' scores by the score's name, as values show them."""
    return {
        f"{score.name}{f', {score.unit}' if score.unit else ''}": f"fused {score.fused:.4f}, your own {score.own:.4f}"
        for score in scores
    }


def score_lines(scores: Sequence[Score], *more: tuple[str, str, str, str]) -> list[str]:
    """Return a table of both models' scores, each with its kind, and further rows."""
    table = [("", "your own", "fused", "kind")]
    for score in scores:
        name = f"{score.name}, {score.unit}" if score.unit else score.name
        direction = {True: "larger is better", False: "smaller is better", None: ""}[score.larger_is_better]
        kind = "kind not stated" if score.kind is None else str(score.kind)
        remark = ", ".join(part for part in (kind, direction) if part)
        table.append((name, f"{score.own:.4f}", f"{score.fused:.4f}", remark))
    table += more
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    return [
        f"{name:{widths[0]}}  {own:>{widths[1]}}  {fused:>{widths[2]}}  {remark}".rstrip()
        for name, own, fused, remark in table
    ]


def difference_to_json(difference: PairedDifference) -> dict[str, Json]:
    """Return a difference with its uncertainty as JSON values."""
    return {
        "mean": difference.mean,
        "standard_error": difference.standard_error,
        "interval": list(difference.interval),
        "level": LEVEL,
        "n_observations": difference.n_observations,
    }


def _rounded_to_margin(value: float, margin: float) -> str:
    """Return `value` to the decimal place of the second significant digit of `margin`."""
    if margin <= 0 or not math.isfinite(margin):
        return f"{value:.4g}"
    digits = 1 - math.floor(math.log10(margin))
    return f"{value:.{digits}f}" if 0 <= digits <= 6 else f"{value:.3g}"


def finite_json(value: Any) -> Any:
    """Return JSON values with None for every number that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
