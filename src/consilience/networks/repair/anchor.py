"""Anchored batch normalisation: the same function in evaluation, at the models' own gamma and beta.

A refit on synthetic inputs leaves running statistics, and gamma and beta with them, in the units of these inputs. In
evaluation one undoes the other; in training mode batch normalisation divides by the right deviation, and gamma
multiplies once more. So every channel's line through (x, y), of slope gamma / sqrt(var + eps) and value
beta - slope * mean at 0, is written anew with

    G = sum_i a_i |gamma_i|,    B = sum_i a_i beta_i    (models i of weights a_i that have the unit):
    var' = (G / slope)^2 - eps,   gamma' = sign(slope) G,   beta' = B,   mean' = (B - beta) / slope + mean.

In evaluation nothing changes. In training mode outputs have the deviation G and the mean B, as those of the models do,
and running statistics that are updated move to those of the data, where the function stays.

A channel stays as it is where no line can be written so: gamma = 0 (the output is constant), G = 0, or statistics that
the precision of the norm cannot hold. Where eps alone exceeds (G / slope)^2, the variance is 0 and gamma' takes what is
left. Batch normalisation without gamma and beta has one form only, and without running statistics none in evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from consilience.checks import Array
from consilience.networks.repair.channel_statistics import (
    gain_and_bias,
    running_statistics,
    weights_over_owners,
    write_parameter,
)
from consilience.networks.repair.partial_forward import is_norm
from consilience.networks.repair.repair import Repaired, normalised_weights

_Module = TypeVar("_Module", bound=nn.Module)


def anchor(fused: _Module, aligned: Sequence[nn.Module], weights: ArrayLike | None = None) -> Repaired[_Module]:
    """Return a copy of a fused network whose batch normalisation has the gamma and beta of the aligned models.

    Outputs in evaluation mode stay. It serves networks whose channels have been given the models' means and deviations
    (`refit` with ``rescaled=True``, which ends with it, or `repair`); otherwise training mode is not the models'.

    Parameters
    ----------
    fused : Module
        A network; it is left as it is.
    aligned : sequence of Module
        The models, of the same architecture and width, their units in the fused network's order.
    weights : array_like of shape (n_models,), optional
        Weight a_i of each model. Default: equal weights.

    Returns
    -------
    Repaired
        The copy, what gamma was multiplied by, and notes on norms that stay.

    Examples
    --------
    >>> net, model = nn.BatchNorm1d(1).eval(), nn.BatchNorm1d(1).eval()
    >>> _ = net.running_var.fill_(100.0), nn.init.constant_(net.weight, 10.0)      # in units ten times too large
    >>> anchored = anchor(net, [model]).module
    >>> round(anchored.weight.item(), 3), round(anchored.running_var.item(), 3)
    (1.0, 1.0)
    """
    network: Any = deepcopy(fused)
    factors, notes = anchor_norms(network, aligned, normalised_weights(weights, len(aligned)))
    return Repaired(network, factors, notes)


def anchor_norms(
    network: nn.Module, aligned: Sequence[nn.Module], weights: Array
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Anchor the batch normalisation of a network in place; return the factors of gamma, and notes on what stays."""
    factors: dict[str, Tensor] = {}
    notes: dict[str, str] = {}
    for name, part in network.named_modules():
        if not is_norm(part):
            continue
        norm: Any = part
        if norm.running_mean is None:
            notes[name] = "keeps no running statistics: it answers by the batch"
        elif norm.weight is not None:
            pairs = [gain_and_bias(model.get_submodule(name)) for model in aligned]
            gains, biases = (torch.stack(values) for values in zip(*pairs, strict=True))  # (models, channels)
            has_unit = (gains != 0) | (biases != 0)  # what is put in for a unit that a model has not is zero
            a = weights_over_owners(weights, has_unit)
            factors[name] = _write_at(norm, (a * gains.abs()).sum(dim=0), (a * biases).sum(dim=0))
    return factors, notes


def _write_at(norm: Any, gain: Tensor, bias: Tensor) -> Tensor:
    """Write a norm at another |gamma| and beta, in place, and return the factors of gamma (channels,)."""
    mean, variance = running_statistics(norm)
    old_gain, old_bias = gain_and_bias(norm)
    slope = old_gain / (variance + norm.eps).sqrt()
    safe_slope = torch.where(slope != 0, slope, 1.0)
    # Rounded first to the precision of the norm: gamma and beta, computed from what is stored, then keep the line.
    new_variance = ((gain / safe_slope).square() - norm.eps).clamp(min=0.0).to(norm.running_var)
    new_mean = (mean + (bias - old_bias) / safe_slope).to(norm.running_mean)
    new_gain = slope * (new_variance.to(torch.float64) + norm.eps).sqrt()
    new_bias = old_bias + slope * (new_mean.to(torch.float64) - mean)
    moves = (slope != 0) & (gain > 0) & torch.isfinite(new_variance) & torch.isfinite(new_mean)
    write_parameter(norm.running_var, torch.where(moves, new_variance, norm.running_var))
    write_parameter(norm.running_mean, torch.where(moves, new_mean, norm.running_mean))
    write_parameter(norm.weight, torch.where(moves, new_gain, old_gain))
    write_parameter(norm.bias, torch.where(moves, new_bias, old_bias))
    return torch.where(moves, new_gain / torch.where(old_gain != 0, old_gain, 1.0), 1.0)
