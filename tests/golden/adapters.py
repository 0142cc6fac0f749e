"""Golden fusions of models of every library that an adapter knows, as objects and as files.

Parameters are drawn and put into the models: fitting would record the library's arithmetic, not ours. Where a learner
of ours is the only maker of a model, it is given rows whose groups lie far apart.
"""

from dataclasses import replace

import numpy as np
from scipy.special import digamma
from scipy.stats import wishart
from sklearn.cluster import Birch, BisectingKMeans, KMeans, MiniBatchKMeans
from sklearn.decomposition import NMF, LatentDirichletAllocation
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import consilience as cs
from tests.golden.table import case, cases, saved

DIM, CENTRES = 2, np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0], [8.0, 8.0]])
HELD = ((0, 1, 2), (2, 1, 3), (3, 0))
TYPES = {name: name for name in ("full", "tied", "diag", "spherical")}
ROWS = np.concatenate([CENTRES[k] + np.random.default_rng(k).normal(size=(12, DIM)) for k in range(4)])


def fused_both_ways(models, folder, data=None, samples=None, **options):
    """Fuse models and their files by the recommended method and as a Bayes product, rebuild, and evaluate on data."""
    told = [{} if samples is None else {"n_observations": number} for number in samples or models]
    paths = [folder / f"site-{number}.safetensors" for number in range(len(models))]
    for model, path, of_site in zip(models, paths, told, strict=True):
        cs.save(model, path, **of_site)
    fusion = cs.fuse(paths, **options)
    objects = cs.fuse(models, n_observations=samples, **options)
    found = {
        "described": cs.describe(models[0], **told[0]),
        "site saved": paths[0],
        **saved(fusion, folder),
        "objects": objects.posterior,
        "rebuilt": cs.describe(fusion.model, **told[0]),
        "loaded": cs.load(folder / "fused.safetensors"),
    }
    if data is not None:
        evaluation = cs.evaluate(fusion, models[0], data)
        numbers = [[score.fused, score.own] for score in evaluation.scores]
        usage = {"fused": evaluation.usage.fused, "own": evaluation.usage.own}
        found["evaluation"] = {"scores": np.array(numbers), "usage": usage}
    return found


def covariances(kind, rng, count):
    matrices = np.stack([wishart.rvs(8, np.eye(DIM) / 8.0, random_state=rng) for _ in range(count)])
    diagonals = np.diagonal(matrices, axis1=1, axis2=2).copy()
    return {"full": matrices, "tied": matrices[0], "diag": diagonals, "spherical": diagonals[:, 0].copy()}[kind]


def precision_factors(kind, values):
    """Return what scikit-learn keeps beside covariances: L with L L^T the precision."""
    if kind in ("diag", "spherical"):
        return 1.0 / np.sqrt(values)
    return np.swapaxes(np.linalg.inv(np.linalg.cholesky(values)), -1, -2)


def put(model, **attributes):
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def mixtures(maker, kind, **more):
    """Return fitted mixtures whose parameters were drawn."""
    made = []
    for number, own in enumerate(HELD):
        rng = np.random.default_rng([number, 1])
        values = covariances(kind, rng, len(own))
        model = put(
            maker(n_components=len(own), covariance_type=kind, **more),
            means_=CENTRES[list(own)] + 0.2 * rng.normal(size=(len(own), DIM)),
            covariances_=values,
            precisions_cholesky_=precision_factors(kind, values),
            weights_=rng.dirichlet(np.full(len(own), 8.0)),
            converged_=True,
            n_iter_=5,
            n_features_in_=DIM,
        )
        made.append((rng, model))
    return made


@cases("scikit-learn GaussianMixture: {}", TYPES)
def _gaussian_mixture(folder, kind):
    models = [model for _, model in mixtures(GaussianMixture, kind)]
    return fused_both_ways(models, folder, ROWS, samples=[200, 150, 300])


def bayesian_mixtures(kind, weight_prior):
    made = []
    for rng, model in mixtures(BayesianGaussianMixture, kind, weight_concentration_prior_type=weight_prior):
        count = model.n_components
        counts = rng.uniform(30.0, 80.0, count)
        left = np.append(np.cumsum(counts[::-1])[-2::-1], 0.0)
        concentration = (1.0 + counts, 0.5 + left) if weight_prior == "dirichlet_process" else 0.5 + counts
        degrees = 3.0 + counts if kind != "tied" else np.array(3.0 + counts.mean())
        identity = {"full": np.eye(DIM), "tied": np.eye(DIM), "diag": np.ones(DIM), "spherical": 1.0}[kind]
        made.append(
            put(
                model,
                mean_precision_=0.1 + counts,
                degrees_of_freedom_=degrees,
                weight_concentration_=concentration,
                weight_concentration_prior_=0.5,
                mean_prior_=np.array([4.0, 4.0]),
                mean_precision_prior_=0.1,
                degrees_of_freedom_prior_=3.0,
                covariance_prior_=identity,
                precisions_=np.zeros(0),
            )
        )
    return made


