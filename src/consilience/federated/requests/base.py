"""Requests of a round after its first message: what the server publishes, what a site answers, and who reduces it.

A kind of request is map -> sufficient statistics -> reduce. The server publishes a state; every site answers with sums
over its rows that the kind defines; the server reduces the answers to the next state. A new kind is one subclass of
`RequestKind` and one line in `table`: transports, files, deadlines, late answers and reports know nothing of what is
asked.

Both messages are arrays and one JSON document. An answer names the SHA-256 of the request that it answers, so that one
to another request is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, ClassVar

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.core.features import Features
from consilience.core.frozen import FrozenDict
from consilience.core.fusion import Fusion
from consilience.errors import Problem, UnsupportedError


def _frozen(arrays: Mapping[str, AnyArray]) -> Mapping[str, Array]:
    """Return read-only float64 copies of arrays."""
    copies = {name: np.array(values, dtype=np.float64, order="C") for name, values in sorted(arrays.items())}
    for values in copies.values():
        values.setflags(write=False)
    return FrozenDict(copies)


@dataclass(frozen=True, eq=False)
class Content:
    """What a kind says in a message, beside what all messages have.

    Parameters
    ----------
    fields : mapping
        JSON values.
    arrays : mapping of str to ndarray
        Numbers, float64.
    private : object, optional
        What the server needs to reduce answers, and no message has. Default: nothing.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)
    private: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", FrozenDict(dict(self.fields)))
        object.__setattr__(self, "arrays", _frozen(self.arrays))


@dataclass(frozen=True, eq=False)
class RoundRequest:
    """A typed request of the server to all sites.

    Parameters
    ----------
    kind : str
        Name of the kind, such as "em".
    number : int
        Which request of this exchange it is, from 1.
    rounds : int
        How many there are.
    content : Content
        The state that is published.
    features : Features
        What the columns of the sites' data mean.
    """

    kind: str
    number: int
    rounds: int
    content: Content
    features: Features = field(default_factory=Features)

    @cached_property
    def data(self) -> bytes:
        """The bytes of its file."""
        from consilience.federated.requests.files import request_bytes

        return request_bytes(self)

    @property
    def digest(self) -> str:
        """SHA-256 of its file, which every answer to it names."""
        return sha256(self.data).hexdigest()


@dataclass(frozen=True, eq=False)
class Answer:
    """What a site answers to a request: sums over its rows, and no row.

    Parameters
    ----------
    kind, number : str, int
        As in the request.
    request : str
        SHA-256 of the request that it answers.
    n_observations : int
        Rows behind the sums.
    min_count : float
        Observations behind a sum that leaves this site, at least.
    content : Content
        The sums.
    """

    kind: str
    number: int
    request: str
    n_observations: int
    min_count: float
    content: Content

    @cached_property
    def data(self) -> bytes:
        """The bytes of its file."""
        from consilience.federated.requests.files import answer_bytes

        return answer_bytes(self)

    @property
    def digest(self) -> str:
        """SHA-256 of its file."""
        return sha256(self.data).hexdigest()


@dataclass(frozen=True, eq=False)
class StandingAnswer:
    """The answer of a site that counts, with the request that it answered, which may be an earlier one.

    Parameters
    ----------
    request : Request
        The request.
    answer : Answer
        The answer to it.
    """

    request: RoundRequest
    answer: Answer


