"""Scalar functions that stay accurate where the textbook formula cancels.

Everything here is a Bregman divergence ``f(b) - f(a) - f'(a) (b - a)`` of a convex scalar function, which is what the
Kullback-Leibler divergence of an exponential family is made of. For `a` near `b` the textbook form subtracts nearly
equal numbers; these forms are sums of non-negative terms. With ``h(u) = u - log(1 + u)``:

- of ``-log x``: ``h((b - a) / a)``;
- of ``x log x``: ``b h((a - b) / b)``;
- of ``log Gamma``: the one of ``x log x`` plus half the one of ``-log x`` plus that of Binet's function, which is
  ``1 / (12 x)`` to first order (Stirling's series).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from scipy.special import digamma, gammaln, polygamma

from consilience.checks import Array

_HALF_LOG_TWO_PI: Final = 0.5 * np.log(2.0 * np.pi)
_BERNOULLI: Final = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_BINET: Final = tuple(b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1))
_BINET_SLOPE: Final = tuple(b / (2 * k) for k, b in enumerate(_BERNOULLI, 1))
_STIRLING_FROM: Final = 10.0
_NEAR: Final = 0.02
_LEGENDRE = np.polynomial.legendre.leggauss(4)
_NODES: Final = (1.0 + _LEGENDRE[0]) / 2.0
_NODE_WEIGHTS: Final = _LEGENDRE[1] / 2.0
_ATANH_TERMS: Final = 12
_ROOT_STEPS: Final = 120
_SPLITTER: Final = 2.0**27 + 1.0


def u_minus_log1p(u: Array) -> Array:
    """Return ``h(u) = u - log(1 + u)`` for ``u > -1``, accurate to a few units in the last place also near 0.

    Near 0 it uses ``log(1 + u) = 2 artanh(u / (2 + u))``, whose first term is taken off exactly.

    Examples
    --------
    >>> float(log_excess(np.array(1e-9)) / 0.5e-18)
    0.999999999...
    """
    u = np.asarray(u, dtype=np.float64)
    near = np.abs(u) < 0.3
    small = np.where(near, u, 0.0)
    t = small / (2.0 + small)
    square = t * t
    tail = np.zeros_like(square)
    for k in range(_ATANH_TERMS, 0, -1):
        tail = (tail + 1.0 / (2 * k + 1)) * square
    series = small * small / (2.0 + small) - 2.0 * t * tail
    large = np.where(near, 1.0, u)
    return np.where(near, series, large - np.log1p(large))


def itakura_saito(change: Array, b: Array, a: Array) -> Array:
    """Return ``h(b / a - 1)`` for positive `a` and `b` with ``b - a = change``.

    `change` gives the digits where `a` is near `b`; the logarithm of the ratio gives them where the two are far apart,
    since ``1 + u`` loses them for `u` near -1.
    """
    u = change / a
    far = np.abs(u) > 0.5
    ratio = np.where(far, b / a, 1.0)
    return np.where(far, ratio - 1.0 - np.log(ratio), u_minus_log1p(np.where(far, 0.0, u)))


def subtract_quotients(first: Array, pairs: Sequence[tuple[Array, Array]], divisor: Array) -> Array:
    """Return ``first`` minus the sum of ``x y / divisor`` over pairs, accurate also where they nearly cancel.

    Every product, division and sum is split into its rounded value and its error (Dekker 1971); the errors are added
    at the end.
    """
    high, low = first, np.zeros_like(first)
    for x, y in pairs:
        product, product_error = _two_product(x, y)
        quotient = product / divisor
        back, back_error = _two_product(quotient, divisor)
        left = (product - back) - back_error + product_error
        total = high - quotient
        shadow = total - high
        low = low + ((high - (total - shadow)) - (quotient + shadow)) - left / divisor
        high = total
    result: Array = high + low
    return result


def _two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the rounded product and its exact error, by Veltkamp splitting."""
    product = x * y
    x_high, x_low = _halves(x)
    y_high, y_low = _halves(y)
    error = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    return product, error


def _halves(x: Array) -> tuple[Array, Array]:
    scaled = x * _SPLITTER
    high = scaled - (scaled - x)
    return high, x - high


def generalised_kl(b: Array, a: Array) -> Array:
    """Return ``b log(b / a) - b + a``, the Bregman divergence of ``x log x``, for positive `a` and `b`."""
    return b * itakura_saito(a - b, a, b)


def gamma_bregman(b: Array, a: Array) -> Array:
    """Return the Bregman divergence of ``log Gamma(x) - x log x`` at `b` from `a`, both positive.

    It is what remains of a Gamma, Wishart or Dirichlet divergence once the part that depends on ratios of means is
    split off, and it is of the size of the (squared) relative difference whatever the size of `a` and `b`.

    Examples
    --------
    >>> bool(gamma_bregman(np.array([2e6]), np.array([1e6]))[0] < 0.2)
    True
    """
    a, b = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
    result = 0.5 * itakura_saito(b - a, b, a)
    near = np.abs(b - a) < _NEAR * a
    far = ~near
    if np.any(near):
        result[near] += _taylor_remainder(b[near], a[near], _binet_curvature)
    if np.any(far):
        result[far] += _binet(b[far]) - _binet(a[far]) - (b[far] - a[far]) * _binet_slope(a[far])
    return result


