"""Laws of what a component says: it can be discounted without moving, added up, and told apart from its prior."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from consilience import families as f
from consilience.families.evidence import POINT_VARIANCE_SHARE, EvidenceFamily
from tests import tolerances
from tests.families.zoo import NAMES, ZOO, D

every_family = pytest.mark.parametrize("name", NAMES)
SEES_THROUGH_ITS_PRIOR = ("dirichlet", "beta")  # categories that a site never saw are told by the prior alone
COUNTING = [name for name, kind in ZOO.items() if isinstance(kind.family, EvidenceFamily)]


def members(name, seed=0, n=6):
    """A family with information and members of it (n, P)."""
    kind = ZOO[name]
    return kind.family.evidence_form(kind.draw(np.random.default_rng([seed, len(name)]), n))


def factors_for(family, eta, seed):
    """Factors (n, B) that can be applied twice before a member reaches the least information that it keeps."""
    return np.random.default_rng(seed).uniform(0.9, 3.0, (len(eta), len(family.part_names)))


def near(actual, expected, rtol=tolerances.ROUNDING):
    assert_allclose(actual, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


def centre(family, eta):
    """What discounting keeps, from the standard parameters."""
    p = family.from_natural(eta)
    match family:
        case f.Gaussian():
            return [p["mean"], p["covariance"] * family.information(eta)[:, :, None]]
        case f.DiagonalGaussian():
            return [p["mean"], p["variance"] * family.information(eta)]
        case f.SphericalGaussian():
            return [p["mean"]]
        case f.NormalWishart():
            return [p["mean"], p["scale"] * p["dof"][:, None, None]]
        case f.NormalGamma():
            return [p["mean"], p["rate"] / p["shape"][:, None]]
        case f.SphericalNormalGamma() | f.Gamma():
            return [p[key] for key in ("mean",) if key in p] + [p["rate"] / p["shape"]]
        case f.Dirichlet():
            return [p["concentration"] / p["concentration"].sum(axis=1, keepdims=True)]
        case f.Beta():
            return [p["a"] / (p["a"] + p["b"])]
        case f.Product():
            ends = np.cumsum([block.size for _, block in family.blocks])
            parts = np.split(eta, ends[:-1], axis=1)
            return [one for (_, block), part in zip(family.blocks, parts, strict=True) for one in centre(block, part)]
    raise NotImplementedError(f"say what the centre of {family} is, so that the laws run on it")


# -- The form of a family that counts information.


@every_family
def test_every_family_has_a_form_with_information(name):
    family, eta = members(name)
    assert isinstance(family, EvidenceFamily)
    assert eta.shape == (6, family.size)
    assert family.check(eta) == []
    blocks = len(family.part_names)
    assert len(set(family.part_names)) == blocks
    assert family.information(eta).shape == (6, blocks)
    assert np.all(family.information(eta) > 0)
    assert family.flat.shape == (family.size,)
    assert family.enough.shape == (blocks,)
    assert np.all(family.enough >= 0)


@every_family
def test_a_form_is_its_own_form(name):
    family, eta = members(name)
    again, same = family.evidence_form(eta)
    assert again == family
    assert_array_equal(same, eta)


def test_points_are_gaussians_that_are_narrow_in_any_unit():
    points = np.random.default_rng(1).normal(size=(5, D))
    family, eta = f.Point(D).evidence_form(points)
    law = family.from_natural(eta)
    near(law["mean"], points - points.mean(axis=0))
    near(law["variance"], np.full(5, POINT_VARIANCE_SHARE * np.var(points, axis=0).mean()))
    for unit in (1e-9, 1e9):
        scaled = family.from_natural(f.Point(D).evidence_form(unit * points)[1])
        near(scaled["mean"], unit * law["mean"])
        near(scaled["variance"], unit**2 * law["variance"])


@pytest.mark.parametrize("point", [[0.0, 0.0], [3.0, -4.0]], ids=str)
def test_points_that_are_all_the_same_have_a_form(point):
    family, eta = f.Point(D).evidence_form(np.array([point, point]))
    assert family.check(eta) == []
    near(family.from_natural(eta)["mean"], np.zeros((2, D)))


def test_points_of_a_known_covariance_are_told_apart_as_that_covariance_does():
    """Distances in the form are Mahalanobis distances."""
    kind = ZOO["known-covariance-gaussian"]
    eta = kind.draw(np.random.default_rng(2), 2)
    family, form = kind.family.evidence_form(eta)
    apart = np.diff(kind.family.from_natural(eta)["mean"], axis=0)[0]
    whitened = np.diff(family.from_natural(form)["mean"], axis=0)[0]
    near(whitened @ whitened, apart @ np.linalg.solve(kind.family.covariance, apart))


def test_category_probabilities_are_the_mean_of_a_narrow_dirichlet_law():
    kind = ZOO["categorical"]
    eta = kind.draw(np.random.default_rng(3), 4)
    family, form = kind.family.evidence_form(eta)
    near(centre(family, form)[0], kind.family.from_natural(eta)["probabilities"])
    near(family.information(form), np.full((4, 1), 1 / POINT_VARIANCE_SHARE))


# -- Reweighting.


@every_family
def test_reweighting_by_one_changes_nothing(name):
    family, eta = members(name)
    near(family.reweighted(eta, np.ones((len(eta), len(family.part_names)))), eta)


@every_family
def test_reweighting_multiplies_the_information(name):
    family, eta = members(name)
    factors = factors_for(family, eta, 4)
    changed = family.reweighted(eta, factors)
    assert family.check(changed) == []
    near(family.information(changed), factors * family.information(eta))


@every_family
def test_reweighting_twice_is_reweighting_by_the_product(name):
    family, eta = members(name)
    once, twice = factors_for(family, eta, 5), factors_for(family, eta, 6)
    near(family.reweighted(family.reweighted(eta, once), twice), family.reweighted(eta, once * twice))


@every_family
def test_reweighting_does_not_move_the_centre(name):
    family, eta = members(name)
    changed = family.reweighted(eta, factors_for(family, eta, 7))
    for actual, expected in zip(centre(family, changed), centre(family, eta), strict=True):
        near(actual, expected)


@every_family
def test_copies_of_great_information_become_the_same_law(name):
    """The law shrinks to a point that does not depend on how much each block was given."""
    family, eta = members(name)
    means = [family.mean_parameters(family.reweighted(eta, 1e12 * factors_for(family, eta, s))) for s in (8, 9)]
    for column in range(family.size):
        near(means[0][:, column], means[1][:, column], tolerances.FLAT_MINIMUM)


# -- Discounts.


@every_family
def test_without_heterogeneity_nothing_is_discounted(name):
    family, eta = members(name)
    near(family.discounted(eta, np.zeros(len(family.part_names))), eta)


@every_family
def test_a_discount_adds_heterogeneity_to_the_variance(name):
    """1 / n' = 1 / n + h."""
    family, eta = members(name)
    amount = np.random.default_rng(10).uniform(0.0, 0.2, len(family.part_names))
    discounted = family.discounted(eta, amount)
    assert family.check(discounted) == []
    near(1 / family.information(discounted), 1 / family.information(eta) + amount)


