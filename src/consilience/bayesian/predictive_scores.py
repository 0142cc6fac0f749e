"""Scores of predictive probabilities, as values."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.checks import Array, Labels


@dataclass(frozen=True)
class ReliabilityBin:
    """The inputs of which a network is about equally sure.

    Parameters
    ----------
    low, high
        The bin (low, high] of the largest probability.
    observations
        How many inputs fall in it.
    confidence
        Mean of their largest probabilities.
    accuracy
        How often the most probable class is right, from 0 to 1.
    """

    low: float
    high: float
    observations: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class ClassEntropy:
    """Predictive entropies of the inputs of one class, in nats.

    Parameters
    ----------
    label
        Number of the class.
    observations
        How many inputs are of it.
    mean, lower, median, upper
        Mean and quartiles.
    """

    label: int
    observations: int
    mean: float
    lower: float
    median: float
    upper: float


@dataclass(frozen=True, eq=False)
class OutsideScores:
    """What a network says of inputs from outside its training distribution.

    Parameters
    ----------
    entropies
        Predictive entropy of every input (m,), in nats: the score by which they are told from those inside.
    entropy
        Their mean.
    auroc
        Area under the ROC curve of telling outside from inside by entropy: 1 where every input outside has a larger one
        than every input inside, 0.5 where entropy says nothing.
    class_entropies
        Of each class that occurs; empty where classes are not known.
    """

    entropies: Array
    entropy: float
    auroc: float
    class_entropies: tuple[ClassEntropy, ...]

    @property
    def observations(self) -> int:
        """Number of inputs."""
        return len(self.entropies)


@dataclass(frozen=True, eq=False)
class PredictiveScores:
    """Scores of predictive probabilities; see `predictive_scores`.

    Parameters
    ----------
    labels, predicted
        Class of every input, and the most probable one (n,); the first of equals.
    entropies
        Predictive entropy of every input (n,), in nats.
    accuracy
        From 0 to 1.
    log_likelihood
        Mean log probability of the true class, nats.
    entropy
        Mean predictive entropy, nats.
    calibration_error
        Expected calibration error, from 0 to 1.
    brier
        Mean squared distance of the probabilities from the true class, from 0 to 2.
    reliability
        The bins that hold inputs, in order.
    class_entropies
        Of each class that occurs.
    outside
        What is said of inputs from outside the training distribution; None where there are none.
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

    @property
    def observations(self) -> int:
        """Number of inputs."""
        return len(self.labels)

    @property
    def centred_entropies(self) -> dict[int, float]:
        """By class, the mean entropy minus that of all inputs: which classes the network is less sure of, nats."""
        return {one.label: one.mean - self.entropy for one in self.class_entropies}

    @property
    def centred_outside(self) -> dict[int, float]:
        """The same of inputs outside, minus the mean entropy of those inside (Claici et al. 2020, Figure 5)."""
        known = () if self.outside is None else self.outside.class_entropies
        return {one.label: one.mean - self.entropy for one in known}
