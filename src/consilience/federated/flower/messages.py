"""What both ends of the Flower transport share: questions and answers as Flower messages, and how large they may be.

The server asks, a site answers: which file do you offer, give me this piece of it, here is a piece of the fused model.
Each question carries a secret that nobody but the authenticated node it is for has seen, and its answer repeats it.
No Flower app is sent or run on either side: what travels are messages with one record of plain values.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from consilience.errors import UnsupportedError

PIECE = 4 * 2**20
"""Bytes of a file in one message."""

MOST_BODY = PIECE + 2**18
"""Bytes that a request to the server may have."""

_RECORD = "consilience"
_MOST_OBJECTS = 8  # a message, its records, and the one record in them


@dataclass(frozen=True, eq=False)
class Deflated:
    """A message as Flower sends it: without content, the tree of its objects, and these by identifier."""

    message: Any
    tree: Any
    objects: Mapping[str, bytes]


def quiet_flower() -> None:
    """Keep Flower from reporting to anybody, and from its home folder; to be called before it is imported.

    Raises
    ------
    UnsupportedError
        When Flower is not installed.
    """
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    if "FLWR_HOME" not in os.environ:
        home = tempfile.mkdtemp(prefix="consilience-flower-")
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        os.environ["FLWR_HOME"] = home
    os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    try:
        with warnings.catch_warnings():  # what its own libraries will drop is not for our users to mend
            warnings.simplefilter("ignore", DeprecationWarning)
            import flwr  # noqa: F401
    except ImportError as error:
        raise UnsupportedError('this needs Flower: pip install "consilience[federated]"') from error


def records(values: Mapping[str, Any]) -> Any:
    """Return plain values as what a message carries."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_RECORD: ConfigRecord(dict(values))})


def values_of(message: Any) -> dict[str, Any]:
    """Return the plain values that a message carries; none where it carries something else."""
    if not message.has_content():
        return {}
    found = message.content.config_records.get(_RECORD)
    return {} if found is None else dict(found)


def deflate(message: Any) -> Deflated:
    """Return a message as Flower sends it; its identifier is set to the digest of its content."""
    from flwr.app.message import remove_content_from_message
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )

    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
        return Deflated(remove_content_from_message(message), get_object_tree(message), objects)


def object_names(tree: Any) -> list[str]:
    """Return identifiers of a message's objects.

    Raises
    ------
    ValueError
        When there are more than a message of ours has.
    """
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    names: list[str] = []
    for one in iterate_object_tree(tree):
        names.append(one.object_id)
        if len(names) > _MOST_OBJECTS:
            raise ValueError("a message of more parts than ours have")
    return names


def inflate(root: str, names: Iterable[str], get: Callable[[str], bytes | None]) -> dict[str, Any]:
    """Return the plain values of a message from its objects, bounded before they are put together.

    Raises
    ------
    ValueError
        For objects that are missing, too large, or no message of ours.
    """
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    contents: dict[str, bytes] = {}
    for name in names:
        content = get(name)
        if not content:
            raise ValueError("a part of a message never came")
        contents[name] = content
        if sum(map(len, contents.values())) > MOST_BODY:
            raise ValueError("a message that is too long")
    message = inflate_object_from_contents(root, contents)
    if not isinstance(message, Message):
        raise ValueError("no message")
    return values_of(message)
