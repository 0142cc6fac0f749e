"""Channel statistics predicted from moments of layer inputs, and their error.

A layer with weights W and biases b has, for inputs x of mean m and covariance C, pre-activations of mean W m + b and of
variances diag(W C W^T): exact for the moments' own network, approximate for another one in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from consilience.errors import InputError
from consilience.networks.repair.channel_statistics import ChannelStatistics, channel_statistics
from consilience.networks.repair.layer_moments import Moments


@dataclass(frozen=True)
class StatisticsError:
    """Distance of predicted statistics of one layer from measured ones.

    Parameters
    ----------
    mean : float
        Root mean square error of the means, in units of the root mean square of the measured deviations.
    std : float
        Root mean square error of the deviations, in the same units.
    """

    mean: float
    std: float


def pre_activations(module: nn.Module, name: str, moments: Moments) -> ChannelStatistics:
    """Return means and deviations of a layer's pre-activations for inputs of these moments.

    Raises
    ------
    InputError
        When the moments are of another network.
    """
    layer: Any = dict(module.named_modules()).get(name)
    weight = getattr(layer, "weight", None)
    if weight is None or weight[0].numel() != len(moments.layers[name].mean):
        raise InputError(
            "moments",
            f"layer {name} has {len(moments.layers[name].mean)} inputs; this network has no such layer, or of "
            "another width (moments move as their model does)",
        )
    rows = weight.detach().to(torch.float64).flatten(1)  # (channels, d); a patch is flattened alike
    mean, covariance = (
        torch.as_tensor(array).to(rows) for array in (moments.layers[name].mean, moments.layers[name].covariance)
    )
    bias = 0.0 if layer.bias is None else layer.bias.detach().to(torch.float64)
    variance = ((rows @ covariance) * rows).sum(dim=1).clamp(min=0.0)  # diag(W C W^T); rounding may go below zero
    return ChannelStatistics(rows @ mean + bias, variance.sqrt())


def predicted_statistics(module: nn.Module, moments: Moments) -> dict[str, ChannelStatistics]:
    """Return means and deviations of every layer's pre-activations for inputs of these moments.

    Raises
    ------
    InputError
        When the moments are of another network.
    """
    return {name: pre_activations(module, name, moments) for name in moments.layers}


def statistics_error(
    predicted: Mapping[str, ChannelStatistics], module: nn.Module, batches: Any
) -> dict[str, StatisticsError]:
    """Return the errors of predicted statistics, against those that a network has on inputs.

    Parameters
    ----------
    predicted : mapping of str to ChannelStatistics
        By name of the layer.
    module : Module
        The network that they were predicted of; it is left as it is.
    batches : Tensor of shape (n, ...) or iterable of batches
        Inputs: a tensor, or batches of them (tensors, keyword arguments, or inputs with labels, which are not used).

    Raises
    ------
    InputError
        When there are no batches, or values are not finite.
    """
    errors = {}
    for name, measured in channel_statistics(module, batches, list(predicted)).items():
        # One unit for the layer: channels that hardly vary would make relative errors meaningless.
        unit = measured.std.square().mean().sqrt()
        distances = [
            (getattr(predicted[name], field) - getattr(measured, field)).square().mean().sqrt()
            for field in ("mean", "std")
        ]
        errors[name] = StatisticsError(float(distances[0] / unit), float(distances[1] / unit))
    return errors
