"""What a linear layer or a convolution is given, as rows of a matrix: for a convolution, patches under its kernel."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from consilience.networks.repair.partial_forward import Layer

_PATCH_BYTES = 2**26
"""Patches of a convolution that are in memory at once."""


def chunks(layer: Layer, given: Tensor) -> Iterator[Tensor]:
    """Yield what a layer is given as rows (samples times positions, d), so many at a time as fit into memory."""
    whole = positions(layer, given)
    step = max(1, _PATCH_BYTES // (given.element_size() * _row_length(layer)))
    for start in range(0, prod(whole), step):
        yield patches(layer, given, torch.arange(start, min(start + step, prod(whole)), device=given.device))


def _row_length(layer: Layer) -> int:
    return int(prod(layer.weight.shape[1:]))


def positions(layer: Layer, given: Tensor) -> tuple[int, ...]:
    """Return the shape of what a layer answers, without its channels: (samples, positions ...)."""
    if isinstance(layer, nn.Linear):
        return tuple(given.shape[:-1])
    sizes = [given.shape[2 + n] + before + after for n, (before, after) in enumerate(_padding(layer))]
    spans = [d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    out = [(size - span) // s + 1 for size, span, s in zip(sizes, spans, layer.stride, strict=True)]
    return (given.shape[0], *out)


def _padding(layer: Any) -> list[tuple[int, int]]:
    """Return how much is padded before and after each axis of positions."""
    told = layer._reversed_padding_repeated_twice  # as torch pads: the last axis first
    return [(told[n], told[n + 1]) for n in range(len(told) - 2, -1, -2)]


def patches(layer: Layer, given: Tensor, rows: Tensor) -> Tensor:
    """Return some of what a layer is given (len(rows), d): inputs, or for a convolution the patches under the kernel.

    Parameters
    ----------
    layer
        A linear layer, or a convolution that is not grouped.
    given
        Its input.
    rows
        Numbers of samples and positions, counted through in the order of what it answers, its channels last.
    """
    if isinstance(layer, nn.Linear):
        return given.flatten(0, -2)[rows]
    view = windows(layer, given)
    return view[torch.unravel_index(rows, positions(layer, given))].flatten(1)


def windows(layer: Any, given: Tensor) -> Tensor:
    """Return what lies under the kernel of a convolution (samples, *positions, channels, *kernel), as a view."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    view = functional.pad(given, layer._reversed_padding_repeated_twice, mode=mode)
    for axis, (size, dilation, stride) in enumerate(
        zip(layer.kernel_size, layer.dilation, layer.stride, strict=True), 2
    ):
        view = view.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return view.movedim(1, len(layer.kernel_size) + 1)
