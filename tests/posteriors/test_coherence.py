"""Laws of topic coherence, against plain loops over pairs of words."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.decomposition import LatentDirichletAllocation

import consilience as cs
from consilience.posteriors.topics.coherence import npmi, top_words
from tests.tolerances import ROUNDING


def by_loops(topics, documents, n_words):
    """NPMI as the formula has it, one pair after another."""
    documents = np.asarray(documents)
    coherences = []
    for topic in topics:
        words = sorted(range(len(topic)), key=lambda word: (-topic[word], word))[:n_words]
        values = []
        for place, first in enumerate(words):
            for second in words[place + 1 :]:
                both = sum(1 for document in documents if document[first] > 0 and document[second] > 0)
                alone = [sum(1 for document in documents if document[word] > 0) for word in (first, second)]
                n = len(documents)
                if both == 0:
                    values.append(-1.0)
                elif both == n:
                    values.append(0.0)
                else:
                    values.append(math.log(both * n / (alone[0] * alone[1])) / -math.log(both / n))
        coherences.append(sum(values) / len(values))
    return coherences


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.floats(0.05, 3.0), st.integers(2, 9))
def test_npmi_is_that_of_loops_and_lies_between_minus_one_and_one(seed, n_documents, rate, n_words):
    rng = np.random.default_rng(seed)
    topics, documents = rng.integers(1, 6, size=(4, 9)), rng.poisson(rate, size=(n_documents, 9))
    found = npmi(topics, documents, n_words=n_words)
    assert np.all((found >= -1.0) & (found <= 1.0))
    assert_allclose(found, by_loops(topics, documents, n_words), rtol=ROUNDING, atol=ROUNDING)


def test_independent_words_have_none_of_it():
    """Four documents with each of the four combinations of two words."""
    assert_allclose(npmi([[2.0, 1.0]], [[0, 0], [1, 0], [0, 3], [2, 2]], n_words=2), [0.0], atol=ROUNDING)


def test_counts_beyond_one_the_order_of_documents_and_the_form_change_nothing():
    rng = np.random.default_rng(0)
    topics, documents = rng.gamma(1.0, size=(3, 20)), rng.poisson(0.7, size=(40, 20))
    expected = npmi(topics, documents)
    for form in (np.minimum(documents, 1), documents[::-1], sparse.csc_array(documents), np.tile(documents, (3, 1))):
        assert_allclose(npmi(topics, form), expected, rtol=ROUNDING)
    order = rng.permutation(20)
    assert_allclose(npmi(topics[:, order], documents[:, order]), expected, rtol=ROUNDING)
    assert_allclose(npmi(7.0 * topics[::-1], documents), expected[::-1], rtol=ROUNDING)


def test_of_equally_probable_words_the_first_are_taken():
    assert top_words(np.ones((1, 5)), 3).tolist() == [[0, 1, 2]]


def counts(seed):
    """Documents (60, 24) that each use one half of the words."""
    rng = np.random.default_rng(seed)
    halves = np.kron(np.eye(2), np.full(12, 1.5))
    return rng.poisson(np.repeat(halves, 30, axis=0))


def test_every_form_of_a_topic_model_is_as_coherent(tmp_path):
    model = LatentDirichletAllocation(2, random_state=0).fit(counts(0))
    cs.save(model, tmp_path / "topics.safetensors")
    expected = npmi(model.components_, counts(1))
    assert np.all(expected > 0.2)
    for form in (model, cs.describe(model), tmp_path / "topics.safetensors"):
        assert_allclose(cs.topic_coherence(form, counts(1)), expected, rtol=1e3 * ROUNDING)


def test_evaluation_has_the_perplexity_of_completion_and_the_mean_coherence():
    own, other = (LatentDirichletAllocation(k, max_iter=3, random_state=0).fit(counts(0)) for k in (2, 3))
    evaluation = cs.evaluate(other, own, counts(1))
    completion, perplexity, coherence = evaluation.scores
    assert [str(score.kind) for score in evaluation.scores] == ["held-out completion"] * 2 + ["coherence"]
    assert_allclose(perplexity.fused, np.exp(-completion.fused))
    assert perplexity.larger_is_better is False
    assert_allclose(coherence.fused, npmi(other.components_, counts(1)).mean())
    assert_allclose(coherence.own, npmi(own.components_, counts(1)).mean())


def test_bad_questions_get_one_line():
    with pytest.raises(
        cs.errors.OptionError, match=r"^n_words must be from 2 to the number of words, 3, found 4 \[E-VALUE\]$"
    ):
        npmi(np.ones((1, 3)), np.ones((2, 3)), n_words=4)
    with pytest.raises(cs.errors.InputError, match=r"^documents: has 4 columns, expected 3 \[E-SHAPE\]$"):
        npmi(np.ones((1, 3)), np.ones((2, 4)), n_words=2)
    with pytest.raises(
        cs.errors.InputError,
        match=r"^documents: has no rows, expected the documents of a reference corpus \[E-SHAPE\]$",
    ):
        npmi(np.ones((1, 3)), sparse.csr_array((0, 3)), n_words=2)
    from sklearn.cluster import KMeans

    with pytest.raises(
        cs.errors.UnsupportedError, match=r"is a sklearn.KMeans, which has no topics of words \[E-SUPPORT\]$"
    ):
        cs.topic_coherence(KMeans(1, n_init=1).fit([[0.0], [1.0]]), [[1]])
