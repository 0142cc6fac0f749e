"""What the command, the prompt and the cell say of a fusion of posteriors as text, and its components as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import Array
from consilience.core.details import RobustDetails, Withheld, why_left_out
from consilience.drawing.words import format_count, printable
from consilience.families.linalg import variances_of
from consilience.posteriors.details import AverageDetails, PosteriorDetails, VocabularyDetails

if TYPE_CHECKING:
    from consilience.posteriors.fusion import PosteriorFusion
    from consilience.posteriors.posterior import Posterior


MAX_NAMED = 8
"""Models that a line names; more are counted."""


def summary_lines(fusion: PosteriorFusion) -> list[str]:
    """Return how many components became how many, which average was taken, and what to know of the models."""
    inputs, details = fusion.provenance["inputs"], fusion.details
    lines = [
        f"{format_count(details.get('sites', len(inputs)), 'model')}"
        f" with {format_count(sum(record['components'] for record in inputs), 'component')}"
        f" -> {format_count(fusion.n_components, 'component')} (method {fusion.provenance['method']})"
    ]
    if fusion.history.size:
        steps = format_count(fusion.history.size, "step")
        lines.append(f"objective {fusion.objective:.6g} after {steps}: {fusion.status.value}")
    lines += _average(details.get("average", {}))
    if "regularization" in details:
        lines.append(f"regularization {details['regularization']:.4g}")
    lines += notes_of(details)
    if "kmeans_gain" in details:
        lines.append(f"matched by k-means, which loses {details['kmeans_gain']:.3g} nats per observation less")
    if "runnalls_gain" in details:
        gain = details["runnalls_gain"]
        lines.append(f"matched by Runnalls' reduction, which loses {gain:.3g} nats per observation less")
    if details.get("violations"):
        number = details["violations"]
        verb = "shares" if number == 1 else "share"
        lines.append(f"{format_count(number, 'component')} {verb} a cluster with another one of their own model")
    return lines


def notes_of(details: PosteriorDetails) -> list[str]:
    """Return what should be known of single models: what was left out and why, who is far apart, who lacks words."""
    lines = [printable(line) for line in details.get("aligned_columns", [])]
    lines += [f"{printable(record['name'])}: {record['why']}" for record in details.get("outliers", [])]
    lines += _not_averaged(details.get("robust"))
    if details.get("left_out"):
        lines.append(f"{_components(details['left_out'], 'with too few observations')} left out")
    lines += [
        f"{printable(name)}: "
        + (
            f"component {numbers[0]} has no usable parameters, and was left out"
            if len(numbers) == 1
            else f"components {', '.join(map(str, numbers))} have no usable parameters, and were left out"
        )
        for name, numbers in details.get("unusable", {}).items()
    ]
    lines += _withheld(details.get("withheld"))
    lines += _minority(details)
    if "vocabulary" in details:
        lines += _vocabulary(details["vocabulary"])
    return lines


def _components(count: int, which: str) -> str:
    """Return so many components with their verb."""
    return f"{format_count(count, 'component')} {which} {'was' if count == 1 else 'were'}"


def _average(average: AverageDetails) -> list[str]:
    """Return which average was taken, why where that was not asked for by name, and how priors differ."""
    if not average:
        return []
    reason = f": {printable(average['reason'])}" if average.get("reason") else ""
    line = f"average {average['name']}{reason}"
    return [line, f"priors: {printable(average['priors'])}"] if average.get("priors") else [line]


def _not_averaged(robust: RobustDetails | None) -> list[str]:
    """Return which models robust=True left out of the average and why, a line each."""
    if not robust:
        return []
    named = robust["left_out"][:MAX_NAMED]
    lines = [f"{printable(record['model'])}: left out by `robust=True` ({why_left_out(record)})" for record in named]
    n_more = len(robust["left_out"]) - len(named)
    return [
        *lines,
        *([f"{n_more:,} more model{' was' if n_more == 1 else 's were'} left out by `robust=True`"] if n_more else []),
    ]


def _withheld(withheld: Withheld | None) -> list[str]:
    """Return notes on components that were left out for too few observations, a line each."""
    if withheld is None:
        return []
    named = withheld["components"][:MAX_NAMED]
    lines = [
        f"{printable(record['model'])}: component {record['component']} has fewer than {withheld['min_count']:g}"
        " observations, and was left out"
        for record in named
    ]
    n_more = withheld["count"] - len(named)
    were = "was" if n_more == 1 else "were"
    return [*lines, *([f"{n_more} more with as few observations {were} left out"] if n_more else [])]


def _minority(details: PosteriorDetails) -> list[str]:
    """Return notes on components that fewer than half of the models hold."""
    held, lines = details.get("minority", []), list[str]()
    if held:
        named = [
            f"{one['component']} ({', '.join(map(printable, one['names'][:MAX_NAMED]))})" for one in held[:MAX_NAMED]
        ]
        more = f" and {len(held) - MAX_NAMED} more" if len(held) > MAX_NAMED else ""
        verb = "is" if len(held) == 1 else "are"
        which = format_count(len(held), "component")
        lines.append(f"{which} {verb} held by fewer than half of the models: {', '.join(named)}{more}")
    if details.get("dropped"):
        lines.append(f"{_components(details['dropped'], 'that fewer than half of the models hold')} left out")
    return lines


def _vocabulary(found: VocabularyDetails) -> list[str]:
    """Return notes on models whose vocabularies were aligned."""
    missing = found["missing"].items()
    lacking = ", ".join(f"{printable(name)} lacks {count}" for name, count in sorted(missing)[:MAX_NAMED])
    more = f" and {len(missing) - MAX_NAMED} more models lack some" if len(missing) > MAX_NAMED else ""
    return [
        f"vocabulary of {found['size']} words" + (f"; {lacking}{more}" if missing else ", put in alphabetical order"),
        *(
            f"{printable(name)}: shares only {100 * share:.1f} % of its words with any other model"
            for name, share in sorted(found.get("apart", {}).items())
        ),
    ]


N_WORDS = 10
"""Most probable words of a topic in a table. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class ComponentMoments:
    """Means and standard deviations of components, in the units of the features."""

    names: tuple[str, ...]  # of the features
    units: tuple[str, ...]  # empty where they are not stated
    mean: Array  # of each component (n, D)
    deviation: Array  # of the observations in it (n, D)


