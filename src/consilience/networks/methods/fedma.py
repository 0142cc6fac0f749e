"""One-shot FedMA: neurons are copies of global ones under a Beta-Bernoulli process, matched layer by layer.

Yurochkin et al., "Bayesian nonparametric federated learning of neural networks" (PFNM), ICML 2019; Wang et al.,
"Federated learning with matched averaging" (FedMA), ICLR 2020; without retraining, as the Wasserstein paper uses it.
A neuron v ~ N(theta, sigma^2) is a copy of a global one, theta ~ N(0, sigma0^2). The gain of a match is that of SPAHM's
plug-in form, whose engine serves here, and the global neuron is the likeliest one,

    theta_g = sum v / (n_g + sigma^2 / sigma0^2),

or without shrinkage the plain mean of the n_g matched neurons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Labels, is_count, is_number
from consilience.core.progress import Progress
from consilience.matching.beta_bernoulli import AtomLaw, BetaBernoulliPrior, GaussianAtoms
from consilience.matching.nested_assignment import assign_nested
from consilience.matching.site_by_site import ascend, grow
from consilience.matching.site_step import Openings
from consilience.networks.method import Alignment, NetworkEnsemble, average, owned_entries
from consilience.networks.methods.layerwise import Layer, LayerwiseMethod, Rows
from consilience.networks.network import Network, to_numpy
from consilience.networks.symmetry.transport import Injection, Transport, move


@dataclass(frozen=True)
class FedMA(LayerwiseMethod):
    """Match neurons as copies of global ones under a Beta-Bernoulli process, layer by layer, and average.

    Parameters
    ----------
    sigma
        Standard deviation of a neuron's weights around the global ones.
    sigma0
        Standard deviation of global weights around 0.
    gamma
        Mass of the process: the larger, the likelier new neurons; matters with `growth` only.
    growth
        Whether the fused network may have more units than the widest model, up to the target widths if given, else up
        to all units of all models.
    shrink
        Whether matched neurons are drawn to 0 as their posterior mode is; at sigma = sigma0 and two models by a third.
    sweeps
        Rounds over the models in each layer.
    class_counts
        Examples of each class at each site (J, C): rows of the output layer are averaged by them; None takes the
        models' weights.

    References
    ----------
    Yurochkin et al. (2019), PFNM, ICML; Wang et al. (2020), FedMA, ICLR. The logarithm of the prior counts twice beside
    squared terms, as the joint law has it; the published code has it once. Orders of new neurons are not counted, as in
    SPAHM without `factorial`. An input that a model lacks counts as 0 in the rows of matched neurons.
    """

    name: ClassVar[str] = "fedma"
    summary: ClassVar[str] = "neurons are copies of global ones under a Beta-Bernoulli process, matched layer by layer"
    needs: ClassVar[str] = "networks of one architecture, widths may differ"
    gives: ClassVar[str] = "one network as wide as the widest; with growth, as wide as the neurons want"
    paper: ClassVar[str] = "wang2020"

    sigma: float = 1.0
    sigma0: float = 1.0
    gamma: float = 7.0
    growth: bool = False
    shrink: bool = True
    sweeps: int = 5
    class_counts: Sequence[Sequence[float]] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("sigma", "sigma0", "gamma"):
            value = getattr(self, option)
            self.require(option, is_number(value) and value > 0, "a positive number")
        for option in ("growth", "shrink"):
            self.require(option, isinstance(getattr(self, option), bool), "true or false")
        self.require("sweeps", is_count(self.sweeps), "a positive integer")

    def default_units(self, networks: Sequence[Network], reference: int | None) -> dict[str, int]:
        """Return how wide the fused network may be: as the widest model, or with growth as all together."""
        widest = super().default_units(networks, reference)
        if not self.growth:
            return widest
        groups = networks[0].symmetry.by_name
        return {
            name: sum(network.units[name] for network in networks) if groups[name].resizable else count
            for name, count in widest.items()
        }

    def refuse(self, ensemble: NetworkEnsemble) -> list[str]:
        """Return why these networks cannot be fused, a line each."""
        problems = [
            f"{network.name}: group {group} has {network.units[group]} units, but the fused network only {units}; "
            "method 'fedma' needs room for the widest model"
            for network in ensemble.networks
            for group, units in ensemble.target_units.items()
            if network.units[group] > units
        ]
        if self.class_counts is not None:
            counts = np.asarray(self.class_counts, dtype=np.float64)
            if counts.ndim != 2 or len(counts) != len(ensemble.networks) or not np.all(counts.sum(axis=0) > 0):
                problems.append(
                    f"class_counts: expected a row for each of {len(ensemble.networks)} models and at least one "
                    f"example of every class, found shape {counts.shape}"
                )
        return problems

    @property
    def averages(self) -> bool:
        """Whether what was matched is averaged as it is."""
        return not self.shrink and self.class_counts is None

    def match(
        self, bundle: Mapping[str, Rows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> Layer:
        """Return which global neuron each local one is a copy of."""
        group, *inside = bundle
        if inside:
            return _nested(bundle, reference)
        rows = bundle[group]
        sizes = [len(points) for points in rows.points]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        ones = np.ones(rows.points[0].shape[1])
        objective = GaussianAtoms(
            np.concatenate([to_numpy(points) for points in rows.points]),
            offsets,
            AtomLaw(0.0 * ones, self.sigma**2 * ones, self.sigma0**2 * ones),
            BetaBernoulliPrior(len(sizes), 1.0, self.gamma),
            marginal=False,
        )
        openings = Openings(rows.width)
        order = np.array(sorted(range(len(sizes)), key=lambda j: (-sizes[j], j != reference, j)))
        labels = grow(objective, order, openings)
        labels, settled = ascend(objective, labels, rng, self.sweeps, openings)
        labels, count = _reference_first(labels, slice(offsets[reference], offsets[reference + 1]))
        width = max(count, max(sizes)) if self.growth else rows.width
        parts = np.split(labels, offsets[1:-1])
        details = {"units": count, "settled": settled, "log_posterior": objective.total(labels)}
        return Layer(tuple({group: Injection(part, width)} for part in parts), (), details)

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Match layer by layer and shrink what was matched."""
        found = super().align(ensemble, rng, progress)
        if not self.shrink and self.class_counts is None:
            return found
        units = {name: one.width for name, one in found.transports[0].items()}
        arrays = average(replace(ensemble, target_units=units), found.transports)
        if self.shrink:
            arrays = {key: self._shrunk(ensemble, found.transports, key, values) for key, values in arrays.items()}
        if self.class_counts is not None:
            arrays |= self._by_class(ensemble, found.transports, arrays)
        return replace(found, arrays=arrays)

    def _shrunk(
        self, ensemble: NetworkEnsemble, transports: Sequence[Mapping[str, Transport]], key: str, values: AnyArray
    ) -> AnyArray:
        """Return an array with the rows of hidden units times n / (n + sigma^2 / sigma0^2)."""
        axis = ensemble.symmetry.layouts[key].axes[0] if ensemble.symmetry.layouts[key].axes else None
        if axis is None or axis.side == "input" or any(segment.group is None for segment in axis.segments):
            return values
        held = sum((owned_entries(axis, moves, {}) for moves in transports), start=np.zeros(()))
        factor = held / (held + (self.sigma / self.sigma0) ** 2)
        xp = array_namespace(values)
        shape = (-1, *[1] * (values.ndim - 1))
        return values * xp.reshape(xp.asarray(factor, dtype=values.dtype, device=values.device), shape)

    def _by_class(
        self, ensemble: NetworkEnsemble, transports: Sequence[Mapping[str, Transport]], arrays: Mapping[str, AnyArray]
    ) -> dict[str, AnyArray]:
        """Return the arrays of the output layer, every class averaged by who saw how much of it."""
        counts = np.asarray(self.class_counts, dtype=np.float64)[list(ensemble.given) or slice(None)]
        shares = counts / counts.sum(axis=0)
        moved = [
            {key: move(network.working[key], ensemble.symmetry.layouts[key], moves, network.units) for key in arrays}
            for network, moves in zip(ensemble.networks, transports, strict=True)
        ]
        found: dict[str, AnyArray] = {}
        for key, values in arrays.items():
            axes = ensemble.symmetry.layouts[key].axes
            if key not in _output_layer(ensemble) or not axes or axes[0].moves or values.shape[0] != counts.shape[1]:
                continue
            xp = array_namespace(values)
            shape = (-1, *[1] * (values.ndim - 1))
            parts = [
                xp.reshape(xp.asarray(share, dtype=values.dtype, device=values.device), shape) * one[key]
                for share, one in zip(shares, moved, strict=True)
            ]
            found[key] = sum(parts[1:], start=parts[0])
        return found


