"""Baselines for networks: federated averaging in one round, and the prediction ensemble."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from consilience.core.options import Requirement
from consilience.core.progress import Progress
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.network import identity_transports


@dataclass(frozen=True)
class NetworkAverage(NetworkMethod):
    """Average the networks weight by weight, units as they are numbered: right for networks of one common start.

    theta = sum_i a_i theta_i, with a_i the weight of model i.

    References
    ----------
    McMahan et al. (2017), federated averaging, one round.
    """

    name: ClassVar[str] = "average"
    summary: ClassVar[str] = "average the networks weight by weight, units as they are numbered"
    needs: ClassVar[str] = "networks of the same widths, best of one common start"
    gives: ClassVar[str] = "one network of the same widths"
    paper: ClassVar[str] = "mcmahan2017"
    optional_symmetry: ClassVar[bool] = True

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return identity transports: units stay as they are numbered."""
        return Alignment(tuple(identity_transports(network.units) for network in ensemble.networks))


@dataclass(frozen=True)
class NetworkEnsembleMethod(NetworkMethod):
    """Keep all networks and average their predictions: the reference for accuracy, at the cost of all networks.

    Parameters
    ----------
    mean : {"probabilities", "logits"}
        What is averaged: class probabilities, or logits. Default: "probabilities".
    """

    name: ClassVar[str] = "ensemble"
    summary: ClassVar[str] = "keep all networks and average what they answer"
    needs: ClassVar[str] = "modules of any architecture with the same outputs"
    gives: ClassVar[str] = "one module that asks all networks"
    paper: ClassVar[str] = "none: a baseline"
    keeps_models: ClassVar[bool] = True
    widths: ClassVar[bool] = True

    mean: Literal["probabilities", "logits"] = "probabilities"

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("mean", self.mean in ("probabilities", "logits"), "'probabilities' or 'logits'")

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return identity transports; nothing is averaged."""
        return Alignment(tuple(identity_transports(network.units) for network in ensemble.networks))