def feature_moments(posterior: Posterior) -> ComponentMoments | None:
    """Return means and deviations of the components; None for families without locations and for inducing points.

    The deviations are the roots of the diagonal of the typical covariance, which ``Family.locations_and_spreads`` says.
    """
    with np.errstate(all="ignore"):  # what overflows is shown as infinite
        location_and_spread = posterior.family.locations_and_spreads(posterior.natural)
        if location_and_spread is None:
            return None
        mean, spread = location_and_spread
        deviation = np.sqrt(np.maximum(variances_of(spread), 0.0))
    names, units = posterior.features.names, posterior.features.units
    dim = mean.shape[1]
    if names is None or len(names) != dim:
        names = tuple(f"feature {i}" for i in range(dim))
    if units is None or len(units) != dim:
        units = ("",) * dim
    return ComponentMoments(names, units, mean + posterior.origin, deviation)


def component_columns(posterior: Posterior) -> dict[str, list[Any]]:
    """Return a row for each component, as columns by name.

    They are the component's number, its observations and share where stated, then mean and deviation of each feature;
    for topics the most probable words, for other families the standard parameters that are one number each.
    """
    columns: dict[str, list[Any]] = {"component": list(range(posterior.n_components))}
    if posterior.counts is not None:
        columns["observations"] = posterior.counts.tolist()
    if posterior.counts is not None or posterior.weights is not None:
        columns["share"] = posterior.shares.tolist()
    moments = feature_moments(posterior)
    if moments is not None:
        for place, name in enumerate(moments.names):
            columns[f"{name} mean"] = moments.mean[:, place].tolist()
            columns[f"{name} deviation"] = moments.deviation[:, place].tolist()
        return columns
    concentrations = posterior.parameters().get("concentration")
    if concentrations is not None and concentrations.ndim == 2:
        words = np.array(posterior.features.names or [str(i) for i in range(concentrations.shape[1])])
        order = np.argsort(-concentrations, axis=1, kind="stable")
        columns["words"] = [", ".join(words[row[:N_WORDS]].tolist()) for row in order]
        return columns
    for name, values in posterior.parameters().items():
        if np.shape(values) == (posterior.n_components,):
            columns[name] = np.asarray(values).tolist()
    return columns
