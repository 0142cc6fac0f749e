"""Records of predictive scores: accuracy, likelihood, entropy and calibration, by class and outside the training data.

`consilience.networks.gaussian.predictive` defines the scores and computes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from consilience.checks import Array, Labels
from consilience.drawing.display import Displayed
from consilience.drawing.words import format_count


@dataclass(frozen=True)
class ReliabilityBin:
    """A bin of the reliability diagram: inputs whose largest probability lies in one interval."""

    # Bounds of the interval (low, high].
    low: float
    high: float
    observations: int  # number of inputs in the bin
    confidence: float  # mean of their largest probabilities
    accuracy: float  # share of them whose most probable class is right, from 0 to 1


@dataclass(frozen=True)
class ClassEntropy:
    """Predictive entropies of the inputs of one class, in nats."""

    label: int  # number of the class
    observations: int  # number of inputs of this class
    # Mean and quartiles.
    mean: float
    lower: float
    median: float
    upper: float


@dataclass(frozen=True, eq=False)
class OutsideScores:
    """Scores on inputs from outside the training distribution."""

    # (m,): Predictive entropy of every input, in nats: the score that separates them from those inside.
    entropies: Array
    entropy: float  # mean entropy
    # Area under the ROC curve of detecting them by entropy: 1 where every input outside has a larger entropy than every
    # input inside, 0.5 where entropy is of no use.
    auroc: float
    class_entropies: tuple[ClassEntropy, ...]  # entropies of each class that occurs; empty where classes are not known

    @property
    def observations(self) -> int:
        """Number of inputs."""
        return len(self.entropies)


@dataclass(frozen=True, eq=False, repr=False)
class PredictiveScores(Displayed):
    """Scores of predictive probabilities; see `predictive_scores`.

    Parameters
    ----------
    labels, predicted : arrays of int, shape (n,)
        Class of every input, and its most probable class; the first of equals.
    entropies : array of shape (n,)
        Predictive entropy of every input, in nats.
    accuracy : float
        Share of inputs whose most probable class is right, from 0 to 1.
    log_likelihood : float
        Mean log probability of the true class, in nats.
    entropy : float
        Mean predictive entropy, in nats.
    calibration_error : float
        Expected calibration error, from 0 to 1.
    brier : float
        Mean squared distance of the probabilities from the true class, from 0 to 2.
    reliability : tuple of ReliabilityBin
        The bins that have inputs, in order.
    class_entropies : tuple of ClassEntropy
        Entropies of each class that occurs.
    outside : OutsideScores or None
        Scores on inputs from outside the training distribution; None where there are none.
    """

    labels: Labels
    predicted: Labels
    entropies: Array
    accuracy: float
    log_likelihood: float
    entropy: float
    calibration_error: float
    brier: float
    reliability: tuple[ReliabilityBin, ...]
    class_entropies: tuple[ClassEntropy, ...]
    outside: OutsideScores | None

    def _headline(self) -> str:
        return format_count(self.observations, "observation")

    def _facts(self) -> dict[str, object | None]:
        outside = self.outside
        return {
            "accuracy": f"{self.accuracy:.4g}",
            "log likelihood": f"{self.log_likelihood:.4g} nats an observation",
            "calibration error": f"{self.calibration_error:.4g}",
            "Brier score": f"{self.brier:.4g}",
            "predictive entropy": f"{self.entropy:.4g} nats",
            "outside": None if outside is None else f"entropy {outside.entropy:.4g} nats, AUROC {outside.auroc:.4g}",
        }

    @property
    def observations(self) -> int:
        """Number of inputs."""
        return len(self.labels)

    @property
    def centred_entropies(self) -> dict[int, float]:
        """By class, the mean entropy minus that of all inputs, in nats: positive for the less certain classes."""
        return {by_class.label: by_class.mean - self.entropy for by_class in self.class_entropies}

    @property
    def centred_outside(self) -> dict[int, float]:
        """By class of inputs outside, the mean entropy minus that of inputs inside (Claici et al. 2020, Figure 5)."""
        class_entropies = () if self.outside is None else self.outside.class_entropies
        return {by_class.label: by_class.mean - self.entropy for by_class in class_entropies}
