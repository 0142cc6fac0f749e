"""Laws of the densities of data under mixtures, and of what ``log_density`` gives of every form of a model."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import consilience as cs
from consilience.posteriors import mixture_density
from consilience.posteriors.adapters.sklearn.covariance_types import COVARIANCE_TYPES
from tests.tolerances import QUADRATURE, ROUNDING

pytestmark = pytest.mark.covering(2)

every_type = pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)


def rows(dim=2, seed=0, n=60):
    rng = np.random.default_rng(seed)
    centres = 4.0 * np.eye(3, dim)
    return np.concatenate([centre + rng.normal(size=(n // 3, dim)) for centre in centres])


def mixture(covariance_type="full", dim=2, prior="dirichlet_distribution", n=60):
    return BayesianGaussianMixture(
        n_components=3, covariance_type=covariance_type, weight_concentration_prior_type=prior, random_state=0
    ).fit(rows(dim, n=n))


def integral_over_line(log_density):
    """Return the integral of a density by x = sinh u, whose trapezium sums converge fast where tails are powers."""
    nodes = np.linspace(-20.0, 20.0, 4001)
    return np.exp(log_density(np.sinh(nodes)[:, None])) @ np.cosh(nodes) * (nodes[1] - nodes[0])


@every_type
@pytest.mark.parametrize("kind", ["predictive", "plug-in"])
def test_densities_integrate_to_one_in_one_dimension(covariance_type, kind):
    model = cs.describe(mixture(covariance_type, dim=1), min_count=0)  # on a line, two of the three centres are one
    assert_allclose(integral_over_line(lambda x: cs.log_density(model, x, kind=kind)), 1.0, atol=QUADRATURE)


@every_type
@pytest.mark.parametrize("kind", ["predictive", "plug-in"])
def test_densities_integrate_to_one_in_two_dimensions(covariance_type, kind):
    """Over the plane by x = sinh u in each dimension, whose trapezium sums converge fast where tails are powers."""
    model = cs.describe(mixture(covariance_type))
    nodes = np.linspace(-12.0, 12.0, 601)
    x, scale = np.sinh(nodes), np.cosh(nodes) * (nodes[1] - nodes[0])
    grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    density = np.exp(cs.log_density(model, grid, kind=kind)).reshape(len(x), -1)
    assert_allclose(scale @ density @ scale, 1.0, atol=1e-5)  # what 601 nodes leave


def test_the_bound_of_scikit_learn_is_no_density_and_below_the_predictive_one():
    """exp E log p <= E p, for expected logarithms of weights and precisions; row by row."""
    model, new = mixture(n=30), rows(seed=1)
    bound, predictive = (cs.log_density(model, new, kind=kind) for kind in ("bound", "predictive"))
    assert_allclose(bound, model.score_samples(new), rtol=ROUNDING)
    assert np.all(bound < predictive)
    assert integral_over_line(mixture(dim=1).score_samples) < 1.0 - 1e-3


@every_type
def test_with_many_observations_predictive_plug_in_and_bound_agree(covariance_type):
    """Of 30,000 rows, to a thousandth of a nat on average."""
    model = cs.describe(mixture(covariance_type, n=30_000))
    new = rows(seed=1)
    predictive, plug_in, bound = (
        cs.log_density(model, new, kind=kind).mean() for kind in ("predictive", "plug-in", "bound")
    )
    assert_allclose([plug_in, bound], predictive, atol=1e-3)


@every_type
@pytest.mark.parametrize("kind", ["predictive", "plug-in"])
def test_the_order_of_components_changes_no_density(covariance_type, kind):
    posterior = cs.describe(mixture(covariance_type))
    expected = cs.log_density(posterior, rows(seed=1), kind=kind)
    for order in ([1, 2, 0], [2, 1, 0]):
        found = cs.log_density(posterior.take(np.array(order)), rows(seed=1), kind=kind)
        assert_allclose(found, expected, rtol=ROUNDING, atol=ROUNDING)


@every_type
@pytest.mark.parametrize("prior", ["dirichlet_distribution", "dirichlet_process"])
def test_a_model_its_posterior_and_its_file_have_one_density(covariance_type, prior, tmp_path):
    model = mixture(covariance_type, prior=prior)
    cs.save(model, tmp_path / "model.safetensors")
    forms = (model, cs.describe(model), tmp_path / "model.safetensors", cs.rebuild(cs.describe(model)))
    for kind in ("predictive", "plug-in", "bound"):
        first, *others = (cs.log_density(form, rows(seed=1), kind=kind) for form in forms)
        for other in others:
            assert_allclose(other, first, rtol=1e3 * ROUNDING, atol=1e3 * ROUNDING)


@every_type
def test_plug_in_densities_are_mixtures_of_gaussians_at_the_means_of_the_model(covariance_type):
    """The oracle is scikit-learn's GaussianMixture with the same weights, means and covariances."""
    model = mixture(covariance_type)
    plain = GaussianMixture(3, covariance_type=covariance_type)
    plain.weights_, plain.means_ = model.weights_, model.means_
    plain.covariances_, plain.precisions_cholesky_ = model.covariances_, model.precisions_cholesky_
    found = cs.log_density(model, rows(seed=1), kind="plug-in")
    assert_allclose(found, plain.score_samples(rows(seed=1)), rtol=1e2 * ROUNDING)