def shifted_gamma_bregman(b: Array, a: Array, below: Array) -> Array:
    """Return the Bregman divergence of ``log Gamma(x - below) - x log x`` at `b` from `a`, both above `below`.

    One term of the multivariate gamma function of a Wishart of dimension above 1. The rest is the divergence of
    ``(x - below) log(x - below) - x log x``, whose second derivative ``below / (x (x - below))`` is positive.
    """
    a, b, below = np.broadcast_arrays(a, b, below)
    low_a, low_b = a - below, b - below
    rest = generalised_kl(low_b, low_a) - generalised_kl(b, a)
    near = np.abs((b - a) / low_a) < _NEAR
    if np.any(near):
        step = below[near][:, None]
        rest[near] = _taylor_remainder(b[near], a[near], lambda x: step / (x * (x - step)))
    result: Array = rest + gamma_bregman(low_b, low_a)
    return result


def _taylor_remainder(b: Array, a: Array, curvature: Callable[[Array], Array]) -> Array:
    """Return ``(b - a)^2 int_0^1 (1 - t) f''(a + t (b - a)) dt`` for `b` near `a`, by Gauss-Legendre quadrature."""
    points = a[:, None] + _NODES * (b - a)[:, None]
    result: Array = np.sum(_NODE_WEIGHTS * (1.0 - _NODES) * curvature(points), axis=1) * (b - a) ** 2
    return result


def _binet(x: Array) -> Array:
    """Binet's function ``log Gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2``."""
    z = np.minimum(x, _STIRLING_FROM)
    direct = gammaln(z) - (z - 0.5) * np.log(z) + z - _HALF_LOG_TWO_PI
    return np.where(x < _STIRLING_FROM, direct, _stirling(x, _BINET))


def _binet_slope(x: Array) -> Array:
    """First derivative of Binet's function."""
    z = np.minimum(x, _STIRLING_FROM)
    direct = digamma(z) - np.log(z) + 0.5 / z
    y = np.maximum(x, _STIRLING_FROM)
    return np.where(x < _STIRLING_FROM, direct, -_stirling(x, _BINET_SLOPE) / y)


def _binet_curvature(x: Array) -> Array:
    """Second derivative of Binet's function."""
    z = np.minimum(x, _STIRLING_FROM)
    direct = polygamma(1, z) - 1.0 / z - 0.5 / (z * z)
    y = np.maximum(x, _STIRLING_FROM)
    return np.where(x < _STIRLING_FROM, direct, _stirling(x, _BERNOULLI) / y / y)


def _stirling(x: Array, coefficients: Sequence[float]) -> Array:
    """Sum of ``c_k / x^(2 k - 1)`` over k = 1, 2, ..., by Horner's scheme, for large `x`."""
    inverse = 1.0 / np.maximum(x, _STIRLING_FROM)
    square = inverse * inverse
    total = np.zeros_like(square)
    for coefficient in reversed(coefficients):
        total = total * square + coefficient
    return total * inverse


def log_minus_digamma(x: Array) -> Array:
    """Return ``log x - psi(x)`` for positive `x`, without cancellation for large `x`."""
    return 0.5 / x - _binet_slope(x)


def decreasing_root(function: Callable[[Array], tuple[Array, Array]], start: Array) -> Array:
    """Return, for every entry, the root in [-700, 700] of a decreasing function: Newton kept inside a bracket.

    Parameters
    ----------
    function
        Takes points (n,) and returns values and slopes (n,).
    start
        First guess (n,).
    """
    low, high = np.full_like(start, -700.0), np.full_like(start, 700.0)
    point = np.clip(start, low, high)
    for _ in range(_ROOT_STEPS):
        with np.errstate(all="ignore"):  # a bracket may be wide enough to overflow
            value, slope = function(point)
        low, high = np.where(value >= 0, point, low), np.where(value <= 0, point, high)
        with np.errstate(all="ignore"):
            newton = point - value / slope
        inside = np.isfinite(newton) & (newton > low) & (newton < high)
        step = np.where(inside, newton, (low + high) / 2.0)
        moved = np.abs(step - point) > 4e-16 * np.maximum(1.0, np.abs(point))
        point = np.where(value == 0, point, step)
        if not np.any(moved & (value != 0)):
            break
    return point


def gamma_shape(gap: Array) -> Array:
    """Return the shape `a` with ``log a - psi(a) = gap`` (n,): the Gamma of given E x and E log x."""

    def function(z: Array) -> tuple[Array, Array]:
        a = np.exp(z)
        return log_minus_digamma(a) - gap, 1.0 - a * polygamma(1, a)

    start = np.log((3.0 - gap + np.sqrt((gap - 3.0) ** 2 + 24.0 * gap)) / (12.0 * gap))
    return np.exp(decreasing_root(function, start))


def inverse_digamma(y: Array) -> Array:
    """Return `x` with ``psi(x) = y`` (Minka's start, five Newton steps)."""
    upper = np.minimum(y, 700.0)
    x = np.where(y >= -2.22, np.exp(upper) + 0.5, -1.0 / np.minimum(y + np.euler_gamma, -1e-3))
    for _ in range(5):
        x = x - (digamma(x) - y) / polygamma(1, x)
    return np.asarray(x, dtype=np.float64)
