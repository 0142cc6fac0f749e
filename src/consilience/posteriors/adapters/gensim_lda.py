"""gensim's LdaModel and LdaMulticore, in and out: topics as Dirichlet posteriors lambda = eta + expected counts."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array
from consilience.core.features import Features
from consilience.errors import InputError
from consilience.families import Dirichlet
from consilience.posteriors.posterior import Attached, Posterior
from consilience.posteriors.topics.adapter import (
    TopicAdapter,
    posterior_of_topics,
    require_unique_words,
    topic_prior_of,
)

_SINGLE_PRECISION = 1e-6
"""Relative error of numbers that come back from gensim, which works in single precision by default (6e-8 of each)."""


class LdaModelAdapter(TopicAdapter):
    """gensim's topic models, LdaMulticore among them: lambda is ``state.eta + state.sstats``.

    The topic prior is the eta inside lambda, a number or one for each word; one for each topic is refused, since the
    topics of a posterior share their prior. gensim keeps the eta that ``eta="auto"`` learns outside lambda, so that is
    not what topics have from before data. The words of ``id2word`` are the names of the features.

    The document prior alpha may differ between topics, given or learned. Its level is the mean of the sites', or 1 / G
    when every site has gensim's default of 1 / K, and a fused topic's part of it is the mean of its copies'. Documents
    add up, so that ``update`` on a rebuilt model goes on where the sites stopped rather than starting over.
    """

    kind: ClassVar[str] = "gensim.LdaModel"
    library: ClassVar[str] = "gensim"
    class_name: ClassVar[str] = "LdaModel"

    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return the posterior of the topics; the model records its counts."""
        if getattr(model, "state", None) is None or model.num_updates == 0:
            raise InputError("", f"this {self.class_name} is not fitted yet", "call update first", "E-UNFITTED")
        topics, alpha = self.topics(model)  # lambda (K, V), alpha (K,)
        # alpha is split into its level, which all topics share, and each topic's part of it, which follows the topic.
        level = float(alpha.mean())
        is_default = np.allclose(alpha, 1.0 / len(alpha), rtol=_SINGLE_PRECISION, atol=0.0)
        return posterior_of_topics(
            topics,
            _topic_prior(model),
            attached={
                "doc_topic_prior": Attached(np.array(level), (), "mean"),
                "doc_topic_prior_is_default": Attached(np.array(float(is_default)), (), "mean"),
                "doc_topic_prior_parts": Attached(alpha / level, ("component",), "mean"),
                "documents": Attached(np.array(float(model.num_updates)), (), "sum"),
            },
            features=_feature_words(model),
            source={"kind": self.kind},
        )

    def rebuild(self, posterior: Posterior) -> Any:
        """Return a trained LdaModel in double precision; its ``id2word`` is a Dictionary without document counts."""
        from gensim.corpora import Dictionary
        from gensim.models import LdaModel
        from gensim.utils import FakeDict

        self.require_family(posterior, Dirichlet)
        attached = {name: array.values for name, array in posterior.attached.items()}
        n_documents = max(1, round(float(attached["documents"])))
        level = float(attached["doc_topic_prior"])
        if float(attached["doc_topic_prior_is_default"]) == 1.0:  # the mean is one only when it is at every site
            level = 1.0 / posterior.n_components
        dictionary = FakeDict(posterior.family.size)
        if posterior.features.names is not None:
            require_unique_words("vocabulary", posterior.features.names)
            dictionary = Dictionary()
            dictionary.token2id = {word: number for number, word in enumerate(posterior.features.names)}
        eta = topic_prior_of(posterior)  # (V,)
        model = LdaModel(
            num_topics=posterior.n_components,
            id2word=dictionary,
            alpha=level * attached["doc_topic_prior_parts"],
            eta=eta,
            random_state=0,  # inference starts at random; so that NumPy's own generator is left alone
            dtype=np.float64,
        )
        model.state.sstats = posterior.parameters()["concentration"] - eta
        model.state.numdocs = model.num_updates = n_documents
        model.sync_state()
        return model

    def topics(self, model: Any) -> tuple[Array, Array]:
        """Return lambda (K, V), added up in double precision, and alpha (K,)."""
        topics: Array = np.asarray(model.state.eta, dtype=np.float64) + np.asarray(model.state.sstats, dtype=np.float64)
        return topics, np.asarray(model.alpha, dtype=np.float64)


def _topic_prior(model: Any) -> Array | float:
    """Return the eta inside lambda: a number where it is the same for all words, or one for each word (V,)."""
    eta = np.asarray(model.state.eta, dtype=np.float64)
    if eta.ndim == 2 and np.any(eta != eta[0]):
        raise InputError(
            f"this LdaModel has a prior for each of its {len(eta)} topics; topics are fused under one prior, so train"
            " with eta a number or one number for each word"
        )
    word_prior: Array = eta[0] if eta.ndim == 2 else eta
    return float(word_prior[0]) if np.all(word_prior == word_prior[0]) else word_prior


def _feature_words(model: Any) -> Features:
    """Return the words of ``id2word`` in the order of their numbers; nothing where gensim made the numbers up."""
    if type(model.id2word).__name__ == "FakeDict":
        return Features()
    missing = sorted(set(range(model.num_terms)) - set(model.id2word.keys()))
    if missing:
        text = (
            f"id2word has no word for number {missing[0]} ({len(missing)} of {model.num_terms} lack one); call"
            " `compactify()` on the dictionary before training"
        )
        raise InputError("", text, code="E-NEEDED")
    names = tuple(str(model.id2word[number]) for number in range(model.num_terms))
    require_unique_words("id2word", names)
    return Features(names=names, from_columns=True)
