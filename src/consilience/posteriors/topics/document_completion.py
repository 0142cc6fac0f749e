"""Document completion: held-out likelihood and perplexity of topic models.

Every document's tokens are split at random. Its topic proportions are inferred from one part with the topics held
fixed, by the variational document step of Blei, Ng and Jordan (2003), and the other part is predicted:

    log p(w2 | w1) = sum_{w in w2} log sum_k pi_k phi_kw,    pi = gamma / sum gamma,    phi_k = lambda_k / sum lambda_k,

which is equation (10) of Claici et al. (2020), with phi_k the mean of topic k rather than, as its text has it, "the
posterior Dirichlet parameter", which is no probability. Nothing here knows a library: topics are Dirichlet parameters
(K, V), documents are counts (n, V), dense or sparse. Documents are taken one by one, and the words that occur in one
all at once: its words by topics fit a processor's cache, and each stops when it has converged. Batches were measured
slower.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.special import digamma

from consilience.checks import Array, Labels, as_rows, as_vector
from consilience.core.observations import as_counts
from consilience.errors import InputError

HELD_OUT_SHARE = 0.1
"""Part of every document's tokens that is predicted: 10 %, as in Claici et al. (2020), section 5.3."""

TOLERANCE = 1e-4
"""A document has converged when its gamma changes by less, on average over topics, in tokens. Chosen by hand; nobody
has measured other values."""

MAX_ITERATIONS = 100
"""Steps after which a document is left as it is. Chosen by hand; nobody has measured other values."""

_MIN_FACTOR = 1e-150
"""Smallest factor exp(E log theta) or exp(E log phi): the product of two is still a normal number, so that nothing is
divided by zero."""


@dataclass(frozen=True, eq=False)
class Completion:
    """How well the held-out tokens of n documents are predicted.

    Parameters
    ----------
    log_likelihood
        Summed over the held-out tokens of every document (n,), in nats; 0 where `tokens` is 0.
    tokens
        Number of held-out tokens that were predicted (n,); 0 for a document with an empty half, which is skipped.
    """

    log_likelihood: Array
    tokens: Array

    @property
    def total(self) -> float:
        """Log likelihood of all held-out tokens, in nats."""
        return float(self.log_likelihood.sum())

    @property
    def per_token(self) -> float:
        """Log likelihood per held-out token, in nats; NaN when there is none."""
        return self.total / float(self.tokens.sum()) if self.tokens.any() else float("nan")

    @property
    def perplexity(self) -> float:
        """exp(- log likelihood per token)."""
        return float(np.exp(-self.per_token))

    @property
    def skipped(self) -> int:
        """Number of documents with an empty half."""
        return int(np.count_nonzero(self.tokens == 0))


