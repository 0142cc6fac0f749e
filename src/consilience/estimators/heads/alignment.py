"""Class-aware alignment of sites whose features are shifted: other scanners, other cameras, other styles.

Aligning whole sites mistakes other shares of classes for another domain. So the map of site j is made of what shares
of classes do not change: means m_jc and the scatter within classes W_j. With n_jc rows of class c, df_j = n_j - C_j
degrees of freedom, Wpool the covariance within classes of all sites, and d features,

    W_j <- (scatter_j + 2 d Wpool) / (df_j + 2 d),      Wbar = Bures-Wasserstein barycenter of W_j by n_j,
    T_j = W_j^-1/2 (W_j^1/2 Wbar W_j^1/2)^1/2 W_j^-1/2,

and means follow a two-way layout T_j m_jc = mu_c + b_j, weighted by n_jc, with a ridge of one row on b_j and
sum_j n_j b_j = 0. The features of site j become T_j x - b_j. Sums are mapped, no row is. Prediction needs to know the
site: each has its own head, that of all sites' aligned sums after the site's map. The alignment is derived from the
whole-site one of SLOT-Align (ICML 2026); the constants 2 d and one row were set by hand, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg

from consilience.checks import Array
from consilience.core.inputs import name_inputs
from consilience.core.min_count import MIN_COUNT
from consilience.errors import InputError
from consilience.estimators.average import average
from consilience.estimators.heads.model import FittedHead, LinearHead
from consilience.estimators.heads.sums import FeatureMoments
from consilience.estimators.inputs import describe_inputs
from consilience.estimators.rebuild import rebuild
from consilience.estimators.statistics import NOISE, ROWS, SUMS, TOTAL, Statistics
from consilience.families.wasserstein import bures_barycenter, matrix_square_root

PRIOR_ROWS_PER_FEATURE = 2.0
"""Rows for each feature that the pooled covariance counts as in each site's. Set by hand, not tuned."""
SHIFT_RIDGE = 1.0
"""Rows that draw the shift of a site to zero. Set by hand, not tuned."""


@dataclass(frozen=True, eq=False)
class AlignedHeads:
    """Heads of sites whose features were aligned: one for each site, as each has its own map."""

    statistics: Statistics  # sums of all sites after alignment
    maps: Mapping[str, tuple[Array, Array]]  # (d, d), t_j and -b_j of every site
    unshifted: tuple[str, ...]  # sites that share no class with the others, whose means were left where they are

    def model(self, site: str) -> FittedHead:
        """Return the head of a site, which takes the site's own features.

        Raises
        ------
        InputError
            For a site that was not aligned.
        """
        if site not in self.maps:
            raise InputError(site, f"was not aligned; there are {', '.join(list(self.maps)[:8])}", code="E-NEEDED")
        matrix, shift = self.maps[site]
        head: LinearHead = rebuild(self.statistics)
        return head.set_rows(head.coef_ @ matrix, head.intercept_ + head.coef_ @ shift)


def align(models: Any, *, min_count: float = MIN_COUNT) -> AlignedHeads:
    """Return heads of sites whose features are shifted, aligned by what shares of classes do not change.

    Without a shift it loses little, with one it gains; where sites share few classes it gains least. Judge it on rows
    of every class: part of a gain on a site's own rows is the site's shares of classes.

    Parameters
    ----------
    models : mapping of str to Head, Statistics or path, or a sequence
        Ridge or LDA heads of the sites.
    min_count : float, optional
        Classes of fewer rows are left out. Default: 5.

    Raises
    ------
    InputError
        For what is no such head, heads of other features, fewer than two sites, and heads with noise.

    Examples
    --------
    >>> import consilience as cs
    >>> rng = np.random.default_rng(0)
    >>> def rows(shift):
    ...     y = np.repeat([0, 1], 100)
    ...     return np.stack([y + 0.1 * rng.normal(size=200) + shift, rng.normal(size=200)], axis=1), y
    >>> sites = {"lund": rows(0.0), "oslo": rows(5.0)}
    >>> aligned = align({name: cs.learners.Head("lda").fit(X, y) for name, (X, y) in sites.items()})
    >>> [bool((aligned.model(name).predict(X) == y).mean() > 0.98) for name, (X, y) in sites.items()]
    [True, True]
    """
    sites = _sums_without_noise(models, min_count)
    classes = average(list(sites.values())).classes
    n_classes = len(classes or ())
    moments = {name: FeatureMoments.of(site) for name, site in sites.items()}
    matrices = _covariance_maps(moments)
    numbers = {
        name: site.classes.positions_in(classes) for name, site in sites.items() if site.classes and classes is not None
    }
    shifts, unshifted = _shifts(moments, matrices, numbers, n_classes)
    maps = {name: (matrices[name], -shifts[name]) for name in sites}
    mapped = [_mapped(site, *maps[name]) for name, site in sites.items()]
    return AlignedHeads(average(mapped), maps, unshifted)


