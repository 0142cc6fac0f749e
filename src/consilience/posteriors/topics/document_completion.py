"""Document completion: how well topics predict the tokens of a document that they were not shown.

Every document's tokens are split at random. Its topic proportions are inferred from one part with the topics held
fixed, by the variational document step of Blei, Ng and Jordan (2003), and the other part is predicted:

    log p(w2 | w1) = sum_{w in w2} log sum_k pi_k phi_kw,    pi = gamma / sum gamma,    phi_k = lambda_k / sum lambda_k,

which is equation (10) of Claici et al. (2020). Nothing here knows a library: topics are Dirichlet parameters (K, V),
documents are counts (n, V), dense or sparse. Documents are taken one by one, and the words that occur in one all at
once: its words by topics fit a processor's cache, and each stops when it is settled. Batches were measured slower.
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
from consilience.errors import InputError

HELD_OUT_SHARE = 0.1
"""Part of every document's tokens that is predicted."""

TOLERANCE = 1e-4
"""A document is settled when its gamma changes by less, on average over topics, in tokens."""

MAX_ITERATIONS = 100
"""And after so many steps in any case."""

_FLOOR = 1e-150  # the product of two such factors is still a normal number, so that nothing is divided by zero


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


def as_counts(name: str, documents: Any, columns: int | None = None) -> sparse.csr_array:
    """Return word counts (n, V) as a float64 CSR array without stored zeros or duplicates.

    Raises
    ------
    InputError
        When they are not whole numbers of tokens, naming the first that is not; or of another width.

    Examples
    --------
    >>> as_counts("documents", [[0, 2], [1, 0]]).nnz
    2
    """
    rows = documents if sparse.issparse(documents) else as_rows(name, documents)
    counts = sparse.csr_array(rows, dtype=np.float64, copy=True)  # a copy, since the next line works in place
    counts.sum_duplicates()
    if columns is not None and counts.shape[1] != columns:
        raise InputError(f"{name}: has {counts.shape[1]} columns, expected {columns}")
    whole = (
        np.isfinite(counts.data) & (counts.data >= 0) & (counts.data == np.floor(counts.data)) & (counts.data < 2**31)
    )
    if not whole.all():
        entry = int(np.argmin(whole))
        row = int(np.searchsorted(counts.indptr, entry, side="right")) - 1
        raise InputError(
            f"{name}: row {row}, column {counts.indices[entry]} (counted from 0): expected a number of tokens"
            f" (0, 1, 2, ...), found {counts.data[entry]:g}"
        )
    counts.eliminate_zeros()
    return counts


def split_tokens(
    documents: Any, *, share: float = HELD_OUT_SHARE, rng: int | np.random.Generator = 0
) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Split every document's tokens at random into an observed and a held-out part, without replacement.

    A document of n tokens holds out max(1, round(share n)) of them, and none when it is empty.

    Parameters
    ----------
    documents
        Word counts (n, V), dense or sparse.
    share
        Part of the tokens to hold out, between 0 and 1.
    rng
        Seed or Generator; the same seed splits the same documents in the same way.

    Returns
    -------
    tuple
        Counts (n, V) of the observed and of the held-out tokens; their sum is `documents`.

    Examples
    --------
    >>> observed, held_out = split_tokens([[30, 20], [1, 0], [0, 0]])
    >>> observed.sum(axis=1), held_out.sum(axis=1)
    (array([45.,  0.,  0.]), array([5., 1., 0.]))
    """
    if not 0.0 < share < 1.0:
        raise InputError(f"share: expected a number between 0 and 1, found {share}")
    counts = as_counts("documents", documents)
    generator = np.random.default_rng(rng)
    token_entry = np.repeat(np.arange(counts.nnz), counts.data.astype(np.int64))
    sizes = counts.sum(axis=1).astype(np.int64)
    token_document = np.repeat(np.arange(len(sizes)), sizes)
    shuffled = np.lexsort((generator.random(len(token_entry)), token_document))  # tokens shuffled within documents
    place = np.arange(len(token_entry)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wanted = np.where(sizes > 0, np.maximum(1, np.rint(share * sizes).astype(np.int64)), 0)
    chosen = token_entry[shuffled[place < np.repeat(wanted, sizes)]]
    taken = np.bincount(chosen, minlength=counts.nnz).astype(np.float64)
    halves = []
    for data in (counts.data - taken, taken):
        half = sparse.csr_array((data, counts.indices.copy(), counts.indptr.copy()), shape=counts.shape)
        half.eliminate_zeros()
        halves.append(half)
    return halves[0], halves[1]


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

    Parameters
    ----------
    documents
        Word counts (n, V), dense or sparse.
    topics
        Dirichlet parameters lambda (K, V), positive.
    document_prior
        alpha: a number, the same for every topic, or one for each (K,).
    tolerance
        In tokens.
    max_iterations
        Steps after which a document is left as it is.

    Examples
    --------
    >>> fold_in([[9, 0], [0, 9]], [[99.0, 1.0], [1.0, 99.0]], 0.5).round(1)
    array([[9.5, 0.5],
           [0.5, 9.5]])
    """
    weights = as_rows("topics", topics)
    counts = as_counts("documents", documents, weights.shape[1])
    prior = as_vector("document_prior", document_prior, len(weights))
    if not np.all((prior > 0.0) & (prior < np.inf)):
        raise InputError(f"document_prior: expected a positive number for every topic, found {prior}")
    words = _exponentials((digamma(weights) - digamma(weights.sum(axis=1, keepdims=True))).T)
    gamma = np.empty((counts.shape[0], len(weights)))
    for row, present, tokens in _documents(counts):
        gamma[row] = _settle(words[present], tokens, prior, tolerance, max_iterations)
    return gamma


