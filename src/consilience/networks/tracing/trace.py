"""Tracing: the permutation groups of a PyTorch module from its exported graph.

The module is exported to a graph of ATen operations on an example. The axes of every tensor are sums of products of
axis parts (`axis_parts`), every operation has a rule that joins or fixes axes (`rules`), inputs and outputs never move,
and parts that are still free at the end make the groups (`grouping`). An operation without a rule fixes the axes of all
tensors that it touches, which the notes of the symmetry say: fewer units can then be matched, none wrongly. Names of
modules and arrays play no part but in the names of groups. Nothing is proved here: see
`consilience.networks.tracing.proof`.

**Export of modules to graphs of ATen operations**.

`torch.export` in its non-strict mode follows what the module computes on an example, whatever its code looks like. It
fails where the path depends on the numbers in tensors; the error then tells a module that cannot be exported from an
example that does not fit.

Only what a model answers is its output here (`module_outputs.answer_of`). A cache moves with the heads, and the
encoder's last states with the residual stream; as outputs, which never move, they would fix both.
"""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import wraps
from io import StringIO
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import OutputKind
from torch.utils._pytree import keystr, tree_leaves, tree_leaves_with_path, tree_unflatten

from consilience.errors import InputError, UnsupportedError
from consilience.networks.entry_names import is_extra_state
from consilience.networks.example import Example, as_example
from consilience.networks.module_inputs import MAX_QUOTED_CHARACTERS
from consilience.networks.module_outputs import answer_of
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import evaluating, is_scripted
from consilience.networks.tracing.axis_parts import AxisTerms, fixed_axis, free_axis, parts_of
from consilience.networks.tracing.grouping import group_units
from consilience.networks.tracing.rules import contractions as rules_contractions
from consilience.networks.tracing.rules import convolutions as rules_convolutions
from consilience.networks.tracing.rules import joining as rules_joining
from consilience.networks.tracing.rules import norms as rules_norms
from consilience.networks.tracing.rules import pointwise as rules_pointwise
from consilience.networks.tracing.rules import recurrent as rules_recurrent
from consilience.networks.tracing.rules.common import (
    OperatorCall,
    OperatorRule,
    TracedTensor,
    TraceRecord,
    fixed_tensor,
    tensors_in,
)

_RULES: dict[str, OperatorRule] = {
    **rules_pointwise.RULES,
    **rules_joining.RULES,
    **rules_contractions.RULES,
    **rules_convolutions.RULES,
    **rules_norms.RULES,
    **rules_recurrent.RULES,
}


