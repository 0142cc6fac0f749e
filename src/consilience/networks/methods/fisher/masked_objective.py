"""Masked objective of self-supervised Fisher merging: every site's posterior predicts masked parameters from the rest.

For a mask M of m parameters, the rest R (of a window, or all others) and the posterior N(theta_k, P_k^-1) of site k,
the masked parameters given the rest have

    mean  theta_k,M - P_MM^-1 P_MR (theta_R - theta_k,R),    precision  P_MM, of which only the diagonal D_M is used:

(7) of Recasens et al. (2023) takes masked parameters as conditionally independent. Minus the mean log density is then
quadratic in theta. With d = theta - theta_k and B_k = D_M^1/2 P_MM^-1 P_{M,:}, up to a constant,

    L(theta) = 1 / (masks m) sum_masks [ sum_k w_k / 2 |B_k d_k|^2 - excess / 2 |theta_M|^2 ],

w_k how often site k counts and `excess` the precision of surplus priors. P = rows rows^T + diag(d), rows (P, r), is
never formed: P_MM^-1 is applied by Cholesky factors of an m x m or, by Woodbury's identity, of an r x r matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from consilience.checks import Array, Labels


@dataclass(frozen=True, eq=False)
class Mask:
    """A mask of parameters."""

    masked: Labels  # (m,): the masked parameters, sorted
    window: Labels | None = None  # (w,): the parameters that are predicted from, masked ones included, sorted


def draw_masks(size: int, masks: int, masked: int, window: int | None, rng: np.random.Generator) -> list[Mask]:
    """Return random masks of `masked` parameters each, by which all P parameters are masked equally often, up to one.

    Permutations are cut into pieces, so that each mask by itself is uniform. In a window of so many parameters a mask
    is drawn and conditioned on; None is all.
    """
    pool = np.zeros(0, dtype=np.int64)  # what is left of the last permutation
    drawn = []
    for _ in range(masks):
        chosen = pool[:masked]
        pool = pool[masked:]
        if len(chosen) < masked:  # complete the mask from a new permutation, without repetition
            permutation = rng.permutation(size)
            added = permutation[~np.isin(permutation, chosen)][: masked - len(chosen)]
            chosen, pool = np.concatenate([chosen, added]), permutation[~np.isin(permutation, added)]
        if window is None:
            drawn.append(Mask(np.sort(chosen)))
        else:
            conditioned = rng.choice(size, window, replace=False)
            conditioned = conditioned[~np.isin(conditioned, chosen)][: window - masked]
            drawn.append(Mask(np.sort(chosen), np.sort(np.concatenate([chosen, conditioned]))))
    return drawn


@dataclass(frozen=True, eq=False)
class LowRankGaussian:
    """A posterior N(mean, (rows rows^T + diag(d))^-1) and how often it counts."""

    mean: Array  # (P,): theta_k
    rows: Array  # (P, r): low-rank part of the precision
    diagonal_part: Array  # (P,): d, positive
    count: float  # w_k


class _MaskedPrecision:
    """P_MM of one site and one mask, factorised."""

    def __init__(self, site: LowRankGaussian, masked: Labels) -> None:
        self.rows, self.diagonal_part = site.rows[masked], site.diagonal_part[masked]  # (m, r), (m,)
        self.diagonal = self.diagonal_part + (self.rows**2).sum(axis=1)  # D_M (m,)
        n_masked, rank = self.rows.shape
        self._is_direct = n_masked <= rank  # factorise the smaller of m x m and r x r
        if self._is_direct:
            self._factor = cho_factor(self.rows @ self.rows.T + np.diag(self.diagonal_part))
        else:
            self._factor = cho_factor(np.eye(rank) + self.rows.T @ (self.rows / self.diagonal_part[:, None]))

    def solve(self, values: Array) -> Array:
        """Return P_MM^-1 times values (m,) or (m, n)."""
        if self._is_direct:
            return cho_solve(self._factor, values, check_finite=False)
        # Woodbury: (d + R R^T)^-1 = d^-1 - d^-1 R (I + R^T d^-1 R)^-1 R^T d^-1
        scaled = (values.T / self.diagonal_part).T
        correction = self.rows @ cho_solve(self._factor, self.rows.T @ scaled, check_finite=False)
        return scaled - (correction.T / self.diagonal_part).T


@dataclass(frozen=True, eq=False)
class MaskedObjective:
    """L for fixed masks, with its gradient, Hessian products and the Hessian's diagonal."""

    sites: Sequence[LowRankGaussian]  # the sites' posteriors
    masks: Sequence[Mask]  # the masks, all of one size
    excess: float  # precision of the priors that the product of posteriors counts too often

    @property
    def _scale(self) -> float:
        """1 / (masks m)."""
        return 1.0 / sum(len(mask.masked) for mask in self.masks)

    @cached_property
    def _precisions(self) -> list[list[_MaskedPrecision]]:
        """P_MM by site and mask."""
        return [[_MaskedPrecision(site, mask.masked) for mask in self.masks] for site in self.sites]

    @cached_property
    def _mask_counts(self) -> Array:
        """How often each parameter is masked (P,)."""
        masked = np.concatenate([mask.masked for mask in self.masks])
        return np.bincount(masked, minlength=len(self.sites[0].mean)).astype(np.float64)

    def times(self, vector: Array) -> Array:
        """Return the product of L's Hessian with a vector (P,)."""
        total = -self.excess * self._mask_counts * vector
        for number, site in enumerate(self.sites):
            total += site.count * self._quadratic_form(number, vector)[1]
        return self._scale * total

    def value(self, theta: Array) -> float:
        """Return L at parameters (P,)."""
        return self.value_and_gradient(theta)[0]

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return L and its gradient (P,) at parameters (P,)."""
        total = -0.5 * self.excess * float(self._mask_counts @ theta**2)
        gradient = -self.excess * self._mask_counts * theta
        for number, site in enumerate(self.sites):
            value, product = self._quadratic_form(number, theta - site.mean)
            total += site.count * value
            gradient += site.count * product
        return self._scale * total, self._scale * gradient

    def _quadratic_form(self, number: int, step: Array) -> tuple[float, Array]:
        """Return 1/2 |B d|^2 and B^T B d (P,) of one site, summed over masks, for a step d (P,).

        P_{M,:} d = rows_M (rows^T d) + diag_M d_M. What goes through rows^T is summed over masks without a window, so
        that the whole matrix of rows is used twice in all.
        """
        site = self.sites[number]
        value, product = 0.0, np.zeros_like(step)
        coefficients = step @ site.rows if any(mask.window is None for mask in self.masks) else np.zeros(0)  # (r,)
        coefficient_sum = np.zeros_like(coefficients)
        for mask, precision in zip(self.masks, self._precisions[number], strict=True):
            window = mask.window
            along = coefficients if window is None else step[window] @ site.rows[window]  # rows^T d (r,)
            solved = precision.solve(precision.rows @ along + precision.diagonal_part * step[mask.masked])  # (m,)
            weighted = precision.diagonal * solved  # D_M^1/2 B d (m,)
            value += 0.5 * float(solved @ weighted)
            back = precision.solve(weighted)  # P_MM^-1 D_M P_MM^-1 P_{M,:} d (m,)
            product[mask.masked] += precision.diagonal_part * back
            if window is None:
                coefficient_sum += back @ precision.rows
            else:
                product[window] += site.rows[window] @ (back @ precision.rows)
        return value, product + site.rows @ coefficient_sum if len(coefficient_sum) else product

    @cached_property
    def diagonal(self) -> Array:
        """The diagonal (P,) of L's Hessian."""
        total = -self.excess * self._mask_counts
        for number, site in enumerate(self.sites):
            site_diagonal = np.zeros_like(site.diagonal_part)
            shared = np.zeros((site.rows.shape[1],) * 2)  # (r, r), summed over masks without a window
            for mask, precision in zip(self.masks, self._precisions[number], strict=True):
                solved = precision.solve(precision.rows)  # P_MM^-1 rows_M (m, r)
                products = solved.T @ (precision.diagonal[:, None] * solved)  # (r, r)
                # Columns of P_{M,:} are rows_M row_j, plus d_j at masked j: there P_MM^-1 times the column is a unit
                # vector, so B^T B has D_j, from which the term of all columns, added below, is taken off first.
                site_diagonal[mask.masked] += precision.diagonal - _row_quadratic(precision.rows, products)
                if mask.window is None:
                    shared += products
                else:
                    site_diagonal[mask.window] += _row_quadratic(site.rows[mask.window], products)
            total += site.count * (site_diagonal + _row_quadratic(site.rows, shared))
        return self._scale * total

    @property
    def preconditioner(self) -> Array | None:
        """The diagonal (P,), with ones for parameters that no mask touches; None where L has no minimum."""
        diagonal = self.diagonal
        is_untouched = (diagonal == 0) & ((self._mask_counts == 0) | (self.excess == 0))
        positive: Array = np.where(is_untouched, 1.0, diagonal)
        return positive if np.all(positive > 0) else None


def _row_quadratic(rows: Array, products: Array) -> Array:
    """Return x^T S x (n,) of every row x of rows (n, r), for S (r, r)."""
    return np.einsum("ij,ij->i", rows @ products, rows)
