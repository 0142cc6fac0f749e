"""Findings of a method: its diagnostics, sorted into those drawn, those listed with their value, and those only named.

Details of a method are free-form and may come from a file of somebody else, so anything not of the expected form is
only named; nothing here raises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from consilience.core.details import Status
from consilience.core.verdict import Verdict

_NO_DETAILS = ("n_components", "status", "objective", "history", "site_digests")
"""Keys of a result that every method has, so that they are no details."""

_MAX_NAMED = 20
"""Components, models or numbers that one detail lists at most; more are counted. Chosen by hand."""

_VARIANCES = ("within_variance", "between_variance", "atom_variance")
"""Keys of the three mean variances of methods that estimate them."""


@dataclass(frozen=True)
class PathPoint:
    """One point on the path over numbers of components; `value` is the criterion, or the cost where there is none."""

    n_components: int
    value: float


@dataclass(frozen=True)
class VocabularySummary:
    """How vocabularies were aligned: number of words in all, words that models lack, and shares that models share."""

    size: int  # number of words of all models together
    missing: tuple[tuple[str, float], ...]  # how many of them a model lacks
    # Of models that share few words with any other, the share of theirs that they do
    shared_parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class MinorityComponent:
    """A component that fewer than half of the sites have."""

    component: int  # its number
    sites: int  # number of sites that have it
    names: tuple[str, ...]  # names of the first of these
    counts: float | None  # their observations of it, where these are known


@dataclass(frozen=True)
class NumberSupport:
    """Why there are so many components."""

    prior: str  # the prior over matchings that was taken; empty where the number was given
    probabilities: tuple[tuple[str, float], ...]  # probability of each number of components, the greatest first
    # Nats per observation that the matchings under both priors lose, the greatest first
    losses: tuple[tuple[str, float], ...]
    merged: int  # components that were merged with others of their own site


@dataclass(frozen=True)
class VerdictSummary:
    """The verdict on a fusion, as its file states it."""

    # text, remedy: the sentence, and what to do; empty for nothing
    text: str
    remedy: str
    # Loss of the fused model and of every site's own, the least first; empty where they are not known
    losses: tuple[tuple[str, float], ...]
    criterion: str  # what the losses are
    stated: Verdict  # the same as a value, without its candidates
    # By candidate, the standard error of its difference from the best site's own; empty where not known
    errors: Mapping[str, float] = field(default_factory=dict)


def verdict_of(value: object) -> VerdictSummary | None:
    """Return the verdict in a provenance; None where it has none."""
    stated = Verdict.read(value)
    if stated is None or not isinstance(value, Mapping):
        return None
    losses = tuple(reversed(numbers_by_name(value.get("candidates"))))
    errors = {name: error for name, error in numbers_by_name(value.get("errors")) if error >= 0}
    return VerdictSummary(stated.text, stated.remedy or "", losses, stated.criterion or "", stated, errors)


@dataclass(frozen=True)
class LossesAtSite:
    """What the rows say that one site held out."""

    site: str
    rows: float  # their number, as it is shown to people
    own: float  # mean loss of the site's own model
    chosen: float  # mean loss of the chosen model
    standard_error: float  # of the difference of both on the same rows


def losses_at_sites(result: Mapping[str, object]) -> tuple[LossesAtSite, ...]:
    """Return what every site's held-out rows say, by the ``result`` of a provenance; nothing where it is another form.

    A sum over all sites says nothing of any one.
    """
    said = result.get("held_out")
    records = said.get("sites") if isinstance(said, Mapping) else None
    found = []
    for record in records if isinstance(records, list | tuple) else ():
        values = [_finite(record.get(name)) for name in _LOSSES] if isinstance(record, Mapping) else [None]
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(_LOSSES) or not isinstance(record.get("site"), str):
            return ()
        found.append(LossesAtSite(record["site"], *numbers))
    return tuple(found) if len(found) > 1 else ()


_LOSSES = ("rows", "own", "chosen", "standard_error")


@dataclass(frozen=True)
class ChosenAverage:
    """Which average matched components were given."""

    # name, requested: the average, and what the option said
    name: str
    requested: str
    reason: str  # why it is this one; may be empty
    priors: str  # how priors of the sites differ; may be empty


@dataclass(frozen=True)
class Findings:
    """What a method reports besides the components."""

    status: str  # name of the status
    remedy: str  # what it means and what to do
    objective: float | None  # at the end; None for a method without one
    history: tuple[float, ...]  # the objective after each step
    path: tuple[PathPoint, ...]  # every number of components that was tried, ascending
    measure: str  # what the path's values are: ``criterion`` or ``cost``
    number: NumberSupport | None  # why there are so many components; None where no evidence was asked
    heterogeneity: tuple[tuple[str, float], ...]  # how much sites differ, by block of parameters, the largest first
    outliers: tuple[tuple[str, str], ...]  # sites that the method took for outliers
    minority: tuple[MinorityComponent, ...]  # components that fewer than half of the sites have
    vocabulary: VocabularySummary | None  # how words were aligned; None where all models had the same
    average: ChosenAverage | None  # which average matched components were given; None in files that do not say
    at_sites: tuple[LossesAtSite, ...]  # what the rows say that sites held out; empty where none were asked
    # Standard deviations of copies about their component, of components about their mean, and of fused points, each the
    # root of a mean variance; None for methods that do not estimate them
    spread: tuple[float, float, float] | None
    scalar_details: tuple[tuple[str, Any], ...]  # other details of one value each, by name
    hidden_details: tuple[str, ...]  # names of details that have more than one value, and are not drawn

    @property
    def is_converged(self) -> bool:
        """Whether the method converged, so that there is nothing to do about its status."""
        return self.status == Status.CONVERGED.name.lower()


def findings_of(result: Mapping[str, object]) -> Findings:
    """Return the findings in the ``result`` of a provenance."""
    status = str(result.get("status", "unknown"))
    measure = next((name for name in ("criterion", "cost") if _path(result.get("path"), name)), "")
    path, heterogeneity = _path(result.get("path"), measure), numbers_by_name(result.get("heterogeneity"))
    outliers, vocabulary = _outliers(result.get("outliers")), _vocabulary(result.get("vocabulary"))
    number = _number_support(result.get("number"))
    says_nothing = _are_none(result.get("heterogeneity"))  # where no component has a copy
    minority, average = _minority(result.get("minority")), _average(result.get("average"))
    at_sites = losses_at_sites(result)
    spread = _spread([_finite(result.get(name)) for name in _VARIANCES])
    shown_details: dict[str, Any] = {
        "path": path, "number": number or bool(_curve(result.get("number"))),
        "heterogeneity": heterogeneity or says_nothing, "outliers": outliers,
        "vocabulary": vocabulary, "average": average, "minority": minority, "held_out": at_sites,
        **dict.fromkeys(_VARIANCES, spread),
        "hierarchical": average is not None and isinstance(result.get("hierarchical"), Mapping),
    }  # fmt: skip
    other_details = {
        name: value for name, value in result.items() if name not in _NO_DETAILS and not shown_details.get(name)
    } | _site_statements(result)
    scalars = {name: value for name, value in other_details.items() if isinstance(value, str | int | float | None)}
    hidden = (name for name, value in other_details.items() if name not in scalars and value)
    return Findings(
        status=status, remedy={member.name.lower(): member.value for member in Status}.get(status, ""),
        objective=_finite(result.get("objective")), history=_numbers(result.get("history")), path=path, measure=measure,
        number=number, heterogeneity=heterogeneity, outliers=outliers, minority=minority, vocabulary=vocabulary,
        average=average, at_sites=at_sites, spread=spread, scalar_details=tuple(sorted(scalars.items())),
        hidden_details=tuple(sorted(hidden)),
    )  # fmt: skip


def _spread(variances: Sequence[float | None]) -> tuple[float, float, float] | None:
    """Return the three deviations of variances; None where one is not stated or is negative."""
    deviations = [value**0.5 for value in variances if value is not None and value >= 0]
    return (deviations[0], deviations[1], deviations[2]) if len(deviations) == len(_VARIANCES) else None


def _site_statements(result: Mapping[str, object]) -> dict[str, str]:
    """Return what was left out and what was said of the sites, each as a text; nothing of what is of another form."""
    withheld, statements = result.get("withheld"), {}
    if isinstance(withheld, Mapping) and isinstance(withheld.get("components"), list):
        records = [record for record in withheld["components"] if isinstance(record, Mapping)]
        texts = [f"{record.get('model')}: component {record.get('component')}" for record in records]
        statements["withheld"] = _listed(texts)
    curve = _curve(result.get("number"))
    if curve:
        statements["topics_at_loss"] = _listed([f"{count} lose at most {loss}" for loss, count in curve.items()])
    for name in ("n_observations", "unusable"):
        values = result.get(name)
        if isinstance(values, Mapping):
            texts = [
                f"{model}: {', '.join(map(str, value)) if isinstance(value, list) else value}"
                for model, value in sorted(values.items(), key=lambda item: str(item[0]))
            ]
            statements[name] = _listed(texts)
    return {name: text for name, text in statements.items() if text}


def _curve(number: object) -> Mapping[str, object]:
    """Return the numbers of topics by what they lose; empty where there are none."""
    curve = number.get("topics_at_loss") if isinstance(number, Mapping) else None
    return curve if isinstance(curve, Mapping) else {}


def _listed(texts: list[str]) -> str:
    """Return the first texts, and how many more there are."""
    more = f"; {len(texts) - _MAX_NAMED} more" if len(texts) > _MAX_NAMED else ""
    return "; ".join(texts[:_MAX_NAMED]) + more


def _finite(value: object) -> float | None:
    """Return a finite number as a float, anything else as None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def _numbers(values: object) -> tuple[float, ...]:
    """Return a list's numbers, or nothing when anything else is among them."""
    numbers = [_finite(value) for value in values] if isinstance(values, list | tuple) else []
    return tuple(value for value in numbers if value is not None) if None not in numbers else ()


