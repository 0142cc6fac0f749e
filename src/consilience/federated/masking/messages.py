"""Messages of a masked sum: arrays and one JSON document, those of sites signed.

| step | a site sends | the server answers with ``agreed-STEP`` |
| --- | --- | --- |
| 1 | public keys and a commitment | those of all sites, signed as they came |
| 2 | sealed shares of its secrets, one for each site | to each site, the shares for it |
| 3 | its numbers under masks | which sites' numbers came |
| 4 | that it has seen this | the signatures of those that have |
| 5 | shares: of seeds of those whose numbers came, of keys of the others | the sum |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import safetensors.numpy
from pydantic import FailFast, Field

from consilience.checks import AnyArray
from consilience.core.frozen import FrozenDict
from consilience.errors import FileFormatError
from consilience.federated.masking.keys import MAC_BYTES
from consilience.federated.masking.plan import MAX_SITES
from consilience.federated.masking.shamir import ELEMENT_BYTES
from consilience.files.document import METADATA_KEY
from consilience.files.format import document_text, read_document
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader, as_file
from consilience.files.schemas import StrictModel

FORMAT, FORMAT_VERSION = "consilience-masked", 1
REMEDY = "`consilience round send --signing-key` and `consilience round masked` write such files"
ADVERTISE, DEAL, MASK, CONFIRM, REVEAL = 1, 2, 3, 4, 5
"""The steps of a site."""
STEPS = (ADVERTISE, DEAL, MASK, CONFIRM, REVEAL)
STEP_NAMES = {ADVERTISE: "keys", DEAL: "shares", MASK: "masked numbers", CONFIRM: "confirmations", REVEAL: "openings"}

SEALED_BYTES = 2 * ELEMENT_BYTES + MAC_BYTES
"""Length of the box with a share of a seed and a share of a key."""
DIGEST_BYTES = 16
"""Length of the digests of shares, by which the server knows which one is wrong."""


class MessageHeader(StrictModel):
    """The JSON document of a message."""

    format: Literal["consilience-masked"]
    format_version: Literal[1]
    library_version: str
    round: str = Field(pattern=r"^[0-9a-f]{64}$")
    step: int = Field(ge=ADVERTISE, le=REVEAL)
    sites: Annotated[list[str], FailFast()] = Field(max_length=MAX_SITES)
    signature: str = Field(pattern=r"^([0-9a-f]{128})?$")


@dataclass(frozen=True, eq=False)
class Message:
    """A message of a site, or what the server agreed on after a step."""

    round_id: bytes  # digest of the plan
    step: int  # 1 to 5
    # The site that sends it; of the server's, whom it is about, in the order of the rows of its arrays.
    sites: tuple[str, ...]
    arrays: Mapping[str, AnyArray]  # bytes (uint8), or words (uint64)
    signature: bytes = b""  # the site's, over all of this; none under the server's

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrays", FrozenDict(dict(sorted(self.arrays.items()))))

    @property
    def payload(self) -> bytes:
        """SHA-256 of the arrays with their names and shapes, which a site signs."""
        return payload_of(self.arrays)

    @cached_property
    def data(self) -> bytes:
        """The bytes of its file."""
        fields = {
            "round": self.round_id.hex(),
            "step": self.step,
            "sites": list(self.sites),
            "signature": self.signature.hex(),
        }
        arrays = {name: np.ascontiguousarray(values) for name, values in self.arrays.items()}
        text = document_text("a message", FORMAT, FORMAT_VERSION, fields, arrays)
        return safetensors.numpy.save(arrays, {METADATA_KEY: text})


def payload_of(arrays: Mapping[str, AnyArray]) -> bytes:
    """Return the digest of arrays with their names and shapes."""
    digest = sha256()
    for name, values in sorted(arrays.items()):
        little = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {values.dtype.name} {values.shape} ".encode())
        digest.update(little.tobytes())
    return digest.digest()


def read_message(where: Path | SafetensorsFile) -> Message:
    """Return the message in a file; whether it fits into a round is not checked yet.

    Raises FileFormatError for anything but the file of such a message.
    """
    file = as_file(where)
    header, tensors = read_header(file)
    for name, dtype in tensors.dtypes.items():
        if dtype not in ("uint8", "uint64"):
            raise FileFormatError(file.label, f"tensor {name!r} has type {dtype}, expected uint8 or uint64", REMEDY)
    arrays = {name: np.asarray(values) for name, values in file.arrays(sorted(tensors.shapes), REMEDY).items()}
    return Message(
        bytes.fromhex(header.round), header.step, tuple(header.sites), arrays, bytes.fromhex(header.signature)
    )


def read_header(file: SafetensorsFile) -> tuple[MessageHeader, TensorHeader]:
    """Return the document of a message, and what its header says of tensors, which are not read.

    Raises FileFormatError for anything but the file of such a message.
    """
    return read_document(file, FORMAT, MessageHeader, FORMAT_VERSION, "a message of a masked sum", remedy=REMEDY)


def as_bytes(rows: Any, n_bytes: int) -> np.ndarray[Any, Any]:
    """Return texts of bytes of equal length as an array (len(rows), n_bytes)."""
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, n_bytes)


def shape_problem(message: Message, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> str | None:
    """Return which array is missing, unknown, or of another shape or type; None where none is."""
    if set(message.arrays) != set(shapes):
        return f"expected the arrays {', '.join(shapes)}; found {', '.join(message.arrays)[:200] or 'none'}"
    for name, (shape, dtype) in shapes.items():
        values = message.arrays[name]
        if values.shape != shape or values.dtype.name != dtype:
            return f"{name} is {values.dtype.name} of shape {values.shape}, expected {dtype} of shape {shape}"
    return None
