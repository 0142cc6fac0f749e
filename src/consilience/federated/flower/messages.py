"""Messages of the Flower transport: questions and answers as Flower messages, and bounds on their size.

The server asks, a site answers: which file do you offer, give me this piece of it, here is a piece of the fused model.
Each question carries a secret that only the authenticated node it is addressed to has seen, and its answer repeats it.
No Flower app is sent or run on either side: messages carry one record of plain values.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from consilience.checks import AnyArray
from consilience.errors import UnsupportedError

PIECE_BYTES = 4 * 2**20
"""Bytes of a file in one message. Chosen by hand: over loopback three files of 64 MB are in after 15 s
(docs/sites/flower.md)."""

MAX_BODY_BYTES = PIECE_BYTES + 2**18
"""Bytes of a request to the server, at most: a piece, and room for what Flower puts around it. Chosen by hand."""

_RECORD = "consilience"

_MAX_OBJECTS = 8
"""Objects of a message: it has three (message, record dict, record). Chosen by hand."""


@dataclass(frozen=True, eq=False)
class DeflatedMessage:
    """A message as Flower sends it."""

    message: Any  # the message without its content
    tree: Any  # the tree of its objects' identifiers
    objects: Mapping[str, bytes]  # the objects, by identifier


def quiet_flower() -> None:
    """Keep Flower from reporting to anybody, and from its home folder; to be called before it is imported."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    if "FLWR_HOME" not in os.environ:
        home = tempfile.mkdtemp(prefix="consilience-flower-")
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        os.environ["FLWR_HOME"] = home
    os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    try:
        with warnings.catch_warnings():  # of Flower's own libraries, which our users cannot change
            warnings.simplefilter("ignore", DeprecationWarning)
            import flwr  # noqa: F401
    except ImportError as error:
        raise UnsupportedError("", "this needs Flower", 'pip install "consilience[federated]"', "E-EXTRA") from error


def piece_of(stream: BinaryIO, question: Mapping[str, Any]) -> bytes:
    """Return the piece of a stream that a question asks for, no longer than a message holds."""
    stream.seek(max(0, int(question.get("offset", 0))))
    return stream.read(min(PIECE_BYTES, max(0, int(question.get("length", 0)))))


def records(values: Mapping[str, AnyArray]) -> Any:
    """Return plain values as the content of a message."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_RECORD: ConfigRecord(dict(values))})


def values_of(message: Any) -> dict[str, AnyArray]:
    """Return the plain values in a message; none where it holds something else."""
    if not message.has_content():
        return {}
    record = message.content.config_records.get(_RECORD)
    return {} if record is None else dict(record)


def deflate(message: Any) -> DeflatedMessage:
    """Return a message as Flower sends it; its identifier is set to the digest of its content."""
    from flwr.app.message import remove_content_from_message
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )

    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {name: nested.deflate() for name, nested in get_all_nested_objects(message).items()}
        return DeflatedMessage(remove_content_from_message(message), get_object_tree(message), objects)


def object_names(tree: Any) -> list[str]:
    """Return the identifiers of a message's objects.

    Raises ValueError when there are more than messages of this library have.
    """
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    names: list[str] = []
    for node in iterate_object_tree(tree):
        names.append(node.object_id)
        if len(names) > _MAX_OBJECTS:
            raise ValueError("a message of more parts than ours have")
    return names


def inflate(root: str, names: Iterable[str], get: Callable[[str], bytes | None]) -> dict[str, Any]:
    """Return the plain values of a message from its objects, whose size is bounded before they are put together.

    Parameters
    ----------
    root : str
        Identifier of the message.
    names : iterable of str
        Identifiers of its objects.
    get : callable
        Gives an object by its identifier.

    Raises
    ------
    ValueError
        For objects that are missing, too large, or no message of this library.
    """
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    contents: dict[str, bytes] = {}
    for name in names:
        content = get(name)
        if not content:
            raise ValueError("a part of a message never came")
        contents[name] = content
        if sum(map(len, contents.values())) > MAX_BODY_BYTES:
            raise ValueError("a message that is too long")
    message = inflate_object_from_contents(root, contents)
    if not isinstance(message, Message):
        raise ValueError("no message")
    return values_of(message)
