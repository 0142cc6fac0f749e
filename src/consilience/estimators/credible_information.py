"""What sums of a regression count for where sites are not trusted: in no direction more than those of the usual site.

The coefficients of all sites are the average of the sites' own, theta_j, by their information: with the sums of
products A_j of [1, x] they are (sum_j A_j)^-1 sum_j A_j theta_j. So rows are not what bounds a site: inputs thirty
times as large tell nine hundred times as much, and one row of leverage 1e4 all there is to know of its direction. What
the usual site tells is R, of equal rows: the median of A_j over the sites, entry by entry, in coordinates in which it
is nearly the identity, to which four steps lead. Each site has eigenvalues lambda of A_j relative to R, with directions
v. Where one of them is greater than honest sites come by chance,

    lambda > 2 (1 + sqrt(P / n))^2        (P coefficients, n rows: twice the edge of Marchenko and Pastur, 1967),

it is cut to 1: the site counts as the usual one there. That is what as many rows [1, x] T say, with the site's own
coefficients and its own residual variance: T = R^-1/2 V diag(min(1, lambda^-1/2)) V^T R^1/2. Sites of which nothing is
beyond stay as they are, to the bit.

Of a column that half of the sites or fewer have (a rare category, say) the usual site tells nothing: its holders are
compared with each other, so that of one or two holders nothing tells which is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, symmetric_part
from consilience.estimators.statistics import ROWS, Statistics
from consilience.families.centred_moments import CentredMoments

CREDIBLE_RATIO = 2.0
"""Eigenvalue, in the largest that chance gives, beyond which a direction is cut. Of 600 sites, ten a round, whose eight
columns have 200 rows and one scale, none is beyond 1.5; where the logarithms of scales differ by 0.2 between sites,
26 % are beyond 1.5, 5 % beyond 2 and 0.2 % beyond 3. What a site may count for grows with it."""

N_STEPS, LEAST = 4, 1e-2
"""Steps to the usual information, and the least eigenvalue of a step: columns that depend on each other up to 1e-6 of
their variance are resolved after the third."""

NOT_THERE = 1e-12
"""Sum of squares of a column, in the usual one, below which a site does not have it."""

LEAST_PIVOT = 1e-10
"""Eigenvalue of the correlations of columns, in the largest, below which they depend on each other: rounding."""


@dataclass(frozen=True, eq=False)
class _Products:
    """Sums of products of the rows [1, x - c] of a site, and what they give."""

    information: Array  # A (1 + d, 1 + d)
    coefficients: Array  # theta (1 + d, q), the first of x = c
    residual: Array  # (q, q), sums of products of what is left of the targets

    @classmethod
    def of(cls, record: CentredMoments, centre: Array) -> _Products:
        """Return the products about a centre c (d,) of the columns."""
        d, weight = len(centre), float(record.weight)
        offset = record.mean[:d] - centre
        information = np.empty((1 + d, 1 + d))
        information[0, 0] = weight
        information[0, 1:] = information[1:, 0] = weight * offset
        information[1:, 1:] = record.scatter[:d, :d] + weight * np.outer(offset, offset)
        coefficients = coefficients_about(record, centre)
        residual = record.scatter[d:, d:] - coefficients[1:].T @ record.scatter[:d, d:]
        return cls(information, coefficients, symmetric_part(residual))

    def transformed(self, record: CentredMoments, centre: Array, transform: Array) -> CentredMoments:
        """Return the record of rows [1, x - c] T (1 + d, 1 + d) with these coefficients and residual variances.

        Rows and weights are as many as T leaves of their number.
        """
        information = symmetric_part(transform.T @ self.information @ transform)
        weight = float(information[0, 0])
        factor = weight / float(record.weight)
        cross = information @ self.coefficients  # (1 + d, q)
        mean = np.concatenate([information[0, 1:], cross[0]]) / weight
        products = np.block([[information[1:, 1:], cross[1:]], [cross[1:].T, self.coefficients.T @ cross]])
        products[len(centre) :, len(centre) :] += factor * self.residual
        return CentredMoments(
            record.n * factor,
            record.weight * factor,
            record.log_weight * factor,
            mean + np.concatenate([centre, np.zeros(len(cross[0]))]),
            symmetric_part(products - weight * np.outer(mean, mean)),
        )


def coefficients_about(record: CentredMoments, centre: Array) -> Array:
    """Return the regression of a record (1 + d, q) on d columns: its value at c (d,), and S_xx^-1 S_xy.

    Where columns depend on each other, the slopes are those of least norm in standard deviations.
    """
    d = len(centre)
    scale = np.sqrt(record.variances[:d])
    scale = np.where(scale > 0, scale, 1.0)
    correlations = record.scatter[:d, :d] / np.outer(scale, scale)
    try:
        inverse = np.linalg.pinv(correlations, rcond=LEAST_PIVOT, hermitian=True)
    except np.linalg.LinAlgError:
        return np.full((1 + d, len(record.mean) - d), np.inf)
    slopes = (inverse @ (record.scatter[:d, d:] / scale[:, None])) / scale[:, None]
    return np.concatenate([(record.mean[d:] + (centre - record.mean[:d]) @ slopes)[None], slopes])


def centre_of(sites: Sequence[Statistics]) -> Array:
    """Return the medians (d,) of the sites' means of the columns of a regression."""
    centre: Array = np.median([site.rows.mean[: site.n_columns] for site in sites], axis=0)
    return centre


