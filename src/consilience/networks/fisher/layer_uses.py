"""Parameter uses of torch's layers: linear ones, convolutions, normalisations, embeddings.

For every trained parameter of a layer that was called, its `ParameterUse`: what the parameter was multiplied with, and
how the gradient of the layer's output is laid out by observation and position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from consilience.networks.fisher.parameter_uses import ElementwiseUse, EmbeddingUse, LinearUse, ParameterUse
from consilience.networks.repair.convolution_patches import kernel_windows
from consilience.networks.repair.partial_forward import is_layer, is_transposed
from consilience.networks.repair.recurrent_layers import at_least_float32

TrainedName = Callable[[nn.Module, str], str | None]
"""From a layer and an attribute of it to the name of that parameter; None unless it is trained."""


def layer_uses(
    layer: nn.Module, arguments: tuple[Any, ...], output: Any, trained_name: TrainedName
) -> list[ParameterUse]:
    """Return the uses of a layer's parameters in one call; none for a layer of an unknown kind.

    Parameters
    ----------
    layer : Module
        The layer that was called.
    arguments : tuple
        Positional arguments of the call.
    output : Tensor
        What the layer returned.
    trained_name : callable
        Name of a parameter of the layer, if it is trained.
    """
    if len(arguments) != 1 or not isinstance(arguments[0], Tensor) or not isinstance(output, Tensor):
        return []
    inputs = at_least_float32(arguments[0].detach()) if arguments[0].is_floating_point() else arguments[0]
    weight, bias = trained_name(layer, "weight"), trained_name(layer, "bias")
    if is_layer(layer) and not is_transposed(layer) and inputs.ndim > 1:
        return _affine_uses(layer, inputs, output, weight, bias)
    if isinstance(layer, nn.Embedding):
        # These options change the gradient, or the weight itself, in ways that `EmbeddingUse` does not follow.
        if weight is None or layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
            return []
        padding_index = -1 if layer.padding_idx is None else layer.padding_idx
        indices = inputs.reshape(len(inputs), -1)
        return [EmbeddingUse(weight, tuple(layer.weight.shape), output, indices, padding_index)]
    normalised = _normalised_inputs(layer, inputs)
    if normalised is None:
        return []
    of_last_axes = isinstance(layer, (nn.LayerNorm, nn.RMSNorm))
    shape: Any = layer.normalized_shape if of_last_axes else normalised.shape[1:2]

    def by_position(g: Tensor) -> Tensor:  # (n, positions, *shape)
        if of_last_axes:
            return g.reshape(len(inputs), -1, *shape)
        return g.reshape(*g.shape[:2], -1).transpose(1, 2)

    factors = [(weight, normalised), (bias, None)]
    return [
        ElementwiseUse(key, tuple(shape), output, factor, by_position) for key, factor in factors if key is not None
    ]


def _affine_uses(
    layer: Any, inputs: Tensor, output: Tensor, weight: str | None, bias: str | None
) -> list[ParameterUse]:
    """Return the uses of weight and bias of a linear layer or a convolution."""
    n_observations = len(inputs)
    if isinstance(layer, nn.Linear):
        weight_inputs = inputs.reshape(n_observations, 1, -1, inputs.shape[-1])  # (n, 1, positions, d_in)

        def output_gradients(g: Tensor) -> Tensor:
            return g.reshape(n_observations, 1, -1, g.shape[-1])
    else:
        n_groups, n_axes = layer.groups, len(layer.kernel_size)
        patches = kernel_windows(layer, inputs).flatten(1, n_axes).flatten(2)  # (n, positions, channels * kernel)
        by_group = patches.reshape(*patches.shape[:2], n_groups, -1)  # (n, positions, groups, d_in)
        weight_inputs = by_group.transpose(1, 2)  # (n, groups, positions, d_in)

        def output_gradients(g: Tensor) -> Tensor:
            return g.reshape(n_observations, n_groups, g.shape[1] // n_groups, -1).transpose(2, 3)

    def by_position(g: Tensor) -> Tensor:  # (n, positions, channels)
        return output_gradients(g).transpose(1, 2).flatten(2)

    uses: list[ParameterUse] = []
    if weight is not None:
        uses.append(LinearUse(weight, tuple(layer.weight.shape), output, weight_inputs, output_gradients))
    if bias is not None:
        uses.append(ElementwiseUse(bias, tuple(layer.bias.shape), output, None, by_position))
    return uses


def _normalised_inputs(layer: nn.Module, inputs: Tensor) -> Tensor | None:
    """Return what a normalisation multiplies by its gain; None for other layers."""
    if isinstance(layer, _BatchNorm) and layer.running_mean is not None and layer.running_var is not None:
        mean, variance = at_least_float32(layer.running_mean), at_least_float32(layer.running_var)
        return functional.batch_norm(inputs, mean, variance, eps=layer.eps)
    if isinstance(layer, nn.GroupNorm):
        return functional.group_norm(inputs, layer.num_groups, eps=layer.eps)
    if isinstance(layer, nn.LayerNorm):
        return functional.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
    if isinstance(layer, nn.RMSNorm):
        return functional.rms_norm(inputs, layer.normalized_shape, eps=layer.eps)
    return None
