"""The simulation of Claici et al. 2020, section 5.1, in small: fitted sites, none of which holds all components."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs

SITES, DIM, COMPONENTS, NOISE = 24, 5, 5, 0.5


def covariance(rng, component):
    uniform = rng.random((DIM, DIM))
    left, values, right = np.linalg.svd(uniform.T @ uniform)
    matrix = left @ (np.sqrt(1.0 + component) + np.diag(np.minimum(values, 1.0))) @ right
    return 0.5 * (matrix + matrix.T) + 0.05 * np.eye(DIM)


def simulated(seed, separation):
    """Sites' models, the true means, and which component each local one was fitted to (nearest in its site)."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(COMPONENTS, DIM)) * np.sqrt(separation * COMPONENTS)
    covariances = [covariance(rng, component) for component in range(COMPONENTS)]
    models, truth = [], []
    for site in range(SITES):
        own = rng.choice(COMPONENTS, size=int(rng.integers(2, 4)), replace=False)
        centres = means[own] + NOISE * rng.normal(size=(len(own), DIM))
        parts = [rng.multivariate_normal(c, covariances[k], size=150) for c, k in zip(centres, own, strict=True)]
        model = BayesianGaussianMixture(
            n_components=len(own),
            weight_concentration_prior_type="dirichlet_distribution",
            n_init=4,
            random_state=site,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(np.concatenate(parts))
        responsible = np.array([np.bincount(model.predict(part), minlength=len(own)) for part in parts])
        models.append(model)
        truth.append(own[responsible.argmax(axis=0)])
    return models, means, np.concatenate(truth)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("separation", [0.5, 1.0, 2.0])
def test_the_true_number_and_matching_are_found(seed, separation):
    """What only one site reports comes from sites whose fit went wrong, which are named (one of them in seed 1)."""
    models, means, truth = simulated(seed, separation)
    fusion = cs.fuse(models)
    members = fusion.matching.members
    shared = fusion.matching.labels >= 0
    shared[shared] = members[fusion.matching.labels[shared]] > 1
    named = {record["name"] for record in fusion.details.get("outliers", [])}
    assert {f"model {site}" for site in fusion.matching.owner[~shared]} <= named
    assert np.count_nonzero(members > 1) == COMPONENTS
    assert shared.mean() > 0.9
    assert adjusted_rand_score(truth[shared], fusion.matching.labels[shared]) == 1.0
    apart = np.linalg.norm(fusion.model.means_[members > 1][:, None] - means, axis=2)
    assert max(apart.min(axis=0).max(), apart.min(axis=1).max()) < 1.0
