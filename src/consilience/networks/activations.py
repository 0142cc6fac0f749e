"""What the units of a network give on inputs: what the layers that read them are handed.

Units are read by layers whose weight has an input axis of the group. What such a layer is handed is what the units give
after their nonlinearity; positions and examples are samples alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import Array
from consilience.errors import InputError
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.symmetry import Symmetry

if TYPE_CHECKING:
    from torch import Tensor, nn


def activations(module: nn.Module, symmetry: Symmetry, inputs: Any, most: int = 2**18) -> dict[str, Array]:
    """Return what the units of every group give (k, m), by group; groups that no layer reads are left out.

    Parameters
    ----------
    module
        The network.
    symmetry
        Its groups.
    inputs
        What it is called with: a tensor, a tuple of arguments, or an iterable of either.
    most
        Numbers per unit at most; beyond, samples are taken at even steps.

    Raises
    ------
    InputError
        If no group has a layer that reads it.
    """
    import torch

    readers = _readers(module, symmetry)
    if not readers:
        raise InputError("inputs: no group of this network is read by a linear or convolutional layer")
    units = symmetry.units({name: tuple(v.shape) for name, v in module.state_dict().items()})
    found: dict[str, list[Tensor]] = {group: [] for group in readers}
    handles = []
    for group, (layer, place) in readers.items():
        segments = symmetry.layouts[place.array].axes[place.axis].segments
        start = sum(segment.length(units) for segment in segments[: place.segment])
        segment = segments[place.segment]
        length = segment.length(units)

        def hook(
            one: nn.Module,
            given: tuple[Any, ...],
            group: str = group,
            start: int = start,
            length: int = length,
            inner: int = segment.inner,
        ) -> None:
            values = given[0].detach()
            channels = 1 if type(one).__name__.startswith("Conv") else values.ndim - 1
            rows = values.movedim(channels, 0)[start : start + length]
            found[group].append(rows.reshape(length // inner, -1).cpu())

        handles.append(layer.register_forward_pre_hook(hook))
    training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            for batch in batches_of(inputs):
                module(*batch)
    finally:
        for handle in handles:
            handle.remove()
        for part, mode in training.items():
            part.training = mode
    return {group: _thinned(torch.cat(parts, dim=1).double().numpy(), most) for group, parts in found.items()}


def batches_of(inputs: Any) -> Iterable[tuple[Any, ...]]:
    """Yield arguments of one call after another."""
    import torch

    if isinstance(inputs, torch.Tensor):
        yield from ((inputs[start : start + 512],) for start in range(0, len(inputs), 512))
    elif isinstance(inputs, tuple) and all(isinstance(one, torch.Tensor) for one in inputs):
        yield inputs
    else:
        for batch in inputs:
            yield batch if isinstance(batch, tuple) else (batch,)


def _readers(module: nn.Module, symmetry: Symmetry) -> dict[str, tuple[nn.Module, Place]]:
    """Return a layer that reads each group, and the place of its weight where it does."""
    layers = dict(module.named_modules())
    found: dict[str, tuple[nn.Module, Place]] = {}
    for group in symmetry.by_name:
        for place in symmetry.places(group):
            path, _, name = place.array.rpartition(".")
            layer = layers.get(path)
            kind = type(layer).__name__
            plain = kind.endswith("Linear") or kind in ("Conv1d", "Conv2d", "Conv3d")
            outer = symmetry.layouts[place.array].axes[place.axis].segments[place.segment].outer
            if layer is not None and plain and name == "weight" and place.side == "input" and outer == 1:
                found.setdefault(group, (layer, place))
    return found


def _thinned(values: Array, most: int) -> Array:
    """Return at most so many columns, at even steps."""
    count = values.shape[1]
    return values if count <= most else values[:, np.linspace(0, count - 1, most).astype(np.int64)]
