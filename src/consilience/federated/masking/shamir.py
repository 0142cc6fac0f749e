"""Shamir's secret sharing over the field of 2^521 - 1 elements: any T shares give the secret, fewer nothing.

The secret is f(0) of a polynomial of degree T - 1 whose other coefficients are random, and the share of party x is f(x)
(Shamir, How to share a secret, 1979).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from consilience.errors import InputError

PRIME = 2**521 - 1
"""A Mersenne prime: division by it is a shift and an addition."""
ELEMENT_BYTES = 66

_LAZY_STEPS = 64
"""Steps of Horner's rule between two reductions: numbers grow by the bits of x in each."""


def element(data: bytes) -> int:
    """Return a field element of 66 random bytes: their last 521 bits."""
    return (int.from_bytes(data, "little") & PRIME) % PRIME


def share(secret: int, coefficients: Sequence[int], parties: Sequence[int]) -> list[int]:
    """Return f(x) for every party x, with f(0) the secret and f of degree ``len(coefficients)``.

    Parameters
    ----------
    secret : int
        Below `PRIME`.
    coefficients : sequence of int
        T - 1 random elements.
    parties : sequence of int
        Distinct positive numbers below 2^16.
    """
    highest_first = [*reversed(coefficients), secret]
    shares = []
    for x in parties:
        value = 0
        for step, coefficient in enumerate(highest_first):
            value = value * x + coefficient
            if step % _LAZY_STEPS == _LAZY_STEPS - 1:
                value %= PRIME
        shares.append(value % PRIME)
    return shares


def lagrange_at_zero(parties: Sequence[int]) -> list[int]:
    """Return the weights with which shares of these parties add up to the secret: prod_{y != x} y / (y - x)."""
    product = 1
    for x in parties:
        product = product * x % PRIME
    weights = []
    for x in parties:
        denominator = x
        for y in parties:
            if y != x:
                denominator = denominator * (y - x) % PRIME
        weights.append(product * pow(denominator, -1, PRIME) % PRIME)
    return weights


def combine(shares: Mapping[int, int], threshold: int) -> int:
    """Return the secret, from the shares of the first T parties.

    Raises
    ------
    InputError
        For fewer than `threshold` shares.

    Examples
    --------
    >>> shares = dict(zip((1, 2, 3), share(42, [7], (1, 2, 3))))
    >>> combine({party: shares[party] for party in (1, 3)}, 2)
    42
    """
    if len(shares) < threshold:
        raise InputError("", f"{len(shares)} shares, and {threshold} make the secret", code="E-ROUND")
    parties = sorted(shares)[:threshold]
    weights = lagrange_at_zero(parties)
    return sum(weight * shares[party] for weight, party in zip(weights, parties, strict=True)) % PRIME


def element_bytes(value: int) -> bytes:
    """Return a field element as 66 bytes."""
    return value.to_bytes(ELEMENT_BYTES, "little")
