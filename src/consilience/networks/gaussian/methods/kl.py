"""KL-fusion of Bayesian networks: hidden units as components, matched by KL divergence, their number selected.

Section 5.4 of Claici et al. 2020. The component of a hidden unit is the vector of its F weights (incoming, bias,
outgoing), independent Gaussians with natural parameters eta = (m / v, -1 / (2 v)). Each group of units is matched under
equation (9),

    minimise  sum_jlg w_j P^j_lg KL(q(. | theta_g) || q(. | eta^j_l)) + lambda sum_g sqrt(n_g)

over assignments P^j of the units of network j to G fused units, at most one to each, n_g being the networks that have
unit g; theta_g is the average of its members' natural parameters, by (4). It is solved by coordinate descent over the
networks (`matching.bregman_groups`), one linear assignment a step, from the widest network on.

Departures from the paper, which has one hidden layer: groups are matched one after another in the order of computation,
and incoming weights are written in the numbering of the fused units that were matched before. A coordinate that a
network lacks, since none of its units became the fused sender, takes the prior's factor. Weights into groups that are
not matched yet are left out, so that deeper networks are matched from the input on. P is binary throughout; the paper
relaxes it and rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from consilience.checks import Array, Labels, is_count, is_number
from consilience.core.details import Status
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.errors import Problem
from consilience.families import DiagonalGaussian
from consilience.matching.assignment import Openings
from consilience.matching.bregman_groups import BregmanGroups, descend_groups
from consilience.networks.details import GroupDetails
from consilience.networks.gaussian.gaussian_arrays import DEVIATION, is_deviation
from consilience.networks.gaussian.methods.gaussian_average import (
    Lacking,
    Outgoing,
    natural_average,
    natural_parameters,
)
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.methods.layerwise import sum_histories
from consilience.networks.network import Network, to_numpy
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection, Transport, move_axis
from consilience.networks.symmetry.unit_rows import unit_rows
from consilience.posteriors.ensemble import Stack
from consilience.posteriors.methods.kl.problem import KLProblem


@dataclass(frozen=True)
class KLNetworkFusion(NetworkMethod):
    """Match units of Bayesian networks by KL divergence, as many as there are, and average their weights once.

    Parameters
    ----------
    regularization : float
        lambda of (9), the price of a fused unit, in standard deviations of the divergences between units of different
        sites. 0 merges nothing: all units side by side. Default: 0.3; on MNIST no price from 0 to 0.4 was clearly
        better than another by validation likelihood (docs/adr/14).
    max_units : int or mapping of str to int, optional
        Largest number of units of every group, or of groups by name. Default: None, no bound but the number of all
        units. `target_widths` and `target` are such bounds too, since the number of units is selected.
    restarts : int
        Starts of each group's matching; the lowest objective is taken. Default: 1, sites in the order of their widths;
        further ones take sites in random orders.
    max_iterations : int
        Largest number of sweeps over the sites in one start. Default: 30, chosen by hand as a bound.
    tolerance : float
        The descent ends at a sweep that lowers the objective by no more than this relative amount. Default: 1e-3,
        chosen by hand.
    outgoing : {"share", "sum"}
        "share": outgoing weights times n / J for a unit of n of the J sites, so that logits average. "sum": as they are
        averaged (the paper); a unit that one site has counts as much as one that all share, so that logits add up, and
        the network is surer than any site. Default: "share".
    lacking : {"off", "prior"}
        Weights between two fused units that no site has both of: "off" is a point at zero, "prior" draws them from the
        prior. Default: "off".
    prior_variance : float, optional
        Prior variance of the coordinates that a site lacks. Default: the networks' own prior, or, where they state
        none, the mean square of each array's weights.

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
    # Natural parameters are averaged, and not copies of units, which robust rules need.
    robust: ClassVar[None] = None  # type: ignore[misc]  # no option here, as `trim`
    trim: ClassVar[float] = 0.2  # type: ignore[misc]

    regularization: float = 0.3
    max_units: int | Mapping[str, int] | None = None
    restarts: int = 1
    max_iterations: int = 30
    tolerance: float = 1e-3
    outgoing: Outgoing = "share"
    lacking: Lacking = "off"
    prior_variance: float | None = None

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        bound = self.max_units
        bounds = [1] if bound is None else list(bound.values()) if isinstance(bound, Mapping) else [bound]
        are_groups = not isinstance(bound, Mapping) or all(isinstance(group, str) for group in bound)
        yield from (
            ("regularization", is_number(self.regularization), "a number that is not negative"),
            ("max_units", are_groups and all(map(is_count, bounds)), "a positive integer, by group or for all"),
            ("restarts", is_count(self.restarts), "a positive integer"),
            ("max_iterations", is_count(self.max_iterations), "a positive integer"),
            ("tolerance", is_number(self.tolerance), "a number that is not negative"),
            ("outgoing", self.outgoing in ("sum", "share"), "'share' or 'sum'"),
            ("lacking", self.lacking in ("off", "prior"), "'off' or 'prior'"),
        )
        prior = self.prior_variance
        yield ("prior_variance", prior is None or (is_number(prior) and prior > 0), "a positive number or None")

    def default_units(self, networks: Sequence[Network], reference: int | None) -> dict[str, int]:
        """Return the largest number of units by group: all side by side, or the bound of `max_units`."""
        symmetry = networks[0].symmetry
        return {
            name: min(self._bound(name), sum(network.units[name] for network in networks))
            if has_free_width(symmetry, name)
            else networks[0].units[name]
            for name in networks[0].units
        }

    def _bound(self, group: str) -> int:
        bound = self.max_units.get(group) if isinstance(self.max_units, Mapping) else self.max_units
        return 2**31 if bound is None else int(bound)  # beyond any number of units

    def refuse(self, ensemble: NetworkEnsemble) -> list[Problem]:
        """Return why these networks cannot be fused, a line each."""
        symmetry = ensemble.symmetry
        if isinstance(self.max_units, Mapping) and (unknown := sorted(set(self.max_units) - set(symmetry.by_name))):
            text = f"group {', '.join(unknown)} does not exist; there are {', '.join(symmetry.by_name)}"
            return [Problem("max_units", text)]
        if not any(is_deviation(name) for name in ensemble.networks[0].working):
            text = "method 'kl' fuses networks by the variances of their weights"
            return [Problem("", text, "give Bayesian networks", "E-NEEDED")]
        reasons = [
            Problem(
                "",
                f"group {group.name} lies inside the units of {group.parent}, which method 'kl' does not match",
                "use 'w2'",
            )
            for group in symmetry.all_groups
            if group.parent is not None
        ]
        return reasons + [
            Problem(
                network.name,
                f"group {group} has {network.units[group]} units, but the fused network at most {units}, "
                "and no two units of one network may become the same: give at least so many",
                code="E-SHAPE",
            )
            for network in ensemble.networks
            for group, units in ensemble.target_units.items()
            if network.units[group] > units
        ]

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the matching of all groups, one after another, and the arrays of the barycenter."""
        priors = prior_variances(ensemble, self.prior_variance)
        names = list(ensemble.symmetry.by_name)
        transports: list[dict[str, Transport]] = [{} for _ in ensemble.networks]
        history: list[list[float]] = []
        facts: dict[str, GroupDetails] = {}
        status = Status.CONVERGED
        for number, (group, child) in enumerate(zip(names, rng.spawn(len(names)), strict=True)):
            places = _comparable_places(ensemble, group, set(transports[0]))
            if not places:  # no weight of these units can be compared yet: they are taken as they are numbered
                labels = [np.arange(network.units[group]) for network in ensemble.networks]
                width = max(map(len, labels))
            else:
                natural = [  # (k_j, 2 F) of network j
                    unit_natural_parameters(network, group, places, moves, priors)
                    for network, moves in zip(ensemble.networks, transports, strict=True)
                ]
                all_labels, sweeps, has_converged, diagnostics = self._match_group(ensemble, group, natural, child)
                labels, width = _renumber_by_reference(all_labels, ensemble, group)
                history.append(sweeps)
                n_owners = np.bincount(np.concatenate(labels), minlength=width)  # (G,)
                shared = np.bincount(n_owners, minlength=len(labels) + 1)[1:].tolist()  # by 1, 2, ..., J networks
                facts[group] = {**diagnostics, "units": width, "shared": shared}
                status = status if has_converged else Status.MAX_ITERATIONS
            for moves, slots in zip(transports, labels, strict=True):
                moves[group] = Injection(slots, width)
            progress(number + 1, len(names))
        arrays = natural_average(ensemble, transports, priors, self.outgoing, self.lacking)
        total = sum_histories(history)
        objective = float(total[-1]) if total.size else float("nan")
        return Alignment(tuple(transports), objective, total, status, {"groups": facts}, arrays)

    def _match_group(
        self, ensemble: NetworkEnsemble, group: str, natural: Sequence[Array], rng: np.random.Generator
    ) -> tuple[Labels, list[float], bool, GroupDetails]:
        """Return labels (L,) of all units of a group, the objective after each sweep, whether it converged, and lambda.

        `natural` are the natural parameters (k_j, 2 F) of the units of every network; L is the sum of all k_j.
        """
        sizes = [len(rows) for rows in natural]
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])  # (J + 1,)
        # Weights of mean 1 over the networks, so that equal ones give (9) as it is in the paper, which has none.
        weights = np.repeat(np.maximum(ensemble.weights * len(sizes), MIN_SITE_WEIGHT), sizes)  # (L,)
        stack = Stack(DiagonalGaussian(natural[0].shape[1] // 2), np.concatenate(natural), offsets, weights)
        width = ensemble.target_units[group]
        openings = Openings(width)
        if not has_free_width(ensemble.symmetry, group):
            strength, spread = 0.0, float("nan")  # the number of units is fixed, so that none has a price
        else:
            spread = KLProblem.of(stack).spread
            strength = self.regularization * spread
        objective = BregmanGroups(stack.family, stack.natural, offsets, weights, strength)
        best: tuple[Labels, list[float], bool] | None = None
        # The paper seeds by k-means++. The units of the widest network surely differ, so they are seeds (docs/adr/14).
        widest_first = np.argsort([-size for size in sizes], kind="stable")
        for start, child in enumerate(rng.spawn(self.restarts)):
            order = widest_first if start == 0 else child.permutation(len(sizes))
            descent = descend_groups(objective, order, child, self.max_iterations, openings, self.tolerance)
            if best is None or descent[1][-1] < best[1][-1]:
                best = descent
        assert best is not None  # noqa: S101  (restarts is at least 1)
        return *best, {"spread": spread, "lambda": strength}


MIN_SITE_WEIGHT = 1e-9
"""Weight of the units of a site of weight zero, where 1 is the mean: they are matched, but move no average. Chosen by
hand; positive, since weights of components must be, and far below what rounding leaves of the others' averages."""


