"""Gaussian topics: the learner against k-means of single tokens, the value, and fusing it like any other model."""

from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans

import consilience as cs
from consilience.posteriors.topics.gaussian_topics import GaussianTopicModel, GaussianTopics
from tests.tolerances import ROUNDING

CENTRES = np.array([[6.0, 0.0, 1.0], [0.0, 6.0, 1.0], [-6.0, -6.0, 1.0], [6.0, 6.0, -8.0]])
WORDS = [f"word-{number:02d}" for number in range(60)]
EMBEDDINGS = CENTRES.repeat(15, axis=0) + np.random.default_rng(0).normal(size=(60, 3))


@cache
def documents(seed, topics=(0, 1, 2, 3)):
    """Counts (20, V): every document is of one topic."""
    rng = np.random.default_rng(seed)
    made = np.zeros((20, 60))
    for row in made:
        start = 15 * rng.choice(topics)
        row[start : start + 15] = rng.poisson(2.0, 15)
    return made


def lists(counts):
    return [[WORDS[word] for word in np.flatnonzero(row) for _ in range(int(row[word]))] for row in counts]


@cache
def fitted(seed=0, topics=(0, 1, 2, 3)):
    return GaussianTopics(len(topics), seed=seed, space="planted").fit(documents(seed, topics), EMBEDDINGS, WORDS)


def in_order(values):
    return values[np.lexsort(values.T)]


# -- The learner


def test_the_fit_is_k_means_of_every_single_token():
    """The oracle: one row for each token, unweighted, started at the planted centres."""
    tokens = np.repeat(EMBEDDINGS, documents(0).sum(axis=0).astype(int), axis=0)
    expected = KMeans(4, init=CENTRES, n_init=1).fit(tokens)
    found = fitted()
    assert_allclose(in_order(found.centers), in_order(expected.cluster_centers_), rtol=1e-9)
    assert sorted(found.counts) == sorted(np.bincount(expected.labels_))


@pytest.mark.parametrize("form", [lists, sparse.csr_array, np.ndarray.tolist, lambda counts: counts.sum(axis=0)])
def test_documents_may_come_in_any_form(form):
    found = GaussianTopics(4, space="planted").fit(form(documents(0)), EMBEDDINGS, WORDS)
    assert_allclose(found.centers, fitted().centers, rtol=ROUNDING)
    assert_array_equal(found.counts, fitted().counts)


def test_words_without_an_embedding_and_those_outside_the_vocabulary_are_left_out():
    more = [*lists(documents(0)), ["unheard", "of"], [], ["nowhere"] * 9]
    embeddings, words = np.vstack([EMBEDDINGS, np.zeros(3)]), [*WORDS, "nowhere"]
    found = GaussianTopics(4).fit(more, embeddings, words)
    assert_allclose(found.centers, fitted().centers, rtol=ROUNDING)
    assert found.counts.sum() == documents(0).sum()


def test_the_same_seed_gives_the_same_topics():
    again = GaussianTopics(4, seed=0).fit(documents(0), EMBEDDINGS)
    assert again.centers.tobytes() == fitted().centers.tobytes()


BAD_FITS = {
    "too few words": (lambda: GaussianTopics(99).fit(documents(0), EMBEDDINGS), "have 60 words .* too few for 99 topi"),
    "nothing": (lambda: GaussianTopics(4).fit(np.zeros((2, 60)), EMBEDDINGS), "have 0 words"),
    "no vocabulary": (lambda: GaussianTopics(4).fit([["a"]], EMBEDDINGS), "^vocabulary: needed where documents are li"),
    "another width": (lambda: GaussianTopics(4).fit(np.ones((2, 7)), EMBEDDINGS), "has 7 columns, expected 60"),
    "parts of tokens": (lambda: GaussianTopics(4).fit(documents(0) / 2, EMBEDDINGS), "expected a number of tokens"),
    "a short vocabulary": (lambda: GaussianTopics(4).fit(documents(0), EMBEDDINGS, WORDS[:9]), "of the 9 words, found"),
    "a word twice": (
        lambda: GaussianTopics(4).fit(lists(documents(0)), EMBEDDINGS, [*WORDS[1:], "word-01"]),
        "2 times",
    ),
    "nan": (
        lambda: GaussianTopics(4).fit(documents(0), EMBEDDINGS * np.nan),
        "^embeddings: row 0, counted from 0, has",
    ),
    "no rows": (lambda: GaussianTopics(4).fit(documents(0), np.ones((2, 2, 2))), "^embeddings: expected an array"),
}


