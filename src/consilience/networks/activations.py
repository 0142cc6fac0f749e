"""Activations of a network's units on inputs, for activation matching.

The activations of a group are z (k, m): its k units after their nonlinearity, at m samples. They are recorded where a
linear or convolutional layer reads the group, as the input of that layer. Positions and examples are samples alike.
Groups that no such layer reads, or none that is called as a module, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import Array
from consilience.errors import InputError
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import evaluating

if TYPE_CHECKING:
    from torch import Tensor, nn

    from consilience.networks.example import Example


MAX_SAMPLES = 2**18
"""Most samples per unit of activations; of more, some are taken at even steps. Chosen by hand, to bound memory; nobody
has measured other values."""
BATCH_SIZE = 512
"""Rows of a tensor of inputs that a module is called with at once. Chosen by hand, to bound memory."""


def activations(module: nn.Module, symmetry: Symmetry, inputs: Any) -> dict[str, Array]:
    """Return the activations (k, m) of the units of every group that a layer reads, by group.

    `inputs` is a tensor of rows, a tuple or mapping of arguments of one call, or batches of these. Raises InputError if
    no group has a layer that reads it.
    """
    import torch

    readers = _readers(module, symmetry)
    if not readers:
        raise InputError("inputs", "no group of this network is read by a linear or convolutional layer")
    units = symmetry.units({name: tuple(v.shape) for name, v in module.state_dict().items()})
    recorded: dict[str, list[Tensor]] = {group: [] for group in readers}
    handles = []
    for group, (layer, place) in readers.items():
        segments = symmetry.layouts[place.array].axes[place.axis].segments
        start = sum(segment.length(units) for segment in segments[: place.segment])
        segment = segments[place.segment]
        length = segment.length(units)

        def record_input(
            layer: nn.Module,
            arguments: tuple[Any, ...],
            group: str = group,
            start: int = start,
            length: int = length,
            inner: int = segment.inner,
        ) -> None:
            values = arguments[0].detach()
            # Channels are axis 1 of a convolution's input, the last axis of a linear layer's.
            channel_axis = 1 if type(layer).__name__.startswith("Conv") else values.ndim - 1
            entries = values.movedim(channel_axis, 0)[start : start + length]  # (k * inner, ...)
            recorded[group].append(entries.reshape(length // inner, -1).cpu())  # (k, samples)

        handles.append(layer.register_forward_pre_hook(record_input))
    try:
        with evaluating(module):
            for batch in batches_of(inputs, module):
                batch.call(module)
    finally:
        for handle in handles:
            handle.remove()
    return {
        group: _thin_columns(torch.cat(batches, dim=1).double().numpy())
        for group, batches in recorded.items()
        if batches  # a layer whose weights are read without a call, such as that of attention, records nothing
    }


def batches_of(inputs: Any, module: nn.Module | None = None) -> Iterable[Example]:
    """Yield the arguments of one call of a module after another, without labels."""
    from consilience.networks.example import as_example, is_one_batch, unlabelled

    for batch in [inputs] if is_one_batch(inputs) else inputs:
        given = unlabelled(batch, module)
        for start in range(0, len(given), BATCH_SIZE):
            yield as_example(given[start : start + BATCH_SIZE])


def _readers(module: nn.Module, symmetry: Symmetry) -> dict[str, tuple[nn.Module, Place]]:
    """Return, by group, the first layer that reads it, and the place of its weight where it does."""
    layers = dict(module.named_modules())
    readers: dict[str, tuple[nn.Module, Place]] = {}
    for group in symmetry.by_name:
        for place in symmetry.places(group):
            path, _, name = place.array.rpartition(".")
            layer = layers.get(path)
            kind = type(layer).__name__
            is_reader = kind.endswith("Linear") or kind in ("Conv1d", "Conv2d", "Conv3d")
            outer = symmetry.layouts[place.array].axes[place.axis].segments[place.segment].outer
            if layer is not None and is_reader and name == "weight" and place.side == "input" and outer == 1:
                readers.setdefault(group, (layer, place))
    return readers


def _thin_columns(values: Array) -> Array:
    """Return at most `MAX_SAMPLES` columns, at even steps."""
    n_columns = values.shape[1]
    if n_columns <= MAX_SAMPLES:
        return values
    return values[:, np.linspace(0, n_columns - 1, MAX_SAMPLES).astype(np.int64)]
