"""Answers to a request as a vector of sums: federated expectation maximisation, refinement and fourth moments.

The reduction of the masked sum is that of one site that has the rows of all: kinds whose answers are sums state the
shapes and units of these (`RequestKind.sums`), and need no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import consilience as cs
from consilience.checks import Json
from consilience.errors import InputError, UnsupportedError
from consilience.federated.masking.fixed_point import Words, decode, encode
from consilience.federated.masking.summands import Summand, SumResult
from consilience.federated.requests.base import Answer, Content, RoundRequest
from consilience.federated.requests.exchange import answer, reduce
from consilience.federated.requests.table import request_kind

ALL_SITES = "all sites"
"""What reductions call the one answer that the sum is."""


@dataclass(frozen=True, eq=False)
class MaskedSiteRows:
    """What a site answers requests from."""

    data: Any  # its rows
    min_count: float  # a sum over fewer observations does not leave the site


class RequestSum(Summand):
    """Sums that answer a request.

    Raises UnsupportedError for a kind whose answers are no sums.
    """

    name: ClassVar[str] = "request"

    def __init__(self, request: RoundRequest) -> None:
        self.request = request
        sums = request_kind(request.kind).sums(request)
        if sums is None:
            text = "answers to it are not plain sums, so that they cannot be masked"
            raise UnsupportedError(request.kind, text, "let sites answer openly, in a round that is not masked")
        self.sums = dict(sorted(sums.items()))

    @property
    def length(self) -> int:
        """Number L of numbers: sums, rows, and how many sums were withheld."""
        return sum(prod(shape) for shape, _ in self.sums.values()) + 2

    @property
    def content(self) -> Mapping[str, Json]:
        """Which request it is."""
        return {"request": self.request.digest, "number": self.request.number, "rounds": self.request.rounds}

    def words(self, source: Any, n_sites: int, fractional_bits: int) -> Words:
        """Return a site's sums in fixed point; see `Summand.words`."""
        answered = answer(self.request, source.data, min_count=source.min_count)
        parts = [
            np.ldexp(answered.content.arrays[name].ravel(), -exponent) for name, (_, exponent) in self.sums.items()
        ]
        withheld = float(answered.content.fields.get("withheld", 0))
        return encode(np.concatenate([*parts, [answered.n_observations, withheld]]), n_sites, fractional_bits)

    def result(self, words: Words, sites: Sequence[str], plan: Mapping[str, Json], fractional_bits: int) -> SumResult:
        """Return what the request comes to; see `Summand.result`."""
        del plan
        values, offset, arrays = decode(words, fractional_bits), 0, {}
        for name, (shape, exponent) in self.sums.items():
            size = prod(shape)
            arrays[name] = np.ldexp(values[offset : offset + size].reshape(shape), exponent)
            offset += size
        n, withheld = round(values[-2]), round(values[-1])
        if n < 1:
            raise InputError("the sum of all sites", "has no rows", code="E-SHAPE")
        kind = request_kind(self.request.kind)
        fields = {"withheld": withheld} if kind.counts_withheld else {}
        whole = Answer(kind.name, self.request.number, self.request.digest, n, 0.0, Content(fields, arrays))
        return SumResult(reduce(self.request, {ALL_SITES: whole}), {"n_observations": n})

    def save(self, result: SumResult, path: Path) -> None:
        """Write the finished model; see `finish`, which makes it."""
        cs.save(result.model, path)
