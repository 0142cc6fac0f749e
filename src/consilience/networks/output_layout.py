"""Outputs of networks as rows of numbers: one for each input, each token or pixel of it, or each head's beside others'.

Candidates are compared, and distilled, by rows (n, k) of logits or numbers. A classifier of n inputs returns them as
they are. A language model returns logits (n, T, k) by token, a U-Net maps (n, k, H, W): there rows are those at a few
positions of every input, since all of them are too many to keep. Several outputs of n rows each stand side by side.

The axis of the classes is the one that is no position: positions are the axes that outputs share with inputs, tokens
(n, T) or pixels (n, c, H, W).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consilience.errors import UnsupportedError
from consilience.networks.example import Example, as_example
from consilience.networks.module_inputs import first_line
from consilience.networks.module_outputs import ask, form_of
from consilience.networks.repair.partial_forward import call_module, evaluation_without_gradients

MAX_BATCH_EFFECT = 1e-3
"""Largest change of an input's outputs by the others of its batch, relative to the largest output, that rounding in
single precision explains. Chosen by hand."""
MAX_OUTPUT_ENTRIES = 2**26
"""Outputs by position at once, at most: logits of every token of a text are many. Chosen by hand, for memory."""


@dataclass(frozen=True)
class OutputLayout:
    """Where a network's outputs have its rows."""

    widths: tuple[int, ...]  # numbers of a row, of each output
    class_axis: int | None = None  # the axis of them, where an input has several rows; None where it has one
    n_positions: int = 1  # rows of an input in the network's outputs
    is_next_token: bool = False  # whether rows are logits of the token after each
    is_reconstruction: bool = False  # whether outputs have the shape of the inputs
    names: tuple[str, ...] | None = None  # of several outputs; None where they are a tuple

    @property
    def size(self) -> int:
        """Numbers k of a row, all outputs side by side."""
        return sum(self.widths)

    @property
    def has_positions(self) -> bool:
        """Whether rows belong to tokens or pixels."""
        return self.class_axis is not None

    @property
    def inputs_at_once(self) -> int:
        """Inputs of which a network is asked at once, so that its outputs fit into memory."""
        return max(1, MAX_OUTPUT_ENTRIES // (self.n_positions * self.size))

    @property
    def heads(self) -> list[slice]:
        """Columns of each output among those of all."""
        ends = np.cumsum(self.widths).tolist()
        return [slice(end - width, end) for end, width in zip(ends, self.widths, strict=True)]

    def rows(self, answer: Any, positions: Tensor | None = None) -> Tensor:
        """Return the rows (n, k) of what a network answers; where it has positions those at some (n, P): (n, P, k)."""
        if isinstance(answer, Tensor) and self.class_axis is not None:
            by_position = answer.movedim(self.class_axis, -1).flatten(1, -2)  # (n, positions, k)
            if positions is None:
                return by_position
            return by_position.gather(1, positions[:, :, None].expand(-1, -1, by_position.shape[2]))
        return torch.cat([part if part.ndim == 2 else part[:, None] for part in _tensors_of(answer)], dim=1)


def layout_of(module: nn.Module, inputs: Tensor | Example) -> OutputLayout:
    """Return the layout of a network's outputs, asked about the first inputs (n, ...), in evaluation mode.

    Raises UnsupportedError, in a line, for networks that do not take the inputs, or whose outputs are not understood:
    such as depend on the other inputs of a batch, or have neither a row for each input nor one for each position.
    """
    few = inputs[:2]
    with evaluation_without_gradients(module):
        answer = answered(module, few)
        _refuse_batch_effects(module, few, answer)
        parts = _tensors_of(answer)
        tokens = tokens_of(few)
        of_inputs = few.tensors if isinstance(few, Example) else (few,)
        if tokens is not None:  # before a mask of theirs
            of_inputs = (tokens, *of_inputs)
        if not parts or any(part.ndim == 0 or len(part) != len(few) for part in parts):
            raise UnsupportedError(f"the networks do not return one row for each input (found {form_of(answer)})")
        if len(parts) == 1 and parts[0].ndim > 2:
            return _layout_by_position(module, few, parts[0], of_inputs)
    if any(part.ndim > 2 for part in parts):
        raise UnsupportedError(f"the networks return several outputs, not a row of each (found {form_of(answer)})")
    names = tuple(map(str, answer)) if isinstance(answer, Mapping) and len(parts) > 1 else None
    return OutputLayout(tuple(1 if part.ndim == 1 else part.shape[1] for part in parts), names=names)


def answered(module: nn.Module, batch: Tensor | Example) -> Any:
    """Return what a module answers to a batch that may be synthetic: columns of ids, say, are none then."""
    try:
        return call_module(module, batch)
    except (IndexError, ValueError, RuntimeError, TypeError) as error:
        text = f"the networks do not take inputs such as are drawn from what sites describe ({first_line(error)})"
        raise UnsupportedError(text) from error


def _tensors_of(answer: Any) -> list[Tensor]:
    """Return the tensors of an answer, in their order."""
    if isinstance(answer, Tensor):
        return [answer]
    parts = list(answer.values()) if isinstance(answer, Mapping) else answer if isinstance(answer, Sequence) else []
    return list(parts) if all(isinstance(part, Tensor) for part in parts) else []


def _refuse_batch_effects(module: nn.Module, few: Tensor | Example, answer: Any) -> None:
    """Raise UnsupportedError where an input's outputs depend on the other inputs of its batch."""
    parts = _tensors_of(answer)
    if len(few) < 2 or not parts or any(part.ndim == 0 for part in parts):
        return
    try:
        alone = _tensors_of(call_module(module, few[:1]))
    except Exception:  # some layers refuse a batch of one
        return
    for together, single in zip(parts, alone, strict=True):
        first, size = together[:1], float(together.abs().max()) if together.numel() else 0.0
        if first.shape != single.shape or not bool(((first - single).abs() <= MAX_BATCH_EFFECT * size).all()):
            raise UnsupportedError("the networks' outputs for an input depend on the others of its batch")


def _layout_by_position(
    module: nn.Module, few: Tensor | Example, output: Tensor, of_inputs: Sequence[Tensor]
) -> OutputLayout:
    """Return the layout of one output (n, ...) of three or more axes."""
    for tensor in of_inputs:
        is_token, shape = not tensor.is_floating_point(), tuple(tensor.shape)
        if is_token and tuple(output.shape[1:-1]) == shape[1:]:  # (n, T) -> (n, T, k)
            is_next = tensor.ndim == 2 and _predicts_next(module, few, tensor, output)
            return OutputLayout((output.shape[-1],), -1, output[0, ..., 0].numel(), is_next)
        if not is_token and tuple(output.shape) == shape:
            return OutputLayout((output.shape[1],), 1, output[0, 0].numel(), is_reconstruction=True)
        if not is_token and tuple(output.shape[1:-1]) == shape[1:-1]:  # (n, T, f) -> (n, T, k)
            return OutputLayout((output.shape[-1],), -1, output[0, ..., 0].numel())
        if not is_token and output.ndim == tensor.ndim:  # (n, c, H, W) -> (n, k, H', W')
            return OutputLayout((output.shape[1],), 1, output[0, 0].numel())
    raise UnsupportedError(f"the networks' output is neither by input nor by position (found {form_of(output)})")


def _predicts_next(module: nn.Module, few: Tensor | Example, tokens: Tensor, output: Tensor) -> bool:
    """Return whether outputs (n, T, k) of tokens (n, T) are logits of the token after each: none sees those behind."""
    tables = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)]
    if output.shape[2] not in tables or tokens.shape[1] < 2 or int(tokens.max()) >= output.shape[2]:
        return False
    last_changed = _with_last(few, tokens, (tokens[:, -1] + 1) % output.shape[2])
    changed = call_module(module, last_changed)
    before, after = output[:, :-1], changed[:, :-1]
    return bool(((before - after).abs() <= MAX_BATCH_EFFECT * output.abs().max()).all())


