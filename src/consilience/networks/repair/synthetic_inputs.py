"""Synthetic inputs, made without any data from the networks' first layers: Gaussian, words, or dead leaves.

Where networks start with a linear layer, its weights tell what inputs are like, since they lie where inputs vary.
Inputs are Gaussian with

    cov(x) proportional to sum_i a_i W_i^T W_i + a little white noise,

W_i the first weights and a_i the weight of model i: noise sent backwards through the first layer. Through a convolution
over sequences this gives a stationary process; through the input weights of all gates of a recurrent layer it gives
sequences whose steps are independent.

Where networks start with an embedding, words are drawn uniformly from its vocabulary, padding left out.

The few pixels under a kernel tell nothing of what images are like further on, so images are dead leaves
(``synthetic.dead_leaves``).

Networks that start otherwise are refused.
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
from consilience.errors import OptionError, Problem, UnsupportedError
from consilience.networks.repair.partial_forward import (
    PartialForward,
    call_module,
    evaluation_without_gradients,
    is_norm,
    layer_order,
)
from consilience.networks.repair.recurrent_layers import Recurrent, input_and_initial_state, is_recurrent
from consilience.networks.repair.repair import normalised_weights
from consilience.networks.synthetic.dead_leaves import dead_leaves

_WHITE_NOISE_VARIANCE = 1e-4
"""Variance of the white noise that is added everywhere, as a share of the mean variance. Chosen by hand; nobody has
measured other values."""
_INPUTS_AT_ONCE = 1024
"""Inputs made at once, a bound on memory. Draws are made in this order: another value gives other inputs."""


def synthetic_inputs(
    modules: Sequence[nn.Module],
    weights: ArrayLike | None,
    example: Tensor,
    count: int,
    rng: np.random.Generator | int = 0,
) -> Tensor:
    """Return synthetic inputs (count, ...) for networks that read the same data: of unit variance, or words.

    Those of unit variance serve networks whose inputs are scaled to about mean zero and variance one, as most are.

    Parameters
    ----------
    modules : sequence of Module
        The networks; they are left as they are.
    weights : array_like of shape (n_models,) or None
        Weight a_i of each model; None: equal weights.
    example : Tensor of shape (n, ...)
        Inputs of the right shape, of which only one is looked at, and only to see what reads it. Where a recurrent
        layer reads along the first axis, inputs are (steps, count, ...), with the steps of the example.
    count : int
        Number of inputs.
    rng : numpy.random.Generator or int, optional
        Random generator, or its seed. Default: 0.

    Returns
    -------
    Tensor of shape (count, ...)
        The inputs, in the type and on the device of the example.

    Raises
    ------
    UnsupportedError
        When a network does not start with a linear layer, a convolution, a recurrent layer or an embedding that reads
        the input itself.

    Examples
    --------
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(layer.weight, 1.0)
    >>> inputs = synthetic_inputs([nn.Sequential(layer)], None, torch.zeros(1, 2), 100)
    >>> inputs.shape, bool((inputs[:, 0] - inputs[:, 1]).abs().max() < 0.1)
    (torch.Size([100, 2]), True)
    """
    if not is_count(count):
        raise OptionError("count", f"expected a positive whole number, found {count!r}")
    a, rng = normalised_weights(weights, len(modules)), np.random.default_rng(rng)
    steps_first = _has_steps_first(modules[0], example)
    shape = (example.shape[0], *example.shape[2:]) if steps_first else tuple(example.shape[1:])  # of one input
    if example.is_floating_point():
        # Random numbers, so that a layer's input is recognised as the network's input by its values.
        probe = torch.as_tensor(rng.standard_normal((1, *shape))).to(example)
        first_layers = [first_layer(module, probe.transpose(0, 1) if steps_first else probe) for module in modules]
        inputs = _real_inputs(first_layers, a, (count, *shape), rng).to(example)
    else:
        # one and two, so that nothing else that an embedding may read, such as places or segments, is the same
        probe = (1 + (torch.arange(3 * prod(shape)) % 3 == 0).long()).reshape(3, *shape).to(example)
        vocabulary = _shared_vocabulary(modules, probe.transpose(0, 1) if steps_first else probe)
        inputs = torch.as_tensor(rng.choice(vocabulary, (count, *shape))).to(example)
    return inputs.transpose(0, 1).contiguous() if steps_first else inputs


def _real_inputs(
    first_layers: Sequence[tuple[Any, tuple[int, ...]]], a: Array, shape: tuple[int, ...], rng: np.random.Generator
) -> Tensor:
    """Return inputs of unit variance for networks of these first layers, each with the shape in which it reads one."""
    chunk_sizes = [min(_INPUTS_AT_ONCE, shape[0] - start) for start in range(0, shape[0], _INPUTS_AT_ONCE)]
    # All networks read the same data: the first one's kind of layer decides.
    like: Tensor = first_layers[0][0].weight
    if isinstance(first_layers[0][0], nn.Conv2d):
        chunks = [torch.as_tensor(dead_leaves(size, shape[1:], rng)).to(like) for size in chunk_sizes]
    else:
        chunks = [_backpropagated_noise(first_layers, a, (size, *shape[1:]), rng).to(like) for size in chunk_sizes]
    inputs = torch.cat(chunks)
    white_noise = torch.as_tensor(rng.standard_normal(tuple(inputs.shape))).to(inputs)
    inputs = inputs + _WHITE_NOISE_VARIANCE**0.5 * inputs.std() * white_noise
    return inputs / inputs.std()


def _shared_vocabulary(modules: Sequence[nn.Module], probe: Tensor) -> np.ndarray:
    """Return the numbers of the words that all networks know, without padding."""
    embeddings: list[Any] = []
    for module in modules:
        readers = [part for part, inputs in _recorded_calls(module, probe, nn.Embedding) if _is_probe(inputs, probe)]
        if not readers:
            raise UnsupportedError(_refusal(module))
        embeddings += readers
    padding = [embedding.padding_idx for embedding in embeddings if embedding.padding_idx is not None]
    return np.setdiff1d(np.arange(min(embedding.num_embeddings for embedding in embeddings)), padding)


def _has_steps_first(module: nn.Module, example: Tensor) -> bool:
    """Return whether a network's first recurrent layer takes the first axis of the input as its steps."""
    if example.ndim < 2:
        return False
    size = 2 if example.shape[1] != 2 else 3  # unlike the second axis, so that the two can be told apart
    for part, inputs in _recorded_calls(module, example[:1].expand(size, *example.shape[1:]), nn.RNNBase):
        layer: Any = part
        if isinstance(inputs, Tensor) and inputs.ndim == 3:
            n_steps, n_samples = inputs.shape[:2][:: -1 if layer.batch_first else 1]
            return bool(n_steps == size != n_samples)
    return False


