"""Topic models of all libraries: topics as Dirichlet posteriors, and document completion as their score.

A topic is Dirichlet(lambda_k) over the V words of a vocabulary. Each entry of lambda is the topic's prior concentration
of the word plus the expected number of its tokens that come from the topic,

    lambda_kw = beta_0 + sum_d c_dw phi_dwk,

with c_dw the tokens of word w in document d and phi the variational responsibilities of the topics.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array, Json
from consilience.core.features import Features
from consilience.core.scores import ScoreKind, Scores
from consilience.errors import InputError
from consilience.families import Dirichlet
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.posterior import Attached, Posterior
from consilience.posteriors.topics.document_completion import (
    complete_documents,
    fold_in,
    split_tokens,
    tokens_of_topics,
)


class TopicAdapter(Adapter):
    """One class of topic models, in and out: a subclass reads its topics and its document prior."""

    takes_counts: ClassVar[bool] = True
    has_vocabulary: ClassVar[bool] = True

    @abstractmethod
    def topics(self, model: Any) -> tuple[Array, Array | float]:
        """Return the concentrations lambda (K, V) of a fitted `model` and its document prior: a number or (K,)."""

    def scores(self, model: Any, data: Any) -> Scores:
        """Return the log likelihood of a tenth of every document's tokens given the others, by document completion.

        The split is the same for every model, and a document weighs as much as it has held-out tokens. Its label is its
        largest topic; usage counts tokens by the topic that explains them best, both from whole documents.
        """
        topics, prior = self.topics(model)
        completion = complete_documents(*split_tokens(data), topics, prior)
        gamma = fold_in(data, topics, prior)  # of whole documents (n, K)
        is_scored = completion.tokens > 0
        return Scores(
            name="log likelihood of held-out tokens",
            unit="nats per token",
            larger_is_better=True,
            observations="documents",
            values=completion.log_likelihood / np.where(is_scored, completion.tokens, 1.0),
            weights=completion.tokens,
            labels=np.where(data.sum(axis=1) > 0, gamma.argmax(axis=1), -1),
            usage=tokens_of_topics(data, topics, gamma),
            usage_unit="tokens",
            kind=ScoreKind.COMPLETION,
        )


def posterior_of_topics(
    topics: Array,
    topic_prior: Array | float,
    attached: Mapping[str, Attached],
    features: Features,
    source: Mapping[str, Json],
) -> Posterior:
    """Return the posterior that a site sends of its topics. Counts are tokens: what a topic has beyond its prior.

    Topics are concentrations lambda (K, V); their prior is the concentration before data, a number, or one for each
    word.
    """
    family = Dirichlet(topics.shape[1])
    prior_total = topic_prior * family.dim if isinstance(topic_prior, float) else topic_prior.sum()
    return Posterior(
        family,
        family.to_natural(concentration=topics),
        prior=np.full(family.size, topic_prior) - 1.0,
        counts=np.maximum(topics.sum(axis=1) - prior_total, 0.0),
        attached=attached,
        features=features,
        source=source,
    )


def require_unique_words(what: str, words: Sequence[str]) -> None:
    """Raise InputError when `words` has a word more than once; `what` names them in the message."""
    if len(set(words)) < len(words):
        word, count = Counter(words).most_common(1)[0]
        raise InputError("", f"{what} has the word {word!r} {count} times, expected once", code="E-TWICE")


def topic_prior_of(posterior: Posterior) -> Array:
    """Return the concentrations (V,) that every topic had before data: 1 / K each where the posterior states none."""
    if posterior.prior is None:
        return np.full(posterior.family.size, 1.0 / posterior.n_components)
    return np.asarray(posterior.prior + 1.0)
