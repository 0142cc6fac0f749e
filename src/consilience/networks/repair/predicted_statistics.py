"""Channel statistics predicted from moments of layer inputs.

A layer with weights W and biases b has, for inputs x of mean m and covariance C, pre-activations of mean W m + b and of
variances diag(W C W^T): exact for the moments' own network, approximate for another one in its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from consilience.errors import InputError
from consilience.networks.repair.channel_statistics import ChannelMoments
from consilience.networks.repair.layer_moments import LayerMoments


def pre_activations(module: nn.Module, name: str, moments: LayerMoments) -> ChannelMoments:
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
    return ChannelMoments(rows @ mean + bias, variance.sqrt())