def unit_natural_parameters(
    network: Network,
    group: str,
    places: Sequence[Place],
    transports: Mapping[str, Transport],
    priors: Mapping[str, float],
) -> Array:
    """Return the natural parameters (m / v, -1 / (2 v)) of the weights of each unit of a group: (k, 2 F).

    `places` are those of the units in arrays of means; the other axes there belong to groups that have been matched,
    whose `transports` are given. Weights from fused units that this network lacks take the prior's factor N(0, v), v by
    name of the parameter in `priors`.
    """
    linear, precision = [], []  # (k, F_place) each: m / v and 1 / v
    for place in places:
        layout = network.symmetry.layouts[place.array]
        rows = []
        for values in natural_parameters(network, place.array):
            moved = values
            for number, axis in enumerate(layout.axes):
                if number != place.axis:
                    moved = move_axis(moved, number, axis, transports, network.units)
            rows.append(unit_rows(moved, layout, place, network.units))
        linear.append(rows[0])
        # A precision of zero is a coordinate that this network lacks. Its m / v is zero too, as the prior's is.
        precision.append(np.where(rows[1] > 0, rows[1], 1.0 / priors[place.array]))
    return np.concatenate([*linear, *(-0.5 * values for values in precision)], axis=1)


def has_free_width(symmetry: Symmetry, group: str) -> bool:
    """Return whether a group can have any number of units: it is resizable, and no array has it on both sides."""
    return symmetry.by_name[group].resizable and all(place.side != "both" for place in symmetry.places(group))


