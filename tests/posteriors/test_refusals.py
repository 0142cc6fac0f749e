"""What SPAHM and AMPS refuse, and what they say: the option or the model at fault."""

import numpy as np
import pytest

import consilience as cs
from consilience import families as f
from tests.families.zoo import ZOO
from tests.matching.log_posterior import fused as spahm
from tests.posteriors import planted

ATOMS = 8.0 * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [3.0, 2.0]])
SITES = [ATOMS[:size] + 0.1 * np.random.default_rng(size).normal(size=(size, 2)) for size in (3, 5, 2, 4)]


# -- SPAHM.

BAD_SPAHM = [
    *({name: bad} for name in ("mass", "concentration") for bad in (0.0, -1.0, np.nan, np.inf, "1")),
    *({name: bad} for name in ("within_variance", "between_variance") for bad in (0.0, -1.0, np.nan, (1.0, -1.0))),
    *({name: bad} for name in ("restarts", "max_iterations", "max_components", "clip") for bad in (0, -2, 1.5, "3")),
    {"likelihood": "students"},
    {"variances": "matrix"},
    {"min_count": -1.0},
    {"combine": "sum"},
    {"marginal": False},
    {"marginal": False, "optimize": False},
    {"marginal": False, "within_variance": 1.0, "between_variance": 1.0},
    {"gamma": 1.0},
]


@pytest.mark.parametrize("options", BAD_SPAHM, ids=str)
def test_options_of_spahm_that_mean_nothing_are_refused_by_name(options):
    with pytest.raises(cs.errors.OptionError, match="|".join(options)):
        spahm(SITES, **options)


@pytest.mark.parametrize("name", ["within_variance", "between_variance"])
def test_variances_of_another_dimension_are_refused(name):
    with pytest.raises(cs.errors.InputError, match=rf"{name}.*3.*2"):
        spahm(SITES, **{name: (1.0, 1.0, 1.0)})


def test_a_limit_below_the_largest_model_is_refused():
    with pytest.raises(cs.errors.InputError, match=r"max_components.*5"):
        spahm(SITES, max_components=4)
    assert spahm(SITES, max_components=5).n_components == 5


def test_a_conjugate_likelihood_without_a_prior_is_refused_naming_the_model():
    sites = planted.topics(0).sites
    bare = cs.Posterior(sites[2].family, sites[2].natural, counts=sites[2].counts)
    with pytest.raises(cs.errors.InputError, match=r"prior.*model 2"):
        cs.fuse([*sites[:2], bare, *sites[3:]], method="spahm", likelihood="conjugate")


# -- AMPS.

BAD_AMPS = [
    *({"concentration": bad} for bad in (0.0, -1.0, np.nan, np.inf)),
    *({name: bad} for name in ("restarts", "max_iterations") for bad in (0, -2, 1.5, "3")),
    {"combine": "sum"},
    {"alpha": 1.0},
]


def models(name, *sizes):
    """Random posteriors of a family, under one prior."""
    kind, rng = ZOO[name], np.random.default_rng(3)
    return [cs.Posterior(kind.family, kind.draw(rng, size), prior=kind.prior) for size in sizes]


@pytest.mark.parametrize("options", BAD_AMPS, ids=str)
def test_options_of_amps_that_mean_nothing_are_refused_by_name(options):
    with pytest.raises(cs.errors.OptionError, match="|".join(options)):
        cs.fuse(models("dirichlet", 3, 3), method="amps", **options)


def test_models_of_different_sizes_are_refused_with_the_remedy():
    with pytest.raises(cs.errors.InputError, match=r"equal size.*3, 2.*growth=True"):
        cs.fuse(models("dirichlet", 3, 2), method="amps")


@pytest.mark.parametrize("growth", [False, True])
def test_models_without_a_prior_are_refused_by_name(growth):
    kind = ZOO["gamma"]
    bare = cs.Posterior(kind.family, kind.draw(np.random.default_rng(0), 2), counts=np.ones(2))
    with pytest.raises(cs.errors.InputError, match=r"prior.*model 1"):
        cs.fuse([*models("gamma", 2), bare], method="amps", growth=growth)


def test_growth_without_counts_is_refused_by_name():
    counted = [cs.Posterior(p.family, p.natural, prior=p.prior, counts=np.ones(2)) for p in models("gamma", 2, 2)]
    with pytest.raises(cs.errors.InputError, match=r"counts.*model 2"):
        cs.fuse([*counted, *models("gamma", 2)], method="amps", growth=True)


def test_points_have_nothing_to_multiply():
    point = cs.Posterior(f.Point(2), np.eye(2), prior=np.zeros(2), counts=np.ones(2))
    for growth in (False, True):
        with pytest.raises(cs.errors.InputError, match="points have no width"):
            cs.fuse([point, point], method="amps", growth=growth)


def test_of_agents_of_different_priors_each_has_its_own_removed_and_the_mean_is_put_back():
    """As in every product: libraries make priors from a site's own data, and what the data say is the rest."""
    one, other = models("dirichlet", 3, 3)
    other = cs.Posterior(other.family, other.natural, prior=other.prior + 0.2)
    fusion = cs.fuse([one, other], method="amps")
    said = np.concatenate([one.natural - one.prior, other.natural - other.prior])
    together = np.stack([said[fusion.matching.labels == group].sum(axis=0) for group in range(3)])
    np.testing.assert_allclose(fusion.posterior.natural, together + one.prior + 0.1, rtol=1e-12)
