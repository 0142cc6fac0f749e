"""Topic coherence: normalised pointwise mutual information (NPMI) of a topic's most probable words.

    NPMI(i, j) = log[ p(i, j) / (p(i) p(j)) ] / -log p(i, j),    coherence of a topic = mean over pairs of its top words

p(i) is the share of the documents of a reference corpus that have word i, p(i, j) the share that have both: a window is
a document. The value is 1 for words that occur only together, 0 for independent ones and -1 for those that never meet
(Bouma, 2009, section 3). Lau, Newman and Baldwin (2014) compared it with what people say of topics; they take windows
of 20 words from another corpus, and their published code has 0, not the limit -1, for words that never meet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array, Labels, as_rows
from consilience.core.observations import as_counts
from consilience.errors import InputError, OptionError

N_WORDS = 10
"""Words of a topic that are compared: 10, as in Lau, Newman and Baldwin (2014), section 3."""


def top_words(topics: ArrayLike, n_words: int = N_WORDS) -> Labels:
    """Return the numbers of every topic's most probable words (K, n_words), the most probable first.

    Parameters
    ----------
    topics : array_like of shape (K, V)
        Dirichlet parameters or probabilities of words; of equal ones the word of the smaller number comes first.
    n_words : int
        Number of words, from 2 to V.

    Raises
    ------
    OptionError
        For fewer than two words, or more than there are.

    Examples
    --------
    >>> top_words([[1.0, 5.0, 3.0], [2.0, 2.0, 1.0]], 2)
    array([[1, 2],
           [0, 1]])
    """
    concentrations = as_rows("topics", topics)
    if not 2 <= n_words <= concentrations.shape[1]:
        raise OptionError(f"n_words must be from 2 to the number of words, {concentrations.shape[1]}, found {n_words}")
    return np.asarray(np.argsort(-concentrations, axis=1, kind="stable")[:, :n_words])


def npmi(topics: ArrayLike, documents: Any, *, n_words: int = N_WORDS) -> Array:
    """Return the coherence of every topic (K,), from -1 to 1, by the documents of a reference corpus.

    A word that no document has meets no other: its pairs are -1. Words that are in every document together have no
    information about each other, and 0 is taken for 0 / 0.

    Parameters
    ----------
    topics : array_like of shape (K, V)
        Dirichlet parameters or probabilities of words.
    documents : array_like or sparse matrix of shape (n, V)
        Word counts of the reference corpus; only whether a document has a word matters.
    n_words : int
        Number of each topic's most probable words that are compared.

    Raises
    ------
    InputError
        When the documents are not counts of these words, or there are none.
    OptionError
        For a number of words that the topics do not have.

    Examples
    --------
    >>> npmi([[9.0, 8.0, 1.0, 1.0], [1.0, 9.0, 8.0, 1.0]], [[2, 1, 0, 0], [1, 1, 0, 1], [0, 0, 3, 1]], n_words=2)
    array([ 1., -1.])
    """
    words = top_words(topics, n_words)  # (K, m)
    counts = as_counts("documents", documents, np.shape(topics)[1])
    n_documents = counts.shape[0]
    if n_documents == 0:
        raise InputError("documents", "has no rows, expected the documents of a reference corpus", code="E-SHAPE")
    used, positions = np.unique(words, return_inverse=True)
    positions = positions.reshape(words.shape)  # (K, m), into `used`
    has_word = counts[:, used]
    has_word.data = np.ones_like(has_word.data)
    # Of the words of each topic only, for the words of all topics by themselves would be (K m)^2 numbers.
    coherence = np.empty(len(words))
    first, second = np.triu_indices(n_words, k=1)  # pairs of positions, (m (m - 1) / 2,) each
    share = np.asarray(has_word.sum(axis=0), dtype=np.float64).ravel() / n_documents  # p(i)
    for topic, columns in enumerate(positions):
        of_topic = has_word[:, columns]
        joint = (of_topic.T @ of_topic).toarray()[first, second] / n_documents  # p(i, j)
        product = share[columns[first]] * share[columns[second]]
        coherence[topic] = _normalised_information(joint, product).mean()
    return coherence


def _normalised_information(joint: Array, product: Array) -> Array:
    """Return log(joint / product) / -log(joint), with its limits -1 at joint = 0 and 0 at joint = 1."""
    is_between = (joint > 0.0) & (joint < 1.0)
    within = np.where(is_between, joint, 0.5)  # any value strictly between 0 and 1
    information = np.log(within / np.where(is_between, product, 0.25)) / -np.log(within)
    return np.where(is_between, np.clip(information, -1.0, 1.0), np.where(joint > 0.0, 0.0, -1.0))
