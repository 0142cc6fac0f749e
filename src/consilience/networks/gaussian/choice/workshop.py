"""One default fusion of Bayesian networks at work: the networks, and the averages that are its candidates.

`kl`, KL-fusion with the options of the call, is what is returned where nothing can be compared. `side_by_side` is the
same without a price of a unit: no two units are merged, and logits are averages but for the output's biases. `w2`
aligns posteriors, `average` and `precision` take units as they are numbered, the former the Wasserstein barycenter of
the posteriors, the latter their Kullback-Leibler barycenter (``methods.gaussian_average``).

The last, `kl` and `side_by_side` weigh what they average by precision. Each has a sibling whose output layer is
averaged by class: with w_jc the share of site j in the observations of class c, row c of the output layer is

    1 / v_c = sum_j w_jc / v_jc,      m_c = v_c sum_j w_jc m_jc / v_jc.

A mean-field posterior is a product over weights, so that each row has a barycenter of its own, of any weights that sum
to 1. Means are centred over the classes first, which changes no prediction of a site. It leaves out what ties rows of
two classes together, as ``networks.classes.heads`` does, so that it is a candidate and no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from consilience.checks import Array
from consilience.errors import UnsupportedError
from consilience.networks.choice.candidate import Candidate, Effort
from consilience.networks.choice.workshop import Workshop
from consilience.networks.classes.shares import class_shares
from consilience.networks.fuse_aligned import fuse_aligned, target_units
from consilience.networks.gaussian.fusion import BayesianFusion
from consilience.networks.gaussian.methods.auto import BayesianAuto
from consilience.networks.gaussian.methods.gaussian_average import natural_average
from consilience.networks.gaussian.methods.kl import prior_variances
from consilience.networks.gaussian.methods.posterior_alignment import PosteriorAlignment
from consilience.networks.gaussian.shared_symmetry import BayesianNetworksWithSymmetry
from consilience.networks.method import NetworkEnsemble, NetworkMethod
from consilience.networks.methods.baselines import NetworkAverage

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class BayesianWorkshop(Workshop):
    """One default fusion of Bayesian networks, and what its candidates are made of, each computed once."""

    models: BayesianNetworksWithSymmetry
    method: BayesianAuto

    @cached_property
    def modules(self) -> list[Any]:
        """The sites' Bayesian networks, in the canonical order."""
        return [self.models.module(self.models.networks[i]) for i in self.order]

    @cached_property
    def units(self) -> Mapping[str, int]:
        """Units of every group that the caller asks for, else of the widest network."""
        return target_units(self.models, NetworkAverage(), self.arguments)

    @cached_property
    def base(self) -> BayesianFusion:
        """KL-fusion with the options of the call."""
        return self.averaged(self.method.matching)

    @property
    def reach(self) -> Array | None:
        """As of networks, but numbers of observations alone choose no site: KL-fusion loses little, if anything."""
        return None if self.ordered.observed_counts is None else super().reach

    @property
    def base_candidate(self) -> Candidate:
        """The base as a candidate."""
        return Candidate("kl", Effort.MATCHED, self.base.model, self.base)

    @cached_property
    def side_by_side(self) -> BayesianFusion:
        """KL-fusion that merges no units."""
        return self.averaged(replace(self.method.matching, regularization=0.0))

    @property
    def is_wider(self) -> bool:
        """False: KL-fusion chooses the width of posteriors side by side itself."""
        return False

    @cached_property
    def numbered(self) -> BayesianFusion:
        """The mean of means and of deviations, units as they are numbered."""
        return self.averaged(NetworkAverage())

    @cached_property
    def precision(self) -> BayesianFusion:
        """The average by precision, units as they are numbered."""
        return self.by_precision(self.numbered)

    @cached_property
    def plain_modules(self) -> list[nn.Module]:
        """The networks of the mean weights, in the canonical order."""
        return [bnn.mean_module() for bnn in self.modules]

    def _with_head(self, template: nn.Module) -> nn.Module:
        # The template's own weights are not used anywhere: they may be such that no layer is seen to matter.
        return self.plain_modules[0]

    def averaged(self, method: NetworkMethod, inputs: Any = None) -> BayesianFusion:
        """Return the average of the networks, their units aligned by a method, which may ask them on inputs."""
        weights = self.sites.weights
        arguments = self.arguments if inputs is None else replace(self.arguments, inputs=inputs)
        return cast(BayesianFusion, fuse_aligned(self.models, method, weights, arguments, self.rng, self.progress)[0])

    def by_precision(self, fusion: BayesianFusion, shares: Array | None = None) -> BayesianFusion:
        """Return a fusion with its matched units averaged by precision, rows of the output layer by class.

        `shares` (J, C) are the weights of each network in each row of the output layer, in the order of the call.
        Default: its one weight. Raises UnsupportedError with shares, for networks that do not end in a linear layer.
        """
        networks, rows = self.models.networks, {}
        if shares is not None:
            if self.head is None:
                raise UnsupportedError("the networks do not end in a linear layer")
            networks = self.centred.networks
            names = [f"{self.head}.{name}" if self.head else name for name in ("weight", "bias")]
            rows = {name: shares[self.order] for name in names if name in fusion.network.working}
        ensemble = NetworkEnsemble(
            tuple(networks[i] for i in self.order),
            self.sites.weights[self.order],
            fusion.groups,
            priors=tuple(self.models.bnns[i].prior for i in self.order),
        )
        method = self.method
        arrays = natural_average(
            ensemble,
            [fusion.transports[i] for i in self.order],
            prior_variances(ensemble, method.prior_variance),
            method.outgoing,
            method.lacking,
            rows,
        )
        return replace(fusion, network=fusion.network.with_arrays(arrays, fusion.network.name))

    def averages(self) -> Iterator[tuple[str, Callable[[], Candidate]]]:
        """Yield the names of candidates that average, KL-fusion apart, and what makes each."""
        by_precision: dict[str, Callable[[], BayesianFusion]] = {"kl": lambda: self.base}
        if self.has_equal_widths and self.is_common_start:
            yield "average", lambda: self._candidate("average", Effort.AVERAGE, self.numbered)
            yield "precision", lambda: self._candidate("precision", Effort.AVERAGE, self.precision)
            by_precision["precision"] = lambda: self.precision
        if self.has_equal_widths:
            yield "w2", lambda: self._candidate("w2", Effort.MATCHED, self.averaged(PosteriorAlignment()))
        is_bounded = self.arguments.target is not None or self.arguments.target_widths is not None
        if not is_bounded and self.method.max_units is None and self.method.regularization > 0:
            yield "side_by_side", lambda: self._candidate("side_by_side", Effort.SIDE_BY_SIDE, self.side_by_side)
            by_precision["side_by_side"] = lambda: self.side_by_side
        counts = self.sites.class_counts
        if counts is None:
            return
        shares = class_shares(counts, self.sites.weights)
        for start, make in by_precision.items():
            name = f"class_heads({start})"
            effort = Effort.SIDE_BY_SIDE if start == "side_by_side" else Effort.CLASS_HEADS

            def by_class(
                name: str = name, effort: Effort = effort, make: Callable[[], BayesianFusion] = make
            ) -> Candidate:
                return self._candidate(name, effort, self.by_precision(make(), shares))

            yield name, by_class

    @staticmethod
    def _candidate(name: str, effort: Effort, fusion: BayesianFusion) -> Candidate:
        return Candidate(name, effort, fusion.model, fusion)
