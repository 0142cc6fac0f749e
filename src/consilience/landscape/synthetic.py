"""Inputs made up without any data, to ask several networks the same.

Where networks start with a linear layer, its weights tell what inputs are like, since they lie where inputs vary: made
up are Gaussian inputs with a covariance proportional to sum_i a_i W_i' W_i, and a little white noise. That is noise
sent backwards through the first layer; through a convolution over sequences it gives a stationary process.

The few pixels under a kernel tell nothing of what images are like further on, so images are made up of dead leaves:
ellipses of random place, colour and size (by a power law) that cover each other, which have the edges and the spectrum
of pictures. (Lee, Mumford, Huang 2001, "Occlusion models for natural images"; that networks learn from them: Baradad,
Wulff, Wang, Isola, Torralba 2021, "Learning to See by Looking at Noise", NeurIPS.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from consilience.checks import Array, is_count
from consilience.errors import OptionError, UnsupportedError
from consilience.landscape.passes import Stage, evaluated, is_layer, structure
from consilience.landscape.repair import shares

_WHITE = 1e-4
"""White noise everywhere, as a share of the mean variance."""
_LEAVES = 80
"""Ellipses in an image."""
_SIZES = (0.058, 0.78)
"""Radii of the least and the largest, as shares of the image's side."""
_ALIKE = 0.9
"""Correlation of the channels of a colour: pictures are more bright or dark than coloured."""
_AT_ONCE = 1024


def synthetic_inputs(
    modules: Sequence[nn.Module],
    weights: ArrayLike | None,
    example: Tensor,
    count: int,
    rng: np.random.Generator | int = 0,
) -> Tensor:
    """Return made-up inputs (count, ...) of unit variance for networks that read the same data.

    They serve networks whose inputs are scaled to about mean zero and variance one, as most are.

    Parameters
    ----------
    modules
        The networks; they are left as they are.
    weights
        What each counts; None counts all alike.
    example
        Inputs of the right shape (n, ...), of which only one is looked at, and only to see what reads it.
    count
        How many.
    rng
        Draws them.

    Raises
    ------
    UnsupportedError
        When a network does not start with a linear layer or a convolution that reads the input itself.

    Examples
    --------
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(layer.weight, 1.0)
    >>> made = synthetic_inputs([nn.Sequential(layer)], None, torch.zeros(1, 2), 100)
    >>> made.shape, bool((made[:, 0] - made[:, 1]).abs().max() < 0.1)
    (torch.Size([100, 2]), True)
    """
    if not is_count(count):
        raise OptionError(f"count: expected a positive whole number, found {count!r}")
    share, draw = shares(weights, len(modules)), np.random.default_rng(rng)
    probe = torch.as_tensor(draw.standard_normal((1, *example.shape[1:]))).to(example)
    firsts = [first_layer(module, probe) for module in modules]
    sizes = [min(_AT_ONCE, count - start) for start in range(0, count, _AT_ONCE)]
    if isinstance(firsts[0][0], nn.Conv2d):
        made = torch.cat(
            [torch.as_tensor(dead_leaves(size, tuple(example.shape[1:]), draw)).to(probe) for size in sizes]
        )
    else:
        made = torch.cat([_seen_by(firsts, share, (size, *probe.shape[1:]), draw).to(probe) for size in sizes])
    made = made + _WHITE**0.5 * made.std() * torch.as_tensor(draw.standard_normal(tuple(made.shape))).to(made)
    return made / made.std()


def first_layer(module: nn.Module, probe: Tensor) -> tuple[Any, tuple[int, ...]]:
    """Return the layer that reads a network's input itself, and the shape in which it reads one.

    Raises
    ------
    UnsupportedError
        When there is none.
    """
    order = structure(module, probe).order
    layer = module.get_submodule(order[0]) if order else module
    if order and is_layer(layer) and probe.is_floating_point():
        with evaluated(module):
            given, _ = next(Stage.at_input(module, [probe]).at(order[0]))
        if given.numel() == probe.numel() and torch.equal(given.flatten(), probe.to(given).flatten()):
            return layer, tuple(given.shape[1:])
    raise UnsupportedError(
        f"{type(module).__name__}: inputs can be made up only for networks that start with a linear layer or a "
        "convolution which reads the input itself; give inputs"
    )


def _seen_by(firsts: Sequence[tuple[Any, tuple[int, ...]]], share: Array, shape: tuple[int, ...], draw: Any) -> Tensor:
    """Return the sum over networks of white noise sent backwards through the first layer."""
    total = torch.zeros(shape, dtype=torch.float64)
    for scale, (layer, own) in zip(np.sqrt(share).tolist(), firsts, strict=True):
        with torch.enable_grad():
            given = torch.zeros(
                (shape[0], *own), dtype=layer.weight.dtype, device=layer.weight.device, requires_grad=True
            )
            answer = layer(given)
            noise = torch.as_tensor(draw.standard_normal(tuple(answer.shape))).to(answer)
            total += scale * torch.autograd.grad(answer, given, noise)[0].to(total).reshape(shape)
    return total


def dead_leaves(count: int, shape: tuple[int, ...], draw: np.random.Generator) -> np.ndarray:
    """Return images (count, channels, height, width) of ellipses that cover each other, float32."""
    channels, height, width = shape
    side = max(height, width)
    rows, columns = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)
    colours = np.linalg.cholesky(np.full((channels, channels), _ALIKE) + (1 - _ALIKE) * np.eye(channels))
    least, largest = (side * size for size in _SIZES)
    images = np.zeros((count, *shape), dtype=np.float32)
    for _ in range(_LEAVES):
        place = (draw.random((2, count, 1, 1)) * 1.25 - 0.125) * np.array([height, width]).reshape(2, 1, 1, 1)
        # areas with a density of 1 / area^2 beside the limits: radii of 1 / sqrt(uniform)
        radius = least / (np.sqrt(draw.random((count, 1, 1))) + least / largest)
        turn, stretch = draw.random((count, 1, 1)) * np.pi, 0.6 + 0.8 * draw.random((count, 1, 1))
        y, x = rows - place[0].astype(np.float32), columns - place[1].astype(np.float32)
        cosine, sine = np.cos(turn).astype(np.float32), np.sin(turn).astype(np.float32)
        along, across = (x * cosine + y * sine) * stretch, (y * cosine - x * sine) / stretch
        covered = along**2 + across**2 < radius**2
        colour = (draw.standard_normal((count, channels)) @ colours.T).astype(np.float32)
        images = np.where(covered[:, None], colour[:, :, None, None], images)
    return images
