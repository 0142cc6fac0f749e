"""Alignment of Gaussian posteriors of networks modulo permutations of their units.

For diagonal Gaussians the squared Wasserstein-2 distance ||m0 - P m1||^2 + ||s0 - P s1||^2 is a sum of bilinear
assignments in which every array occurs twice, as means and as deviations: weight matching of Gaussian networks. Both
Kullback-Leibler divergences are such sums too, of other features of the two posteriors; the Hellinger affinity of whole
posteriors is a product over weights, so that its logarithm is a sum that one assignment per group maximises.

The paper's appendix says that KL leaves a distance of means only; but the trace term depends on the permutation too,
unless all variances are equal, and is kept here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from consilience.bayesian.gaussian_arrays import (
    DEVIATION,
    METRICS,
    Metric,
    divergences,
    is_deviation,
    means_of,
    without_deviations,
)
from consilience.bayesian.methods.affinities import Affinities
from consilience.checks import AnyArray, is_count, is_number
from consilience.core.options import renamed_options
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.methods.weight_matching.coordinate_descent import descend
from consilience.networks.methods.weight_matching.match import initial_placement, match_weights, renumber_by_reference
from consilience.networks.methods.weight_matching.products import InnerProducts
from consilience.networks.methods.weight_matching.state import MatchingState
from consilience.networks.network import Network
from consilience.networks.symmetry.scaling import shared_groups
from consilience.networks.symmetry.transport import Injection

_ROUNDING = 1e-13
"""Share of what is at stake below which gains are rounding: features in float64, of sizes far apart."""


@renamed_options(max_passes="max_iterations")
@dataclass(frozen=True)
class PosteriorAlignment(NetworkMethod):
    """Permute the units of Bayesian networks so that their posteriors come closest, and take their barycenter.

    Parameters
    ----------
    metric
        "w2": squared Wasserstein-2 distance, for any number of posteriors at once (the weighted sum of squared
        distances to their barycenter never rises). "means": that of the means alone. "kl": KL of each posterior from
        the reference; "kl_reverse": of the reference from each. "hellinger": the Hellinger distance of each to the
        reference.
    rho
        How much deviations count beside means, for "w2" (1 is the distance itself).
    restarts
        Descents: from the models as they are, from units matched by what they receive, then from random orders of
        units. The lowest objective is kept.
    max_iterations
        Passes over all models at most.

    References
    ----------
    Rossi, Singh, Hannagan (2023), "On permutation symmetries in Bayesian neural network posteriors: a variational
    perspective", NeurIPS.
    """

    name: ClassVar[str] = "w2"
    summary: ClassVar[str] = "permute units so that posteriors come closest in Wasserstein distance; their barycenter"
    needs: ClassVar[str] = "Bayesian networks of the same widths"
    gives: ClassVar[str] = "one Bayesian network of the same widths"
    paper: ClassVar[str] = "rossi2023"

    metric: Metric = "w2"
    rho: float = 1.0
    restarts: int = 3
    max_iterations: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            ("metric", self.metric in METRICS, ", ".join(map(repr, METRICS))),
            ("rho", is_number(self.rho), "a number that is not negative"),
            ("restarts", is_count(self.restarts), "a positive integer"),
            ("max_iterations", is_count(self.max_iterations), "a positive integer"),
        )

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return permutations."""
        starts = ["identity", "receiving", *["random"] * self.restarts][: self.restarts]
        if self.metric in ("w2", "means"):
            features = tuple(self._euclidean(network) for network in ensemble.networks)
            found = match_weights(replace(ensemble, networks=features), starts, self.max_iterations, rng, progress)
        else:
            found = self._to_reference(ensemble, starts, rng, progress)
        return replace(found, details={**found.details, **self._distances(ensemble, found)})

    def _euclidean(self, network: Network) -> Network:
        """Return a network whose squared distances are those of the metric."""
        if self.metric == "means" or self.rho == 0.0:
            return Network(means_of(network.working), without_deviations(network.symmetry), network.name)
        if self.rho == 1.0:
            return network
        root = float(np.sqrt(self.rho))
        arrays = {key: root * values if is_deviation(key) else values for key, values in network.working.items()}
        return Network(arrays, network.symmetry, network.name)

    def _to_reference(
        self, ensemble: NetworkEnsemble, starts: Sequence[str], rng: np.random.Generator, progress: Progress
    ) -> Alignment:
        """Return the alignment of each posterior to the reference."""
        target = ensemble.networks[ensemble.reference]
        transports: list[Mapping[str, Injection]] = []
        before, after, converged = 0.0, 0.0, True
        children = rng.spawn(len(ensemble.networks))
        for number, (network, weight, child) in enumerate(
            zip(ensemble.networks, ensemble.weights.tolist(), children, strict=True)
        ):
            if number == ensemble.reference:
                transports.append({name: Injection(np.arange(n), n) for name, n in network.units.items()})
                continue
            found, settled = self._to(target, network, starts, child)
            transports.append(found)
            converged = converged and settled
            before += weight * self._distance(network.working, target)
            after += weight * self._distance(network.move(found), target)
            progress(number + 1, len(ensemble.networks))
        status = Status.CONVERGED if converged else Status.MAX_ITERATIONS
        return Alignment(tuple(transports), after, np.array([before, after]), status)

    def _to(
        self, target: Network, network: Network, starts: Sequence[str], rng: np.random.Generator
    ) -> tuple[Mapping[str, Injection], bool]:
        """Return the best permutations of one network's units to those of another, never worse than none."""
        pair = self._pair(target, network)
        both = NetworkEnsemble(pair, np.ones(2), dict(target.units))
        products = Affinities if self.metric == "hellinger" else InnerProducts
        held = frozenset(shared_groups((target, network)))
        state = MatchingState(
            target.symmetry,
            target.units,
            True,
            fixed_groups=held,
            product_type=products,
            min_relative_gain=_ROUNDING,
        )
        best: Mapping[str, Injection] = {name: Injection(np.arange(n), n) for name, n in network.units.items()}
        least, converged = self._distance(network.working, target), True
        for start, child in zip(starts, rng.spawn(len(starts)), strict=True):
            models = initial_placement(state, both, start, child)
            descent = descend(state, models, both.weights, 0, child, self.max_iterations)
            converged = converged and descent.converged
            own = renumber_by_reference(0, [model.transports for model in descent.models], target.symmetry)[1]
            distance = self._distance(network.move(own), target)
            if distance < least:
                best, least = own, distance
        return best, converged

    def _pair(self, target: Network, network: Network) -> tuple[Network, Network]:
        """Return two networks whose inner product, units in place, is minus the divergence but for a constant."""
        if self.metric == "hellinger":
            return target, network
        moments, natural = (network, target) if self.metric == "kl" else (target, network)
        first = Network(_features(moments.working, _moments), target.symmetry, moments.name)
        second = Network(_features(natural.working, _natural), target.symmetry, natural.name)
        return (second, first) if self.metric == "kl" else (first, second)

    def _distance(self, arrays: Mapping[str, AnyArray], target: Network) -> float:
        return sum(divergences(self.metric, arrays, target.working).values())

    def _distances(self, ensemble: NetworkEnsemble, found: Alignment) -> dict[str, Any]:
        """Return the divergences of all models from the reference before and after, in all and by parameter."""
        target = ensemble.networks[ensemble.reference]
        totals: dict[str, dict[str, float]] = {"before": {}, "after": {}}
        for number, (network, moves) in enumerate(zip(ensemble.networks, found.transports, strict=True)):
            if number == ensemble.reference:
                continue
            for when, arrays in (("before", network.working), ("after", network.move(moves))):
                for key, value in divergences(self.metric, arrays, target.working).items():
                    totals[when][key] = totals[when].get(key, 0.0) + value
        return {
            "metric": self.metric,
            "distance_before": sum(totals["before"].values()),
            "distance_after": sum(totals["after"].values()),
            "distances": totals,
        }


def _features(arrays: Mapping[str, AnyArray], of: Any) -> dict[str, AnyArray]:
    """Return two features of each weight, in the places of its mean and its deviation, in float64."""
    found = dict(arrays)
    for name in arrays:
        if is_deviation(name):
            key = name.removesuffix(DEVIATION)
            xp = array_namespace(arrays[key])
            mean, deviation = (xp.astype(arrays[one], xp.float64) for one in (key, name))
            found[key], found[name] = of(mean, deviation)
    return found


def _moments(mean: AnyArray, deviation: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return E[w] and E[w^2]."""
    return mean, mean**2 + deviation**2


def _natural(mean: AnyArray, deviation: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return the natural parameters m / v and -1 / (2 v)."""
    precision = 1.0 / deviation**2
    return mean * precision, -0.5 * precision
