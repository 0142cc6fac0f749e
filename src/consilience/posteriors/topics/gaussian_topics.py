"""Gaussian topics: cluster centres in a space of word embeddings, their learner and their adapter.

A topic is a Gaussian of one width around its centre m_k, so a token w with embedding x_w belongs to the topic that
minimises |x_w - m_k|^2, and the words of a topic are those nearest to its centre (Yurochkin et al. 2019, section 5).
Sites that use the same embeddings need not share a vocabulary. The learner is the local model of their experiment, the
hard limit of a mixture of Gaussians over tokens: with c_w the number of tokens of word w, centres and topics z_w of
words minimise

    sum_w c_w |x_w - m_{z_w}|^2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from consilience.checks import Array, Labels, as_rows, as_vector, is_count
from consilience.core.observations import as_counts
from consilience.core.scores import ScoreKind, Scores, row_scores
from consilience.errors import InputError, OptionError
from consilience.families import Point
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.topics.adapter import require_unique_words

_CHUNK_ENTRIES = 2**22
"""Entries of a matrix of distances at a time, 32 MiB. Chosen by hand; it bounds memory and changes no result."""

KIND = "consilience.GaussianTopics"
"""Name of these models in files."""


@dataclass(frozen=True, eq=False)
class GaussianTopicModel:
    """K topics in a space of word embeddings: what ``learners.GaussianTopics`` fits and a fusion gives back.

    Parameters
    ----------
    centers : array_like of shape (K, e)
        Centre of each topic, in the units of the embeddings.
    counts : array_like of shape (K,)
        Tokens in each topic.
    space : str, optional
        Which embeddings these are, such as ``"glove.6B.50d"``; models that state different ones are not fused.

    Raises
    ------
    InputError
        For arrays of the wrong shape, or values that are not finite.

    Examples
    --------
    >>> embeddings, words = [[0.0, 0.1], [0.2, 0.0], [5.0, 5.0]], ["rain", "snow", "goal"]
    >>> topics = GaussianTopicModel([[0.0, 0.0], [5.0, 5.0]], [30.0, 12.0])
    >>> topics.top_words(2, embeddings, words)
    [['rain', 'snow'], ['goal', 'snow']]
    >>> topics.transform([[2, 1, 1]], embeddings)
    array([[0.75, 0.25]])
    """

    centers: Array
    counts: Array
    space: str | None = None

    def __post_init__(self) -> None:
        centers = as_rows("centers", self.centers).copy()
        counts = as_vector("counts", self.counts, len(centers)).copy()
        if not (np.all(np.isfinite(centers)) and np.all(np.isfinite(counts)) and np.all(counts >= 0)):
            raise InputError("", "centers must be finite, and counts finite and not negative", code="E-NUMBER")
        for name, values in (("centers", centers), ("counts", counts)):
            values.setflags(write=False)
            object.__setattr__(self, name, values)

    @property
    def n_topics(self) -> int:
        """Number K of topics."""
        return len(self.centers)

    @property
    def posterior(self) -> Posterior:
        """What a site sends: the centres as points, with their counts."""
        family = Point(self.centers.shape[1])
        return Posterior(family, self.centers, counts=self.counts, source={"kind": KIND, "space": self.space})

    def assign(self, embeddings: ArrayLike) -> Labels:
        """Return the topic of each embedding (n, e) of words or tokens (n,): the one of the nearest centre."""
        rows = as_rows("embeddings", embeddings, self.centers.shape[1])
        labels = np.empty(len(rows), dtype=np.int64)
        step = max(1, _CHUNK_ENTRIES // self.n_topics)
        for start in range(0, len(rows), step):
            chunk = slice(start, start + step)
            labels[chunk] = _relative_distances(rows[chunk], self.centers).argmin(axis=1)
        return labels

    def top_words(self, n: int, embeddings: ArrayLike, vocabulary: Sequence[str]) -> list[list[str]]:
        """Return the `n` words nearest to each centre, nearest first.

        Parameters
        ----------
        n : int
            Words for each topic.
        embeddings : array_like of shape (V, e)
            One row for each word; words whose row is all zeros have no embedding and are left out.
        vocabulary : sequence of str of length V
            The words.

        Returns
        -------
        list of lists of str
            The words of each topic.

        Raises
        ------
        InputError
            When words and embeddings do not fit each other or the topics.
        OptionError
            For an impossible `n`.
        """
        if not is_count(n):
            raise OptionError("n", f"expected a positive number of words, found {n!r}")
        rows = embedding_rows(embeddings, len(vocabulary), self.centers.shape[1])
        embedded = np.flatnonzero(rows.any(axis=1))
        distances = _relative_distances(self.centers, rows[embedded])  # (K, words with an embedding)
        nearest = embedded[np.argsort(distances, axis=1, kind="stable")[:, :n]]  # (K, n)
        return [[str(vocabulary[word]) for word in row] for row in nearest]

    def transform(self, documents: Any, embeddings: ArrayLike) -> Array:
        """Return the share of each topic in the tokens of each document (n, K); zeros where no token has an embedding.

        Parameters
        ----------
        documents : array_like or sparse matrix of shape (n, V)
            Word counts.
        embeddings : array_like of shape (V, e)
            One row for each word; words whose row is all zeros have no embedding and are left out.
        """
        rows = embedding_rows(embeddings, None, self.centers.shape[1])
        counts = as_counts("documents", documents, len(rows))
        membership = np.zeros((len(rows), self.n_topics))  # one-hot rows (V, K); zeros for words without an embedding
        embedded = np.flatnonzero(rows.any(axis=1))
        membership[embedded, self.assign(rows[embedded])] = 1.0
        tokens: Array = counts @ membership  # (n, K)
        total = tokens.sum(axis=1, keepdims=True)
        return np.asarray(tokens / np.where(total > 0, total, 1.0))


class GaussianTopicsAdapter(Adapter):
    """Gaussian topics, in and out: centres are points without a width, since k-means gives none."""

    kind: ClassVar[str] = KIND
    library: ClassVar[str] = "consilience"
    class_name: ClassVar[str] = "GaussianTopicModel"

    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return the centres as points; the model records its counts."""
        posterior: Posterior = model.posterior
        return posterior

    def rebuild(self, posterior: Posterior) -> GaussianTopicModel:
        """Return the fused topics."""
        self.require_family(posterior, Point)
        if posterior.counts is None:
            text = f"this posterior of a {self.kind} lacks counts, which rebuilding needs"
            raise InputError("", text, code="E-NEEDED")
        return GaussianTopicModel(posterior.parameters()["value"], posterior.counts, posterior.source["space"])

    def scores(self, model: Any, data: Any) -> Scores:
        """Return the squared distance of every row, the embedding of a token, to the nearest centre."""
        labels = model.assign(data)
        distances = np.square(data - model.centers[labels]).sum(axis=1)
        name, unit, kind = "squared distance to the nearest centre", "squared units per row", ScoreKind.DISTANCE
        return row_scores(name, unit, distances, labels, model.n_topics, larger_is_better=False, kind=kind)


