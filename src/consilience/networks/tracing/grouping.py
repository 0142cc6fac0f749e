"""From what is known of all axes to the groups of a network and the layouts of its arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from consilience.networks.symmetry.axes import Axis, Group, Layout, Segment
from consilience.networks.tracing.axis_parts import (
    Atom,
    AxisTerms,
    Term,
    atoms,
    factor_size,
    find,
    movable,
    outer_of,
    resolve,
)
from consilience.networks.tracing.rules.common import Record

_KIND = re.compile(r"^(in_proj_|[qkv]_proj_)?(weight|bias|in_proj)(_ih|_hh|_hr|_g|_v)?_?")


@dataclass(frozen=True)
class Found:
    """Groups and layouts, as `Symmetry` wants them."""

    layouts: dict[str, Layout]
    groups: tuple[Group, ...]


def settle(record: Record, arrays: Mapping[str, tuple[AxisTerms, ...]]) -> None:
    """Restrict what is known to what can be said in segments, until nothing changes any more."""
    while True:
        changed = record.atoms.settle(record.contexts)
        for name, axes in arrays.items():
            for axis in (*axes, *record.dense.get(name, ((), 1))[0]):
                for term in resolve(axis):
                    changed = _simplify(record, name, term) or changed
        if not changed:
            return


def _simplify(record: Record, name: str, term: Term) -> bool:
    """Let a term of an array hold at most one group, or one inside another beside it; whether it did not."""
    movers = [factor for factor in term if isinstance(factor, Atom) and not factor.fixed]
    odd = [one for one in movers if one.axis is not None or one.is_family]
    rest = [one for one in movers if one not in odd]
    beside = len(rest) == 2 and term.index(rest[1]) == term.index(rest[0]) + 1
    if beside and outer_of(rest[1]) is rest[0]:
        extra: list[Atom] = []
    else:
        extra = rest[1:]
    if odd or extra:
        if movable([((one,),) for one in (*odd, *extra)]):
            record.notes.append(f"{name}: several groups share an axis entry by entry; only the outermost moves")
        for one in (*odd, *extra):
            record.atoms.fix(((one,),))
        return True
    if rest and rest[0].inside and not (len(rest) == 1 and _is_inner_row(record, name, rest[0])):
        rest[0].inside = []
        return True
    return False


def _fix_unmatched(record: Record, arrays: Mapping[str, tuple[AxisTerms, ...]]) -> bool:
    """Fix units that stand at one place only, such as positions that the example does not reach; whether there were."""
    places: dict[int, list[tuple[str, int]]] = {}
    found: dict[int, Atom] = {}
    for name, axes in arrays.items():
        for number, axis in enumerate(axes):
            for atom in atoms(axis):
                if not atom.fixed:
                    found[id(atom)] = atom
                    places.setdefault(id(atom), []).append((name, number))
    parents = {id(outer_of(atom)) for atom in found.values()}
    alone = [
        atom
        for key, atom in found.items()
        if key not in parents and len(places[key]) == 1 and record.side_of(*places[key][0]) != "both"
    ]
    for atom in alone:
        record.atoms.fix(((atom,),))
    return bool(alone)


def _is_inner_row(record: Record, name: str, atom: Atom) -> bool:
    """Whether the atom stands alone because a grouped convolution's weight has its blocks on the other axis."""
    return name in record.dense and any(
        atom in (find(one) for one in atoms(axis)) and outer_of(atom) in atoms(axis) for axis in record.dense[name][0]
    )


def group_all(record: Record, arrays: Mapping[str, tuple[AxisTerms, ...]], order: Sequence[str]) -> Found:
    """Name the groups and lay the arrays out.

    Parameters
    ----------
    record
        What the tracer learnt.
    arrays
        The axes of every array.
    order
        The arrays in the order of computation.
    """
    settle(record, arrays)
    while _fix_unmatched(record, arrays):
        settle(record, arrays)
    dense = {name: found for name, found in record.dense.items() if _moves_within(found[0])}
    laid = {name: dense[name][0] if name in dense else axes for name, axes in arrays.items()}
    units = _Units(record, laid, order)
    layouts = {}
    for name, axes in laid.items():
        made = tuple(
            Axis(units.segments(axis, record.odd.get((name, number))), record.side_of(name, number))
            for number, axis in enumerate(axes)
        )
        layouts[name] = Layout(made, dense[name][1] if name in dense else 1)
    return Found(layouts, tuple(_told(units.groups(), layouts)))


def _told(groups: Sequence[Group], layouts: Mapping[str, Layout]) -> Iterator[Group]:
    """Let those groups have the number of units traced that no shape of an array tells alone."""
    known = {group.name for group in groups if not group.resizable}
    axes = [{s.group for s in axis.segments if s.group is not None} for one in layouts.values() for axis in one.axes]
    for names in sorted(axes, key=len):
        if len(names - known) == 1:
            known |= names
    for group in groups:
        yield group if group.name in known else replace(group, resizable=False)


