"""What sites sent, in common coordinates: parameters as vectors, and what is known of them, moved with their units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.method import NetworkEnsemble
from consilience.networks.methods.fisher.precision import Flat
from consilience.networks.network import convert_like
from consilience.networks.symmetry.transport import Transport


@dataclass(frozen=True, eq=False)
class Sites:
    """What sites sent, in common coordinates.

    Parameters
    ----------
    flat
        Where the parameters with information lie in a vector.
    means
        theta_k (P,), float64.
    information
        Of each.
    weights
        How much each counts, summing to 1.
    given
        For each, its number in the list that was handed in.
    """

    flat: Flat
    means: tuple[AnyArray, ...]
    information: tuple[FisherInformation, ...]
    weights: Array
    given: tuple[int, ...]


def as_given(ensemble: NetworkEnsemble) -> NetworkEnsemble:
    """Return the networks in the order in which they were handed in, for messages."""
    if len(ensemble.given) != len(ensemble.networks):
        return ensemble
    order = sorted(range(len(ensemble.given)), key=ensemble.given.__getitem__)
    known = ensemble.information
    return replace(
        ensemble,
        networks=tuple(ensemble.networks[i] for i in order),
        information=None if known is None else tuple(known[i] for i in order),
    )


def gathered_sites(ensemble: NetworkEnsemble, transports: Sequence[Mapping[str, Transport]]) -> Sites:
    """Return what sites sent with units where they go, all arrays of the reference's library."""
    like = next(iter(ensemble.networks[ensemble.reference].working.values()))
    known = ensemble.information or ()
    first = known[0].renamed(ensemble.symmetry).residual
    flat = Flat({key: tuple(values.shape) for key, values in sorted(first.items())})
    means, moved = [], []
    for network, own, moves in zip(ensemble.networks, known, transports, strict=True):
        one = own.moved(network, moves)
        arrays = network.move(moves)
        means.append(flat.vector({key: convert_like(arrays[key], like) for key in flat.shapes}))
        residual = {key: convert_like(values, like) for key, values in one.residual.items()}
        factors = {key: convert_like(values, like) for key, values in one.factors.items()}
        moved.append(replace(one, residual=residual, factors=factors))
    given = ensemble.given or tuple(range(len(means)))
    return Sites(flat, tuple(means), tuple(moved), ensemble.weights, given)


def mean_cosine(ensemble: NetworkEnsemble) -> float:
    """Return the mean cosine of the first network's weights with those of the others; biases and gains say little."""
    first, *others = (
        {key: values for key, values in one.working.items() if values.ndim > 1} for one in ensemble.networks
    )
    if not first or not others:
        return 1.0

    def product(one: Mapping[str, AnyArray], two: Mapping[str, AnyArray]) -> float:
        return sum(float(array_namespace(one[key]).sum(one[key] * two[key])) for key in first)

    own = product(first, first)
    found = [product(first, other) / max((own * product(other, other)) ** 0.5, 1e-300) for other in others]
    return float(np.mean(found))