def embedding_rows(embeddings: ArrayLike, n_words: int | None, columns: int | None = None) -> Array:
    """Return finite embeddings (V, e), or raise saying what was expected; `n_words` is V where it is known."""
    rows = as_rows("embeddings", embeddings, columns)
    if n_words is not None and len(rows) != n_words:
        text = f"expected one row for each of the {n_words} words, found {len(rows)}"
        raise InputError("embeddings", text, code="E-SHAPE")
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise InputError("embeddings", f"row {bad[0]}, counted from 0, has NaN or infinite values", code="E-NUMBER")
    return rows


def _relative_distances(a: Array, b: Array) -> Array:
    """Return |x - y|^2 / 2 less |x|^2 / 2 (n, m), x in `a` and y in `b`: it orders the rows of `b` as distances do."""
    return np.asarray(0.5 * np.einsum("md,md->m", b, b) - a @ b.T)


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
            text = f"have {distinct} words with embeddings that differ, too few for {self.n_topics} topics"
            raise InputError("documents", text, code="E-FEW")
        # A word of c_w tokens counts as c_w points at its embedding, so words rather than tokens are clustered.
        kmeans = KMeans(self.n_topics, n_init=self.restarts, max_iter=self.max_iterations, random_state=self.seed)
        labels = kmeans.fit(rows[used], sample_weight=tokens[used]).labels_
        counts = np.bincount(labels, weights=tokens[used], minlength=self.n_topics)
        return GaussianTopicModel(kmeans.cluster_centers_, counts.astype(np.float64), self.space)


def _tokens_of_words(documents: Any, n_words: int, vocabulary: Sequence[str] | None) -> Array:
    """Return how many tokens of each word (V,) all documents have together."""
    are_lists = not sparse.issparse(documents) and len(documents) > 0 and _are_lists_of_words(documents)
    if not are_lists:
        return np.asarray(as_counts("documents", documents, n_words).sum(axis=0), dtype=np.float64).ravel()
    if vocabulary is None:
        raise InputError("vocabulary", "needed where documents are lists of words", code="E-NEEDED")
    word_counts = Counter(word for document in documents for word in document)
    require_unique_words("vocabulary", vocabulary)
    return np.array([word_counts[word] for word in vocabulary], dtype=np.float64)


def _are_lists_of_words(documents: Any) -> bool:
    """Return whether the first document that is not empty has words rather than numbers."""
    first: Any = next((document for document in documents if np.ndim(document) and len(document)), [None])
    return isinstance(first[0], str)
