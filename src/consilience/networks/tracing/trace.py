"""The groups of a PyTorch module, from its exported graph.

The module is exported to a graph of ATen operations on an example. Every tensor gets axes of atoms (`atoms.py`), every
operation says what must move together (`rules_*.py`), inputs and outputs never move, and what is left free makes the
groups (`grouping.py`). An operation without a rule fixes the axes of all it touches, and says so in the notes. Nothing
is proved here: see `consilience.networks.tracing.proof`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.tracing.axis_parts import AxisTerms, free, still
from consilience.networks.tracing.export import as_example, export
from consilience.networks.tracing.grouping import group_all
from consilience.networks.tracing.rules import contractions as rules_contractions
from consilience.networks.tracing.rules import convolutions as rules_convolutions
from consilience.networks.tracing.rules import joining as rules_pieces
from consilience.networks.tracing.rules import norms as rules_norms
from consilience.networks.tracing.rules import pointwise as rules_pointwise
from consilience.networks.tracing.rules import recurrent as rules_recurrent
from consilience.networks.tracing.rules import views as rules_views
from consilience.networks.tracing.rules.common import Call, Record, Rule, Value, unmoved

_RULES: dict[str, Rule] = {
    **rules_pointwise.RULES,
    **rules_pieces.RULES,
    **rules_views.RULES,
    **rules_contractions.RULES,
    **rules_convolutions.RULES,
    **rules_norms.RULES,
    **rules_recurrent.RULES,
}


def trace(module: nn.Module, example: Any) -> Symmetry:
    """Return the groups of a module that move together, unproved.

    Parameters
    ----------
    module
        Any module; it is looked at in evaluation mode and left as it was.
    example
        What it is called with: a tensor, a tuple of arguments, or a dict of keyword arguments.

    Raises
    ------
    UnsupportedError
        If the module cannot be exported, because what it computes depends on the numbers it is given.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    >>> symmetry = trace(net, torch.zeros(3, 4))
    >>> symmetry.groups
    {'0': 6}
    >>> [str(place) for place in symmetry.places("0")]
    ['0.weight axis 0', '0.bias axis 0', '2.weight axis 1']
    """
    arrays, aliases, notes = _named_arrays(module)
    program = export(module, as_example(example))
    record = Record(notes=notes)
    walk = _Walk(record, arrays, aliases)
    used = walk.through(program)
    for name in arrays:
        if name not in used:
            record.atoms.fix(walk.whole_axis(name))
            if arrays[name].is_floating_point():
                record.notes.append(f"{name}: the network does not use it, so it is left as it is")
    axes = {name: walk.values[name].axes for name in arrays}
    found = group_all(record, axes, [*used, *(name for name in arrays if name not in used)])
    layouts = {name: found.layouts[name] for name in arrays}
    return Symmetry(layouts, found.groups, aliases, tuple(dict.fromkeys(record.notes)))


def _named_arrays(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, str], list[str]]:
    """Return the arrays of a state dict, other names of them, and notes on those that share memory otherwise."""
    arrays: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    notes: list[str] = []
    by_memory: dict[tuple[Any, ...], str] = {}
    for name, array in module.state_dict().items():
        if not isinstance(array, Tensor):
            notes.append(f"{name}: is not a tensor, so it is left as it is")
            continue
        memory = (array.untyped_storage().data_ptr(), array.storage_offset(), tuple(array.shape), array.stride())
        if array.numel() and memory in by_memory:
            aliases[name] = by_memory[memory]
        else:
            by_memory[memory] = name
            arrays[name] = array
    return arrays, aliases, notes


class _Walk:
    """A walk through a graph: what every node's tensor is made of."""

    def __init__(self, record: Record, arrays: Mapping[str, Tensor], aliases: Mapping[str, str]) -> None:
        self.record = record
        self.aliases = aliases
        self.values = {name: self._array(name, array) for name, array in arrays.items()}
        self.nodes: dict[fx.Node, Any] = {}
        record.contexts.extend(value.axes for value in self.values.values())

    def _array(self, name: str, array: Tensor) -> Value:
        """Return an array of the network; whole numbers tell positions and never move."""
        moves = array.is_floating_point() or array.is_complex() or array.dtype == torch.bool
        axes = tuple(free(size, named=True) if moves else still(size) for size in array.shape)
        return Value(axes, tuple(frozenset({(name, number)}) for number in range(array.ndim)))

    def whole_axis(self, name: str) -> AxisTerms:
        """Return all axes of an array, one after the other."""
        return tuple(term for axis in self.values[name].axes for term in axis)

    def through(self, program: torch.export.ExportedProgram) -> list[str]:
        """Take all operations in order; return the arrays in the order of their first use."""
        signature = program.graph_signature
        targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        lifted = {**signature.inputs_to_lifted_tensor_constants, **signature.inputs_to_buffers}
        used: list[str] = []
        names: dict[fx.Node, str] = {}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                target = targets.get(node.name)
                array = self.aliases.get(target, target) if target is not None else None
                if array in self.values:
                    names[node] = array
                    self.nodes[node] = self.values[array]
                elif node.name in lifted:
                    self.nodes[node] = _constant(program.constants[lifted[node.name]])
                else:
                    self.nodes[node] = _unmoved_like(node.meta.get("val"))
            elif node.op == "output":
                for value in _flat(self._given(node.args)):
                    for axis in value.axes:
                        self.record.atoms.fix(axis)
            elif node.op == "call_function":
                used.extend(names[one] for one in node.all_input_nodes if one in names)
                self.nodes[node] = self._operation(node)
                self.record.contexts.extend(value.axes for value in _flat(self.nodes[node]))
        return list(dict.fromkeys(used))

    def _given(self, argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda node: self.nodes.get(node))

    def _operation(self, node: fx.Node) -> Any:
        args, kwargs = self._given(node.args), self._given(node.kwargs)
        if node.target is operator.getitem:
            return args[0][args[1]] if isinstance(args[0], list | tuple) else args[0]
        made = self._by_rule(node, args, kwargs)
        if self.record.atoms.gave_up:
            self.record.atoms.gave_up = False
            self.record.notes.append(
                f"{_where(node)}: {_name(node)} tells units apart or is unknown; what it touches never moves"
            )
        return made

    def _by_rule(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Apply the rule of an operation; one without a rule fixes all it touches."""
        shapes = [tuple(int(size) for size in one.shape) for one in _flat_fakes(node.meta.get("val"))]
        if isinstance(node.target, torch._ops.OpOverload):
            name = node.target._schema.name.split("::")[-1]
            in_place = name.endswith("_") and not name.endswith("__")
            plain = name.removesuffix("_") if in_place else name
            fields = {one.name: one.default_value for one in node.target._schema.arguments}
            given = {**fields, **dict(zip(fields, args, strict=False)), **kwargs}
            call = Call(self.record, plain, given, shapes)
            rule = _RULES.get(name) or _RULES.get(plain)
            if rule is None and torch.Tag.pointwise in node.target.tags:
                rule = rules_pointwise.pointwise
            if rule is not None:
                made = rule(call)
                if _shapes(made) == shapes:
                    if in_place:
                        self._overwrite(call.values[0], made)
                    return made
        for value in _flat([*args, *kwargs.values()]):
            self.record.fix_value(value)
        values = [unmoved(shape) for shape in shapes]
        return values if isinstance(node.meta.get("val"), list | tuple) else next(iter(values), None)

    def _overwrite(self, value: Value, made: Any) -> None:
        """Let a tensor that is changed in place move as what it is changed to."""
        if isinstance(made, Value) and made is not value and made.shape == value.shape:
            for old, new in zip(value.axes, made.axes, strict=True):
                self.record.atoms.join(old, new)


def _constant(array: Tensor) -> Value:
    """Return a constant: entries may be swapped along axes along which they are equal."""
    axes: list[AxisTerms] = []
    for number, size in enumerate(array.shape):
        same = size > 1 and bool((array == array.narrow(number, 0, 1)).all())
        axes.append(free(size) if same else still(size))
    return Value(tuple(axes))


def _unmoved_like(fake: Any) -> Any:
    return unmoved(tuple(fake.shape)) if isinstance(fake, Tensor) else fake


def _flat(argument: Any) -> list[Value]:
    if isinstance(argument, Value):
        return [argument]
    parts = argument.values() if isinstance(argument, Mapping) else argument
    return [one for part in parts for one in _flat(part)] if isinstance(argument, list | tuple | Mapping) else []


def _flat_fakes(fake: Any) -> list[Tensor]:
    if isinstance(fake, Tensor):
        return [fake]
    return [one for part in fake for one in _flat_fakes(part)] if isinstance(fake, list | tuple) else []


def _shapes(made: Any) -> list[tuple[int, ...]]:
    return [value.shape for value in _flat(made)]


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).split(".")[0]


def _where(node: fx.Node) -> str:
    """Return the path of the module that an operation belongs to."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return (stack[-1][0] if stack else "") or "network"
