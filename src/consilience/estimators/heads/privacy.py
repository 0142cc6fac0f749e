"""The analytic Gaussian mechanism for sums of features (Balle and Wang 2018, Theorem 8).

Normal noise of deviation s on a vector whose Euclidean length one person changes by D at most is (epsilon, delta)
differentially private if and only if

    Phi(D / (2 s) - epsilon s / D) - e^epsilon Phi(-D / (2 s) - epsilon s / D)  <=  delta.

The left side falls in s, so that the least s is a root. What a site sends of features of norm 1 at most are counts,
sums by class and products, off-diagonal entries of these twice: adding or leaving out a person changes this vector by
sqrt(1 + 1 + 1) at most, since |phi phi^T|_F = |phi|^2. Products take half of the variance off their diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from consilience.checks import Array, is_number
from consilience.errors import InputError, OptionError

SENSITIVITY = sqrt(3.0)
"""Of counts, sums and products of features of norm 1 to one person, added or left out."""


def gaussian_delta(scale: float, epsilon: float, sensitivity: float = 1.0) -> float:
    """Return the least delta for which normal noise is (epsilon, delta) differentially private.

    Parameters
    ----------
    scale : float
        Deviation s of the noise.
    epsilon : float
        Not negative.
    sensitivity : float, optional
        D. Default: 1.
    """
    ratio = sensitivity / scale
    first, second = 0.5 * ratio - epsilon / ratio, -0.5 * ratio - epsilon / ratio
    return max(exp(log_ndtr(first)) - exp(epsilon + log_ndtr(second)), 0.0)


def gaussian_scale(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return the least deviation of normal noise that is (epsilon, delta) differentially private.

    Parameters
    ----------
    epsilon : float
        Positive.
    delta : float
        Between 0 and 1.
    sensitivity : float, optional
        Largest change of the vector's Euclidean length by one person. Default: 1.

    Raises
    ------
    OptionError
        For numbers outside these ranges.

    Examples
    --------
    >>> round(gaussian_scale(1.0, 1e-5), 3)
    3.731
    """
    for name, value, most in (
        ("epsilon", epsilon, np.inf),
        ("delta", delta, 1.0),
        ("sensitivity", sensitivity, np.inf),
    ):
        if not is_number(value) or not 0.0 < value < most:
            text = f"expected a number above 0{'' if most == np.inf else ' and below 1'}, found {value!r}"
            raise OptionError(name, text)

    def excess(log_scale: float) -> float:
        return gaussian_delta(exp(log_scale), epsilon) - delta

    low, high = -1.0, 1.0
    while excess(low) < 0.0:
        low -= 2.0
    while excess(high) > 0.0:
        high += 2.0
    return sensitivity * exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-15))


@dataclass(frozen=True)
class GaussianMechanism:
    """Noise on the sums of one site: (epsilon, delta) differential privacy of each of its rows.

    Parameters
    ----------
    epsilon : float
        Positive; smaller is more private.
    delta : float, optional
        Default: 1e-5. It should be well below one over the number of rows.
    norm_bound : float, optional
        Features are divided by it and cut to norm 1. It is public and the same at all sites; never take the largest
        norm of the data. Default: 1, for features that have norm 1.

    Examples
    --------
    >>> round(GaussianMechanism(epsilon=1.0).scale, 2)
    6.46
    """

    epsilon: float
    delta: float = 1e-5
    norm_bound: float = 1.0

    def __post_init__(self) -> None:
        gaussian_scale(self.epsilon, self.delta)
        if not is_number(self.norm_bound) or self.norm_bound <= 0:
            raise OptionError("norm_bound", f"expected a positive number, found {self.norm_bound!r}")

    @property
    def scale(self) -> float:
        """Deviation s of the noise on each count and sum, and on the squares of the features."""
        return gaussian_scale(self.epsilon, self.delta, SENSITIVITY)

    def disturb(self, counts: Array, sums: Array, products: Array, rng: np.random.Generator) -> tuple[Array, ...]:
        """Return counts (C,), sums (C, d) and products (d, d) with noise; counts are rounded, which tells nothing more.

        It raises where noise leaves no class with a positive count.
        """
        s = self.scale
        noisy_counts = np.rint(counts + s * rng.standard_normal(counts.shape))
        noisy_sums = sums + s * rng.standard_normal(sums.shape)
        triangle = np.triu(rng.standard_normal(products.shape), 1) * (s / sqrt(2.0))
        noisy_products = products + triangle + triangle.T + np.diag(s * rng.standard_normal(len(products)))
        if not np.any(noisy_counts > 0):
            text = "is larger than every count of this site"
            raise InputError("noise", text, "take a larger epsilon, or join sites", "E-FEW")
        return noisy_counts, noisy_sums, noisy_products
