"""The objective of self-supervised Fisher merging: predict masked parameters from the rest, as every site would.

For a mask M of m parameters, the others R (of a window, or all), and the posterior N(theta_k, P_k^-1) of site k, masked
parameters have given the rest

    mean  theta_k,M - P_MM^-1 P_MR (theta_R - theta_k,R),    precision  P_MM, of which only the diagonal D_M counts.

Minus the mean log density of (7) is then quadratic: with d = theta - theta_k and B = D_M^1/2 P_MM^-1 P_{M,:}, up to a
constant,

    L(theta) = 1 / (masks m) sum_masks [ sum_k w_k / 2 |B_k d_k|^2 - excess / 2 |theta_M|^2 ].

P = rows rows^T + diag(own) is never formed: P_MM^-1 by Cholesky of an m x m or, by Woodbury's identity, r x r matrix.
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
    """Masked parameters, and the window that they are predicted from; None for all parameters."""

    masked: Labels
    window: Labels | None = None


def draw_masks(
    size: int, masks: int, masked: int, window: int | None, rng: np.random.Generator, balanced: bool = True
) -> list[Mask]:
    """Return masks of `masked` parameters each.

    Parameters
    ----------
    size
        Number of parameters, P.
    masks, masked
        Number of masks, and of parameters in each.
    window
        Parameters that a mask is drawn in and conditioned on; None for all.
    rng
        Draws them.
    balanced
        Whether all parameters are masked equally often, but for one: permutations are cut into pieces. Every mask for
        itself is uniform either way.
    """
    pool = np.zeros(0, dtype=np.int64)
    found = []
    for _ in range(masks):
        if not balanced and window is None:
            found.append(Mask(np.sort(rng.choice(size, masked, replace=False))))
            continue
        if not balanced:
            inside = rng.choice(size, window, replace=False)
            found.append(Mask(np.sort(inside[:masked]), np.sort(inside)))
            continue
        chosen = pool[:masked]
        pool = pool[masked:]
        if len(chosen) < masked:
            fresh = rng.permutation(size)
            more = fresh[~np.isin(fresh, chosen)][: masked - len(chosen)]
            chosen, pool = np.concatenate([chosen, more]), fresh[~np.isin(fresh, more)]
        if window is None:
            found.append(Mask(np.sort(chosen)))
        else:
            rest = rng.choice(size, window, replace=False)
            rest = rest[~np.isin(rest, chosen)][: window - masked]
            found.append(Mask(np.sort(chosen), np.sort(np.concatenate([chosen, rest]))))
    return found


@dataclass(frozen=True, eq=False)
class Site:
    """A posterior N(mean, (rows rows^T + diag(own))^-1) of weight count: mean (P,), rows (P, r), own (P,) positive."""

    mean: Array
    rows: Array
    own: Array
    count: float


class _Block:
    """P_MM of one site and mask."""

    def __init__(self, site: Site, masked: Labels) -> None:
        """Factorise it."""
        self.rows, self.own = site.rows[masked], site.own[masked]
        self.precision = self.own + (self.rows**2).sum(axis=1)
        entries, rank = self.rows.shape
        self._wide = entries <= rank
        if self._wide:
            self._factor = cho_factor(self.rows @ self.rows.T + np.diag(self.own))
        else:
            self._factor = cho_factor(np.eye(rank) + self.rows.T @ (self.rows / self.own[:, None]))

    def solve(self, values: Array) -> Array:
        """Return P_MM^-1 times values (m,) or (m, n)."""
        if self._wide:
            found: Array = cho_solve(self._factor, values, check_finite=False)
            return found
        first = (values.T / self.own).T
        back = self.rows @ cho_solve(self._factor, self.rows.T @ first, check_finite=False)
        return first - (back.T / self.own).T


@dataclass(frozen=True, eq=False)
class MaskedObjective:
    """L for fixed masks.

    Parameters
    ----------
    sites
        The posteriors.
    masks
        The masks, all of one size.
    excess
        Precision of the priors that were counted too often.
    """

    sites: Sequence[Site]
    masks: Sequence[Mask]
    excess: float

    @property
    def _scale(self) -> float:
        return 1.0 / sum(len(mask.masked) for mask in self.masks)

    @cached_property
    def _blocks(self) -> list[list[_Block]]:
        return [[_Block(site, mask.masked) for mask in self.masks] for site in self.sites]

    @cached_property
    def _times_masked(self) -> Array:
        """How often each parameter is masked (P,)."""
        masked = np.concatenate([mask.masked for mask in self.masks])
        return np.bincount(masked, minlength=len(self.sites[0].mean)).astype(np.float64)

    def times(self, vector: Array) -> Array:
        """Return the product of L's matrix of second derivatives with a vector (P,)."""
        total = -self.excess * self._times_masked * vector
        for number, site in enumerate(self.sites):
            total += site.count * self._pulled(number, vector)[1]
        return self._scale * total

    def value(self, theta: Array) -> float:
        """Return L."""
        return self.value_and_gradient(theta)[0]

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return L and its gradient (P,)."""
        total = -0.5 * self.excess * float(self._times_masked @ theta**2)
        gradient = -self.excess * self._times_masked * theta
        for number, site in enumerate(self.sites):
            value, back = self._pulled(number, theta - site.mean)
            total += site.count * value
            gradient += site.count * back
        return self._scale * total, self._scale * gradient

    def _pulled(self, number: int, step: Array) -> tuple[float, Array]:
        """Return 1/2 |B d|^2 and B^T B d, summed over masks, of one site."""
        site = self.sites[number]
        value, back = 0.0, np.zeros_like(step)
        along = step @ site.rows if any(mask.window is None for mask in self.masks) else np.zeros(0)
        returned = np.zeros_like(along)
        for mask, block in zip(self.masks, self._blocks[number], strict=True):
            window = mask.window
            seen = along if window is None else step[window] @ site.rows[window]
            solved = block.solve(block.rows @ seen + block.own * step[mask.masked])
            weighted = block.precision * solved
            value += 0.5 * float(solved @ weighted)
            turned = block.solve(weighted)
            back[mask.masked] += block.own * turned
            if window is None:
                returned += turned @ block.rows
            else:
                back[window] += site.rows[window] @ (turned @ block.rows)
        return value, back + site.rows @ returned if len(returned) else back

    @cached_property
    def diagonal(self) -> Array:
        """The diagonal of L's matrix of second derivatives (P,)."""
        total = -self.excess * self._times_masked
        for number, site in enumerate(self.sites):
            own = np.zeros_like(site.own)
            shared = np.zeros((site.rows.shape[1],) * 2)
            for mask, block in zip(self.masks, self._blocks[number], strict=True):
                turned = block.solve(block.rows)
                products = turned.T @ (block.precision[:, None] * turned)
                own[mask.masked] += block.precision - _quadratic(block.rows, products)
                if mask.window is None:
                    shared += products
                else:
                    own[mask.window] += _quadratic(site.rows[mask.window], products)
            total += site.count * (own + _quadratic(site.rows, shared))
        return self._scale * total

    @property
    def preconditioner(self) -> Array | None:
        """The diagonal, with ones for parameters that no mask touches; None where the objective has no minimum."""
        diagonal = self.diagonal
        untouched = (diagonal == 0) & ((self._times_masked == 0) | (self.excess == 0))
        found: Array = np.where(untouched, 1.0, diagonal)
        return found if np.all(found > 0) else None


def _quadratic(rows: Array, products: Array) -> Array:
    """Return r^T S r of each row."""
    found: Array = np.einsum("ij,ij->i", rows @ products, rows)
    return found
