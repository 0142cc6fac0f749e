"""Bregman divergences of scalar functions, and roots of digamma equations, without cancellation.

The Kullback-Leibler divergence of an exponential family is a Bregman divergence of its log normaliser,

    d_f(b, a) = f(b) - f(a) - f'(a) (b - a)    for convex f,

and for Gaussians, Gammas, Dirichlets and Wisharts it splits into divergences of scalars. For `a` near `b` the textbook
form subtracts nearly equal numbers: the divergence is of the size of (b - a)^2, its terms are of the size of f. The
forms below are sums of non-negative terms, each accurate to some units in the last place. With h(u) = u - log(1 + u):

    d_{-log}(b, a)            = h((b - a) / a)                        Itakura-Saito
    d_{x log x}(b, a)         = b h((a - b) / b)                      generalised Kullback-Leibler
    d_{log Gamma - x log x}   = d_{-log} / 2 + d_mu                   mu: Binet's function, 1 / (12 x) to first order

The last line follows from log Gamma(x) = (x - 1/2) log x - x + log(2 pi) / 2 + mu(x).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from scipy.special import digamma, gammaln, zeta

from consilience.checks import Array

_HALF_LOG_TWO_PI: Final = 0.5 * np.log(2.0 * np.pi)

_BERNOULLI: Final = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""Bernoulli numbers B_2, B_4, ..., B_16: the coefficients of mu''(x), in odd powers of 1 / x with 1 / x^2 in front."""

# Stirling's series: mu(x) = sum_k B_2k / (2 k (2 k - 1) x^(2 k - 1)), and its first derivative.
_BINET: Final = tuple(b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1))
_BINET_SLOPE: Final = tuple(b / (2 * k) for k, b in enumerate(_BERNOULLI, 1))

_STIRLING_FROM: Final = 10.0
"""From here on Stirling's series is used: the first term left out, B_18 / (18 17 x^17), is 2e-18 there."""

_SHIFT: Final = 10
"""By how much ``sum_of_log_gammas`` moves its numbers up: the series of five terms is exact to 1e-14 from there on."""

_CACHED_NUMBERS: Final = 2**14
"""Numbers of one block, 128 KiB: a few such arrays fit into the cache of one core. Chosen by hand."""

_SERIES_RADIUS: Final = 0.3
"""Where ``u_minus_log1p`` uses its series. For larger |u| the direct form loses a digit at most."""

_ATANH_TERMS: Final = 12
"""For |u| <= 0.3, t = u / (2 + u) has t^2 <= 0.031, and the first term left out is below 1e-18 of the first kept."""

_RATIO_NEAR: Final = 0.5
"""Relative change up to which ``itakura_saito`` takes 1 + u as exact enough: u = -1/2 costs one bit. Chosen by hand."""

_TAYLOR_RADIUS: Final = 0.02
"""Relative change below which a divergence is an integral of the second derivative. With four nodes the error of the
integral is of order 0.02^8 = 3e-14 of it; above, the direct form loses the digits of 0.02^2 at most. Chosen by hand
between the two."""

_LEGENDRE = np.polynomial.legendre.leggauss(4)
_NODES: Final = (1.0 + _LEGENDRE[0]) / 2.0  # moved from [-1, 1] to [0, 1]
_NODE_WEIGHTS: Final = _LEGENDRE[1] / 2.0

_LOG_RANGE: Final = 700.0
"""Roots are sought among logarithms up to this size: exp(710) overflows."""

_MAX_ROOT_STEPS: Final = 120
"""A bound that is not reached: bisection alone needs 62 steps to halve [-700, 700] down to rounding."""

_ROOT_ROUNDING: Final = 4e-16
"""Relative change at which a root stands still: two units in the last place."""

_LAST_NEWTON_STEP: Final = 1e-8
"""Relative change after which a step of Newton's method was the last one: its error is of the size of the square."""

_SPLITTER: Final = 2.0**27 + 1.0
"""Veltkamp's constant: it cuts a float64 of 53 bits into two halves whose products are exact."""