def complete_documents(
    observed: Any, held_out: Any, topics: ArrayLike, document_prior: ArrayLike, *, tolerance: float = TOLERANCE
) -> Completion:
    """Return how well `held_out` tokens are predicted from the `observed` ones of the same documents.

    Parameters
    ----------
    observed, held_out
        Word counts (n, V), as ``split_tokens`` returns them. Documents without tokens in either are skipped.
    topics
        Dirichlet parameters lambda (K, V), positive.
    document_prior
        alpha: a number, the same for every topic, or one for each (K,).
    tolerance
        Of ``fold_in``.

    Examples
    --------
    >>> complete_documents([[9, 0]], [[1, 0]], [[99.0, 1.0], [1.0, 99.0]], 0.5).per_token
    -0.0608...
    """
    weights = as_rows("topics", topics)
    given, wanted = (as_counts("documents", part, weights.shape[1]) for part in (observed, held_out))
    if given.shape != wanted.shape:
        raise InputError(f"documents: {given.shape[0]} have an observed part, but {wanted.shape[0]} a held-out part")
    proportions = fold_in(given, weights, document_prior, tolerance=tolerance)
    proportions /= proportions.sum(axis=1, keepdims=True)
    words = (weights / weights.sum(axis=1, keepdims=True)).T
    found = np.zeros(len(proportions))
    for row, present, tokens in _documents(wanted):
        found[row] = tokens @ np.log(words[present] @ proportions[row])
    usable = np.diff(given.indptr) > 0
    return Completion(np.where(usable, found, 0.0), np.where(usable, wanted.sum(axis=1), 0.0))


def tokens_of_topics(documents: Any, topics: ArrayLike, gamma: Array) -> Labels:
    """Return how many tokens each topic explains best (K,), given the documents' `gamma` (n, K) of ``fold_in``.

    Examples
    --------
    >>> topics = [[99.0, 1.0], [1.0, 99.0], [50.0, 50.0]]
    >>> tokens_of_topics([[9, 1]], topics, fold_in([[9, 1]], topics, 0.1))
    array([9, 0, 1])
    """
    weights = as_rows("topics", topics)
    counts = as_counts("documents", documents, weights.shape[1])
    words = (weights / weights.sum(axis=1, keepdims=True)).T
    tokens = np.zeros(len(weights))
    for row, present, count in _documents(counts):
        tokens += np.bincount((words[present] * gamma[row]).argmax(axis=1), count, minlength=len(weights))
    return tokens.astype(np.int64)


def _settle(words: Array, tokens: Array, prior: Array, tolerance: float, max_iterations: int) -> Array:
    """Return gamma (K,) of one document, from the topics' factors (words, K) and its `tokens` (words,)."""
    topics = np.ascontiguousarray(words.T)
    gamma = np.ones(len(topics))
    for _ in range(max_iterations):
        shares = _exponentials(digamma(gamma))
        before, gamma = gamma, prior + shares * (topics @ (tokens / (words @ shares)))
        if np.abs(gamma - before).mean() < tolerance:
            break
    return gamma


def _exponentials(logs: Array) -> Array:
    """Return exp(logs), scaled to a maximum of one along the last axis; the normalisation of phi takes that out.

    Without it exp(psi(0.001)), a word that no topic saw, would be zero in every topic.
    """
    return np.maximum(np.exp(logs - logs.max(axis=-1, keepdims=True)), _FLOOR)


def _documents(counts: sparse.csr_array) -> Iterator[tuple[int, Labels, Array]]:
    """Yield the number of every document, which words occur in it, and how often."""
    for row, (start, end) in enumerate(itertools.pairwise(counts.indptr)):
        yield row, counts.indices[start:end], counts.data[start:end]
