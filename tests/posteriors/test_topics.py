"""Laws of gensim's topic models, in and out, and that they are the same thing as scikit-learn's."""

from functools import cache

import numpy as np
import pytest
from gensim.corpora import Dictionary
from gensim.models import LdaModel
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.decomposition import LatentDirichletAllocation

import consilience as cs
from consilience.posteriors.adapters.table import adapter_of
from consilience.posteriors.topics.document_completion import fold_in
from tests.tolerances import LIBRARY_DOCUMENT_STEP, ROUNDING, SINGLE_PRECISION

pytestmark = pytest.mark.covering(2)

WORDS, TOPICS = 40, 3
NEW = 9  # the seed of documents that no model was trained on
NAMES = [f"word-{number:02d}" for number in range(WORDS)]
SETTLED = {"iterations": 1000, "gamma_threshold": 1e-7}

KINDS = {
    "defaults": {},
    "double precision": {"dtype": np.float64},
    "numbers": {"alpha": 0.2, "eta": 0.05},
    "learned": {"alpha": "auto", "eta": "auto"},
    "falling": {"alpha": "asymmetric"},
    "eta by word": {"alpha": [0.1, 0.2, 0.5], "eta": np.linspace(0.05, 0.2, WORDS)},
}
"""Ways to set the two priors of a gensim model."""

every_kind = pytest.mark.parametrize("kind", KINDS)


@cache
def documents(seed=0):
    """Counts (60, V) of three planted topics with words of their own; a dozen of documents for new ones."""
    rng = np.random.default_rng(seed)
    topics = np.full((TOPICS, WORDS), 0.1)
    for topic in range(TOPICS):
        topics[topic, topic * 12 : (topic + 1) * 12] = 2.0
    shares = rng.dirichlet(np.full(TOPICS, 0.2), 12 if seed == NEW else 60) @ (
        topics / topics.sum(axis=1, keepdims=True)
    )
    return np.array([rng.multinomial(60, share) for share in shares])


def bags(counts):
    """Documents as gensim has them."""
    return [[(int(word), int(row[word])) for word in np.flatnonzero(row)] for row in counts]


def dictionary(names=NAMES):
    made = Dictionary()
    made.token2id = {name: number for number, name in enumerate(names)}
    return made


@cache
def fitted(kind="defaults", seed=0):
    return LdaModel(bags(documents(seed)), TOPICS, dictionary(), passes=5, random_state=seed, **KINDS[kind])


def proportions(model, counts):
    """Topic proportions of documents, inferred to the end."""
    vars(model).update(SETTLED)
    found = [dict(model.get_document_topics(bag, minimum_probability=0.0)) for bag in bags(counts)]
    return np.array([[row.get(topic, 0.0) for topic in range(model.num_topics)] for row in found])


def arrays(posterior):
    found = {name: getattr(posterior, name) for name in ("natural", "prior", "counts")}
    return found | {name: one.values for name, one in posterior.attached.items()}


# -- In and out


@every_kind
def test_a_rebuilt_model_has_the_same_topics_and_says_the_same_of_documents(kind):
    model = fitted(kind)
    rebuilt = cs.rebuild(cs.describe(model))
    assert type(rebuilt) is LdaModel
    assert rebuilt.dtype == np.float64
    assert_allclose(rebuilt.get_topics(), model.get_topics(), rtol=SINGLE_PRECISION)
    new = documents(NEW)
    assert_allclose(proportions(rebuilt, new), proportions(model, new), atol=LIBRARY_DOCUMENT_STEP)
    assert [[word for word, _ in topic] for _, topic in rebuilt.show_topics(formatted=False)] == [
        [word for word, _ in topic] for _, topic in model.show_topics(formatted=False)
    ]
    if kind != "learned":  # what gensim learns of eta is in its bound, but not in its topics
        assert_allclose(rebuilt.bound(bags(new)), model.bound(bags(new)), rtol=LIBRARY_DOCUMENT_STEP)
        assert_allclose(rebuilt.log_perplexity(bags(new)), model.log_perplexity(bags(new)), rtol=LIBRARY_DOCUMENT_STEP)


@every_kind
def test_the_dictionary_comes_back(kind):
    rebuilt = cs.rebuild(cs.describe(fitted(kind)))
    assert [rebuilt.id2word[number] for number in range(WORDS)] == NAMES
    assert rebuilt.id2word.doc2bow(["word-03", "word-01", "word-03", "new"]) == [(1, 1), (3, 2)]


@every_kind
def test_describing_what_was_rebuilt_gives_the_same_posterior(kind):
    expected = cs.describe(fitted(kind))
    found = cs.describe(cs.rebuild(expected))
    assert (found.family, found.features, dict(found.source)) == (
        expected.family,
        expected.features,
        dict(expected.source),
    )
    assert arrays(found).keys() == arrays(expected).keys()
    for name, values in arrays(expected).items():
        error = SINGLE_PRECISION if name.startswith("doc_topic") else ROUNDING  # 1 / K of single precision
        assert_allclose(arrays(found)[name], values, rtol=error, atol=ROUNDING * np.abs(values).max(), err_msg=name)


