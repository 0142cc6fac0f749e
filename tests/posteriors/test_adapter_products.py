"""Fusing models by product is fitting to all data, where the responsibilities are fixed: the textbook's updates.

The models here are written by hand from hard labels, with nothing taken from the library or from scikit-learn's fits.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.cluster import KMeans
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import consilience as cs
from tests.tolerances import ROUNDING

# The sites' priors are far from their few data, so that what they say of themselves is far from all data.
pytestmark = [pytest.mark.filterwarnings("ignore::consilience.errors.HarmWarning"), pytest.mark.covering(2)]

D = 3
TYPES = ("full", "tied", "diag", "spherical")
WEIGHT_PRIORS = ("dirichlet_process", "dirichlet_distribution")
CENTRES = np.array([[0.0, 0.0, 0.0], [14.0, 0.0, 1.0], [0.0, -12.0, 2.0], [25.0, 25.0, 25.0]])
HELD = {
    "the same components": ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
    "components of their own": ((0, 1, 2, 3), (1, 0), (0, 3, 2)),
}
"""Which components each site holds, in its own order."""
PRIOR_MEAN, PRIOR_KAPPA, PRIOR_DOF = np.array([1.0, -2.0, 0.5]), 0.7, D + 1.5
PRIOR_FACTOR = np.array([[1.5, 0.2, 0.0], [0.2, 1.0, -0.1], [0.0, -0.1, 2.0]])
CONCENTRATION = 0.4


def draws(held, spread=1.0):
    """Rows and labels of every site; component g is rarer than component g - 1."""
    rng = np.random.default_rng(5)
    sites = []
    for components in held:
        labels = np.concatenate([np.full(rng.integers(60, 66) - 15 * g, g) for g in components])
        sites.append((CENTRES[labels] + spread * rng.normal(size=(len(labels), D)) @ np.diag([1.0, 0.7, 1.3]), labels))
    return sites


def sums(rows, labels, components):
    """Count, mean and scatter matrix around it of each component."""
    groups = [rows[labels == g] for g in components]
    means = np.array([group.mean(axis=0) for group in groups])
    scatters = np.array([(group - mean).T @ (group - mean) for group, mean in zip(groups, means, strict=True)])
    return np.array([float(len(group)) for group in groups]), means, scatters


def in_shape(kind, matrices):
    """Matrices in the shape of a covariance type: as they are, their diagonals, or the mean of these."""
    diagonals = np.diagonal(matrices, axis1=-2, axis2=-1)
    return {"full": matrices, "tied": matrices, "diag": diagonals, "spherical": diagonals.mean(axis=-1)}[kind]


def factors(kind, covariances):
    """scikit-learn's ``precisions_cholesky_``: upper factors of the precisions."""
    if kind in ("full", "tied"):
        return np.swapaxes(np.linalg.inv(np.linalg.cholesky(covariances)), -1, -2)
    return covariances**-0.5


def bayesian_mixture(rows, labels, components, kind, weight_prior):
    """Bishop (2006), equations (10.58) to (10.63), and scikit-learn's share of 1 / K for a tied factor."""
    counts, means, scatters = sums(rows, labels, components)
    kappa = PRIOR_KAPPA + counts
    offsets = means - PRIOR_MEAN
    pulls = (PRIOR_KAPPA * counts / kappa)[:, None, None] * offsets[:, :, None] * offsets[:, None, :]
    prior_factor = in_shape(kind, PRIOR_FACTOR[None])[0]
    if kind == "tied":
        dof = np.array(PRIOR_DOF + counts.mean())
        covariances = (prior_factor + (scatters + pulls).mean(axis=0)) / dof
    else:
        dof = PRIOR_DOF + counts
        factor = prior_factor + in_shape(kind, scatters + pulls)
        covariances = (factor.T / dof).T
    if weight_prior == "dirichlet_process":
        later = np.array([counts[k + 1 :].sum() for k in range(len(counts))])
        concentration = (1.0 + counts, CONCENTRATION + later)
        share = concentration[0] / (concentration[0] + concentration[1])
        weights = share * np.cumprod(np.append(1.0, 1.0 - share[:-1]))
    else:
        concentration = weights = CONCENTRATION + counts
    model = BayesianGaussianMixture(
        n_components=len(counts), covariance_type=kind, weight_concentration_prior_type=weight_prior
    )
    model.mean_prior_, model.mean_precision_prior_ = PRIOR_MEAN, PRIOR_KAPPA
    model.degrees_of_freedom_prior_, model.covariance_prior_ = PRIOR_DOF, prior_factor
    model.weight_concentration_prior_, model.weight_concentration_ = CONCENTRATION, concentration
    model.weights_ = weights / weights.sum()
    model.means_ = (PRIOR_KAPPA * PRIOR_MEAN + counts[:, None] * means) / kappa[:, None]
    model.mean_precision_, model.degrees_of_freedom_, model.covariances_ = kappa, dof, covariances
    model.precisions_cholesky_ = factors(kind, covariances)
    model.n_features_in_ = D
    return model


def pooled(sites):
    return np.concatenate([rows for rows, _ in sites]), np.concatenate([labels for _, labels in sites])


