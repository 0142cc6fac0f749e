"""Predictive scores: accuracy, log likelihood, entropy, Brier score, calibration, out-of-distribution detection.

For probabilities p_i (C,) of inputs i = 1..n with true classes y_i, the scores are means over the inputs:

    accuracy        1[argmax_c p_ic = y_i]
    log likelihood  log p_i,y_i, p being the mean over samples of the weights already
    entropy         -sum_c p_ic log p_ic, in nats
    Brier score     sum_c (p_ic - 1[c = y_i])^2

and the expected calibration error of M bins of equal width, equation (3) of Guo et al. 2017 after Naeini et al. 2015:

    ECE = sum_m |B_m| / n * |accuracy(B_m) - confidence(B_m)|,  B_m = {i : max_c p_ic in ((m - 1) / M, m / M]}.

Predictions outside the training distribution should be less certain. The area under the ROC curve says how well the
predictive entropy separates inputs outside from inputs inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

from consilience.checks import Array, Labels, is_count
from consilience.drawing.display import Displayed
from consilience.drawing.words import format_count
from consilience.errors import InputError, OptionError

MIN_PROBABILITY = float(np.finfo(np.float64).eps)
"""Floor of probabilities before the logarithm: 2.2e-16, as in scikit-learn's ``log_loss``."""

_SUM_TOLERANCE = 1e-4
"""Tolerance of probabilities' sum to 1: it allows for the rounding of half a thousand classes in half precision."""


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


def predictive_scores(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    outside: ArrayLike | None = None,
    outside_labels: ArrayLike | None = None,
    bins: int = 15,
) -> PredictiveScores:
    """Score predictive probabilities: accuracy, log likelihood, entropy, calibration, and what lies outside.

    Parameters
    ----------
    probabilities : array_like of shape (n, n_classes)
        Probability of each class for each input, rows summing to 1: what ``predict`` of a Bayesian network returns.
    labels : array_like of int, shape (n,)
        Number of the class of each input, from 0.
    outside : array_like of shape (m, n_classes), optional
        Probabilities for inputs from outside the training distribution.
    outside_labels : array_like of int, shape (m,), optional
        Classes of these inputs, where they have any.
    bins : int
        Number M of bins of the calibration error. Default: 15, as in Guo et al. 2017.

    Returns
    -------
    PredictiveScores

    Raises
    ------
    InputError
        For probabilities that are not finite, are negative or do not sum to 1, naming the row; for labels of another
        number or that are no class.
    OptionError
        For a number of bins that is none.

    References
    ----------
    Naeini, Cooper, Hauskrecht, "Obtaining well calibrated probabilities using Bayesian binning", AAAI 2015.
    Guo, Pleiss, Sun, Weinberger, "On calibration of modern neural networks", ICML 2017, equation (3).

    Examples
    --------
    >>> scores = predictive_scores([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1], outside=[[0.5, 0.5]])
    >>> round(scores.accuracy, 3), round(scores.log_likelihood, 3), scores.outside.auroc
    (0.667, -0.499, 1.0)
    """
    if not is_count(bins):
        raise OptionError("bins", f"expected a positive whole number, found {bins!r}")
    p = _checked_probabilities(probabilities, "probabilities")
    y = _class_numbers(labels, p, "labels")
    entropies, predicted = entr(p).sum(axis=1), p.argmax(axis=1)  # (n,) each
    p_true = p[np.arange(len(y)), y]  # (n,)
    reliability = _reliability(p.max(axis=1), predicted == y, bins)
    return PredictiveScores(
        labels=y,
        predicted=predicted,
        entropies=entropies,
        accuracy=float(np.mean(predicted == y)),
        log_likelihood=float(np.mean(np.log(np.maximum(p_true, MIN_PROBABILITY)))),
        entropy=float(entropies.mean()),
        calibration_error=sum(b.observations * abs(b.accuracy - b.confidence) for b in reliability) / len(y),
        # sum_c (p_c - 1[c = y])^2 = sum_c p_c^2 - 2 p_y + 1
        brier=float(np.mean(np.square(p).sum(axis=1) - 2.0 * p_true + 1.0)),
        reliability=reliability,
        class_entropies=_class_entropies(entropies, y),
        outside=_outside_scores(outside, outside_labels, entropies, p.shape[1]),
    )


