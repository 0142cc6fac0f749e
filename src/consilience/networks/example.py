"""Arguments of a module's call: one tensor, several by position, or several by name; and those of unlabelled inputs.

Unlabelled inputs come as a tensor, as a mapping such as a tokenizer returns, or in batches of either, with or without
labels: those under "labels", and what follows the inputs in a tuple. A network of several inputs, which does not take
the first alone, takes all in the tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from consilience.errors import OptionError
from consilience.networks.module_outputs import answer_of
from consilience.networks.torch_modules import evaluating

BATCH_SIZE = 512
"""Inputs that a module is called with at once; only memory depends on it. Chosen by hand."""
LABELS = ("labels", "label")
"""Names under which batches of transformers have labels, which no network is asked with."""


@dataclass(frozen=True)
class Example:
    """Arguments of a call: positional and keyword arguments."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    def call(self, module: nn.Module) -> Any:
        """Return what the module answers, as `answer_of` takes it from its output."""
        return answer_of(module(*self.args, **(self.kwargs or {})), module)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Example:
        """Return the example with every tensor changed."""
        args, kwargs = pytree.tree_map(
            lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, (self.args, dict(self.kwargs or {}))
        )
        return Example(args, kwargs)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among the arguments, those by position first."""
        leaves = pytree.tree_leaves((self.args, dict(self.kwargs or {})))
        return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))

    @property
    def named(self) -> list[tuple[str | None, Tensor]]:
        """The tensors that are arguments themselves with their keywords, None for those by position."""
        arguments = [*((None, one) for one in self.args), *(self.kwargs or {}).items()]
        return [(name, one) for name, one in arguments if isinstance(one, Tensor)]

    def __len__(self) -> int:
        """Return the number n of inputs: the rows of the first tensor (n, ...)."""
        return len(self.tensors[0])

    def __getitem__(self, rows: slice | Tensor) -> Example:
        """Return some inputs: rows of every tensor that has one for each."""
        n = len(self)
        return self.changed(lambda tensor: tensor[rows] if tensor.ndim and len(tensor) == n else tensor)


def as_example(example: Any) -> Example:
    """Return an example input as arguments: a tensor, a tuple of arguments, or a dict of keyword arguments."""
    if isinstance(example, Example):
        return example
    if isinstance(example, Mapping):
        return Example(kwargs=dict(example))
    return Example(tuple(example) if isinstance(example, tuple | list) else (example,))


def joined(parts: Sequence[Example]) -> Example:
    """Return the inputs of several calls as those of one, tensor by tensor."""
    leaves, specs = zip(*(pytree.tree_flatten((part.args, dict(part.kwargs or {}))) for part in parts), strict=True)
    together = [
        torch.cat(of_argument) if isinstance(of_argument[0], Tensor) else of_argument[0]
        for of_argument in zip(*leaves, strict=True)
    ]
    args, kwargs = pytree.tree_unflatten(together, specs[0])
    return Example(args, kwargs)


def unlabelled(batch: Any, module: nn.Module | None = None) -> Any:
    """Return the inputs of a batch without labels; see `split_batch` and `inputs_together`."""
    return split_batch(batch, inputs_together(batch, module))[0]


def split_batch(batch: Any, n_inputs: int = 1) -> tuple[Any, Any]:
    """Return the inputs of a batch, a tensor or an Example of several, and its labels, or None.

    Of a tuple the first entries are inputs, so many as are stated; the first one may be several itself. Anything but
    numbers is returned as it is.

    Examples
    --------
    >>> inputs, labels = split_batch({"input_ids": torch.ones(2, 3), "labels": torch.zeros(2)})
    >>> list(inputs.kwargs), labels, split_batch((torch.ones(2), torch.zeros(2)))[0]
    (['input_ids'], tensor([0., 0.]), tensor([1., 1.]))
    """
    if isinstance(batch, Mapping):
        labels = next((batch[name] for name in LABELS if name in batch), None)
        return Example(kwargs={name: _as_tensor(one) for name, one in batch.items() if name not in LABELS}), labels
    if not isinstance(batch, tuple | list) or not batch:
        return _as_tensor(batch), None
    labels = batch[n_inputs] if n_inputs < len(batch) else None
    if n_inputs > 1:
        return Example(tuple(map(_as_tensor, batch[:n_inputs]))), labels
    if isinstance(batch[0], Mapping):
        return split_batch(batch[0])[0], labels
    if isinstance(batch[0], tuple):
        return Example(tuple(map(_as_tensor, batch[0]))), labels
    return _as_tensor(batch[0]), labels


def inputs_together(batch: Any, module: nn.Module | None) -> int:
    """Return how many entries of a tuple are inputs: 1, or those that a module takes together and not the first alone.

    These are all entries, or all but the last.
    """
    if not isinstance(batch, tuple | list) or len(batch) < 2 or module is None or not hasattr(batch[0], "shape"):
        return 1
    entries = tuple(map(_as_tensor, batch))
    if _takes(module, entries[:1]):
        return 1
    return next((n for n in (len(entries), len(entries) - 1) if n > 1 and _takes(module, entries[:n])), 1)


def _as_tensor(values: Any) -> Any:
    """Return an array of numbers as a tensor; anything else as it is."""
    is_array = isinstance(values, np.ndarray) and values.dtype.kind in "biuf"
    return torch.from_numpy(np.ascontiguousarray(values)) if is_array else values


def _takes(module: nn.Module, entries: Sequence[Any]) -> bool:
    """Return whether a module takes the first rows of some arrays of one length in a call."""
    if not all(isinstance(entry, Tensor) and entry.ndim and len(entry) == len(entries[0]) for entry in entries):
        return False
    like = next((one for one in module.parameters() if one.is_floating_point()), torch.zeros(()))
    rows = (entry[:2].to(like if entry.is_floating_point() else like.device) for entry in entries)
    try:
        with evaluating(module):
            module(*rows)
    except Exception:  # whatever the code of the user's module raises
        return False
    return True


def is_one_batch(inputs: Any) -> bool:
    """Return whether inputs are those of one call: a tensor, a mapping, a tuple of tensors; else they are batches."""
    is_tuple = isinstance(inputs, tuple) and bool(inputs) and hasattr(inputs[0], "shape")
    return hasattr(inputs, "shape") or isinstance(inputs, Mapping | Example) or is_tuple


def batches_of(inputs: Any, module: nn.Module | None = None) -> Iterator[Example]:
    """Yield the arguments of one call of a module after another, without labels."""
    for batch in [inputs] if is_one_batch(inputs) else inputs:
        given = unlabelled(batch, module)
        for start in range(0, len(given), BATCH_SIZE):
            yield as_example(given[start : start + BATCH_SIZE])


IMAGE_SIDES = (28, 32, 64, 96, 128, 224)
"""Sides of images that are tried on a network that begins with a convolution: of usual data sets, small ones first."""
N_STEPS = 8
"""Tokens, steps or positions of a sequence that is tried."""


def derived_example(module: nn.Module) -> Example:
    """Return an input that a module takes, by what its first layer with parameters states.

    Raises OptionError where none fits.

    Examples
    --------
    >>> tuple(derived_example(nn.Sequential(nn.Flatten(), nn.Linear(6, 3))).args[0].shape)
    (2, 6)
    """
    layers = (part for part in module.modules() if next(part.parameters(recurse=False), None) is not None)
    like = next((one for one in module.parameters() if one.is_floating_point()), torch.zeros(()))
    generator = torch.Generator().manual_seed(0)
    for shape, is_tokens in _shapes_of(next(layers, None)):
        numbers = torch.zeros(shape, dtype=torch.long) if is_tokens else torch.randn(shape, generator=generator)
        if _takes(module, (numbers,)):
            return Example((numbers.to(like.device if is_tokens else like),))
    raise OptionError("example", "none could be derived from the first layer", "give an input: `example=x`", "E-NEEDED")


def _shapes_of(layer: nn.Module | None) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Yield shapes of two inputs that a first layer may take, and whether they are numbers of tokens."""
    if isinstance(layer, nn.Embedding):
        yield (2, N_STEPS), True
    elif isinstance(layer, nn.RNNBase):
        yield (2, N_STEPS, layer.input_size), False
    elif isinstance(layer, nn.Linear):
        yield (2, layer.in_features), False
        yield (2, N_STEPS, layer.in_features), False
    elif isinstance(layer, nn.Conv1d):
        yield from (((2, layer.in_channels, length), False) for length in (N_STEPS, *IMAGE_SIDES))
    elif isinstance(layer, nn.Conv2d):
        yield from (((2, layer.in_channels, side, side), False) for side in IMAGE_SIDES)
    elif isinstance(layer, nn.LayerNorm):
        yield (2, *layer.normalized_shape), False
    elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
        yield from (((2, layer.num_features, *more), False) for more in ((), *((side, side) for side in IMAGE_SIDES)))