def _path(values: object, measure: str) -> tuple[PathPoint, ...]:
    """Return the path over numbers of components, or nothing where one of them lacks this measure."""
    if not isinstance(values, list | tuple):
        return ()
    sizes = []
    for value in values:
        if not isinstance(value, Mapping):
            return ()
        count, height = _finite(value.get("n_components")), _finite(value.get(measure))
        if count is None or height is None or not 1 <= count < 1e9 or count != int(count):
            return ()
        sizes.append(PathPoint(int(count), height))
    return tuple(sorted(sizes, key=lambda size: size.n_components))


def numbers_by_name(values: object) -> tuple[tuple[str, float], ...]:
    """Return (name, number), the largest first, or nothing where anything else is among them."""
    if not isinstance(values, Mapping):
        return ()
    pairs = [(str(name), _finite(value)) for name, value in values.items()]
    finite_pairs = [(name, value) for name, value in pairs if value is not None]
    return tuple(sorted(finite_pairs, key=lambda pair: (-pair[1], pair[0]))) if len(finite_pairs) == len(pairs) else ()


def _are_none(values: object) -> bool:
    """Return whether a mapping holds nothing but None."""
    return isinstance(values, Mapping) and all(value is None for value in values.values())


def _number_support(values: object) -> NumberSupport | None:
    if not isinstance(values, Mapping) or not (probabilities := numbers_by_name(values.get("probability"))):
        return None
    prior, merged = values.get("prior", ""), _finite(values.get("merged_within_models", 0))
    if not isinstance(prior, str) or merged is None:
        return None
    return NumberSupport(prior, probabilities, numbers_by_name(values.get("virtual_loss")), int(merged))


