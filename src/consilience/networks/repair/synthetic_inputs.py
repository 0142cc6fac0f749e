"""Inputs made up without any data, to ask several networks the same.

Where networks start with a linear layer, its weights tell what inputs are like, since they lie where inputs vary: made
up are Gaussian inputs with a covariance proportional to sum_i a_i W_i' W_i, and a little white noise. That is noise
sent backwards through the first layer; through a convolution over sequences it gives a stationary process, and through
the weights of all gates of a recurrent layer sequences whose steps do not depend on each other.

Where networks start with an embedding, words are drawn uniformly from its vocabulary, padding left out.

The few pixels under a kernel tell nothing of what images are like further on, so images are made up of dead leaves:
ellipses of random place, colour and size (by a power law) that cover each other, which have the edges and the spectrum
of pictures. (Lee, Mumford, Huang 2001, "Occlusion models for natural images"; that networks learn from them: Baradad,
Wulff, Wang, Isola, Torralba 2021, "Learning to See by Looking at Noise", NeurIPS.)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from consilience.checks import Array, is_count
from consilience.errors import OptionError, UnsupportedError
from consilience.networks.repair.partial_forward import Stage, call, evaluated, is_norm, structure
from consilience.networks.repair.recurrent_layers import Recurrent, called_with, is_recurrent
from consilience.networks.repair.repair import shares

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
    """Return made-up inputs (count, ...) for networks that read the same data: of unit variance, or words.

    Those of unit variance serve networks whose inputs are scaled to about mean zero and variance one, as most are.

    Parameters
    ----------
    modules
        The networks; they are left as they are.
    weights
        What each counts; None counts all alike.
    example
        Inputs of the right shape (n, ...), of which only one is looked at, and only to see what reads it. Where a
        recurrent layer reads along the first axis, inputs are (steps, count, ...), with the steps of the example.
    count
        How many.
    rng
        Draws them.

    Raises
    ------
    UnsupportedError
        When a network does not start with a linear layer, a convolution, a recurrent layer or an embedding that reads
        the input itself.

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
    along_first = _goes_along_first(modules[0], example)
    shape = (example.shape[0], *example.shape[2:]) if along_first else tuple(example.shape[1:])
    if example.is_floating_point():
        probe = torch.as_tensor(draw.standard_normal((1, *shape))).to(example)
        firsts = [first_layer(module, probe.transpose(0, 1) if along_first else probe) for module in modules]
        made = _numbers(firsts, share, (count, *shape), draw).to(example)
    else:
        # one and two, so that nothing else that an embedding may read, such as places or segments, is the same
        probe = (1 + (torch.arange(3 * prod(shape)) % 3 == 0).long()).reshape(3, *shape).to(example)
        known = _known_words(modules, probe.transpose(0, 1) if along_first else probe)
        made = torch.as_tensor(draw.choice(known, (count, *shape))).to(example)
    return made.transpose(0, 1).contiguous() if along_first else made


def _numbers(
    firsts: Sequence[tuple[Any, tuple[int, ...]]], share: Array, shape: tuple[int, ...], draw: np.random.Generator
) -> Tensor:
    """Return inputs of unit variance for networks of these first layers."""
    sizes = [min(_AT_ONCE, shape[0] - start) for start in range(0, shape[0], _AT_ONCE)]
    like: Tensor = firsts[0][0].weight
    if isinstance(firsts[0][0], nn.Conv2d):
        made = torch.cat([torch.as_tensor(dead_leaves(size, shape[1:], draw)).to(like) for size in sizes])
    else:
        made = torch.cat([_seen_by(firsts, share, (size, *shape[1:]), draw).to(like) for size in sizes])
    made = made + _WHITE**0.5 * made.std() * torch.as_tensor(draw.standard_normal(tuple(made.shape))).to(made)
    return made / made.std()


def _known_words(modules: Sequence[nn.Module], probe: Tensor) -> np.ndarray:
    """Return the numbers of the words that all networks know, without padding.

    Raises
    ------
    UnsupportedError
        When a network has no embedding that reads the input itself.
    """
    tables: list[Any] = []
    for module in modules:
        own = [part for part, given in _called(module, probe, nn.Embedding) if _same(given, probe)]
        if not own:
            raise UnsupportedError(_refusal(module))
        tables += own
    padding = [table.padding_idx for table in tables if table.padding_idx is not None]
    return np.setdiff1d(np.arange(min(table.num_embeddings for table in tables)), padding)


