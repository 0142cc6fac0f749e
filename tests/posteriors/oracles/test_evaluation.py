"""Scores against scikit-learn and direct loops; paired differences against SciPy; what an evaluation says."""

import json
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.cluster import KMeans
from sklearn.datasets import load_wine
from sklearn.metrics import adjusted_mutual_info_score
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.preprocessing import scale

import consilience as cs
from consilience.core.scores import paired_difference
from tests.tolerances import ROUNDING

WINE = load_wine()
X = scale(WINE.data)[:, [0, 6, 9, 12]]
TRAIN = np.arange(len(X)) % 2 == 0
HELD_OUT = X[~TRAIN]
MIXTURES = [GaussianMixture, BayesianGaussianMixture]


def site(kind, classes, components=2):
    sizes = {"n_clusters" if kind is KMeans else "n_components": components}
    return kind(**sizes, random_state=0).fit(X[TRAIN & np.isin(WINE.target, classes)])


# -- Scores


@pytest.mark.parametrize("kind", MIXTURES)
def test_the_score_of_a_mixture_is_that_of_scikit_learn(kind):
    fused, own = site(kind, [0, 1, 2], 3), site(kind, [0, 1])
    evaluation = cs.evaluate(fused, own, HELD_OUT)
    score = evaluation.scores[-1]  # before a variational bound there are the densities of docs/concepts/scores.md
    assert str(score.kind) == ("plug-in" if kind is GaussianMixture else "bound")
    assert (score.unit, score.larger_is_better) == ("nats per row", True)
    assert_allclose([score.fused, score.own], [fused.score(HELD_OUT), own.score(HELD_OUT)], rtol=ROUNDING)
    assert evaluation.usage.fused.tolist() == np.bincount(fused.predict(HELD_OUT), minlength=3).tolist()
    assert evaluation.usage.own.tolist() == np.bincount(own.predict(HELD_OUT), minlength=2).tolist()


def test_the_score_of_kmeans_is_the_distance_to_the_nearest_centre():
    fused, own = site(KMeans, [0, 1, 2], 3), site(KMeans, [0, 1])
    evaluation = cs.evaluate(fused, own, HELD_OUT)
    (score,) = evaluation.scores
    assert not score.larger_is_better
    for found, model in ((score.fused, fused), (score.own, own)):
        nearest = [min(((row - centre) ** 2).sum() for centre in model.cluster_centers_) for row in HELD_OUT]
        assert_allclose(found, np.mean(nearest), rtol=ROUNDING)
        assert_allclose(found, -model.score(HELD_OUT) / len(HELD_OUT), rtol=ROUNDING)
    assert evaluation.difference.mean < 0
    assert evaluation.better == "fused"
    assert any("distances shrink with every centre" in note for note in evaluation.notes)


def test_kmeans_in_single_precision_can_be_scored():
    own = KMeans(2, n_init=1, random_state=0).fit(X[TRAIN].astype(np.float32))
    assert own.cluster_centers_.dtype == np.float32
    assert cs.evaluate(own, cs.describe(own), HELD_OUT).better is None


@pytest.mark.parametrize("kind", [*MIXTURES, KMeans])
def test_mutual_information_is_that_of_scikit_learn(kind):
    fused, own = site(kind, [0, 1, 2], 3), site(kind, [0, 1])
    classes = WINE.target[~TRAIN]
    expected = [adjusted_mutual_info_score(classes, model.predict(HELD_OUT)) for model in (fused, own)]
    for labels in (classes, classes.astype(float), classes.astype(str), [f"kind {c}" for c in classes]):
        score = cs.evaluate(fused, own, HELD_OUT, labels=labels).scores[-1]
        assert score.larger_is_better
        assert_allclose([score.fused, score.own], expected, rtol=ROUNDING)


# -- Paired differences


def test_the_interval_of_equal_weights_is_that_of_a_paired_t_test():
    rng = np.random.default_rng(0)
    for n in (2, 7, 200):
        fused, own = rng.normal(0.3, size=n), rng.normal(size=n)
        found, expected = paired_difference(fused, own, np.ones(n)), stats.ttest_rel(fused, own)
        interval = expected.confidence_interval(0.95)
        assert_allclose(found.interval, [interval.low, interval.high], rtol=1e-9)
        assert_allclose(found.standard_error, stats.sem(fused - own), rtol=1e-9)
        assert_allclose(found.mean / found.standard_error, expected.statistic, rtol=1e-9)
        assert found.n_observations == n
        assert_allclose(found.margin, found.mean - interval.low, rtol=1e-9)


def test_the_error_of_a_ratio_is_what_resampling_documents_finds():
    rng = np.random.default_rng(1)
    weights = rng.integers(1, 60, 400).astype(float)
    fused, own = rng.normal(size=400) + 0.02 * weights, rng.normal(size=400)
    found = paired_difference(fused, own, weights)
    draws = rng.integers(400, size=(4000, 400))
    means = ((fused - own) * weights)[draws].sum(axis=1) / weights[draws].sum(axis=1)
    assert_allclose(found.mean, np.average(fused - own, weights=weights), rtol=ROUNDING)
    assert_allclose(found.standard_error, means.std(), rtol=0.05)


def test_observations_without_weight_do_not_count():
    fused, own, weights = np.array([1.0, 5.0, 2.5, 9.0]), np.zeros(4), np.array([2.0, 0.0, 2.0, 0.0])
    assert paired_difference(fused, own, weights) == paired_difference(fused[::2], own[::2], np.ones(2))


