"""KL-fusion of Bayesian networks: a unit with its weights is one component, and how many units there are is found.

Section 5.4 of Claici et al. 2020: the component of a hidden unit is the vector of its incoming weights, its bias and
its outgoing weights, independent Gaussians all. Groups are matched one after another, in the order of computation, each
under equation (9); what a unit receives is written in the numbering of the fused units that were matched before. A
coordinate that a site lacks, since none of its units became the fused one, takes the prior's factor there. What readers
that are not matched yet receive is left out, so deeper networks than the paper's are matched from the input on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from consilience.bayesian.gaussian_arrays import DEVIATION, is_deviation
from consilience.bayesian.methods.gaussian_average import Lacking, Outgoing, natural_average, natural_parameters
from consilience.checks import Array, Labels, is_count, is_number
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.families import DiagonalGaussian
from consilience.matching.bregman_groups import BregmanGroups, descend_groups
from consilience.matching.site_step import Openings
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.methods.layerwise import sum_histories
from consilience.networks.network import Network, to_numpy
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection, Transport, move_axis
from consilience.networks.symmetry.unit_rows import unit_rows
from consilience.posteriors.ensemble import Stack
from consilience.posteriors.methods.kl.method import KLFusion
from consilience.posteriors.methods.kl.problem import KLProblem


@dataclass(frozen=True)
class KLNetworkFusion(NetworkMethod):
    """Match units of Bayesian networks by KL divergence, as many as there are, and average their weights once.

    Parameters
    ----------
    regularization
        Multiplies the standard deviation of cross-site divergences between the units of a group to give lambda of (9),
        the price of a fused unit. 0 merges nothing: all units side by side.
    max_units
        Most units of every group, or of groups by name; None sets no bound but the number of all units. `target_widths`
        and `target` are such bounds too, since the number of units is found.
    restarts
        Starts of each group's matching; the lowest objective is kept.
    max_iterations
        Sweeps over the sites at most in one start.
    tolerance
        A sweep that lowers the objective by no more than this share is the last.
    outgoing
        "sum": outgoing weights as they are averaged (the paper); a unit that one of J sites has speaks as loudly as one
        that all share, so that logits add up. "share": times n / J for a unit of n sites, so that they average.
    lacking
        Weights between two fused units that no site has both of: "off" is a point at zero, "prior" draws them from the
        prior.
    prior_variance
        Of the coordinates that a site lacks; None takes the networks' own prior, or, where they state none, the mean
        square of each array's weights.

    References
    ----------
    Claici, Yurochkin, Ghosh, Solomon, "Model Fusion with Kullback-Leibler Divergence", ICML 2020, section 5.4.
    """

    name: ClassVar[str] = "kl"
    summary: ClassVar[str] = "match units of Bayesian networks by KL divergence; their number is found"
    needs: ClassVar[str] = "Bayesian networks of one architecture without attention heads, widths may differ"
    gives: ClassVar[str] = "one Bayesian network, of as many units as it takes"
    paper: ClassVar[str] = "claici2020"
    widths: ClassVar[bool] = True

    regularization: float = 0.3
    max_units: int | Mapping[str, int] | None = None
    restarts: int = 1
    max_iterations: int = 30
    tolerance: float = 1e-3
    outgoing: Outgoing = "sum"
    lacking: Lacking = "off"
    prior_variance: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        told = self.max_units
        bounds = [1] if told is None else list(told.values()) if isinstance(told, Mapping) else [told]
        self.require(
            ("regularization", is_number(self.regularization), "a number that is not negative"),
            ("max_units", all(is_count(one) for one in bounds), "a positive integer, by group or for all"),
            ("restarts", is_count(self.restarts), "a positive integer"),
            ("max_iterations", is_count(self.max_iterations), "a positive integer"),
            ("tolerance", is_number(self.tolerance), "a number that is not negative"),
            ("outgoing", self.outgoing in ("sum", "share"), "'sum' or 'share'"),
            ("lacking", self.lacking in ("off", "prior"), "'off' or 'prior'"),
        )
        prior = self.prior_variance
        self.require(
            ("prior_variance", prior is None or (is_number(prior) and prior > 0), "a positive number or None"),
        )

    @property
    def averages(self) -> bool:
        """Units are products of priors and likelihoods, not averages of copies."""
        return False

    @classmethod
    def of(cls, method: KLFusion) -> KLNetworkFusion:
        """Return the method for networks with the options that both have and that are not left at their defaults.

        Raises
        ------
        OptionError
            For options that networks do not have.
        """
        default, names = KLFusion(), {"max_components": "max_units"}
        own = ("regularization", "max_components", "restarts", "max_iterations", "tolerance")
        told = {
            option.name for option in fields(method) if getattr(method, option.name) != getattr(default, option.name)
        }
        for option in told - set(own):
            method.require((option, False, "left as it is for Bayesian networks"))
        return cls(**{names.get(option, option): getattr(method, option) for option in told})

    def default_units(self, networks: Sequence[Network], reference: int | None) -> dict[str, int]:
        """Return the most units that there may be: all side by side, or as many as `max_units` says."""
        symmetry = networks[0].symmetry
        return {
            name: min(self._bound(name), sum(network.units[name] for network in networks))
            if _may_grow(symmetry, name)
            else networks[0].units[name]
            for name in networks[0].units
        }

    def _bound(self, group: str) -> int:
        bound = self.max_units.get(group) if isinstance(self.max_units, Mapping) else self.max_units
        return 2**31 if bound is None else int(bound)

    def refuse(self, ensemble: NetworkEnsemble) -> list[str]:
        """Return why these networks cannot be fused, a line each."""
        symmetry = ensemble.symmetry
        if isinstance(self.max_units, Mapping) and (odd := sorted(set(self.max_units) - set(symmetry.by_name))):
            return [f"max_units: group {', '.join(odd)} does not exist; there are {', '.join(symmetry.by_name)}"]
        if not any(is_deviation(name) for name in ensemble.networks[0].working):
            return ["method 'kl' fuses networks by the variances of their weights; give Bayesian networks"]
        reasons = [
            f"group {group.name} lies inside the units of {group.parent}, which method 'kl' does not match; use 'w2'"
            for group in symmetry.all_groups
            if group.parent is not None
        ]
        return reasons + [
            f"{network.name}: group {group} has {network.units[group]} units, but the fused network at most {units}, "
            "and no two units of one network may become the same: give at least so many"
            for network in ensemble.networks
            for group, units in ensemble.target_units.items()
            if network.units[group] > units
        ]

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Match one group after another, and average."""
        priors = _priors(ensemble, self.prior_variance)
        names = list(ensemble.symmetry.by_name)
        transports: list[dict[str, Transport]] = [{} for _ in ensemble.networks]
        history: list[list[float]] = []
        facts: dict[str, Any] = {}
        status = Status.CONVERGED
        for done, (group, child) in enumerate(zip(names, rng.spawn(len(names)), strict=True)):
            places = _places(ensemble, group, set(transports[0]))
            if not places:  # nothing is known of these units when their turn comes
                labels = [np.arange(network.units[group]) for network in ensemble.networks]
                width = max(map(len, labels))
            else:
                natural = [
                    unit_natural(network, group, places, moves, priors)
                    for network, moves in zip(ensemble.networks, transports, strict=True)
                ]
                found, sweeps, settled, told = self._matched(ensemble, group, natural, child)
                labels, width = _reference_first(found, ensemble, group)
                history.append(sweeps)
                facts[group] = {**told, "units": width, "shared": _shared(labels, width)}
                status = status if settled else Status.MAX_ITERATIONS
            for moves, own in zip(transports, labels, strict=True):
                moves[group] = Injection(own, width)
            progress(done + 1, len(names))
        arrays = natural_average(ensemble, transports, priors, self.outgoing, self.lacking)
        total = sum_histories(history)
        objective = float(total[-1]) if total.size else float("nan")
        return Alignment(tuple(transports), objective, total, status, {"groups": facts}, arrays)

    def _matched(
        self, ensemble: NetworkEnsemble, group: str, natural: Sequence[Array], rng: np.random.Generator
    ) -> tuple[Labels, list[float], bool, dict[str, Any]]:
        """Return labels of all units of a group, the objective after each sweep, whether it settled, and facts."""
        sizes = [len(rows) for rows in natural]
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        weights = np.repeat(np.maximum(ensemble.weights * len(sizes), _LEAST), sizes)
        stack = Stack(DiagonalGaussian(natural[0].shape[1] // 2), np.concatenate(natural), offsets, weights)
        width = ensemble.target_units[group]
        openings = Openings(width)
        if not _may_grow(ensemble.symmetry, group):
            strength, spread = 0.0, float("nan")
        else:
            spread = KLProblem.of(stack).spread
            strength = self.regularization * spread
        objective = BregmanGroups(stack.family, stack.natural, offsets, weights, strength)
        best: tuple[Labels, list[float], bool] | None = None
        largest = np.argsort([-size for size in sizes], kind="stable")
        for start, child in enumerate(rng.spawn(self.restarts)):
            order = largest if start == 0 else child.permutation(len(sizes))
            found = descend_groups(objective, order, child, self.max_iterations, openings, self.tolerance)
            if best is None or found[1][-1] < best[1][-1]:
                best = found
        assert best is not None  # noqa: S101  (restarts is at least 1)
        return *best, {"spread": spread, "lambda": strength}


_LEAST = 1e-9
"""Weight of the units of a site of no weight: they go where they fit, and say nothing."""


def unit_natural(
    network: Network,
    group: str,
    places: Sequence[Place],
    transports: Mapping[str, Transport],
    priors: Mapping[str, float],
) -> Array:
    """Return what a network says of each unit of a group: natural parameters of independent Gaussians (k, 2 F).

    Parameters
    ----------
    network
        A Gaussian network.
    group
        The group.
    places
        Where its units stand, in arrays of means; all that stands beside them has been matched.
    transports
        Where units of the groups matched before go. What comes from fused units that this network has none of takes
        the prior's factor.
    priors
        Prior variance by name of the parameter.
    """
    linear, precision = [], []
    for place in places:
        layout = network.symmetry.layouts[place.array]
        parts = []
        for values in natural_parameters(network, place.array):
            moved = values
            for number, axis in enumerate(layout.axes):
                if number != place.axis:
                    moved = move_axis(moved, number, axis, transports, network.units)
            parts.append(unit_rows(moved, layout, place, network.units))
        linear.append(parts[0])
        precision.append(np.where(parts[1] > 0, parts[1], 1.0 / priors[place.array]))
    return np.concatenate([*linear, *(-0.5 * one for one in precision)], axis=1)


def _may_grow(symmetry: Symmetry, group: str) -> bool:
    """Return whether a group may have any number of units: nothing depends on it, and no array makes and reads them."""
    return symmetry.by_name[group].resizable and all(place.side != "both" for place in symmetry.places(group))


def _places(ensemble: NetworkEnsemble, group: str, known: set[str]) -> list[Place]:
    """Return the places of a group's units in means beside which everything has been matched."""
    symmetry = ensemble.symmetry
    return [
        place
        for place in symmetry.places(group)
        if place.array + DEVIATION in symmetry.layouts and symmetry.beside(place) <= known
    ]


def _priors(ensemble: NetworkEnsemble, told: float | None) -> dict[str, float]:
    """Return the prior variance of every parameter: as told, the networks' own, or the mean square of the weights."""
    found: dict[str, list[float]] = {}
    for network, own in zip(ensemble.networks, ensemble.priors or [None] * len(ensemble.networks), strict=True):
        for name, deviation in network.working.items():
            if is_deviation(name):
                key = name.removesuffix(DEVIATION)
                if told is not None or own is not None:
                    value = told if told is not None else (own or {})[key]
                else:
                    value = float(np.mean(to_numpy(network.working[key]) ** 2 + to_numpy(deviation) ** 2))
                found.setdefault(key, []).append(float(value))
    return {key: float(np.mean(values)) for key, values in found.items()}


def _reference_first(labels: Labels, ensemble: NetworkEnsemble, group: str) -> tuple[list[Labels], int]:
    """Return labels of each network, fused units in the order in which networks have them, the reference first."""
    sizes = [network.units[group] for network in ensemble.networks]
    parts = np.split(labels, np.cumsum(sizes)[:-1])
    order = [ensemble.reference, *(j for j in range(len(parts)) if j != ensemble.reference)]
    seen = list(dict.fromkeys(np.concatenate([parts[j] for j in order]).tolist()))
    renumbered = np.empty(len(seen), dtype=np.int64)
    renumbered[seen] = np.arange(len(seen))
    return [renumbered[part] for part in parts], len(seen)


def _shared(labels: Sequence[Labels], width: int) -> list[int]:
    """Return how many fused units 1, 2, ..., J of the networks have."""
    owners = np.bincount(np.concatenate(labels), minlength=width)
    return np.bincount(owners, minlength=len(labels) + 1)[1:].tolist()
