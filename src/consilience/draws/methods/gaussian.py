"""Methods by mean and covariance of the subposteriors: their Gaussian product, and consensus Monte Carlo.

    Lam = sum_j S_j^-1 + (J - 1) d2c,    Lam m = sum_j S_j^-1 mu_j + ...                          (``priors``)
    theta_t = (sum_j W_j)^-1 sum_j W_j theta_jt,    W_j = S_j^-1                       (Scott et al. 2016)

Both agree for Gaussian subposteriors. The second keeps some of their skewness: it averages draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from consilience.checks import Array
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.draws.methods.base import CombinedDraws, DrawsMethod
from consilience.draws.subposteriors import Subposteriors, gaussian_draws, some_draws
from consilience.families.wasserstein import matrix_square_root


@dataclass(frozen=True)
class GaussianProduct(DrawsMethod):
    """Multiply Gaussians with the means and covariances of the subposteriors, and draw from the product.

    Lam = sum_j S_j^-1, m = Lam^-1 sum_j S_j^-1 mu_j, and what is counted J times is divided out J - 1 times.

    References
    ----------
    Neiswanger, Wang and Xing (2014), section 3.1.
    """

    name: ClassVar[str] = "gaussian_product"
    summary: ClassVar[str] = "multiply Gaussians with the moments of the subposteriors"
    needs: ClassVar[str] = "draws of the same parameters, and what of the prior they hold"
    gives: ClassVar[str] = "Gaussian draws on the unconstrained scale"
    paper: ClassVar[str] = "neiswanger2014"

    def combine(self, stack: Subposteriors, rng: np.random.Generator, progress: Progress) -> CombinedDraws:
        """Return draws of the product."""
        return CombinedDraws(gaussian_draws(*stack.product, self.count(stack), rng))


@dataclass(frozen=True)
class ConsensusMonteCarlo(DrawsMethod):
    """Average draws of the sites, weighted by the precisions of their subposteriors.

    theta_t = (sum_j W_j)^-1 sum_j W_j theta_jt, W_j = S_j^-1, each site's draws in an order of their own. Where a prior
    or a Jacobian is divided out, the averages are mapped to the mean and covariance of that quotient.

    Parameters
    ----------
    covariance : {"full", "diagonal"}
        Whether weights are matrices, or one number for each coordinate, which needs few draws.

    References
    ----------
    Scott, Blocker, Bonassi, Chipman, George and McCulloch (2016), sections 3 and 4.
    """

    covariance: Literal["full", "diagonal"] = "full"
    name: ClassVar[str] = "consensus_mc"
    summary: ClassVar[str] = "average draws weighted by the precisions of the subposteriors"
    needs: ClassVar[str] = "draws of the same parameters, and what of the prior they hold"
    gives: ClassVar[str] = "draws that keep some skewness of the subposteriors"
    paper: ClassVar[str] = "scott2016"

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield "covariance", self.covariance in ("full", "diagonal"), "'full' or 'diagonal'"

    @property
    def needs_covariance(self) -> bool:
        """Whether weights are matrices."""
        return self.covariance == "full"

    def check(self, stack: Subposteriors) -> None:
        """Raise InputError where the product is not proper."""
        self._quotient(stack)

    def _weights(self, stack: Subposteriors) -> Array:
        """Return W_j (J, D, D)."""
        if self.covariance == "full":
            return stack.precisions
        variances = np.stack([draws.var(axis=0, ddof=1) for draws in stack.draws])
        return np.stack([np.diag(1.0 / row) for row in variances])

    def _quotient(self, stack: Subposteriors) -> tuple[Array, Array, Array, Array]:
        """Return mean and precision of the product of the densities, and those of the quotient."""
        weights = self._weights(stack)
        precision = weights.sum(axis=0)
        mean = np.linalg.solve(precision, np.einsum("jab,jb->a", weights, stack.means))
        return mean, precision, *stack.factor.divide_out(mean, precision, stack.n_sites - 1)

    def combine(self, stack: Subposteriors, rng: np.random.Generator, progress: Progress) -> CombinedDraws:
        """Return weighted averages of draws."""
        weights, count = self._weights(stack), self.count(stack)
        total = np.zeros((count, stack.n_coordinates))
        for draws, weight in zip(stack.draws, weights, strict=True):
            total += some_draws(draws, count, rng) @ weight
        mean, precision, new_mean, new_precision = self._quotient(stack)
        averages: Array = np.linalg.solve(precision, total.T).T.astype(np.float64)
        if new_precision is precision:
            return CombinedDraws(averages)
        # The optimal transport map of the two Gaussians, R^-1 (R Lam'^-1 R)^1/2 R^-1 with R = Lam^-1/2.
        root = matrix_square_root(np.linalg.inv(precision).astype(np.float64))
        inverse = np.linalg.inv(root)
        change = inverse @ matrix_square_root(root @ np.linalg.inv(new_precision) @ root) @ inverse
        return CombinedDraws(new_mean + (averages - mean) @ change)
