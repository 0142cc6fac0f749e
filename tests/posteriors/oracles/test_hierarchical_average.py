"""The hierarchical average against plain loops over one group, with standard parameters and SciPy's roots."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import brentq
from scipy.stats import norm, t

from consilience import families as f
from consilience.posteriors.average import combine
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.posterior import Posterior

D, V = 5, 8
ROOT = 1e-9
"""Relative tolerance: h is a root, which both search to some 1e-12, and f magnifies it."""


def root_of(excess):
    """Return the root of a decreasing function by Brent's method; 0 where it is never positive."""
    if excess(0.0) <= 0:
        return 0.0
    high = 1e-3
    while excess(high) > 0:
        high *= 4
    return brentq(excess, 0.0, high, xtol=1e-300, rtol=1e-14)


def location_excess(kappas, means, covariance, h):
    weights = [kappa / (1 + h * kappa) for kappa in kappas]
    centre = sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights)
    inverse = np.linalg.inv(covariance)
    statistic = sum(w * (m - centre) @ inverse @ (m - centre) for w, m in zip(weights, means, strict=True))
    return statistic - len(means[0]) * (len(means) - 1)


def scale_excess(dofs, scatters, h, *, diagonal):
    weights = [dof / (1 + h * dof) for dof in dofs]
    covariances = [scatter / dof for scatter, dof in zip(scatters, dofs, strict=True)]
    centre = sum(w * s for w, s in zip(weights, covariances, strict=True)) / sum(weights)
    values, vectors = np.linalg.eigh(centre)
    half = vectors @ np.diag(values**-0.5) @ vectors.T
    statistic = 0.0
    for w, s in zip(weights, covariances, strict=True):
        deviation = half @ s @ half - np.eye(len(s))
        statistic += 0.5 * w * np.sum(deviation**2)
    dim = len(centre)
    return statistic - (dim if diagonal else dim * (dim + 1) / 2) * (len(dofs) - 1)


def widened(c, dof):
    """Return f and nu_eff."""
    share = 1 - c
    return (t.ppf(0.95, dof / share**2) / norm.ppf(0.95)) ** 2, dof / share**2


def draw_rows(rng, n, deviation, *, diagonal):
    """Return what the data of n copies say: kappa, mean, scatter and degrees of freedom of each."""
    shape = np.diag(rng.uniform(0.5, 3.0, D))
    rows = []
    for size in rng.integers(20, 200, n):
        x = rng.standard_normal((size, D)) @ np.sqrt(shape) + 3.0 + deviation * rng.standard_normal(D)
        scatter = (x - x.mean(axis=0)).T @ (x - x.mean(axis=0))
        rows.append((float(size), x.mean(axis=0), np.diag(np.diag(scatter)) if diagonal else scatter, float(size)))
    return rows


PRIOR = (1.5, np.full(D, 0.5), 2.0 * np.eye(D), D + 1.0)
"""kappa, mean, W^-1 and nu."""


def added(prior, rows, factors, c):
    """Return the posterior of rows whose kappa is multiplied by factors, that of the prior by c."""
    weights = [c * prior[0]] + [factor * row[0] for factor, row in zip(factors, rows, strict=True)]
    means = [prior[1]] + [row[1] for row in rows]
    kappa = sum(weights)
    centre = sum(w * m for w, m in zip(weights, means, strict=True)) / kappa
    scatter = prior[2] + sum(row[2] for row in rows)
    scatter = scatter + sum(w * np.outer(m - centre, m - centre) for w, m in zip(weights, means, strict=True))
    return kappa, centre, scatter, prior[3] + sum(row[3] for row in rows)


def expected_normal(rows, *, diagonal):
    """Return kappa, mean, scatter, nu, h and f of the hierarchical average of one group."""
    pooled = sum(row[2] for row in rows) / sum(row[3] for row in rows)
    kappas, means = [row[0] for row in rows], [row[1] for row in rows]
    h = root_of(lambda value: location_excess(kappas, means, pooled, value))
    h_scale = root_of(lambda value: scale_excess([r[3] for r in rows], [r[2] for r in rows], value, diagonal=diagonal))
    factors = [1 / (1 + h * kappa) for kappa in kappas]
    c = sum(factor * kappa for factor, kappa in zip(factors, kappas, strict=True)) / sum(kappas)
    _, _, product_scatter, product_dof = added(PRIOR, rows, [1.0] * len(rows), 1.0)
    kappa, mean, scatter, dof = added(PRIOR, rows, factors, c)
    inner, outer = scatter / dof, product_scatter / product_dof
    if diagonal:
        inner, outer, product_scatter = (np.diag(np.diag(matrix)) for matrix in (inner, outer, product_scatter))
    factor, effective_dof = widened(c, D * (len(rows) - 1)) if h > 0 else (1.0, np.inf)
    ratio = np.trace(np.linalg.inv(inner) @ outer) / D
    return kappa / factor * ratio, mean, product_scatter, product_dof, (h, h_scale), factor, effective_dof


