"""Document completion against scikit-learn's document step, direct loops, and what must hold of any topics."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from scipy.special import digamma
from sklearn.decomposition import LatentDirichletAllocation

import consilience as cs
from consilience.posteriors.topics.document_completion import (
    Completion,
    as_counts,
    complete_documents,
    fold_in,
    split_tokens,
    tokens_of_topics,
)
from tests.tolerances import DIGAMMA_OF_SCIKIT_LEARN, ROUNDING

TOPICS, WORDS, PRIOR = 6, 80, 0.3


@pytest.fixture(scope="module")
def topics():
    return 200 * np.random.default_rng(0).dirichlet(np.full(WORDS, 0.2), TOPICS) + 0.5


@pytest.fixture(scope="module")
def documents(topics):
    rng = np.random.default_rng(1)
    shares = rng.dirichlet(np.full(TOPICS, 0.2), 40) @ (topics / topics.sum(axis=1, keepdims=True))
    return np.array([rng.multinomial(rng.integers(2, 120), share) for share in shares]).astype(float)


def completed(documents, topics, **options):
    return complete_documents(*split_tokens(documents, **options), topics, PRIOR)


# -- The fold-in


def test_the_fold_in_is_the_document_step_of_scikit_learn(documents, topics):
    """Which starts at the same place, takes the same steps and stops by the same rule."""
    model = LatentDirichletAllocation(TOPICS, doc_topic_prior=PRIOR, mean_change_tol=1e-4, max_iter=1).fit(documents)
    model.components_ = topics
    model.exp_dirichlet_component_ = np.exp(digamma(topics) - digamma(topics.sum(axis=1, keepdims=True)))
    gamma = fold_in(documents, topics, PRIOR)
    assert_allclose(gamma / gamma.sum(axis=1, keepdims=True), model.transform(documents), atol=DIGAMMA_OF_SCIKIT_LEARN)


def test_the_fold_in_is_a_fixed_point_of_the_written_equations(documents, topics):
    gamma = fold_in(documents, topics, PRIOR, tolerance=1e-12, max_iterations=100_000)
    for row, counts in enumerate(documents):
        expected = np.full(TOPICS, PRIOR)
        for word in np.flatnonzero(counts):
            responsibility = np.exp(digamma(gamma[row]) + digamma(topics[:, word]) - digamma(topics.sum(axis=1)))
            expected += counts[word] * responsibility / responsibility.sum()
        assert_allclose(gamma[row], expected, rtol=1e-9)


def test_every_token_is_given_to_topics_and_the_prior_kept(documents, topics):
    gamma = fold_in(documents, topics, PRIOR)
    assert_allclose(gamma.sum(axis=1), PRIOR * TOPICS + documents.sum(axis=1), rtol=ROUNDING)
    assert_allclose(fold_in(np.zeros((1, WORDS)), topics, PRIOR), PRIOR)


def test_words_that_no_topic_saw_do_no_harm():
    """exp(psi(1e-4)) is zero in float64: without care, zero by zero."""
    topics = np.full((3, 4), 1e-4)
    topics[np.arange(3), np.arange(3)] = 50.0
    completion = complete_documents([[4, 0, 0, 1], [0, 0, 0, 5]], [[1, 0, 0, 0], [0, 0, 0, 1]], topics, 1e-3)
    assert np.all(np.isfinite(completion.log_likelihood))
    gamma = fold_in([[0, 0, 0, 5]], topics, 1e-3)
    assert_allclose(gamma, np.full((1, 3), 1e-3 + 5 / 3), rtol=ROUNDING)


def test_it_stops_after_the_steps_it_is_allowed(documents, topics):
    assert np.abs(fold_in(documents, topics, PRIOR, max_iterations=1) - fold_in(documents, topics, PRIOR)).max() > 0.1


# -- The split


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_split_takes_tokens_and_loses_none(documents, share):
    observed, held_out = split_tokens(documents, share=share)
    assert_allclose((observed + held_out).toarray(), documents)
    sizes = documents.sum(axis=1)
    assert held_out.sum(axis=1).tolist() == np.maximum(1, np.rint(share * sizes)).tolist()
    assert min(observed.data.min(), held_out.data.min()) >= 1


def test_the_split_is_drawn_without_replacement_and_evenly():
    """The held-out tokens of a word are hypergeometric."""
    _, held_out = split_tokens(np.tile([[40, 10, 0]], (4000, 1)), share=0.2, rng=3)
    found = held_out.toarray()
    assert set(found.sum(axis=1)) == {10.0}
    assert not found[:, 2].any()
    variance = 10 * 0.8 * 0.2 * (50 - 10) / (50 - 1)
    assert abs(found[:, 0].mean() - 8.0) < 5 * np.sqrt(variance / 4000)
    assert_allclose(found[:, 0].var(), variance, rtol=0.15)


def test_the_seed_decides_the_split(documents):
    first, again, other = (split_tokens(documents, rng=seed)[1].toarray() for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(split_tokens(sparse.csc_array(documents))[1].toarray(), first)
    assert np.array_equal(split_tokens(documents, rng=np.random.default_rng(0))[1].toarray(), first)


def test_documents_too_short_to_split_are_skipped_and_counted(topics):
    documents = np.zeros((4, WORDS))
    documents[1, 3], documents[2, [3, 4]], documents[3, 5] = 1, 1, 12
    completion = completed(documents, topics)
    assert completion.skipped == 2
    assert completion.tokens.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert completion.log_likelihood[:2].tolist() == [0.0, 0.0]
    nothing = Completion(np.zeros(2), np.zeros(2))
    assert np.isnan(nothing.per_token)


# -- Prediction, equation (10)


def test_prediction_against_a_loop_over_tokens(documents, topics):
    observed, held_out = split_tokens(documents)
    found = complete_documents(observed, held_out, topics, PRIOR)
    gamma = fold_in(observed, topics, PRIOR)
    expected = np.zeros(len(documents))
    for row, counts in enumerate(held_out.toarray()):
        if not observed.toarray()[row].any():
            continue
        for word in np.flatnonzero(counts):
            probability = sum(
                gamma[row, k] / gamma[row].sum() * topics[k, word] / topics[k].sum() for k in range(TOPICS)
            )
            expected[row] += counts[word] * np.log(probability)
    assert_allclose(found.log_likelihood, expected, rtol=ROUNDING)
    assert_allclose(found.total, expected.sum(), rtol=ROUNDING)
    assert_allclose(found.per_token, expected.sum() / found.tokens.sum(), rtol=ROUNDING)
    assert_allclose(found.perplexity, np.exp(-found.per_token), rtol=ROUNDING)


def test_predictive_probabilities_sum_to_one(documents, topics):
    """Each word of the vocabulary in turn is the held-out token of the same document."""
    observed = split_tokens(documents)[0].toarray()
    observed = observed[observed.sum(axis=1) > 0][:5]
    for row in observed:
        completion = complete_documents(np.tile(row, (WORDS, 1)), np.eye(WORDS), topics, PRIOR)
        assert_allclose(np.exp(completion.log_likelihood).sum(), 1.0, rtol=ROUNDING)


def test_the_order_of_topics_and_of_words_changes_nothing(documents, topics):
    halves = split_tokens(documents)
    expected = complete_documents(*halves, topics, PRIOR).log_likelihood
    rng = np.random.default_rng(2)
    order, words = rng.permutation(TOPICS), rng.permutation(WORDS)
    assert_allclose(complete_documents(*halves, topics[order], PRIOR).log_likelihood, expected, rtol=ROUNDING)
    moved = (half[:, words] for half in halves)
    assert_allclose(complete_documents(*moved, topics[:, words], PRIOR).log_likelihood, expected, rtol=ROUNDING)


@pytest.mark.parametrize("size", [1.0, 1e5])
def test_uniform_topics_know_only_the_size_of_the_vocabulary(documents, size):
    completion = completed(documents, np.full((TOPICS, WORDS), size))
    assert_allclose(completion.per_token, -np.log(WORDS), rtol=ROUNDING)
    assert_allclose(completion.perplexity, WORDS, rtol=ROUNDING)


def test_a_topic_given_twice_predicts_the_same(documents, topics):
    """Its two halves share the prior of one, here small beside the tokens."""
    halves = split_tokens(documents)
    once = complete_documents(*halves, topics, 1e-3)
    twice = complete_documents(*halves, np.vstack([topics, topics]), 1e-3)
    assert_allclose(twice.per_token, once.per_token, rtol=0.01)


def test_the_topics_that_made_the_documents_predict_best(documents, topics):
    rng = np.random.default_rng(5)
    other = 200 * rng.dirichlet(np.full(WORDS, 0.2), TOPICS) + 0.5
    average = np.tile(topics.mean(axis=0), (TOPICS, 1))
    best, middle, worst = (completed(documents, one).per_token for one in (topics, average, other))
    assert best > middle > worst


def test_tokens_go_to_the_topic_that_explains_them_best(documents, topics):
    gamma = fold_in(documents, topics, PRIOR)
    expected = np.zeros(TOPICS)
    for row, counts in enumerate(documents):
        for word in np.flatnonzero(counts):
            expected[np.argmax(gamma[row] * topics[:, word] / topics.sum(axis=1))] += counts[word]
    found = tokens_of_topics(documents, topics, gamma)
    assert found.tolist() == expected.tolist()
    assert found.sum() == documents.sum()


def test_an_evaluation_of_topics_is_their_completion(documents, topics):
    family = cs.families.Dirichlet(WORDS)
    fused, own = (
        cs.Posterior(
            family,
            family.to_natural(concentration=weights),
            attached={"doc_topic_prior": cs.Attached(np.array(PRIOR), (), "mean")},
            source={"kind": "sklearn.LatentDirichletAllocation", "doc_topic_prior": "given"},
        )
        for weights in (topics, topics[:3])
    )
    documents = np.vstack([documents, np.zeros(WORDS), np.eye(WORDS)[0]])
    evaluation = cs.evaluate(fused, own, documents)
    expected = [completed(documents, weights) for weights in (topics, topics[:3])]
    assert_allclose([evaluation.scores[0].fused, evaluation.scores[0].own], [c.per_token for c in expected])
    assert_allclose(evaluation.difference.mean, expected[0].per_token - expected[1].per_token)
    assert evaluation.skipped == expected[0].skipped >= 2
    assert evaluation.difference.n_observations == len(documents) - evaluation.skipped
    assert any("were skipped" in note for note in evaluation.notes)
    assert evaluation.better == "fused"


# -- Counts


BAD = {
    "a part of a token": (
        [[1, 0.5]],
        r"row 0, column 1 \(counted from 0\): expected a number of tokens .*, found 0.5 \[E-NUMBER\]$",
    ),
    "negative": ([[1, 1], [0, -2]], r"row 1, column 1 .* found -2 \[E-NUMBER\]$"),
    "nan": (sparse.csr_array(np.array([[0, np.nan]])), r"row 0, column 1 .* found nan \[E-NUMBER\]$"),
    "too many": ([[1e300, 0]], "found 1e\\+300"),
    "another width": ([[1, 2, 3]], "has 3 columns, expected 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_a_count_of_words_is_refused(case):
    values, message = BAD[case]
    with pytest.raises(cs.errors.InputError, match=f"^documents: .*{message}"):
        fold_in(values, [[1.0, 2.0], [2.0, 1.0]], 0.5)


def test_counts_given_twice_are_added_and_the_original_is_left_alone():
    given = sparse.csr_array((np.array([1.0, 2.0, 0.0]), np.array([1, 1, 0]), np.array([0, 3])), shape=(1, 2))
    assert as_counts("documents", given).toarray().tolist() == [[0.0, 3.0]]
    assert given.nnz == 3


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_impossible_shares_are_refused(share):
    with pytest.raises(cs.errors.InputError, match=r"^share: expected a number between 0 and 1"):
        split_tokens([[3, 4]], share=share)


@pytest.mark.parametrize("prior", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_priors_are_refused(prior):
    with pytest.raises(cs.errors.InputError, match=r"^document_prior: expected a positive number"):
        fold_in([[3, 4]], [[1.0, 2.0]], prior)


def test_halves_must_be_of_the_same_documents():
    with pytest.raises(cs.errors.InputError, match="3 have an observed part, but 2 a held-out part"):
        complete_documents(np.ones((3, 2)), np.ones((2, 2)), [[1.0, 2.0]], 0.5)
