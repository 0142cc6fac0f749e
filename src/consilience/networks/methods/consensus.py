"""Consensus: weight matching of any number of networks into any width.

It minimises the objective E of ``weight_matching.state`` over the slots of all units of all models. At the width of the
models that is weight matching (Ainsworth et al. 2023); at the sum of their widths E is zero, and the fused network is
the ensemble of logits; between, those units are merged whose weights differ least. Descents that end in a local minimum
are why there are several starts. See docs/adr/0011.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from consilience.checks import is_count
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.errors import Problem
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.methods.weight_matching.match import descent_starts, match_weights
from consilience.networks.symmetry.unit_rows import balanced_networks

MIN_RELATIVE_DECREASE = 1e-3
"""A pass over all models that lowers the objective by no more than this fraction is the last. Judged on a validation
split of MNIST (784-400-200-100-10, two models, five seeds): further passes gained nothing in accuracy and took most of
the time (docs/adr/0011)."""


@dataclass(frozen=True)
class Consensus(NetworkMethod):
    """Match the units of all models by all their weights, keep apart what finds no partner, and average.

    Where the fused network is wider than the models, units share a slot only when there is no room for both, so that
    it computes the average of the models' logits exactly once every unit has a slot of its own. Networks of ReLU-like
    units are first written in balanced scales, which changes no output.

    Parameters
    ----------
    restarts : int
        Number of descents: from units matched by what they receive, from the models as they are, then from random
        orders of units; and one more from units matched by their activations where there are inputs. The lowest
        objective is kept. Default: 3.
    max_iterations : int
        Passes over all models at most. Default: 100, as in the published code of weight matching.
    balance : bool
        Whether units that may be scaled are first scaled so that the weights they receive and those they send have the
        same size. Default: True.
    signs : bool
        Whether units may change sign where that changes no output: tanh units, and the units of LSTMs and GRUs with
        their proposing gate. Default: True.
    refit : bool
        Whether every layer is then refitted by least squares to the mean activations of the models' units, on random
        inputs made from the models' first layers. It needs modules; files alone are not refitted. Default: True.

    References
    ----------
    Weight matching of Ainsworth et al. (2023) over slots, see ``weight_matching.state``; the rest is this library's.
    """

    name: ClassVar[str] = "consensus"
    summary: ClassVar[str] = "match units by all that touches them, keep apart what finds no partner"
    needs: ClassVar[str] = "networks of one architecture, widths may differ; the fused one is no narrower"
    gives: ClassVar[str] = "one network of any width no smaller than the widest; at full width, the ensemble of logits"
    paper: ClassVar[str] = "none: weight matching (ainsworth2023) carried to any number of models and widths"
    widths: ClassVar[bool] = True

    restarts: int = 3
    max_iterations: int = 100
    balance: bool = True
    signs: bool = True
    refit: bool = True

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield "restarts", is_count(self.restarts), "a positive integer"
        yield "max_iterations", is_count(self.max_iterations), "a positive integer"

    @property
    def starts_from_activations(self) -> bool:
        """Whether a descent starts from units matched by activations, where there are inputs."""
        return True

    @property
    def refits(self) -> bool:
        """Whether layers are refitted: not in robust fusion, where a hostile model could decide the targets."""
        return self.refit and not self.is_robust

    def refuse(self, ensemble: NetworkEnsemble) -> list[Problem]:
        """Return the problems of fusing these networks, a line each: widths below those of a model."""
        return narrower_problems(ensemble, "'consensus' needs room for the widest model (methods 'ot' and 'wb' do not)")

    def prepare(self, ensemble: NetworkEnsemble) -> NetworkEnsemble:
        """Return the networks in balanced scales, which changes no output."""
        return replace(ensemble, networks=balanced_networks(ensemble.networks)) if self.balance else ensemble

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the transports into the slots of lowest objective."""
        starts = descent_starts(ensemble, self.restarts, ("receiving", "identity"))
        return match_weights(ensemble, starts, self.max_iterations, rng, progress, MIN_RELATIVE_DECREASE, self.signs)


def narrower_problems(ensemble: NetworkEnsemble, need: str) -> list[Problem]:
    """Return the groups in which the fused network has fewer units than a model, and what a method needs, by line."""
    remedy = "give `method='distill'` for networks that are described: it trains a narrower one on inputs like theirs"
    return [
        Problem(
            network.name,
            f"group {group} has {network.units[group]} units, but the fused network only {units}; method {need}",
            remedy,
            "E-NARROWER",
        )
        for network in ensemble.networks
        for group, units in ensemble.target_units.items()
        if network.units[group] > units
    ]