def _with_last(few: Tensor | Example, tokens: Tensor, last: Tensor) -> Tensor | Example:
    """Return inputs with another last token."""

    def replaced(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[:, :-1], last[:, None]], dim=1) if tensor is tokens else tensor

    return few.changed(replaced) if isinstance(few, Example) else replaced(few)


def tokens_of(inputs: Tensor | Example) -> Tensor | None:
    """Return the tokens (n, T) among inputs, which are no mask of them and not all zero; None where there are none."""
    named = [(name or "", one) for name, one in as_example(inputs).named]
    whole = [one for name, one in named if one.ndim == 2 and not one.is_floating_point() and not name.endswith("mask")]
    return next((one for one in whole if bool(one.any())), whole[0] if whole else None)


def token_table(module: nn.Module) -> nn.Embedding | nn.EmbeddingBag | None:
    """Return a network's table of tokens: of its embeddings the one with most rows, as positions are fewer."""
    tables = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    return max(tables, key=lambda table: table.num_embeddings, default=None)


def padding_of(module: nn.Module) -> int | None:
    """Return the token that fills texts up: that of the network's table or configuration; None where neither says."""
    table = token_table(module)
    stated = None if table is None else table.padding_idx
    if stated is None:
        stated = getattr(getattr(module, "config", None), "pad_token_id", None)
    return stated if isinstance(stated, int) else None


