"""JSON schema and reader of symmetries.

The counterpart of `symmetry_to_json`. A file may be damaged or made to do harm, so that its symmetry is checked before
anything relies on it: first the number of entries, then types and ranges field by field, then every name that refers to
another. Each failure is a `FileFormatError` that names the file and the entry. `Symmetry.units` then checks whether the
symmetry fits the arrays of the file, and the digest of its proof whether it was changed: a changed document is read,
but is no longer proved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import FailFast, Field

from consilience.errors import FileFormatError, Problem
from consilience.files.document import validate_document
from consilience.files.schemas import Chunked, Entries, StrictModel
from consilience.networks.symmetry.axes import Action, Axis, Group, Layout, Proof, Segment, Side
from consilience.networks.symmetry.symmetry import Symmetry

REMEDY = "trace it again with consilience.symmetry and write it with consilience.save"
MAX_LENGTH = 2**40
"""Largest size or position in a document. A bound that is not reached (an axis of it would hold terabytes), so that
sums and products of sizes can still be printed in messages."""
MAX_ITEMS = 30_000
"""Most arrays, groups, aliases or notes of one symmetry. A bound against hostile files. Chosen by hand; nobody has
measured other values."""
MAX_ENTRIES = 1_000_000
"""Most values in all layouts together. A bound against hostile files. Chosen by hand; nobody has measured other
values."""
MAX_LISTED_PROBLEMS = 5
"""Problems that a message lists; more are counted. Chosen by hand, for legible messages."""

Count = Annotated[int, Field(ge=1, le=MAX_LENGTH)]
Number = Annotated[int, Field(ge=0, le=MAX_LENGTH)]
# JSON has no tuples, so the list itself is not taken strictly; what is in it is.
SegmentEntry = Annotated[tuple[str | None, Count, Number], Field(strict=False)]
SplitEntry = Annotated[tuple[Number, Count], Field(strict=False)]


class AxisEntry(StrictModel):
    """One axis of an array: its segments as (group, outer, inner), and the odd copies of each where not all are odd."""

    side: Side
    segments: Annotated[list[SegmentEntry], FailFast()]
    odd: Chunked[list[Chunked[list[Number] | None]] | None] = None


class LayoutEntry(StrictModel):
    """The axes of an array."""

    axes: Annotated[list[AxisEntry], FailFast()]
    blocks: Count
    split: SplitEntry = (0, 1)  # of arrays that state one

    @property
    def stated_split(self) -> tuple[int, int] | None:
        """Which axis is stored as two, where any is."""
        return self.split if "split" in self.model_fields_set else None


class GroupEntry(StrictModel):
    """Units that move together."""

    name: str
    size: Count
    order: Number
    parent: str | None
    actions: Annotated[list[Action], FailFast()]
    resizable: bool


class ProofEntry(StrictModel):
    """Proof of the symmetry with this digest."""

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

    `where` is the file's name for messages. Raises FileFormatError, naming the file and the entry: fields that are
    missing, unknown or of another type, sizes below 1, names of groups or arrays that do not exist or stand twice,
    parents that have parents.

    Examples
    --------
    >>> from consilience.networks.symmetry.symmetry import symmetry_to_json
    >>> rows = Layout((Axis((Segment("hidden"),)), Axis((Segment(None, inner=4),), "input")))
    >>> symmetry = Symmetry({"1.weight": rows}, (Group("hidden", 3, 0),))
    >>> symmetry_from_json(symmetry_to_json(symmetry), "net.json") == symmetry
    True
    """
    _refuse_oversized(document, where)
    entry = validate_document(where, SymmetryEntry, document, "symmetry", REMEDY)
    if problems := list(_name_problems(entry)):
        raise _format_error(problems, where)
    symmetry = Symmetry(
        {
            name: Layout(
                tuple(Axis(_segments(axis), axis.side) for axis in layout.axes), layout.blocks, layout.stated_split
            )
            for name, layout in entry.arrays.items()
        },
        tuple(Group(g.name, g.size, g.order, g.parent, tuple(g.actions), g.resizable) for g in entry.groups),
        entry.aliases,
        tuple(entry.notes),
        None if entry.proof is None else Proof(entry.proof.digest, entry.proof.deviation, entry.proof.trials),
    )
    if problems := [problem for name in entry.arrays for problem in _block_problems(symmetry, name)]:
        raise _format_error(problems, where)
    return symmetry


def _refuse_oversized(document: Any, where: str) -> None:
    """Raise for a document with more entries than any network has, before pydantic builds an object of each."""
    for field in ("arrays", "groups", "aliases", "notes"):
        items = document.get(field) if isinstance(document, dict) else None
        if isinstance(items, dict | list) and len(items) > MAX_ITEMS:
            raise FileFormatError(where, f"its symmetry has {len(items)} {field}, expected at most {MAX_ITEMS}")
    arrays = document.get("arrays") if isinstance(document, dict) else None
    pending: list[Any] = list(arrays.values()) if isinstance(arrays, dict) else []
    count = 0
    while pending:  # layouts hold axes, which hold segments: dicts and lists, counted one by one
        value = pending.pop()
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        count += len(items)
        if count > MAX_ENTRIES:
            raise FileFormatError(where, f"its symmetry has more than {MAX_ENTRIES} entries", REMEDY)
        pending.extend(item for item in items if isinstance(item, dict | list))


