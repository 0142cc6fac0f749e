"""Entries of checkpoints: arrays, bookkeeping and extra state, and the prefixes of wrappers in their names.

Checkpoints of one architecture differ in their names where one was saved from inside a wrapper (``module.`` of
DataParallel, ``_orig_mod.`` of torch.compile, ``model.`` of Lightning, ``bert.`` of a model with a head). A prefix that
all entries of a checkpoint share is left out where the names of all checkpoints then agree. Entries that no training
changes, and that old or new versions of a library do not save, need not be in all of them. Extra state
(`get_extra_state` of a module: any object, or a tensor of its bytes) says how a layer works and is no array. Whoever
fuses modules carries it over from the module that the fused one is made of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consilience.checks import AnyArray
from consilience.drawing.words import first_names
from consilience.errors import InputError, Problem
from consilience.networks.weight_parts import plain_shapes

EXTRA_STATE = "_extra_state"
"""The last part of the names that torch gives to extra state."""


def is_extra_state(name: str) -> bool:
    """Return whether an entry of a state dict is extra state."""
    return name.rpartition(".")[2] == EXTRA_STATE


def extra_state(state: Mapping[str, AnyArray]) -> tuple[str, ...]:
    """Return the names of the entries of a state dict that are extra state."""
    return tuple(filter(is_extra_state, state))


def is_state_dict(model: object) -> bool:
    """Return whether an object is a mapping of names to torch tensors and extra state, as ``module.state_dict()``."""
    return (
        isinstance(model, Mapping)
        and all(isinstance(name, str) for name in model)
        and any(_is_tensor(values) for values in model.values())
    )


def dense_arrays(state: Mapping[str, AnyArray], label: str) -> dict[str, AnyArray]:
    """Return the arrays of a state dict, not copied and without gradients; extra state is left out.

    `label` is the network's name in messages. Raises InputError with a line for every entry that is no dense tensor:
    lazy, sparse, quantised, nested, sharded, without values, or no tensor at all.
    """
    arrays: dict[str, AnyArray] = {}
    problems: list[Problem] = []
    for name, values in state.items():
        if is_extra_state(name):
            continue
        found = next(_faults(values), None)
        if found is None:
            arrays[name] = values.detach() if _is_tensor(values) else values
        else:
            problems.append(Problem(label, f"entry {name} {found[0]}", found[1], "E-TYPE"))
    if problems:
        raise InputError(problems)
    return arrays


def _faults(values: Any) -> Iterator[tuple[str, str]]:
    """Yield why an entry is no dense tensor, and what to do about it."""
    kind = type(values).__name__
    if not _is_tensor(values):
        if kind in ("tuple", "dtype"):  # packed weights of torch.ao's quantised layers, and their type
            yield f"is of type {kind}, as quantised layers have", "fuse the networks before they are quantised"
        elif not hasattr(values, "dtype"):
            yield f"is of type {kind}, expected a tensor", "leave it out, or return it from `get_extra_state`"
        return
    if is_uninitialised(values):
        yield (
            "has no shape yet (a lazy layer before its first input)",
            "give `example=`, or call the network once on an input",
        )
    elif kind == "DTensor":
        yield "is sharded over processes (DTensor)", "gather it with `full_tensor()`"
    elif values.is_nested:
        yield "is a nested tensor", "pad it to a dense one"
    elif values.is_quantized:
        yield (
            f"is quantised ({str(values.dtype).removeprefix('torch.')})",
            "convert it with `dequantize()`, or fuse before quantising",
        )
    elif str(values.layout) != "torch.strided":
        yield f"is sparse ({str(values.layout).removeprefix('torch.')})", "convert it with `to_dense()`"
    elif values.is_meta:
        yield "has no values (device meta)", "load the weights before"


def is_uninitialised(values: object) -> bool:
    """Return whether a tensor is one of a lazy layer that has not seen an input."""
    return type(values).__name__ in ("UninitializedParameter", "UninitializedBuffer")


def _is_tensor(values: object) -> bool:
    """Return whether an object is a torch tensor, without importing torch; lazy ones are asked no attribute."""
    return any(kind.__module__ == "torch" and kind.__name__ == "Tensor" for kind in type(values).__mro__)


Shapes = Mapping[str, tuple[int, ...]]
"""Shape of every entry of a checkpoint, by name."""

COUNTER = "num_batches_tracked"
"""Last part of the name of torch's count of the batches that a normalisation layer has seen."""

