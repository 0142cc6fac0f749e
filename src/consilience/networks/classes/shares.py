"""Shares of sites in every class, and what else counts of classes say of sites under label shift.

With n_jc observations of class c at site j, n_j at site j and N at all sites:

    w_jc = n_jc / sum_i n_ic             share of site j in class c: p(j | c);  n_j / N for a class that nobody holds
    pi_c = sum_j n_jc / N                pooled class distribution

Label shift: the sites' inputs of a class have one distribution, and only the frequencies of classes differ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array
from consilience.errors import InputError

COVERAGE_COUNT = 30.0
"""Observations of a class at which a site covers half of it. Chosen on 26 settings of 14 x 14 and 16 x 16 images, where
the site of best coverage is 0.7 points below the best site in the mean; not judged on other data."""


MAX_SKEW_OF_ALIKE = 0.2
"""Skew up to which sites have their classes alike. Over 26 fusions those of one distribution had 0.02, the mildest of
those that differed 0.38. Where counts are estimated on matched images the former had 0.03 to 0.06, the latter 0.22 and
more; at 0.22 the fused network was 4 points below the better site."""


def as_class_counts(counts: ArrayLike, name: str = "class_counts") -> Array:
    """Return counts of classes as an array (J, C).

    Raises
    ------
    InputError
        Unless they are rows of finite numbers that are not negative, one for each site, with an observation in all.
    """
    try:
        rows = np.asarray(counts, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(name, "expected a row of numbers for each site, all of one length", code="E-SHAPE") from None
    if rows.ndim != 2 or rows.size == 0:
        raise InputError(name, f"expected an array of shape (sites, classes), found {rows.shape}", code="E-SHAPE")
    if not np.isfinite(rows).all() or (rows < 0).any():
        text = "expected finite numbers that are not negative"
        raise InputError(name, text, "count the labels of each class", "E-NUMBER")
    if not rows.any():
        raise InputError(name, "no site holds an observation of any class", "count the labels of each class")
    return rows


def class_shares(counts: ArrayLike, observations: ArrayLike | None = None) -> Array:
    """Return the share of every site in every class, w_jc.

    Parameters
    ----------
    counts : array_like of shape (J, C)
        Observations of every class at every site.
    observations : array_like of shape (J,), optional
        Observations of every site, its share in classes that nobody holds. Default: the sums of its counts.

    Returns
    -------
    array of shape (J, C)
        Not negative; the shares of each class sum to 1.

    Raises
    ------
    InputError
        For what are no counts, or observations that are not one number for each site.

    Examples
    --------
    >>> class_shares([[30, 0, 0], [10, 5, 0]])
    array([[0.75      , 0.        , 0.66666667],
           [0.25      , 1.        , 0.33333333]])
    """
    rows = as_class_counts(counts)
    site_sizes = rows.sum(axis=1) if observations is None else np.asarray(observations, dtype=np.float64)  # (J,)
    if site_sizes.shape != (len(rows),) or not np.isfinite(site_sizes).all() or (site_sizes < 0).any():
        text = f"expected {len(rows)} numbers that are not negative, one for each site"
        raise InputError("observations", text, code="E-NUMBER")
    if not site_sizes.any():
        raise InputError("observations", "no site has any")
    totals = rows.sum(axis=0)  # (C,)
    unseen = totals == 0
    return np.where(unseen, (site_sizes / site_sizes.sum())[:, None], rows / np.where(unseen, 1.0, totals))


def unseen_classes(counts: ArrayLike) -> list[int]:
    """Return the numbers of the classes of which no site has an observation."""
    return [int(number) for number in np.flatnonzero(as_class_counts(counts).sum(axis=0) == 0)]


def classes_of_one_site(counts: ArrayLike) -> list[int]:
    """Return the numbers of the classes that exactly one site holds."""
    return [int(number) for number in np.flatnonzero((as_class_counts(counts) > 0).sum(axis=0) == 1)]


def pooled_class_distribution(counts: ArrayLike) -> Array:
    """Return the class distribution of all sites together, pi_c (C,); it sums to 1."""
    totals = as_class_counts(counts).sum(axis=0)
    return totals / totals.sum()


def class_coverage(counts: ArrayLike) -> Array:
    """Return how much of the pooled class distribution each site covers: sum_c pi_c n_jc / (n_jc + 30), (J,).

    A site that has many observations of all classes is near 1; the site of best coverage is the one to keep where no
    fused network can be compared.
    """
    rows = as_class_counts(counts)
    return (rows / (rows + COVERAGE_COUNT)) @ pooled_class_distribution(rows)


def class_skew(counts: ArrayLike) -> float:
    """Return how much the sites' class distributions differ: sum_j n_j / N * 1/2 sum_c |n_jc / n_j - pi_c|.

    The mean total variation distance to the pooled distribution: 0 where all sites have the same frequencies of
    classes, near 1 where many sites hold a class each. The frequencies are as counted, without smoothing.
    """
    rows = as_class_counts(counts)
    # n_j / N * |n_jc / n_j - pi_c| = |n_jc - n_j pi_c| / N, which a site without any observation leaves at 0.
    expected = np.outer(rows.sum(axis=1), pooled_class_distribution(rows))
    return float(0.5 * np.abs(rows - expected).sum() / rows.sum())
