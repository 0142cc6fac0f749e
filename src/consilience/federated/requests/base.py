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
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import safetensors.numpy
from pydantic import Field

from consilience.checks import AnyArray, Array
from consilience.core.features import Features
from consilience.core.frozen import FrozenDict
from consilience.core.fusion import Fusion
from consilience.core.verdict import Verdict
from consilience.errors import FileFormatError, Problem, UnsupportedError
from consilience.federated.requests.message_checks import LARGEST, AnswerFields, array_problems, field_problems
from consilience.files.atomic import write_bytes
from consilience.files.document import METADATA_KEY, REMEDY
from consilience.files.format import document_text, read_document
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader, as_file
from consilience.files.schemas import FeaturesHeader, FiniteJSON, StrictModel

FORMAT_VERSION = 1
"""Version of both formats, stated by every file; another one is refused."""
REQUEST_FORMAT, ANSWER_FORMAT = "consilience-request", "consilience-answer"

ALL_SITES = "all sites"
"""What reductions call the one answer that a masked sum is."""

MAX_REQUEST_BYTES = 2**28
"""Bytes of a request that a site reads at most. Chosen by hand: some 1000 components in 150 columns."""

MAX_ROUNDS = 1000
"""Requests of one exchange at most: each costs every site a pass over its rows. Chosen by hand."""


def _frozen(arrays: Mapping[str, AnyArray]) -> Mapping[str, Array]:
    """Return read-only float64 copies of arrays."""
    copies = {name: np.array(values, dtype=np.float64, order="C") for name, values in sorted(arrays.items())}
    for values in copies.values():
        values.setflags(write=False)
    return FrozenDict(copies)


@dataclass(frozen=True, eq=False)
class Content:
    """Fields and arrays of a message that belong to its kind of request."""

    fields: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    arrays: Mapping[str, Array] = field(default_factory=dict)  # numbers, float64
    private: Any = None  # what the server needs to reduce answers, and no message has

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", FrozenDict(dict(self.fields)))
        object.__setattr__(self, "arrays", _frozen(self.arrays))


class _Message(ABC):
    """What requests and answers have in common: a file, and its digest."""

    content: Content
    format: ClassVar[str]

    @property
    @abstractmethod
    def document(self) -> dict[str, Any]:
        """JSON values of its file besides the content."""

    @cached_property
    def data(self) -> bytes:
        """The bytes of its file."""
        arrays = self.content.arrays
        fields = {**self.document, "content": dict(self.content.fields)}
        text = document_text("a message", self.format, FORMAT_VERSION, fields, arrays)
        return safetensors.numpy.save(dict(arrays), {METADATA_KEY: text})

    @property
    def digest(self) -> str:
        """SHA-256 of its file."""
        return sha256(self.data).hexdigest()


@dataclass(frozen=True, eq=False)
class RoundRequest(_Message):
    """A typed request of the server to all sites; every answer to it names its digest."""

    format: ClassVar[str] = REQUEST_FORMAT
    kind: str  # name of the kind, such as "em"
    number: int  # which request of this exchange it is, from 1
    rounds: int  # how many there are
    content: Content  # the state that is published
    features: Features = field(default_factory=Features)  # what the columns of the sites' data mean

    @property
    def document(self) -> dict[str, Any]:
        """JSON values of its file besides the content."""
        stated = {"kind": self.kind, "number": self.number, "rounds": self.rounds}
        return {**stated, "features": self.features.to_json()}


@dataclass(frozen=True, eq=False)
class Answer(_Message):
    """What a site answers to a request: sums over its rows, and no row."""

    format: ClassVar[str] = ANSWER_FORMAT
    # As in the request.
    kind: str
    number: int
    request: str  # SHA-256 of the request that it answers
    n_observations: int  # rows behind the sums
    min_count: float  # observations behind a sum that leaves this site, at least
    content: Content  # the sums

    @property
    def document(self) -> dict[str, Any]:
        """JSON values of its file besides the content."""
        return {
            "kind": self.kind,
            "number": self.number,
            "request": self.request,
            "n_observations": self.n_observations,
            "min_count": float(self.min_count),
        }


