"""Gaussian posteriors over the weights of a network: every array comes twice, as means and as standard deviations.

A mean-field Gaussian posterior of a network is again a network: each parameter NAME has an array ``NAME`` of means and
an array ``NAME/deviation`` of standard deviations, whose units move together. The squared distance of two such networks
is then the squared Wasserstein-2 distance of the posteriors,

    W2^2(q0, q1) = ||m0 - m1||^2 + ||s0 - s1||^2,

and their average its barycenter, so that whatever aligns networks by weights aligns posteriors too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array
from consilience.networks.network import to_numpy
from consilience.networks.symmetry.axes import Axis, Layout, Proof
from consilience.networks.symmetry.symmetry import Symmetry

Metric = Literal["w2", "means", "kl", "kl_reverse", "hellinger"]
METRICS: tuple[Metric, ...] = get_args(Metric)

DEVIATION = "/deviation"
"""What the name of an array of standard deviations ends with."""


def is_deviation(name: str) -> bool:
    """Return whether an array of a Gaussian network holds standard deviations."""
    return name.endswith(DEVIATION)


def gaussian_arrays(arrays: Mapping[str, AnyArray], variances: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Return the arrays of a Gaussian network: everything the network has, and a deviation for each variance."""
    found = dict(arrays)
    for name, values in variances.items():
        found[name + DEVIATION] = array_namespace(values).sqrt(values)
    return found


def means_of(arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Return the means, and whatever else is no deviation, by name."""
    return {name: values for name, values in arrays.items() if not is_deviation(name)}


def variances_of(arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Return the variances by name of their parameter."""
    return {name.removesuffix(DEVIATION): values**2 for name, values in arrays.items() if is_deviation(name)}


def gaussian_symmetry(symmetry: Symmetry, names: Collection[str]) -> Symmetry:
    """Return the symmetry of a Gaussian network, given that of the network itself and its parameters' names.

    A deviation moves as its mean does but for the sign, which it never changes. What was proved stays proved.
    """
    layouts = dict(symmetry.layouts)
    for name in names:
        if name in symmetry.layouts:
            layouts[name + DEVIATION] = _never_odd(symmetry.layouts[name])
    aliases = dict(symmetry.aliases)
    for alias, name in symmetry.aliases.items():
        if name in names:
            aliases[alias + DEVIATION] = name + DEVIATION
    return proved_as(replace(symmetry, layouts=layouts, aliases=aliases, proof=None), symmetry)


def without_deviations(symmetry: Symmetry) -> Symmetry:
    """Return the symmetry of the network itself, given that of the Gaussian network."""
    layouts = {name: layout for name, layout in symmetry.layouts.items() if not is_deviation(name)}
    aliases = {alias: name for alias, name in symmetry.aliases.items() if not is_deviation(name)}
    return proved_as(replace(symmetry, layouts=layouts, aliases=aliases, proof=None), symmetry)


def proved_as(found: Symmetry, symmetry: Symmetry) -> Symmetry:
    """Return a symmetry that follows from another, proved where that is."""
    if not symmetry.proved or symmetry.proof is None:
        return found
    return replace(found, proof=Proof(found.digest, symmetry.proof.deviation, symmetry.proof.trials))


def _never_odd(layout: Layout) -> Layout:
    axes = tuple(
        Axis(tuple(replace(s, odd=()) if s.group is not None else s for s in axis.segments), axis.side)
        for axis in layout.axes
    )
    return replace(layout, axes=axes)


def divergences(metric: Metric, one: Mapping[str, AnyArray], other: Mapping[str, AnyArray]) -> dict[str, float]:
    """Return how far two Gaussian networks are apart, by name of the parameter; the sum is that of the posteriors.

    Parameters
    ----------
    metric
        "w2": squared Wasserstein-2 distance. "means": squared distance of means. "kl": KL(one || other) in nats;
        "kl_reverse": KL(other || one). "hellinger": -log of the affinity, of which the squared Hellinger distance is
        1 - exp(-sum).
    one, other
        Arrays of Gaussian networks, in the same order of units.
    """
    return {
        key: float(_apart(metric, *(to_numpy(v) for v in (one[key], one[name], other[key], other[name]))).sum())
        for name in one
        if is_deviation(name) and (key := name.removesuffix(DEVIATION))
    }


def _apart(metric: Metric, mean: Array, deviation: Array, other: Array, other_deviation: Array) -> Any:
    """Return the divergences of independent Gaussians, entry by entry."""
    if metric == "means":
        return (mean - other) ** 2
    if metric == "w2":
        return (mean - other) ** 2 + (deviation - other_deviation) ** 2
    if metric == "kl_reverse":
        return _apart("kl", other, other_deviation, mean, deviation)
    variance, other_variance = deviation**2, other_deviation**2
    if metric == "kl":
        ratio = variance / other_variance
        return 0.5 * ((mean - other) ** 2 / other_variance + ratio - 1.0 - np.log(ratio))
    total = variance + other_variance
    return 0.25 * (mean - other) ** 2 / total + 0.5 * np.log(0.5 * total / (deviation * other_deviation))
