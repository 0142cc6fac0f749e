"""Inspection of the files of requests and answers, from headers alone."""

from __future__ import annotations

from consilience.core.inspection import Row, listed, people_rows, plain_words
from consilience.core.kind import Inspection
from consilience.federated.requests.base import RequestKind
from consilience.federated.requests.files import (
    ANSWER_FORMAT,
    REQUEST_FORMAT,
    AnswerHeader,
    RequestHeader,
    read_header,
)
from consilience.federated.requests.table import REQUEST_KINDS
from consilience.files.safetensors_file import SafetensorsFile

MESSAGE_FORMATS = (REQUEST_FORMAT, ANSWER_FORMAT)
"""What the documents of these files state as their format."""


def inspect_message(file: SafetensorsFile) -> Inspection:
    """Return what the header of a request or an answer says.

    Raises
    ------
    FileFormatError
        For any other file.
    """
    header, tensors = read_header(file)
    rows = [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
    ]
    if isinstance(header, RequestHeader):
        rows.append(("asks for", f"{header.kind}, request {header.number} of {header.rounds}"))
        if header.features.names:
            rows.append(("features", listed(header.features.names)))
    elif isinstance(header, AnswerHeader):
        rows.append(("answers", f"{header.kind}, request {header.number}, sha256 {header.request}"))
        rows.append(("says", f"sums over {header.n_observations} rows, none over fewer than {header.min_count:g}"))
    rows.append(("content", ", ".join(f"{key} {value}" for key, value in header.content.items()) or "none"))
    rows.append(("tensors", ", ".join(f"{name} {list(shape)}" for name, shape in sorted(tensors.shapes.items()))))
    if isinstance(header, AnswerHeader):
        told: list[Row] = list(next((k.tells for k in REQUEST_KINDS if k.name == header.kind), RequestKind.tells))
        rows += people_rows(told, f"sums over fewer than {header.min_count:g} rows are withheld")
    else:
        told = [("model", "what the fused model tells, which it asks about")]
        rows += people_rows(told, "a request holds nothing of the site that answers")
    shapes = {name: list(shape) for name, shape in tensors.shapes.items()}
    return Inspection({"header": header.model_dump(), "shapes": shapes}, rows, _in_plain_words(header))


def _in_plain_words(header: RequestHeader | AnswerHeader) -> tuple[str, ...]:
    """Return in sentences what a message of a round is and what to do with it."""
    if isinstance(header, AnswerHeader):
        return plain_words(
            f"a site's answer to request {header.number} ({header.kind}) of a round: sums over its rows, and no row",
            header.n_observations,
            "nothing: the server adds the answers of all sites up",
            following="nothing; the round goes on when all sites have answered",
        )
    return plain_words(
        f"request {header.number} of {header.rounds} ({header.kind}) of a round, which the server asks of every site",
        0.0,
        "nothing: it asks for sums",
        following="let each site answer it: `consilience answer PLACE --site NAME --data DATA`",
    )