_WRAPPER_PARTS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
"""Parts of names that wrappers of torch (compile, FSDP, activation checkpoints) and Lightning put in, at any place."""

_PARALLEL_PART = "module"
"""The part that DataParallel and DistributedDataParallel put in; networks have layers of this name, too."""

_BOOKKEEPING = (
    COUNTER, EXTRA_STATE, "n_averaged", "position_ids", "token_type_ids", "inv_freq", "masked_bias", "total_ops",
    "total_params",
)  # fmt: skip
"""Last parts of the names of such entries: torch's, those of transformers' lists ``_keys_to_ignore_on_load_*``, and the
counts of the profiler thop."""

_CAUSAL_MASKS = ("attn.bias", "attention.bias")
"""Ends of the names of causal masks (1, 1, n, n) of GPT-2 and GPT-NeoX; a bias of these names has one axis."""

_MAX_LISTED = 3
"""Entries that a message names; more are counted. Chosen by hand."""


@dataclass(frozen=True)
class NamesInCommon:
    """Names under which checkpoints agree."""

    # For every checkpoint its own name of every entry, by the name in common, in its order.
    own_names: tuple[dict[str, str], ...]
    # For every checkpoint what the names have lost, such as "the prefix 'model.'"; empty for nothing.
    left_out: tuple[str, ...]
    notes: tuple[str, ...] = ()  # the same of those that lost something, a line each
    problems: tuple[Problem, ...] = ()  # which checkpoints differ in a prefix and in more


def is_counter(name: str) -> bool:
    """Return whether an entry counts batches, by its name."""
    return name.rpartition(".")[2] == COUNTER


