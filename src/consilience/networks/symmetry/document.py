"""From JSON to a symmetry: what a file says of groups is checked before anything relies on it.

The counterpart of ``symmetry.symmetry_to_json``. Types and ranges are checked field by field, then
every name that refers to another. Whether the symmetry fits the arrays beside it is for `Symmetry.units` to say, and
whether it holds for its proof: a document that was changed is read, but no longer proved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import FailFast, Field

from consilience.errors import FileFormatError
from consilience.files.document import validate_document
from consilience.files.schemas import Chunked, Entries, StrictModel
from consilience.networks.symmetry.axes import Action, Axis, Group, Layout, Proof, Segment, Side
from consilience.networks.symmetry.symmetry import Symmetry

REMEDY = "trace it again with consilience.symmetry and write it with consilience.save"
_LARGEST = 2**40  # no axis is longer, and sums and products of such numbers can still be printed
_MOST_PARTS = 30_000
_MOST_ENTRIES = 1_000_000
_FEW = 5  # problems that a message lists; more are counted

Count = Annotated[int, Field(ge=1, le=_LARGEST)]
Number = Annotated[int, Field(ge=0, le=_LARGEST)]
# JSON has no tuples, so the list itself is not taken strictly; what is in it is.
SegmentEntry = Annotated[tuple[str | None, Count, Number], Field(strict=False)]


class AxisEntry(StrictModel):
    """One axis of an array: its segments as (group, outer, inner), and for each the odd copies, where not all are."""

    side: Side
    segments: Annotated[list[SegmentEntry], FailFast()]
    odd: Chunked[list[Chunked[list[Number] | None]] | None] = None


class LayoutEntry(StrictModel):
    """The axes of an array."""

    axes: Annotated[list[AxisEntry], FailFast()]
    blocks: Count


class GroupEntry(StrictModel):
    """Units that move together."""

    name: str
    size: Count
    order: Number
    parent: str | None
    actions: Annotated[list[Action], FailFast()]
    resizable: bool


class ProofEntry(StrictModel):
    """That the symmetry with this digest was proved."""

    digest: str
    deviation: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    trials: Count


class SymmetryEntry(StrictModel):
    """A symmetry as ``symmetry_to_json`` writes it."""

    groups: Annotated[list[GroupEntry], FailFast()]
    arrays: Entries[LayoutEntry]
    aliases: Chunked[dict[str, str]]
    notes: Chunked[list[str]]
    proof: ProofEntry | None


def symmetry_from_json(document: Any, where: str) -> Symmetry:
    """Return the symmetry that a JSON document describes.

    Parameters
    ----------
    document
        What `symmetry_to_json` gave, after it went through a file.
    where
        The file's name, for messages.

    Raises
    ------
    FileFormatError
        Naming the file and the place: fields that are missing, unknown or of another type, sizes below 1, names of
        groups or arrays that do not exist or stand twice, parents that have parents.

    Examples
    --------
    >>> from consilience.networks.symmetry.symmetry import symmetry_to_json
    >>> rows = Layout((Axis((Segment("hidden"),)), Axis((Segment(None, inner=4),), "input")))
    >>> symmetry = Symmetry({"1.weight": rows}, (Group("hidden", 3, 0),))
    >>> symmetry_from_json(symmetry_to_json(symmetry), "net.json") == symmetry
    True
    """
    _refuse_many(document, where)
    entry = validate_document(where, SymmetryEntry, document, "symmetry", REMEDY)
    if problems := list(_wrong_names(entry)):
        raise _refused(problems, where)
    symmetry = Symmetry(
        {
            name: Layout(
                tuple(Axis(_segments(axis), axis.side) for axis in layout.axes),
                layout.blocks,
            )
            for name, layout in entry.arrays.items()
        },
        tuple(Group(g.name, g.size, g.order, g.parent, tuple(g.actions), g.resizable) for g in entry.groups),
        entry.aliases,
        tuple(entry.notes),
        None if entry.proof is None else Proof(entry.proof.digest, entry.proof.deviation, entry.proof.trials),
    )
    if problems := [problem for name in entry.arrays for problem in _wrong_blocks(symmetry, name)]:
        raise _refused(problems, where)
    return symmetry


def _refuse_many(document: Any, where: str) -> None:
    """Raise for more parts than any network has, before each of them becomes objects."""
    for part in ("arrays", "groups", "aliases", "notes"):
        parts = document.get(part) if isinstance(document, dict) else None
        if isinstance(parts, dict | list) and len(parts) > _MOST_PARTS:
            raise FileFormatError(f"{where}: its symmetry has {len(parts)} {part}, expected at most {_MOST_PARTS}")
    arrays = document.get("arrays") if isinstance(document, dict) else None
    pending: list[Any] = list(arrays.values()) if isinstance(arrays, dict) else []
    count = 0
    while pending:  # layouts hold axes, which hold segments: dicts and lists, counted one by one
        value = pending.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        count += len(inner)
        if count > _MOST_ENTRIES:
            raise FileFormatError(f"{where}: its symmetry has more than {_MOST_ENTRIES} entries; {REMEDY}")
        pending.extend(one for one in inner if isinstance(one, dict | list))


def _segments(axis: AxisEntry) -> tuple[Segment, ...]:
    odd = axis.odd or [None] * len(axis.segments)
    return tuple(
        Segment(*entry, odd=None if copies is None else tuple(copies))
        for entry, copies in zip(axis.segments, odd, strict=True)
    )


def _refused(problems: list[str], where: str) -> FileFormatError:
    shown = [f"{where}: its symmetry is not valid: {problem}; {REMEDY}" for problem in problems[:_FEW]]
    more = [f"{where}: its symmetry has {len(problems) - _FEW} more such problems"] if len(problems) > _FEW else []
    return FileFormatError(shown + more)


def _wrong_names(entry: SymmetryEntry) -> Iterator[str]:
    """Yield everything that is wrong between the parts of a document, each of which is right by itself."""
    parents = {group.name: group.parent for group in entry.groups}
    for name, count in Counter(group.name for group in entry.groups).items():
        if count > 1:
            yield f"group {name!r} stands twice"
    for group in entry.groups:
        if len(set(group.actions)) < len(group.actions):
            yield f"group {group.name!r} has an action twice"
        if group.parent is None:
            continue
        if group.parent not in parents:
            yield f"group {group.name!r} has the parent {group.parent!r}, which does not exist"
        elif parents[group.parent] is not None:
            yield f"group {group.name!r} has the parent {group.parent!r}, which has a parent itself"
    placed: set[str] = set()
    for name, layout in entry.arrays.items():
        if layout.blocks > 1 and len(layout.axes) < 2:
            yield f"array {name!r} has {layout.blocks} blocks but {len(layout.axes)} axes, expected at least 2"
        for number, axis in enumerate(layout.axes):
            if axis.odd is not None and not _are_copies(axis):
                yield f"array {name!r} axis {number} has odd copies {axis.odd}, expected some of each segment's"
            for group_name, _, inner in axis.segments:
                if group_name is None:
                    continue
                if group_name not in parents:
                    yield f"array {name!r} axis {number} follows the group {group_name!r}, which does not exist"
                elif inner < 1:
                    yield f"array {name!r} axis {number} gives the units of {group_name!r} no entries"
                placed.add(group_name)
    # A group that no array has would be as large as it says, and nothing would contradict it.
    placed |= {parent for name in placed if (parent := parents.get(name)) is not None}
    for name in parents:
        if name not in placed:
            yield f"group {name!r} has no place in any array"
    for alias, name in entry.aliases.items():
        if name not in entry.arrays:
            yield f"array {alias!r} is said to be {name!r}, which does not exist"
        if alias in entry.arrays:
            yield f"array {alias!r} is said to be {name!r}, but has axes of its own"


def _are_copies(axis: AxisEntry) -> bool:
    odd = axis.odd or []
    return len(odd) == len(axis.segments) and all(
        copies is None or (copies == sorted(set(copies)) and all(copy < outer for copy in copies))
        for copies, (_, outer, _) in zip(odd, axis.segments, strict=True)
    )


def _wrong_blocks(symmetry: Symmetry, name: str) -> Iterator[str]:
    """Yield what makes the blocks of a grouped convolution impossible."""
    layout = symmetry.layouts[name]
    for number, axis in enumerate(layout.axes[:2] if layout.blocks > 1 else ()):
        length = axis.length(symmetry.groups)
        if length % layout.blocks:
            yield f"array {name!r} axis {number} has length {length}, which {layout.blocks} blocks do not divide"