def is_inside(module: nn.Module, inputs: Tensor | Example) -> Tensor | None:
    """Return which tokens (n, T) are no padding: by a mask among the arguments, else by the token that fills up.

    None for inputs that are no tokens. Raises UnsupportedError where all tokens of an input are padding.
    """
    named = (inputs.kwargs or {}) if isinstance(inputs, Example) else {}
    tokens = tokens_of(inputs)
    if tokens is None:
        return None
    masks = [one for name, one in named.items() if name.endswith("attention_mask") and one.shape == tokens.shape]
    padding = padding_of(module)
    inside = masks[0] != 0 if masks else torch.ones_like(tokens, dtype=torch.bool)
    if not masks and padding is not None:
        inside = tokens != padding
    if not bool(inside.any(dim=1).all()):
        if masks:
            raise UnsupportedError("the mask hides all tokens of an input")
        inside = inside.clone()
        inside[~inside.any(dim=1), 0] = True
    return inside


def have_next_token(module: nn.Module, inputs: Tensor | Example) -> Tensor:
    """Return which tokens (n, T - 1) of texts, all but the last, and the token behind each are no padding."""
    inside, tokens = is_inside(module, inputs), tokens_of(inputs)
    if inside is not None:
        return inside[:, :-1] & inside[:, 1:]
    assert tokens is not None  # noqa: S101  (narrows the type: texts have tokens)
    return torch.ones_like(tokens[:, 1:], dtype=torch.bool)


def draw_positions(
    layout: OutputLayout, n: int, count: int, rng: np.random.Generator, inside: Tensor | None = None
) -> Tensor:
    """Return so many positions (n, count) of every input, drawn independently; of tokens (n, T) from those `inside`.

    Of logits of the next token those positions that have one.
    """
    if inside is None or layout.n_positions != inside.shape[1]:
        return torch.as_tensor(rng.integers(0, layout.n_positions, (n, count)))
    allowed = inside.cpu().numpy().copy()
    if layout.is_next_token:
        has_next = allowed[:, :-1] & allowed[:, 1:]
        allowed = np.concatenate([has_next, np.zeros((n, 1), dtype=bool)], axis=1)
        allowed[~allowed.any(axis=1), 0] = True  # texts of one token
    order = np.argsort(~allowed, axis=1, kind="stable")  # positions inside first
    place = rng.integers(0, allowed.sum(axis=1)[:, None], (n, count))
    return torch.as_tensor(np.take_along_axis(order, place, axis=1))


class RowOutputs(nn.Module):
    """A network that returns its rows: (n, k), or (n, P, k) at positions (n, P), which are then its last argument.

    Its other arguments are those of the network, as `like` has them, one after the other.
    """

    def __init__(self, network: nn.Module, layout: OutputLayout, like: Example) -> None:
        super().__init__()
        self.network, self.layout, self._like = network, layout, like

    def forward(self, *arguments: Tensor) -> Tensor:
        """Return the rows."""
        n_given = len(arguments) - self.layout.has_positions
        positions = arguments[-1] if self.layout.has_positions else None
        remaining = iter(arguments[:n_given])
        example = self._like.changed(lambda _: next(remaining))
        return self.layout.rows(ask(self.network, *example.args, **dict(example.kwargs or {})), positions)


def as_row_outputs(module: nn.Module, layout: OutputLayout, inputs: Tensor | Example) -> nn.Module:
    """Return a network that returns rows; the network itself where it does and takes a single tensor."""
    example = as_example(inputs[:1])
    is_plain = len(layout.widths) == 1 and not layout.has_positions and isinstance(inputs, Tensor)
    return module if is_plain else RowOutputs(module, layout, example)


def inner_network(module: nn.Module) -> nn.Module:
    """Return the network inside of one that returns rows."""
    return module.network if isinstance(module, RowOutputs) else module
