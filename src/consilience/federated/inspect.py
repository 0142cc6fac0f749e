"""Inspection of the messages of rounds, from headers alone: requests, answers, and the messages of masked sums."""

from __future__ import annotations

from consilience.core.inspection import Row, listed, people_rows, plain_words
from consilience.core.kind import Inspection
from consilience.federated.masking.messages import ADVERTISE, CONFIRM, DEAL, MASK, REVEAL, MessageHeader
from consilience.federated.masking.messages import FORMAT as MASKED_FORMAT
from consilience.federated.masking.messages import read_header as read_masked_header
from consilience.federated.requests.base import (
    ANSWER_FORMAT,
    REQUEST_FORMAT,
    AnswerHeader,
    RequestHeader,
    RequestKind,
    read_header,
)
from consilience.federated.requests.table import REQUEST_KINDS
from consilience.files.safetensors_file import SafetensorsFile

MESSAGE_FORMATS = (REQUEST_FORMAT, ANSWER_FORMAT, MASKED_FORMAT)
"""What the documents of these files state as their format."""

_STEP_CONTENTS = {
    ADVERTISE: "public keys, which tell nothing of data",
    DEAL: "shares of secrets of this sum, each sealed for one site",
    MASK: "numbers under masks: random words to whoever has fewer secrets than the threshold",
    CONFIRM: "that the site has seen whose numbers are summed",
    REVEAL: "shares that open the sum, or make up for a site that left; of no site both",
}


def inspect_message(file: SafetensorsFile) -> Inspection:
    """Return what the header of a request, an answer, or a message of a masked sum says.

    Raises FileFormatError for any other file.
    """
    header, tensors = read_masked_header(file) if file.format == MASKED_FORMAT else read_header(file)
    shapes = {name: list(shape) for name, shape in sorted(tensors.shapes.items())}
    if isinstance(header, MessageHeader):
        rows, people, plain = _of_masked_sum(header)
    else:
        rows, people, plain = _of_answer(header) if isinstance(header, AnswerHeader) else _of_request(header)
    rows = [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
        *rows,
        ("tensors", ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "none"),
        *people,
    ]
    return Inspection({"header": header.model_dump(), "shapes": shapes}, rows, plain)


_Parts = tuple[list[Row], list[Row], tuple[str, ...]]
"""Rows of what a message says, rows of what it tells about people, and the message in sentences."""


def _of_request(header: RequestHeader) -> _Parts:
    rows = [("asks for", f"{header.kind}, request {header.number} of {header.rounds}")]
    if header.features.names:
        rows.append(("features", listed(header.features.names)))
    tells = [("model", "what the fused model tells, which it asks about")]
    plain = plain_words(
        f"request {header.number} of {header.rounds} ({header.kind}) of a round, which the server asks of every site",
        0.0,
        "nothing: it asks for sums",
        following="let each site answer it: `consilience round answer PLACE --site NAME --data DATA`",
    )
    rows.append(_content(header))
    return rows, people_rows(tells, "a request holds nothing of the site that answers"), plain


def _of_answer(header: AnswerHeader) -> _Parts:
    rows = [
        ("answers", f"{header.kind}, request {header.number}, sha256 {header.request}"),
        ("says", f"sums over {header.n_observations} rows, none over fewer than {header.min_count:g}"),
        _content(header),
    ]
    tells: list[Row] = list(next((k.tells for k in REQUEST_KINDS if k.name == header.kind), RequestKind.tells))
    plain = plain_words(
        f"a site's answer to request {header.number} ({header.kind}) of a round: sums over its rows, and no row",
        header.n_observations,
        "nothing: the server adds the answers of all sites up",
        following="nothing; the round goes on when all sites have answered",
    )
    return rows, people_rows(tells, f"sums over fewer than {header.min_count:g} rows are withheld"), plain


def _content(header: RequestHeader | AnswerHeader) -> Row:
    return "content", ", ".join(f"{key} {value}" for key, value in header.content.items()) or "none"


def _of_masked_sum(header: MessageHeader) -> _Parts:
    content = _STEP_CONTENTS[header.step]
    author = "from " if header.signature else "of the server, about "
    rows = [
        ("round", header.round),
        ("step", f"{header.step}, {author}{', '.join(header.sites)}"),
        ("signed", "yes" if header.signature else "no"),
    ]
    plain = plain_words(
        f"message {header.step} of a masked sum: {content.split(':')[0].split(',')[0]}",
        0.0,
        "nothing: the server adds up what all sites send",
        following="nothing; sites and server go on by themselves",
    )
    protection = "of the site's numbers alone; the sum tells what a fused file tells"
    return rows, people_rows([("message", content)], protection), plain