def _average(values: object) -> ChosenAverage | None:
    if not isinstance(values, Mapping):
        return None
    texts = [values.get(name, "") for name in ("name", "requested", "reason", "priors")]
    return ChosenAverage(*texts) if texts[0] and all(isinstance(text, str) for text in texts) else None


def _vocabulary(values: object) -> VocabularySummary | None:
    size = _finite(values.get("size")) if isinstance(values, Mapping) else None
    if not isinstance(values, Mapping) or size is None or size != int(size):
        return None
    return VocabularySummary(int(size), numbers_by_name(values.get("missing")), numbers_by_name(values.get("apart")))


def _outliers(values: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, Mapping) for value in values):
        return ()
    return tuple((str(value.get("name", "?")), str(value.get("why", ""))) for value in values)


def _minority(values: object) -> tuple[MinorityComponent, ...]:
    """Return the components of a minority of sites, or nothing where anything else is among them."""
    components = []
    for value in values if isinstance(values, list | tuple) else []:
        names = value.get("names") if isinstance(value, Mapping) else None
        if not isinstance(value, Mapping) or not isinstance(names, list | tuple):
            return ()
        component, sites = _finite(value.get("component")), _finite(value.get("sites"))
        if component is None or sites is None or component != int(component) or sites != int(sites):
            return ()
        counts = _finite(value.get("counts"))
        components.append(MinorityComponent(int(component), int(sites), tuple(map(str, names)), counts))
    return tuple(components)