PRIORS = {
    f"{kind}, {prior}": (kind, prior)
    for kind in TYPES
    for prior in ("dirichlet_process", "dirichlet_distribution")
}  # fmt: skip


@cases("scikit-learn BayesianGaussianMixture: {}", PRIORS)
def _bayesian_mixture(folder, chosen):
    return fused_both_ways(bayesian_mixtures(*chosen), folder, ROWS)


@case("scikit-learn BayesianGaussianMixture: Bayes product by files")
def _bayesian_mixture_product(folder):
    models = bayesian_mixtures("full", "dirichlet_process")
    return fused_both_ways(models, folder, ROWS, method="kl", n_components=4, combine="product", weights=[1, 2, 3])


@case("scikit-learn KMeans")
def _kmeans(folder):
    models = []
    for number, own in enumerate(HELD):
        centres = CENTRES[list(own)] + 0.1 * np.random.default_rng(number).normal(size=(len(own), DIM))
        around = np.repeat(centres, 5, axis=0)
        model = KMeans(len(own), n_init=1, init=centres).fit(around)
        counts = np.arange(5, 5 + len(own))
        labels = np.repeat(np.arange(len(own), dtype=np.int32), counts)
        models.append(put(model, cluster_centers_=centres, labels_=labels, inertia_=float(3.0 * counts.sum())))
    return fused_both_ways(models, folder, ROWS)


OTHER_CLUSTERINGS = {
    "MiniBatchKMeans": lambda centres: MiniBatchKMeans(len(centres), n_init=1, init=centres, random_state=0),
    "BisectingKMeans": lambda centres: BisectingKMeans(len(centres), random_state=0),
    "Birch": lambda centres: Birch(threshold=1.0, n_clusters=None),
}


@cases("scikit-learn {}", OTHER_CLUSTERINGS)
def _other_clusterings(folder, make):
    models = []
    for number, own in enumerate(HELD):
        rng = np.random.default_rng(number)
        centres = CENTRES[list(own)] + 0.1 * rng.normal(size=(len(own), DIM))
        models.append(make(centres).fit(np.repeat(centres, 8, axis=0) + 0.05 * rng.normal(size=(8 * len(own), DIM))))
    return fused_both_ways(models, folder, ROWS)


WORDS = tuple(f"w{number:02d}" for number in range(18))


def topic_counts(seed, topics=(0, 1, 2), words=WORDS):
    """Return tokens (K, V) of each word in each of some planted topics."""
    rng = np.random.default_rng(seed)
    shares = np.full((3, len(WORDS)), 0.1)
    for topic in range(3):
        shares[topic, 6 * topic : 6 * topic + 6] = 2.0
    places = [WORDS.index(word) for word in words]
    return np.stack([rng.multinomial(300, shares[topic] / shares[topic].sum()) for topic in topics])[:, places]


def documents(columns):
    return np.random.default_rng(11).poisson(1.5, (9, columns))


def scikit_topics(number, topics, words=WORDS, prior=None):
    counts = topic_counts(number, topics, words)
    model = LatentDirichletAllocation(len(topics), doc_topic_prior=prior)
    concentration = counts + 0.2
    return put(
        model,
        components_=concentration,
        exp_dirichlet_component_=np.exp(digamma(concentration) - digamma(concentration.sum(axis=1))[:, None]),
        doc_topic_prior_=1.0 / len(topics) if prior is None else prior,
        topic_word_prior_=0.2,
        n_iter_=3,
        n_batch_iter_=4,
        n_features_in_=len(words),
        random_state_=np.random.RandomState(0),
    )


TOPICS = ((0, 1, 2), (2, 0), (1, 2))


@cases("scikit-learn LatentDirichletAllocation: prior {}", {"left": None, "given": 0.3})
def _scikit_topics(folder, prior):
    models = [scikit_topics(number, own, prior=prior) for number, own in enumerate(TOPICS)]
    for model in models:
        put(model, feature_names_in_=np.array(WORDS, dtype=object))
    return fused_both_ways(models, folder, documents(len(WORDS)), n_components=3)