def _recorded_calls(module: nn.Module, probe: Tensor, kind: type[nn.Module]) -> list[tuple[nn.Module, Any]]:
    """Return the parts of a kind that a network calls, in that order, with their inputs."""
    calls: list[tuple[nn.Module, Any]] = []
    parts = [part for part in module.modules() if isinstance(part, kind)]
    if not parts:
        return calls

    def hook(part: nn.Module, arguments: Any, keywords: Any) -> None:
        calls.append((part, input_and_initial_state(arguments, keywords)[0]))

    with evaluation_without_gradients(module), ExitStack() as stack:
        for part in parts:
            stack.enter_context(part.register_forward_pre_hook(hook, with_kwargs=True))
        try:
            call_module(module, probe)
        except (RuntimeError, IndexError, ValueError) as error:  # what torch and Python say of shapes and numbers
            text = f"fails on batches of another size, which synthetic inputs have ({error})"
            raise UnsupportedError(type(module).__name__, text, "give inputs") from error
    return calls


def _is_probe(inputs: Any, probe: Tensor) -> bool:
    """Return whether a part's input is the probe itself, in some shape or with its first two axes exchanged."""
    if not isinstance(inputs, Tensor) or inputs.numel() != probe.numel():
        return False
    flat_probe = probe.to(inputs).flatten()
    return torch.equal(inputs.flatten(), flat_probe) or (
        inputs.ndim > 1 and torch.equal(inputs.transpose(0, 1).flatten(), flat_probe)
    )


def first_layer(module: nn.Module, probe: Tensor) -> tuple[Any, tuple[int, ...]]:
    """Return the layer that reads a network's input itself, and the shape in which it reads one.

    In place of a recurrent layer comes a linear layer through which noise has the same distribution; linear layers read
    rows.
    """
    order = layer_order(module, probe)
    name = next(iter(order.names), None)
    layer: Any = module if name is None else module.get_submodule(name)
    if name is not None and not is_norm(layer):
        with evaluation_without_gradients(module):
            inputs, _ = next(PartialForward.at_input(module, [probe]).inputs_and_initial_states(name))
        if _is_probe(inputs, probe):
            row_shape = (inputs.numel() // inputs.shape[-1], inputs.shape[-1])
            if is_recurrent(layer):
                return _equivalent_linear(layer), row_shape
            return layer, row_shape if isinstance(layer, nn.Linear) else tuple(inputs.shape[1:])
    raise UnsupportedError(_refusal(module))


def _equivalent_linear(layer: Recurrent) -> nn.Linear:
    """Return a linear layer through which noise goes backwards as through all gates, both ways, of a recurrent layer.

    Its weights are the triangular factor R of the input weights W = Q R of all gates: for white noise e, W^T e and
    R^T e have one distribution, with covariance W^T W = R^T R.
    """
    suffixes = ("", "_reverse") if layer.bidirectional else ("",)
    weight = torch.cat([getattr(layer, f"weight_ih_l0{suffix}").detach() for suffix in suffixes])
    triangle = torch.linalg.qr(weight.to(torch.float64), mode="r").R.to(weight)
    linear = nn.Linear(triangle.shape[1], triangle.shape[0], bias=False).to(weight)
    linear.weight = nn.Parameter(triangle, requires_grad=False)
    return linear


def _refusal(module: nn.Module) -> str:
    text = "synthetic inputs exist only for networks that start with a linear layer, a convolution, a recurrent layer"
    return Problem(type(module).__name__, f"{text} or an embedding which reads the input itself", "give inputs")


def _backpropagated_noise(
    first_layers: Sequence[tuple[Any, tuple[int, ...]]], a: Array, shape: tuple[int, ...], rng: Any
) -> Tensor:
    """Return sum_i sqrt(a_i) W_i^T e_i with white noise e_i, by a backward pass through each first layer; float64."""
    total = torch.zeros(shape, dtype=torch.float64)
    for scale, (layer, input_shape) in zip(np.sqrt(a).tolist(), first_layers, strict=True):
        with torch.enable_grad():
            inputs = torch.zeros(
                (shape[0], *input_shape), dtype=layer.weight.dtype, device=layer.weight.device, requires_grad=True
            )
            outputs = layer(inputs)
            noise = torch.as_tensor(rng.standard_normal(tuple(outputs.shape))).to(outputs)
            total += scale * torch.autograd.grad(outputs, inputs, noise)[0].to(total).reshape(shape)
    return total
