"""The table of summands: what is summed of the files of a kind, and what is not, by a sentence.

Answers to a request (federated expectation maximisation, refinement and fourth moments) are summed too. The reduction
of their masked sum is that of one site that has the rows of all: kinds whose answers are sums state the shapes and
units of these (`RequestKind.sums`), and need no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import consilience as cs
from consilience.api.kinds import ESTIMATORS, NETWORKS, POSTERIORS, kind_of_file
from consilience.checks import Json
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.federated.masking.fixed_point import Words, decode, encode
from consilience.federated.masking.network_sum import EQUAL, NetworkSum, SumNoise
from consilience.federated.masking.plan import MaskedPlan
from consilience.federated.masking.statistics_sum import StatisticsSum
from consilience.federated.masking.summands import Summand, SumResult
from consilience.federated.requests.base import ALL_SITES, REQUEST_FORMAT, Answer, Content, RoundRequest, read_request
from consilience.federated.requests.exchange import answer, check_request, reduce
from consilience.federated.requests.table import request_kind
from consilience.files.safetensors_file import SafetensorsFile


@dataclass(frozen=True, eq=False)
class MaskedSiteRows:
    """What a site answers requests from."""

    data: Any  # its rows
    min_count: float  # a sum over fewer observations does not leave the site
    module: Any = None  # as for ``federated.answer``


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

    @property
    def state(self) -> str:
        """Digest of the request; see `Summand.state`."""
        return self.request.digest

    def warnings(self, plan: MaskedPlan) -> list[str]:
        """Return what a site that drops out between two sums costs; see `Summand.warnings`."""
        if self.request.rounds == 1:
            return []
        return [
            "all sums are of the sites of the first one: a site that drops out later ends the requests, and the model "
            "of the last sum stays, since a sum without it would reveal what it sent"
        ]

    def words(self, source: Any, n_sites: int, fractional_bits: int) -> Words:
        """Return a site's sums in fixed point; see `Summand.words`."""
        answered = answer(self.request, source.data, min_count=source.min_count, module=source.module)
        self.site_lines = request_kind(self.request.kind).lines_at_site(answered)
        parts = [
            np.ldexp(answered.content.arrays[name].ravel(), -exponent) for name, (_, exponent) in self.sums.items()
        ]
        withheld = float(answered.content.fields.get("withheld", 0))
        return encode(np.concatenate([*parts, [answered.n_observations, withheld]]), n_sites, fractional_bits)

    def result(self, words: Words, sites: Sequence[str], plan: Mapping[str, Json], fractional_bits: int) -> SumResult:
        """Return what the request comes to; see `Summand.result`."""
        values, offset, arrays = decode(words, fractional_bits), 0, {}
        for name, (shape, exponent) in self.sums.items():
            size = prod(shape)
            arrays[name] = np.ldexp(values[offset : offset + size].reshape(shape), exponent)
            offset += size
        n, withheld = round(values[-2]), round(values[-1])
        if n < 1:
            raise InputError("the sum of all sites", "has no rows", code="E-SHAPE")
        kind = request_kind(self.request.kind)
        fields = kind.fields_of_sum(self.request, withheld)
        whole = Answer(kind.name, self.request.number, self.request.digest, n, 0.0, Content(fields, arrays))
        return SumResult(reduce(self.request, {ALL_SITES: whole}), {"n_observations": n})

    def save(self, result: SumResult, path: Path) -> None:
        """Write the finished model; see `finish`, which makes it."""
        cs.save(result.model, path)


_NOT_SUMS = {
    POSTERIORS.name: "components of mixtures, topics and states are matched, for which each site's own must be seen; "
    "from a common start their EM is sums: `consilience round open --then em`"
}
"""Why the files of a kind are no sums, by its name."""


@dataclass(frozen=True)
class Masked:
    """That a round is masked, and how.

    Parameters
    ----------
    signing_keys : path
        A folder with the public signing key ``NAME.pub`` of every site (``ssh-keygen -t ed25519``).
    by_observations : bool
        Whether networks are weighted by the observations in their descriptions, which stay masked. Default: False, all
        alike, or by the round's ``weights``.
    noise : SumNoise, optional
        Gaussian noise on averages of networks. Default: none.

    Examples
    --------
    >>> Masked("keys").noise is None
    True
    """

    signing_keys: str | Path
    by_observations: bool = False
    noise: SumNoise | None = None


def summand_of(
    file: SafetensorsFile, weights: str | Mapping[str, float], noise: SumNoise | None, site: str | None, threshold: int
) -> Summand:
    """Return what is summed of files like an expected one.

    `file` has statistics, the start of networks, or a request; the rest is as for `NetworkSum`. Raises UnsupportedError
    for kinds that match, gate or compare, with the reason. Raises OptionError for weights and noise where there is no
    use for them.
    """
    is_request = file.format == REQUEST_FORMAT
    kind = None if is_request else kind_of_file(file)
    if kind is NETWORKS:
        return NetworkSum(file, weights, noise, site, threshold)
    if noise is not None:
        text = "is for averages of networks, whose updates can be cut to a norm: rows of estimators have no bound here"
        raise OptionError("noise", text, "bound the features at the sites: `consilience.learners.Head(noise=...)`")
    if weights != EQUAL:
        raise OptionError("weights", "is for averages of networks: sums count every row once; leave it out")
    if is_request:
        return RequestSum(check_request(read_request(file), file))
    if kind is ESTIMATORS:
        return StatisticsSum(file)
    name = "models" if kind is None else kind.name
    reason = _NOT_SUMS.get(name, "they are fused by more than sums")
    raise UnsupportedError(str(file), f"masked sums are not for {name}: {reason}", "use a round that is not masked")


def summand_of_plan(file: SafetensorsFile, plan: MaskedPlan, site: str) -> Summand:
    """Return what a plan sums, at a site.

    Raises InputError for a plan that says something else of the file.
    """
    weights: Any = plan.content.get("weights", EQUAL)
    noise = plan.content.get("noise")
    if not isinstance(weights, str | Mapping):
        raise InputError("the plan", f"has the weights {weights!r:.80}, which are none", code="E-ROUND")
    try:
        summand = summand_of(file, weights, None if noise is None else SumNoise(**noise), site, plan.threshold)
    except (OptionError, UnsupportedError, TypeError) as error:
        raise InputError("the plan", f"cannot be followed: {error}", code="E-ROUND") from error
    if summand.name != plan.content.get("summand"):
        text = f"sums a {plan.content.get('summand')!r:.80}, and its file is a {summand.name}"
        raise InputError("the plan", text, code="E-ROUND")
    return summand