@dataclass(frozen=True, eq=False)
class StandingAnswer:
    """The answer of a site that counts, with the request that it answered, which may be an earlier one."""

    request: RoundRequest  # the request
    answer: Answer  # the answer to it


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
    is_last : bool
        Whether further requests would change nothing, so that none is made. Default: False.
    """

    content: Content
    objective: float
    objective_before: float
    standing: Mapping[str, StandingAnswer]
    carried: Mapping[str, str]
    is_last: bool = False

    @property
    def withheld(self) -> dict[str, int]:
        """Number of sums that a site withheld, where it did."""
        counts = {site: one.answer.content.fields.get("withheld", 0) for site, one in self.standing.items()}
        return {site: int(count) for site, count in counts.items() if count}

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
    """Name of the kind of models of which there are such requests, as in ``api.kinds``; empty for every kind."""
    needs_module: ClassVar[bool] = False
    """Whether a site needs a module besides its data."""
    module: ClassVar[str] = "the torch module of the fused network"
    """What that is, in words of messages."""
    asks_held_out: ClassVar[bool] = False
    """Whether it asks of rows that were held out of training, not of those that were trained on."""
    tells: ClassVar[tuple[tuple[str, str], ...]] = (
        ("sums", "over the rows near each component: how many, their mean and how they vary"),
        ("few rows", "in many columns span the space that they lie in, which the sums give"),
    )
    """What an answer discloses about people, each with what it is, for `consilience inspect`."""
    counts_withheld: ClassVar[bool] = True
    """Whether an answer says how many sums the site withheld."""
    request_fields: ClassVar[type[StrictModel]]
    """JSON values of a request."""
    no_request: ClassVar[str]
    """Message about a request with other values."""
    answer_fields: ClassVar[type[StrictModel]] = AnswerFields
    """JSON values of an answer, where it says how many sums the site withheld; others have none."""
    largest: ClassVar[float] = LARGEST
    """Largest number in an answer."""

    @classmethod
    def unsupported(cls, found: str) -> UnsupportedError:
        """Return the error for a fused model of which there is no such request, saying what was found."""
        text = f"{found}, and there is no such request of it"
        return UnsupportedError(cls.name, text, f"{cls.name} is for {cls.supports}")

    @abstractmethod
    def start(self, fusion: Fusion | Any) -> Content:
        """Return the state that the first request publishes.

        Raises UnsupportedError for a fused model that this kind has no request for, naming what it has one for.
        """

    def site_module(self, fusion: Any, site: str) -> Any:
        """Return the module of a site where all are in one memory. Default: the fused one.

        Raises InputError where it is not there.
        """
        return fusion.model

    def request_problems(self, request: RoundRequest) -> list[Problem]:
        """Return what is wrong with a request's content: a site does not trust the server that it comes from."""
        fields = request.content.fields
        problems = field_problems("request", self.request_fields, fields, self.no_request)
        return problems or self.state_problems(request)

    @abstractmethod
    def state_problems(self, request: RoundRequest) -> list[Problem]:
        """Return what is wrong with the state in a request whose JSON values are those of the kind."""

    @abstractmethod
    def answer(self, request: RoundRequest, data: Any, *, min_count: float, module: Any = None) -> tuple[int, Content]:
        """Return the number of rows behind a site's sums, and the sums.

        The request has no problems; a sum over fewer observations than `min_count` does not leave the site; `module` is
        for kinds that need one. Raises InputError for data that do not fit the request, and for fewer rows than
        `min_count`.
        """

    def answer_problems(self, request: RoundRequest, answer: Answer) -> list[Problem]:
        """Return what is wrong with an answer to this request: shapes, signs, sums that contradict each other."""
        content, article = answer.content, "an" if self.name.startswith("e") else "a"
        if self.counts_withheld:
            prefix = f"is no answer to {article} {self.name} request"
            problems = field_problems("answer", self.answer_fields, content.fields, prefix)
        elif content.fields:
            problems = [Problem("answer", f"has fields that no answer has: {', '.join(content.fields)[:80]}")]
        else:
            problems = []
        return problems or self.shape_problems(request, answer) or self.sum_problems(request, answer)

    def fields_of_sum(self, request: RoundRequest, withheld: int) -> dict[str, Any]:
        """Return the JSON values of the sum of all sites' answers, of which so many parts were withheld."""
        return {"withheld": withheld} if self.counts_withheld else {}

    def lines_at_site(self, answer: Answer) -> tuple[str, ...]:
        """Return lines for a site about its own answer, where nobody else sees it alone. Default: none."""
        return ()

    def verdict(self, content: Content) -> Verdict | None:
        """Return the verdict of a reduced state, where the model that it is of has no place for one. Default: none."""
        return None

    def shape_problems(self, request: RoundRequest, answer: Answer) -> list[Problem]:
        """Return what is wrong with the names, the shapes or the size of an answer's arrays."""
        return array_problems("answer", answer.content.arrays, self.answer_shapes(request), self.largest)

    def answer_shapes(self, request: RoundRequest) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the arrays of an answer. Default: those of `sums`."""
        return {name: shape for name, (shape, _) in (self.sums(request) or {}).items()}

    @abstractmethod
    def sum_problems(self, request: RoundRequest, answer: Answer) -> list[Problem]:
        """Return what is wrong with the numbers of an answer whose arrays are those of the kind."""

    def sums(self, request: RoundRequest) -> Mapping[str, tuple[tuple[int, ...], int]] | None:
        """Return shape and unit of every array of an answer, where these add up over sites; None where they do not.

        A unit is the exponent of a power of two, in which fixed-point numbers count.
        """
        return None

    @abstractmethod
    def reduce(
        self, request: RoundRequest, answers: Mapping[str, StandingAnswer], standing: Mapping[str, StandingAnswer]
    ) -> Reduction:
        """Return the next state.

        `answers` are new and without problems: to this request, or late ones to an earlier one. `standing` are those
        that counted in the round before.
        """

    @abstractmethod
    def finish(self, fusion: Any, content: Content) -> Any:
        """Return the fused model with a reduced state in the place of its own.

        `fusion` is what the first request was made from, `content` the state that the last answers were reduced to.
        """


_DIGEST = r"^[0-9a-f]{64}$"


class RequestHeader(StrictModel):
    """The JSON document of a request's file."""

    format: Literal["consilience-request"]
    format_version: Literal[1]
    library_version: str
    kind: str
    number: int = Field(ge=1, le=MAX_ROUNDS)
    rounds: int = Field(ge=1, le=MAX_ROUNDS)
    features: FeaturesHeader = Field(default_factory=FeaturesHeader)
    content: FiniteJSON = Field(default_factory=dict)


