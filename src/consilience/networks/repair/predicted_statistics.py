"""Statistics of a network's channels, predicted from moments of layer inputs, and how far off they are."""

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
    """How far predicted statistics of one layer are from those measured.

    Parameters
    ----------
    mean
        Root mean square error of the means, in units of the root mean square of the measured deviations.
    std
        Root mean square error of the deviations, in the same units.
    """

    mean: float
    std: float


def pre_activations(module: nn.Module, name: str, moments: Moments) -> ChannelStatistics:
    """Return means and deviations of what a layer answers to inputs of these moments.

    Raises
    ------
    InputError
        When the moments are of another network.
    """
    layer: Any = dict(module.named_modules()).get(name)
    weight = getattr(layer, "weight", None)
    if weight is None or weight[0].numel() != len(moments.layers[name].mean):
        raise InputError(
            f"moments: layer {name} has {len(moments.layers[name].mean)} inputs; this network has no such layer, or of "
            "another width (moments move as their model does)"
        )
    rows = weight.detach().to(torch.float64).flatten(1)
    mean, covariance = (
        torch.as_tensor(one).to(rows) for one in (moments.layers[name].mean, moments.layers[name].covariance)
    )
    bias = 0.0 if layer.bias is None else layer.bias.detach().to(torch.float64)
    variance = ((rows @ covariance) * rows).sum(dim=1).clamp(min=0.0)
    return ChannelStatistics(rows @ mean + bias, variance.sqrt())


def predicted_statistics(module: nn.Module, moments: Moments) -> dict[str, ChannelStatistics]:
    """Return means and deviations of what every layer answers to inputs of these moments.

    Raises
    ------
    InputError
        When the moments are of another network.
    """
    return {name: pre_activations(module, name, moments) for name in moments.layers}


def statistics_error(
    predicted: Mapping[str, ChannelStatistics], module: nn.Module, batches: Any
) -> dict[str, StatisticsError]:
    """Return how far predicted statistics are from those that a network has on inputs.

    Parameters
    ----------
    predicted
        By name of the layer.
    module
        The network that they were predicted of; it is left as it is.
    batches
        Inputs: a tensor, or batches of them (tensors, keyword arguments, or inputs with labels, which are not used).

    Raises
    ------
    InputError
        When there are no batches, or values are not finite.
    """
    found = {}
    for name, now in channel_statistics(module, batches, list(predicted)).items():
        unit = now.std.square().mean().sqrt()
        gaps = [
            (getattr(predicted[name], what) - getattr(now, what)).square().mean().sqrt() for what in ("mean", "std")
        ]
        found[name] = StatisticsError(float(gaps[0] / unit), float(gaps[1] / unit))
    return found