def _moves_within(axes: Sequence[AxisTerms]) -> bool:
    """Whether the channels inside the blocks of a grouped convolution move on the axis that holds only one block."""
    blocks = {id(one) for one in atoms(axes[0])} & {id(one) for one in atoms(axes[1])}
    return any(id(one) not in blocks for one in atoms(axes[1])) or any(
        outer_of(one) is not None for one in atoms(axes[1])
    )


class _Units:
    """The atoms that move, with their names."""

    def __init__(self, record: Record, laid: Mapping[str, tuple[AxisTerms, ...]], order: Sequence[str]) -> None:
        rigid = {id(one) for axis in record.rigid for one in atoms(axis)}
        self._scores = {id(one) for axis in record.scores for one in atoms(axis)}
        self._heads = {id(one) for axis in record.heads for one in atoms(axis)}
        self._blocks = {id(one) for axis in record.blocks for one in atoms(axis)}
        self._touched: dict[int, list[tuple[str, int]]] = {}
        self._atoms: dict[int, Atom] = {}
        for name in order:
            for number, axis in enumerate(laid[name]):
                for atom in atoms(axis):
                    if not atom.fixed:
                        self._atoms[id(atom)] = atom
                        self._touched.setdefault(id(atom), []).append((name, number))
        self._record = record
        self._parents = {key: outer_of(atom) for key, atom in self._atoms.items()}
        self._families = {id(one) for one in self._parents.values() if one is not None}
        self._rigid = {
            key for key in self._atoms if key in rigid or key in self._families or self._parents[key] is not None
        }
        self._names = self._name_all()

    def _name_all(self) -> dict[int, str]:
        names: dict[int, str] = {}
        for key in self._atoms:
            name, number = self._free_name(key), 1
            taken = set(names.values())
            while (unique := name if number == 1 else f"{name}.{number}") in taken:
                number += 1
            names[key] = unique
        return names

    def _free_name(self, key: int) -> str:
        places = self._touched[key]
        parent = self._parents[key]
        common = _common([name for name, _ in places])
        if key in self._heads and key not in self._blocks:
            return _inside(common, "heads")
        if key in self._scores and parent is not None:
            return _inside(_common([name for name, _ in self._touched[id(parent)]]), "query_key")
        if parent is not None and id(parent) in self._heads and id(parent) not in self._blocks:
            return _inside(_common([name for name, _ in self._touched[id(parent)]]), "value")
        made = [name for name, number in places if self._record.side_of(name, number) != "input"] or [places[0][0]]
        base = _base(made[0])
        return _inside(base, "blocks") if key in self._families and not self._stands_alone(key) else base

    def _stands_alone(self, key: int) -> bool:
        """Whether units that have others inside also move arrays that these do not."""
        inner = {at for one, parent in self._parents.items() if id(parent) == key for at in self._touched[one]}
        return not set(self._touched[key]) <= inner

    def segments(self, axis: AxisTerms, odd: tuple[int, ...] | None) -> tuple[Segment, ...]:
        """Return an axis in segments, of whose copies of units `odd` change sign with these (all, if it is None)."""
        found: list[Segment] = []
        for term in resolve(axis):
            moving = [n for n, factor in enumerate(term) if isinstance(factor, Atom) and not factor.fixed]
            if not moving:
                found.append(Segment(None, inner=_size(term)))
                continue
            last = term[moving[-1]]
            assert isinstance(last, Atom)  # noqa: S101  (moving holds the places of atoms)
            group = self._names[id(find(last))]
            found.append(Segment(group, _size(term[: moving[0]]), _size(term[moving[-1] + 1 :]), odd))
        return tuple(found)

    def groups(self) -> tuple[Group, ...]:
        """Return all groups in the order of computation."""
        made = []
        for number, (key, atom) in enumerate(self._atoms.items()):
            parent = self._parents[key]
            made.append(
                Group(
                    self._names[key],
                    atom.size,
                    number,
                    parent=None if parent is None else self._names[id(parent)],
                    resizable=key not in self._rigid,
                )
            )
        return tuple(made)


def _size(term: Term) -> int:
    size = 1
    for factor in term:
        size *= factor_size(factor)
    return size


def _base(array: str) -> str:
    """Return the name of an array without what says that it is a weight."""
    module, _, last = array.replace(".parametrizations.weight.original0", ".weight").rpartition(".")
    if last.startswith("weight_hr"):
        last = last.replace("weight_hr", "weight_projection", 1)
        return _inside(module, last.removeprefix("weight_"))
    return _inside(module, _KIND.sub("", last)) or array


def _inside(module: str, name: str) -> str:
    return ".".join(part for part in (module, name) if part)


def _common(names: Sequence[str]) -> str:
    """Return the innermost module that has all these arrays."""
    paths = [name.split(".")[:-1] for name in names]
    kept = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        kept.append(parts[0])
    return ".".join(kept)