@every_family
def test_the_most_heterogeneous_copies_are_still_members(name):
    family, eta = members(name)
    amount = 1e6 / np.median(family.information(eta), axis=0)
    discounted = family.discounted(eta, amount)
    assert family.check(discounted) == []
    assert np.all(np.isfinite(family.log_normalizer(discounted)))
    assert family.check(family.law_of(discounted)[None]) == []


def test_a_normal_wishart_keeps_as_many_degrees_of_freedom_as_dimensions():
    family, eta = members("normal-wishart")
    discounted = family.from_natural(family.discounted(eta, np.array([1e3, 1e3])))
    near(discounted["dof"], np.full(len(eta), float(D)))
    near(discounted["scale"] * D, centre(family, eta)[1])


# -- Adding up.


@every_family
def test_what_copies_with_one_centre_say_adds_up(name):
    family, eta = members(name)
    copies = np.repeat(eta[:1], 4, axis=0)
    factors = factors_for(family, copies, 11)
    together = family.flat + (family.reweighted(copies, factors) - family.flat).sum(axis=0, keepdims=True)
    assert family.check(together) == []
    near(family.information(together), factors.sum(axis=0) * family.information(eta[:1]))
    for actual, expected in zip(centre(family, together), centre(family, eta[:1]), strict=True):
        near(actual, expected)