def trace(module: nn.Module, example: Any) -> Symmetry:
    """Return the symmetry of a module, unproved.

    It is traced in evaluation mode and left as it was; the example is a tensor, a tuple of arguments, or a dict of
    keyword arguments. A module of the meta device, which has shapes alone, is traced as others are. Raises
    UnsupportedError if what it computes depends on the numbers it is given.

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
    arguments = as_example(example)
    if is_meta(module):  # real inputs beside its arrays; of tokens it may ask which they are
        arguments = arguments.changed(lambda tensor: tensor.to("meta") if tensor.is_floating_point() else tensor)
    program = export(module, arguments)
    record = TraceRecord(notes=notes)
    walk = _GraphWalk(record, arrays, aliases)
    used = walk.run(program)  # in the order of computation
    for name in arrays:
        if name not in used:
            for axis in walk.tensors[name].axes:
                record.algebra.fix(axis)
            if arrays[name].is_floating_point():
                record.notes.append(f"{name}: the network does not use it, so it is left as it is")
    axes = {name: walk.tensors[name].axes for name in arrays}
    layouts, groups = group_units(record, axes, [*used, *(name for name in arrays if name not in used)])
    return Symmetry(layouts, groups, aliases, tuple(dict.fromkeys(record.notes)))


def is_meta(module: nn.Module) -> bool:
    """Return whether a module has arrays of the meta device, shapes without numbers."""
    return any(array.is_meta for array in (*module.parameters(), *module.buffers()))


def _named_arrays(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, str], list[str]]:
    """Return the arrays of a state dict, the second names of tied ones, and notes on entries that are no arrays."""
    arrays: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    notes: list[str] = []
    by_memory: dict[tuple[Any, ...], str] = {}
    for name, array in module.state_dict().items():
        if is_extra_state(name):
            continue
        if not isinstance(array, Tensor):
            notes.append(f"{name}: is not a tensor, so it is left as it is")
            continue
        # Tied arrays are views of the same memory, whatever module holds them; on the meta device that has no address.
        memory = (array.untyped_storage()._cdata, array.storage_offset(), tuple(array.shape), array.stride())
        if array.numel() and memory in by_memory:
            aliases[name] = by_memory[memory]
        else:
            by_memory[memory] = name
            arrays[name] = array
    return arrays, aliases, notes


class _GraphWalk:
    """A walk through an exported graph that gives every node its traced tensors, and a record what moves together.

    The arrays of the module are without second names of tied ones, which `aliases` has.
    """

    def __init__(self, record: TraceRecord, arrays: Mapping[str, Tensor], aliases: Mapping[str, str]) -> None:
        self.record = record
        self.aliases = aliases
        self.tensors: dict[str, TracedTensor] = {}
        for name, array in arrays.items():  # of which whole numbers are indices or counters and never move
            moves = array.is_floating_point() or array.is_complex() or array.dtype == torch.bool
            axes = tuple(free_axis(size, in_array=True) if moves else fixed_axis(size) for size in array.shape)
            self.tensors[name] = TracedTensor(axes, tuple(frozenset({(name, dim)}) for dim in range(array.ndim)))
        self.nodes: dict[fx.Node, Any] = {}
        record.contexts.extend(tensor.axes for tensor in self.tensors.values())

    def run(self, program: torch.export.ExportedProgram) -> list[str]:
        """Apply the rules of all operations in order; return the arrays in the order of their first use."""
        signature = program.graph_signature
        targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        lifted = {**signature.inputs_to_lifted_tensor_constants, **signature.inputs_to_buffers}
        used: list[str] = []
        array_names: dict[fx.Node, str] = {}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                target = targets.get(node.name)
                array = self.aliases.get(target, target) if target is not None else None
                if array in self.tensors:
                    array_names[node] = array
                    self.nodes[node] = self.tensors[array]
                elif node.name in lifted:  # constants, and buffers that the state dict does not hold
                    self.nodes[node] = _trace_constant(program.constants[lifted[node.name]])
                else:
                    fake = node.meta.get("val")  # an input of the network, whose axes never move
                    self.nodes[node] = fixed_tensor(tuple(fake.shape)) if isinstance(fake, Tensor) else fake
            elif node.op == "output":
                for name, output in zip(_output_names(program), node.args[0], strict=True):
                    for tensor in tensors_in(self._traced(output)):
                        self._pin(name, tensor)
            elif node.op == "call_function":
                used.extend(array_names[source] for source in node.all_input_nodes if source in array_names)
                self.nodes[node] = self._apply(node)
                self.record.contexts.extend(tensor.axes for tensor in tensors_in(self.nodes[node]))
        return list(dict.fromkeys(used))

    def _pin(self, name: str, output: TracedTensor) -> None:
        """Fix the axes of an output; note units in it that other arrays read, so that hidden ones are fixed by it."""
        shown = {id(part) for axis in output.axes for part in parts_of(axis) if not part.fixed}
        for array, tensor in self.tensors.items() if shown else ():
            inputs = (axis for n, axis in enumerate(tensor.axes) if self.record.side_of(array, n) == "input")
            if any(id(part) in shown for axis in inputs for part in parts_of(axis)):
                self.record.notes.append(
                    f"the {name} pins the units that {array} reads, since it shows each of them; "
                    "if another output is meant, name it with `output=`"
                )
                break
        for axis in output.axes:
            self.record.algebra.fix(axis)

    def _traced(self, argument: Any) -> Any:
        """Return an argument with its nodes replaced by their traced tensors."""
        return fx.node.map_arg(argument, lambda node: self.nodes.get(node))

    def _apply(self, node: fx.Node) -> Any:
        """Return the outputs of an operation; add a note if it fixed units that might have moved."""
        args, kwargs = self._traced(node.args), self._traced(node.kwargs)
        if node.target is operator.getitem:
            return args[0][args[1]] if isinstance(args[0], list | tuple) else args[0]
        outputs = self._apply_rule(node, args, kwargs)
        if self.record.algebra.has_fixed_units:
            self.record.algebra.has_fixed_units = False
            operator_name = str(getattr(node.target, "__name__", node.target)).split(".")[0]
            self.record.notes.append(
                f"{_module_path(node)}: {operator_name} tells units apart or is unknown; what it touches never moves"
            )
        return outputs

    def _apply_rule(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Apply the rule of an operation; one without a rule fixes all that it touches."""
        fakes = [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)]  # of shapes alone
        shapes = [tuple(int(size) for size in fake.shape) for fake in fakes]
        if isinstance(node.target, torch._ops.OpOverload):
            name = node.target._schema.name.split("::")[-1]
            in_place = name.endswith("_") and not name.endswith("__")
            plain_name = name.removesuffix("_") if in_place else name
            defaults = {argument.name: argument.default_value for argument in node.target._schema.arguments}
            arguments = {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}
            call = OperatorCall(self.record, plain_name, arguments, shapes)
            is_pointwise = torch.Tag.pointwise in node.target.tags
            rule = _RULES.get(name) or _RULES.get(plain_name) or (rules_pointwise.pointwise if is_pointwise else None)
            if rule is not None:
                outputs = rule(call)
                # A rule that is wrong about shapes knows another variant of the operation: trust the graph instead.
                if [tensor.shape for tensor in tensors_in(outputs)] == shapes:
                    if in_place and isinstance(outputs, TracedTensor) and outputs.shape == call.tensors[0].shape:
                        # The tensor that is changed in place moves as the output of the operation.
                        for old_axis, new_axis in zip(call.tensors[0].axes, outputs.axes, strict=True):
                            self.record.algebra.join(old_axis, new_axis)
                    return outputs
        for tensor in tensors_in([*args, *kwargs.values()]):
            self.record.fix_all_axes(tensor)
        fixed = [fixed_tensor(shape) for shape in shapes]
        return fixed if isinstance(node.meta.get("val"), list | tuple) else next(iter(fixed), None)