def _segments(axis: AxisEntry) -> tuple[Segment, ...]:
    """Return the segments of an axis; an axis without ``odd`` has copies that are all odd."""
    odd_copies = axis.odd or [None] * len(axis.segments)
    return tuple(
        Segment(*entry, odd=None if copies is None else tuple(copies))
        for entry, copies in zip(axis.segments, odd_copies, strict=True)
    )


def _format_error(problems: list[str], where: str) -> FileFormatError:
    """Return the error that lists the problems of a document."""
    listed = [
        Problem(where, f"its symmetry is not valid: {problem}", REMEDY) for problem in problems[:MAX_LISTED_PROBLEMS]
    ]
    unlisted = len(problems) - MAX_LISTED_PROBLEMS
    count = [Problem(where, f"its symmetry has {unlisted} more such problems")] if unlisted > 0 else []
    return FileFormatError(listed + count)


def _name_problems(entry: SymmetryEntry) -> Iterator[str]:
    """Yield every name of a group, parent or array that does not exist or is used twice, and impossible blocks."""
    parents = {group.name: group.parent for group in entry.groups}
    yield from _group_problems(entry.groups, parents)
    placed: set[str] = set()
    for name, layout in entry.arrays.items():
        yield from _layout_problems(name, layout, parents)
        placed |= {group for axis in layout.axes for group, _, _ in axis.segments if group is not None}
    # No shape would contradict the size of a group that stands in no array.
    placed |= {parent for name in placed if (parent := parents.get(name)) is not None}
    for name in parents:
        if name not in placed:
            yield f"group {name!r} has no place in any array"
    for alias, name in entry.aliases.items():
        if name not in entry.arrays:
            yield f"array {alias!r} is said to be {name!r}, which does not exist"
        if alias in entry.arrays:
            yield f"array {alias!r} is said to be {name!r}, but has axes of its own"


def _group_problems(groups: Sequence[GroupEntry], parents: Mapping[str, str | None]) -> Iterator[str]:
    """Yield what is wrong with groups: names and actions that stand twice, and parents that cannot be."""
    for name, count in Counter(group.name for group in groups).items():
        if count > 1:
            yield f"group {name!r} stands twice"
    for group in groups:
        if len(set(group.actions)) < len(group.actions):
            yield f"group {group.name!r} has an action twice"
        if group.parent is not None and group.parent not in parents:
            yield f"group {group.name!r} has the parent {group.parent!r}, which does not exist"
        elif group.parent is not None and parents[group.parent] is not None:
            yield f"group {group.name!r} has the parent {group.parent!r}, which has a parent itself"


def _layout_problems(name: str, layout: LayoutEntry, groups: Container[str]) -> Iterator[str]:
    """Yield what is wrong with an array: blocks without axes, impossible odd copies, groups that do not exist."""
    if layout.blocks > 1 and len(layout.axes) < 2:
        yield f"array {name!r} has {layout.blocks} blocks but {len(layout.axes)} axes, expected at least 2"
    if layout.stated_split is not None and (layout.blocks > 1 or layout.split[0] >= len(layout.axes)):
        yield f"array {name!r} has an axis {layout.split[0]} stored as two, with {len(layout.axes)} axes"
    for number, axis in enumerate(layout.axes):
        if axis.odd is not None and not _has_valid_odd_copies(axis):
            yield f"array {name!r} axis {number} has odd copies {axis.odd}, expected some of each segment's"
        for group, _, inner in axis.segments:
            if group is not None and group not in groups:
                yield f"array {name!r} axis {number} follows the group {group!r}, which does not exist"
            elif group is not None and inner < 1:
                yield f"array {name!r} axis {number} gives the units of {group!r} no entries"


def _has_valid_odd_copies(axis: AxisEntry) -> bool:
    """Whether the odd copies of every segment are numbers of its copies, each once and in order."""
    odd_copies = axis.odd or []
    return len(odd_copies) == len(axis.segments) and all(
        copies is None or (copies == sorted(set(copies)) and all(copy < outer for copy in copies))
        for copies, (_, outer, _) in zip(odd_copies, axis.segments, strict=True)
    )


def _block_problems(symmetry: Symmetry, name: str) -> Iterator[str]:
    """Yield the axes that their number of blocks, or the first of the two that they are stored as, does not divide."""
    layout = symmetry.layouts[name]
    if layout.split is not None:
        number, outer = layout.split
        length = layout.axes[number].length(symmetry.groups)
        if length % outer:
            yield f"array {name!r} axis {number} has length {length}, which {outer} does not divide"
    for number, axis in enumerate(layout.axes[:2] if layout.blocks > 1 else ()):
        length = axis.length(symmetry.groups)
        if length % layout.blocks:
            yield f"array {name!r} axis {number} has length {length}, which {layout.blocks} blocks do not divide"