@every_type
def test_a_maximum_likelihood_mixture_is_its_own_plug_in_density_in_every_form(covariance_type, tmp_path):
    model = GaussianMixture(3, covariance_type=covariance_type, random_state=0).fit(rows())
    cs.save(model, tmp_path / "model.safetensors", n_observations=60)
    for form in (model, cs.describe(model, n_observations=60), tmp_path / "model.safetensors"):
        found = cs.log_density(form, rows(seed=1), kind="plug-in")
        assert_allclose(found, model.score_samples(rows(seed=1)), rtol=1e3 * ROUNDING)


def test_the_predictive_density_of_maximum_likelihood_needs_the_number_of_observations():
    model = GaussianMixture(3, random_state=0).fit(rows())
    with pytest.raises(
        cs.errors.OptionError,
        match=r"kind 'predictive' is not known without .*n_observations=` .*: plug-in \[E-VALUE\]$",
    ):
        cs.log_density(model, rows())
    few, many = (cs.log_density(cs.describe(model, n_observations=n), rows(seed=1)) for n in (30, 3e8))
    assert not np.allclose(few, many, atol=0.01)
    assert_allclose(many, model.score_samples(rows(seed=1)), atol=1e-4)


def test_models_are_compared_by_predictive_densities_first_then_plug_in_then_the_bound():
    own, other = mixture(), mixture(n=30)
    evaluation = cs.evaluate(other, own, rows(seed=1))
    assert [str(score.kind) for score in evaluation.scores] == ["predictive", "plug-in", "bound"]
    for score in evaluation.scores:
        assert_allclose(score.own, cs.log_density(own, rows(seed=1), kind=str(score.kind)).mean())
        assert_allclose(score.fused, cs.log_density(other, rows(seed=1), kind=str(score.kind)).mean())
    assert_allclose(evaluation.difference.mean, evaluation.scores[0].fused - evaluation.scores[0].own, rtol=1e-9)


def test_one_model_that_does_not_know_its_observations_leaves_plug_in_densities_for_both():
    model = GaussianMixture(3, random_state=0).fit(rows())
    knows, lacks = cs.describe(model, n_observations=60), cs.describe(model)
    assert [str(score.kind) for score in cs.evaluate(knows, knows, rows()).scores] == ["predictive", "plug-in"]
    for pair in ((knows, lacks), (lacks, knows), (lacks, lacks)):
        evaluation = cs.evaluate(*pair, rows())
        assert [str(score.kind) for score in evaluation.scores] == ["plug-in"]
        assert any(note.startswith("no predictive density is compared") for note in evaluation.notes)


def test_an_ensemble_has_the_mean_of_its_members_densities():
    members = [mixture(), mixture(n=30)]
    ensemble = cs.fuse(members, "ensemble", weights=[3.0, 1.0], min_count=0)
    for kind in ("predictive", "plug-in", "bound"):
        first, second = (cs.log_density(member, rows(seed=1), kind=kind) for member in members)
        expected = np.log(0.75 * np.exp(first) + 0.25 * np.exp(second))
        assert_allclose(cs.log_density(ensemble, rows(seed=1), kind=kind), expected, rtol=1e2 * ROUNDING)


def test_chunks_change_nothing(monkeypatch):
    expected = cs.log_density(mixture(), rows(seed=1))
    monkeypatch.setattr(mixture_density, "CHUNK_BYTES", 200)
    assert_allclose(cs.log_density(mixture(), rows(seed=1)), expected, rtol=ROUNDING)


def test_a_component_of_no_weight_adds_nothing():
    posterior = cs.describe(mixture())
    density = mixture_density.MixtureDensity(posterior.family, posterior.natural, np.array([1.0, 2.0, 0.0]))
    fewer = mixture_density.MixtureDensity(posterior.family, posterior.natural[:2], np.array([1.0, 2.0]))
    assert_allclose(density.log_predictive(rows()), fewer.log_predictive(rows()), rtol=ROUNDING)


def test_bad_questions_get_one_line():
    model = mixture()
    with pytest.raises(
        cs.errors.OptionError,
        match=r"^kind 'mean' is not known; expected one of: predictive, plug-in, bound \[E-VALUE\]$",
    ):
        cs.log_density(model, rows(), kind="mean")
    with pytest.raises(cs.errors.InputError, match=r"has 3 columns, expected 2 \[E-SHAPE\]$"):
        cs.log_density(model, rows(dim=3))
    with pytest.raises(cs.errors.InputError, match=r"sum to more than 0"):
        mixture_density.MixtureDensity(cs.describe(model).family, cs.describe(model).natural, np.zeros(3))
    with pytest.raises(cs.errors.InputError, match=r"no predictive density of data"):
        mixture_density.MixtureDensity(cs.families.Gamma(), np.ones((1, 2)), np.ones(1))


@every_type
def test_a_fused_maximum_likelihood_mixture_is_its_own_plug_in_density_where_sites_differ(covariance_type):
    """The hierarchical average discounts what is known of the means, and no covariance may follow that."""
    shifts = np.random.default_rng(0).normal(size=(4, 2))
    sites = [
        GaussianMixture(3, covariance_type=covariance_type, random_state=0).fit(rows(seed=seed, n=300) + shift)
        for seed, shift in enumerate(shifts)
    ]
    fusion = cs.fuse(sites, n_observations=[300] * 4, n_components=3)
    kappa = fusion.posterior.family.from_natural(fusion.posterior.natural)["kappa"]
    assert np.all(kappa < 0.5 * fusion.posterior.counts)
    found = cs.log_density(fusion, rows(seed=9), kind="plug-in")
    assert_allclose(found, cs.rebuild(fusion.posterior).score_samples(rows(seed=9)), rtol=1e3 * ROUNDING)
