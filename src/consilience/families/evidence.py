"""Families whose members hold an amount of information: posteriors that can be discounted and added up.

A posterior with natural parameters eta says ``eta - flat`` more than nothing at all, ``flat`` being the limit of no
data, and independent posteriors of one thing add up in this form. How much it says is counted in blocks of sufficient
statistics (for a Normal-Wishart, the observations behind its mean and those behind its covariance), and a block can be
given more or less of it without moving the centre. That is all that the calibration of heterogeneity needs: copies of a
component that differ between sites by more than their widths admit are worth fewer observations than they state. With
h the variance between sites in units of one observation's,

    1 / n' = 1 / n + h    for the information n of each block,

as in a random-effects meta-analysis, where the variance of a copy is its own plus that between sites.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol, final

import numpy as np
from scipy.sparse import csr_array

from consilience.checks import Array, Labels
from consilience.families.base import Family
from consilience.families.chunks import LazyRows, as_lazy_array, map_rows, sum_of_rows
from consilience.families.linalg import variances_of

POINT_VARIANCE_SHARE = 1e-6
"""Variance that a component without a width gets, as a share of the spread that it is compared with: so narrow that the
heterogeneity decides, so wide that float64 keeps ten digits. Chosen by hand; nobody has measured other values."""


LAW_VARIANCE_RATIO = 7.0
"""Variance of all components over that within one, before anything is known. A guess that only sets where searches for
the heterogeneity start."""


_NORMAL_MEDIAN_DEVIATIONS = 1.4826
"""Standard deviation of a normal law in median absolute deviations."""


MEDIAN_BYTES = 2**24
"""Memory of the columns whose medians are taken at once: 16 MiB, chosen by hand; it changes no result."""


MAX_KEPT_ROWS = 6000
"""Rows up to which what discounts are computed from is kept; of more it is computed each time, chunk by chunk. As many
as take part in a search; of more its evidence is asked for a few times only."""


class DiscountedRows(Protocol):
    """Rows under any discount."""

    def pieces(self, heterogeneity: Array) -> Array:
        """Return what each row says when discounted, less the flat limit (L, P)."""

    def observed(self, heterogeneity: Array) -> Array:
        """Return what normalises each row, discounted, as a likelihood (L,); see ``EvidenceFamily.observed``."""


class Discounts(DiscountedRows, Protocol):
    """All rows under any discount: what does not depend on the heterogeneity is computed once."""

    def part(self, rows: slice | Labels) -> DiscountedRows:
        """Return some of the rows; of very many, chunks are asked for, so that not all pieces are there at once."""

    def law(self, heterogeneity: Array) -> Array:
        """Return the distribution (P,) that the discounted rows are drawn from; see ``EvidenceFamily.law_of``."""

    def sums_of(self, membership: csr_array) -> Callable[[Array], Array]:
        """Return the sums of pieces weighted by a matrix (G, L) as a function of the heterogeneity (B,), (G, P)."""


class PlainDiscounts:
    """Discounts of any family: every value of the heterogeneity is computed anew.

    `moved` takes some rows (L, P) to the coordinates in which they are discounted. Very many rows are taken there each
    time, rather than kept in both.
    """

    def __init__(self, family: EvidenceFamily, eta: Array, moved: Callable[[Array], Array] | None = None) -> None:
        self._family, self._eta, self._moved = family, eta, moved
        if moved is not None and len(eta) <= MAX_KEPT_ROWS:
            self._eta, self._moved = moved(eta), None

    def part(self, rows: slice | Labels) -> PlainDiscounts:
        """Return the discounts of some of the rows."""
        return PlainDiscounts(self._family, self._eta[rows] if self._moved is None else self._moved(self._eta[rows]))

    def _map(self, function: Callable[[Array], Array]) -> Array:
        """Return what a function of rows gives for all, one chunk after another."""
        return map_rows(len(self._eta), self._eta.shape[1], lambda rows: function(self.part(rows)._eta))

    def pieces(self, heterogeneity: Array) -> Array:
        """Return what each row says when discounted, less the flat limit (L, P)."""
        family = self._family
        return self._map(lambda eta: family.discounted(eta, heterogeneity) - family.flat)

    def observed(self, heterogeneity: Array) -> Array:
        """Return what normalises each row, discounted, as a likelihood (L,)."""
        return self._map(lambda eta: self._family.observed(eta, heterogeneity))

    def sums_of(self, membership: csr_array) -> Callable[[Array], Array]:
        """Return the sums of pieces weighted by a matrix (G, L) as a function of the heterogeneity (B,), (G, P)."""
        return lambda heterogeneity: np.asarray(membership @ self.pieces(heterogeneity))

    def law(self, heterogeneity: Array) -> Array:
        """Return the distribution (P,) that the discounted rows are drawn from."""
        if len(self._eta) <= MAX_KEPT_ROWS:
            return self._family.law_of(self._map(lambda eta: self._family.discounted(eta, heterogeneity)))
        family, part = self._family, self.part
        discounted = LazyRows(self._eta.shape, lambda rows: family.discounted(part(rows)._eta, heterogeneity))
        return self._family.law_of(as_lazy_array(discounted))


class EvidenceFamily(Family):
    """A family with an amount of information per block, B blocks in all; see the module."""

    parts: ClassVar[tuple[str, ...]] = ("location",)
    """Names of the blocks of sufficient statistics."""

    @property
    def flat(self) -> Array:
        """Natural parameters (P,) of the limit that says nothing, often improper."""
        return np.zeros(self.size)

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the blocks (B,)."""
        return self.parts

    @property
    def enough(self) -> Array:
        """Information (B,) from which on a component can be judged by what its own data say."""
        return np.zeros(len(self.part_names))

    @abstractmethod
    def information(self, eta: Array) -> Array:
        """Return how much each block of each row says (n, B), in observations or in a unit of the family's own."""

    def reweighted(self, eta: Array, factors: Array) -> Array:
        """Return rows with the same centre whose information is multiplied by `factors` (n, B).

        By default ``flat + factors * (eta - flat)``, for families of one block.
        """
        flat = self.flat
        return np.asarray(flat + factors * (eta - flat))

    def observed(self, eta: Array, heterogeneity: Array) -> Array:
        """Return what normalises each row, discounted, as the likelihood of a copy (n,): minus the log of its constant.

        The likelihood of theta is exp(<eta' - flat, T(theta)> - observed), eta' the discounted row of `eta` (n, P) for
        the heterogeneity h of each block (B,). By default ``observed`` is A(eta'): the likelihood is a density of the
        row's centre, as if centre and parameter changed places.
        """
        return self.log_normalizer(self.discounted(eta, heterogeneity))

    def law_of(self, eta: Array) -> Array:
        """Return the member (P,) with the moments of all rows (n, P) together: the distribution they are drawn from.

        Its mean parameters are the mean of the rows' mean parameters: the reverse Kullback-Leibler barycenter.
        """
        total = sum_of_rows(len(eta), eta.shape[1], lambda rows: self.mean_parameters(eta[rows]))
        return self.from_mean((total / len(eta))[None])[0]

    def without_prior(self, eta: Array, prior: Array) -> Array:
        """Return what the data alone say: `eta` (n, P) less the priors (n, P) that went into them."""
        return eta - prior + self.flat

    def evidence_form(self, eta: Array) -> tuple[EvidenceFamily, Array]:
        """Return the rows as they are: a family with information is its own form."""
        return self, eta

    @final
    def discounted(self, eta: Array, heterogeneity: Array) -> Array:
        """Return rows whose information n has become n / (1 + n h): 1 / n' = 1 / n + h for h of each block (B,)."""
        return self.reweighted(eta, 1.0 / (1.0 + heterogeneity * self.information(eta)))

    def discounts(self, eta: Array) -> Discounts:
        """Return rows (L, P) under any discount, in coordinates in which ``log_normalizer_of_sums`` loses no digits."""
        return PlainDiscounts(self, eta)

    def heterogeneity_unit(self, eta: Array) -> Array:
        """Return for each block (B,) the variance between sites that is one within a component (n, P), in units of h.

        1 for information in observations, since h is in units of one observation's variance. For information in
        precisions see ``PrecisionFamily``.
        """
        return np.ones(len(self.part_names))


