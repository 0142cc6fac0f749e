"""Dirichlet and Beta: posteriors of topics, of mixture weights and of proportions.

With concentrations alpha and their total alpha_0,

    eta = alpha - 1,    T = log pi,    A = sum_v log Gamma(alpha_v) - log Gamma(alpha_0)
    mu_v = psi(alpha_v) - psi(alpha_0)

The forward barycenter is the weighted mean of the concentrations; a product adds the tokens that each row has beyond
the prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, digamma, gammaln

from consilience.checks import Array, as_rows, as_vector
from consilience.families.base import Draws, Parameters
from consilience.families.evidence import LAW_VARIANCE_RATIO
from consilience.families.random_effects import CopyGroups, Dispersion, ProportionDispersion, RandomEffectsFamily
from consilience.families.special import (
    decreasing_root,
    gamma_bregman,
    inverse_digamma,
    itakura_saito,
    sum_of_log_gammas,
    trigamma,
)

_MIN_CONCENTRATION = 1e-8
"""Smaller concentrations are raised to it: psi(alpha) is about -1 / alpha there, so they carry no information, only
overflow. Chosen by hand."""

_MIN_TOTAL = 0.01
"""Total concentration of a law of laws at least: below, all its mass is at the corners of the simplex. Chosen by hand;
nobody has measured other values."""


class _SimplexFamily(RandomEffectsFamily):
    """A distribution of probability vectors pi with concentrations alpha: eta = alpha - 1, T = log pi."""

    parts: ClassVar[tuple[str, ...]] = ("concentration",)
    separates_spread: ClassVar[bool] = False

    def log_normalizer(self, eta: Array) -> Array:
        """Return sum_v log Gamma(alpha_v) - log Gamma(sum_v alpha_v)."""
        alpha = eta + 1.0
        return np.asarray(gammaln(alpha).sum(axis=1) - gammaln(alpha.sum(axis=1)))

    def log_normalizer_of_sums(self, eta: Array) -> Array:
        """Return A(eta) (n,), to some units in the last place of its largest terms."""
        alpha = eta + 1.0
        return np.asarray(sum_of_log_gammas(alpha) - gammaln(alpha.sum(axis=1)))

    def heterogeneity_unit(self, eta: Array) -> Array:
        """Return for each block (1,) a seventh of the variance between components, in that of one draw.

        A concentration t of the law of all components makes their variance 1 / (1 + t) of that of one draw. Counts of
        draws say nothing of it: of ten thousand words some topics differ in all and some in a few.
        """
        return 1.0 / (LAW_VARIANCE_RATIO * (1.0 + self.information(self.law_of(eta)[None])[0]))

    def mean_parameters(self, eta: Array) -> Array:
        """Return psi(alpha_v) - psi(sum_v alpha_v)."""
        alpha = eta + 1.0
        return np.asarray(digamma(alpha) - digamma(alpha.sum(axis=1, keepdims=True)))

    def from_mean(self, mean: Array) -> Array:
        """Return eta from E log pi.

        Given the total t = alpha_0, alpha_v = psi^-1(mean_v + psi(t)); so t solves sum_v psi^-1(mean_v + psi(t)) = t,
        one decreasing function of log t per row.
        """

        def equation(z: Array) -> tuple[Array, Array]:
            """Return log sum_v alpha_v(t) - log t and its derivative by log t, at z = log t."""
            total = np.exp(z)
            alpha = inverse_digamma(mean + digamma(total)[:, None])  # (n, V)
            slope = trigamma(total) * (1.0 / trigamma(alpha)).sum(axis=1)
            implied_total = alpha.sum(axis=1)
            return np.log(implied_total) - z, total * slope / implied_total - 1.0

        # For large totals psi(alpha) is about log alpha - 1 / (2 alpha), so sum_v exp(mean_v) falls short of one by
        # (V - 1) / (2 alpha_0): the start.
        shortfall = np.maximum(-np.expm1(np.log(np.exp(mean).sum(axis=1))), 1e-300)
        log_total = decreasing_root(equation, np.log((self.size - 1) / (2.0 * shortfall)))
        return inverse_digamma(mean + digamma(np.exp(log_total))[:, None]) - 1.0

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return KL(a || b) with nothing of the size of alpha log alpha to cancel.

        sum_v b_v h(u_v) + sum_v B(b_v, a_v) - B(b_0, a_0): u_v compares the mean probabilities, h(u) = u - log(1 + u),
        B is the Bregman divergence of log Gamma(x) - x log x, and the last term is at most 1 / V of the sum before it
        plus what the first pays for.
        """
        a, b = eta_a + 1.0, eta_b + 1.0  # concentrations (n, V)
        change = eta_b - eta_a
        total_a, total_b = a.sum(axis=1), b.sum(axis=1)
        total_change = change.sum(axis=1)
        # 1 + u_v = (a_v / a_0) / (b_v / b_0): a brought to the total of b, over b.
        scale = (total_b / total_a)[:, None]
        rescaled_minus_b = a * (total_change / total_a)[:, None] - change  # a b_0 / a_0 - b, from small differences
        mean_term: Array = (b * itakura_saito(rescaled_minus_b, a * scale, b)).sum(axis=1)
        return mean_term + gamma_bregman(b, a).sum(axis=1) - gamma_bregman(total_b, total_a)

    def points(self, eta: Array) -> Array:
        """Return square roots of the mean probabilities (n, V), whose Euclidean distance is Hellinger's."""
        return np.sqrt(self.mean_probabilities(eta))

    def mean_probabilities(self, eta: Array) -> Array:
        """Return the mean probabilities (n, V)."""
        alpha = eta + 1.0
        return np.asarray(alpha / alpha.sum(axis=1, keepdims=True))

    @property
    def flat(self) -> Array:
        """Concentrations of zero."""
        return np.full(self.size, -1.0)

    def information(self, eta: Array) -> Array:
        """Return the total concentration (n, 1)."""
        return (eta + 1.0).sum(axis=1, keepdims=True)

    def reweighted(self, eta: Array, factors: Array) -> Array:
        """Multiply the concentrations; their total does not fall below 1."""
        total = self.information(eta)
        return np.asarray(np.maximum(factors, 1.0 / np.maximum(total, 1.0)) * (eta + 1.0) - 1.0)

    def location_part(self, eta: Array) -> Array:
        """Return the concentrations: all there is."""
        return eta + 1.0

    def location_information(self, eta: Array) -> Array:
        """Return the total concentration (n,)."""
        return np.asarray((eta + 1.0).sum(axis=1))

    def dispersions(self, eta: Array, groups: CopyGroups) -> tuple[Dispersion, ...]:
        """Return how much proportions differ, the concentrations being counts."""
        return (ProportionDispersion(groups, np.maximum(eta + 1.0, 0.0)),)  # less a prior, zero may be -1e-17

    def with_spread(self, eta: Array, spread: Array) -> Array:
        """Return the mean probabilities of `eta` with the total concentration of `spread`.

        Topic models predict by E[log p], which a small total takes far below log E[p] for all but the commonest words.
        """
        alpha = eta + 1.0
        scaled = alpha * (self.location_information(spread) / alpha.sum(axis=1))[:, None]
        return np.maximum(scaled, _MIN_CONCENTRATION) - 1.0

    def mean_intervals(self, eta: Array, level: float) -> tuple[Array, Array, Array]:
        """Return mean probabilities and the central intervals of their Beta distributions."""
        alpha = eta + 1.0
        total = alpha.sum(axis=1, keepdims=True)
        rest = np.maximum(total - alpha, _MIN_CONCENTRATION)
        low, high = (betaincinv(alpha, rest, 0.5 + sign * 0.5 * level) for sign in (-1.0, 1.0))
        return alpha / total, low, high

    def observed(self, eta: Array, heterogeneity: Array) -> Array:
        """Return the normaliser that gives each row, at its own mean p, the Dirichlet-multinomial probability.

        A site's probabilities are Dirichlet around the common ones with concentration c = 1 / h, its n observations
        are draws from them, of which category v has n p_v:

            log P = log Gamma(c) - log Gamma(c + n) + sum_v log Gamma((c + n) p_v) - log Gamma(c p_v)

        The likelihood exp(<alpha', log theta> - observed) equals P at theta = p, with alpha' = n' p discounted as in
        ``reweighted``. Categories that are hardly seen make a density of p meaningless, not this probability. One
        that is seen less than once adds that part of its term: if never seen that would be log c / (c + n), where the
        probability of no draw has none. It charges heterogeneity where it has no copies to explain: topics that differ
        much between sites stay apart, which is what predicts held-out words (docs/concepts/number.md).
        """
        total = self.information(eta)[:, 0]  # n
        means = (eta + 1.0) / total[:, None]  # p (n, V)
        concentration = 1.0 / float(heterogeneity[0])  # c
        discounted = np.maximum(total / (1.0 + total / concentration), 1.0)  # n' = n / (1 + n h), at least 1
        category_terms = gammaln((concentration + total)[:, None] * means) - gammaln(concentration * means)
        category_terms = np.sum(np.minimum(eta + 1.0, 1.0) * category_terms, axis=1)
        log_probability = gammaln(concentration) - gammaln(concentration + total) + category_terms
        return np.asarray(discounted * np.sum(means * np.log(means), axis=1) - log_probability)

    def law_of(self, eta: Array) -> Array:
        """Return the distribution with the mean and the total variance of the rows' probabilities.

        A Dirichlet of mean p and total t has total variance sum_v p_v (1 - p_v) / (1 + t), which is solved for t. The
        logarithms of the probabilities, which are the family's own moments, are dominated by what a row has hardly
        seen.
        """
        eta = np.asarray(eta)
        total = self.information(eta)  # (n, 1)
        means = (eta + 1.0) / total  # (n, V)
        centre = means.mean(axis=0)
        single_draw = np.sum(centre * (1.0 - centre))  # total variance at t = 0, of one draw
        within = np.mean(np.sum(means * (1.0 - means), axis=1) / (1.0 + total[:, 0]))
        variance = np.mean(np.sum((means - centre) ** 2, axis=1)) + within  # between rows, plus the mean within them
        return np.asarray(centre * max(single_draw / variance - 1.0, _MIN_TOTAL) - 1.0)

    def without_prior(self, eta: Array, prior: Array) -> Array:
        """Return the rows with one token of their prior, in its own proportions, or all of a smaller one.

        A prior of a tenth over six thousand words is six hundred tokens that nobody has seen, on which all sites agree.
        Without any, a row that lacks a category would be no member, and infinitely far from one that has it.
        """
        concentration = prior + 1.0
        kept = 1.0 / np.maximum(concentration.sum(axis=1, keepdims=True), 1.0)
        return np.maximum(eta - (1.0 - kept) * concentration, kept * concentration - 1.0)

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Rows with a concentration that is not positive."""
        is_bad = eta <= -1.0
        bad, text = np.flatnonzero(is_bad.any(axis=1)), "has a concentration that is not positive"
        return [(int(i), f"{text} (category {int(np.argmax(is_bad[i]))})") for i in bad]

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return ``value`` (size, n, V): probability vectors."""
        draws = rng.gamma(eta + 1.0, size=(size, *eta.shape))  # Gammas scaled to sum to one are a Dirichlet draw
        return {"value": draws / draws.sum(axis=-1, keepdims=True)}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return log pi."""
        return np.asarray(np.log(draws["value"]))


@dataclass(frozen=True)
class Dirichlet(_SimplexFamily):
    """Dirichlet on V categories; eta = alpha - 1, T = log pi, P = V. Concentrations below 1e-8 are raised to it.

    Parameters
    ----------
    dim
        Number of categories V (the size of the vocabulary, for a topic).

    Examples
    --------
    >>> family = Dirichlet(dim=3)
    >>> eta = family.to_natural(concentration=[[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])
    >>> family.kl(eta, eta).round(4)
    array([[0.    , 0.3713],
           [0.2261, 0.    ]])
    """

    dim: int
    name: ClassVar[str] = "dirichlet"

    @property
    def size(self) -> int:
        """Length P = V of a row of natural parameters."""
        return self.dim

    def to_natural(self, *, concentration: ArrayLike) -> Array:
        """Return eta (n, V) from concentrations (n, V)."""
        return np.maximum(as_rows("concentration", concentration, self.dim), _MIN_CONCENTRATION) - 1.0

    def from_natural(self, eta: Array) -> Parameters:
        """Return ``concentration`` (n, V)."""
        return {"concentration": eta + 1.0}


@dataclass(frozen=True)
class Beta(_SimplexFamily):
    """Beta distribution of a proportion, the Dirichlet of two categories; eta = (a - 1, b - 1)."""

    name: ClassVar[str] = "beta"

    @property
    def size(self) -> int:
        """Length P = 2 of a row of natural parameters."""
        return 2

    def to_natural(self, *, a: ArrayLike, b: ArrayLike) -> Array:
        """Return eta (n, 2) from a and b (n,)."""
        return np.maximum(np.stack([as_vector("a", a), as_vector("b", b)], axis=1), _MIN_CONCENTRATION) - 1.0

    def from_natural(self, eta: Array) -> Parameters:
        """Return ``a`` and ``b`` (n,)."""
        return {"a": eta[:, 0] + 1.0, "b": eta[:, 1] + 1.0}
