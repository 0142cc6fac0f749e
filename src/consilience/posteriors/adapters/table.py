"""The table of adapters: every class of fitted models that is taken in and given back."""

from __future__ import annotations

from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.adapters.gensim_lda import LdaModelAdapter
from consilience.posteriors.adapters.hmmlearn.categorical import CategoricalHMMAdapter, VariationalCategoricalHMMAdapter
from consilience.posteriors.adapters.hmmlearn.gaussian import GaussianHMMAdapter
from consilience.posteriors.adapters.hmmlearn.variational_gaussian import VariationalGaussianHMMAdapter
from consilience.posteriors.adapters.sklearn.bayesian_mixture import BayesianGaussianMixtureAdapter
from consilience.posteriors.adapters.sklearn.kmeans import KMeansAdapter
from consilience.posteriors.adapters.sklearn.mixture import GaussianMixtureAdapter
from consilience.posteriors.adapters.sklearn.topics import LatentDirichletAllocationAdapter
from consilience.posteriors.hidden_markov.adapter import StickyHDPHMMAdapter
from consilience.posteriors.sparse_gp.adapter import SparseGPAdapter
from consilience.posteriors.sparse_gp.gpytorch import ApproximateGPAdapter
from consilience.posteriors.topics.gaussian_topics import GaussianTopicsAdapter

ADAPTERS: tuple[Adapter, ...] = (
    BayesianGaussianMixtureAdapter(),
    GaussianMixtureAdapter(),
    KMeansAdapter(),
    LatentDirichletAllocationAdapter(),
    LdaModelAdapter(),
    GaussianTopicsAdapter(),
    SparseGPAdapter(),
    ApproximateGPAdapter(),
    GaussianHMMAdapter(),
    VariationalGaussianHMMAdapter(),
    CategoricalHMMAdapter(),
    VariationalCategoricalHMMAdapter(),
    StickyHDPHMMAdapter(),
)
"""Every adapter; a new one is one file and one line here."""
