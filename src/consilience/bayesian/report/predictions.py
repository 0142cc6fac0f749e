"""Protocols of predictive scores: what the report reads of those of ``consilience.predictive_scores``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from consilience.checks import Array, Labels


class ClassEntropies(Protocol):
    """Predictive entropies of one class, as ``bayesian.predictive_scores`` has them."""

    @property
    def label(self) -> int:
        """Number of the class."""

    @property
    def observations(self) -> int:
        """How many inputs are of it."""

    @property
    def mean(self) -> float:
        """Their mean entropy."""

    @property
    def lower(self) -> float:
        """Lower quartile."""

    @property
    def upper(self) -> float:
        """Upper quartile."""


class PredictiveBin(Protocol):
    """One bin of a reliability curve."""

    @property
    def confidence(self) -> float:
        """Mean of the largest probabilities."""

    @property
    def accuracy(self) -> float:
        """How often they are right."""


class PredictiveOutside(Protocol):
    """Predictive scores of inputs from outside the training distribution."""

    @property
    def observations(self) -> int:
        """How many these are."""

    @property
    def entropy(self) -> float:
        """Their mean entropy."""

    @property
    def auroc(self) -> float:
        """How well entropy tells them from those inside."""

    @property
    def class_entropies(self) -> Sequence[ClassEntropies]:
        """Entropies by class."""


@runtime_checkable
class Predictive(Protocol):
    """Scores of predictive probabilities, as ``consilience.predictive_scores`` returns them."""

    @property
    def labels(self) -> Labels:
        """Class of every input."""

    @property
    def predicted(self) -> Labels:
        """The most probable class of every input."""

    @property
    def entropies(self) -> Array:
        """Predictive entropy of every input."""

    @property
    def observations(self) -> int:
        """Number of inputs."""

    @property
    def accuracy(self) -> float:
        """From 0 to 1."""

    @property
    def log_likelihood(self) -> float:
        """Mean log probability of the true class."""

    @property
    def entropy(self) -> float:
        """Mean predictive entropy."""

    @property
    def calibration_error(self) -> float:
        """Expected calibration error."""

    @property
    def brier(self) -> float:
        """Brier score."""

    @property
    def reliability(self) -> Sequence[PredictiveBin]:
        """The reliability curve."""

    @property
    def class_entropies(self) -> Sequence[ClassEntropies]:
        """Entropies by class."""

    @property
    def outside(self) -> PredictiveOutside | None:
        """Scores of inputs from outside the training distribution; None where there are none."""
