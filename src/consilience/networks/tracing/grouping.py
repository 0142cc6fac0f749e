"""Groups and layouts from the traced axes of a network's arrays.

What is known of the axes may be more than segments (outer, units, inner) with at most one parent can say. It is first
restricted to that, by fixing units and by making inner units alike, until nothing changes; each restriction only fixes
or merges, so that this ends. The parts that still move are the groups. They are named after the array that makes their
units, or after what they are in an attention layer (heads, query_key, value).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

from consilience.networks.symmetry.axes import Axis, Group, Layout, Segment
from consilience.networks.tracing.axis_parts import (
    AxisPart,
    AxisTerms,
    Term,
    may_move,
    outer_part,
    parts_of,
    representative,
    resolve,
    term_size,
)
from consilience.networks.tracing.rules.common import TraceRecord

# The end of an array's name that says its kind: ``weight``, ``bias_hh_l0``, ``in_proj_weight``; what follows is kept.
_ARRAY_KIND = re.compile(r"^(in_proj_|[qkv]_proj_)?(weight|bias|in_proj)(_ih|_hh|_hr|_g|_v)?_?")


def restrict_to_segments(record: TraceRecord, arrays: Mapping[str, tuple[AxisTerms, ...]]) -> None:
    """Fix or merge whatever segments of axes cannot say, until nothing changes any more."""
    while True:
        changed = record.algebra.drop_ambiguous_nesting(record.contexts)
        for name, axes in arrays.items():
            for axis in (*_joined_axes(axes)[0], *record.dense_weights.get(name, ((), 1))[0]):
                for term in resolve(axis):
                    changed = _restrict_term(record, name, term) or changed
        if not changed:
            return


def _joined_axes(axes: tuple[AxisTerms, ...]) -> tuple[tuple[AxisTerms, ...], tuple[int, int] | None]:
    """Return the axes of an array, two that hold units and the units inside them as one, and which of how many outer.

    Inside the heads of graph attention units move in each by themselves, where its array (heads, units) has two axes.
    """
    resolved = [resolve(axis) for axis in axes]
    for number, (outer, inner) in enumerate(pairwise(resolved)):
        if len(outer) == len(inner) == 1 and isinstance(part := inner[0][0], AxisPart) and not part.fixed:
            host = outer_part(part)
            if host is not None and outer[0][-1] is host and not host.fixed:
                joined = (*axes[:number], ((*outer[0], *inner[0]),), *axes[number + 2 :])
                return joined, (number, term_size(outer[0]))
    return axes, None


def _restrict_term(record: TraceRecord, name: str, term: Term) -> bool:
    """Let a term of an array hold at most one group, or one and the group inside it; return whether it held more."""
    moving = [factor for factor in term if isinstance(factor, AxisPart) and not factor.fixed]
    inexpressible = [part for part in moving if part.expansion is not None or part.is_family]
    simple = [part for part in moving if part not in inexpressible]
    is_nested = len(simple) == 2 and outer_part(simple[1]) is simple[0]  # and the second directly after the first
    is_nested = is_nested and term.index(simple[1]) == term.index(simple[0]) + 1
    surplus = [*inexpressible, *simple[1 + is_nested :]]
    if surplus:
        if may_move([((part,),) for part in surplus]):
            record.notes.append(f"{name}: several groups share an axis entry by entry; only the outermost moves")
        for part in surplus:
            record.algebra.fix(((part,),))
        return True
    if simple and simple[0].outer_parts and not (len(simple) == 1 and _is_inner_row(record, name, simple[0])):
        simple[0].outer_parts = []  # its outer part is not in this term, so that it must be alike in all outer units
        return True
    return False


_Places = dict[int, list[tuple[str, int]]]
"""Arrays and axes on which parts stand, by the identity of the part."""


def _moving_parts(arrays: Mapping[str, tuple[AxisTerms, ...]]) -> tuple[dict[int, AxisPart], _Places]:
    """Return the parts that move, by identity, in the order of the arrays, and where they stand."""
    parts: dict[int, AxisPart] = {}
    places: _Places = {}
    for name, axes in arrays.items():
        for number, axis in enumerate(axes):
            for part in parts_of(axis):
                if not part.fixed:
                    parts[id(part)] = part
                    places.setdefault(id(part), []).append((name, number))
    return parts, places


def _fix_single_places(record: TraceRecord, arrays: Mapping[str, tuple[AxisTerms, ...]]) -> bool:
    """Fix units that stand on one axis only, such as positions that the example does not reach; return whether any did.

    Units of a network are made by one array and read by another. A tied array may do both.
    """
    parts, places = _moving_parts(arrays)
    parents = {id(outer_part(part)) for part in parts.values()}
    single = [
        part
        for key, part in parts.items()
        if key not in parents and len(places[key]) == 1 and record.side_of(*places[key][0]) != "both"
    ]
    for part in single:
        record.algebra.fix(((part,),))
    return bool(single)


def _is_inner_row(record: TraceRecord, name: str, part: AxisPart) -> bool:
    """Whether a part stands without its outer part because a grouped convolution's weight has the blocks on axis 0."""
    return name in record.dense_weights and any(
        part in (representative(p) for p in parts_of(axis)) and outer_part(part) in parts_of(axis)
        for axis in record.dense_weights[name][0]
    )


