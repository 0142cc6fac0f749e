"""Traced tensors, the trace record, and the operations that most tracing rules are made of.

A rule takes an `OperatorCall`, tells the `TraceRecord` which axes its operation joins or fixes, and returns the tensors
that come out. `broadcast` (entry by entry), `contract` (sums of products), `record_reduction` and `reshape` cover
nearly all operations of ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

from consilience.networks.symmetry.axes import Side
from consilience.networks.tracing.axis_algebra import AxisAlgebra
from consilience.networks.tracing.axis_parts import AxisTerms, axis_size, fixed_axis, free_axis, may_move, resolve

Origin: TypeAlias = frozenset[tuple[str, int]]
"""Axes of arrays, as (array, axis), that an axis of a tensor comes from, as long as nothing was computed with data."""


@dataclass(frozen=True)
class TracedTensor:
    """A tensor of the traced graph: the terms of its axes, without its numbers."""

    axes: tuple[AxisTerms, ...]  # every axis, in order
    # For every axis of a tensor that is computed from arrays only, the axes of arrays that it comes from.
    origins: tuple[Origin, ...] = ()
    data: bool = False  # whether it depends on the inputs of the network

    def __post_init__(self) -> None:
        if not self.origins:
            object.__setattr__(self, "origins", (frozenset(),) * len(self.axes))

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return tuple(axis_size(axis) for axis in self.axes)

    def select_axes(self, dims: Iterable[int]) -> TracedTensor:
        """Return the tensor of these axes, in this order."""
        dims = list(dims)
        return TracedTensor(tuple(self.axes[n] for n in dims), tuple(self.origins[n] for n in dims), self.data)

    def replace_axis(self, dim: int, axis: AxisTerms) -> TracedTensor:
        """Return the tensor with another axis in place of one."""
        return TracedTensor((*self.axes[:dim], axis, *self.axes[dim + 1 :]), self.origins, self.data)


@dataclass
class TraceRecord:
    """What is known of a network's axes while it is traced; grows with every operation."""

    algebra: AxisAlgebra = field(default_factory=AxisAlgebra)  # joins and fixes axes
    # By axis of an array, the sides on which operations used it.
    sides: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    # Axes whose units are combined with one another, so that networks may not differ in their number.
    rigid_axes: list[AxisTerms] = field(default_factory=list)
    contexts: list[tuple[AxisTerms, ...]] = field(default_factory=list)  # axes that stand beside each other in a tensor
    # Axes over which data are multiplied with data, such as the units inside an attention head for its scores.
    score_axes: list[AxisTerms] = field(default_factory=list)
    # Axes along which such products are computed separately, such as attention heads.
    head_axes: list[AxisTerms] = field(default_factory=list)
    # Axes of blocks of channels: those of grouped convolutions and group normalisation.
    block_axes: list[AxisTerms] = field(default_factory=list)
    # For the weight of a grouped convolution, the axes of the block-diagonal weight and the number of blocks.
    dense_weights: dict[str, tuple[tuple[AxisTerms, ...], int]] = field(default_factory=dict)
    # For axes of arrays with several copies of their units, the copies that change sign with these, if not all do.
    odd_copies: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what could not be looked through, for the user

    def add_side(self, tensor: TracedTensor, dim: int, side: str) -> None:
        """Record that an operation used an axis on this side, if it is an axis of an array."""
        if not tensor.data:
            for origin in tensor.origins[dim]:
                self.sides.setdefault(origin, set()).add(side)

    def side_of(self, array: str, dim: int) -> Side:
        """Return the side of an axis of an array, after all operations that used it."""
        sides = self.sides.get((array, dim), set())
        return "both" if len(sides) > 1 else "input" if sides == {"input"} else "output"

    def fix(self, axis: AxisTerms) -> None:
        """Let nothing along an axis move, and remember it if something might have."""
        self.algebra.has_fixed_units = self.algebra.has_fixed_units or may_move([axis])
        self.algebra.fix(axis)

    def fix_all_axes(self, tensor: TracedTensor) -> None:
        """Let nothing along any axis move, and remember it if something might have."""
        for axis in tensor.axes:
            self.fix(axis)

    def join_axes(self, tensors: Sequence[TracedTensor], dims: Sequence[int]) -> tuple[AxisTerms, Origin]:
        """Join one axis of each of several tensors; axes of length one are broadcast and stay as they are."""
        longest = max(axis_size(tensor.axes[n]) for tensor, n in zip(tensors, dims, strict=True))
        joined: AxisTerms | None = None
        origins: Origin = frozenset()
        for tensor, dim in zip(tensors, dims, strict=True):
            if axis_size(tensor.axes[dim]) != longest:
                continue
            origins |= tensor.origins[dim]
            if joined is None:
                joined = tensor.axes[dim]
            else:
                self.algebra.join(joined, tensor.axes[dim])
        return joined if joined is not None else fixed_axis(1), origins


