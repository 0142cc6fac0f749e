"""Laws of models side by side: what they predict together, where that means something, and where it does not."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
from hmmlearn.hmm import GaussianHMM
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import quad
from scipy.special import logsumexp
from sklearn.cluster import KMeans
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import consilience as cs
from consilience.posteriors.adapters.hmmlearn.gaussian import GaussianHMMAdapter
from consilience.posteriors.model_ensemble import MixtureEnsemble, ModelEnsemble, RegressionEnsemble, ensemble_of
from consilience.posteriors.sparse_gp.kernels import RBF
from consilience.posteriors.sparse_gp.model import SparseGP
from tests.copies import COPIES
from tests.tolerances import QUADRATURE, ROUNDING

pytestmark = pytest.mark.covering(2)

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(90, 2)) + np.repeat([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]], 30, axis=0)
X = np.concatenate([ROWS[::9], [[20.0, -20.0]]])
MIXTURES = {
    "maximum likelihood": partial(GaussianMixture, reg_covar=1e-3, random_state=0),
    "diagonal": partial(GaussianMixture, covariance_type="diag", random_state=0),
    "variational": partial(BayesianGaussianMixture, random_state=0),
}
WEIGHTS = [2.0, 1.0, 1.0]
ADAPTER = GaussianHMMAdapter()
every_mixture = pytest.mark.parametrize("kind", MIXTURES)


def mixtures(kind):
    parts = (ROWS[:60], ROWS[30:], ROWS)
    return [MIXTURES[kind](n_components=count).fit(part) for count, part in zip((2, 2, 3), parts, strict=True)]


def process(seed, noise=0.1):
    rng = np.random.default_rng(seed)
    inputs = np.arange(4.0)[:, None] + rng.uniform(-0.3, 0.3, (4, 1))
    return SparseGP.whitened(
        inputs, rng.normal(size=4), np.diag(rng.uniform(0.1, 0.9, 4)), RBF(1.0, [1.0]), noise=noise
    )


def topics():
    counts = np.random.default_rng(1).poisson(1.0, (40, 8))
    words = [f"word {number}" for number in range(counts.shape[1])]
    fits = [LatentDirichletAllocation(3, max_iter=3, random_state=seed).fit(counts) for seed in (0, 1)]
    for model in fits:
        model.feature_names_in_ = np.array(words, dtype=object)
    return fits, counts


# -- Mixtures.


@COPIES
@every_mixture
def test_the_ensemble_of_one_model_many_times_is_the_model(kind):
    model = mixtures(kind)[2]
    fused = cs.fuse([model] * 3, "ensemble", n_observations=[90.0] * 3).model
    assert isinstance(fused, MixtureEnsemble)
    assert_allclose(fused.score_samples(X), model.score_samples(X), rtol=ROUNDING)
    assert_allclose(fused.score(X), model.score(X), rtol=ROUNDING)
    shares = fused.predict_proba(X).reshape(len(X), 3, 3).sum(axis=1)
    assert_allclose(shares, model.predict_proba(X), rtol=ROUNDING, atol=ROUNDING)
    assert_array_equal(fused.predict(X) % 3, model.predict(X))


@every_mixture
def test_the_ensemble_is_the_mean_of_densities_and_its_shares_are_probabilities(kind):
    models = mixtures(kind)
    fused = cs.fuse(models, "ensemble", weights=WEIGHTS, n_observations=[60.0, 60.0, 90.0]).model
    densities = np.stack([model.score_samples(X) for model in models])
    expected = logsumexp(densities + np.log([[0.5], [0.25], [0.25]]), axis=0)
    assert_allclose(fused.score_samples(X), expected, rtol=ROUNDING)
    shares = fused.predict_proba(X)
    assert shares.shape == (len(X), 7)
    assert np.all(shares >= 0)
    assert_allclose(shares.sum(axis=1), 1.0, rtol=ROUNDING)
    assert_array_equal(fused.predict(X), shares.argmax(axis=1))
    own = shares[:, :2] / shares[:, :2].sum(axis=1, keepdims=True)  # given that a row is the first model's
    assert_allclose(own, models[0].predict_proba(X), rtol=1e-9, atol=ROUNDING)


@pytest.mark.parametrize("samples", [(90.0, 90.0, 90.0), (180.0, 90.0, 90.0)])
@pytest.mark.parametrize("kind", ["maximum likelihood", "diagonal"])
def test_where_weights_agree_the_ensemble_has_the_density_of_the_concatenation(kind, samples):
    models = mixtures(kind)
    together = cs.fuse(models, "concatenate", n_observations=samples).model
    fused = cs.fuse(models, "ensemble", weights=samples, n_observations=samples).model
    assert_allclose(fused.score_samples(X), together.score_samples(X), rtol=ROUNDING)
    pairs = np.sort(fused.predict_proba(X), axis=1), np.sort(together.predict_proba(X), axis=1)
    assert_allclose(*pairs, rtol=1e-9, atol=ROUNDING)


@every_mixture
def test_the_order_of_models_changes_the_order_of_components_alone(kind):
    models = mixtures(kind)
    there = cs.fuse(models, "ensemble", weights=WEIGHTS, n_observations=[60, 60, 90]).model
    back = cs.fuse(models[::-1], "ensemble", weights=WEIGHTS[::-1], n_observations=[90, 60, 60]).model
    assert_allclose(back.score_samples(X), there.score_samples(X), rtol=ROUNDING)
    columns = np.concatenate([np.arange(5, 7), np.arange(3, 5), np.arange(3)])
    assert_allclose(back.predict_proba(X)[:, columns], there.predict_proba(X), rtol=ROUNDING, atol=ROUNDING)


def test_a_model_of_no_weight_is_not_asked():
    models = mixtures("variational")
    without, alone = cs.fuse(models, "ensemble", weights=[0.0, 0.0, 1.0]).model, models[2]
    assert len(without.members) == 1
    assert_allclose(without.score_samples(X), alone.score_samples(X), rtol=ROUNDING)


def test_rows_far_from_every_component_are_still_of_some():
    fused = cs.fuse(mixtures("maximum likelihood"), "ensemble", n_observations=[60, 60, 90]).model
    shares = fused.predict_proba([[1e4, -1e4]])
    assert_allclose(shares.sum(), 1.0, rtol=ROUNDING)


def test_files_make_the_same_ensemble(tmp_path):
    models = mixtures("variational")
    paths = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for model, path in zip(models, paths, strict=True):
        cs.save(model, path)
    of_files, of_models = cs.fuse(paths, "ensemble").model, cs.fuse(models, "ensemble").model
    assert_array_equal(of_files.score_samples(X), of_models.score_samples(X))


# -- Regression.


@COPIES
def test_the_ensemble_of_one_process_many_times_is_the_process():
    model = process(0)
    fused = cs.fuse([model] * 3, "ensemble").model
    assert isinstance(fused, RegressionEnsemble)
    rows = np.linspace(-2, 2, 9)[:, None]
    for noise in (False, True):
        for found, expected in zip(fused.predict(rows, noise=noise), model.predict(rows, noise=noise), strict=True):
            assert_allclose(found, expected, rtol=1e-9)
    assert_allclose(fused.log_density(rows, rows[:, 0]), model.log_density(rows, rows[:, 0]), rtol=1e-9)


def test_mean_and_variance_are_those_of_the_density():
    fused = ensemble_of([process(1), process(2), process(3, noise=0.4)], WEIGHTS)
    (mean,), (variance,) = fused.predict([[0.3]], noise=True)

    def moment(power):
        middle = mean if power == 2 else 0.0

        def weighted(y):
            return (y - middle) ** power * np.exp(fused.log_density([[0.3]], [y])[0])

        return quad(weighted, -15, 15, points=[mean], limit=200)[0]

    assert_allclose([moment(0), moment(1), moment(2)], [1.0, mean, variance], rtol=QUADRATURE, atol=QUADRATURE)


# -- What has no common meaning.


@COPIES
@pytest.mark.parametrize("method", ["predict", "transform", "score"])
def test_what_members_say_of_things_of_their_own_is_not_averaged(method):
    fused = cs.fuse([KMeans(2, n_init=1, random_state=seed).fit(ROWS) for seed in (0, 1)], "ensemble").model
    assert type(fused) is ModelEnsemble
    assert not hasattr(fused, method)
    text = f"^ModelEnsemble has no attribute '{method}'; what .* KMeans .* no common meaning: ask the members"
    with pytest.raises(AttributeError, match=text):
        getattr(fused, method)


def test_what_no_member_has_is_no_attribute_either():
    fused = cs.fuse(mixtures("variational"), "ensemble").model
    with pytest.raises(AttributeError, match=r"^MixtureEnsemble has no attribute 'transform' \[E-ATTRIBUTE\]$"):
        fused.transform(X)


def test_posteriors_of_no_model_predict_nothing():
    family = cs.families.Gamma()
    sites = [cs.Posterior(family, family.to_natural(shape=[2.0], rate=[rate])) for rate in (1.0, 2.0)]
    fused = cs.fuse(sites, "ensemble").model
    assert [type(member) for member in fused.members] == [cs.Posterior] * 2
    with pytest.raises(AttributeError, match=r"^ModelEnsemble has no attribute 'predict' \[E-ATTRIBUTE\]$"):
        fused.predict(X)


# -- A value.


def test_an_ensemble_is_a_value():
    fused = cs.fuse(mixtures("variational"), "ensemble", weights=WEIGHTS).model
    assert_allclose(fused.weights, [0.5, 0.25, 0.25])
    with pytest.raises(ValueError, match="read-only"):
        fused.weights[0] = 1.0
    for twin in (copy.copy(fused), copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):  # noqa: S301
        assert_allclose(twin.score_samples(X), fused.score_samples(X), rtol=ROUNDING)
    assert "members" in repr(fused)


@pytest.mark.parametrize(
    ("members", "weights", "error", "text"),
    [
        ((), (), cs.errors.InputError, "an ensemble needs at least one member"),
        ((1, 2), (1.0,), cs.errors.OptionError, "weights of the members: expected 2 numbers"),
        (
            (1, 2),
            (0.0, 0.0),
            cs.errors.OptionError,
            "weights of the members: must be finite, not negative and not all zero",
        ),
    ],
)
def test_members_and_weights_must_fit(members, weights, error, text):
    with pytest.raises(error, match=text):
        ModelEnsemble(members, weights)


def test_an_ensemble_is_not_saved(tmp_path):
    fusion = cs.fuse(mixtures("variational"), "ensemble")
    path = tmp_path / "fused.safetensors"
    with pytest.raises(
        cs.errors.InputError, match=r"an ensemble is its members; keep the sites' files, or use method 'concat"
    ):
        fusion.save(path)
    with pytest.raises(
        cs.errors.UnsupportedError, match=r"no adapter for consilience\.posteriors\.model_ensemble\.MixtureEnsemble"
    ):
        cs.save(fusion.model, path)
    assert not path.exists()


def test_an_ensemble_has_a_report(tmp_path):
    cs.fuse(mixtures("variational"), "ensemble").report(tmp_path / "report.html")
    assert cs.methods.PredictionEnsemble.summary in " ".join((tmp_path / "report.html").read_text().split())


# -- Evaluation.


@every_mixture
def test_an_ensemble_of_mixtures_is_evaluated_by_its_density(kind):
    models = mixtures(kind)
    fusion = cs.fuse(models, "ensemble", n_observations=[60.0, 60.0, 90.0])
    evaluation = cs.evaluate(fusion, models[0], ROWS)
    first, last = evaluation.scores[0], evaluation.scores[-1]  # the last is what scikit-learn calls a score
    assert_allclose(last.fused, fusion.model.score(ROWS), rtol=ROUNDING)
    assert_allclose(last.own, models[0].score(ROWS), rtol=ROUNDING)
    assert_allclose(first.fused, cs.log_density(fusion, ROWS, kind=str(first.kind)).mean(), rtol=ROUNDING)
    assert evaluation.usage.fused.sum() == len(ROWS)
    assert evaluation.usage.fused.shape == (7,)


def test_an_ensemble_of_processes_is_evaluated_by_its_density():
    models, rows = [process(1), process(2)], np.random.default_rng(2).normal(size=(60, 2))
    fusion = cs.fuse(models, "ensemble")
    found = cs.evaluate(fusion, models[0], rows).scores[0].fused
    assert_allclose(found, fusion.model.log_density(rows[:, :1], rows[:, 1]).mean(), rtol=1e-9)


@COPIES
def test_an_ensemble_of_topic_models_is_evaluated_by_the_tokens_that_it_predicts():
    models, counts = topics()
    twice = cs.evaluate(cs.fuse([models[0], models[0]], "ensemble"), models[0], counts)
    assert_allclose(twice.difference.mean, 0.0, atol=1e-9)
    assert_allclose(twice.usage.fused.reshape(2, 3).sum(axis=0), twice.usage.own, atol=1)
    both = cs.evaluate(cs.fuse(models, "ensemble"), models[0], counts).scores[0].fused
    alone = [cs.evaluate(model, model, counts).scores[0].fused for model in models]
    assert min(alone) - np.log(2) <= both <= max(alone) + np.log(2)


def test_an_ensemble_of_topics_is_not_asked_about_part_of_its_words():
    models, counts = topics()
    for start, model in enumerate(models):
        model.feature_names_in_ = np.array([f"word{number}" for number in range(start, start + 8)], dtype=object)
    fusion = cs.fuse(models, "ensemble")
    with pytest.raises(
        cs.errors.UnsupportedError, match=r"^the fused model: its models have words that your own model lacks"
    ):
        cs.evaluate(fusion, models[0], counts)


def test_an_ensemble_of_hidden_markov_models_predicts_every_row_from_those_before():
    rows = np.random.default_rng(3).normal(size=(80, 1)) + np.repeat([0.0, 4.0, 0.0, 4.0], 20)[:, None]
    models = [GaussianHMM(2, n_iter=5, random_state=seed).fit(rows[30 * seed :]) for seed in (0, 1)]
    fusion = cs.fuse(models, "ensemble", n_observations=[80, 50])
    each = [ADAPTER.scores(member, rows).values for member in fusion.model.members]
    found = cs.evaluate(fusion, models[0], rows).scores[0].fused
    assert_allclose(found, np.mean(logsumexp(each, axis=0) - np.log(2)), rtol=1e-9)
    assert not hasattr(fusion.model, "predict")


@COPIES
def test_an_ensemble_of_centres_has_no_score():
    models = [KMeans(2, n_init=1, random_state=seed).fit(ROWS) for seed in (0, 1)]
    with pytest.raises(
        cs.errors.UnsupportedError, match=r"^an ensemble of KMeans has no score: a squared distance .* no densit"
    ):
        cs.evaluate(cs.fuse(models, "ensemble"), models[0], ROWS)


def test_models_trained_on_named_columns_are_evaluated_without_a_warning():
    models = mixtures("maximum likelihood")
    for model in models:
        model.feature_names_in_ = np.array(["x", "y"], dtype=object)
    evaluation = cs.evaluate(cs.fuse(models, "ensemble", n_observations=[60, 60, 90]), models[0], ROWS)
    assert len(evaluation.scores) == 1
