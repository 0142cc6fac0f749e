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
from typing import ClassVar, Protocol, final

import numpy as np

from consilience.checks import Array
from consilience.families.base import Family

POINT_VARIANCE_SHARE = 1e-6
"""Variance that a component without a width gets, as a share of the spread that it is compared with: so narrow that the
heterogeneity decides, so wide that float64 keeps ten digits. Chosen by hand; nobody has measured other values."""


LAW_VARIANCE_RATIO = 7.0
"""Variance of all components over that within one, before anything is known. A guess that only sets where searches for
the heterogeneity start."""


_NORMAL_MEDIAN_DEVIATIONS = 1.4826
"""Standard deviation of a normal law in median absolute deviations."""


class Discounts(Protocol):
    """Some rows under any discount: what does not depend on the heterogeneity is computed once."""

    def pieces(self, heterogeneity: Array) -> Array:
        """Return what each row says when discounted, less the flat limit (L, P)."""

    def observed(self, heterogeneity: Array) -> Array:
        """Return what normalises each row, discounted, as a likelihood (L,); see ``EvidenceFamily.observed``."""

    def law(self, heterogeneity: Array) -> Array:
        """Return the law (P,) that the discounted rows are drawn from; see ``EvidenceFamily.law_of``."""


class PlainDiscounts:
    """Discounts of any family: every value of the heterogeneity is computed anew.

    Parameters
    ----------
    family : EvidenceFamily
        The family.
    eta : Array of shape (L, P)
        The rows.
    """

    def __init__(self, family: EvidenceFamily, eta: Array) -> None:
        self._family, self._eta = family, eta

    def pieces(self, heterogeneity: Array) -> Array:
        """Return what each row says when discounted, less the flat limit (L, P)."""
        result: Array = self._family.discounted(self._eta, heterogeneity) - self._family.flat
        return result

    def observed(self, heterogeneity: Array) -> Array:
        """Return what normalises each row, discounted, as a likelihood (L,)."""
        return self._family.observed(self._eta, heterogeneity)

    def law(self, heterogeneity: Array) -> Array:
        """Return the law (P,) that the discounted rows are drawn from."""
        return self._family.law_of(self._family.discounted(self._eta, heterogeneity))


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
        result: Array = flat + factors * (eta - flat)
        return result

    def observed(self, eta: Array, heterogeneity: Array) -> Array:
        """Return what normalises each row, discounted, as the likelihood of a copy (n,): minus the log of its constant.

        The likelihood of theta is exp(<eta' - flat, T(theta)> - observed), eta' the discounted row. By default
        ``observed`` is A(eta'): the likelihood is a density of the row's centre, as if centre and parameter changed
        places.

        Parameters
        ----------
        eta : ndarray of shape (n, P)
            Natural parameters, not discounted.
        heterogeneity : ndarray of shape (B,)
            h of each block.
        """
        return self.log_normalizer(self.discounted(eta, heterogeneity))

    def law_of(self, eta: Array) -> Array:
        """Return the member (P,) with the moments of all rows (n, P) together: the law that they are drawn from.

        Its mean parameters are the mean of the rows' mean parameters: the reverse Kullback-Leibler barycenter.
        """
        return self.from_mean(self.mean_parameters(eta).mean(axis=0)[None])[0]

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
        """Return these rows under any discount, in coordinates in which ``log_normalizer_of_sums`` loses no digits.

        Parameters
        ----------
        eta : ndarray of shape (L, P)
            Natural parameters, not discounted.
        """
        return PlainDiscounts(self, eta)

    def heterogeneity_unit(self, eta: Array) -> Array:
        """Return for each block (B,) the variance between sites that is one within a component, in units of h.

        1 for information in observations, since h is in units of one observation's variance. For information in
        precisions see ``PrecisionFamily``.

        Parameters
        ----------
        eta : ndarray of shape (L, P)
            Natural parameters, not discounted.
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
        return PlainDiscounts(self, self.moved(eta, -np.median(self.plug_in(eta)[0], axis=0)))

    def heterogeneity_unit(self, eta: Array) -> Array:
        """Return a seventh of the variance of the middle half of all rows (1,): a guess of that within one component.

        Geometric mean over dimensions; by median absolute deviations, so that one site far from all others does not
        decide where all others are looked for.
        """
        means, widths = self.plug_in(eta)
        variances = widths if widths.ndim == 2 else np.diagonal(widths, axis1=1, axis2=2)  # (n, D)
        deviations = np.median(np.abs(means - np.median(means, axis=0)), axis=0)
        spread = (_NORMAL_MEDIAN_DEVIATIONS * deviations) ** 2 + np.median(variances, axis=0)
        return np.exp(np.log(spread).mean(keepdims=True)) / LAW_VARIANCE_RATIO