def group_units(
    record: TraceRecord, arrays: Mapping[str, tuple[AxisTerms, ...]], order: Sequence[str]
) -> tuple[dict[str, Layout], tuple[Group, ...]]:
    """Return the layouts of a network's arrays, and its groups, named and in order.

    `record` has what is known after all operations, `arrays` the axes of every array, `order` their order of
    computation.
    """
    restrict_to_segments(record, arrays)
    while _fix_single_places(record, arrays):
        restrict_to_segments(record, arrays)
    dense_weights = {name: dense for name, dense in record.dense_weights.items() if _moves_within_blocks(dense[0])}
    shown = {name: dense_weights[name][0] if name in dense_weights else axes for name, axes in arrays.items()}
    units = _MovingUnits(record, shown, order)
    layouts = {}
    for name, axes in shown.items():
        laid_out, split = _joined_axes(axes) if name not in dense_weights else (axes, None)
        layout_axes = []
        for number, axis in enumerate(laid_out):
            stored = number + (split is not None and number >= split[0])  # of two axes that are one, the inner
            odd, side = record.odd_copies.get((name, stored)), record.side_of(name, stored)
            layout_axes.append(Axis(units.segments(axis, odd), side))
        layouts[name] = Layout(tuple(layout_axes), dense_weights[name][1] if name in dense_weights else 1, split)
    return layouts, tuple(_fix_undetermined_sizes(units.groups(), layouts))


def _fix_undetermined_sizes(groups: Sequence[Group], layouts: Mapping[str, Layout]) -> Iterator[Group]:
    """Yield groups, unresizable where shapes do not determine their number of units, see `Symmetry.units`."""
    determined = {group.name for group in groups if not group.resizable}
    groups_of_axes = [
        {s.group for s in axis.segments if s.group is not None} for layout in layouts.values() for axis in layout.axes
    ]
    # In the order in which `Symmetry.units` solves for them: axes of one group first.
    for names in sorted(groups_of_axes, key=len):
        if len(names - determined) == 1:
            determined |= names
    for group in groups:
        yield group if group.name in determined else replace(group, resizable=False)


def _moves_within_blocks(axes: Sequence[AxisTerms]) -> bool:
    """Whether the channels inside the blocks of a grouped convolution move on the axis that holds only one block."""
    row_parts = {id(part) for part in parts_of(axes[0])}
    columns = parts_of(axes[1])
    return any(id(part) not in row_parts for part in columns) or any(outer_part(part) is not None for part in columns)