@every_family
def test_components_that_differ_say_at_least_as_much_together(name):
    """Precisions of other directions complement one another; every other amount is a sum."""
    family, eta = members(name)
    together = family.flat + (eta - family.flat).sum(axis=0, keepdims=True)
    assert family.check(together) == []
    amounts = family.information(eta).sum(axis=0)
    assert np.all(family.information(together)[0] >= amounts * (1 - tolerances.ROUNDING))


# -- The law that components come from.


@every_family
def test_the_law_of_copies_is_the_copy(name):
    family, eta = members(name)
    copies = np.repeat(eta[:1], 3, axis=0)
    near(family.law_of(copies), eta[0], tolerances.ROOT_FINDING)


@every_family
def test_the_law_of_components_has_their_centre_and_is_wider(name):
    family, eta = members(name)
    law = family.law_of(eta)[None]
    assert family.check(law) == []
    if name in SEES_THROUGH_ITS_PRIOR or name == "categorical":
        near(centre(family, law)[0][0], centre(family, eta)[0].mean(axis=0))
    elif name != "product":
        moments = family.mean_parameters(eta).mean(axis=0)
        near(family.mean_parameters(law)[0], moments, tolerances.ROOT_FINDING)
    assert np.all(family.information(law) < family.information(eta).max(axis=0))


@pytest.mark.parametrize("name", ["dirichlet", "beta"])
def test_the_law_of_probabilities_has_their_total_variance(name):
    """Within the laws and between their means, by scipy."""
    family, eta = members(name)
    law = family.law_of(eta) + 1.0
    means = np.stack([stats.dirichlet(row + 1.0).mean() for row in eta])
    within = np.mean([stats.dirichlet(row + 1.0).var().sum() for row in eta])
    assert_allclose(stats.dirichlet(law).var().sum(), within + means.var(axis=0).sum(), rtol=tolerances.ROUNDING)


# -- Priors.


@pytest.mark.parametrize("name", [name for name in COUNTING if name != "product"])
def test_what_the_data_say_and_the_prior_make_the_posterior(name):
    family, eta = ZOO[name].family, ZOO[name].draw(np.random.default_rng(12), 5)
    prior = np.repeat(ZOO[name].prior[None], 5, axis=0)
    alone = family.without_prior(eta, prior)
    if name in SEES_THROUGH_ITS_PRIOR:  # of which one token stays
        kept = np.minimum(1.0, 1.0 / (prior + 1.0).sum(axis=1, keepdims=True))
        near(alone, np.maximum(eta - (1.0 - kept) * (prior + 1.0), kept * (prior + 1.0) - 1.0))
    else:
        near(prior + (alone - family.flat), eta)


def test_words_that_nobody_saw_are_no_evidence():
    """A great prior, which all sites share, leaves no more than one token of itself."""
    family, rng = ZOO["dirichlet"].family, np.random.default_rng(14)
    counts, prior = rng.poisson(3.0, (6, family.dim)), np.full((6, family.dim), 100.0)
    alone = family.without_prior(counts + prior - 1.0, prior - 1.0)
    near(alone + 1.0, counts + 1.0 / family.dim)
    assert not family.check(family.without_prior(prior - 1.0, prior - 1.0))
    great = family.observed(alone, np.array([0.1]))
    near(great, family.observed(counts + 1.0 / family.dim - 1.0, np.array([0.1])))


def test_a_product_takes_the_prior_off_block_by_block():
    kind = ZOO["product"]
    eta, prior = kind.draw(np.random.default_rng(13), 5), np.repeat(kind.prior[None], 5, axis=0)
    ends = np.cumsum([block.size for _, block in kind.family.blocks])[:-1]
    parts = zip(kind.family.blocks, np.split(eta, ends, axis=1), np.split(prior, ends, axis=1), strict=True)
    expected = np.concatenate([block.without_prior(own, its_prior) for (_, block), own, its_prior in parts], axis=1)
    assert_array_equal(kind.family.without_prior(eta, prior), expected)