def test_one_observation_tells_no_interval():
    found = paired_difference(np.ones(1), np.zeros(1), np.ones(1))
    assert (found.mean, found.standard_error, found.interval) == (1.0, np.inf, (-np.inf, np.inf))
    assert found.sign == 0
    assert paired_difference(np.ones(1), np.zeros(1), np.zeros(1)).n_observations == 0


def test_rounding_is_no_difference():
    """Every row 1e-13 better would have an interval without zero."""
    own = np.linspace(-5, -4, 50)
    found = paired_difference(own + 1e-13, own, np.ones(50))
    assert (found.mean, found.interval, found.sign) == (0.0, (0.0, 0.0), 0)
    assert paired_difference(own + 1e-3, own, np.ones(50)).sign == 1


@pytest.mark.slow
def test_the_interval_covers_the_truth():
    rng = np.random.default_rng(2)
    for n in (10, 100):
        hits = 0
        for _ in range(4000):
            low, high = paired_difference(rng.normal(size=n), rng.normal(size=n), np.ones(n)).interval
            hits += low < 0 < high
        assert abs(hits / 4000 - 0.95) < 0.02


# -- What is said


@pytest.fixture(scope="module")
def adopted():
    """Sites that each lack one kind of wine, the first of them as it is judged on wines of all kinds."""
    models = [site(BayesianGaussianMixture, kinds) for kinds in ([0, 1], [1, 2], [0, 2])]
    return cs.fuse(models), models[0]


def test_the_verdict_is_for_the_fused_model_where_it_knows_more(adopted):
    evaluation = cs.evaluate(*adopted, HELD_OUT)
    assert evaluation.better == "fused"
    assert re.fullmatch(
        r"the fused model is better by [\d.]+ ± [\d.]+ nats per row \(95 % interval, 89 rows\)", evaluation.verdict
    )


def test_the_verdict_is_for_the_own_model_where_the_fused_one_knows_more_than_is_asked():
    """A component that a site does not have takes weight from those that it has, and that alone decides here."""
    rng = np.random.default_rng(0)
    groups = [rng.normal(size=(300, 2)) + centre for centre in ([0, 0], [9, 0], [0, 9])]
    sites = [np.vstack([groups[k][:150] for k in kinds]) for kinds in ([0, 1], [1, 2], [0, 2])]
    models = [BayesianGaussianMixture(n_components=2, random_state=0).fit(rows) for rows in sites]
    fusion, own = cs.fuse(models, n_components=3), models[0]
    evaluation = cs.evaluate(fusion, own, np.vstack([groups[0][150:], groups[1][150:]]))
    assert evaluation.better == "own"
    assert evaluation.verdict.startswith("your own model is better here, by ")
    (unseen,) = evaluation.usage.unseen
    assert evaluation.usage.fused[unseen] == 0
    share = fusion.model.weights_[unseen]
    cost = -np.log(1 - share)
    (note,) = [note for note in evaluation.notes if "never seen here" in note]
    assert f"hold {100 * share:.0f} % of the fused model's weight, which costs it about {cost:.2g} nats" in note
    assert_allclose(-evaluation.difference.mean, cost, rtol=0.1)
    assert f"fused components never seen here: component {unseen}" in str(evaluation)


def test_no_verdict_where_the_interval_holds_zero(adopted):
    evaluation = cs.evaluate(*adopted, HELD_OUT[WINE.target[~TRAIN] < 2][::3])
    low, high = evaluation.difference.interval
    assert low < 0 < high
    assert evaluation.better is None
    assert evaluation.verdict.startswith("no significant difference: fused minus own is ")
    assert any("only 22 rows: the interval is rough" in note for note in evaluation.notes)


def test_one_row_is_too_few(adopted):
    evaluation = cs.evaluate(*adopted, HELD_OUT[:1])
    assert evaluation.verdict == "no difference can be estimated from fewer than two rows"
    document = json.loads(json.dumps(evaluation.to_json(), allow_nan=False))
    assert document["difference"]["standard_error"] is None
    assert document["difference"]["interval"] == [None, None]


def test_it_is_said_that_training_data_favour_their_model(adopted):
    training = X[TRAIN & (WINE.target < 2)]
    for data, asked in ((training, True), (HELD_OUT, False)):
        text = str(cs.evaluate(*adopted, data))
        assert "scores on a model's own training data favour that model" in text
        assert (f"trained on as many rows as these, {len(training)}: are they the same?" in text) is asked


def test_a_mixture_that_does_not_know_its_rows_is_not_asked():
    own = GaussianMixture(2, random_state=0).fit(X)
    assert "are they the same?" not in str(cs.evaluate(own, own, np.tile(X, (6, 1))[:1000]))


def test_the_values_are_those_of_the_words(adopted):
    evaluation = cs.evaluate(*adopted, HELD_OUT, WINE.target[~TRAIN])
    document = json.loads(json.dumps(evaluation.to_json(), allow_nan=False))
    assert document["verdict"] == evaluation.verdict == str(evaluation).splitlines()[0]
    assert document["better"] == "fused"
    assert document["usage"]["fused"] == evaluation.usage.fused.tolist()
    assert [score["name"] for score in document["scores"]] == [score.name for score in evaluation.scores]
    low, high = document["difference"]["interval"]
    assert low < document["difference"]["mean"] < high
    for score in evaluation.scores:
        assert f"{score.own:.4f}" in str(evaluation)
        assert f"{score.fused:.4f}" in str(evaluation)
    with pytest.raises(AttributeError):
        evaluation.skipped = 3