def _sums_without_noise(models: Any, min_count: float) -> dict[str, Statistics]:
    """Return the sums of ridge or LDA heads by site."""
    gathered = describe_inputs(name_inputs(models), min_count, {})
    described, problems = gathered.described, gathered.problems
    if problems:
        raise InputError(problems)
    sites = {site.name: site.value for site in described}
    if any(TOTAL not in site.moments or site.parameters.get("features") is None for site in sites.values()):
        text = "are no ridge or lda heads"
        raise InputError("models", text, "fit `cs.learners.Head('lda', features=...)` at the sites", "E-TYPE")
    if noisy := [name for name, site in sites.items() if NOISE in site.counts]:
        text = "has noise, which the map of a site would magnify"
        raise InputError(noisy[0], text, "fuse the heads without alignment")
    return sites


def _covariance_maps(moments: Mapping[str, FeatureMoments]) -> dict[str, Array]:
    """Return T_j of every site (d, d)."""
    within = {name: one.within for name, one in moments.items()}
    freedom = {name: max(one.n - np.count_nonzero(one.n_by_class), 0.0) for name, one in moments.items()}
    total = sum(freedom.values())
    d = len(next(iter(moments.values())).mean)
    if total <= 0:
        raise InputError("models", "have one row of each class, of which nothing varies")
    pooled = np.asarray(sum(within.values())) / total
    # Features that vary nowhere get a little of the mean variance, so that roots exist.
    pooled = pooled + 1e-6 * max(float(np.trace(pooled)) / d, np.finfo(np.float64).tiny) * np.eye(d)
    prior = PRIOR_ROWS_PER_FEATURE * d
    covariances = np.stack([(within[name] + prior * pooled) / (freedom[name] + prior) for name in moments])
    weights = np.array([one.n for one in moments.values()])
    middle = bures_barycenter(covariances, weights / weights.sum())
    maps = {}
    for name, covariance in zip(moments, covariances, strict=True):
        root = matrix_square_root(covariance)
        inverse = linalg.inv(root)
        maps[name] = inverse @ matrix_square_root(root @ middle @ root) @ inverse
    return maps


def _shifts(
    moments: Mapping[str, FeatureMoments], matrices: Mapping[str, Array], numbers: Mapping[str, Any], n_classes: int
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return b_j (d,) of every site by the two-way layout, and the sites that share no class with another."""
    names = list(moments)
    weights = np.zeros((len(names), n_classes))
    d = len(moments[names[0]].mean)
    means = np.zeros((len(names), n_classes, d))
    for j, name in enumerate(names):
        one, positions = moments[name], numbers[name]
        weights[j, positions] = one.n_by_class
        means[j, positions] = one.means @ matrices[name].T
    n_sites_of_class = (weights > 0).sum(axis=0)
    shares = np.array([bool(np.any(n_sites_of_class[weights[j] > 0] > 1)) for j in range(len(names))])
    moving = np.flatnonzero(shares)
    # Normal equations of sum_jc w_jc |T_j m_jc - mu_c - b_j|^2 + ridge sum_j |b_j|^2, for mu (C) and b (J).
    of_class, of_site = weights.sum(axis=0), weights.sum(axis=1)
    known = np.flatnonzero(of_class > 0)
    size = len(known) + len(moving)
    system, right = np.zeros((size, size)), np.zeros((size, d))
    place = len(known)
    system[np.arange(place), np.arange(place)] = of_class[known]
    system[np.arange(place, size), np.arange(place, size)] = of_site[moving] + SHIFT_RIDGE
    block = weights[np.ix_(moving, known)]
    system[place:, :place], system[:place, place:] = block, block.T
    right[:place] = np.einsum("jc,jcd->cd", weights[:, known], means[:, known])
    right[place:] = np.einsum("jc,jcd->jd", weights[moving], means[moving])
    solved = linalg.solve(system, right, assume_a="sym")
    shifts = np.zeros((len(names), d))
    shifts[moving] = solved[place:]
    if len(moving):  # a shift common to all sites is none
        shifts[moving] -= of_site[moving] @ shifts[moving] / of_site[moving].sum()
    return dict(zip(names, shifts, strict=True)), tuple(names[j] for j in np.flatnonzero(~shares))


def _mapped(site: Statistics, matrix: Array, shift: Array) -> Statistics:
    """Return the sums of features after the map A x + c."""
    counts = site.counts[ROWS]
    sums = site.counts[SUMS] @ matrix.T + counts[:, None] * shift
    return replace(
        site, moments={TOTAL: site.moments[TOTAL].affine_image(matrix, shift)}, counts={ROWS: counts, SUMS: sums}
    )