@every_kind
def test_files_keep_every_bit(kind, tmp_path):
    expected = cs.describe(fitted(kind))
    cs.save(fitted(kind), tmp_path / "site.safetensors")
    found = cs.load(tmp_path / "site.safetensors")
    assert (found.features, dict(found.source)) == (expected.features, dict(expected.source))
    for name, values in arrays(expected).items():
        assert arrays(found)[name].tobytes() == values.tobytes(), name


@every_kind
def test_counts_are_the_tokens(kind):
    posterior = cs.describe(fitted(kind))
    assert_allclose(posterior.counts.sum(), documents().sum(), rtol=LIBRARY_DOCUMENT_STEP)
    concentration = posterior.parameters()["concentration"]
    assert_allclose(posterior.counts, (concentration - posterior.prior - 1.0).sum(axis=1), rtol=1e-9)
    assert float(posterior.attached["documents"].values) == len(documents())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::consilience.errors.HarmWarning")  # topics averaged by their index, which harms
@every_kind
@pytest.mark.parametrize("method", ["kl", "spahm", "amps", "kmeans", "average", "concatenate"])
def test_a_fused_model_is_one_like_the_others(kind, method):
    models = [fitted(kind, seed) for seed in (0, 1)]
    fusion = cs.fuse(models, method)
    model = fusion.model
    assert type(model) is LdaModel
    assert_allclose(proportions(model, documents(NEW)[:5]).sum(axis=1), 1.0, rtol=1e-6)
    assert np.isfinite(model.log_perplexity(bags(documents(NEW)[:5])))
    assert {word for _, topic in model.show_topics(formatted=False) for word, _ in topic} <= set(NAMES)
    assert cs.describe(model).n_components == fusion.n_components
    assert_allclose(cs.fuse(models[::-1], method).model.get_topics(), model.get_topics(), rtol=ROUNDING)
    assert float(fusion.posterior.attached["documents"].values) == 2 * len(documents())


def test_rebuilding_and_asking_leave_the_random_numbers_of_others_alone():
    np.random.seed(3)  # noqa: NPY002  (gensim draws from it unless told otherwise)
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    rebuilt = cs.rebuild(cs.describe(fitted()))
    rebuilt.get_document_topics([(0, 3), (2, 1)])
    assert np.random.random() == expected  # noqa: NPY002


def test_training_goes_on_where_the_sites_stopped():
    """With the documents forgotten, the first update would take the place of all topics."""
    model = cs.fuse([fitted(seed=0), fitted(seed=1)], "kl", n_components=TOPICS).model
    before = model.get_topics()
    model.update(bags(documents(5)[:3]))
    moved = np.abs(model.get_topics() - before).sum(axis=1) / 2
    assert np.all(moved < 0.3)
    assert np.any(moved > 0)
    assert model.num_updates == 2 * len(documents()) + 3


def test_models_without_a_dictionary_have_no_words():
    model = LdaModel(bags(documents()), TOPICS, random_state=0)
    posterior = cs.describe(model)
    assert posterior.features.names is None
    rebuilt = cs.rebuild(posterior)
    assert rebuilt.num_terms == model.num_terms
    assert [word for word, _ in rebuilt.show_topic(0, 3)] == [word for word, _ in model.show_topic(0, 3)]
    named = cs.describe(model, features=cs.Features(names=NAMES[: model.num_terms]))
    assert cs.rebuild(named).id2word[3] == "word-03"


def test_subclasses_are_accepted():
    model = type("Mine", (LdaModel,), {})(bags(documents()), TOPICS, dictionary(), random_state=0)
    assert cs.describe(model).source["kind"] == "gensim.LdaModel"


def test_a_model_of_no_documents_is_refused():
    with pytest.raises(
        cs.errors.InputError, match=r"^this LdaModel is not fitted yet; call update first \[E-UNFITTED\]$"
    ):
        cs.describe(LdaModel(id2word=dictionary(), num_topics=TOPICS))


def test_a_topic_prior_by_topic_is_refused_and_one_that_only_looks_so_is_not():
    eta = np.full((TOPICS, WORDS), 0.1)
    plain = LdaModel(bags(documents()), TOPICS, dictionary(), eta=eta, random_state=0)
    assert np.ptp(cs.describe(plain).prior) == 0.0
    eta[1, 3] = 5.0
    with pytest.raises(cs.errors.InputError, match=r"has a prior for each of its 3 topics; .* train with eta a number"):
        cs.describe(LdaModel(bags(documents()), TOPICS, dictionary(), eta=eta, random_state=0))


