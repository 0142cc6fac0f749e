"""The criterion by which candidates are compared: a loss on held-out inputs that nobody labelled.

On inputs x drawn from the moments of the sites' classes, with their class y,

    loss(x) = 1[arg max p(. | x) != y],

the error; on other inputs, with q the answer of the sites' ensemble,

    loss(x) = 1[arg max p(. | x) != arg max q(. | x)],

the disagreement with all sites together. Networks that do not classify are compared by (f(x) - m(x))^2, with m the
sites' mean answer, over its variance. Language models are compared in nats: on real texts by -log p(next token | x), on
synthetic ones by KL(q || p), since the arg max among many tokens says little. Of several outputs the losses are those
of each by itself, and the mean of them counts.

The arg max ranks candidates better than cross-entropy and divergence do, which break ties here: over 26 fusions the
rank correlation with the true accuracy was 0.95 for errors (0.77 for cross-entropy), 0.83 for disagreement (0.68 for
divergence).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from consilience.checks import Array, Labels
from consilience.networks.classes.logits import SMALLEST_PROBABILITY, as_probabilities

LARGEST_LOSS = float(np.finfo(np.float32).max) ** 0.5
"""A squared gap counts as at most this, also where an answer is infinite: its square, which sites sum, is finite."""


class Criterion(ABC):
    """A loss by input, and one that breaks ties."""

    name: ClassVar[str]
    is_labelled: ClassVar[bool] = False
    number_format: ClassVar[str] = "{:.1%}"
    """How messages write a mean loss."""

    @abstractmethod
    def losses(self, outputs: Array) -> Array:
        """Return the loss (n,) of each held-out input, for outputs (n, k)."""

    def ties(self, outputs: Array) -> Array:
        """Return the loss (n,) that breaks ties: the same for real numbers, which are never tied."""
        return self.losses(outputs)


@dataclass(frozen=True, eq=False)
class ErrorOnLabels(Criterion):
    """The error on inputs that were drawn with a class, labels (n,)."""

    name: ClassVar[str] = "error on inputs drawn from the sites' class moments"
    is_labelled: ClassVar[bool] = True
    labels: Labels

    def losses(self, outputs: Array) -> Array:
        """Return 1 where the class is missed."""
        return (outputs.argmax(axis=1) != self.labels).astype(np.float64)

    def ties(self, outputs: Array) -> Array:
        """Return the cross-entropy with the class."""
        return _surprisal(outputs, self.labels)


@dataclass(frozen=True, eq=False)
class Disagreement(Criterion):
    """The disagreement with an ensemble whose probabilities are `teacher` (n, C)."""

    name: ClassVar[str] = "disagreement with the sites' ensemble"
    teacher: Array

    def losses(self, outputs: Array) -> Array:
        """Return 1 where another class is answered."""
        return (outputs.argmax(axis=1) != self.teacher.argmax(axis=1)).astype(np.float64)

    def ties(self, outputs: Array) -> Array:
        """Return KL(teacher || candidate)."""
        teacher = np.maximum(self.teacher, SMALLEST_PROBABILITY)
        answered = np.maximum(as_probabilities(outputs), SMALLEST_PROBABILITY)
        divergence: Array = np.sum(self.teacher * (np.log(teacher) - np.log(answered)), axis=1)
        return divergence


@dataclass(frozen=True, eq=False)
class NextToken(Criterion):
    """The loss of language models on real texts: -log of the probability of the token behind, tokens (n,)."""

    name: ClassVar[str] = "next-token loss in nats on the given texts"
    number_format: ClassVar[str] = "{:.3f}"
    tokens: Labels

    def losses(self, outputs: Array) -> Array:
        """Return the surprisal of every token."""
        return _surprisal(outputs, self.tokens)


@dataclass(frozen=True, eq=False)
class Divergence(Disagreement):
    """The divergence from an ensemble of language models, whose probabilities of tokens are `teacher` (n, V)."""

    name: ClassVar[str] = "divergence in nats from the sites' ensemble"
    number_format: ClassVar[str] = "{:.3g}"

    def losses(self, outputs: Array) -> Array:
        """Return KL(teacher || candidate)."""
        return self.ties(outputs)


@dataclass(frozen=True, eq=False)
class MeanOfHeads(Criterion):
    """The mean over a network's outputs of what each is compared by, in its columns."""

    name: ClassVar[str] = "mean over the outputs of the disagreement with, or the squared distance from, the ensemble"
    number_format: ClassVar[str] = "{:.3g}"
    heads: tuple[tuple[slice, Criterion], ...]

    def losses(self, outputs: Array) -> Array:
        """Return the mean loss of the outputs."""
        mean: Array = np.mean([of_head.losses(outputs[:, columns]) for columns, of_head in self.heads], axis=0)
        return mean

    def ties(self, outputs: Array) -> Array:
        """Return the mean of the losses that break ties."""
        mean: Array = np.mean([of_head.ties(outputs[:, columns]) for columns, of_head in self.heads], axis=0)
        return mean


@dataclass(frozen=True, eq=False)
class SquaredGap(Criterion):
    """The squared distance from the sites' mean answer `teacher` (n, k), over that answer's variance."""

    name: ClassVar[str] = "squared distance from the sites' mean answer, over its variance"
    number_format: ClassVar[str] = "{:.3g}"
    teacher: Array

    def losses(self, outputs: Array) -> Array:
        """Return squared distances, in units of the variance of the teacher's answers."""
        with np.errstate(over="ignore"):
            gaps = np.square(outputs - self.teacher).sum(axis=1) / (self._scale if self._scale > 0 else 1.0)
        finite: Array = np.nan_to_num(gaps, nan=LARGEST_LOSS, posinf=LARGEST_LOSS)
        return np.minimum(finite, LARGEST_LOSS)

    @property
    def _scale(self) -> float:
        """The variance of the teacher's answers."""
        return float(np.sum(self.teacher.var(axis=0)))


@dataclass(frozen=True, eq=False)
class SquaredError(SquaredGap):
    """The squared error of numbers, whose targets (n, k) are the `teacher`, over a scale."""

    name: ClassVar[str] = "squared error"
    scale: float = 1.0

    @property
    def _scale(self) -> float:
        return self.scale


def _surprisal(outputs: Array, labels: Labels) -> Array:
    """Return -log of the probability (n,) that outputs (n, C) give to labels (n,)."""
    of_labels = as_probabilities(outputs)[np.arange(len(labels)), labels]
    surprisal: Array = -np.log(np.maximum(of_labels, SMALLEST_PROBABILITY))
    return surprisal
