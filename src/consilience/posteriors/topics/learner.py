"""Gaussian topics of a site's documents: k-means of its tokens in a space of word embeddings.

The hard limit of a mixture of Gaussians of one width over tokens: centres m_k and topics z_w of words minimise

    sum_w c_w |x_w - m_{z_w}|^2,

with c_w the number of tokens of word w and x_w its embedding, which is the local model of the topic experiment of
Yurochkin et al. 2019 (SPAHM), there with 25 centres.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from consilience.checks import Array, is_count
from consilience.core.observations import as_counts
from consilience.errors import InputError, OptionError
from consilience.posteriors.topics.adapter import require_unique_words
from consilience.posteriors.topics.gaussian_topics import GaussianTopicModel, embedding_rows


@dataclass(frozen=True)
class GaussianTopics:
    """Fit Gaussian topics to documents.

    Parameters
    ----------
    n_topics : int
        Number K of topics. Default: the 25 of the paper.
    restarts : int
        Starts of k-means; the lowest objective wins. The default of 8 was chosen by hand.
    max_iterations : int
        Steps at most in one start; scikit-learn's default.
    seed : int
        Seed of the first centres.
    space : str, optional
        Which embeddings are used, such as ``"glove.6B.50d"``; recorded, so that topics in other spaces are not fused
        by mistake.

    Raises
    ------
    OptionError
        For numbers that are not positive integers.

    Examples
    --------
    >>> embeddings, words = [[0.0, 0.1], [0.1, 0.0], [5.0, 5.0]], ["rain", "snow", "goal"]
    >>> topics = GaussianTopics(n_topics=2).fit([["rain", "snow", "snow"], ["goal", "the", "goal"]], embeddings, words)
    >>> sorted(topics.counts.tolist())
    [2.0, 3.0]
    """

    n_topics: int = 25
    restarts: int = 8
    max_iterations: int = 300
    seed: int = 0
    space: str | None = None

    def __post_init__(self) -> None:
        for option in ("n_topics", "restarts", "max_iterations"):
            if not is_count(getattr(self, option)):
                raise OptionError(option, f"expected a positive integer, found {getattr(self, option)!r}")

    def fit(self, documents: Any, embeddings: ArrayLike, vocabulary: Sequence[str] | None = None) -> GaussianTopicModel:
        """Return the topics of `documents`.

        Parameters
        ----------
        documents : array_like or sparse matrix of shape (n, V), or list of lists of str
            Word counts; or documents as lists of words, of which those outside the vocabulary are left out.
        embeddings : array_like of shape (V, e)
            One row for each word. Words whose row is all zeros have no embedding and are left out.
        vocabulary : sequence of str of length V, optional
            The words; needed where documents are lists of words.

        Returns
        -------
        GaussianTopicModel
            Centres (K, e) and their tokens (K,).

        Raises
        ------
        InputError
            When documents, embeddings and vocabulary do not fit each other, or hold fewer words than topics.
        """
        from sklearn.cluster import KMeans

        rows = embedding_rows(embeddings, None if vocabulary is None else len(vocabulary))
        tokens = _tokens_of_words(documents, len(rows), vocabulary)
        used = np.flatnonzero((tokens > 0) & rows.any(axis=1))
        distinct = len(np.unique(rows[used], axis=0))
        if distinct < self.n_topics:
            raise InputError(
                "documents",
                f"have {distinct} words with embeddings that differ, too few for {self.n_topics} topics",
                code="E-FEW",
            )
        # A word of c_w tokens counts as c_w points at its embedding, so words rather than tokens are clustered.
        kmeans = KMeans(self.n_topics, n_init=self.restarts, max_iter=self.max_iterations, random_state=self.seed)
        labels = kmeans.fit(rows[used], sample_weight=tokens[used]).labels_
        counts = np.bincount(labels, weights=tokens[used], minlength=self.n_topics)
        return GaussianTopicModel(kmeans.cluster_centers_, counts.astype(np.float64), self.space)


def _tokens_of_words(documents: Any, n_words: int, vocabulary: Sequence[str] | None) -> Array:
    """Return how many tokens of each word (V,) all documents have together."""
    are_lists = not sparse.issparse(documents) and len(documents) > 0 and _are_lists_of_words(documents)
    if not are_lists:
        total: Array = np.asarray(as_counts("documents", documents, n_words).sum(axis=0), dtype=np.float64).ravel()
        return total
    if vocabulary is None:
        raise InputError("vocabulary", "needed where documents are lists of words", code="E-NEEDED")
    word_counts = Counter(word for document in documents for word in document)
    require_unique_words("vocabulary", vocabulary)
    return np.array([word_counts[word] for word in vocabulary], dtype=np.float64)


def _are_lists_of_words(documents: Any) -> bool:
    """Return whether the first document that is not empty has words rather than numbers."""
    first: Any = next((document for document in documents if np.ndim(document) and len(document)), [None])
    return isinstance(first[0], str)
