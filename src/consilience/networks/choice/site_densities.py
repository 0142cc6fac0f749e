"""How likely an input is at each site, by the moments that the sites describe: weights of a regression's ensemble.

Where sites differ in their inputs and not in what follows from them (covariate shift), E[y | x] = sum_j p(j | x) f_j(x)
with p(j | x) proportional to n_j p_j(x) and f_j the regression of site j near its own inputs. A network far from what
it was trained on extrapolates, and a mean that weighs it by n alone is led astray there: over the networks of
temperatures by region (experiments/network_battery, first half) R^2 is 80.2 % by n alone, 81.3 by densities, and 80.4
that of the best site.

p_j is the Gaussian of the described mean and covariance F^T F + diag(r) (`Moments`), to which a share of the pooled
variances is added. Densities of many coordinates are sharper than what is known of them, so that logarithms are divided
by a temperature.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import softmax

from consilience.checks import Array
from consilience.networks.descriptions.description import Moments
from consilience.networks.descriptions.moments import pooled_moments

VARIANCE_SHARE = 0.02
"""Share of the pooled variance of a coordinate that is added to each site's: that with which ensembles by densities
were compared over 26 fusions of image classifiers."""
COORDINATES_PER_DEGREE = 20
"""The temperature is the number of coordinates over this, 1 at least: in the same fusions d / 20 was above 1 by 0.5 to
2 points under skew, and by 7 where sites are strong and weak. At 8 coordinates any of 1 to 10 has the same R^2."""


def site_posterior(moments: Sequence[Moments], weights: Array, inputs: Array) -> Array:
    """Return p(j | x) (J, n) of each site for inputs (n, d), given the moments of the sites' inputs.

    Parameters
    ----------
    moments : sequence of description.Moments
        Of the J sites' inputs.
    weights : array of shape (J,)
        Prior weights of the sites; of weight 0, probability 0.
    inputs : array of shape (n, d)
        The inputs.

    Returns
    -------
    array of shape (J, n)
        Columns sum to 1.

    Examples
    --------
    >>> left, right = (Moments(100, np.array([mean]), np.zeros((0, 1)), np.ones(1)) for mean in (-3.0, 3.0))
    >>> site_posterior([left, right], np.array([0.5, 0.5]), np.array([[-3.0], [0.0]])).round(3).tolist()
    [[1.0, 0.5], [0.0, 0.5]]
    """
    _, _, pooled_variance = pooled_moments(moments)
    added = VARIANCE_SHARE * np.where(pooled_variance > 0, pooled_variance, 1.0)
    temperature = max(1.0, inputs.shape[1] / COORDINATES_PER_DEGREE)
    with np.errstate(divide="ignore"):
        prior = np.log(weights)[:, None]
    posterior: Array = softmax(
        np.stack([_log_density(of_site, added, inputs) for of_site in moments]) / temperature + prior, axis=0
    )
    return posterior


def _log_density(moments: Moments, added: Array, inputs: Array) -> Array:
    """Return log N(x; m, F^T F + diag(r + added)) (n,) up to a constant, by Woodbury's identity in the rank of F."""
    variances = moments.residual + added
    scaled = (inputs - moments.mean) / np.sqrt(variances)  # (n, d)
    factor = moments.factor / np.sqrt(variances)  # (rank, d)
    triangle = np.linalg.cholesky(np.eye(len(factor)) + factor @ factor.T)
    explained = np.linalg.solve(triangle, factor @ scaled.T)  # (rank, n)
    distances = np.square(scaled).sum(axis=1) - np.square(explained).sum(axis=0)
    log_determinant = np.log(variances).sum() + 2.0 * np.log(np.diag(triangle)).sum()
    density: Array = -0.5 * (distances + log_determinant)
    return density