def assert_close(found, expected, name):
    assert_allclose(found, expected, rtol=ROUNDING, atol=ROUNDING * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("weight_prior", WEIGHT_PRIORS)
@pytest.mark.parametrize("kind", TYPES)
def test_the_product_of_bayesian_mixtures_is_the_posterior_of_all_data(kind, weight_prior, held):
    sites = draws(HELD[held])
    models = [
        bayesian_mixture(rows, labels, components, kind, weight_prior)
        for (rows, labels), components in zip(sites, HELD[held], strict=True)
    ]
    rows, labels = pooled(sites)
    expected = bayesian_mixture(rows, labels, range(4), kind, weight_prior)
    found = cs.fuse(models, n_components=4, combine="product").model
    names = ("mean_precision_", "means_", "degrees_of_freedom_", "covariances_", "precisions_cholesky_", "weights_")
    for name in (*names, "mean_prior_", "covariance_prior_", "degrees_of_freedom_prior_", "mean_precision_prior_"):
        assert_close(getattr(found, name), getattr(expected, name), name)
    assert_close(np.array(found.weight_concentration_), np.array(expected.weight_concentration_), "concentration")
    for answer in ("predict_proba", "score_samples"):
        assert_close(getattr(found, answer)(rows), getattr(expected, answer)(rows), answer)


@pytest.mark.parametrize("weight_prior", WEIGHT_PRIORS)
def test_a_tied_factor_survives_a_component_far_from_the_prior(weight_prior):
    """Its pull on the shared factor must stay with it, or the product would leave too little for the others."""
    held = HELD["the same components"]
    sites = [(rows + 40.0 * (labels == 3)[:, None], labels) for rows, labels in draws(held, spread=0.1)]
    models = [bayesian_mixture(*site, range(4), "tied", weight_prior) for site in sites]
    expected = bayesian_mixture(*pooled(sites), range(4), "tied", weight_prior)
    found = cs.fuse(models, n_components=4, combine="product").model
    for name in ("means_", "covariances_", "degrees_of_freedom_"):
        assert_close(getattr(found, name), getattr(expected, name), name)


@pytest.mark.parametrize("kind", ["tied", "full"])
def test_a_component_that_saw_nothing_stays_at_the_prior(kind):
    rows, labels = draws([(0, 1, 2)])[0]
    model = bayesian_mixture(rows, labels, (0, 1, 2), kind, "dirichlet_distribution")
    model.mean_precision_[2] = PRIOR_KAPPA
    model.means_[2] = PRIOR_MEAN * (1.0 + 2e-16)
    posterior = cs.describe(model)
    own = posterior.parameters()
    assert_close(own["mean"][2], PRIOR_MEAN, "mean")
    assert_close(cs.rebuild(posterior).covariances_, model.covariances_, "covariances")


def mixture(rows, labels, components, kind):
    """The M-step of maximum likelihood under hard responsibilities."""
    counts, means, scatters = sums(rows, labels, components)
    if kind == "tied":
        covariances = scatters.sum(axis=0) / counts.sum()
    else:
        covariances = in_shape(kind, scatters / counts[:, None, None])
    model = GaussianMixture(len(counts), covariance_type=kind)
    model.weights_, model.means_, model.covariances_ = counts / counts.sum(), means, covariances
    model.precisions_cholesky_ = factors(kind, covariances)
    model.n_features_in_ = D
    return model


@pytest.mark.parametrize("combine", ["barycenter", "product"])
@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("kind", TYPES)
def test_mixtures_fuse_to_the_m_step_of_all_responsibilities(kind, held, combine):
    sites = draws(HELD[held])
    models = [
        mixture(rows, labels, components, kind) for (rows, labels), components in zip(sites, HELD[held], strict=True)
    ]
    rows, labels = pooled(sites)
    expected = mixture(rows, labels, range(4), kind)
    found = cs.fuse(models, n_components=4, combine=combine, n_observations=[len(rows) for rows, _ in sites]).model
    for name in ("weights_", "means_", "covariances_", "precisions_cholesky_"):
        assert_close(getattr(found, name), getattr(expected, name), name)
    assert_close(found.predict_proba(rows), expected.predict_proba(rows), "predict_proba")


@pytest.mark.parametrize("combine", ["barycenter", "product"])
@pytest.mark.parametrize("held", HELD)
def test_centres_of_equally_wide_clusterings_fuse_to_the_means_of_all_points(held, combine):
    sites = draws(HELD[held])
    models = []
    for (rows, labels), components in zip(sites, HELD[held], strict=True):
        model = KMeans(len(components))
        model.cluster_centers_ = sums(rows, labels, components)[1]
        model.labels_ = np.array([components.index(g) for g in labels])
        model.inertia_ = 1.7 * rows.size
        models.append(model)
    rows, labels = pooled(sites)
    counts, means, _ = sums(rows, labels, range(4))
    fusion = cs.fuse(models, n_components=4, combine=combine)
    assert_close(fusion.model.cluster_centers_, means, "centres")
    assert_close(fusion.posterior.counts, counts, "counts")
    assert_close(fusion.model.inertia_, 1.7 * rows.size, "inertia")
    assert fusion.model.predict(rows).tolist() == labels.tolist()


def test_the_product_of_topic_models_adds_up_their_words():
    rng = np.random.default_rng(8)
    shares = rng.dirichlet(np.full(30, 0.1), 3)
    models, totals = [], np.zeros((3, 30))
    for _ in range(4):
        words = np.array([rng.multinomial(n, share) for n, share in zip((900, 500, 200), shares, strict=True)])
        model = LatentDirichletAllocation(3, topic_word_prior=0.3, doc_topic_prior=0.1)
        model.topic_word_prior_, model.doc_topic_prior_ = 0.3, 0.1
        model.components_ = 0.3 + words[rng.permutation(3)]
        models.append(cs.describe(model, features=[f"word {number}" for number in range(30)]))
        totals += words
    fusion = cs.fuse(models, n_components=3, combine="product")
    assert_close(fusion.model.components_, 0.3 + totals, "topics")
    assert_close(fusion.posterior.counts, totals.sum(axis=1), "counts")
    assert (fusion.model.topic_word_prior_, fusion.model.doc_topic_prior_) == (pytest.approx(0.3), pytest.approx(0.1))
