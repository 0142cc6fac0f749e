"""Virtual documents: what fused topics lose on held-out words against all sites' topics side by side.

Topics have no density of documents in closed form, and no evidence from parameters alone decides their number: a word
prior of a tenth, over six thousand words, is six hundred words of every topic that nobody has seen. What a reader of
topics wants is document completion, and that can be simulated from the sites' counts. With n_l(v) = lambda_l(v) -
beta(v) the tokens of word v that topic l has beyond its prior, a virtual document is of one site, drawn by its tokens,
and mixes that site's topics by theta ~ Dirichlet(their shares of tokens). Its last words are predicted from the others,

    score = log sum_k theta_k phi_k(v),    phi_k(v) = (n_k(v) - r_k + beta(v)) / (n_k - r_k + beta)

with n_k(v) the tokens of all topics in group k, n_k and beta sums over words, and theta folded in from the other words
by expectation maximisation. Every token is one of those that were counted, so it is taken out of the counts before it
is predicted: r is 1 token, of its own topic as far as that has so much of the word, the rest of the site's other
topics. That is deleted estimation (Jelinek and Mercer 1985); without it topics side by side could not lose, however few
tokens each rests on.

    loss(M) = score(all topics side by side) - score(groups of M)        nats a token

is of the same documents for all matchings. It may be below zero: what few tokens say is better pooled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from consilience.checks import Array, Labels
from consilience.families.dirichlet import Dirichlet
from consilience.matching.groups import membership_matrix
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.evidence.search import steady_order

N_DOCUMENTS = 400
"""Virtual documents: a standard error of some 0.005 nats a token for a loss of 0.02."""
N_OBSERVED, N_PREDICTED = 90, 10
"""Tokens of a document that are observed and predicted: a tenth is held out, as in Claici et al. (2020)."""
N_TOKENS = N_OBSERVED + N_PREDICTED
EM_STEPS = 40
"""Steps of the fold-in. After 20 no loss of the half for tuning changed by 0.001 nats."""
MIN_TOKENS = 1e-12
"""Tokens of a word that a topic has at least once the predicted one is taken out: rounding may leave less than none."""
CHUNK_VALUES = 2**22
"""Values of tokens by groups that are held at once: 32 MiB."""


@dataclass(frozen=True, eq=False)
class VirtualDocuments:
    """Losses of matchings of one set of topics, all on the same documents."""

    tokens: Array  # n_l(v) >= 0, the tokens of each word in each topic (L, V)
    prior: Array  # beta, concentrations of words before any is seen (V,)
    offsets: Labels  # where each site starts in an order of sites that no tiny change changes, and the end (J + 1,)
    order: Labels  # rows of the ensemble in that order (L,): tokens are in it

    @cached_property
    def totals(self) -> Array:
        """Tokens of each topic (L,)."""
        return np.asarray(self.tokens.sum(axis=1))

    @cached_property
    def _drawn(self) -> tuple[Labels, Labels, Labels]:
        """The site of each document (n,), ascending, and word and topic of its tokens (n, T): no seed enters."""
        rng = np.random.default_rng(0)
        by_site = np.add.reduceat(self.totals, self.offsets[:-1])
        sites = np.sort(rng.choice(len(by_site), size=N_DOCUMENTS, p=by_site / by_site.sum()))
        topics = np.empty((N_DOCUMENTS, N_TOKENS), dtype=np.int64)
        for document, site in enumerate(sites.tolist()):
            rows = np.arange(self.offsets[site], self.offsets[site + 1])
            used = rows[self.totals[rows] > 0]
            theta = rng.dirichlet(self.totals[used] / self.totals[used].sum())
            topics[document] = used[np.searchsorted(np.cumsum(theta)[:-1], rng.random(N_TOKENS), side="right")]
        uniform, words = rng.random(topics.shape), np.empty_like(topics)
        for topic in np.unique(topics).tolist():  # inverse distribution functions, one topic after another
            is_drawn, cumulative = topics == topic, np.cumsum(self.tokens[topic])
            last_seen = np.flatnonzero(self.tokens[topic])[-1]
            place = np.searchsorted(cumulative, uniform[is_drawn] * cumulative[-1], side="right")
            words[is_drawn] = np.minimum(place, last_seen)
        return sites, words, topics

    @cached_property
    def _removed(self) -> list[tuple[slice, slice, Array]]:
        """What is taken out for each token: documents and rows of every site, and (tokens, rows of the site)."""
        sites, words, topics = self._drawn
        parts = []
        for site in np.unique(sites).tolist():
            documents = slice(*np.searchsorted(sites, [site, site + 1]).tolist())
            rows = slice(int(self.offsets[site]), int(self.offsets[site + 1]))
            counts = self.tokens[rows][:, words[documents].ravel()].T  # (tokens, K): of the word in the site's topics
            own = np.arange(len(counts)), topics[documents].ravel() - rows.start
            removed = np.zeros_like(counts)
            removed[own] = np.minimum(counts[own], 1.0)
            others = counts.copy()
            others[own] = 0.0
            in_others = others.sum(axis=1)
            rest = np.minimum(1.0 - removed[own], in_others)
            removed += others * (rest / np.where(in_others > 0, in_others, 1.0))[:, None]
            parts.append((documents, rows, removed))
        return parts

    def scores(self, labels: Labels, fused: Array | None = None) -> Array:
        """Return the mean log probability of each document's predicted tokens (n,) under the groups of a matching.

        Labels (L,) are of the rows of the ensemble; a topic of label -1 is in no group. `fused` (G, V) are the
        concentrations of the groups; by default their tokens and one prior, a Bayesian average of sites that are alike.
        """
        labels = labels[self.order]
        n_groups = int(labels.max()) + 1
        members = membership_matrix(labels, np.ones(len(labels)), n_groups)
        tokens = np.asarray(members @ self.tokens) + self.prior
        if fused is not None:  # of an average by other weights a token is as much as of all tokens together
            tokens = fused * (tokens.sum(axis=1) / fused.sum(axis=1))[:, None]
        totals, words, scores = tokens.sum(axis=1), self._drawn[1], np.empty(N_DOCUMENTS)
        step = max(1, CHUNK_VALUES // (N_TOKENS * n_groups))
        for documents, rows, removed in self._removed:
            own_groups = np.unique(labels[rows][labels[rows] >= 0])
            of_groups = removed @ (labels[rows][:, None] == own_groups)  # (tokens, own groups)
            of_groups = of_groups.reshape(documents.stop - documents.start, N_TOKENS, len(own_groups))
            for start in range(documents.start, documents.stop, step):
                chunk = slice(start, min(documents.stop, start + step))
                taken = of_groups[chunk.start - documents.start : chunk.stop - documents.start]
                probabilities = tokens.T[words[chunk]]  # (d, T, G), a copy
                denominators = np.broadcast_to(totals, probabilities.shape).copy()
                probabilities[:, :, own_groups] -= taken
                denominators[:, :, own_groups] -= taken
                scores[chunk] = _completed(np.maximum(probabilities, MIN_TOKENS) / denominators)
        return scores

    @cached_property
    def _side_by_side(self) -> Array:
        """The scores of all topics (n,)."""
        return self.scores(np.arange(len(self.order)))

    def by_document(self, labels: Labels, fused: Array | None = None) -> Array:
        """Return the loss of a matching (L,) on every document (n,), in nats a token; `fused` is as in ``scores``."""
        return self._side_by_side - self.scores(labels, fused)

    def of_sites(self, sites: Labels) -> Array:
        """Return the loss of the topics of each of some sites alone on every document (k, n).

        Sites are those of `offsets`, and have the prior of all.
        """
        losses = np.empty((len(sites), N_DOCUMENTS))
        for number, site in enumerate(sites.tolist()):
            rows = self.order[self.offsets[site] : self.offsets[site + 1]]
            labels = np.full(len(self.order), -1)
            labels[rows] = np.arange(len(rows))
            losses[number] = self.by_document(labels)
        return losses

    def by_topic(self, values: Array) -> Array:
        """Return the values of documents (n,) shared out among the topics that their tokens are of, summed up (L,)."""
        sums = np.zeros(len(self.order))
        shares = np.repeat(values / N_TOKENS, N_TOKENS)
        sums[self.order] = np.bincount(self._drawn[2].ravel(), weights=shares, minlength=len(sums))
        return sums


def _completed(probabilities: Array) -> Array:
    """Return the mean log probability of the predicted tokens of documents given all others (d,).

    `probabilities` (d, T, G) are those of each token under each group.
    """
    observed, predicted = probabilities[:, :N_OBSERVED], probabilities[:, N_OBSERVED:]
    n_groups = probabilities.shape[2]
    theta = np.full((len(observed), n_groups, 1), 1.0 / n_groups)
    for _ in range(EM_STEPS):
        expected = observed.transpose(0, 2, 1) @ (1.0 / (observed @ theta))  # (d, G, 1), over theta
        theta = theta * expected + 1.0 / n_groups
        theta /= theta.sum(axis=1, keepdims=True)
    return np.asarray(np.log((predicted @ theta)[:, :, 0]).mean(axis=1))


def virtual_documents_of(ensemble: Ensemble) -> VirtualDocuments | None:
    """Return the virtual documents of sites' topics; None for components that are none, or where nothing was seen."""
    if not is_topics(ensemble):
        return None
    natural, owner = ensemble.natural, ensemble.owner
    stated = [posterior.prior for posterior in ensemble.unordered]
    nothing = np.zeros(ensemble.family.size)
    priors = np.stack([nothing if prior is None else prior + 1.0 for prior in stated])  # concentrations (J, V)
    seen = np.maximum(natural + 1.0 - priors[owner], 0.0) * ensemble.row_weights[:, None]
    of_sites = np.bincount(owner, weights=seen.sum(axis=1), minlength=ensemble.n_sites)
    if not of_sites.sum() > 0.0:
        return None
    prior = (of_sites / of_sites.sum()) @ priors
    prior = prior if prior.sum() > 0.0 else np.full(len(nothing), 1.0 / len(nothing))
    order = steady_order(natural, owner)
    starts = np.flatnonzero(np.diff(owner[order], prepend=-1, append=-1))
    return VirtualDocuments(seen[order], prior, starts, order)


def is_topics(ensemble: Ensemble) -> bool:
    """Return whether components are distributions of words with counts beyond a prior, and no states of a chain."""
    return isinstance(ensemble.family, Dirichlet) and not ensemble.is_chain
