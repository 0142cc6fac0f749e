"""Inputs of several tensors as one: rows of numbers side by side, or tokens with a mask; and back.

What sites describe is one tensor (n, ...). Networks of transformers take tokens with a mask of those that count: they
are described as tokens, filled up where the mask hides them. Networks of several real inputs are described as rows of
all their numbers; ids and counts among these are whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from consilience.errors import InputError
from consilience.networks.descriptions.description import Description, InputPart, PartKind
from consilience.networks.example import Example, as_example
from consilience.networks.output_layout import token_table
from consilience.networks.repair.partial_forward import call_module, evaluation_without_gradients

_ALONE = "describe such a network by `n_observations=` alone"


def parts_of(module: nn.Module, inputs: Tensor | Example, name: str) -> tuple[InputPart, ...]:
    """Return the parts of a network's inputs, seen on the first ones; none for a single tensor of numbers or tokens.

    Raises InputError for several tensors that are neither numbers nor tokens with a mask.
    """
    named = as_example(inputs).named
    is_text = reads_tokens(module, inputs)
    if isinstance(inputs, Tensor):
        is_whole = not is_text and inputs.dtype == torch.int64 and token_table(module) is not None
        return (InputPart(None, tuple(inputs.shape[1:]), "whole"),) if is_whole else ()
    if is_text:
        return _text_parts(named, name)
    for key, tensor in named:
        if tensor.ndim == 0 or len(tensor) != len(inputs):
            raise InputError(name, f"has an argument {key} that has no row for each input", _ALONE, "E-SHAPE")
    return tuple(
        InputPart(key, tuple(tensor.shape[1:]), "real" if tensor.is_floating_point() else "whole")
        for key, tensor in named
    )


def _text_parts(named: Sequence[tuple[str | None, Tensor]], name: str) -> tuple[InputPart, ...]:
    """Return the parts of texts: the tokens first found, masks of them, and arguments that are zero."""
    parts: list[InputPart] = []
    for key, tensor in named:
        kind: PartKind | None = None
        if tensor.ndim == 2 and not tensor.is_floating_point():
            is_mask = key is not None and key.endswith("mask")
            kind = "mask" if is_mask else "zeros" if not bool(tensor.any()) else "tokens"
        if kind is None or (kind == "tokens" and any(part.kind == "tokens" for part in parts)):
            text = f"has an argument {key or len(parts)} that is neither tokens nor a mask of them"
            raise InputError(name, text, _ALONE, "E-TYPE")
        parts.append(InputPart(key, tuple(tensor.shape[1:]), kind))
    return tuple(parts)


def as_rows(parts: Sequence[InputPart], inputs: Tensor | Example, padding: int | None) -> Tensor:
    """Return inputs as one tensor: rows of numbers, or tokens with padding where a mask hides them.

    Raises InputError for other arguments than the parts, and for numbers in one that is zero everywhere else.
    """
    if not parts:
        assert isinstance(inputs, Tensor)  # noqa: S101  (narrows the type: several tensors have parts)
        return inputs
    named = as_example(inputs).named
    by_keyword = {name: tensor for name, tensor in named if name is not None}
    by_position = iter([tensor for name, tensor in named if name is None])
    if len(named) != len(parts) or {part.name for part in parts} != {name for name, _ in named}:
        raise InputError("data", "has batches of several arguments", "give the same in all batches", "E-MISMATCH")
    tensors = [next(by_position) if part.name is None else by_keyword[part.name] for part in parts]
    if any(part.kind == "zeros" and bool(one.any()) for part, one in zip(parts, tensors, strict=True)):
        raise InputError("data", "has tokens with an argument that is neither zero nor their mask", _ALONE, "E-TYPE")
    if any(part.kind == "tokens" for part in parts):
        tokens = next(tensor for tensor, part in zip(tensors, parts, strict=True) if part.kind == "tokens")
        for tensor, part in zip(tensors, parts, strict=True):
            if part.kind == "mask" and padding is not None:
                tokens = torch.where(tensor != 0, tokens, padding)
        return tokens
    return torch.cat([tensor.reshape(len(tensor), -1).to(torch.get_default_dtype()) for tensor in tensors], dim=1)


def as_arguments(parts: Sequence[InputPart], rows: Tensor, padding: int | None = None) -> Tensor | Example:
    """Return the arguments of a call for inputs as one tensor; inverse of `as_rows`."""
    if not parts:
        return rows
    tensors: list[Tensor] = []
    start = 0
    for part in parts:
        if part.kind == "tokens":
            tensors.append(rows)
        elif part.kind == "mask":
            tensors.append((rows != padding).long() if padding is not None else torch.ones_like(rows))
        elif part.kind == "zeros":
            tensors.append(torch.zeros_like(rows))
        else:
            entries = rows[:, start : start + part.size].reshape(len(rows), *part.shape)
            tensors.append(entries if part.kind == "real" else entries.round().long())
            start += part.size
    by_position = tuple(tensor for part, tensor in zip(parts, tensors, strict=True) if part.name is None)
    kwargs = {part.name: tensor for part, tensor in zip(parts, tensors, strict=True) if part.name is not None}
    return Example(by_position, kwargs)


def described_arguments(described: Description, rows: Tensor) -> Tensor | Example:
    """Return what a network takes for synthetic inputs, drawn as a site describes its own."""
    padding = None if described.tokens is None else described.tokens.padding
    return as_arguments(described.parts, rows, padding)


def reads_tokens(module: nn.Module, inputs: Tensor | Example) -> bool:
    """Return whether inputs are tokens: whole numbers (n, T) that a network's table of them reads together.

    A table that reads a column of the inputs has ids of categories.
    """
    tokens = next((one for _, one in as_example(inputs).named if one.dtype == torch.int64), None)
    tables = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    if tokens is None or not tables:
        return False
    sizes: list[int] = []
    hooks = [table.register_forward_pre_hook(lambda _, read: sizes.append(read[0].numel())) for table in tables]
    few = inputs[:2]
    try:
        with evaluation_without_gradients(module):
            call_module(module, few)
    except Exception:  # refused later, with the error
        return True
    finally:
        for hook in hooks:
            hook.remove()
    return not sizes or max(sizes) >= tokens[:2].numel()