def split_tokens(
    documents: Any, *, share: float = HELD_OUT_SHARE, rng: int | np.random.Generator = 0
) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Split every document's tokens at random into an observed and a held-out part, without replacement.

    A document of n tokens holds out max(1, round(share n)) of them, and none when it is empty.

    Parameters
    ----------
    documents : array_like or sparse matrix of shape (n, V)
        Word counts.
    share : float
        Part of the tokens to hold out, between 0 and 1. Default: a tenth.
    rng : int or Generator
        Seed or generator; the same seed splits the same documents in the same way.

    Returns
    -------
    tuple of two CSR arrays of shape (n, V)
        Counts of the observed and of the held-out tokens; their sum is `documents`.

    Examples
    --------
    >>> observed, held_out = split_tokens([[30, 20], [1, 0], [0, 0]])
    >>> observed.sum(axis=1), held_out.sum(axis=1)
    (array([45.,  0.,  0.]), array([5., 1., 0.]))
    """
    if not 0.0 < share < 1.0:
        raise InputError("share", f"expected a number between 0 and 1, found {share}", code="E-NUMBER")
    counts = as_counts("documents", documents)
    generator = np.random.default_rng(rng)
    # One entry per token: the stored count that it belongs to, and below its document.
    token_entry = np.repeat(np.arange(counts.nnz), counts.data.astype(np.int64))
    sizes = counts.sum(axis=1).astype(np.int64)
    token_document = np.repeat(np.arange(len(sizes)), sizes)
    shuffled = np.lexsort((generator.random(len(token_entry)), token_document))  # tokens shuffled within documents
    # Of a shuffled token in its document.
    rank = np.arange(len(token_entry)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    n_held_out = np.where(sizes > 0, np.maximum(1, np.rint(share * sizes).astype(np.int64)), 0)  # (n,)
    held_out_entry = token_entry[shuffled[rank < np.repeat(n_held_out, sizes)]]
    held_out_counts = np.bincount(held_out_entry, minlength=counts.nnz).astype(np.float64)  # aligned with counts.data
    parts = []
    for data in (counts.data - held_out_counts, held_out_counts):
        part = sparse.csr_array((data, counts.indices.copy(), counts.indptr.copy()), shape=counts.shape)
        part.eliminate_zeros()
        parts.append(part)
    return parts[0], parts[1]


def fold_in(
    documents: Any,
    topics: ArrayLike,
    document_prior: ArrayLike,
    *,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> Array:
    """Return the Dirichlet parameters gamma (n, K) of every document's topic proportions, the topics held fixed.

    From gamma = 1, until a document's gamma changes by less than `tolerance` on average over topics,

        phi_wk ∝ exp(psi(gamma_k) + psi(lambda_kw) - psi(sum_w lambda_kw)),    gamma_k = alpha + sum_w c_w phi_wk.

    In matrix form, with t_k = exp psi(gamma_k) and B_kw = exp E log phi_kw: gamma = alpha + t * (B (c / (B^T t))).

    Parameters
    ----------
    documents : array_like or sparse matrix of shape (n, V)
        Word counts c.
    topics : array_like of shape (K, V)
        Dirichlet parameters lambda, positive.
    document_prior : float or array_like of shape (K,)
        alpha: a number, the same for every topic, or one for each.
    tolerance : float
        Mean change of gamma, in tokens, at which a document has converged.
    max_iterations : int
        Steps after which a document is left as it is.

    Examples
    --------
    >>> fold_in([[9, 0], [0, 9]], [[99.0, 1.0], [1.0, 99.0]], 0.5).round(1)
    array([[9.5, 0.5],
           [0.5, 9.5]])
    """
    concentrations = as_rows("topics", topics)
    counts = as_counts("documents", documents, concentrations.shape[1])
    alpha = as_vector("document_prior", document_prior, len(concentrations))
    if not np.all((alpha > 0.0) & (alpha < np.inf)):
        text = f"expected a positive number for every topic, found {alpha}"
        raise InputError("document_prior", text, code="E-NUMBER")
    # exp E log phi (V, K), words first: the rows of a document's words are one slice
    word_factors = _exponentials((digamma(concentrations) - digamma(concentrations.sum(axis=1, keepdims=True))).T)
    gamma = np.empty((counts.shape[0], len(concentrations)))
    for row, words, tokens in _documents(counts):
        gamma[row] = _infer_gamma(word_factors[words], tokens, alpha, tolerance, max_iterations)
    return gamma


def complete_documents(
    observed: Any, held_out: Any, topics: ArrayLike, document_prior: ArrayLike, *, tolerance: float = TOLERANCE
) -> Completion:
    """Return how well `held_out` tokens are predicted from the `observed` ones of the same documents.

    Parameters
    ----------
    observed, held_out : array_like or sparse matrix of shape (n, V)
        Word counts, as ``split_tokens`` returns them. Documents without tokens in either are skipped.
    topics : array_like of shape (K, V)
        Dirichlet parameters lambda, positive.
    document_prior : float or array_like of shape (K,)
        alpha: a number, the same for every topic, or one for each.
    tolerance : float
        Of ``fold_in``.

    Returns
    -------
    Completion
        Log likelihood and number of the held-out tokens of every document.

    Examples
    --------
    >>> complete_documents([[9, 0]], [[1, 0]], [[99.0, 1.0], [1.0, 99.0]], 0.5).per_token
    -0.0608...
    """
    lam = as_rows("topics", topics)
    w1, w2 = (as_counts("documents", part, lam.shape[1]) for part in (observed, held_out))  # as in the equation above
    if w1.shape != w2.shape:
        text = f"{w1.shape[0]} have an observed part, but {w2.shape[0]} a held-out part"
        raise InputError("documents", text, code="E-SHAPE")
    proportions = fold_in(w1, lam, document_prior, tolerance=tolerance)
    proportions /= proportions.sum(axis=1, keepdims=True)  # pi (n, K)
    word_probabilities = (lam / lam.sum(axis=1, keepdims=True)).T  # phi^T (V, K)
    log_likelihood = np.zeros(len(proportions))
    for row, words, tokens in _documents(w2):
        log_likelihood[row] = tokens @ np.log(word_probabilities[words] @ proportions[row])
    has_observed = np.diff(w1.indptr) > 0
    return Completion(np.where(has_observed, log_likelihood, 0.0), np.where(has_observed, w2.sum(axis=1), 0.0))


def tokens_of_topics(documents: Any, topics: ArrayLike, gamma: Array) -> Labels:
    """Return how many tokens each topic explains best (K,): those of which gamma_dk phi_kw is largest.

    Parameters
    ----------
    documents : array_like or sparse matrix of shape (n, V)
        Word counts.
    topics : array_like of shape (K, V)
        Dirichlet parameters lambda, positive.
    gamma : ndarray of shape (n, K)
        The documents' topic proportions, as ``fold_in`` returns them.

    Examples
    --------
    >>> topics = [[99.0, 1.0], [1.0, 99.0], [50.0, 50.0]]
    >>> tokens_of_topics([[9, 1]], topics, fold_in([[9, 1]], topics, 0.1))
    array([9, 0, 1])
    """
    lam = as_rows("topics", topics)
    counts = as_counts("documents", documents, lam.shape[1])
    word_probabilities = (lam / lam.sum(axis=1, keepdims=True)).T  # (V, K)
    topic_tokens = np.zeros(len(lam))
    for row, words, tokens in _documents(counts):
        best_topics = (word_probabilities[words] * gamma[row]).argmax(axis=1)
        topic_tokens += np.bincount(best_topics, tokens, minlength=len(lam))
    return topic_tokens.astype(np.int64)


def _infer_gamma(word_factors: Array, tokens: Array, alpha: Array, tolerance: float, max_iterations: int) -> Array:
    """Return gamma (K,) of one document, given how often each of its words occurs (m,) and its prior alpha (K,).

    Word factors (m, K) are exp E log phi, up to a factor for each word.
    """
    topic_factors = np.ascontiguousarray(word_factors.T)  # (K, m): both products read along rows
    gamma = np.ones(len(topic_factors))
    for _ in range(max_iterations):
        t = _exponentials(digamma(gamma))  # exp E log theta (K,), up to a factor that cancels
        previous, gamma = gamma, alpha + t * (topic_factors @ (tokens / (word_factors @ t)))
        if np.abs(gamma - previous).mean() < tolerance:
            break
    return gamma


def _exponentials(logs: Array) -> Array:
    """Return exp(logs), scaled to a maximum of one along the last axis; the normalisation of phi takes that out.

    Without it exp(psi(0.001)), a word that no topic saw, would be zero in every topic.
    """
    return np.maximum(np.exp(logs - logs.max(axis=-1, keepdims=True)), _MIN_FACTOR)


def _documents(counts: sparse.csr_array) -> Iterator[tuple[int, Labels, Array]]:
    """Yield the row of every document, the words that occur in it (m,), and how often each does (m,)."""
    for row, (start, end) in enumerate(itertools.pairwise(counts.indptr)):
        yield row, counts.indices[start:end], counts.data[start:end]
