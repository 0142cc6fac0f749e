"""Gaussian networks: mean-field posteriors as networks with an array of means and one of deviations per parameter.

A mean-field Gaussian posterior of a network is again a network: each parameter NAME has an array ``NAME`` of means m
and an array ``NAME/deviation`` of standard deviations s, whose units move together. The squared Euclidean distance of
two such networks is then the squared Wasserstein-2 distance of the posteriors,

    W2^2(q0, q1) = ||m0 - m1||^2 + ||s0 - s1||^2,

and their mean is its barycenter, so that whatever aligns networks by weights aligns posteriors too (docs/adr/14).
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
"""Suffix of the names of arrays of standard deviations."""


def is_deviation(name: str) -> bool:
    """Return whether an array of a Gaussian network holds standard deviations."""
    return name.endswith(DEVIATION)


def gaussian_arrays(arrays: Mapping[str, AnyArray], variances: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Return the arrays of a Gaussian network: the arrays of the network, and a deviation for each variance."""
    doubled = dict(arrays)
    for name, values in variances.items():
        doubled[name + DEVIATION] = array_namespace(values).sqrt(values)
    return doubled


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
            layouts[name + DEVIATION] = _without_signs(symmetry.layouts[name])
    aliases = dict(symmetry.aliases)
    for alias, name in symmetry.aliases.items():
        if name in names:
            aliases[alias + DEVIATION] = name + DEVIATION
    return inherit_proof(replace(symmetry, layouts=layouts, aliases=aliases, proof=None), symmetry)


def without_deviations(symmetry: Symmetry) -> Symmetry:
    """Return the symmetry of the network itself, given that of the Gaussian network."""
    layouts = {name: layout for name, layout in symmetry.layouts.items() if not is_deviation(name)}
    aliases = {alias: name for alias, name in symmetry.aliases.items() if not is_deviation(name)}
    return inherit_proof(replace(symmetry, layouts=layouts, aliases=aliases, proof=None), symmetry)


def inherit_proof(derived: Symmetry, symmetry: Symmetry) -> Symmetry:
    """Return a symmetry that follows from another, with the proof of that one bound to it where there is one."""
    if not symmetry.proved or symmetry.proof is None:
        return derived
    return replace(derived, proof=Proof(derived.digest, symmetry.proof.deviation, symmetry.proof.trials))


def _without_signs(layout: Layout) -> Layout:
    """Return the layout of deviations: a unit whose sign turns keeps its deviations."""
    axes = tuple(
        Axis(tuple(replace(s, odd=()) if s.group is not None else s for s in axis.segments), axis.side)
        for axis in layout.axes
    )
    return replace(layout, axes=axes)


def divergences(metric: Metric, first: Mapping[str, AnyArray], second: Mapping[str, AnyArray]) -> dict[str, float]:
    """Return the divergence of two Gaussian networks by name of the parameter; the sum is that of the posteriors.

    Units are in the same order. "w2" is the squared Wasserstein-2 distance, "means" the squared distance of means, "kl"
    KL(first || second) in nats, "kl_reverse" KL(second || first), and "hellinger" -log of the affinity, of which the
    squared Hellinger distance is 1 - exp(-sum).
    """
    return {
        key: float(
            _entrywise_divergence(
                metric, *(to_numpy(values) for values in (first[key], first[name], second[key], second[name]))
            ).sum()
        )
        for name in first
        if is_deviation(name) and (key := name.removesuffix(DEVIATION))
    }


def _entrywise_divergence(metric: Metric, m0: Array, s0: Array, m1: Array, s1: Array) -> Any:
    """Return the divergences of independent Gaussians N(m0, s0^2) and N(m1, s1^2), entry by entry."""
    if metric == "means":
        return (m0 - m1) ** 2
    if metric == "w2":
        return (m0 - m1) ** 2 + (s0 - s1) ** 2
    if metric == "kl_reverse":
        return _entrywise_divergence("kl", m1, s1, m0, s0)
    v0, v1 = s0**2, s1**2
    if metric == "kl":
        # The trace term v0 / v1 depends on the order of units, unlike what appendix A of Rossi et al. says of it.
        ratio = v0 / v1
        return 0.5 * ((m0 - m1) ** 2 / v1 + ratio - 1.0 - np.log(ratio))
    total = v0 + v1
    return 0.25 * (m0 - m1) ** 2 / total + 0.5 * np.log(0.5 * total / (s0 * s1))
