"""Sites' networks and Fisher information as parameter vectors in common coordinates, with their units aligned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.method import NetworkEnsemble
from consilience.networks.methods.fisher.precision import VectorLayout
from consilience.networks.network import convert_like
from consilience.networks.symmetry.transport import Transport


@dataclass(frozen=True, eq=False)
class AlignedSites:
    """Parameters and information of all sites, with units aligned."""

    layout: VectorLayout  # where the parameters that have information lie in a vector
    means: tuple[AnyArray, ...]  # each (P,): parameters theta_k of every site, float64
    information: tuple[FisherInformation, ...]  # information of every site
    weights: Array  # (n_models,): weight of each site; they sum to 1
    input_numbers: tuple[int, ...]  # for every site its position in the list that the user passed


def in_input_order(ensemble: NetworkEnsemble) -> NetworkEnsemble:
    """Return the networks and their information in the order in which the user passed them, for messages."""
    if len(ensemble.input_numbers) != len(ensemble.networks):
        return ensemble
    order = sorted(range(len(ensemble.input_numbers)), key=ensemble.input_numbers.__getitem__)
    information = ensemble.information
    return replace(
        ensemble,
        networks=tuple(ensemble.networks[i] for i in order),
        information=None if information is None else tuple(information[i] for i in order),
    )


def gather_sites(
    ensemble: NetworkEnsemble, transports: Sequence[Mapping[str, Transport]], *, keeps_layers: bool = False
) -> AlignedSites:
    """Return parameters and information of all sites with their units transported, in the reference's array library.

    Transports are permutations and signs only. Kronecker factors stay as they are, or become their diagonals.
    """
    like = next(iter(ensemble.networks[ensemble.reference].working.values()))
    information = ensemble.information or ()
    # Sorted by name, so that vectors do not depend on the order in which a site wrote its parameters.
    names = sorted(information[0].renamed(ensemble.symmetry).parameters)
    arrays_of_first = ensemble.networks[0].arrays
    layout = VectorLayout({key: tuple(arrays_of_first[key].shape) for key in names})
    means, aligned = [], []
    for network, site_information, model_transports in zip(ensemble.networks, information, transports, strict=True):
        # Mean and precision move together: the posterior is the same, in other coordinates.
        transported = site_information.moved(network, model_transports)
        if not keeps_layers:
            transported = transported.as_diagonal(layout.shapes)
        arrays = network.move(model_transports)
        means.append(layout.vector({key: convert_like(arrays[key], like) for key in layout.shapes}))
        residual = {key: convert_like(values, like) for key, values in transported.residual.items()}
        factors = {key: convert_like(values, like) for key, values in transported.factors.items()}
        aligned.append(replace(transported, residual=residual, factors=factors))
    input_numbers = ensemble.input_numbers or tuple(range(len(means)))
    return AlignedSites(layout, tuple(means), tuple(aligned), ensemble.weights, input_numbers)


def mean_cosine(ensemble: NetworkEnsemble) -> float:
    """Return the mean cosine of the first network's weights with those of every other network.

    Vectors (biases and gains) are left out: they are alike in networks of any start.
    """
    first, *others = (
        {key: values for key, values in network.working.items() if values.ndim > 1} for network in ensemble.networks
    )
    if not first or not others:
        return 1.0

    def inner_product(a: Mapping[str, AnyArray], b: Mapping[str, AnyArray]) -> float:
        return sum(float(array_namespace(a[key]).sum(a[key] * b[key])) for key in first)

    square = inner_product(first, first)
    cosines = [
        inner_product(first, other) / max((square * inner_product(other, other)) ** 0.5, 1e-300)  # no division by 0
        for other in others
    ]
    return float(np.mean(cosines))
