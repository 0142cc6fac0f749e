"""scikit-learn's LatentDirichletAllocation, in and out: ``components_`` are the Dirichlet concentrations lambda."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array
from consilience.core.features import sklearn_features
from consilience.families import Dirichlet
from consilience.posteriors.adapters.base import set_sklearn_features
from consilience.posteriors.posterior import Attached, Posterior
from consilience.posteriors.topics.adapter import TopicAdapter, posterior_of_topics, topic_prior_of


class LatentDirichletAllocationAdapter(TopicAdapter):
    """Topic models: one Dirichlet over the vocabulary per topic, ``components_``.

    The topic prior is what every topic had before data; counts are tokens. The document prior of the fused model is the
    mean of the sites' when they set it, and 1 / G when they left scikit-learn's default of 1 / K.
    """

    kind: ClassVar[str] = "sklearn.LatentDirichletAllocation"
    library: ClassVar[str] = "sklearn"
    class_name: ClassVar[str] = "LatentDirichletAllocation"

    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return the posterior of the topics; the model records its counts."""
        self.require_fitted(model, "components_")
        topics, document_prior = self.topics(model)
        return posterior_of_topics(
            topics,
            float(model.topic_word_prior_),
            attached={"doc_topic_prior": Attached(np.array(document_prior), (), "mean")},
            features=sklearn_features(model),
            source={"kind": self.kind, "doc_topic_prior": "default" if model.doc_topic_prior is None else "given"},
        )

    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted LatentDirichletAllocation."""
        from sklearn.decomposition import LatentDirichletAllocation
        from sklearn.utils import check_random_state

        self.require_family(posterior, Dirichlet)
        topics = posterior.parameters()["concentration"]
        is_prior_given = posterior.source["doc_topic_prior"] == "given"
        document_prior = float(posterior.attached["doc_topic_prior"].values) if is_prior_given else 1.0 / len(topics)
        topic_prior = float(topic_prior_of(posterior)[0])
        model = LatentDirichletAllocation(
            n_components=len(topics),
            doc_topic_prior=document_prior if is_prior_given else None,
            topic_word_prior=topic_prior,
        )
        model.components_ = topics
        model.exp_dirichlet_component_ = np.exp(posterior.family.mean_parameters(posterior.natural))  # exp E log phi
        model.doc_topic_prior_, model.topic_word_prior_ = document_prior, topic_prior
        model.n_iter_, model.n_batch_iter_ = 0, 1
        model.random_state_ = check_random_state(None)  # what further fitting draws from
        set_sklearn_features(model, posterior, topics.shape[1])
        return model

    def topics(self, model: Any) -> tuple[Array, float]:
        """Return ``components_`` (K, V) and the document prior, the same for every topic."""
        return np.asarray(model.components_, dtype=np.float64), float(model.doc_topic_prior_)