def _output_layer(ensemble: NetworkEnsemble) -> set[str]:
    """Return the arrays of the layers that read the last units and make none: the output layer's."""
    symmetry = ensemble.symmetry
    readers = {
        key.rpartition(".")[0]
        for key, layout in symmetry.layouts.items()
        if len(layout.axes) > 1 and not layout.axes[0].moves and any(axis.moves for axis in layout.axes[1:])
    }
    return {key for key in symmetry.layouts if key.rpartition(".")[0] in readers}


def _reference_first(labels: Labels, own: slice) -> tuple[Labels, int]:
    """Return labels renumbered so that the reference's units come first in their order, and the number of groups."""
    count = int(labels.max()) + 1
    target = np.full(count, -1, dtype=np.int64)
    target[labels[own]] = np.arange(own.stop - own.start)
    target[target < 0] = np.arange(own.stop - own.start, count)
    return target[labels], count


def _nested(bundle: Mapping[str, Rows], reference: int) -> Layer:
    """Return the match of units that hold others, to the reference by inner products: what is left without growth."""
    group, *inside = bundle
    transports: list[dict[str, Any]] = []
    for model in range(len(bundle[group].points)):
        costs = {name: -to_numpy(r.points[model]) @ to_numpy(r.points[reference]).T for name, r in bundle.items()}
        found = assign_nested(costs[group], {name: costs[name] for name in inside})
        moves = {name: Injection(slots, len(slots)) for name, slots in found.inner.items()}
        transports.append({group: Injection(found.outer, len(found.outer)), **moves})
    return Layer(tuple(transports))
