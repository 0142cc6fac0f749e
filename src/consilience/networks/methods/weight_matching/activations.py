"""Activation matching: units of every group permuted so that matched ones have like activations on the same inputs.

For every group by itself it maximises the mean product of the activations z of matched units,

    <P, Z_i Z_ref^T> / n,    Z (k, n) the activations of k units on n inputs,

one assignment per group, which is exact. With z standardised it is their correlation.
"""

from __future__ import annotations

import numpy as np

from consilience.checks import Array
from consilience.matching.assignment import assign_nested
from consilience.networks.method import NetworkEnsemble
from consilience.networks.symmetry.transport import Injection


def match_activations(ensemble: NetworkEnsemble, correlation: bool) -> tuple[list[dict[str, Injection]], float]:
    """Return, for every model and group, the permutations to the reference that maximise products of activations.

    And the sum of these products. Networks have the same widths.
    """
    activations = ensemble.activations or ()  # by model and group (k, n)
    target = activations[ensemble.reference]
    symmetry = ensemble.symmetry
    transports: list[dict[str, Injection]] = []
    total = 0.0
    for model_activations, network in zip(activations, ensemble.networks, strict=True):
        model_transports: dict[str, Injection] = {}
        for top in (name for name, group in symmetry.by_name.items() if group.parent is None):
            names = [top, *(child.name for child in symmetry.children(top))]
            # Groups are independent, unlike in weight matching: activations do not depend on how others are numbered.
            gains = {
                name: _products(model_activations.get(name), target.get(name), network.units[name], correlation)
                for name in names
            }
            # Heads, and what lies inside them, are assigned together.
            assignment = assign_nested(-gains[top], {name: -gains[name] for name in names[1:]})
            for name, slots in ((top, assignment.outer), *assignment.inner.items()):
                model_transports[name] = Injection(slots, len(slots))
                total += float(gains[name][np.arange(len(slots)), slots].sum())
        transports.append(model_transports)
    return transports, total


def _products(first: Array | None, second: Array | None, n_units: int, correlation: bool) -> Array:
    """Return mean products or correlations (k, k) of activations (k, n).

    For groups whose activations are not known the identity is returned, so that units stay.
    """
    if first is None or second is None:
        return np.eye(n_units)
    if correlation:
        first, second = _standardize(first), _standardize(second)
    return first @ second.T / first.shape[1]


def _standardize(activations: Array) -> Array:
    """Return rows of mean 0 and deviation 1; the rows of dead units, whose correlation is 0 / 0, become 0."""
    centred = activations - activations.mean(axis=1, keepdims=True)
    deviation = centred.std(axis=1, keepdims=True)
    return np.where(deviation > 0, centred / np.where(deviation > 0, deviation, 1.0), 0.0)
