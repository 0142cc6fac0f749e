"""One-shot FedMA: neurons matched layer by layer under a Beta-Bernoulli process, without retraining.

Yurochkin et al., "Bayesian nonparametric federated learning of neural networks" (PFNM), ICML 2019; Wang et al.,
"Federated learning with matched averaging" (FedMA), ICLR 2020; one-shot as in the Wasserstein paper. The model is

    theta_g ~ N(0, sigma0^2 I)    global neurons; which models have them follows a Beta-Bernoulli process of mass gamma
    v ~ N(theta_g, sigma^2 I)     a local neuron: incoming weights and bias.

Assignments maximise the log joint at the most likely global neurons, model by model (``matching.site_by_site``, which
SPAHM uses too). The global neuron is the mean of the matched neurons or, as in the published code, the posterior mode

    theta_g = sum v / (n_g + sigma^2 / sigma0^2),    n_g the number of matched neurons.

With two models the mode multiplies every layer by 2/3. The published method retrains the layers above, and networks of
ReLU without biases answer alike at any scale; but after l layers without retraining activations are (2/3)^l of what
they were and biases 2/3, so that convolutions with biases lose with every layer (docs/evidence/networks.md).
Assignments are a local maximum; limits on sweeps are reported in the details.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Labels, is_count, is_number
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.errors import Problem
from consilience.matching.assignment import Openings, assign_nested
from consilience.matching.beta_bernoulli import AtomLaw, BetaBernoulliPrior, GaussianAtoms
from consilience.matching.site_by_site import ascend, grow
from consilience.networks.details import GroupDetails
from consilience.networks.method import Alignment, NetworkEnsemble, average, owned_entries
from consilience.networks.methods.consensus import narrower_problems
from consilience.networks.methods.layerwise import LayerMatching, LayerwiseMethod, UnitRows
from consilience.networks.network import Network, to_numpy
from consilience.networks.symmetry.transport import Injection, Transport, as_stored, laid_out, move

_ROBUST_EXPECTED = (
    "None with shrink or class_counts, whose averages are no averages of copies (methods 'consensus', 'rebasin', 'ot', "
    "'wb', 'gwb' and 'average' can)"
)


@dataclass(frozen=True)
class FedMA(LayerwiseMethod):
    """Match neurons as copies of global ones under a Beta-Bernoulli process, layer by layer, and average.

    Parameters
    ----------
    sigma : float
        Standard deviation of a neuron's weights around the global neuron's. Default: 1, as in the published code.
    sigma0 : float
        Standard deviation of global weights around 0. Default: 1, as in the published code.
    gamma : float
        Mass of the process: the larger, the likelier new neurons; matters with `growth` only. Default: 7, as in the
        published code of one-shot FedMA.
    growth : bool
        Whether the fused network may have more units than the widest model, up to the target widths if the user set
        them, else up to all units of all models. Default: False, as in the Wasserstein paper.
    shrink : bool
        Whether global neurons are the posterior mode, as in the published code, which is shrunk towards 0; at sigma =
        sigma0 and two models by a third. False takes means, which keep the scale of the layers. Default: False.
    max_iterations : int
        Passes over the models in each layer at most. Default: 5, as in the published code.
    class_counts : array_like of shape (n_models, n_classes), optional
        Number of examples of each class at each site: rows of the output layer are averaged by them. Default: the
        models' weights.

    References
    ----------
    Yurochkin et al. (2019), PFNM, ICML; Wang et al. (2020), FedMA, ICLR. Beside squared terms the logarithm of the
    prior counts twice, as in the log joint; the published code counts it once. Orders of new neurons are not counted,
    as in SPAHM. An input that a model lacks counts as 0 in the rows of matched neurons.
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
    shrink: bool = False
    max_iterations: int = 5
    class_counts: Sequence[Sequence[float]] | None = None

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        for option in ("sigma", "sigma0", "gamma"):
            value = getattr(self, option)
            yield (option, is_number(value) and value > 0, "a positive number")
        yield ("max_iterations", is_count(self.max_iterations), "a positive integer")
        counts = self.class_counts
        yield ("class_counts", counts is None or _are_counts(counts), "rows of numbers that are not negative, or None")
        is_plain = not self.shrink and counts is None  # an average by the models' weights alone
        yield ("robust", is_plain or not self.is_robust, _ROBUST_EXPECTED)

    def default_units(self, networks: Sequence[Network], reference: int | None) -> dict[str, int]:
        """Return the largest widths of the fused network: the widest model's, or with growth the sum of all models'."""
        widest = super().default_units(networks, reference)
        if not self.growth:
            return widest
        groups = networks[0].symmetry.by_name
        return {
            name: sum(network.units[name] for network in networks) if groups[name].resizable else width
            for name, width in widest.items()
        }

    def refuse(self, ensemble: NetworkEnsemble) -> list[Problem]:
        """Return the problems of fusing these networks, a line each: widths, and the shape of `class_counts`."""
        problems = narrower_problems(ensemble, "'fedma' needs room for the widest model")
        if self.class_counts is not None:
            counts = np.asarray(self.class_counts, dtype=np.float64)
            if counts.ndim != 2 or len(counts) != len(ensemble.networks) or not np.all(counts.sum(axis=0) > 0):
                text = f"expected a row for each of {len(ensemble.networks)} models and at least one example of every"
                problems.append(Problem("class_counts", f"{text} class, found shape {counts.shape}", code="E-SHAPE"))
        return problems

    def match(
        self, bundle: Mapping[str, UnitRows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> LayerMatching:
        """Return the global neuron of each local neuron of one group."""
        group, *inside = bundle
        if inside:
            return _match_nested(bundle, reference)
        rows = bundle[group]
        sizes = [len(points) for points in rows.points]  # (J,)
        offsets = np.concatenate([[0], np.cumsum(sizes)])  # (J + 1,): model j's neurons are rows offsets[j:j + 1]
        ones = np.ones(rows.points[0].shape[1])
        objective = GaussianAtoms(
            np.concatenate([to_numpy(points) for points in rows.points]),  # (L, F)
            offsets,
            AtomLaw(0.0 * ones, self.sigma**2 * ones, self.sigma0**2 * ones),
            BetaBernoulliPrior(len(sizes), 1.0, self.gamma),
            marginal=False,
        )
        openings = Openings(rows.width)
        # Largest model first, as in the published code; among equals the reference.
        order = np.array(sorted(range(len(sizes)), key=lambda j: (-sizes[j], j != reference, j)))
        labels = grow(objective, order, openings)
        labels, converged = ascend(objective, labels, rng, self.max_iterations, openings)  # (L,)
        labels, n_global = _renumber_by_reference(labels, slice(offsets[reference], offsets[reference + 1]))
        width = max(n_global, max(sizes)) if self.growth else rows.width
        model_labels = np.split(labels, offsets[1:-1])
        details: GroupDetails = {"units": n_global, "settled": converged, "log_posterior": objective.total(labels)}
        return LayerMatching(tuple({group: Injection(slots, width)} for slots in model_labels), (), details)

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the alignment, and the fused arrays where neurons are shrunk or classes weighed."""
        alignment = super().align(ensemble, rng, progress)
        if not self.shrink and self.class_counts is None:
            return alignment
        units = {name: transport.width for name, transport in alignment.transports[0].items()}
        arrays = average(replace(ensemble, target_units=units), alignment.transports)
        if self.shrink:
            arrays = {key: self._shrink(ensemble, alignment.transports, key, values) for key, values in arrays.items()}
        if self.class_counts is not None:
            arrays |= self._average_by_class(ensemble, alignment.transports, arrays)
        return replace(alignment, arrays=arrays)

    def _shrink(
        self, ensemble: NetworkEnsemble, transports: Sequence[Mapping[str, Transport]], key: str, values: AnyArray
    ) -> AnyArray:
        """Return an array with the rows of hidden units times n_g / (n_g + sigma^2 / sigma0^2).

        The mean of n_g neurons times this factor is the posterior mode. Output rows are no neurons, and stay.
        """
        layout = ensemble.symmetry.layouts[key]
        axis = layout.axes[0] if layout.axes else None
        if axis is None or axis.side == "input" or any(segment.group is None for segment in axis.segments):
            return values
        n_matched = sum((owned_entries(axis, model, {}) for model in transports), start=np.zeros(()))  # (rows,)
        factor = n_matched / (n_matched + (self.sigma / self.sigma0) ** 2)
        xp = array_namespace(values)
        values = laid_out(values, layout)
        shape = (-1, *[1] * (values.ndim - 1))
        return as_stored(
            values * xp.reshape(xp.asarray(factor, dtype=values.dtype, device=values.device), shape), layout
        )

    def _average_by_class(
        self, ensemble: NetworkEnsemble, transports: Sequence[Mapping[str, Transport]], arrays: Mapping[str, AnyArray]
    ) -> dict[str, AnyArray]:
        """Return the arrays of the output layer, every class averaged by the sites' shares of its examples."""
        # Counts are in the user's order of models, networks in the order of their contents.
        counts = np.asarray(self.class_counts, dtype=np.float64)[list(ensemble.input_numbers) or slice(None)]
        class_shares = counts / counts.sum(axis=0)  # (J, C)
        layouts = ensemble.symmetry.layouts
        # The output layer is of layers that receive units and whose own rows never move.
        output_layers = {
            key.rpartition(".")[0]
            for key, layout in layouts.items()
            if len(layout.axes) > 1 and not layout.axes[0].moves and any(axis.moves for axis in layout.axes[1:])
        }
        averaged: dict[str, AnyArray] = {}
        for key, values in arrays.items():
            layout = layouts[key]
            is_output = key.rpartition(".")[0] in output_layers and bool(layout.axes) and not layout.axes[0].moves
            if not is_output or values.shape[0] != counts.shape[1]:
                continue
            xp = array_namespace(values)
            shape = (-1, *[1] * (values.ndim - 1))
            weighted = [
                xp.reshape(xp.asarray(shares, dtype=values.dtype, device=values.device), shape)
                * move(network.working[key], layout, model_transports, network.units)
                for shares, network, model_transports in zip(class_shares, ensemble.networks, transports, strict=True)
            ]
            averaged[key] = sum(weighted[1:], start=weighted[0])
        return averaged


def _renumber_by_reference(labels: Labels, reference_rows: slice) -> tuple[Labels, int]:
    """Return labels (L,) renumbered so that the reference's neurons come first in their order, and their number G."""
    n_global = int(labels.max()) + 1
    n_reference = reference_rows.stop - reference_rows.start
    new_number = np.full(n_global, -1, dtype=np.int64)
    new_number[labels[reference_rows]] = np.arange(n_reference)
    new_number[new_number < 0] = np.arange(n_reference, n_global)
    return new_number[labels], n_global


def _match_nested(bundle: Mapping[str, UnitRows], reference: int) -> LayerMatching:
    """Return the matching of attention heads and of what lies inside, to the reference by inner products of rows.

    For two models without growth and a wide prior, the gain of the process is such a product up to a factor.
    """
    group, *inside = bundle
    transports: list[dict[str, Any]] = []
    for model in range(len(bundle[group].points)):
        costs = {name: -to_numpy(r.points[model]) @ to_numpy(r.points[reference]).T for name, r in bundle.items()}
        assignment = assign_nested(costs[group], {name: costs[name] for name in inside})
        inner = {name: Injection(slots, len(slots)) for name, slots in assignment.inner.items()}
        transports.append({group: Injection(assignment.outer, len(assignment.outer)), **inner})
    return LayerMatching(tuple(transports))


def _are_counts(rows: object) -> bool:
    """Return whether this is a matrix of finite numbers that are not negative."""
    try:
        counts = np.asarray(rows)
    except ValueError:  # rows of different lengths
        return False
    return counts.ndim == 2 and counts.dtype.kind in "iuf" and bool(np.all(np.isfinite(counts) & (counts >= 0)))