def has_columns(sites: Sequence[Statistics]) -> NDArray[np.bool_]:
    """Return which columns (J, d) vary at a site: what its coefficients are of."""
    variances = np.stack([site.rows.variances[: site.n_columns] / site.rows.weight for site in sites])
    varies: NDArray[np.bool_] = variances > NOT_THERE * _usual_where(variances, variances > 0)
    return varies


def cut_information(sites: Sequence[Statistics]) -> tuple[list[Statistics], Array]:
    """Return sums of regressions as information bounds them, and the largest eigenvalue (J,) of each that was cut.

    The rows of each are as many as may count. A site of which nothing is cut is the same object, with eigenvalue 1.
    """
    centre = centre_of(sites)
    products = [_Products.of(site.rows, centre) for site in sites]
    rows = np.array([float(site.rows.n) for site in sites])
    whitening = _whitening(np.stack([one.information / n for one, n in zip(products, rows, strict=True)]))
    result, largest = list(sites), np.ones(len(sites))
    for number, (site, one) in enumerate(zip(sites, products, strict=True)):
        relative = whitening @ (one.information / np.median(rows)) @ whitening.T
        values, vectors = np.linalg.eigh(relative)
        is_beyond = values > CREDIBLE_RATIO * (1.0 + np.sqrt(len(values) / rows[number])) ** 2
        if is_beyond.any():
            shrinkage = np.where(is_beyond, values, 1.0) ** -0.5
            transform = whitening.T @ (vectors * shrinkage) @ np.linalg.solve(whitening, vectors).T
            record = one.transformed(site.rows, centre, transform)
            result[number], largest[number] = replace(site, moments={**site.moments, ROWS: record}), values.max()
    return result, largest


def _whitening(information: Array) -> Array:
    """Return W with W R W^T = I for the usual information R, given what each site tells by row (J, P, P)."""
    squares = np.diagonal(information, axis1=1, axis2=2)  # (J, P)
    usual = _usual_where(squares, squares > 0)
    n_holders = np.count_nonzero(squares > NOT_THERE * usual, axis=0)
    whitening = np.diag(usual**-0.5)
    common = np.flatnonzero(2 * n_holders > len(information))
    for _ in range(N_STEPS):
        of_common = whitening[np.ix_(common, common)]
        relative = of_common @ information[:, common[:, None], common] @ of_common.T
        values, vectors = np.linalg.eigh(np.median(relative, axis=0))
        step = (vectors * np.maximum(values, LEAST) ** -0.5) @ vectors.T
        whitening[np.ix_(common, common)] = step @ of_common
    return whitening


def _usual_where(values: Array, is_there: NDArray[np.bool_]) -> Array:
    """Return the median of each column (P,) of values (J, P) over those that are there; 1 of none."""
    medians = np.nanmedian(np.where(is_there.any(axis=0), np.where(is_there, values, np.nan), 1.0), axis=0)
    usual: Array = medians
    return usual