class PrecisionFamily(EvidenceFamily):
    """An evidence family whose information is a precision: h is a variance in the units of the data."""

    @abstractmethod
    def plug_in(self, eta: Array) -> tuple[Array, Array]:
        """Return means (n, D) and covariances (n, D, D), or variances (n, D)."""

    @abstractmethod
    def moved(self, eta: Array, shift: Array) -> Array:
        """Return the rows with means moved by `shift` (D,)."""

    def discounts(self, eta: Array) -> Discounts:
        """Return these rows under any discount, with the middle of their means at the origin."""
        shift = -_medians(eta, lambda rows: self.plug_in(rows)[0])
        return PlainDiscounts(self, eta, lambda rows: self.moved(rows, shift))

    def heterogeneity_unit(self, eta: Array) -> Array:
        """Return a seventh of the variance of the middle half of all rows (1,): a guess of that within one component.

        Geometric mean over dimensions; by median absolute deviations, so that one site far from all others does not
        decide where all others are looked for.
        """

        def variances(rows: Array) -> Array:
            widths = self.plug_in(rows)[1]
            return variances_of(widths)  # (n, D)

        deviations = _medians(eta, lambda rows: self.plug_in(rows)[0], are_deviations=True)
        spread: Array = (_NORMAL_MEDIAN_DEVIATIONS * deviations) ** 2 + _medians(eta, variances)
        return np.exp(np.log(spread).mean(keepdims=True)) / LAW_VARIANCE_RATIO


def _medians(eta: Array, function: Callable[[Array], Array], *, are_deviations: bool = False) -> Array:
    """Return the median of each column of what a function gives for rows (n, D), or of the distances from it (D,).

    Of very many rows some columns are looked at after others.
    """
    n_columns = function(eta[:1]).shape[1]
    step = max(1, MEDIAN_BYTES // (8 * len(eta)))
    medians: list[float] = []
    for first in range(0, n_columns, step):
        columns = slice(first, first + step)
        values = map_rows(len(eta), eta.shape[1], lambda rows: function(eta[rows])[:, columns])  # noqa: B023  (used here)
        for column in values.T:
            median = np.median(column)
            medians.append(float(np.median(np.abs(column - median)) if are_deviations else median))
    return np.array(medians)
