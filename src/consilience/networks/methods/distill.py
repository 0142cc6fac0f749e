"""Distillation as a method: one network of any width or architecture, trained to answer as all models together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from consilience.checks import is_count, is_number
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.errors import Problem
from consilience.networks.method import Alignment, NetworkEnsemble, Road
from consilience.networks.methods.auto import MIN_INPUTS
from consilience.networks.methods.consensus import Consensus
from consilience.networks.methods.optimal_transport import OTFusion
from consilience.networks.network import Network

LEARNING_RATE = 1e-3
"""For a start that is fused."""
STEPS_OF_NEW, LEARNING_RATE_OF_NEW = 2000, 3e-3
"""For one that is not. Digits of three sites (perceptrons of 24 hidden units into 12 and 20, one seed): 200 steps at
1e-3 gave 49 and 58 %, 1000 steps 84 and 88 %, 200 steps at 3e-3 72 and 82 %, 1000 steps at 3e-3 92 and 92 %; the
ensemble had 89 %. Not judged on other data."""


@dataclass(frozen=True)
class Distill(Consensus):
    """Fuse the networks, then train the fused one to answer as all of them together, on inputs without labels.

    The start is the matched network, of a common initialisation the plain average too, either refitted, or a site's
    own network where sites have their classes alike, in a wider network those of several beside each other, by which
    answers most like the teacher; the teacher is the ensemble of all networks, by the counts of their classes where
    these are described, or estimated. Inputs are those given (``inputs=``), else drawn from what the sites describe (of
    images, for networks with batch normalisation, then matched to it, unless the sites differ in their classes and
    drawn inputs are like their own), else matched to batch normalisation; without any of these it refuses. The network
    of the least divergence on inputs that it was not trained on is returned, the start among them; of sites' own
    networks the mean of weights before and after. ``target=`` may be any network with the same inputs and outputs: of
    other widths, also smaller ones, or of another architecture, which starts from its own weights.

    The options of `Consensus` say how units are matched.

    Parameters
    ----------
    steps : int, optional
        Steps of Adam at most. Default: 200 for a fused start, 400 where batch normalisation reads the statistics of
        batches of drawn inputs or matched images, 2000 for narrower networks and other architectures.
    learning_rate : float, optional
        Adam's at the start; it falls linearly to 0. Where batch normalisation keeps its statistics all layers have a
        tenth of it, the head before them all of it. Default: 0.001 for a fused start (0.0003 on images matched to batch
        normalisation, where it agrees with the ensemble on two thirds of them), 0.003 else.
    batch_size : int
        Inputs in a step. Default: 64.
    n_inputs : int
        Inputs to train on that are drawn from descriptions; given ones are all used, matched images are 384.
        Default: 2000.
    max_seconds : float, optional
        Seconds in all after which no further step is taken: the status says so, and the result depends on the machine.
        Default: no bound.

    References
    ----------
    Hinton, Vinyals and Dean (2015), "Distilling the knowledge in a neural network"; the rest is this library's, see
    ``networks.distillation``.
    """

    name: ClassVar[str] = "distill"
    summary: ClassVar[str] = "fuse, then train the network to answer as all together, on inputs without labels"
    needs: ClassVar[str] = "modules, and descriptions, inputs or batch normalisation; `target=` of any architecture"
    gives: ClassVar[str] = "one network of any width or architecture"
    paper: ClassVar[str] = "hinton2015"
    compares_networks: ClassVar[bool] = True
    # Weights are trained, and no robust average stands in for that.
    robust: ClassVar[None] = None  # type: ignore[misc]  # no option here, as `trim`
    trim: ClassVar[float] = 0.2  # type: ignore[misc]

    steps: int | None = None
    learning_rate: float | None = None
    batch_size: int = 64
    n_inputs: int = 2000
    max_seconds: float | None = None

    @property
    def road(self) -> Road:
        """Distilled from the ensemble of all."""
        return "distilled"

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        for name in ("learning_rate", "max_seconds"):
            value = getattr(self, name)
            is_positive = is_number(value) and value > 0
            yield (name, value is None or is_positive, "a positive number or None")
        yield "steps", self.steps is None or is_count(self.steps), "a positive integer or None"
        yield "batch_size", is_count(self.batch_size), "a positive integer"
        yield "n_inputs", is_count(self.n_inputs) and self.n_inputs >= MIN_INPUTS, f"an integer of {MIN_INPUTS} or more"

    def for_start(self, *, is_fused: bool) -> Distill:
        """Return the method with the steps and the rate of a start that is no average of the models.

        From a fused start they depend on the inputs (``choice``), and stay None where they are.
        """
        if is_fused:
            return self
        return replace(
            self,
            steps=STEPS_OF_NEW if self.steps is None else self.steps,
            learning_rate=LEARNING_RATE_OF_NEW if self.learning_rate is None else self.learning_rate,
        )

    def refuse(self, ensemble: NetworkEnsemble) -> list[Problem]:
        """Return the problems of fusing these networks: none, since narrower networks start by transport."""
        return []

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the transports of the start: by optimal transport where a unit of some model finds no room."""
        if is_narrower_than_some(ensemble.networks, ensemble.target_units):
            return OTFusion().align(ensemble, rng, progress)
        return super().align(ensemble, rng, progress)


def is_narrower_than_some(networks: Sequence[Network], widths: Mapping[str, int]) -> bool:
    """Return whether a group of the fused network, by its widths, has fewer units than that of some network."""
    return any(network.units[group] > width for network in networks for group, width in widths.items())