@pytest.mark.parametrize("case", BAD_FITS)
def test_what_cannot_be_fitted_is_refused(case):
    fit, message = BAD_FITS[case]
    with pytest.raises(cs.errors.InputError, match=message):
        fit()


@pytest.mark.parametrize("option", ["n_topics", "restarts", "max_iterations"])
def test_impossible_options_are_refused(option):
    with pytest.raises(cs.errors.OptionError, match=f"^{option}: expected a positive integer, found 0"):
        GaussianTopics(**{option: 0})


# -- The value


def test_the_words_of_a_topic_are_the_nearest():
    model = fitted()
    distances = cdist(model.centers, EMBEDDINGS)
    expected = [[WORDS[word] for word in np.argsort(row)[:7]] for row in distances]
    assert model.top_words(7, EMBEDDINGS, WORDS) == expected
    assert [len(words) for words in model.top_words(99, EMBEDDINGS, WORDS)] == [60] * 4


def test_shares_of_documents_are_shares_of_their_tokens():
    model, counts = fitted(), documents(3)
    shares = model.transform(sparse.csr_array(counts), EMBEDDINGS)
    topic = cdist(EMBEDDINGS, model.centers).argmin(axis=1)
    expected = np.array([np.bincount(topic, row, 4) / row.sum() for row in counts])
    assert_allclose(shares, expected, rtol=ROUNDING)
    assert_array_equal(model.assign(EMBEDDINGS), topic)
    assert_array_equal(model.transform(np.zeros((1, 60)), EMBEDDINGS), [[0.0] * 4])


def test_a_value_stays_what_it_is():
    centers = CENTRES.copy()
    model = GaussianTopicModel(centers, [1, 2, 3, 4])
    centers[:] = 0
    assert_array_equal(model.centers, CENTRES)
    with pytest.raises(ValueError, match="read-only"):
        model.centers[0] = 1


@pytest.mark.parametrize(
    ("centers", "counts"),
    [(CENTRES, [1, 2]), (CENTRES * np.nan, [1] * 4), (CENTRES, [1, 2, 3, -1]), (CENTRES, [1, 2, 3, np.inf])],
)
def test_impossible_values_are_refused(centers, counts):
    with pytest.raises(cs.errors.InputError, match=r"counts: expected 4 values|must be finite"):
        GaussianTopicModel(centers, counts)


def test_impossible_questions_are_refused():
    with pytest.raises(cs.errors.OptionError, match=r"^n: expected a positive number of words, found 0 \[E-VALUE\]$"):
        fitted().top_words(0, EMBEDDINGS, WORDS)
    with pytest.raises(cs.errors.InputError, match="one row for each of the 3 words, found 60"):
        fitted().top_words(2, EMBEDDINGS, WORDS[:3])
    with pytest.raises(cs.errors.InputError, match=r"embeddings: expected an array of shape \(n, 3\)"):
        fitted().assign(EMBEDDINGS[:, :2])


# -- Like any other model


def test_a_described_model_comes_back_bit_for_bit_also_from_its_file(tmp_path):
    model = fitted()
    cs.save(model, tmp_path / "site.safetensors")
    for posterior in (model.posterior, cs.describe(model), cs.load(tmp_path / "site.safetensors")):
        assert posterior.family == cs.families.Point(3)
        again = cs.rebuild(posterior)
        assert type(again) is GaussianTopicModel
        assert again.space == "planted"
        assert again.centers.tobytes() == model.centers.tobytes()
        assert again.counts.tobytes() == model.counts.tobytes()