def u_minus_log1p(u: Array) -> Array:
    """Return ``h(u) = u - log(1 + u)`` for ``u > -1``, accurate to a few units in the last place also near 0.

    Near 0 it uses ``log(1 + u) = 2 artanh(t)``, ``t = u / (2 + u)``, whose first term is taken off exactly:
    ``u - 2 t = u^2 / (2 + u)``.

    Examples
    --------
    >>> float(u_minus_log1p(np.array(1e-9)) / 0.5e-18)
    0.999999999...
    """
    u = np.asarray(u, dtype=np.float64)
    near = np.abs(u) < _SERIES_RADIUS
    small = np.where(near, u, 0.0)
    t = small / (2.0 + small)
    square = t * t
    # Horner's scheme for artanh(t) / t - 1 = t^2 / 3 + t^4 / 5 + ...
    tail = np.zeros_like(square)
    for k in range(_ATANH_TERMS, 0, -1):
        tail = (tail + 1.0 / (2 * k + 1)) * square
    series = small * small / (2.0 + small) - 2.0 * t * tail
    large = np.where(near, 1.0, u)  # 1 is a stand-in where the series is taken
    return np.where(near, series, large - np.log1p(large))


def itakura_saito(change: Array, b: Array, a: Array) -> Array:
    """Return the Itakura-Saito divergence ``b / a - log(b / a) - 1 = h(b / a - 1)`` of positive `b` from `a`.

    It is the Bregman divergence of ``-log x``. `change` must be ``b - a``: the caller often knows it to more digits
    than the difference of the rounded `b` and `a` has. It gives the digits where `a` is near `b`; the logarithm of the
    ratio gives them where the two are far apart, since ``1 + u`` loses them for u near -1.
    """
    u = change / a
    is_far = np.abs(u) > _RATIO_NEAR
    ratio = np.where(is_far, b / a, 1.0)
    return np.where(is_far, ratio - 1.0 - np.log(ratio), u_minus_log1p(np.where(is_far, 0.0, u)))


def subtract_quotients(first: Array, factors: Sequence[tuple[Array, Array]], divisor: Array) -> Array:
    """Return ``first`` minus the sum of ``x y / divisor`` over `factors` (x, y), also where they nearly cancel.

    Every product, division and sum is split into its rounded value and its error (Dekker 1971); the errors are added
    at the end. It recovers W^-1 from ``W^-1 + kappa m m^T`` where the mean m is far from the origin.
    """
    high, low = first, np.zeros_like(first)
    for x, y in factors:
        product, product_error = _two_product(x, y)
        quotient = product / divisor
        back, back_error = _two_product(quotient, divisor)
        remainder = (product - back) - back_error + product_error  # x y - quotient * divisor, exactly before rounding
        # Knuth's two-sum of high and -quotient: `total` plus the bracket is their exact difference.
        total = high - quotient
        virtual = total - high
        low = low + ((high - (total - virtual)) - (quotient + virtual)) - remainder / divisor
        high = total
    return np.asarray(high + low)


