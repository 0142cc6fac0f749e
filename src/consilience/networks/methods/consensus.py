"""The recommended method for networks: a consensus of all models on who is who, by everything that touches a unit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from consilience.checks import is_count
from consilience.core.progress import Progress
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.methods.weight_matching.match import matched
from consilience.networks.symmetry.scaling import balance_scales, shared_groups

_TOLERANCE = 1e-3
"""A pass over all models that lowers the objective by no more than this share is the last: what came after gained
nothing in accuracy on MNIST, and took most of the time."""


@dataclass(frozen=True)
class Consensus(NetworkMethod):
    """Match the units of all models by all their weights, keep apart what finds no partner, and average.

    Where the fused network is wider than the models, units share a slot only when there is no room for both, so that
    it computes the average of the models' logits exactly once every unit has a slot of its own. Networks of ReLU-like
    units are first written in balanced scales, which changes no output.

    Parameters
    ----------
    restarts
        Descents: from units matched by what they receive, from the models as they are, then from random orders of
        units. The lowest objective is kept.
    max_passes
        Passes over all models at most.
    balance
        Whether units that may be scaled receive and send weights of the same size before they are compared.
    signs
        Whether units may change sign where that changes no output: tanh units, and the units of LSTMs and GRUs with
        their proposing gate.
    refit
        Whether every layer is then fitted anew so that its units give on average what the models' units give, on
        random inputs made from the models' first layers; it needs the modules, so files alone go without.

    References
    ----------
    Weight matching of Ainsworth et al. (2023) over slots, see ``weight_matching.state``; the rest is this library's.
    """

    name: ClassVar[str] = "consensus"
    summary: ClassVar[str] = "match units by all that touches them, keep apart what finds no partner (recommended)"
    needs: ClassVar[str] = "networks of one architecture, widths may differ; the fused one is no narrower"
    gives: ClassVar[str] = "one network of any width no smaller than the widest; at full width, the ensemble of logits"
    paper: ClassVar[str] = "none: weight matching (ainsworth2023) carried to any number of models and widths"
    widths: ClassVar[bool] = True

    restarts: int = 3
    max_passes: int = 100
    balance: bool = True
    signs: bool = True
    refit: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("restarts", is_count(self.restarts), "a positive integer")
        self.require("max_passes", is_count(self.max_passes), "a positive integer")
        self.require("balance", isinstance(self.balance, bool), "true or false")
        self.require("signs", isinstance(self.signs, bool), "true or false")
        self.require("refit", isinstance(self.refit, bool), "true or false")

    @property
    def refits(self) -> bool:
        """Whether layers are fitted anew; to what all models answer, which a hostile one could decide."""
        return self.refit and self.robust is None

    def refuse(self, ensemble: NetworkEnsemble) -> list[str]:
        """Return why these networks cannot be fused, a line each."""
        return [
            f"{network.name}: group {group} has {network.units[group]} units, but the fused network only {units}; "
            "method 'consensus' needs room for the widest model (methods 'ot' and 'wb' do not)"
            for network in ensemble.networks
            for group, units in ensemble.target_units.items()
            if network.units[group] > units
        ]

    def prepare(self, ensemble: NetworkEnsemble) -> NetworkEnsemble:
        """Return the networks in balanced scales."""
        if not self.balance:
            return ensemble
        shared = shared_groups(ensemble.networks)
        return replace(ensemble, networks=tuple(balance_scales(network, shared) for network in ensemble.networks))

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return slots."""
        starts = ["receiving", "identity", *["random"] * self.restarts][: self.restarts]
        return matched(ensemble, starts, self.max_passes, rng, progress, _TOLERANCE, self.signs)
