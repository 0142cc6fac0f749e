"""What an alignment did to two networks: distances of their tensors, and the spread that their average keeps.

Averaging units that are not the same lets their signals cancel: the standard deviation of pre-activations collapses
from layer to layer (Jordan et al. 2023, "REPAIR: REnormalizing Permuted Activations for Interpolation Repair").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consilience.checks import Array, is_count
from consilience.errors import InputError, OptionError
from consilience.networks.landscape.evaluation import CONVOLUTIONS, evaluation_mode
from consilience.networks.landscape.parameters import Model, ParameterLayout, Span, named_tensors


@dataclass(frozen=True, eq=False)
class LayerDistances:
    """Frobenius distances of the tensors of two networks, before and after the second was aligned to the first.

    Parameters
    ----------
    names
        Of the tensors; L of them.
    before, after
        Distances (L,) to the first network.
    norm
        Norms (L,) of the first network's tensors.
    """

    names: tuple[str, ...]
    before: Array
    after: Array
    norm: Array


def layer_distances(reference: Model, model: Model, aligned: Model) -> LayerDistances:
    """Return how far every floating-point tensor of `model` is from `reference`, before and after alignment.

    Raises
    ------
    InputError
        Naming the tensor in which the networks differ in shape, or that is missing or not finite.

    Examples
    --------
    >>> one, two = {"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([4.0, 3.0])}
    >>> found = layer_distances(one, two, aligned=one)
    >>> found.names, found.before.round(3), found.after, found.norm
    (('w',), array([1.414]), array([0.]), array([5.]))
    """
    layout = ParameterLayout.of(reference)
    reference_vector = layout.flatten(reference, "reference")
    vectors = [
        layout.flatten(network, role).to(reference_vector.device)
        for role, network in (("model", model), ("aligned", aligned))
    ]
    rows = torch.stack([vectors[0] - reference_vector, vectors[1] - reference_vector, reference_vector])
    norms = torch.stack([rows[:, a:b].norm(dim=1) for a, b in pairwise(layout.bounds)], dim=1).cpu().numpy()
    return LayerDistances(layout.names, norms[0], norms[1], norms[2])


def variance_collapse(
    net_a: nn.Module, net_b: Model, inputs: Tensor, t: float = 0.5, batch_size: int = 1024
) -> dict[str, float]:
    """Return how much of the spread of pre-activations the network between two keeps, by linear and conv layer.

    For each layer, the standard deviation of every channel over samples (and positions) is averaged over channels, and
    the ratio is that of theta(t) = (1 - t) theta_a + t theta_b to (1 - t) s_a + t s_b. Ratios well below one call for
    repair.

    Parameters
    ----------
    net_a
        A module, which is not changed.
    net_b
        Another of the same architecture, aligned or not, or a mapping of its names to tensors.
    inputs
        (N, ...) samples for the module.
    t
        Where between the two.
    batch_size
        Samples in one forward pass.

    Returns
    -------
    dict
        Name of the layer -> ratio, in the order in which modules are registered; layers that some network never calls
        are left out, and a layer that is constant in both networks has NaN.

    Raises
    ------
    InputError
        When the networks differ in a tensor, which is named, or there are no inputs.

    Examples
    --------
    >>> one, two = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(one.weight, 1.0), nn.init.constant_(two.weight, -1.0)
    >>> variance_collapse(nn.Sequential(one), nn.Sequential(two), torch.eye(2).cumsum(0))
    {'0': 0.0}
    """
    if not is_count(batch_size):
        raise OptionError(f"batch_size: expected a positive whole number, found {batch_size!r}")
    if len(inputs) == 0:
        raise InputError("inputs: expected at least one sample, found none")
    span = Span.of({"net_a": net_a, "net_b": net_b})
    weights = np.array([[1.0, 0.0], [0.0, 1.0], [1.0 - t, t]])
    first, second, middle = (_mean_deviations(span.model(row), inputs, batch_size) for row in weights)
    layers = [name for name in middle if name in first and name in second]
    end_deviations = {name: (1.0 - t) * first[name] + t * second[name] for name in layers}
    return {name: middle[name] / end_deviations[name] if end_deviations[name] > 0 else float("nan") for name in layers}


@dataclass(frozen=True, eq=False)
class _Moments:
    """Count, means (channels,) and sums of squared deviations (channels,) of what was seen so far, float64."""

    count: int
    mean: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> _Moments:
        mean = rows.mean(dim=0)
        return cls(len(rows), mean, (rows - mean).square().sum(dim=0))

    def merged(self, other: _Moments) -> _Moments:
        """Return the moments of both, without the cancellation that sums of squares suffer."""
        count = self.count + other.count
        mean_difference = other.mean - self.mean
        scatter = self.scatter + other.scatter + mean_difference.square() * (self.count * other.count / count)
        return _Moments(count, self.mean + mean_difference * (other.count / count), scatter)


def _mean_deviations(module: nn.Module, inputs: Tensor, batch_size: int) -> dict[str, float]:
    """Return the mean over channels of the standard deviation of each layer's outputs."""
    reference_tensor = next(tensor for tensor in named_tensors(module).values() if tensor.is_floating_point())
    moments_of_layer: dict[str, _Moments] = {}

    def make_hook(name: str, channel: int) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(_layer: nn.Module, _inputs: Any, output: Tensor) -> None:
            moments = _Moments.of(output.movedim(channel, -1).flatten(0, -2).to(torch.float64))
            moments_of_layer[name] = moments_of_layer[name].merged(moments) if name in moments_of_layer else moments

        return hook

    with _layer_hooks(module, make_hook), evaluation_mode(module), torch.no_grad():
        for start in range(0, len(inputs), batch_size):
            rows = inputs[start : start + batch_size].to(reference_tensor.device)
            module(rows.to(reference_tensor.dtype) if rows.is_floating_point() else rows)
    names = [name for name, _ in module.named_modules() if name in moments_of_layer]
    return {
        name: float((moments_of_layer[name].scatter / moments_of_layer[name].count).sqrt().mean()) for name in names
    }


@contextmanager
def _layer_hooks(
    module: nn.Module, make_hook: Callable[[str, int], Callable[[nn.Module, Any, Tensor], None]]
) -> Iterator[None]:
    """Call ``watch(name, channel axis)`` with the outputs of every linear and conv layer for the while."""
    handles = []
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            handles.append(layer.register_forward_hook(make_hook(name, -1)))
        elif isinstance(layer, CONVOLUTIONS):
            handles.append(layer.register_forward_hook(make_hook(name, 1)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