def _two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the rounded product and its exact error, by Veltkamp splitting."""
    product = x * y
    x_high, x_low = _split_in_halves(x)
    y_high, y_low = _split_in_halves(y)
    # The order of these four terms is Dekker's: each partial sum is exact.
    error = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    return product, error


def _split_in_halves(x: Array) -> tuple[Array, Array]:
    """Return the leading 26 bits of `x` and the rest, which add up to it exactly."""
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
    result = 0.5 * itakura_saito(b - a, b, a)  # of -log(x) / 2
    near = np.abs(b - a) < _TAYLOR_RADIUS * a
    apart = ~near
    # of Binet's function mu, which is convex and small, so that the direct form loses few digits of the sum
    if np.any(near):
        result[near] += _taylor_remainder(b[near], a[near], _binet_curvature)
    if np.any(apart):
        result[apart] += _binet(b[apart]) - _binet(a[apart]) - (b[apart] - a[apart]) * _binet_slope(a[apart])
    return result


def shifted_gamma_bregman(b: Array, a: Array, shift: Array) -> Array:
    """Return the Bregman divergence of ``log Gamma(x - shift) - x log x`` at `b` from `a`, both above `shift`.

    One term of the multivariate gamma function of a Wishart of dimension above 1: log Gamma_D(x) is the sum of
    log Gamma(x - d / 2) over d = 0, ..., D - 1. With g(x) = log Gamma(x) - x log x it is g(x - shift) plus
    ``(x - shift) log(x - shift) - x log x``, whose second derivative ``shift / (x (x - shift))`` is positive.
    """
    a, b, shift = np.broadcast_arrays(a, b, shift)
    low_a, low_b = a - shift, b - shift
    # Two divergences of x log x, which nearly cancel where `a` is near `b`; there it is integrated instead.
    logarithmic = generalised_kl(low_b, low_a) - generalised_kl(b, a)
    near = np.abs((b - a) / low_a) < _TAYLOR_RADIUS
    if np.any(near):
        s = shift[near][:, None]
        logarithmic[near] = _taylor_remainder(b[near], a[near], lambda x: s / (x * (x - s)))
    return np.asarray(logarithmic + gamma_bregman(low_b, low_a))


def _taylor_remainder(b: Array, a: Array, curvature: Callable[[Array], Array]) -> Array:
    """Return d_f(b, a) = ``(b - a)^2 int_0^1 (1 - t) f''(a + t (b - a)) dt`` for `b` near `a`, by Gauss-Legendre."""
    points = a[:, None] + _NODES * (b - a)[:, None]  # (n, nodes)
    return np.asarray(np.sum(_NODE_WEIGHTS * (1.0 - _NODES) * curvature(points), axis=1) * (b - a) ** 2)


# Binet's function and its derivatives: directly up to `_STIRLING_FROM`, where the direct form begins to cancel, and by
# Stirling's series beyond. Each branch sees arguments clipped to its own side, so that neither overflows.


def _binet(x: Array) -> Array:
    """Binet's function mu(x) = ``log Gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2``."""
    z = np.minimum(x, _STIRLING_FROM)
    direct = gammaln(z) - (z - 0.5) * np.log(z) + z - _HALF_LOG_TWO_PI
    return np.where(x < _STIRLING_FROM, direct, _stirling(x, _BINET))


def _binet_slope(x: Array) -> Array:
    """First derivative of Binet's function, psi(x) - log x + 1 / (2 x)."""
    is_small = x < _STIRLING_FROM
    if not is_small.any():  # the other form is not needed
        return -_stirling(x, _BINET_SLOPE) / x
    z = np.minimum(x, _STIRLING_FROM)
    direct = digamma(z) - np.log(z) + 0.5 / z
    y = np.maximum(x, _STIRLING_FROM)
    return np.where(is_small, direct, -_stirling(x, _BINET_SLOPE) / y)


def _binet_curvature(x: Array) -> Array:
    """Second derivative of Binet's function, psi'(x) - 1 / x - 1 / (2 x^2)."""
    z = np.minimum(x, _STIRLING_FROM)
    direct = trigamma(z) - 1.0 / z - 0.5 / (z * z)
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