@dataclass(frozen=True, eq=False)
class Reduction:
    """What the answers to a request come to.

    Parameters
    ----------
    content : Content
        The next state.
    objective : float
        Value of the kind's objective at the next state and the answers that stand.
    objective_before : float
        Its value at the published state and the same answers.
    standing : mapping of str to StandingAnswer
        The answer of every site that counts in it, by site.
    carried : mapping of str to str
        Sites whose earlier answer was carried on, with the reason.
    withheld : mapping of str to int
        Number of sums that a site withheld, where it did.
    is_last : bool
        Whether further requests would change nothing, so that none is made. Default: False.
    """

    content: Content
    objective: float
    objective_before: float
    standing: Mapping[str, StandingAnswer]
    carried: Mapping[str, str]
    withheld: Mapping[str, int]
    is_last: bool = False

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites whose answers count."""
        return tuple(self.standing)


class RequestKind(ABC):
    """One kind of request: what it publishes, how a site answers, and how answers are reduced to the next state."""

    name: ClassVar[str]
    """Name in files and commands, such as ``em``."""
    summary: ClassVar[str]
    """What it does, in a line."""
    supports: ClassVar[str]
    """Which fused models it is for, in words of messages."""
    models: ClassVar[str]
    """Name of the kind of models of which there are such requests, as in ``api.kinds``."""
    needs_module: ClassVar[bool] = False
    """Whether a site needs a module beside its data."""
    module: ClassVar[str] = "the torch module of the fused network"
    """What that is, in words of messages."""
    tells: ClassVar[tuple[tuple[str, str], ...]] = (
        ("sums", "over the rows near each component: how many, their mean and how they vary"),
        ("few rows", "in many columns span the space that they lie in, which the sums give"),
    )
    """What an answer tells about people, each with what it is, for `consilience inspect`."""
    counts_withheld: ClassVar[bool] = True
    """Whether an answer says how many sums the site withheld."""

    @classmethod
    def unsupported(cls, found: str) -> UnsupportedError:
        """Return the error for a fused model of which there is no such request, saying what was found."""
        text = f"{found}, and there is no such request of it"
        return UnsupportedError(cls.name, text, f"{cls.name} is for {cls.supports}")

    @abstractmethod
    def start(self, fusion: Fusion | Any) -> Content:
        """Return the state that the first request publishes.

        Raises
        ------
        UnsupportedError
            For a fused model that this kind has no request for, naming what it has one for.
        """

    def site_module(self, fusion: Any, site: str) -> Any:
        """Return the module of a site where all are in one memory. Default: the fused one.

        Raises
        ------
        InputError
            Where it is not there.
        """
        del site
        return fusion.model

    @abstractmethod
    def request_problems(self, request: RoundRequest) -> list[Problem]:
        """Return what is wrong with a request's content: a site does not trust the server that it comes from."""

    @abstractmethod
    def answer(self, request: RoundRequest, data: Any, *, min_count: float, module: Any = None) -> tuple[int, Content]:
        """Return the number of rows behind a site's sums, and the sums.

        Parameters
        ----------
        request : Request
            The request, without problems.
        data : array_like, DataFrame, str or Path
            The rows of the site.
        min_count : float
            A sum over fewer observations does not leave the site.
        module : object, optional
            What `module` names, for kinds that need one.

        Raises
        ------
        InputError
            For data that do not fit the request, and for fewer rows than `min_count`.
        """

    @abstractmethod
    def answer_problems(self, request: RoundRequest, answer: Answer) -> list[Problem]:
        """Return what is wrong with an answer to this request: shapes, signs, sums that contradict each other."""

    def sums(self, request: RoundRequest) -> Mapping[str, tuple[tuple[int, ...], int]] | None:
        """Return shape and unit of every array of an answer, where these add up over sites; None where they do not.

        A unit is the exponent of a power of two, in which fixed-point numbers count.
        """
        del request
        return None

    @abstractmethod
    def reduce(
        self, request: RoundRequest, answers: Mapping[str, StandingAnswer], standing: Mapping[str, StandingAnswer]
    ) -> Reduction:
        """Return the next state.

        Parameters
        ----------
        request : Request
            The published request.
        answers : mapping of str to StandingAnswer
            New answers by site, without problems: to this request, or late ones to an earlier one.
        standing : mapping of str to StandingAnswer
            The answers that counted in the round before, by site.
        """

    @abstractmethod
    def finish(self, fusion: Any, content: Content) -> Any:
        """Return the fused model with a reduced state in the place of its own.

        Parameters
        ----------
        fusion : Fusion or Posterior
            What the first request was made from.
        content : Content
            The state that the last answers were reduced to.
        """
