"""Sums of a site's features by class: what its message is made of, and the linear systems that all sites' sums give.

With phi (n, d) the features and y the classes: n_c rows of each class, B_c = sum of the rows of class c, and the record
of all rows, (n, m, S) with S = sum (phi - m)(phi - m)^T. The scatter within classes follows,

    W = S - sum_c n_c (m_c - m)(m_c - m)^T,      m_c = B_c / n_c,

so that one message serves ridge regression on indicators of classes, discriminant analysis and Bayesian regression.
Sums of squares and products are d (d + 1) / 2 numbers however many classes there are.

Regression heads have real targets in the place of indicators of classes, and the moments of features and targets
together, as any regression has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels, symmetric_part
from consilience.estimators.statistics import NOISE, ROWS, SUMS, TOTAL, Statistics
from consilience.families.centred_moments import CentredMoments

_EPS = float(np.finfo(np.float64).eps)

_BLOCK_ROWS = 1_024
"""Rows that are summed by class at a time. Chosen by hand: they and their indicators stay in a processor's cache."""


def sums_of_features(features: Array, numbers: Labels, n_classes: int) -> tuple[Array, Array, CentredMoments]:
    """Return counts (C,) and sums (C, d) of features (n, d) by class, and the record of all rows.

    Features in single precision are summed in double precision.
    """
    counts = np.bincount(numbers, minlength=n_classes).astype(np.float64)
    sums = np.zeros((n_classes, features.shape[1]))
    for start in range(0, len(features), _BLOCK_ROWS):
        of_block = numbers[start : start + _BLOCK_ROWS]
        indicators = np.zeros((n_classes, len(of_block)))
        indicators[of_block, np.arange(len(of_block))] = 1.0
        sums += indicators @ features[start : start + _BLOCK_ROWS].astype(np.float64, copy=False)
    return counts, sums, CentredMoments.of_rows(features)


@dataclass(frozen=True, eq=False)
class TargetMoments:
    """Moments of features and real targets, as regression heads are solved from them."""

    n: float  # number of rows
    mean: Array  # (d,)
    target_means: Array  # (q,)
    scatter: Array  # (d, d), products of centred features
    cross: Array  # (d, q), products of centred features and centred targets
    target_squares: Array  # (q,), sums of squares of centred targets
    noise_variance: float = 0.0
    noise_ridge: float = 0.0

    @classmethod
    def of(cls, statistics: Statistics) -> TargetMoments:
        """Return the moments in statistics of a regression head."""
        record, d = statistics.rows, statistics.n_columns
        mean, scatter = record.mean, record.scatter
        squares = np.maximum(np.diagonal(scatter)[d:], 0.0)
        return cls(float(record.n), mean[:d], mean[d:], scatter[:d, :d].copy(), scatter[:d, d:].copy(), squares)

    @property
    def target_rounding(self) -> Array:
        """Variance of each target (q,) that is rounding of its mean; 1 for one that is zero in all rows."""
        is_zero = (self.target_squares == 0) & (self.target_means == 0)
        return np.where(is_zero, 1.0, _EPS * self.target_means**2)


@dataclass(frozen=True, eq=False)
class FeatureMoments:
    """Moments of features by class, as heads are solved from them."""

    n_by_class: Array  # (C,), rows of each class
    means: Array  # (C, d), mean features of each class; that of all rows for a class without rows
    mean: Array  # (d,), of all rows
    scatter: Array  # (d, d), of all rows about their mean
    noise_variance: float = 0.0  # variance of what was added to each sum for privacy, over all sites; 0 without

    @classmethod
    def of(cls, statistics: Statistics) -> FeatureMoments:
        """Return the moments in statistics of a head."""
        total = statistics.moments[TOTAL]
        counts, sums = statistics.counts[ROWS], statistics.counts[SUMS]
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.where(counts[:, None] > 0, sums / counts[:, None], total.mean)
        noise = statistics.counts.get(NOISE)
        return cls(counts, means, total.mean, total.scatter, 0.0 if noise is None else float(noise))

    @property
    def n(self) -> float:
        """Number of rows."""
        return float(self.n_by_class.sum())

    @property
    def between(self) -> Array:
        """Weighted deviations of class means from the mean (C, d): sqrt(n_c) (m_c - m)."""
        return np.sqrt(self.n_by_class)[:, None] * (self.means - self.mean)

    @property
    def within(self) -> Array:
        """W (d, d), the scatter within classes."""
        return symmetric_part(self.scatter - self.between.T @ self.between)

    @property
    def cross(self) -> Array:
        """Products of centred features and indicators of classes (d, C): n_c (m_c - m)."""
        return (self.n_by_class[:, None] * (self.means - self.mean)).T

    @property
    def shares(self) -> Array:
        """Part of the rows that each class has (C,)."""
        return self.n_by_class / self.n

    @property
    def target_rounding(self) -> float:
        """Variance of an indicator that is rounding."""
        return _EPS

    @property
    def target_means(self) -> Array:
        """Means of the indicators of classes (C,): their shares."""
        return self.shares

    @property
    def target_squares(self) -> Array:
        """Sums of squares of the centred indicators of classes (C,)."""
        return self.n * self.shares * (1.0 - self.shares)

    @property
    def noise_ridge(self) -> float:
        """Ridge of the size of the noise, 2 s sqrt(d / 2): the norm of a symmetric matrix of that noise."""
        return 2.0 * float(np.sqrt(self.noise_variance * len(self.mean) / 2.0))

    def squared_error(self, coefficients: Array, intercepts: Array) -> float:
        """Return the mean squared error of indicators of classes, summed over classes, of rows W (C, d) and b (C,)."""
        shares = self.shares
        offset = shares - (coefficients @ self.mean + intercepts)  # (C,) mean residual
        fitted = np.einsum("cd,de,ce->c", coefficients, self.scatter, coefficients)
        agreement = np.einsum("cd,dc->c", coefficients, self.cross)
        centred = self.n * shares * (1.0 - shares) - 2.0 * agreement + fitted  # (C,)
        return float((centred / self.n + offset**2).sum())


HeadMoments = FeatureMoments | TargetMoments
"""What a linear head is solved from: moments of d features, and their products with q targets."""


def clipped(matrix: Array) -> Array:
    """Return the positive semidefinite matrix nearest to a symmetric one, as of scatters with noise."""
    values, vectors = np.linalg.eigh(symmetric_part(matrix))
    return symmetric_part((vectors * np.maximum(values, 0.0)) @ vectors.T)