class AnswerHeader(StrictModel):
    """The JSON document of an answer's file."""

    format: Literal["consilience-answer"]
    format_version: Literal[1]
    library_version: str
    kind: str
    number: int = Field(ge=1, le=MAX_ROUNDS)
    request: str = Field(pattern=_DIGEST)
    n_observations: int = Field(ge=1, le=2**53)  # what float64 counts
    min_count: float = Field(ge=0.0, allow_inf_nan=False)
    content: FiniteJSON = Field(default_factory=dict)


Header = TypeVar("Header", RequestHeader, AnswerHeader)


def write_message(path: Path, message: RoundRequest | Answer) -> None:
    """Write a request or an answer, whole or not at all."""
    write_bytes(path, message.data)


def read_request(where: Path | SafetensorsFile) -> RoundRequest:
    """Return the request in a file; its content is not checked yet.

    Raises FileFormatError for anything but the file of a request, or one of a later version.
    """
    file = as_file(where)
    header, content = _read(file, RequestHeader, REQUEST_FORMAT, "`consilience round open --then` publishes it")
    features = Features(**header.features.model_dump())
    return RoundRequest(header.kind, header.number, header.rounds, content, features)


def read_answer(where: Path | SafetensorsFile) -> Answer:
    """Return the answer in a file; its content is not checked yet.

    Raises FileFormatError for anything but the file of an answer, or one of a later version.
    """
    file = as_file(where)
    header, content = _read(file, AnswerHeader, ANSWER_FORMAT, "`consilience round answer` writes it")
    return Answer(header.kind, header.number, header.request, header.n_observations, header.min_count, content)


def read_header(file: SafetensorsFile) -> tuple[RequestHeader | AnswerHeader, TensorHeader]:
    """Return the document of a message, and what its header says of tensors, which are not read.

    Raises FileFormatError for anything but the file of a request or an answer.
    """
    if file.format == ANSWER_FORMAT:
        return _validated(file, AnswerHeader, ANSWER_FORMAT, REMEDY)
    return _validated(file, RequestHeader, REQUEST_FORMAT, REMEDY)


def _validated(
    file: SafetensorsFile, schema: type[Header], format_name: str, remedy: str
) -> tuple[Header, TensorHeader]:
    """Return the document of a message's file, of this format, and what its header says of tensors."""
    what = "a request" if format_name == REQUEST_FORMAT else "an answer"
    return read_document(file, format_name, schema, FORMAT_VERSION, what, remedy=remedy)


def _read(file: SafetensorsFile, schema: type[Header], format_name: str, remedy: str) -> tuple[Header, Content]:
    """Return the document and the content of a message's file."""
    header, tensors = _validated(file, schema, format_name, remedy)
    for name, dtype in tensors.dtypes.items():
        if dtype != "float64":
            raise FileFormatError(file.label, f"tensor {name!r} has type {dtype}, expected float64", remedy)
    arrays = {name: np.asarray(values) for name, values in file.arrays(sorted(tensors.shapes), remedy).items()}
    return header, Content(header.content, arrays)