@case("scikit-learn NMF")
def _scikit_factors(folder):
    models = []
    for number, own in enumerate(TOPICS):
        factors = (topic_counts(number, own) + 0.2) / (1.0 + number)
        names = np.array(WORDS, dtype=object)
        models.append(put(NMF(len(own)), components_=factors, n_features_in_=len(WORDS), feature_names_in_=names))
    return fused_both_ways(models, folder, samples=[900, 600, 600], n_components=3)


VOCABULARIES = (WORDS[:15], tuple(reversed(WORDS[3:])), WORDS[:6] + WORDS[9:])
BY_WORD = {
    "kl": {"n_components": 3},
    "product": {"method": "kl", "n_components": 3, "combine": "product"},
    "spahm": {"method": "spahm"},
    "kmeans": {"method": "kmeans", "n_components": 3},
    "concatenate": {"method": "concatenate"},
}


@cases("scikit-learn LatentDirichletAllocation: different words, {}", BY_WORD)
def _scikit_words(folder, options):
    paths = []
    for number, words in enumerate(VOCABULARIES):
        paths.append(folder / f"site-{number}.safetensors")
        names = cs.Features(names=words)
        cs.save(scikit_topics(number, TOPICS[number], words), paths[-1], features=names)
    fusion = cs.fuse(paths, **options)
    return {**saved(fusion, folder), "rebuilt": cs.describe(fusion.model)}


def gensim_topics(number, topics, words, alpha="symmetric"):
    from gensim.corpora import Dictionary
    from gensim.models import LdaModel

    dictionary = Dictionary([list(words)])
    names = [dictionary[place] for place in range(len(words))]
    model = LdaModel(num_topics=len(topics), id2word=dictionary, random_state=0, alpha=alpha, eta=0.2, dtype=np.float64)
    model.state.sstats = topic_counts(number, topics, names).astype(np.float64)
    model.state.numdocs = model.num_updates = 30 + number
    model.sync_state()
    return model


@cases("gensim LdaModel: alpha {}", {"symmetric": "symmetric", "asymmetric": "asymmetric"})
def _gensim_topics(folder, alpha):
    models = [gensim_topics(number, TOPICS[number], words, alpha) for number, words in enumerate(VOCABULARIES)]
    return fused_both_ways(models, folder, n_components=3)