@dataclass(frozen=True)
class OperatorCall:
    """One operation of the graph."""

    record: TraceRecord  # takes up what the operation says of axes
    name: str  # name of the operator in ATen, without overload and without the underscore of an operation in place
    args: dict[str, Any]  # arguments by name, defaults included; tensors are traced tensors
    shapes: list[tuple[int, ...]]  # shapes of the tensors that come out

    def __getitem__(self, name: str) -> Any:
        """Return an argument, None if there is none of that name."""
        return self.args.get(name)

    @property
    def tensors(self) -> list[TracedTensor]:
        """All tensors among the arguments."""
        return [tensor for argument in self.args.values() for tensor in tensors_in(argument)]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the only output."""
        return self.shapes[0]

    def dim(self, tensor: TracedTensor, name: str = "dim") -> int:
        """Return an argument that is the number of an axis, counted from the front also where it is negative."""
        return int(self[name] or 0) % max(1, len(tensor.axes))

    def dims(self, tensor: TracedTensor, name: str = "dim") -> list[int]:
        """Return an argument that is one or several numbers of axes; all axes if it is left out."""
        argument = self[name]
        if argument is None or argument == []:
            return list(range(len(tensor.axes)))
        dims = argument if isinstance(argument, list | tuple) else [argument]
        return [int(dim) % max(1, len(tensor.axes)) for dim in dims]


OperatorRule: TypeAlias = Callable[[OperatorCall], Any]
"""Joins the axes of an operation, and returns the tensor or the list of tensors that come out."""


def under_names(rule: OperatorRule, names: str) -> dict[str, OperatorRule]:
    """Return one rule under the names of several operations, which are separated by spaces."""
    return dict.fromkeys(names.split(), rule)


def tensors_in(argument: Any) -> list[TracedTensor]:
    """Return the traced tensors of an argument, lists and dicts looked into."""
    if isinstance(argument, TracedTensor):
        return [argument]
    items = argument.values() if isinstance(argument, Mapping) else argument
    is_container = isinstance(argument, list | tuple | Mapping)
    return [tensor for item in items for tensor in tensors_in(item)] if is_container else []


def fixed_tensor(shape: Sequence[int], data: bool = True) -> TracedTensor:
    """Return a tensor of this shape none of whose axes move."""
    return TracedTensor(tuple(fixed_axis(size) for size in shape), data=data)


def constant_tensor(shape: Sequence[int]) -> TracedTensor:
    """Return a tensor of equal entries, which any permutation along any axis leaves as it is."""
    return TracedTensor(tuple(free_axis(size) for size in shape))


def broadcast(record: TraceRecord, tensors: Sequence[TracedTensor]) -> TracedTensor:
    """Return the tensor that combines others entry by entry: axes are aligned at the end, and move together."""
    rank = max((len(tensor.axes) for tensor in tensors), default=0)
    data = any(tensor.data for tensor in tensors)
    axes, origins = [], []
    for dim in range(-rank, 0):
        long_enough = [tensor for tensor in tensors if len(tensor.axes) >= -dim]
        axis, origin = record.join_axes(long_enough, [dim] * len(long_enough))
        axes.append(axis)
        origins.append(origin)
    if data:
        for tensor in tensors:
            for dim in range(len(tensor.axes)):
                record.add_side(tensor, dim, "output")
        return TracedTensor(tuple(axes), data=True)
    return TracedTensor(tuple(axes), tuple(origins))


def contract(record: TraceRecord, tensors: Sequence[TracedTensor], labels: Sequence[str], out: str) -> TracedTensor:
    """Return a sum of products of tensors, as ``einsum`` computes it.

    Axes of one label move together. A summed label reads its units: the arrays that have it get an input side there,
    and the labels that remain an output side. `labels` has one letter per axis of each factor, `out` the letters that
    remain, in order; all others are summed over.
    """
    places: dict[str, list[tuple[int, int]]] = {}  # by letter: (number of the factor, axis) of each occurrence
    for factor, letters in enumerate(labels):
        for dim, letter in enumerate(letters):
            places.setdefault(letter, []).append((factor, dim))
    joined = {
        letter: record.join_axes([tensors[factor] for factor, _ in found], [dim for _, dim in found])
        for letter, found in places.items()
    }
    axes = {letter: axis for letter, (axis, _) in joined.items()}
    data = any(tensor.data for tensor in tensors)
    for letter, found in places.items():
        if letter not in out:
            factors = {factor for factor, _ in found}
            # Labels on every factor of the summed one, such as batch and heads, along which sums are separate.
            shared = [other for other, others in places.items() if factors <= {factor for factor, _ in others}]
            batch_axes = [axes[other] for other in shared if other in out] if len(factors) > 1 else []
            record.contexts.append((*(axes[other] for other in shared if other not in out), *batch_axes))
            is_score = sum(tensors[factor].data for factor in factors) > 1  # data times data, as queries times keys
            if is_score or len(factors) == 1:
                record.rigid_axes.append(axes[letter])
            if is_score:
                record.score_axes.append(axes[letter])
                record.head_axes.extend(batch_axes)
        # Between arrays alone (W = B A), the first factor reads the units that the second makes.
        used = found if data else found[: letter not in out]
        for factor, dim in used:
            record.add_side(tensors[factor], dim, "output" if letter in out else "input")
    origins = () if data else tuple(joined[letter][1] for letter in out)
    return TracedTensor(tuple(axes[letter] for letter in out), origins, data)


def record_reduction(record: TraceRecord, tensor: TracedTensor, dims: Sequence[int]) -> None:
    """Record that entries along these axes are combined with one another, the same in any order."""
    remaining_axes = [axis for dim, axis in enumerate(tensor.axes) if dim not in dims]
    record.contexts.append(tuple(remaining_axes))
    record.rigid_axes.extend(tensor.axes[dim] for dim in dims)


def reshape(record: TraceRecord, tensor: TracedTensor, shape: Sequence[int]) -> TracedTensor:
    """Return the tensor with the same entries in row-major order and another shape."""
    algebra = record.algebra
    sizes = [axis_size(axis) for axis in tensor.axes]
    if prod(sizes) == 0:
        return fixed_tensor(shape, tensor.data)
    old_dims = [dim for dim, size in enumerate(sizes) if size != 1]
    axes: list[AxisTerms] = []
    origins: list[Origin] = []
    new_sizes = list(shape)
    while new_sizes:
        if new_sizes[0] == 1:
            new_sizes.pop(0)
            axes.append(fixed_axis(1))
            origins.append(frozenset())
            continue
        # The shortest runs of old and new axes of the same number of entries: the old are flattened, then unflattened.
        old_run, new_run = [old_dims.pop(0)], [new_sizes.pop(0)]
        while (old_size := prod(sizes[dim] for dim in old_run)) != (new_size := prod(new_run)):
            if old_size < new_size:
                old_run.append(old_dims.pop(0))
            else:
                new_run.append(new_sizes.pop(0))
        axis = tensor.axes[old_run[0]] if len(old_run) == 1 else algebra.flatten([tensor.axes[dim] for dim in old_run])
        axes.extend([axis] if len(new_run) == 1 else algebra.unflatten(axis, new_run))
        origins.extend([frozenset().union(*(tensor.origins[dim] for dim in old_run))] * len(new_run))
    return TracedTensor(tuple(resolve(axis) for axis in axes), tuple(origins), tensor.data)