def posterior_of(family, kappa, mean, scatter, dof, counts=None, *, prior=None):
    """Return the natural parameters of a Normal-Wishart, or of a Normal-Gamma with the diagonal."""
    if isinstance(family, f.NormalWishart):
        return family.to_natural(mean=mean[None], kappa=[kappa], inverse_scale=scatter[None], dof=[dof])
    return family.to_natural(mean=mean[None], kappa=[kappa], shape=[0.5 * dof], rate=0.5 * np.diag(scatter)[None])


def fuse_rows(family, rows, prior):
    """Return the hierarchical average of sites with one component each, and what was recorded."""
    posteriors = []
    for kappa, mean, scatter, dof in rows:
        single = added(PRIOR, [(kappa, mean, scatter, dof)], [1.0], 1.0)
        natural = posterior_of(family, *single)
        posteriors.append(Posterior(family, natural, prior=prior, counts=[kappa]))
    ensemble = Ensemble.of(posteriors)
    labels = np.zeros(len(rows), dtype=np.int64)
    return combine(ensemble, labels, 1, "hierarchical", None)


@pytest.mark.parametrize("deviation", [0.0, 0.1, 1.0, 20.0])
@pytest.mark.parametrize("sites", [2, 4, 15])
@pytest.mark.parametrize("family", [f.NormalWishart(D), f.NormalGamma(D)], ids=str)
def test_normal_posteriors_equal_plain_loops(family, sites, deviation):
    diagonal = isinstance(family, f.NormalGamma)
    rows = draw_rows(np.random.default_rng([sites, int(10 * deviation)]), sites, deviation, diagonal=diagonal)
    kappa, mean, scatter, dof, (h, h_scale), factor, effective_dof = expected_normal(rows, diagonal=diagonal)
    fused, record = fuse_rows(family, rows, posterior_of(family, *PRIOR)[0])
    effects = record.random_effects
    assert_allclose(effects.heterogeneity[:, 0], [h, h_scale], rtol=ROOT, atol=1e-15)
    assert_allclose([effects.widening[0], effects.effective_dof[0]], [factor, effective_dof], rtol=ROOT)
    found = family.from_natural(fused.natural)
    assert_allclose(found["kappa"], kappa, rtol=ROOT)
    assert_allclose(found["mean"][0], mean, rtol=ROOT)
    if diagonal:
        assert_allclose(found["rate"][0], 0.5 * np.diag(scatter), rtol=ROOT)
        assert_allclose(found["shape"], 0.5 * dof, rtol=ROOT)
    else:
        assert_allclose(found["scale"][0], np.linalg.inv(scatter), rtol=1e-7, atol=1e-10)
        assert_allclose(found["dof"], dof, rtol=ROOT)