def _outside_scores(
    probabilities: ArrayLike | None, labels: ArrayLike | None, inside: Array, classes: int
) -> OutsideScores | None:
    """Return scores on inputs outside the training distribution; `inside` has the entropies (n,) of those inside."""
    if probabilities is None:
        if labels is not None:
            raise InputError("outside_labels", "are classes of what lies outside", "give `outside=`, its probabilities")
        return None
    from sklearn.metrics import roc_auc_score

    p = _checked_probabilities(probabilities, "outside")
    if p.shape[1] != classes:
        raise InputError("outside", f"has {p.shape[1]} classes, expected {classes} as in probabilities", code="E-SHAPE")
    entropies = entr(p).sum(axis=1)
    is_outside = np.repeat([0, 1], [len(inside), len(entropies)])
    return OutsideScores(
        entropies=entropies,
        entropy=float(entropies.mean()),
        auroc=float(roc_auc_score(is_outside, np.concatenate([inside, entropies]))),
        class_entropies=()
        if labels is None
        else _class_entropies(entropies, _class_numbers(labels, p, "outside_labels")),
    )


def _reliability(confidence: Array, is_right: Any, bins: int) -> tuple[ReliabilityBin, ...]:
    """Return the bins that have inputs, given the largest probability of each (n,); the first bin takes 0 too."""
    edges = np.arange(bins + 1) / bins
    # side="left" makes the bins (low, high], as in Guo et al.
    bin_of_input = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)  # (n,)
    counts = np.bincount(bin_of_input, minlength=bins)
    summed_confidence, n_right = (
        np.bincount(bin_of_input, weights=values, minlength=bins) for values in (confidence, is_right)
    )
    return tuple(
        ReliabilityBin(
            float(edges[m]),
            float(edges[m + 1]),
            int(counts[m]),
            float(summed_confidence[m] / counts[m]),
            float(n_right[m] / counts[m]),
        )
        for m in np.flatnonzero(counts).tolist()
    )


def _class_entropies(entropies: Array, labels: Labels) -> tuple[ClassEntropy, ...]:
    """Return mean and quartiles of the entropies (n,) of each class that occurs."""
    classes = []
    for label in np.unique(labels).tolist():
        of_class = entropies[labels == label]
        lower, median, upper = (float(quartile) for quartile in np.quantile(of_class, [0.25, 0.5, 0.75]))
        classes.append(ClassEntropy(int(label), len(of_class), float(of_class.mean()), lower, median, upper))
    return tuple(classes)


def _checked_probabilities(probabilities: ArrayLike, what: str) -> Array:
    """Return probabilities (n, n_classes), or raise naming the first row that has none."""
    try:
        p = np.asarray(probabilities, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(what, "expected numbers (n, classes)", code="E-TYPE") from error
    if p.ndim != 2 or 0 in p.shape:
        raise InputError(what, f"expected an array (n, classes), found shape {p.shape}", code="E-SHAPE")
    if len(bad := np.flatnonzero(~np.isfinite(p).all(axis=1))):
        raise InputError(what, f"row {bad[0]}, counted from 0: has NaN or infinite values", code="E-NUMBER")
    if len(bad := np.flatnonzero((p < 0).any(axis=1))):
        text = f"row {bad[0]}, counted from 0: is negative, {p[bad[0]].min():.3g}"
        raise InputError(what, text, "give probabilities, not logits", "E-NUMBER")
    if len(bad := np.flatnonzero(np.abs(p.sum(axis=1) - 1.0) > _SUM_TOLERANCE)):
        text = f"row {bad[0]}, counted from 0: sums to {p[bad[0]].sum():.6g}, expected 1"
        raise InputError(what, text, "give probabilities of all classes", "E-NUMBER")
    return p


def _class_numbers(labels: ArrayLike, p: Array, what: str) -> Labels:
    """Return the number of every row's class (n,), or raise naming the first row that has none."""
    try:
        numbers = np.asarray(labels)
        as_float = numbers.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(what, "expected the numbers of classes, from 0", code="E-TYPE") from error
    if as_float.shape != (len(p),):
        raise InputError(what, f"expected one for each of {len(p)} rows, found shape {as_float.shape}", code="E-SHAPE")
    is_class = np.isfinite(as_float) & (as_float >= 0) & (as_float < p.shape[1]) & (as_float == np.floor(as_float))
    bad = np.flatnonzero(~is_class)
    if len(bad):
        text = (
            f"row {bad[0]}, counted from 0: expected the number of a class, 0 to {p.shape[1] - 1}, found "
            f"{numbers[bad[0]]}"
        )
        raise InputError(what, text, code="E-NUMBER")
    return as_float.astype(np.int64)