def test_a_dictionary_with_holes_or_the_same_word_twice_is_refused():
    holes, counts = dict(enumerate(NAMES)), documents().copy()
    del holes[4], holes[7]
    counts[:, [4, 7]] = 0
    with pytest.raises(cs.errors.InputError, match=r"no word for number 4 \(2 of 40 lack one\); call `compactify\(\)`"):
        cs.describe(LdaModel(bags(counts), TOPICS, holes, random_state=0))
    double = dict(enumerate(NAMES)) | {7: "word-04"}
    with pytest.raises(
        cs.errors.InputError, match=r"^id2word has the word 'word-04' 2 times, expected once \[E-TWICE\]$"
    ):
        cs.describe(LdaModel(bags(documents()), TOPICS, double, random_state=0))


# -- The document prior


def prior_of(models, **options):
    return cs.fuse(models, **options).model.alpha


def test_the_document_prior_of_sites_that_left_it_is_one_over_the_number_of_topics():
    alpha = prior_of([fitted(seed=0), fitted(seed=1)], method="concatenate")
    assert_allclose(alpha, 1.0 / (2 * TOPICS), rtol=ROUNDING)


def test_the_document_prior_of_sites_that_set_it_is_their_mean():
    assert_allclose(prior_of([fitted("numbers"), fitted("numbers", 1)], method="concatenate"), 0.2, rtol=1e-6)
    mixed = prior_of([fitted("numbers"), fitted("defaults", 1)], method="concatenate")
    assert_allclose(mixed, (0.2 + 1 / TOPICS) / 2, rtol=1e-6)


def test_a_document_prior_by_topic_follows_its_topics():
    first, second = fitted("learned"), fitted("learned", 1)
    fusion = cs.fuse([first, second], n_components=TOPICS)
    level = (first.alpha.mean() + second.alpha.mean()) / 2
    parts = np.zeros(TOPICS)
    for site, model in enumerate((first, second)):
        parts[fusion.matching.of_site(site)] += model.alpha / model.alpha.mean() / 2
    assert np.ptp(parts) > 0.01
    assert_allclose(fusion.model.alpha, level * parts, rtol=1e-6)


# -- The same thing as scikit-learn's


@cache
def both(kind):
    """The same topics in both libraries."""
    model = fitted(kind)
    adapter = adapter_of(cs.describe(model))
    topics, alpha = adapter.topics(model)
    prior = float(cs.describe(model).prior[0] + 1.0)
    other = LatentDirichletAllocation(TOPICS, doc_topic_prior=float(alpha[0]), topic_word_prior=prior, max_iter=1)
    other.fit(documents())
    other.components_ = topics
    other.feature_names_in_ = np.array(NAMES, dtype=object)
    return model, other


@pytest.mark.parametrize("kind", ["defaults", "double precision", "numbers"])
def test_the_same_topics_are_the_same_posterior_whatever_library_they_are_in(kind):
    found, expected = (cs.describe(model) for model in both(kind))
    assert (found.family, found.features) == (expected.family, expected.features)
    for name in ("natural", "prior", "counts"):
        assert getattr(found, name).tobytes() == getattr(expected, name).tobytes(), name
    assert_allclose(found.attached["doc_topic_prior"].values, expected.attached["doc_topic_prior"].values, rtol=1e-7)
    assert np.all(found.attached["doc_topic_prior_parts"].values == 1.0)


def test_the_same_topics_score_the_same_whatever_library_they_are_in():
    new = sparse.csr_array(documents(NEW).astype(float))
    found, expected = (adapter_of(cs.describe(model)).scores(model, new) for model in both("numbers"))
    assert_allclose(found.values, expected.values, rtol=SINGLE_PRECISION)
    assert found.labels.tolist() == expected.labels.tolist()
    assert found.usage.tolist() == expected.usage.tolist()
    assert (found.name, found.unit, found.larger_is_better) == (expected.name, expected.unit, True)


def test_the_fold_in_under_a_prior_by_topic_is_the_document_step_of_gensim():
    model = cs.rebuild(cs.describe(fitted("learned")))
    topics, alpha = adapter_of(cs.describe(model)).topics(model)
    assert np.ptp(alpha) > 0.01
    gamma = fold_in(documents(NEW), topics, alpha, tolerance=1e-12, max_iterations=100_000)
    expected = proportions(model, documents(NEW))
    assert_allclose(gamma / gamma.sum(axis=1, keepdims=True), expected, atol=LIBRARY_DOCUMENT_STEP)


@every_kind
def test_a_model_is_not_better_than_itself_in_whatever_form_it_comes(kind, tmp_path):
    model = fitted(kind)
    cs.save(model, tmp_path / "own.safetensors")
    for form in (model, cs.describe(model), cs.rebuild(cs.describe(model)), tmp_path / "own.safetensors"):
        evaluation = cs.evaluate(form, model, documents(NEW))
        assert evaluation.better is None
        assert_allclose(evaluation.difference.mean, 0.0, atol=SINGLE_PRECISION)
    assert cs.evaluate(cs.fuse([model, fitted(kind, 1)]), model, documents(NEW)).usage.unseen is not None
