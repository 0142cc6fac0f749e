"""The subposteriors of all sites side by side, in unconstrained coordinates, and their Gaussian product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from consilience.checks import Array, Labels, symmetric_part
from consilience.draws.diagnostics import GAUSSIAN_SKEWNESS, Overlap, bulk_ess, overlap, separate_modes, skewness
from consilience.draws.draws import Draws
from consilience.draws.priors import CommonFactor

MIN_DRAWS_PER_COORDINATE = 5
"""Draws for each coordinate that a covariance needs: the inverse of one of n draws is too large by (n - 1)/(n - D - 2),
a quarter at five draws for each of D coordinates."""

SINGULAR = 1e-10
"""Smallest eigenvalue of the correlation matrix of variables that are no functions of each other. Chosen by hand: the
square of the six digits that CmdStan writes, and two to spare."""

MIN_LOADING = 1e-2
"""Part of a coordinate in what does not vary from which it is named as a function of others. Chosen by hand."""

MIN_SHIFT = 0.15
"""Shift of a mean by skewness, in standard deviations, from which it is said: intervals of 95 % then cover 94.7 %.
Chosen on ten targets with samplers of their own, none of them in experiments/draws, where it is judged."""


@dataclass(frozen=True, eq=False)
class Subposteriors:
    """Draws of J sites that were found to agree."""

    names: tuple[str, ...]  # names of the sites
    sites: tuple[Draws, ...]  # their draws

    @property
    def n_sites(self) -> int:
        """Number J of sites."""
        return len(self.sites)

    @property
    def n_coordinates(self) -> int:
        """Number D of coordinates."""
        return self.sites[0].n_coordinates

    @property
    def n_draws(self) -> int:
        """Least number of draws of a site."""
        return min(site.n_draws for site in self.sites)

    @cached_property
    def draws(self) -> tuple[Array, ...]:
        """All draws of each site (T_j, D)."""
        return tuple(site.unconstrained.reshape(site.n_draws, -1) for site in self.sites)

    @cached_property
    def means(self) -> Array:
        """Means (J, D)."""
        return np.stack([draws.mean(axis=0) for draws in self.draws])

    @cached_property
    def covariances(self) -> Array:
        """Covariances (J, D, D)."""
        return np.stack([np.atleast_2d(np.cov(draws, rowvar=False)) for draws in self.draws])

    @cached_property
    def precisions(self) -> Array:
        """Inverse covariances (J, D, D)."""
        return symmetric_part(np.linalg.inv(self.covariances).astype(np.float64))

    @cached_property
    def factor(self) -> CommonFactor:
        """What every site's density has once."""
        return self.sites[0].common_factor()

    @cached_property
    def density_product(self) -> tuple[Array, Array]:
        """Mean (D,) and precision (D, D) of the product of Gaussians with the sites' moments; nothing divided out."""
        precision = self.precisions.sum(axis=0)
        mean = np.linalg.solve(precision, np.einsum("jab,jb->a", self.precisions, self.means))
        return mean, precision

    @cached_property
    def product(self) -> tuple[Array, Array]:
        """Mean and precision of the full posterior: the product, what is common divided out J - 1 times."""
        return self.factor.divide_out(*self.density_product, self.n_sites - 1)

    @cached_property
    def skewness(self) -> Array:
        """Skewness (J, D)."""
        return np.stack([skewness(site.unconstrained) for site in self.sites])

    @cached_property
    def shift_by_skewness(self) -> tuple[Array, Array]:
        """Shift of the product's mean that third moments predict (D,), and its standard errors, both in its deviations.

        With kappa_j the third cumulants of the whitened draws z = L_j^-1 (u - mu_j), S_j = L_j L_j^T, the Edgeworth
        expansion of log p_j has the gradient 1/2 kappa_j^abc (z_b z_c - delta_bc) beside the Gaussian's (McCullagh
        1987, chapter 5). Its mean over the Gaussian product N(m, C), summed over sites, moves the mode by

            C sum_j L_j^-T 1/2 E_t[ z_t (z_t^T (mu'_j mu'_j^T + C'_j - I) z_t) ],

        mu'_j = L_j^-1 (m - mu_j) and C'_j = L_j^-1 C L_j^-T.
        """
        mean, precision = self.product
        covariance = np.linalg.inv(precision)
        deviations = np.sqrt(np.diagonal(covariance))
        shift, variance = np.zeros(len(mean)), np.zeros(len(mean))
        for site, draws, site_mean, site_covariance in zip(
            self.sites, self.draws, self.means, self.covariances, strict=True
        ):
            factor = np.linalg.cholesky(site_covariance)
            whitened = np.linalg.solve(factor, (draws - site_mean).T).T  # (T, D)
            offset = np.linalg.solve(factor, mean - site_mean)
            spread = np.linalg.solve(factor, np.linalg.solve(factor, covariance).T)
            form = np.outer(offset, offset) + spread - np.eye(len(mean))
            weight = 0.5 * np.sum(whitened @ form * whitened, axis=1)  # (T,)
            terms = weight[:, None] * np.linalg.solve(factor.T, whitened.T).T @ covariance / deviations  # (T, D)
            shift += terms.mean(axis=0)
            variance += terms.var(axis=0) / np.clip(bulk_ess(site.unconstrained), 1.0, site.n_draws)
        return shift, np.sqrt(variance)

    @property
    def most_skewed(self) -> tuple[int, int] | None:
        """Site and coordinate that are skewed most, beyond chance: a skewness has the standard error sqrt(6 / n)."""
        limits = np.array([GAUSSIAN_SKEWNESS + 3.0 * np.sqrt(6.0 / site.n_draws) for site in self.sites])
        beyond = np.abs(self.skewness) - limits[:, None]  # (J, D)
        site, coordinate = np.unravel_index(int(np.argmax(beyond)), beyond.shape)
        return (int(site), int(coordinate)) if beyond[site, coordinate] > 0 else None

    @property
    def most_shifted(self) -> int | None:
        """Coordinate whose mean in the product is off most by skewness, beyond chance.

        Small skewnesses of many sites add up, so that there may be one where no site is seen to be skewed.
        """
        shift, error = (np.abs(values) for values in self.shift_by_skewness)
        is_shifted = (shift > MIN_SHIFT) & (shift > 3.0 * error)
        return int(np.argmax(np.where(is_shifted, shift, 0.0))) if np.any(is_shifted) else None

    @property
    def is_skewed(self) -> bool:
        """Whether the Gaussian product is off by skewness: of one site, or of all together."""
        return self.most_skewed is not None or self.most_shifted is not None

    @cached_property
    def bimodal(self) -> tuple[Labels, ...]:
        """Coordinates with two modes that are apart, by site."""
        return tuple(separate_modes(site.unconstrained) for site in self.sites)

    @cached_property
    def overlap(self) -> Overlap:
        """How far sites overlap."""
        return overlap(self.means, self.covariances)

    def called(self, coordinates: Sequence[int] | Labels, limit: int = 5) -> str:
        """Return the names of some coordinates."""
        names = self.sites[0].coordinate_names
        more = f", ... ({len(coordinates)})" if len(coordinates) > limit else ""
        return ", ".join(names[place] for place in list(coordinates)[:limit]) + more

    def singular_sites(self) -> dict[int, Labels]:
        """Return the sites whose coordinates are linear functions of each other, with those coordinates."""
        singular = {}
        for number, covariance in enumerate(self.covariances):
            scale = np.sqrt(np.diagonal(covariance))
            values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
            null = vectors[:, values < SINGULAR]  # (D, n): what does not vary
            if null.shape[1]:
                singular[number] = np.flatnonzero(np.linalg.norm(null, axis=1) > MIN_LOADING)
        return singular


def standard_draws(count: int, dim: int, rng: np.random.Generator) -> Array:
    """Return normal draws (count, dim) whose mean is 0 and whose covariance is 1, where there are enough of them.

    So that what is drawn has exactly the moments that were computed, and Monte Carlo adds no error to these.
    """
    draws = rng.standard_normal((count, dim))
    if count <= dim + 1:
        return draws
    centred = draws - draws.mean(axis=0)
    factor = np.linalg.cholesky(np.atleast_2d(np.cov(centred, rowvar=False)))
    standard: Array = np.linalg.solve(factor, centred.T).T
    return standard


def gaussian_draws(mean: Array, precision: Array, count: int, rng: np.random.Generator) -> Array:
    """Return draws (count, D) with exactly this mean and the covariance precision^-1."""
    factor = np.linalg.cholesky(precision)  # Lam = L L^T, and L^-T z has covariance Lam^-1
    result: Array = mean + np.linalg.solve(factor.T, standard_draws(count, len(mean), rng).T).T
    return result


def some_draws(draws: Array, count: int, rng: np.random.Generator) -> Array:
    """Return `count` draws in random order, each at most once where there are enough."""
    order = rng.permutation(len(draws))
    return draws[np.resize(order, count)]
