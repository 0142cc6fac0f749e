"""Files of requests and answers: safetensors with one JSON document in the header, as everything that crosses sites.

Tensors, all float64, are the arrays of the content. The document of a request is `RequestHeader`, that of an answer
`AnswerHeader`; what is in ``content`` is for the kind to check. The same message has the same bytes, and an answer
names the SHA-256 of the request that it answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import safetensors.numpy
from pydantic import Field

from consilience.core.features import Features
from consilience.errors import FileFormatError, InputError, Problem
from consilience.federated.requests.base import Answer, Content, RoundRequest
from consilience.files.atomic import write_bytes
from consilience.files.document import METADATA_KEY, REMEDY
from consilience.files.format import document_text, read_document
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader, as_file
from consilience.files.schemas import FiniteJSON, StrictModel
from consilience.posteriors.files import FeaturesHeader

FORMAT_VERSION = 1
"""Version of both formats, stated by every file; another one is refused."""
REQUEST_FORMAT, ANSWER_FORMAT = "consilience-request", "consilience-answer"

MAX_ROUNDS = 1000
"""Requests of one exchange at most: each costs every site a pass over its rows. Chosen by hand."""

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


def request_bytes(request: RoundRequest) -> bytes:
    """Return the bytes of a request's file."""
    document = {
        "kind": request.kind,
        "number": request.number,
        "rounds": request.rounds,
        "features": request.features.to_json(),
    }
    return _bytes(REQUEST_FORMAT, document, request.content)


def answer_bytes(answer: Answer) -> bytes:
    """Return the bytes of an answer's file."""
    document = {
        "kind": answer.kind,
        "number": answer.number,
        "request": answer.request,
        "n_observations": answer.n_observations,
        "min_count": float(answer.min_count),
    }
    return _bytes(ANSWER_FORMAT, document, answer.content)


def _bytes(format_name: str, document: Mapping[str, Any], content: Content) -> bytes:
    """Return the bytes of a message: its arrays, and its document with what all documents say."""
    fields = {**document, "content": dict(content.fields)}
    text = document_text("a message", format_name, FORMAT_VERSION, fields, content.arrays)
    return safetensors.numpy.save(dict(content.arrays), {METADATA_KEY: text})


def write_message(path: Path, message: RoundRequest | Answer) -> None:
    """Write a request or an answer, whole or not at all.

    Raises
    ------
    InputError
        When the path cannot be written.
    """
    write_bytes(path, message.data)


def read_request(where: Path | SafetensorsFile) -> RoundRequest:
    """Return the request in a file; its content is not checked yet.

    Raises
    ------
    FileFormatError
        For anything but the file of a request, or one of a later version.
    """
    file = as_file(where)
    header, content = _read(file, RequestHeader, REQUEST_FORMAT, "`consilience serve --then` publishes it")
    features = Features(**header.features.model_dump())
    return RoundRequest(header.kind, header.number, header.rounds, content, features)


def read_answer(where: Path | SafetensorsFile) -> Answer:
    """Return the answer in a file; its content is not checked yet.

    Raises
    ------
    FileFormatError
        For anything but the file of an answer, or one of a later version.
    """
    file = as_file(where)
    header, content = _read(file, AnswerHeader, ANSWER_FORMAT, "`consilience answer` writes it")
    return Answer(header.kind, header.number, header.request, header.n_observations, header.min_count, content)


def read_header(file: SafetensorsFile) -> tuple[RequestHeader | AnswerHeader, TensorHeader]:
    """Return the document of a message, and what its header says of tensors, which are not read.

    Raises
    ------
    FileFormatError
        For anything but the file of a request or an answer.
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


def binding_problems(request: RoundRequest, answer: Answer) -> list[Problem]:
    """Return why an answer is none to a request: of another kind or number, or of a request with other content."""
    for subject, found, expected in (
        ("kind", answer.kind, request.kind),
        ("number", answer.number, request.number),
        ("request", answer.request[:12], request.digest[:12]),
    ):
        if found != expected:
            return [Problem("answer", f"answers another request: its {subject} is {found}, expected {expected}")]
    return []


def refuse(problems: list[Problem], label: object) -> None:
    """Raise what is wrong with a message, under its name.

    Raises
    ------
    InputError
        With all problems.
    """
    if problems:
        raise InputError(problem.about(label) if str(label) else problem for problem in problems)
