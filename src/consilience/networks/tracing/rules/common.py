"""What the rules of operations share: tensors as the tracer sees them, and what it writes down on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

from consilience.networks.symmetry.axes import Side
from consilience.networks.tracing.axis_algebra import Atoms
from consilience.networks.tracing.axis_parts import AxisTerms, axis_size, free, movable, resolve, still

Origin: TypeAlias = frozenset[tuple[str, int]]
"""Axes of arrays that an axis of a tensor comes from, as long as nothing was computed with data: (array, axis)."""


@dataclass(frozen=True)
class Value:
    """A tensor: what its axes are made of.

    Parameters
    ----------
    axes
        One for every axis.
    origins
        For every axis of what depends on arrays only, the axes of arrays that it comes from.
    data
        Whether it depends on the inputs of the network.
    """

    axes: tuple[AxisTerms, ...]
    origins: tuple[Origin, ...] = ()
    data: bool = False

    def __post_init__(self) -> None:
        if not self.origins:
            object.__setattr__(self, "origins", (frozenset(),) * len(self.axes))

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return tuple(axis_size(axis) for axis in self.axes)

    def keeping(self, numbers: Iterable[int]) -> Value:
        """Return the tensor of these axes of it, in this order."""
        numbers = list(numbers)
        return Value(tuple(self.axes[n] for n in numbers), tuple(self.origins[n] for n in numbers), self.data)

    def put(self, number: int, axis: AxisTerms) -> Value:
        """Return it with another axis in place of one."""
        return Value((*self.axes[:number], axis, *self.axes[number + 1 :]), self.origins, self.data)


@dataclass
class Record:
    """What the tracer learns on its way through a network; grows with every operation.

    Parameters
    ----------
    atoms
        What moves together.
    sides
        What an axis of an array was seen to be to its units.
    rigid
        Axes whose units are summed over with one another, so that networks may not differ in their number.
    contexts
        Axes that stand beside each other.
    scores
        Axes over which data are multiplied with data, such as what is inside an attention head.
    heads
        Axes along which that is done repeatedly.
    blocks
        Axes of blocks of channels: those of grouped convolutions and group normalisation.
    dense
        For the weight of a grouped convolution, the axes of the dense weight and the number of blocks.
    odd
        For axes of arrays that hold several copies of their units, the copies that change sign with these, if not all.
    notes
        What could not be looked through.
    """

    atoms: Atoms = field(default_factory=Atoms)
    sides: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    rigid: list[AxisTerms] = field(default_factory=list)
    contexts: list[tuple[AxisTerms, ...]] = field(default_factory=list)
    scores: list[AxisTerms] = field(default_factory=list)
    heads: list[AxisTerms] = field(default_factory=list)
    blocks: list[AxisTerms] = field(default_factory=list)
    dense: dict[str, tuple[tuple[AxisTerms, ...], int]] = field(default_factory=dict)
    odd: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def side(self, value: Value, number: int, side: str) -> None:
        """Write down what an axis is to its units, if it is one of an array."""
        if not value.data:
            for origin in value.origins[number]:
                self.sides.setdefault(origin, set()).add(side)

    def flips(self, value: Value, number: int, copies: tuple[int, ...]) -> None:
        """Write down which copies of its units change sign with them along an axis, if it is one of an array."""
        for origin in value.origins[number]:
            self.odd[origin] = copies

    def side_of(self, array: str, number: int) -> Side:
        """Return what an axis of an array is to its units, after all that was seen."""
        seen = self.sides.get((array, number), set())
        return "both" if len(seen) > 1 else "input" if seen == {"input"} else "output"

    def fix(self, axis: AxisTerms) -> None:
        """Let nothing along an axis move, and say so if something might have."""
        self.atoms.gave_up = self.atoms.gave_up or movable([axis])
        self.atoms.fix(axis)

    def fix_value(self, value: Value) -> None:
        """Let nothing along any axis move, and say so if something might have."""
        for axis in value.axes:
            self.fix(axis)

    def together(self, values: Sequence[Value], numbers: Sequence[int]) -> tuple[AxisTerms, Origin]:
        """Join one axis of each of several tensors, of which those of length one follow the others."""
        longest = max(axis_size(value.axes[n]) for value, n in zip(values, numbers, strict=True))
        found: AxisTerms | None = None
        origins: Origin = frozenset()
        for value, number in zip(values, numbers, strict=True):
            if axis_size(value.axes[number]) != longest:
                continue
            origins |= value.origins[number]
            if found is None:
                found = value.axes[number]
            else:
                self.atoms.join(found, value.axes[number])
        return found if found is not None else still(1), origins


@dataclass(frozen=True)
class Call:
    """One operation: its name, its arguments by name, and the shapes that come out."""

    record: Record
    name: str
    args: dict[str, Any]
    shapes: list[tuple[int, ...]]

    def __getitem__(self, name: str) -> Any:
        """Return an argument, None if it has none of that name."""
        return self.args.get(name)

    @property
    def values(self) -> list[Value]:
        """All tensors among the arguments."""
        return [one for argument in self.args.values() for one in _tensors(argument)]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the only output."""
        return self.shapes[0]

    def dim(self, value: Value, name: str = "dim") -> int:
        """Return an argument that numbers an axis of a tensor, from the front."""
        return int(self[name] or 0) % max(1, len(value.axes))

    def dims(self, value: Value, name: str = "dim") -> list[int]:
        """Return an argument that numbers axes, all of them if it is left out."""
        given = self[name]
        if given is None or given == []:
            return list(range(len(value.axes)))
        return [int(one) % max(1, len(value.axes)) for one in (given if isinstance(given, list | tuple) else [given])]