class _MovingUnits:
    """The axis parts that move, with their names.

    Arrays are given by the axes of each, those of the block-diagonal weight for grouped convolutions whose channels
    move, in the order of computation, which becomes that of the groups.
    """

    def __init__(self, record: TraceRecord, arrays: Mapping[str, tuple[AxisTerms, ...]], order: Sequence[str]) -> None:
        # Parts are told apart by identity: dictionaries below have the id of a part as key.
        rigid, self._scores, heads, blocks = (
            {id(part) for axis in axes for part in parts_of(axis)}
            for axes in (record.rigid_axes, record.score_axes, record.head_axes, record.block_axes)
        )
        self._heads = heads - blocks
        self._parts, self._places = _moving_parts({name: arrays[name] for name in order})
        self._record = record
        self._parents = {key: outer_part(part) for key, part in self._parts.items()}
        self._with_children = {id(parent) for parent in self._parents.values() if parent is not None}
        self._rigid = {
            key for key in self._parts if key in rigid or key in self._with_children or self._parents[key] is not None
        }
        self._names = self._name_all()

    def _name_all(self) -> dict[int, str]:
        """Return the names of all groups; equal ones get a number from 2."""
        names: dict[int, str] = {}
        for key in self._parts:
            name, number = self._base_name(key), 1
            taken = set(names.values())
            while (unique := name if number == 1 else f"{name}.{number}") in taken:
                number += 1
            names[key] = unique
        return names

    def _base_name(self, key: int) -> str:
        """Return the name of a group, which others may have too."""
        places = self._places[key]
        parent = self._parents[key]
        module = _common_module([name for name, _ in places])
        if key in self._heads:
            return _join_path(module, "heads")
        if parent is not None and (key in self._scores or id(parent) in self._heads):
            # Units inside a head over which q k^T sums, or those of its values.
            of_parent = _common_module([name for name, _ in self._places[id(parent)]])
            return _join_path(of_parent, "query_key" if key in self._scores else "value")
        makers = [name for name, number in places if self._record.side_of(name, number) != "input"] or [places[0][0]]
        base = _group_name(makers[0])
        # Units that have others inside are blocks where they move no array that these do not.
        children = [child for child, parent in self._parents.items() if id(parent) == key]
        inner_places = {place for child in children for place in self._places[child]}
        return _join_path(base, "blocks") if children and set(places) <= inner_places else base

    def segments(self, axis: AxisTerms, odd: tuple[int, ...] | None) -> tuple[Segment, ...]:
        """Return the segments of an axis; `odd` are the copies that change sign with the units, None for all."""
        segments: list[Segment] = []
        for term in resolve(axis):
            moving = [n for n, factor in enumerate(term) if isinstance(factor, AxisPart) and not factor.fixed]
            if not moving:
                segments.append(Segment(None, inner=term_size(term)))
                continue
            innermost = term[moving[-1]]  # a parent beside it is implied by the group's parent
            assert isinstance(innermost, AxisPart)  # noqa: S101  (moving holds the positions of parts)
            group = self._names[id(representative(innermost))]
            segments.append(Segment(group, term_size(term[: moving[0]]), term_size(term[moving[-1] + 1 :]), odd))
        return tuple(segments)

    def groups(self) -> tuple[Group, ...]:
        """Return all groups in the order of computation."""
        parents = [None if parent is None else self._names[id(parent)] for parent in self._parents.values()]
        return tuple(
            Group(self._names[key], part.size, number, parent, resizable=key not in self._rigid)
            for number, ((key, part), parent) in enumerate(zip(self._parts.items(), parents, strict=True))
        )


def _group_name(array: str) -> str:
    """Return the name of the units that an array makes: its own, without the suffix of its kind."""
    module, _, last = array.rpartition(".")
    if last.startswith("weight_hr"):  # the projection of an LSTM makes units beside those of its state
        last = last.replace("weight_hr", "weight_projection", 1)
        return _join_path(module, last.removeprefix("weight_"))
    return _join_path(module, _ARRAY_KIND.sub("", last)) or array


def _join_path(module: str, name: str) -> str:
    """Return a dotted path, either side of which may be empty."""
    return ".".join(component for component in (module, name) if component)


def _common_module(names: Sequence[str]) -> str:
    """Return the innermost module that has all these arrays."""
    columns = zip(*(name.split(".")[:-1] for name in names), strict=False)
    return ".".join(parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, columns))