def _comparable_places(ensemble: NetworkEnsemble, group: str, matched: set[str]) -> list[Place]:
    """Return the places of a group's units in arrays of means whose other axes belong to matched groups."""
    symmetry = ensemble.symmetry
    return [
        place
        for place in symmetry.places(group)
        if place.array + DEVIATION in symmetry.layouts and symmetry.beside(place) <= matched
    ]


def prior_variances(ensemble: NetworkEnsemble, prior_variance: float | None) -> dict[str, float]:
    """Return the prior variance of every parameter: the option, or that of the networks, or the mean of E[w^2]."""
    by_parameter: dict[str, list[float]] = {}
    for network, stated in zip(ensemble.networks, ensemble.priors or [None] * len(ensemble.networks), strict=True):
        for name, deviation in network.working.items():
            if is_deviation(name):
                key = name.removesuffix(DEVIATION)
                if prior_variance is not None or stated is not None:
                    value = prior_variance if prior_variance is not None else (stated or {})[key]
                else:  # E_q[w^2], averaged over the array: the prior N(0, v) that fits it best
                    value = float(np.mean(to_numpy(network.working[key]) ** 2 + to_numpy(deviation) ** 2))
                by_parameter.setdefault(key, []).append(float(value))
    return {key: float(np.mean(values)) for key, values in by_parameter.items()}


def _renumber_by_reference(labels: Labels, ensemble: NetworkEnsemble, group: str) -> tuple[list[Labels], int]:
    """Return labels (k_j,) of each network, and the number of fused units.

    Fused units are numbered as the reference has them, then as the other networks in turn have further ones.
    """
    sizes = [network.units[group] for network in ensemble.networks]
    by_network = np.split(labels, np.cumsum(sizes)[:-1])
    order = [ensemble.reference, *(j for j in range(len(by_network)) if j != ensemble.reference)]
    first_seen = list(dict.fromkeys(np.concatenate([by_network[j] for j in order]).tolist()))
    new_number = np.empty(len(first_seen), dtype=np.int64)  # (G,), by the old number
    new_number[first_seen] = np.arange(len(first_seen))
    return [new_number[old_labels] for old_labels in by_network], len(first_seen)
