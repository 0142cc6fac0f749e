"""What sites say that cannot be: counts, weights, priors, units."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs
from tests.copies import COPIES
from tests.posteriors.test_counted_twice import FAMILY, site


def problems_of(**change):
    """Return what is wrong with two sites of which the second states something else."""
    return cs.check({"lund": site(0), "oslo": replace(site(1), **change)}, min_count=0)


def test_counts_that_are_all_zero_are_refused():
    """One model that saw nothing is its prior, and adds nothing; where nobody saw anything there is nothing to fuse."""
    assert problems_of(counts=np.zeros(3)) == []
    nothing = {name: replace(site(k), counts=np.zeros(3)) for k, name in enumerate(("lund", "oslo"))}
    (problem,) = cs.check(nothing, min_count=0)
    assert problem.subject == "lund, oslo"
    assert "counts that are all zero" in problem.text
    assert "none of its 3 components has 5 effective observations" in cs.check(nothing)[-1]


@pytest.mark.parametrize("counts", [[20.0, -1.0, 3.0], [20.0, np.nan, 3.0], [20.0, np.inf, 3.0], [20.0, 3.0]])
def test_counts_that_are_none_are_refused_by_component(counts):
    with pytest.raises(cs.errors.InputError, match=r"component 1 has counts|counts must be \(3,\)"):
        replace(site(1), counts=np.array(counts))


def test_weights_that_contradict_counts_are_refused():
    (problem,) = problems_of(counts=np.array([90.0, 5.0, 5.0]), weights=np.array([0.05, 0.05, 0.9]))
    assert problem.subject == "oslo"
    assert "85 % of the mixture is on other components" in problem.text
    assert problems_of(counts=np.array([90.0, 5.0, 5.0]), weights=np.array([0.8, 0.1, 0.1])) == []


@COPIES
@pytest.mark.parametrize("concentration", [1e-3, 1.0, 20.0])
@pytest.mark.parametrize("kind", ["dirichlet_process", "dirichlet_distribution"])
def test_a_prior_of_weights_is_no_contradiction(kind, concentration):
    rows = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[0.0], [9.0]], [50, 10], axis=0)
    models = [
        BayesianGaussianMixture(
            n_components=3,
            weight_concentration_prior_type=kind,
            weight_concentration_prior=concentration,
            random_state=k,
        ).fit(rows)
        for k in range(2)
    ]
    assert cs.check(models) == []


def test_units_that_differ_are_refused():
    models = {name: replace(site(k), features=cs.Features(units=units)) for k, (name, units) in
              enumerate({"lund": ("m", "s"), "oslo": ("m", "h")}.items())}  # fmt: skip
    (problem,) = cs.check(models)
    assert problem.subject == "oslo"
    assert "units" in problem.text


def test_a_prior_of_another_family_is_refused():
    other = cs.families.NormalGamma(2)
    prior = other.to_natural(mean=[[0.0, 0.0]], kappa=[1.0], shape=[2.0], rate=[[1.0, 1.0]])[0]
    with pytest.raises(cs.errors.InputError, match="prior"):
        replace(site(0), prior=prior)


def test_priors_that_differ_are_noted_and_averaged():
    prior = FAMILY.to_natural(mean=[[3.0, 0.0]], kappa=[2.0], inverse_scale=np.eye(2)[None], dof=[4.0])[0]
    fusion = cs.fuse({"lund": site(0), "oslo": replace(site(1), prior=prior), "pisa": site(2)})
    # Models are compared in an order of their contents, so that what is said does not depend on who came first.
    assert fusion.details["average"]["priors"] == "oslo and lund state different priors (mean 3 against 0)"
    np.testing.assert_allclose(fusion.posterior.prior, (2 * site(0).prior + prior) / 3, rtol=1e-12)
    assert "priors" not in cs.fuse({"lund": site(0), "oslo": site(1)}).details["average"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the overflow that the refusal names
def test_where_arithmetic_fails_the_model_that_it_fails_on_is_named():
    """One site states counts whose sum overflows; who is trusted is not refused before, yet gets no traceback."""
    sites = {name: site(k) for k, name in enumerate(("lund", "oslo", "turku"))}
    sites["oslo"] = replace(sites["oslo"], counts=np.full(3, 1e308), weights=None)
    with pytest.raises(cs.errors.InputError, match=r"oslo: counts: has counts that add up to inf"):
        cs.fuse(sites)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("method", ["kl", "kmeans", "amps"])
def test_topics_of_more_tokens_than_can_be_added_up_are_named(method):
    family, rng = cs.families.Dirichlet(5), np.random.default_rng(0)

    def topics():
        return cs.Posterior(
            family, rng.dirichlet(np.ones(5), 3) * 1e308, prior=np.full(5, -0.5), counts=np.full(3, 1e308)
        )

    with pytest.raises(cs.errors.InputError, match=r"lund: counts: has counts that add up to inf"):
        cs.fuse({"lund": topics(), "oslo": topics()}, method)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("scale", [1e-70, 1e70, 1e150])
def test_great_and_small_numbers_are_fused_or_refused_in_a_line(scale):
    rng = np.random.default_rng(1)
    family = cs.families.NormalGamma(dim=2)
    centres = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    sites = [
        cs.Posterior(
            family,
            family.to_natural(
                mean=(centres + 0.1 * rng.normal(size=centres.shape)) * scale,
                kappa=[200.0] * 3,
                shape=[100.0] * 3,
                rate=np.full((3, 2), 100.0 * scale * scale),
            ),
            counts=np.full(3, 200.0),
        )
        for _ in range(3)
    ]
    if scale > 1e100:
        with pytest.raises(cs.errors.InputError, match="scale the columns"):
            cs.fuse(sites)
        return
    fusion = cs.fuse(sites)
    assert fusion.n_components == 3
    assert np.isfinite(fusion.posterior.natural).all()