@pytest.mark.parametrize(
    "options",
    [
        {"method": "kl", "n_components": 4},
        {"method": "spahm"},
        {"method": "kmeans", "n_components": 4},
        {"method": "average"},
        {"method": "concatenate"},
    ],
    ids=lambda options: options["method"],
)
def test_fusing_gives_topics_back_whatever_the_order_of_sites(options):
    models = [fitted(seed) for seed in range(3)]
    fusion = cs.fuse(models, **options)
    assert type(fusion.model) is GaussianTopicModel
    assert fusion.model.n_topics == fusion.n_components
    assert fusion.model.counts.sum() == sum(model.counts.sum() for model in models)
    again = cs.fuse(models[::-1], **options)
    assert again.model.centers.tobytes() == fusion.model.centers.tobytes()
    assert len(fusion.model.top_words(3, EMBEDDINGS, WORDS)) == fusion.n_components


@pytest.mark.parametrize("method", ["kl", "kmeans"])
def test_planted_topics_of_sites_with_parts_of_them_are_found(method):
    """No site has all four, and none has a word of every other."""
    models = [fitted(seed, topics) for seed, topics in enumerate([(0, 1), (1, 2), (2, 3), (0, 3), (0, 2)])]
    model = cs.fuse(models, method, n_components=4).model
    distances = cdist(CENTRES, model.centers)
    assert sorted(distances.argmin(axis=1)) == [0, 1, 2, 3]
    assert distances.min(axis=1).max() < 1.0


def test_topics_in_other_embeddings_are_refused():
    other = GaussianTopics(4, space="glove.6B.50d").fit(documents(1), EMBEDDINGS)
    (problem,) = cs.check([fitted(), other])
    assert problem == "model 1: has space 'glove.6B.50d', expected 'planted' as in model 0 [E-MISMATCH]"
    flat = GaussianTopics(4, space="planted").fit(documents(1), EMBEDDINGS[:, :2])
    (problem,) = cs.check([fitted(), flat])
    assert problem == "model 1: is Point(dim=2), expected Point(dim=3) as in model 0 [E-MISMATCH]"


def test_an_evaluation_is_the_distance_of_tokens_to_the_nearest_centre():
    own, fused = fitted(0, (0, 1)), cs.fuse([fitted(0, (0, 1)), fitted(1, (2, 3))], n_components=4)
    evaluation = cs.evaluate(fused, own, EMBEDDINGS)
    expected = [np.mean(cdist(EMBEDDINGS, model.centers).min(axis=1) ** 2) for model in (fused.model, own)]
    assert_allclose([evaluation.scores[0].fused, evaluation.scores[0].own], expected, rtol=1e-9)
    assert evaluation.better == "fused"


def test_posteriors_that_are_not_of_topics_are_refused():
    posterior = fitted().posterior
    family = cs.families.Gamma()
    gammas = cs.Posterior(family, family.to_natural(shape=[2.0], rate=[1.0]), source=posterior.source)
    with pytest.raises(cs.errors.InputError, match=r"has point components, found Gamma\(\) \[E-TYPE\]$"):
        cs.rebuild(gammas)
    bare = cs.Posterior(posterior.family, posterior.natural, source=posterior.source)
    with pytest.raises(cs.errors.InputError, match=r"lacks counts, which rebuilding needs \[E-NEEDED\]$"):
        cs.rebuild(bare)
    spaceless = cs.Posterior(
        posterior.family, posterior.natural, counts=[1] * 4, source={"kind": "consilience.GaussianTopics"}
    )
    with pytest.raises(cs.errors.InputError, match=r"lacks 'space', which rebuilding needs \[E-NEEDED\]$"):
        cs.rebuild(spaceless)


def test_words_of_equal_embeddings_are_too_few_for_topics():
    embeddings = np.repeat(np.eye(3), 4, axis=0)  # 12 words at three places
    documents = np.ones((5, 12), dtype=int)
    with pytest.raises(cs.errors.InputError, match="have 3 words with embeddings that differ, too few for 4 topics"):
        GaussianTopics(4).fit(documents, embeddings)
