"""Choosing the ridge without a label leaving a site: held-out error curves, a handful of counts that add up.

Every site sets rows aside before it takes sums. When the sums of all sites are fused, it counts the errors that the
ridge solution of each strength makes on these rows. The curves of all sites add up to that of their held-out rows
together, as if one place had held them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from consilience.checks import Array
from consilience.errors import InputError
from consilience.estimators.adapters.heads import column_deviations, scaled_system
from consilience.estimators.class_labels import ClassLabels
from consilience.estimators.heads.sums import FeatureMoments, HeadMoments, TargetMoments
from consilience.estimators.statistics import Statistics

RIDGES = tuple(float(ridge) for ridge in np.geomspace(1e-6, 1e-1, 11))
"""Ridges of each row on the curves: two a decade about the default of 1e-4."""


@dataclass(frozen=True, eq=False)
class ErrorCurve:
    """Errors on held-out rows by strength of the ridge."""

    ridges: tuple[float, ...]  # ridge of each row
    # (len(ridges),), rows that are judged wrongly; of regressions the sum of squared errors, in variances of each
    # target.
    n_errors: Any
    n: int  # rows held out

    @property
    def rates(self) -> Array:
        """Part of the rows that is judged wrongly, or part of the variances that is not explained (len(ridges),)."""
        return self.n_errors / max(self.n, 1)


def error_curve(statistics: Statistics, features: Array, labels: Any, ridges: tuple[float, ...] = RIDGES) -> ErrorCurve:
    """Return the errors of the ridge solutions of all sites' sums on a site's held-out features (n, d).

    Labels are classes (n,), or of regressions real targets (n,) or (n, q).
    """
    is_regression = statistics.classes is None
    moments: HeadMoments = TargetMoments.of(statistics) if is_regression else FeatureMoments.of(statistics)
    classes = statistics.classes or ClassLabels(())
    deviations = column_deviations(moments)
    gram, cross = scaled_system(moments, deviations)
    values, vectors = linalg.eigh(gram)  # once for all strengths
    projected = vectors.T @ cross  # (d, C)
    rows = (np.asarray(features, dtype=np.float64) - moments.mean) / deviations @ vectors  # (n, d)
    if is_regression:
        targets = np.asarray(labels, dtype=np.float64).reshape(len(rows), -1)  # (n, q)
        if targets.shape[1] != len(moments.target_means):
            text = f"has {targets.shape[1]} targets, and the sums {len(moments.target_means)}"
            raise InputError("y", text, code="E-SHAPE")
        variances = np.maximum(moments.target_squares / moments.n, moments.target_rounding)
    # A class that no site's sums have cannot be right.
    names = classes.array()
    known = set(classes.values)
    is_known = None if is_regression else np.array([label in known for label in np.asarray(labels).tolist()])
    n_errors: list[float] = []
    for ridge in ridges:
        penalty = ridge * moments.n + moments.noise_ridge
        scores = rows @ (projected / (np.maximum(values, 0.0) + penalty)[:, None]) + moments.target_means
        if is_known is None:
            n_errors.append(float((((scores - targets) ** 2) / variances).sum()))
        else:
            n_errors.append(int(np.sum((names[scores.argmax(axis=1)] != labels) | ~is_known)))
    return ErrorCurve(ridges, np.array(n_errors, dtype=np.float64 if is_regression else np.int64), len(rows))


def choose_ridge(curves: Iterable[ErrorCurve]) -> float:
    """Return the ridge with the fewest errors on the held-out rows of all sites; of equal ones the largest.

    Parameters
    ----------
    curves : iterable of ErrorCurve
        What ``head.error_curve(fusion)`` gave at every site.

    Raises
    ------
    InputError
        For no curves, and curves over other ridges.
    """
    curves = list(curves)
    if not curves or any(curve.ridges != curves[0].ridges for curve in curves):
        raise InputError("curves", "expected one for each site, over the same ridges", code="E-SHAPE")
    total = np.sum([curve.n_errors for curve in curves], axis=0)
    return max(ridge for ridge, errors in zip(curves[0].ridges, total, strict=True) if errors == total.min())
