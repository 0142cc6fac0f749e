"""Alignment of Gaussian posteriors of Bayesian networks by permutations of units, and their Wasserstein barycenter.

For means m, deviations s and a permutation P of the units of q1,

    minimise_P  W2^2(q0, P q1) = ||m0 - P m1||^2 + ||s0 - P s1||^2        (Rossi, Singh, Hannagan 2023)

is a sum of bilinear assignment problems in which every array occurs twice, as means and as deviations: weight matching
of Gaussian networks, solved by coordinate descent over groups. Both Kullback-Leibler divergences are such sums too,
with moments of one posterior and natural parameters of the other for features,

    KL(q1 || q0) = -<(E w, E w^2)_1, (m / v, -1 / (2 v))_0> + terms that no permutation changes.

The Hellinger affinity of whole posteriors is a product over weights, so that its logarithm is a sum that one assignment
per group maximises. A permutation that does not come closer than none is discarded.

Departure from the source: appendix A of the paper says that KL leaves a distance of means only. But the trace term
depends on the permutation too, unless all variances of one posterior are equal, and is kept here.

**Hellinger affinities between the units of two Gaussian networks, as gains of an assignment**.

Minus the logarithm of the affinity of two mean-field Gaussians with means m, deviations s and variances v = s^2 is

    -log int sqrt(q0 q1) = sum over weights of (m0 - m1)^2 / (4 (v0 + v1)) + log((v0 + v1) / (2 s0 s1)) / 2.

It is a sum over weights, so that one assignment per group maximises the affinity; but it is no inner product of
features of the two posteriors. It is summed entry by entry for every pair of units, which takes a thousand times as
long as a matrix product does for layers of some hundred units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, is_count, is_number
from consilience.core.details import Status
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.networks.details import Distances, NetworkDetails
from consilience.networks.gaussian.gaussian_arrays import (
    DEVIATION,
    METRICS,
    Metric,
    divergences,
    is_deviation,
    means_of,
    without_deviations,
)
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.methods.weight_matching.coordinate_descent import descend
from consilience.networks.methods.weight_matching.match import initial_placement, match_weights, renumber_by_reference
from consilience.networks.methods.weight_matching.products import AssignmentGain, InnerProducts
from consilience.networks.methods.weight_matching.state import MatchingState
from consilience.networks.network import Network
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.transport import Injection, Transport
from consilience.networks.symmetry.unit_rows import shared_groups, unit_rows

_MIN_RELATIVE_GAIN = 1e-13
"""Gain of a move, relative to the objective's scale, below which it is rounding: some hundred units in the last place
of float64, since natural parameters are far apart in size. Chosen by hand; nobody has measured other values."""


@dataclass(frozen=True)
class PosteriorAlignment(NetworkMethod):
    """Permute the units of Bayesian networks so that their posteriors come closest, and take their barycenter.

    Parameters
    ----------
    metric : {"w2", "means", "kl", "kl_reverse", "hellinger"}
        "w2": squared Wasserstein-2 distance, for any number of posteriors at once (the weighted sum of squared
        distances to their barycenter never rises). "means": squared distance of the means alone. "kl": KL of each
        posterior from the reference; "kl_reverse": KL of the reference from each. "hellinger": Hellinger distance of
        each to the reference. Default: "w2".
    rho : float
        Weight of squared distances of deviations relative to those of means, for "w2". Default: 1, the distance itself.
    restarts : int
        Number of descents: from the models as they are, from units matched by incoming weights, then from random
        orders of units. The lowest objective is taken. Default: 3, one of each.
    max_iterations : int
        Largest number of passes over all models. Default: 100, a bound against cycling only: a pass without a gain ends
        the descent.

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

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield from (
            ("metric", self.metric in METRICS, ", ".join(map(repr, METRICS))),
            ("rho", is_number(self.rho), "a number that is not negative"),
            ("restarts", is_count(self.restarts), "a positive integer"),
            ("max_iterations", is_count(self.max_iterations), "a positive integer"),
        )

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return permutations of the units of every network, with the divergences before and after."""
        starts = ["identity", "receiving", *["random"] * self.restarts][: self.restarts]
        # Euclidean metrics have a barycenter, to which any number of posteriors is aligned at once; divergences are
        # taken from the reference, one posterior at a time.
        if self.metric in ("w2", "means"):
            features = tuple(self._euclidean_network(network) for network in ensemble.networks)
            alignment = match_weights(replace(ensemble, networks=features), starts, self.max_iterations, rng, progress)
        else:
            alignment = self._align_to_reference(ensemble, starts, rng, progress)
        details: NetworkDetails = {**alignment.details, **self._distances(ensemble, alignment.transports)}
        return replace(alignment, details=details)

    def _euclidean_network(self, network: Network) -> Network:
        """Return a network whose squared distances to others are those of the metric, "w2" or "means"."""
        if self.metric == "means" or self.rho == 0.0:
            return Network(means_of(network.working), without_deviations(network.symmetry), network.name)
        if self.rho == 1.0:
            return network
        # ||sqrt(rho) (s0 - s1)||^2 = rho ||s0 - s1||^2
        root = float(np.sqrt(self.rho))
        arrays = {key: root * values if is_deviation(key) else values for key, values in network.working.items()}
        return Network(arrays, network.symmetry, network.name)

    def _align_to_reference(
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
            permutations, has_converged = self._align_pair(target, network, starts, child)
            transports.append(permutations)
            converged = converged and has_converged
            before += weight * self._distance(network.working, target)
            after += weight * self._distance(network.move(permutations), target)
            progress(number + 1, len(ensemble.networks))
        status = Status.CONVERGED if converged else Status.MAX_ITERATIONS
        return Alignment(tuple(transports), after, np.array([before, after]), status)

    def _align_pair(
        self, target: Network, network: Network, starts: Sequence[str], rng: np.random.Generator
    ) -> tuple[Mapping[str, Injection], bool]:
        """Return the best permutations by group of a network's units to a target's, and whether all descents converged.

        They are never worse than the identity, which is the first candidate.
        """
        pair = NetworkEnsemble(self._feature_networks(target, network), np.ones(2), dict(target.units))
        products = HellingerAffinities if self.metric == "hellinger" else InnerProducts
        # Units with the same incoming weights in both networks (a frozen embedding) are aligned already.
        fixed_groups = frozenset(shared_groups((target, network)))
        state = MatchingState(
            target.symmetry,
            target.units,
            True,
            fixed_groups=fixed_groups,
            product_type=products,
            min_relative_gain=_MIN_RELATIVE_GAIN,
        )
        best: Mapping[str, Injection] = {name: Injection(np.arange(n), n) for name, n in network.units.items()}
        lowest, converged = self._distance(network.working, target), True
        for start, child in zip(starts, rng.spawn(len(starts)), strict=True):
            models = initial_placement(state, pair, start, child)
            descent = descend(state, models, pair.weights, 0, child, self.max_iterations)
            converged = converged and descent.converged
            # Both networks may have moved in the descent; here only the second one is to move.
            permutations = renumber_by_reference(0, [model.transports for model in descent.models], target.symmetry)[1]
            distance = self._distance(network.move(permutations), target)
            if distance < lowest:
                best, lowest = permutations, distance
        return best, converged

    def _feature_networks(self, target: Network, network: Network) -> tuple[Network, Network]:
        """Return two networks, of the target first, whose inner product is minus the divergence up to a constant."""
        if self.metric == "hellinger":
            return target, network
        # KL(q || p) takes moments of q and natural parameters of p.
        q, p = (network, target) if self.metric == "kl" else (target, network)
        moments = Network(_with_features(q.working, _moments), target.symmetry, q.name)
        natural = Network(_with_features(p.working, _natural_parameters), target.symmetry, p.name)
        return (natural, moments) if self.metric == "kl" else (moments, natural)

    def _distance(self, arrays: Mapping[str, AnyArray], target: Network) -> float:
        """Return the divergence of a whole posterior and the target's."""
        return sum(divergences(self.metric, arrays, target.working).values())

    def _distances(self, ensemble: NetworkEnsemble, transports: Sequence[Mapping[str, Transport]]) -> NetworkDetails:
        """Return the divergences of all models from the reference before and after, in all and by parameter."""
        target = ensemble.networks[ensemble.reference]
        totals: Distances = {"before": {}, "after": {}}
        for number, (network, moves) in enumerate(zip(ensemble.networks, transports, strict=True)):
            if number == ensemble.reference:
                continue
            for by_key, arrays in ((totals["before"], network.working), (totals["after"], network.move(moves))):
                for key, value in divergences(self.metric, arrays, target.working).items():
                    by_key[key] = by_key.get(key, 0.0) + value
        return {
            "metric": self.metric,
            "distance_before": sum(totals["before"].values()),
            "distance_after": sum(totals["after"].values()),
            "distances": totals,
        }


