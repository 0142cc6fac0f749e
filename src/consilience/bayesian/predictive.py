"""How good predictive probabilities are: right, sure, honest about it, and less sure of what they never met.

Of probabilities p_i (classes,) for inputs i = 1..n of classes y_i, the scores are means over the inputs:

    accuracy        1[argmax_c p_ic = y_i]
    log likelihood  log p_i,y_i, p the mean over samples of the weights already
    entropy         -sum_c p_ic log p_ic, in nats
    Brier score     sum_c (p_ic - 1[c = y_i])^2

and the expected calibration error of M bins of equal width, equation (3) of Guo et al. 2017 after Naeini et al. 2015:

    ECE = sum_m |B_m| / n * |accuracy(B_m) - confidence(B_m)|,  B_m = {i : max_c p_ic in ((m - 1) / M, m / M]}.

What lies outside the training distribution should be less certain: the entropy tells it from what lies inside, as well
as the area under the ROC curve says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

from consilience.bayesian.predictive_scores import ClassEntropy, OutsideScores, PredictiveScores, ReliabilityBin
from consilience.checks import Array, Labels, is_count
from consilience.errors import InputError, OptionError

FLOOR = float(np.finfo(np.float64).eps)
"""Least probability of which a logarithm is taken, 2.2e-16, as scikit-learn's ``log_loss`` has it."""

_SUM = 1e-4
"""How far probabilities may be from summing to 1, which allows for half a thousand classes in half precision."""


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
    probabilities
        Of every class for every input (n, classes), summing to 1: what ``predict`` of a Bayesian network returns.
    labels
        Number of the class of every input (n,), from 0.
    outside
        Probabilities (m, classes) for inputs from outside the training distribution.
    outside_labels
        Classes of these (m,), where they have any.
    bins
        Number M of bins of the calibration error.

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
        raise OptionError(f"bins: expected a positive whole number, found {bins!r}")
    p = _probabilities(probabilities, "probabilities")
    y = _labels(labels, p, "labels")
    entropies, predicted = entr(p).sum(axis=1), p.argmax(axis=1)
    own = p[np.arange(len(y)), y]
    reliability = _reliability(p.max(axis=1), predicted == y, bins)
    return PredictiveScores(
        labels=y,
        predicted=predicted,
        entropies=entropies,
        accuracy=float(np.mean(predicted == y)),
        log_likelihood=float(np.mean(np.log(np.maximum(own, FLOOR)))),
        entropy=float(entropies.mean()),
        calibration_error=sum(one.observations * abs(one.accuracy - one.confidence) for one in reliability) / len(y),
        brier=float(np.mean(np.square(p).sum(axis=1) - 2.0 * own + 1.0)),
        reliability=reliability,
        class_entropies=_by_class(entropies, y),
        outside=_outside(outside, outside_labels, entropies, p.shape[1]),
    )


def _outside(given: ArrayLike | None, labels: ArrayLike | None, inside: Array, classes: int) -> OutsideScores | None:
    """Return what is said of inputs outside, `inside` the entropies of those inside."""
    if given is None:
        if labels is not None:
            raise InputError("outside_labels: are classes of what lies outside; give outside=, its probabilities")
        return None
    from sklearn.metrics import roc_auc_score

    p = _probabilities(given, "outside")
    if p.shape[1] != classes:
        raise InputError(f"outside: has {p.shape[1]} classes, expected {classes} as in probabilities")
    entropies = entr(p).sum(axis=1)
    is_outside = np.repeat([0, 1], [len(inside), len(entropies)])
    return OutsideScores(
        entropies=entropies,
        entropy=float(entropies.mean()),
        auroc=float(roc_auc_score(is_outside, np.concatenate([inside, entropies]))),
        class_entropies=() if labels is None else _by_class(entropies, _labels(labels, p, "outside_labels")),
    )


def _reliability(confidence: Array, right: Any, bins: int) -> tuple[ReliabilityBin, ...]:
    """Return the bins that hold inputs; the first takes 0 too."""
    edges = np.arange(bins + 1) / bins
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    sure, correct = (np.bincount(place, weights=values, minlength=bins) for values in (confidence, right))
    return tuple(
        ReliabilityBin(
            float(edges[m]),
            float(edges[m + 1]),
            int(counts[m]),
            float(sure[m] / counts[m]),
            float(correct[m] / counts[m]),
        )
        for m in np.flatnonzero(counts).tolist()
    )


def _by_class(entropies: Array, labels: Labels) -> tuple[ClassEntropy, ...]:
    found = []
    for label in np.unique(labels).tolist():
        own = entropies[labels == label]
        lower, median, upper = (float(one) for one in np.quantile(own, [0.25, 0.5, 0.75]))
        found.append(ClassEntropy(int(label), len(own), float(own.mean()), lower, median, upper))
    return tuple(found)


def _probabilities(given: ArrayLike, what: str) -> Array:
    """Return probabilities (n, classes), everything checked."""
    try:
        p = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: expected numbers (n, classes)") from error
    if p.ndim != 2 or 0 in p.shape:
        raise InputError(f"{what}: expected an array (n, classes), found shape {p.shape}")
    if len(bad := np.flatnonzero(~np.isfinite(p).all(axis=1))):
        raise InputError(f"{what}: row {bad[0]}, counted from 0: has NaN or infinite values")
    if len(bad := np.flatnonzero((p < 0).any(axis=1))):
        raise InputError(
            f"{what}: row {bad[0]}, counted from 0: is negative, {p[bad[0]].min():.3g}; give probabilities, not logits"
        )
    if len(bad := np.flatnonzero(np.abs(p.sum(axis=1) - 1.0) > _SUM)):
        raise InputError(
            f"{what}: row {bad[0]}, counted from 0: sums to {p[bad[0]].sum():.6g}, expected 1; give probabilities of "
            "all classes"
        )
    return p


def _labels(given: ArrayLike, p: Array, what: str) -> Labels:
    """Return the number of every row's class, everything checked."""
    try:
        numbers = np.asarray(given)
        found = numbers.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: expected the numbers of classes, from 0") from error
    if found.shape != (len(p),):
        raise InputError(f"{what}: expected one for each of {len(p)} rows, found shape {found.shape}")
    bad = np.flatnonzero(~(np.isfinite(found) & (found >= 0) & (found < p.shape[1]) & (found == np.floor(found))))
    if len(bad):
        raise InputError(
            f"{what}: row {bad[0]}, counted from 0: expected the number of a class, 0 to {p.shape[1] - 1}, found "
            f"{numbers[bad[0]]}"
        )
    return found.astype(np.int64)