def sum_of_log_gammas(x: Array) -> Array:
    """Return sum_v log Gamma(x_v) of rows (n, V) of positive numbers (n,), in blocks that stay in the cache.

    Stirling's series at x + 10, less log(x (x + 1) ... (x + 9)): logarithms are vectorised, where log Gamma is not. The
    error is some units in the last place of the largest term.
    """
    sums = np.empty(len(x))
    chunk_rows = max(1, _CACHED_NUMBERS // max(1, x.shape[1]))
    for start in range(0, len(x), chunk_rows):
        chunk = x[start : start + chunk_rows]
        # x (x + 1) ... (x + 9) with q = x (x + 9): (x + k) (x + 9 - k) = q + k (9 - k).
        square = chunk + 9.0
        square *= chunk
        product = square.copy()
        for offset in (8.0, 14.0, 18.0, 20.0):
            product *= square + offset
        shifted = chunk + float(_SHIFT)
        inverse = 1.0 / shifted
        np.multiply(inverse, inverse, out=square)
        terms = np.full_like(square, _BINET[4])
        for coefficient in reversed(_BINET[:4]):
            terms *= square
            terms += coefficient
        terms *= inverse
        terms -= shifted
        terms -= np.log(product, out=product)
        logs = np.log(shifted)
        shifted -= 0.5
        logs *= shifted
        terms += logs
        sums[start : start + chunk_rows] = terms.sum(axis=1)
    return sums + x.shape[1] * _HALF_LOG_TWO_PI


def trigamma(x: Array) -> Array:
    """Return psi'(x) = zeta(2, x), as ``scipy.special.polygamma(1, x)`` does, which also computes psi(x)."""
    return np.asarray(zeta(2.0, x), dtype=np.float64)


def log_minus_digamma(x: Array) -> Array:
    """Return ``log x - psi(x)`` for positive `x`, without cancellation for large `x`."""
    return 0.5 / x - _binet_slope(x)


def decreasing_root(function: Callable[[Array], tuple[Array, Array]], start: Array) -> Array:
    """Return, for every entry, the root in [-700, 700] of a decreasing function: Newton's method inside a bracket.

    The function takes points (n,) and returns values and slopes (n,). A step that leaves the bracket is replaced by a
    bisection, so it converges from any start (n,); where there is no root inside, to an end of the interval.
    """
    low, high = np.full_like(start, -_LOG_RANGE), np.full_like(start, _LOG_RANGE)
    point = np.clip(start, low, high)
    with np.errstate(all="ignore"):  # a bracket may be wide enough to overflow
        for _ in range(_MAX_ROOT_STEPS):
            value, slope = function(point)
            low, high = np.where(value >= 0, point, low), np.where(value <= 0, point, high)
            newton = point - value / slope
            is_inside = (newton > low) & (newton < high)  # both are finite, NaN is not inside
            step = np.where(is_inside, newton, (low + high) / 2.0)
            rounding = np.where(is_inside, _LAST_NEWTON_STEP, _ROOT_ROUNDING)
            has_moved = np.abs(step - point) > rounding * np.maximum(1.0, np.abs(point))
            point = np.where(value == 0, point, step)
            if not (has_moved & (value != 0)).any():
                break
    return point


def gamma_shape(gap: Array) -> Array:
    """Return the shape `a` with ``log a - psi(a) = gap`` (n,), where gap = log E x - E log x of a Gamma."""

    def equation(z: Array) -> tuple[Array, Array]:
        a = np.exp(z)  # the logarithm of the shape is sought, so that it stays positive
        return log_minus_digamma(a) - gap, 1.0 - a * trigamma(a)

    # Minka's closed-form approximation of the root (2002), good to 1.5 %.
    start = np.log((3.0 - gap + np.sqrt((gap - 3.0) ** 2 + 24.0 * gap)) / (12.0 * gap))
    return np.exp(decreasing_root(equation, start))


def inverse_digamma(y: Array) -> Array:
    """Return `x` with ``psi(x) = y``, by Minka's start and five Newton steps.

    The start is that of T. Minka, Estimating a Dirichlet distribution (2000), appendix C: psi(x) is about log(x - 1/2)
    for large x and -1 / x - Euler's constant for small; the two meet near y = -2.22. Five steps reach 14 digits there.
    """
    upper = np.minimum(y, _LOG_RANGE)
    # The bound -1e-3 only keeps the branch that is not taken from dividing by zero.
    x = np.where(y >= -2.22, np.exp(upper) + 0.5, -1.0 / np.minimum(y + np.euler_gamma, -1e-3))
    for _ in range(5):
        x = x - (digamma(x) - y) / trigamma(x)
    return np.asarray(x, dtype=np.float64)