def _with_features(
    arrays: Mapping[str, AnyArray], features: Callable[[AnyArray, AnyArray], tuple[AnyArray, AnyArray]]
) -> dict[str, AnyArray]:
    """Return the arrays with two features of each weight in place of its mean and its deviation, in float64."""
    replaced = dict(arrays)
    for name in arrays:
        if is_deviation(name):
            key = name.removesuffix(DEVIATION)
            xp = array_namespace(arrays[key])
            mean, deviation = (xp.astype(arrays[array], xp.float64) for array in (key, name))
            replaced[key], replaced[name] = features(mean, deviation)
    return replaced


def _moments(mean: AnyArray, deviation: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return E[w] and E[w^2]."""
    return mean, mean**2 + deviation**2


def _natural_parameters(mean: AnyArray, deviation: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return the natural parameters m / v and -1 / (2 v)."""
    precision = 1.0 / deviation**2
    return mean * precision, -0.5 * precision


_MAX_ENTRY_PAIRS = 2**24
"""Pairs of entries in memory at a time: 128 MiB in float64. Chosen by hand; it decides how the rows are split, not what
comes out."""


class HellingerAffinities(InnerProducts):
    """Logarithms of affinities between units of a network that is permuted and units of a target that is not.

    Terms log(2 s0 s1) / 2 are left out, as their sum is the same for every permutation. A mean and its deviation count
    together, at the places of means; places in arrays of deviations gain nothing. Units do not change sign.
    """

    def at(self, place: Place, arrays: Mapping[str, AnyArray]) -> AssignmentGain:
        """Return the gain (K, K) at a place: rows are units of the network that moves, columns of the target."""
        if place not in self._cache:
            self._cache[place] = self._affinity(place, arrays)
        return self._cache[place]

    def update(
        self, group: str, move: Injection, before: Mapping[str, AnyArray], after: Mapping[str, AnyArray]
    ) -> None:
        """Update the cache after the units of a group have moved: rows follow, other gains are computed anew."""
        for place in list(self._cache):
            axes = self._symmetry.layouts[place.array].axes
            moved_axes = [n for n, axis in enumerate(axes) if any(s.group == group for s in axis.segments)]
            if not moved_axes:
                continue
            # Rows that move as a whole keep their affinities; not those whose entries moved among themselves.
            if moved_axes == [place.axis] and axes[place.axis].segments[place.segment].group == group:
                self._cache[place] = self._cache[place].with_rows_moved(move)
            else:
                del self._cache[place]

    def _affinity(self, place: Place, arrays: Mapping[str, AnyArray]) -> AssignmentGain:
        """Return log affinities (K, K), K the number of slots of the group, from rows of F weights."""
        key = place.array
        layout = self._symmetry.layouts[key]
        xp = array_namespace(arrays[key])

        def rows(values: AnyArray) -> AnyArray:
            return xp.astype(unit_rows(values, layout, place, self._width), xp.float64)

        k = self._width[str(layout.axes[place.axis].segments[place.segment].group)]
        if is_deviation(key):
            return AssignmentGain(xp.zeros((k, k), dtype=xp.float64, device=arrays[key].device))
        m0, v0 = rows(arrays[key]), rows(arrays[key + DEVIATION]) ** 2  # (K, F)
        target_rows: tuple[Any, Any] = (rows(self.target[key]), rows(self.target[key + DEVIATION]) ** 2)
        m1, v1 = target_rows  # (K, F)
        step = max(1, _MAX_ENTRY_PAIRS // max(1, int(np.prod(m1.shape))))
        blocks = []
        for start in range(0, k, step):
            chunk = slice(start, start + step)
            total = v0[chunk, None, :] + v1[None, :, :]  # (step, K, F)
            total = xp.where(total > 0, total, xp.ones_like(total))  # outside the blocks of a grouped convolution
            difference = m0[chunk, None, :] - m1[None, :, :]  # (step, K, F)
            blocks.append(-xp.sum(0.25 * difference**2 / total + 0.5 * xp.log(total), axis=-1))  # (step, K)
        return AssignmentGain(xp.concat(blocks, axis=0))
