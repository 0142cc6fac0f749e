"""scikit-learn's LatentDirichletAllocation, in and out."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from consilience.families import Dirichlet
from consilience.families.posterior import Attached, Posterior
from consilience.models.base import Adapter, set_sklearn_features, sklearn_features
from consilience.models.scores import Scores
from consilience.models.topic_evaluation import complete_documents, fold_in, split_tokens, tokens_of_topics


class LatentDirichletAllocationAdapter(Adapter):
    """Topic models: one Dirichlet over the vocabulary per topic, ``components_``.

    The topic prior is what every topic had before data; counts are tokens. The document prior of the fused model is the
    mean of the sites' when they set it, and 1 / G when they left scikit-learn's default of 1 / K.
    """

    kind: ClassVar[str] = "sklearn.LatentDirichletAllocation"
    library: ClassVar[str] = "sklearn"
    class_name: ClassVar[str] = "LatentDirichletAllocation"
    takes_counts: ClassVar[bool] = True

    def describe(self, model: Any, samples: float | None) -> Posterior:
        """Return the posterior of the topics; the model records its counts."""
        del samples
        self.fitted(model, "components_")
        topics = np.asarray(model.components_, dtype=np.float64)
        family = Dirichlet(topics.shape[1])
        prior = float(model.topic_word_prior_)
        return Posterior(
            family,
            family.to_natural(concentration=topics),
            prior=np.full(family.size, prior - 1.0),
            counts=np.maximum(topics.sum(axis=1) - prior * family.dim, 0.0),
            attached={"doc_topic_prior": Attached(np.array(float(model.doc_topic_prior_)), (), "mean")},
            features=sklearn_features(model),
            source={"kind": self.kind, "doc_topic_prior": "default" if model.doc_topic_prior is None else "given"},
        )

    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted LatentDirichletAllocation."""
        from sklearn.decomposition import LatentDirichletAllocation
        from sklearn.utils import check_random_state

        self.expects(posterior, Dirichlet)
        topics = posterior.parameters()["concentration"]
        given = posterior.source["doc_topic_prior"] == "given"
        document_prior = float(posterior.attached["doc_topic_prior"].values) if given else 1.0 / len(topics)
        topic_prior = 1.0 / len(topics) if posterior.prior is None else float(posterior.prior[0] + 1.0)
        model = LatentDirichletAllocation(
            n_components=len(topics),
            doc_topic_prior=document_prior if given else None,
            topic_word_prior=topic_prior,
        )
        model.components_ = topics
        model.exp_dirichlet_component_ = np.exp(posterior.family.mean_parameters(posterior.natural))
        model.doc_topic_prior_, model.topic_word_prior_ = document_prior, topic_prior
        model.n_iter_, model.n_batch_iter_ = 0, 1
        model.random_state_ = check_random_state(None)  # what further fitting draws from
        set_sklearn_features(model, posterior, topics.shape[1])
        return model

    def scores(self, model: Any, data: Any) -> Scores:
        """Return how well a tenth of every document's tokens is predicted from the others, by document completion.

        The split is the same for every model, and a document weighs as much as it has held-out tokens. Its label is its
        largest topic; usage counts tokens by the topic that explains them best, both from whole documents.
        """
        topics, prior = np.asarray(model.components_, dtype=np.float64), float(model.doc_topic_prior_)
        completion = complete_documents(*split_tokens(data), topics, prior)
        gamma = fold_in(data, topics, prior)
        scored = completion.tokens > 0
        return Scores(
            name="log likelihood of held-out tokens",
            unit="nats per token",
            larger_is_better=True,
            observations="documents",
            values=completion.log_likelihood / np.where(scored, completion.tokens, 1.0),
            weights=completion.tokens,
            labels=np.where(data.sum(axis=1) > 0, gamma.argmax(axis=1), -1),
            usage=tokens_of_topics(data, topics, gamma),
            usage_unit="tokens",
        )