def is_bookkeeping(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether an entry is one that no training changes and that not every version of a library saves.

    Examples
    --------
    >>> is_bookkeeping("1.num_batches_tracked", ()), is_bookkeeping("h.0.attn.bias", (1, 1, 4, 4))
    (True, True)
    >>> is_bookkeeping("h.0.attn.bias", (4,))
    False
    """
    if name.rpartition(".")[2] in _BOOKKEEPING:
        return True
    return name.endswith(_CAUSAL_MASKS) and len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3]


def common_names(
    checkpoints: Sequence[Shapes], labels: Sequence[str], expected: Collection[str] | None = None
) -> NamesInCommon:
    """Return names under which checkpoints agree, apart from bookkeeping; their own names where there are none.

    `labels` are their names in messages; `expected` are the names of the network's own entries, where they are known,
    else what the checkpoints agree in.
    """
    names = tuple({name: name for name in shapes} for shapes in checkpoints)
    if expected is not None and all(map(frozenset(expected).issuperset, names)):
        return NamesInCommon(names, ("",) * len(names))
    spellings = [list(_spellings(shapes)) for shapes in checkpoints]
    cores = [
        [frozenset(_core(spelled, shapes)) for spelled in each]
        for shapes, each in zip(checkpoints, spellings, strict=True)
    ]
    chosen = _agreeing(cores) if expected is None else _fitting(spellings, checkpoints, frozenset(expected))
    own_names = tuple(each[number] for each, number in zip(spellings, chosen, strict=True))
    left_out = tuple(_left_out(spelled) if number else "" for spelled, number in zip(own_names, chosen, strict=True))
    notes = tuple(f"{label}: names without {what}" for label, what in zip(labels, left_out, strict=True) if what)
    plain = [each[number] for each, number in zip(cores, chosen, strict=True)]
    where = labels[0] if expected is None else "the network"
    problems = _prefix_problems(plain, labels, expected or plain[0], where)
    return NamesInCommon(own_names, left_out, notes, problems)


def _agreeing(cores: Sequence[Sequence[frozenset[str]]]) -> list[int]:
    """Return the number of the spelling of every checkpoint in which all agree; 0 of all where they never do."""
    agreed = frozenset.intersection(*map(frozenset, cores))
    # The longest names: of two checkpoints with the same prefix, none loses it.
    target = max(agreed, key=lambda core: (sum(map(len, core)), sorted(core)), default=None)
    return [0 if target is None else each.index(target) for each in cores]


def _fitting(
    spellings: Sequence[Sequence[Mapping[str, str]]], checkpoints: Sequence[Shapes], expected: frozenset[str]
) -> list[int]:
    """Return the number of the first spelling of every checkpoint that has expected names; 0 where none has."""
    return [
        next((number for number, spelled in enumerate(each) if _fits(spelled, shapes, expected)), 0)
        for each, shapes in zip(spellings, checkpoints, strict=True)
    ]


def _prefix_problems(
    names: Sequence[Collection[str]], labels: Sequence[str], others: Collection[str], where: str
) -> tuple[Problem, ...]:
    """Return which checkpoints differ in a prefix and in more from other names, which `where` has."""
    texts = [_prefix_reason(of_checkpoint, others) for of_checkpoint in names]
    return tuple(
        Problem(label, text.format(where=where), "save both with this prefix, or both without", "E-MISMATCH")
        for label, text in zip(labels, texts, strict=True)
        if text
    )


def renamed_like(entries: Mapping[str, AnyArray], expected: Collection[str], label: str) -> dict[str, Any]:
    """Return the entries of a checkpoint under expected names, where a prefix keeps them from having these."""
    shapes = {key: tuple(values.shape) for key, values in entries.items()}
    (own_names,) = common_names([shapes], [label], expected).own_names
    return {key: entries[own] for key, own in own_names.items()}


def _core(spelled: Mapping[str, str], shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the entries that are no bookkeeping by name; `spelled` has the own names in `shapes`."""
    return {name: shapes[own] for name, own in spelled.items() if not is_bookkeeping(own, shapes[own])}


def _fits(spelled: Mapping[str, str], shapes: Shapes, expected: frozenset[str]) -> bool:
    """Return whether entries have expected names: their own, or those of the weights that are held in parts."""
    core = _core(spelled, shapes)
    return bool(core) and (core.keys() <= expected or plain_shapes(core).keys() <= expected)


def _spellings(shapes: Shapes) -> Iterator[dict[str, str]]:
    """Yield the names of a checkpoint with less and less of what wrappers put into them, each with the own name."""
    spelled = {name: name for name in shapes}
    yield spelled
    # What a wrapper counts of itself has no prefix.
    spelled = {name: name for name in shapes if name != "n_averaged"}
    for parts in (_WRAPPER_PARTS, (*_WRAPPER_PARTS, _PARALLEL_PART)):
        plain = {_without_parts(name, parts): own for name, own in spelled.items()}
        if len(plain) < len(spelled):  # two entries would have one name
            return
        if plain.keys() != spelled.keys():
            yield plain
        if parts == _WRAPPER_PARTS:
            spelled = plain
    while spelled and len({name.partition(".")[0] for name in spelled}) == 1 and all("." in name for name in spelled):
        spelled = {name.partition(".")[2]: own for name, own in spelled.items()}
        yield spelled


def _without_parts(name: str, parts: Collection[str]) -> str:
    """Return a name without some of its parts between dots; the last part stays."""
    *layers, last = name.split(".")
    return ".".join([*(layer for layer in layers if layer not in parts), last])


def _left_out(spelled: Mapping[str, str]) -> str:
    """Return what names have lost against the own ones: a prefix, as a rule."""
    name, own = next(iter(spelled.items()))
    if own.endswith(f".{name}"):
        return f"the prefix {own.removesuffix(name)!r}"
    parts = [part for part in own.split(".") if part not in name.split(".")]
    return " and ".join(f"{part!r}" for part in dict.fromkeys(parts))


def _prefix_reason(names: Collection[str], others: Collection[str]) -> str:
    """Return that names differ from others in a prefix and in more, if so; "" otherwise.

    A prefix is the reason where without it more than half of the names agree, of which fewer than half do with it.
    """
    ours, theirs = set(names), set(others)
    smaller = min(len(ours), len(theirs))
    if 2 * len(ours & theirs) >= smaller:
        return ""
    for one, other, text in (
        (ours, theirs, "its names have the prefix {!r}, which those of {{where}} lack"),
        (theirs, ours, "its names lack the prefix {!r}, which those of {{where}} have"),
    ):
        for prefix in sorted({f"{name.partition('.')[0]}." for name in one if "." in name}):
            plain = {name.removeprefix(prefix) for name in one}
            if 2 * len(plain & other) > smaller:
                # In words of the smaller difference: what either has beyond the other.
                rest = sorted(plain ^ other)
                end = f"; without it {first_names(rest, _MAX_LISTED)} would still differ" if rest else ""
                return text.format(prefix) + end
    return ""
