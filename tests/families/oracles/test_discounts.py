"""Fast forms of discounted rows against the plain ones: one value of the heterogeneity at a time, LAPACK row by row."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from consilience import families as f
from consilience.families.evidence import PlainDiscounts
from consilience.families.linalg import log_determinants_of_many
from tests import tolerances

pytestmark = pytest.mark.covering(2)

HETEROGENEITIES = [(0.0, 0.0), (0.1, 0.02), (5.0, 0.5), (1e-5, 40.0)]  # in the last, all degrees of freedom at least D
every_amount = pytest.mark.parametrize("amount", HETEROGENEITIES, ids=str)
every_dimension = pytest.mark.parametrize("dim", [1, 2, 3, 6])


def rows(dim, n=20, *, spread=3.0, shift=0.0):
    """Normal-Wisharts near the origin, and a translation (D,)."""
    rng, family = np.random.default_rng([dim, n]), f.NormalWishart(dim)
    inverse = stats.wishart(dim + 20, np.eye(dim)).rvs(n, random_state=rng).reshape(n, dim, dim)
    eta = family.to_natural(
        mean=rng.normal(shift, spread, (n, dim)),
        kappa=rng.uniform(3, 80, n),
        inverse_scale=inverse,
        dof=rng.uniform(dim + 2, 80, n),
    )
    return family, eta


def centred(family, eta):
    p = family.from_natural(eta)
    inverse = np.linalg.inv(p["scale"])
    mean = p["mean"] - p["mean"].mean(axis=0)
    return family.to_natural(mean=mean, kappa=p["kappa"], inverse_scale=inverse, dof=p["dof"])


@every_amount
@every_dimension
def test_discounted_normal_wisharts_are_those_of_plain_formulas_but_for_the_origin(dim, amount):
    family, eta = rows(dim, shift=4.0)
    fast, plain, amount = family.discounts(eta), PlainDiscounts(family, centred(family, eta)), np.array(amount)
    for name in ("pieces", "observed", "law"):
        expected = getattr(plain, name)(amount)
        atol = tolerances.ROOT_FINDING * np.abs(expected).max()
        assert_allclose(getattr(fast, name)(amount), expected, rtol=tolerances.ROOT_FINDING, atol=atol)


@every_amount
def test_the_evidence_of_groups_does_not_depend_on_the_origin(amount):
    """A(base + sums) - A(base) - sum observed, of the centred form, of the plain one, and of one far away."""
    family, eta = rows(3)
    amount, labels = np.array(amount), np.arange(20) % 4
    p = family.from_natural(eta)
    moved = family.to_natural(
        mean=p["mean"] + 50.0, kappa=p["kappa"], inverse_scale=np.linalg.inv(p["scale"]), dof=p["dof"]
    )

    def evidence(discounts):
        base, pieces = discounts.law(amount), discounts.pieces(amount)
        sums = np.stack([pieces[labels == g].sum(axis=0) for g in range(4)])
        together = family.log_normalizer(base + sums).sum() - 4 * family.log_normalizer(base[None])[0]
        return together - discounts.observed(amount).sum()

    expected = evidence(PlainDiscounts(family, eta))
    assert_allclose(evidence(family.discounts(eta)), expected, rtol=tolerances.ROOT_FINDING)
    assert_allclose(evidence(family.discounts(moved)), expected, rtol=tolerances.ROOT_FINDING)


@every_dimension
@pytest.mark.parametrize("n", [255, 256, 700])
def test_log_normalisers_of_many_sums_are_those_of_one_after_another(dim, n):
    family, eta = rows(dim, n)
    expected = family.log_normalizer(eta)
    assert_allclose(family.log_normalizer_of_sums(eta), expected, rtol=tolerances.CONJUGATE_UPDATE)


def test_log_normalisers_of_many_leave_their_rows_as_they_are():
    family, eta = rows(3, 300)
    before = eta.copy()
    family.log_normalizer_of_sums(eta)
    assert eta.tobytes() == before.tobytes()


@every_dimension
def test_log_determinants_of_many_are_those_of_numpy(dim):
    matrices = (
        stats.wishart(dim + 3, np.eye(dim)).rvs(50, random_state=np.random.default_rng(dim)).reshape(50, dim, dim)
    )
    expected = np.linalg.slogdet(matrices)[1]
    found = log_determinants_of_many(np.ascontiguousarray(matrices.transpose(1, 2, 0)))
    assert_allclose(found, expected, rtol=tolerances.CONJUGATE_UPDATE, atol=tolerances.CONJUGATE_UPDATE)


def test_a_product_discounts_every_block_by_its_part_of_the_heterogeneity():
    first, eta_first = rows(2)
    second = f.Dirichlet(4)
    eta_second = second.to_natural(concentration=np.random.default_rng(1).uniform(1, 50, (20, 4)))
    family = f.Product({"place": first, "words": second})
    eta, amount = np.concatenate([eta_first, eta_second], axis=1), np.array([0.2, 0.03, 0.1])
    discounts = family.discounts(eta)
    blocks = (first.discounts(eta_first), amount[:2]), (second.discounts(eta_second), amount[2:])
    for name in ("pieces", "law"):
        expected = np.concatenate([getattr(block, name)(part) for block, part in blocks], axis=-1)
        assert_allclose(getattr(discounts, name)(amount), expected, rtol=tolerances.ROUNDING)
    expected = sum(block.observed(part) for block, part in blocks)
    assert_allclose(discounts.observed(amount), expected, rtol=tolerances.ROUNDING)
    sums = discounts.law(amount) + discounts.pieces(amount)
    assert_allclose(family.log_normalizer_of_sums(sums), family.log_normalizer(sums), rtol=tolerances.CONJUGATE_UPDATE)


# -- The unit of heterogeneity.


@pytest.mark.parametrize("unit", [1e-3, 1e4])
@pytest.mark.parametrize("family", [f.SphericalGaussian(2), f.DiagonalGaussian(2), f.Gaussian(2)], ids=str)
def test_the_unit_of_heterogeneity_is_a_seventh_of_the_variance_of_all_components(family, unit):
    rng = np.random.default_rng(0)
    mean, variance = unit * rng.normal(0, 3, (200, 2)), unit**2 * rng.uniform(0.1, 0.2, 200)
    spread = {
        f.SphericalGaussian: {"variance": variance},
        f.DiagonalGaussian: {"variance": np.repeat(variance[:, None], 2, axis=1)},
        f.Gaussian: {"covariance": variance[:, None, None] * np.eye(2)},
    }[type(family)]
    total = mean.var(axis=0) + variance.mean()
    expected = total.mean() if isinstance(family, f.SphericalGaussian) else np.exp(np.log(total).mean())
    found = family.heterogeneity_unit(family.to_natural(mean=mean, **spread))
    assert_allclose(found, [expected / 7], rtol=0.02)  # the covariance of a Gaussian's means is not quite diagonal


def test_the_unit_of_what_is_counted_is_one():
    family, eta = rows(2)
    assert family.heterogeneity_unit(eta).tolist() == [1.0, 1.0]


# -- Plug-in densities.


def test_plug_in_densities_are_gaussians_at_posterior_means():
    family, eta = rows(3)
    p = family.from_natural(eta)
    mean, covariance = family.plug_in(eta)
    assert_allclose(mean, p["mean"], rtol=tolerances.CONJUGATE_UPDATE)
    expected = [np.linalg.inv(dof * scale) for dof, scale in zip(p["dof"], p["scale"], strict=True)]
    assert_allclose(covariance, expected, rtol=tolerances.CONJUGATE_UPDATE, atol=tolerances.CONJUGATE_UPDATE)


@pytest.mark.parametrize("spherical", [False, True])
def test_plug_in_variances_are_rates_over_shapes(spherical):
    family = f.SphericalNormalGamma(2) if spherical else f.NormalGamma(2)
    rate = np.array([3.0, 8.0]) if spherical else np.array([[3.0, 1.0], [8.0, 2.0]])
    eta = family.to_natural(mean=[[1.0, 2.0], [3.0, 4.0]], kappa=[2.0, 3.0], shape=[2.0, 4.0], rate=rate)
    mean, variance = family.plug_in(eta)
    assert_allclose(mean, [[1.0, 2.0], [3.0, 4.0]], rtol=tolerances.ROUNDING)
    expected = [[1.5, 1.5], [2.0, 2.0]] if spherical else [[1.5, 0.5], [2.0, 0.5]]
    assert_allclose(variance, expected, rtol=tolerances.ROUNDING)


@pytest.mark.parametrize("family", [f.Dirichlet(3), f.Gamma(), f.Point(2)], ids=str)
def test_components_without_densities_of_data_have_none(family):
    assert family.plug_in(np.zeros((2, family.size))) is None
