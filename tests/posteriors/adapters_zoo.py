"""A fitted model of every adapter's class, made in a moment: what the laws of all adapters run on."""

import warnings
from functools import cache

import numpy as np
from gensim.corpora import Dictionary
from gensim.models import LdaModel
from hmmlearn.hmm import CategoricalHMM, GaussianHMM, PoissonHMM
from hmmlearn.vhmm import VariationalCategoricalHMM, VariationalGaussianHMM
from sklearn.cluster import Birch, BisectingKMeans, KMeans, MiniBatchKMeans
from sklearn.decomposition import NMF, LatentDirichletAllocation
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

from consilience.posteriors.adapters.table import ADAPTERS
from consilience.posteriors.hidden_markov.learner import StickyHDPHMM
from consilience.posteriors.topics.gaussian_topics import GaussianTopics
from tests.posteriors import sparse_gps
from tests.specimens import Specimens

RNG = np.random.default_rng(0)
ROWS = np.concatenate([centre + RNG.normal(size=(40, 2)) for centre in ((0.0, 0.0), (9.0, 0.0), (0.0, 9.0))])
WORDS = [f"word-{number}" for number in range(12)]
COUNTS = np.random.default_rng(1).poisson(np.repeat(np.kron(np.eye(3), np.full(4, 6.0)) + 0.2, 10, axis=0))
SYMBOLS = np.random.default_rng(2).integers(3, size=(120, 1))


def _gensim():
    words = Dictionary()
    words.token2id = {name: number for number, name in enumerate(WORDS)}
    bags = [[(int(word), int(row[word])) for word in np.flatnonzero(row)] for row in COUNTS]
    return LdaModel(bags, 3, words, passes=1, random_state=0, dtype=np.float64)


def _settled(model, rows):
    """Fit a model of hmmlearn for two steps, which are too few to its liking."""
    model.set_params(n_iter=2, tol=1e6, random_state=0)
    return model.fit(rows)


def _gpytorch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says while it is imported
        import gpytorch
        import torch

    class Regression(gpytorch.models.ApproximateGP):
        def __init__(self, points):
            law = gpytorch.variational.CholeskyVariationalDistribution(len(points))
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, law))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Regression(torch.as_tensor(sparse_gps.inputs())).double()
    model(torch.as_tensor(ROWS[:5]))  # which tells it that its law is set
    law = model.variational_strategy._variational_distribution
    law.variational_mean.data += torch.as_tensor(np.random.default_rng(3).normal(size=9))
    return model.eval()


SPECIMENS = Specimens(
    "SPECIMENS in tests/posteriors/adapters_zoo.py",
    {
        "sklearn.BayesianGaussianMixture": lambda: BayesianGaussianMixture(n_components=3, random_state=0).fit(ROWS),
        "sklearn.GaussianMixture": lambda: GaussianMixture(3, random_state=0).fit(ROWS),
        "sklearn.KMeans": lambda: KMeans(3, n_init=1, random_state=0).fit(ROWS),
        "sklearn.MiniBatchKMeans": lambda: MiniBatchKMeans(3, n_init=3, random_state=0).fit(ROWS),
        "sklearn.BisectingKMeans": lambda: BisectingKMeans(3, random_state=0).fit(ROWS),
        "sklearn.Birch": lambda: Birch(threshold=2.5, n_clusters=3).fit(ROWS),
        "sklearn.LatentDirichletAllocation": lambda: LatentDirichletAllocation(3, max_iter=3, random_state=0).fit(
            COUNTS
        ),
        "sklearn.NMF": lambda: NMF(3, max_iter=600, random_state=0).fit(COUNTS),
        "gensim.LdaModel": _gensim,
        "consilience.GaussianTopics": lambda: GaussianTopics(3, space="planted").fit(
            COUNTS, np.random.default_rng(4).normal(size=(12, 3)), WORDS
        ),
        "consilience.SparseGP": lambda: sparse_gps.site(0, sparse_gps.inputs()),
        "gpytorch.ApproximateGP": _gpytorch,
        "hmmlearn.GaussianHMM": lambda: _settled(GaussianHMM(3), ROWS),
        "hmmlearn.VariationalGaussianHMM": lambda: _settled(VariationalGaussianHMM(3), ROWS),
        "hmmlearn.CategoricalHMM": lambda: _settled(CategoricalHMM(2), SYMBOLS),
        "hmmlearn.PoissonHMM": lambda: _settled(PoissonHMM(2), SYMBOLS),
        "hmmlearn.VariationalCategoricalHMM": lambda: _settled(VariationalCategoricalHMM(2), SYMBOLS),
        "consilience.StickyHDPHMM": lambda: StickyHDPHMM(n_states=4, n_init=1).fit(ROWS, np.array([60, 60])),
    },
)
"""By the adapter's kind, what makes a fitted model; a new adapter is a new entry here."""
KINDS = [adapter.kind for adapter in ADAPTERS]
"""What the laws run over: the table itself."""


@cache
def fitted(kind):
    """Return a fitted model of a kind; made once for all tests, never changed."""
    return SPECIMENS[kind]()
