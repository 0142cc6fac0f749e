"""Components as a table: shares, observations, and means and deviations in the units of the features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import Array

if TYPE_CHECKING:
    from consilience.posteriors.posterior import Posterior

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
        variance = np.diagonal(spread, axis1=1, axis2=2) if spread.ndim == 3 else spread
        deviation = np.sqrt(np.maximum(variance, 0.0))
    names, units = posterior.features.names, posterior.features.units
    dim = mean.shape[1]
    if names is None or len(names) != dim:
        names = tuple(f"feature {i}" for i in range(dim))
    if units is None or len(units) != dim:
        units = ("",) * dim
    return ComponentMoments(names, units, mean, deviation)


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