@pytest.mark.parametrize("deviation", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("family", [f.Gaussian(D), f.DiagonalGaussian(D), f.SphericalGaussian(D)], ids=str)
def test_gaussians_of_one_shape_equal_plain_loops(family, deviation):
    rng = np.random.default_rng(int(10 * deviation))
    covariance = np.diag(np.full(D, 1.3) if isinstance(family, f.SphericalGaussian) else rng.uniform(0.5, 2.0, D))
    if isinstance(family, f.Gaussian):
        factor = rng.standard_normal((D, D))
        covariance = covariance + factor @ factor.T
    scale = np.exp(np.linalg.slogdet(covariance)[1] / D)
    sizes = [40.0, 90.0, 200.0, 15.0]
    means = [
        deviation * rng.standard_normal(D) + np.linalg.cholesky(covariance) @ rng.standard_normal(D) / np.sqrt(size)
        for size in sizes
    ]
    kappas = [size / scale for size in sizes]  # precisions: |size * covariance^-1|^(1/D)
    h = root_of(lambda value: location_excess(kappas, means, covariance / scale, value))
    precision = np.linalg.inv(covariance)
    prior_precision, prior_mean = precision / 30.0, np.full(D, 0.2)
    weights = [size / (1 + h * kappa) for size, kappa in zip(sizes, kappas, strict=True)]
    c = sum(weights) / sum(sizes)
    total = c * prior_precision + sum(weights) * precision
    linear = c * prior_precision @ prior_mean + precision @ sum(w * m for w, m in zip(weights, means, strict=True))
    mean = np.linalg.solve(total, linear)
    factor = widened(c, D * 3)[0] if h > 0 else 1.0
    expected_variance = np.diag(np.linalg.inv(total / factor))

    def natural(mean, precision):
        wide = np.linalg.inv(precision)
        if isinstance(family, f.Gaussian):
            return family.to_natural(mean=mean[None], covariance=wide[None])
        variance = np.diag(wide)[None] if isinstance(family, f.DiagonalGaussian) else [wide[0, 0]]
        return family.to_natural(mean=mean[None], variance=variance)

    prior = natural(prior_mean, prior_precision)[0]
    posteriors = [
        Posterior(family, natural(m, size * precision) + prior, prior=prior, counts=[size])
        for m, size in zip(means, sizes, strict=True)
    ]
    fused, record = combine(Ensemble.of(posteriors), np.zeros(4, dtype=np.int64), 1, "hierarchical", None)
    assert_allclose(record.random_effects.heterogeneity[0, 0], h, rtol=ROOT, atol=1e-15)
    found_mean, low, high = family.mean_intervals(fused.natural, 0.9)
    assert_allclose(found_mean[0], mean, rtol=ROOT, atol=1e-12)
    assert_allclose((high - low)[0], 2 * norm.ppf(0.95) * np.sqrt(expected_variance), rtol=ROOT)


@pytest.mark.parametrize("h_true", [0.0, 5e-3, 0.05])
def test_dirichlets_equal_plain_loops(h_true):
    rng = np.random.default_rng(int(1000 * h_true))
    shares = rng.dirichlet(np.full(V, 2.0))
    shares[0] = 0.0  # never seen: below five expected, so in no statistic
    shares /= shares.sum()
    counts = []
    for size in (400, 2000, 900):
        own = shares if h_true == 0 else rng.dirichlet(np.maximum(shares / h_true, 1e-9))
        counts.append(rng.multinomial(size, own).astype(float))
    sizes = [row.sum() for row in counts]
    common = [v for v in range(V) if sum(row[v] for row in counts) >= 5]
    assert 0 not in common

    def excess(h):
        weights = [size / (1 + h * size) for size in sizes]
        centre = sum(w * row / size for w, row, size in zip(weights, counts, sizes, strict=True)) / sum(weights)
        statistic = sum(
            w * sum((row[v] / size - centre[v]) ** 2 / centre[v] for v in common)
            for w, row, size in zip(weights, counts, sizes, strict=True)
        )
        return statistic - (len(common) - 1) * (len(counts) - 1)

    h = root_of(excess)
    factors = [1 / (1 + h * size) for size in sizes]
    c = sum(factor * size for factor, size in zip(factors, sizes, strict=True)) / sum(sizes)
    prior = np.full(V, 0.4)
    alpha = c * prior + sum(factor * row for factor, row in zip(factors, counts, strict=True))
    alpha = alpha / (widened(c, (len(common) - 1) * 2)[0] if h > 0 else 1.0)
    family = f.Dirichlet(V)
    prior_row = family.to_natural(concentration=prior[None])[0]
    posteriors = [
        Posterior(family, family.to_natural(concentration=(prior + row)[None]), prior=prior_row, counts=[row.sum()])
        for row in counts
    ]
    fused, record = combine(Ensemble.of(posteriors), np.zeros(3, dtype=np.int64), 1, "hierarchical", None)
    assert_allclose(record.random_effects.heterogeneity[0, 0], h, rtol=1e-8, atol=1e-15)
    found, share = family.from_natural(fused.natural)["concentration"][0], record.random_effects.interval_share[0]
    assert_allclose(found.sum(), prior.sum() + sum(sizes), rtol=1e-8)  # the product's total
    assert_allclose(share * found, alpha, rtol=1e-8)


def test_single_components_take_the_heterogeneity_of_all():
    """Two groups of three sites and one of a single site: its h, and its degrees of freedom, are the pooled ones."""
    rng = np.random.default_rng(4)
    groups = [draw_rows(rng, 3, 1.0, diagonal=False), draw_rows(rng, 3, 1.0, diagonal=False)]
    single = draw_rows(rng, 1, 1.0, diagonal=False)

    def excess(h):
        total = 0.0
        for rows in groups:
            pooled = sum(row[2] for row in rows) / sum(row[3] for row in rows)
            total += location_excess([row[0] for row in rows], [row[1] for row in rows], pooled, h)
        return total

    h = root_of(excess)
    assert h > 0
    family = f.NormalWishart(D)
    prior = posterior_of(family, *PRIOR)[0]
    sites = [[groups[0][site], groups[1][site], *(single if site == 0 else [])] for site in range(3)]
    posteriors = [
        Posterior(
            family,
            np.concatenate([posterior_of(family, *added(PRIOR, [row], [1.0], 1.0)) for row in rows]),
            prior=prior,
            counts=[row[0] for row in rows],
        )
        for rows in sites
    ]
    labels = np.array([0, 1, 2, 0, 1, 0, 1])
    fused, record = combine(Ensemble.of(posteriors), labels, 3, "hierarchical", None)
    effects = record.random_effects
    assert_allclose(effects.pooled[0], h, rtol=ROOT)
    assert_allclose(effects.heterogeneity[0, 2], h, rtol=ROOT)
    assert effects.is_pooled.tolist() == [False, False, True]
    c = 1 / (1 + h * single[0][0])
    factor, effective_dof = widened(c, 2 * D * 2)
    assert_allclose([effects.widening[2], effects.effective_dof[2]], [factor, effective_dof], rtol=ROOT)
    kappa, mean, scatter, _ = added(PRIOR, single, [c], c)
    product_scatter = added(PRIOR, single, [1.0], 1.0)[2]
    ratio = np.trace(np.linalg.inv(scatter) @ product_scatter) / D
    found = family.from_natural(fused.natural[2:])
    assert_allclose(found["kappa"], kappa / factor * ratio, rtol=ROOT)
    assert_allclose(found["mean"][0], mean, rtol=ROOT)