@case("consilience GaussianTopics")
def _gaussian_topics(folder):
    embeddings = np.repeat([[6.0, 0.0, 1.0], [0.0, 6.0, 1.0], [-6.0, -6.0, 1.0]], 6, axis=0)
    embeddings = embeddings + np.random.default_rng(0).normal(size=embeddings.shape) / 2.0
    learner = cs.learners.GaussianTopics
    models = []
    for number, own in enumerate(TOPICS):
        counts = topic_counts(number, own).sum(axis=0)
        counts[[place for place in range(len(WORDS)) if place // 6 not in own]] = 0
        models.append(learner(len(own), restarts=2, space="golden").fit(counts, embeddings, list(WORDS)))
    return fused_both_ways(models, folder, method="spahm")


def chains(maker, own, rng, **more):
    """Return a hidden Markov model of some states with drawn start and transition probabilities."""
    count = len(own)
    model = maker(count, **more)
    start, transitions = rng.dirichlet(np.ones(count)), rng.dirichlet(np.ones(count), count)
    return put(model, startprob_=start, transmat_=0.3 * transitions + 0.7 * np.eye(count))


def variational_chains(maker, own, rng, **more):
    model = chains(maker, own, rng, **more)
    count = len(own)
    prior = 1.0 / count
    return put(
        model,
        startprob_prior_=np.full(count, prior),
        transmat_prior_=np.full((count, count), prior),
        startprob_posterior_=prior + rng.uniform(0.0, 3.0, count),
        transmat_posterior_=prior + rng.uniform(0.0, 9.0, (count, count)) + 20.0 * np.eye(count),
    )


@cases("hmmlearn GaussianHMM: {}", TYPES)
def _gaussian_chain(folder, kind):
    from hmmlearn.hmm import GaussianHMM

    models = []
    for number, own in enumerate(HELD):
        rng = np.random.default_rng([number, 2])
        model = chains(GaussianHMM, own, rng, covariance_type=kind)
        model.n_features = DIM
        means = CENTRES[list(own)] + 0.2 * rng.normal(size=(len(own), DIM))
        models.append(put(model, means_=means, covars_=covariances(kind, rng, len(own))))
    return fused_both_ways(models, folder, ROWS, samples=[300, 200, 400])


@cases("hmmlearn VariationalGaussianHMM: {}", TYPES)
def _variational_gaussian_chain(folder, kind):
    from hmmlearn.vhmm import VariationalGaussianHMM

    models = []
    for number, own in enumerate(HELD):
        rng, count = np.random.default_rng([number, 3]), len(own)
        model = variational_chains(VariationalGaussianHMM, own, rng, covariance_type=kind)
        model.n_features = DIM
        means = CENTRES[list(own)] + 0.2 * rng.normal(size=(count, DIM))
        counts = rng.uniform(30.0, 60.0, count)
        degrees = 3.5 + counts
        spread = covariances(kind, rng, count)
        if kind == "tied":  # one factor holds the pull of the prior mean on every state, and the scatter of all
            spread, degrees = spread + np.eye(DIM), 3.5 + counts.sum(keepdims=True)
        identity = {"full": np.tile(np.eye(DIM), (count, 1, 1)), "tied": np.eye(DIM)}.get(kind, np.ones_like(spread))
        size = {"full": degrees[:, None, None], "tied": degrees.mean(), "diag": degrees[:, None]}.get(kind, degrees)
        models.append(
            put(
                model,
                means_prior_=np.tile([4.0, 4.0], (count, 1)),
                beta_prior_=np.full(count, 0.6),
                dof_prior_=3.5 if kind == "tied" else np.full(count, 3.5),
                scale_prior_=identity,
                means_posterior_=means,
                beta_posterior_=0.6 + counts,
                dof_posterior_=float(degrees.mean()) if kind == "tied" else degrees,
                scale_posterior_=spread * size,
                covars_=spread,
            )
        )
    return fused_both_ways(models, folder, ROWS)


SYMBOLS = np.array([[0.9, 0.04, 0.03, 0.03], [0.03, 0.9, 0.04, 0.03], [0.02, 0.03, 0.9, 0.05], [0.03, 0.04, 0.03, 0.9]])
SEQUENCE = np.array([0, 0, 1, 1, 2, 2, 2, 3, 3, 0, 1, 3])[:, None]


@case("hmmlearn CategoricalHMM")
def _categorical_chain(folder):
    from hmmlearn.hmm import CategoricalHMM

    models = []
    for number, own in enumerate(HELD):
        rng = np.random.default_rng([number, 4])
        model = chains(CategoricalHMM, own, rng)
        model.n_features = 4
        emitted = SYMBOLS[list(own)] + 0.01 * rng.uniform(size=(len(own), 4))
        models.append(put(model, emissionprob_=emitted / emitted.sum(axis=1, keepdims=True)))
    return fused_both_ways(models, folder, SEQUENCE, samples=[300, 200, 400])


RATES = np.array([[1.0, 15.0], [20.0, 2.0], [6.0, 6.0], [30.0, 30.0]])


@case("hmmlearn PoissonHMM")
def _poisson_chain(folder):
    from hmmlearn.hmm import PoissonHMM

    models = []
    for number, own in enumerate(HELD):
        rng = np.random.default_rng([number, 6])
        model = chains(PoissonHMM, own, rng)
        models.append(put(model, lambdas_=RATES[list(own)] + 0.2 * rng.uniform(size=(len(own), 2)), n_features=2))
    rows = np.random.default_rng(7).poisson(RATES[SEQUENCE[:, 0]])
    return fused_both_ways(models, folder, rows, samples=[300, 200, 400])


@case("hmmlearn VariationalCategoricalHMM")
def _variational_categorical_chain(folder):
    from hmmlearn.vhmm import VariationalCategoricalHMM

    models = []
    for number, own in enumerate(HELD):
        rng = np.random.default_rng([number, 5])
        model = variational_chains(VariationalCategoricalHMM, own, rng)
        model.n_features = 4
        counted = 200.0 * SYMBOLS[list(own)] + rng.uniform(0.0, 3.0, (len(own), 4))
        prior = np.full((len(own), 4), 0.25)
        emitted = counted / counted.sum(axis=1, keepdims=True)
        models.append(put(model, emissionprob_prior_=prior, emissionprob_posterior_=prior + counted))
        models[-1].emissionprob_ = emitted
    return fused_both_ways(models, folder, SEQUENCE)


@case("consilience StickyHDPHMM")
def _sticky_chain(folder):
    models = []
    for number, own in enumerate(HELD):
        rng = np.random.default_rng([number, 6])
        # Stays of different lengths, so that no two states have as many rows: the learner puts them in that order.
        states = np.repeat(np.tile(own, 4), np.tile(10 + 3 * np.arange(len(own)), 4))
        rows = CENTRES[states] + 0.7 * rng.normal(size=(len(states), DIM))
        learner = cs.learners.StickyHDPHMM(n_states=len(own) + 1, n_init=1, max_iterations=20)
        models.append(learner.fit(rows, lengths=[len(rows) // 2] * 2))
    found = fused_both_ways(models, folder, ROWS[:36])  # of states that the first site has
    # The weights of states are fitted only so far, which moves the scores by a ten-thousandth with another rounding.
    del found["evaluation"]["scores"]
    return found


def curve(X):
    return np.sin(X[:, 0]) + 0.3 * X[:, 1] ** 2


def rows_of_curve(seed, low, count=40):
    rng = np.random.default_rng(seed)
    X = rng.uniform(low, low + 3.0, (count, 2))
    return X, curve(X) + 0.2 * rng.normal(size=count)


SHARED = ((0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (2, 5, 0, 1, 4))


def near_shared_points(seed, own):
    """Return inducing inputs near some that sites share: where nothing matches, the spread of copies is anything."""
    shared = np.array([[-2.0, -1.0], [0.0, -2.0], [2.0, -1.5], [-1.5, 1.5], [0.5, 0.8], [2.5, 2.0]])
    return shared[list(own)] + 0.05 * np.random.default_rng([seed, 8]).normal(size=(len(own), DIM))


KERNELS = {name: name for name in ("rbf", "matern12", "matern32", "matern52")}


@cases("consilience SparseGP: {}", KERNELS)
def _sparse_process(folder, kernel):
    any_fit = cs.learners.TitsiasGP(n_inducing=2, kernel=kernel, max_iterations=1).fit(*rows_of_curve(0, 0.0))
    own = replace(any_fit.kernel, variance=1.5, lengthscales=np.array([1.2, 0.8]))
    models = []
    for seed, low in enumerate((-2.0, -0.5, 1.0)):
        points = near_shared_points(seed, SHARED[seed])
        learner = cs.learners.TitsiasGP(
            kernel=own, noise=0.05, constant=0.7, inducing_inputs=points, learn_parameters=False, learn_inducing=False
        )
        models.append(learner.fit(*rows_of_curve(seed, low)))
    X, y = rows_of_curve(9, -1.0, 12)
    new = np.column_stack([X, y])
    shared = fused_both_ways(models, folder, new, method="spahm", mass=50.0, shrink=False)
    recommended = cs.fuse(models)
    mean, variance = recommended.model.predict(X)
    return {**shared, "recommended": recommended, "mean": mean, "variance": variance}


@cases("gpytorch ApproximateGP: {}", {"rbf, whitened": True, "matern, unwhitened": False})
def _approximate_process(folder, whitened):
    import gpytorch
    import torch

    class Regression(gpytorch.models.ApproximateGP):
        def __init__(self, points, kernel):
            distribution = gpytorch.variational.CholeskyVariationalDistribution(len(points))
            named = gpytorch.variational.VariationalStrategy if whitened else None
            strategy = named or gpytorch.variational.UnwhitenedVariationalStrategy
            super().__init__(strategy(self, points, distribution, learn_inducing_locations=True))
            self.mean_module, self.covar_module = gpytorch.means.ConstantMean(), kernel
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    models = []
    for number in range(3):
        rng = np.random.default_rng([number, 7])
        points = near_shared_points(number, SHARED[number])
        count = len(points)
        inner = gpytorch.kernels.RBFKernel if whitened else gpytorch.kernels.MaternKernel
        kernel = gpytorch.kernels.ScaleKernel(inner(ard_num_dims=2))
        model = Regression(torch.as_tensor(points), kernel).double().eval()
        drawn = model.variational_strategy._variational_distribution
        factor = np.tril(0.02 * rng.normal(size=(count, count))) + (0.5 if whitened else 0.1) * np.eye(count)
        with torch.no_grad():
            drawn.variational_mean.copy_(torch.as_tensor(curve(points)))
            drawn.chol_variational_covar.copy_(torch.as_tensor(factor))
        model.variational_strategy.variational_params_initialized.fill_(1)
        kernel.outputscale, model.likelihood.noise = 1.0 + 0.1 * number, 0.05
        kernel.base_kernel.lengthscale = torch.tensor([[1.0 + 0.1 * number, 0.9]], dtype=torch.float64)
        models.append(model)
    return fused_both_ways(models, folder, samples=[100, 120, 90])
