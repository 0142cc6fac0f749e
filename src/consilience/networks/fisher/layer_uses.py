"""How the layers of torch use their parameters: linear ones, convolutions, normalisations, embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from consilience.networks.fisher.parameter_uses import Lookup, Product, Sum, Use
from consilience.networks.repair.convolution_patches import windows
from consilience.networks.repair.partial_forward import is_layer
from consilience.networks.repair.recurrent_layers import precise

Name = Callable[[nn.Module, str], str | None]
"""The name of a part's parameter, if it is trained."""


def uses_of(part: nn.Module, given: tuple[Any, ...], answer: Any, name: Name) -> list[Use]:
    """Return how a part uses its parameters; nothing for one that is not known."""
    if len(given) != 1 or not isinstance(given[0], Tensor) or not isinstance(answer, Tensor):
        return []
    values = precise(given[0].detach()) if given[0].is_floating_point() else given[0]
    weight, bias = name(part, "weight"), name(part, "bias")
    if is_layer(part) and values.ndim > 1:
        return _layer_uses(part, values, answer, weight, bias)
    if isinstance(part, nn.Embedding):
        if weight is None or part.max_norm is not None or part.scale_grad_by_freq or part.sparse:
            return []
        numbers, skipped = values.reshape(len(values), -1), -1 if part.padding_idx is None else part.padding_idx
        return [Lookup(weight, tuple(part.weight.shape), answer, numbers, skipped)]
    normalised = _normalised(part, values)
    if normalised is None:
        return []
    of_last_axes = isinstance(part, (nn.LayerNorm, nn.RMSNorm))
    shape: Any = part.normalized_shape if of_last_axes else normalised.shape[1:2]

    def rows(g: Tensor) -> Tensor:  # (n, positions, *shape)
        if of_last_axes:
            return g.reshape(len(values), -1, *shape)
        return g.reshape(*g.shape[:2], -1).transpose(1, 2)

    own = [(weight, normalised), (bias, None)]
    return [Sum(key, tuple(shape), answer, x, rows) for key, x in own if key is not None]


def _layer_uses(part: Any, values: Tensor, answer: Tensor, weight: str | None, bias: str | None) -> list[Use]:
    """Return how a linear layer or a convolution uses its parameters."""
    observations = len(values)
    if isinstance(part, nn.Linear):
        positions, groups = values.reshape(observations, 1, -1, values.shape[-1]), 1

        def outputs(g: Tensor) -> Tensor:
            return g.reshape(observations, 1, -1, g.shape[-1])
    else:
        groups, axes = part.groups, len(part.kernel_size)
        seen = windows(part, values).flatten(1, axes).flatten(2)  # (n, positions, channels * kernel)
        positions = seen.reshape(*seen.shape[:2], groups, -1).transpose(1, 2)

        def outputs(g: Tensor) -> Tensor:
            return g.reshape(observations, groups, g.shape[1] // groups, -1).transpose(2, 3)

    def rows(g: Tensor) -> Tensor:
        return outputs(g).transpose(1, 2).flatten(2)

    found: list[Use] = []
    if weight is not None:
        found.append(Product(weight, tuple(part.weight.shape), answer, positions, outputs))
    if bias is not None:
        found.append(Sum(bias, tuple(part.bias.shape), answer, None, rows))
    return found


def _normalised(part: nn.Module, values: Tensor) -> Tensor | None:
    """Return what a normalisation multiplies by its gain; None for other parts."""
    if isinstance(part, _BatchNorm) and part.running_mean is not None and part.running_var is not None:
        mean, variance = precise(part.running_mean), precise(part.running_var)
        return functional.batch_norm(values, mean, variance, eps=part.eps)
    if isinstance(part, nn.GroupNorm):
        return functional.group_norm(values, part.num_groups, eps=part.eps)
    if isinstance(part, nn.LayerNorm):
        return functional.layer_norm(values, part.normalized_shape, eps=part.eps)
    if isinstance(part, nn.RMSNorm):
        return functional.rms_norm(values, part.normalized_shape, eps=part.eps)
    return None