def _output_names(program: torch.export.ExportedProgram) -> list[str]:
    """Return what every output of a graph is called: by its key in what the module answers, or as a changed buffer."""
    outputs = program.graph_signature.output_specs
    answered = sum(output.kind is OutputKind.USER_OUTPUT for output in outputs)
    spec = program.call_spec.out_spec
    paths = [path for path, _ in tree_leaves_with_path(tree_unflatten(range(answered), spec))]
    keys = iter(keystr(path).strip("[]'\".") for path in paths)
    return [
        f"output {next(keys)}".rstrip() if output.kind is OutputKind.USER_OUTPUT else f"buffer {output.target}"
        for output in outputs
    ]


def _trace_constant(array: Tensor) -> TracedTensor:
    """Return a constant as a traced tensor: entries may be permuted along axes along which they are equal.

    Along none for a constant of the meta device, whose entries nobody knows.
    """
    axes: list[AxisTerms] = []
    for dim, size in enumerate(array.shape):
        is_constant = size > 1 and not array.is_meta and bool((array == array.narrow(dim, 0, 1)).all())
        axes.append(free_axis(size) if is_constant else fixed_axis(size))
    return TracedTensor(tuple(axes))


def _module_path(node: fx.Node) -> str:
    """Return the path of the module that an operation belongs to."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return (stack[-1][0] if stack else "") or "network"


@contextmanager
def _answering(module: nn.Module) -> Iterator[None]:
    """Let a module return what it answers alone, for a while; names of its parameters stay as they are."""
    forward = module.forward

    @wraps(forward)
    def answering(*args: Any, **kwargs: Any) -> Any:
        return answer_of(forward(*args, **kwargs), module)

    had_own_forward = "forward" in vars(module)
    module.forward = answering
    try:
        yield
    finally:
        if had_own_forward:
            module.forward = forward
        else:
            del module.forward


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter: logs, warnings and the graph that it prints on failure; our errors quote its own."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def export(module: nn.Module, example: Example) -> torch.export.ExportedProgram:
    """Return the graph of ATen operations of a module in evaluation mode.

    Raises InputError if the module cannot be called with the example, and UnsupportedError if what it computes depends
    on the numbers in its inputs, or on things outside of it.
    """
    if is_scripted(module):
        text = "give the module that it was scripted from; method 'average' without `example=` needs no tracing"
        raise UnsupportedError(type(module).__name__, "a TorchScript module cannot be traced", text, "E-TRACE")
    with evaluating(module), _quiet():
        try:
            with _answering(module):
                return torch.export.export(module, example.args, dict(example.kwargs or {}), strict=False)
        except Exception as error:
            try:  # whether the example is at fault, or the module
                example.call(module)
            except Exception as call_error:
                text = f"{type(module).__name__} cannot be called with it ({_summary(call_error)})"
                remedy = "give a tensor, a tuple of arguments or a dict of keyword arguments"
                raise InputError("example", text, remedy) from error
            text = f"{type(module).__name__} cannot be exported ({_summary(error)})"
            remedy = "write its forward without decisions that depend on the numbers in tensors"
            raise UnsupportedError("", text, f"{remedy}, or give its symmetry as a file", "E-TRACE") from error


def _summary(error: BaseException) -> str:
    """Return the first line of an error's message, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:MAX_QUOTED_CHARACTERS] if lines else type(error).__name__