def _goes_along_first(module: nn.Module, example: Tensor) -> bool:
    """Return whether a network's first recurrent layer takes the first axis of the input as its steps."""
    if example.ndim < 2:
        return False
    size = 2 if example.shape[1] != 2 else 3  # unlike the second axis, so that the two can be told apart
    for part, given in _called(module, example[:1].expand(size, *example.shape[1:]), nn.RNNBase):
        layer: Any = part
        if isinstance(given, Tensor) and given.ndim == 3:
            steps, samples = given.shape[:2][:: -1 if layer.batch_first else 1]
            return bool(steps == size != samples)
    return False


def _called(module: nn.Module, probe: Tensor, kind: type[nn.Module]) -> list[tuple[nn.Module, Any]]:
    """Return the parts of a kind that a network calls, in that order, with what they are given.

    Raises
    ------
    UnsupportedError
        When the network fails on such inputs.
    """
    found: list[tuple[nn.Module, Any]] = []
    parts = [part for part in module.modules() if isinstance(part, kind)]
    if not parts:
        return found

    def hook(part: nn.Module, arguments: Any, keywords: Any) -> None:
        found.append((part, called_with(arguments, keywords)[0]))

    with evaluated(module), ExitStack() as stack:
        for part in parts:
            stack.callback(part.register_forward_pre_hook(hook, with_kwargs=True).remove)
        try:
            call(module, probe)
        except (RuntimeError, IndexError, ValueError) as error:  # what torch and Python say of shapes and numbers
            raise UnsupportedError(
                f"{type(module).__name__}: fails on inputs of another number, which would be made up ({error}); give "
                "inputs"
            ) from error
    return found


def _same(given: Any, probe: Tensor) -> bool:
    """Return whether a part is given the input itself, in some shape or with its first two axes exchanged."""
    if not isinstance(given, Tensor) or given.numel() != probe.numel():
        return False
    wanted = probe.to(given).flatten()
    return torch.equal(given.flatten(), wanted) or (
        given.ndim > 1 and torch.equal(given.transpose(0, 1).flatten(), wanted)
    )


def first_layer(module: nn.Module, probe: Tensor) -> tuple[Any, tuple[int, ...]]:
    """Return the layer that reads a network's input itself, and the shape in which it reads one.

    In place of a recurrent layer comes a linear one that noise is sent back through alike; linear layers read rows.

    Raises
    ------
    UnsupportedError
        When there is none.
    """
    form = structure(module, probe)
    name = next(iter(form.calls), None)
    layer: Any = module if name is None else module.get_submodule(name)
    if name is not None and not is_norm(layer):
        with evaluated(module):
            given, _ = next(Stage.at_input(module, [probe]).before(name))
        if _same(given, probe):
            rows = (given.numel() // given.shape[-1], given.shape[-1])
            if is_recurrent(layer):
                return _reading(layer), rows
            return layer, rows if isinstance(layer, nn.Linear) else tuple(given.shape[1:])
    raise UnsupportedError(_refusal(module))


def _reading(layer: Recurrent) -> nn.Linear:
    """Return a linear layer that noise is sent back through as through what all gates, both ways, make of an input.

    Of the weights W on the input it has the triangular factor R, W = Q R: W' e and R' e have one distribution.
    """
    ways = ("", "_reverse") if layer.bidirectional else ("",)
    weight = torch.cat([getattr(layer, f"weight_ih_l0{way}").detach() for way in ways])
    factor = torch.linalg.qr(weight.to(torch.float64), mode="r").R.to(weight)
    found = nn.Linear(factor.shape[1], factor.shape[0], bias=False).to(weight)
    found.weight = nn.Parameter(factor, requires_grad=False)
    return found


def _refusal(module: nn.Module) -> str:
    return (
        f"{type(module).__name__}: inputs can be made up only for networks that start with a linear layer, a "
        "convolution, a recurrent layer or an embedding which reads the input itself; give inputs"
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