Rule: TypeAlias = Callable[[Call], Any]
"""Returns the tensor or the list of tensors that an operation makes."""


def _tensors(argument: Any) -> list[Value]:
    if isinstance(argument, Value):
        return [argument]
    if isinstance(argument, list | tuple):
        return [one for part in argument for one in _tensors(part)]
    return []


def unmoved(shape: Sequence[int], data: bool = True) -> Value:
    """Return a tensor no axis of which moves."""
    return Value(tuple(still(size) for size in shape), data=data)


def uniform(shape: Sequence[int]) -> Value:
    """Return a tensor of equal entries, any of which may be swapped."""
    return Value(tuple(free(size) for size in shape))


def broadcast(record: Record, values: Sequence[Value]) -> Value:
    """Return what comes of tensors combined entry by entry."""
    rank = max((len(value.axes) for value in values), default=0)
    data = any(value.data for value in values)
    axes, origins = [], []
    for number in range(-rank, 0):
        having = [value for value in values if len(value.axes) >= -number]
        axis, origin = record.together(having, [number] * len(having))
        axes.append(axis)
        origins.append(origin)
    if data:
        for value in values:
            for number in range(len(value.axes)):
                record.side(value, number, "output")
        return Value(tuple(axes), data=True)
    return Value(tuple(axes), tuple(origins))


def contract(record: Record, values: Sequence[Value], labels: Sequence[str], out: str) -> Value:
    """Return what comes of products of tensors summed over the axes whose label does not come out.

    Parameters
    ----------
    values
        The tensors.
    labels
        One letter for every axis of each.
    out
        The letters that remain, in order.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for which, letters in enumerate(labels):
        for number, letter in enumerate(letters):
            places.setdefault(letter, []).append((which, number))
    axes = {
        letter: record.together([values[which] for which, _ in at], [number for _, number in at])
        for letter, at in places.items()
    }
    data = any(value.data for value in values)
    summed = [letter for letter in places if letter not in out]
    for letter in summed:
        having = {which for which, _ in places[letter]}
        beside = [one for one in places if having <= {which for which, _ in places[one]}]
        kept = [axes[one][0] for one in beside if one in out and len(having) > 1]
        record.contexts.append((*(axes[one][0] for one in beside if one in summed), *kept))
        if len([which for which in having if values[which].data]) > 1:
            record.rigid.append(axes[letter][0])
            record.scores.append(axes[letter][0])
            record.heads.extend(kept)
        elif len(having) == 1:
            record.rigid.append(axes[letter][0])
        for position, (which, number) in enumerate(places[letter]):
            if data or position == 0:
                record.side(values[which], number, "input")
    if data:
        for letter in out:
            for which, number in places[letter]:
                record.side(values[which], number, "output")
        return Value(tuple(axes[letter][0] for letter in out), data=True)
    return Value(tuple(axes[letter][0] for letter in out), tuple(axes[letter][1] for letter in out))


def summed(record: Record, value: Value, numbers: Sequence[int]) -> None:
    """Write down that entries along these axes are combined with one another, the same in any order."""
    kept = [axis for number, axis in enumerate(value.axes) if number not in numbers]
    record.contexts.append(tuple(kept))
    record.rigid.extend(value.axes[number] for number in numbers)


def reshape(record: Record, value: Value, shape: Sequence[int]) -> Value:
    """Return the tensor with the same entries in row-major order and another shape."""
    atoms = record.atoms
    sizes = [axis_size(axis) for axis in value.axes]
    if prod(sizes) == 0:
        return unmoved(shape, value.data)
    old = [number for number, size in enumerate(sizes) if size != 1]
    axes: list[AxisTerms] = []
    origins: list[Origin] = []
    new = list(shape)
    while new:
        if new[0] == 1:
            new.pop(0)
            axes.append(still(1))
            origins.append(frozenset())
            continue
        taken, given = [old.pop(0)], [new.pop(0)]
        while (have := prod(sizes[number] for number in taken)) != (want := prod(given)):
            if have < want:
                taken.append(old.pop(0))
            else:
                given.append(new.pop(0))
        axis = value.axes[taken[0]] if len(taken) == 1 else atoms.flatten([value.axes[number] for number in taken])
        axes.extend([axis] if len(given) == 1 else atoms.unflatten(axis, given))
        origins.extend([frozenset().union(*(value.origins[number] for number in taken))] * len(given))
    return Value(tuple(resolve(axis) for axis in axes), tuple(origins), value.data)
