"""Sites whose components differ: exact conjugate posteriors of drawn statistics, for the hierarchical average."""

import numpy as np

from consilience import families as f
from consilience.posteriors.posterior import Posterior


def normal_wisharts(rng, *, n_groups, sites, dim, deviation, size=133, prior=1e-3):
    """Return sites with G components each (normal-Wishart), and the population means (G, D).

    Within a site observations are N(m_jg, I), and the site's means m_jg are N(mu_g, deviation^2 I). `size` is a number,
    or one for each site and component (J, G).
    """
    family = f.NormalWishart(dim)
    truth = rng.standard_normal((n_groups, dim)) * 50.0
    counts = np.broadcast_to(np.asarray(size, dtype=np.float64), (sites, n_groups))
    means = truth + deviation * rng.standard_normal((sites, n_groups, dim))
    means = means + rng.standard_normal((sites, n_groups, dim)) / np.sqrt(counts)[..., None]
    scatter = wisharts(rng, counts - 1.0, dim)
    prior_row = family.to_natural(
        mean=np.zeros((1, dim)), kappa=[prior], inverse_scale=prior * np.eye(dim)[None], dof=[dim]
    )[0]
    flat = family.flat
    posteriors = []
    for site in range(sites):
        data = family.to_natural(
            mean=means[site], kappa=counts[site], inverse_scale=scatter[site], dof=counts[site] + dim
        )
        data[:, -1] = 0.5 * (counts[site] - dim)  # as many degrees of freedom as observations
        posteriors.append(Posterior(family, prior_row + data - flat, prior=prior_row, counts=counts[site]))
    return posteriors, truth


def wisharts(rng, dof, dim):
    """Draw Wishart matrices of scale I (..., D, D) by Bartlett's decomposition, for degrees of freedom (...)."""
    lower = np.tril(rng.standard_normal((*dof.shape, dim, dim)), -1)
    diagonal = np.sqrt(rng.chisquare(dof[..., None] - np.arange(dim)))
    lower = lower + diagonal[..., None] * np.eye(dim)
    return lower @ np.swapaxes(lower, -1, -2)
