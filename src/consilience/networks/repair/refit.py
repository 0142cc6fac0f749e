"""Refitting a fused network: layer by layer, answer to inputs what the aligned models answer.

The layers are gone through in the order of computation. With h what a layer of the fused network is given, the layers
before already fitted, and x_i what that layer of model i is given, W is the minimiser of

    sum_i a_i E |W h - W_i x_i|^2 + ridge * mean diagonal of E[h h'] * |W - W_0|^2,

W_0 the average of the models' weights. So errors of earlier layers are made up for by later ones, which an average and
a regression mean (`consilience.networks.repair.regmean`) cannot do. Least squares answers with less deviation than it
is asked for, so channels are then rescaled as in REPAIR, before the next layer is fitted. Where batch normalisation
follows a layer, its output is fitted; recurrent layers are fitted step by step (``recurrent_refit``). The inputs need
no labels, and may be made up (`synthetic_inputs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import ceil, prod
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from consilience.checks import Array, is_count
from consilience.errors import InputError, OptionError
from consilience.networks.repair.channel_statistics import (
    channel_rows,
    gain_and_bias,
    goals,
    measured,
    put,
    rescale,
    restate,
)
from consilience.networks.repair.convolution_patches import patches, positions
from consilience.networks.repair.layer_moments import RunningMoments
from consilience.networks.repair.partial_forward import Stage, as_batches, evaluated, is_grouped, is_norm, structure
from consilience.networks.repair.recurrent_refit import fit_recurrent
from consilience.networks.repair.regression import Joint, require_ridge
from consilience.networks.repair.repair import Repaired, repair_points, shares

_Module = TypeVar("_Module", bound=nn.Module)


def refit(
    fused: _Module,
    aligned: Sequence[nn.Module],
    weights: ArrayLike | None,
    inputs: Any,
    ridge: float = 0.1,
    rescaled: bool = True,
    patches_per_layer: int = 2**15,
    batch_size: int = 256,
    rng: np.random.Generator | int = 0,
) -> Repaired[_Module]:
    """Return a copy of a fused network whose layers answer to inputs what the aligned models' layers answer.

    Parameters
    ----------
    fused
        The average of the aligned models; it is left as it is. Grouped convolutions, layers that are called more than
        once or share their weights, recurrent cells and layers that read packed sequences, and everything that is
        neither linear, a convolution nor recurrent keep its weights.
    aligned
        The models, of the same architecture and width, their units in the fused network's order.
    weights
        What each counts; None counts all alike.
    inputs
        What all networks are asked: a tensor (N, ...), or batches of them (tensors, keyword arguments, or inputs with
        labels, which are not used).
    ridge
        How much weights are drawn towards those of `fused`, relative to the mean square of what a layer is given.
    rescaled
        Whether channels are given the means and deviations of the models' after each layer (`repair`).
    patches_per_layer
        Samples, or for convolutions patches, for recurrent layers steps of samples, that a layer is fitted to at most;
        more are drawn from.
    batch_size
        Inputs in one forward pass, where they are one tensor.
    rng
        Draws the patches and samples.

    Raises
    ------
    InputError
        When there are no inputs, or values are not finite.
    OptionError
        When an option has a value that it does not take.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> weak = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> inputs = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    >>> found = refit(weak, [net], None, inputs, ridge=0.0).module
    >>> bool((found(inputs) - net(inputs)).abs().max() < 1e-4)
    True
    """
    require_ridge(ridge)
    for option, value in (("patches_per_layer", patches_per_layer), ("batch_size", batch_size)):
        if not is_count(value):
            raise OptionError(f"{option}: expected a positive whole number, found {value!r}")
    share = shares(weights, len(aligned))
    batches, draw = _in_batches(inputs, batch_size), np.random.default_rng(rng)
    network: Any = deepcopy(fused)
    form = structure(network, batches[0])
    notes, factors = dict(form.skipped), {}
    points = repair_points(form, output=False)
    quota = patches_per_layer / sum(_samples(batch) for batch in batches)
    with evaluated(network, *aligned):
        stages = [Stage.at_input(module, batches) for module in (network, *aligned)]
        for name in form.calls:
            stages = [stage.advanced(name) for stage in stages]
            part: Any = network.get_submodule(name)
            norm = form.normalised.get(name)
            if name in form.recurrent:
                fit_recurrent(stages, name, share, [quota * _samples(batch) for batch in batches], ridge, draw)
            elif is_norm(part):
                _restate(stages[0], name)
            elif is_grouped(part):
                notes[name] = "is a grouped convolution: it keeps the average"
            elif norm is not None and _can_absorb(network.get_submodule(norm)):
                _restate(stages[0], norm)
                joint = _asked(stages, name, norm, share, quota, draw)
                _fit_normalised(part, network.get_submodule(norm), joint, ridge)
            else:
                joint = _asked(stages, name, name, share, quota, draw)
                weight, bias = joint.fit(
                    part.weight.detach().to(torch.float64).flatten(1), part.bias is not None, ridge
                )
                put(part.weight, weight.reshape(part.weight.shape))
                if part.bias is not None:
                    put(part.bias, bias)
            if rescaled and name in points and part.weight is not None:
                now, *wanted = (measured(stage, name) for stage in stages)
                factors[name] = rescale(part, now, goals(wanted, share))
    return Repaired(network, factors, notes)


def _in_batches(inputs: Any, size: int) -> list[Any]:
    """Return inputs in memory: a tensor (N, ...) in batches of at most `size`, batches as they are.

    Raises
    ------
    InputError
        When there are none.
    """
    if not isinstance(inputs, Tensor):
        return list(as_batches(inputs))
    if inputs.ndim == 0 or len(inputs) == 0:
        raise InputError("inputs: expected at least one, found none")
    return list(torch.split(inputs, size))


def _samples(batch: Any) -> int:
    """Return how many samples a batch has."""
    values = next(iter(batch.values())) if isinstance(batch, Mapping) else batch
    return len(values[0] if isinstance(values, (tuple, list)) else values)


def _can_absorb(norm: Any) -> bool:
    """Return whether a batch normalisation can take up the scale and shift of the layer before it."""
    return norm.running_mean is not None and norm.weight is not None


def _restate(stage: Stage, name: str) -> None:
    """Set the running statistics of a batch normalisation to what it is given."""
    norm: Any = stage.module.get_submodule(name)
    if norm.running_mean is not None:
        given = measured(stage, name, given=True)
        restate(norm, given.mean, given.std.square(), keep_function=False)


def _fit_normalised(layer: Any, norm: Any, joint: Joint, ridge: float) -> None:
    """Fit a layer together with the batch normalisation that follows, in place.

    Channels that the normalisation multiplies by zero keep their weights.
    """
    mean, variance = norm.running_mean.to(torch.float64), norm.running_var.to(torch.float64)
    gain, shift = gain_and_bias(norm)
    slope = gain / (variance + norm.eps).sqrt()
    alive = slope != 0
    old = layer.weight.detach().to(torch.float64).flatten(1)
    weight, bias = joint.fit(slope[:, None] * old, True, ridge)
    weight = torch.where(alive[:, None], weight / torch.where(alive, slope, 1.0)[:, None], old)
    put(layer.weight, weight.reshape(layer.weight.shape))
    own = 0.0 if layer.bias is None else layer.bias.detach().to(torch.float64)
    put(norm.bias, torch.where(alive, bias + slope * (mean - own), shift))


def _asked(
    stages: Sequence[Stage], name: str, wanted_at: str, share: Array, quota: float, draw: np.random.Generator
) -> Joint:
    """Return the joint moments of what the fused network's layer is given and what the models answer, on average.

    Parameters
    ----------
    stages
        Of the fused network and of the models.
    name
        The layer.
    wanted_at
        Where the models answer: the layer, or the batch normalisation after it.
    share
        What each model counts.
    quota
        Samples and positions for each input.
    draw
        Draws them.
    """
    layer: Any = stages[0].module.get_submodule(name)
    counts = _counts(stages[1:], name, share)
    total: RunningMoments | None = None
    streams = [stages[0].at(name), *(stage.at(wanted_at) for stage in stages[1:])]
    for (given, _), *answers in zip(*streams, strict=True):
        size, some = prod(positions(layer, given)), ceil(quota * len(given))
        rows = np.arange(size) if size <= some else np.sort(draw.choice(size, some, replace=False))
        chosen = torch.as_tensor(rows, device=given.device)
        taken = torch.stack([channel_rows(layer, answer)[chosen].to(given) for _, answer in answers])
        wanted = torch.einsum("ik,ink->nk", counts.to(given), taken)
        both = torch.cat([patches(layer, given, chosen), wanted], dim=1)
        total = RunningMoments.of(both) if total is None else total.with_rows(both)
    if total is None:
        raise InputError("inputs: expected a tensor of at least one input, found none")
    mean, covariance = total.mean_and_covariance()
    inputs = layer.weight[0].numel()
    return Joint(mean[:inputs], mean[inputs:], covariance[:inputs, :inputs], covariance[inputs:, :inputs])


def _counts(stages: Sequence[Stage], name: str, share: Array) -> Tensor:
    """Return what each model counts for each channel (n, k): nothing where it has no such unit."""
    layers: list[Any] = [stage.module.get_submodule(name) for stage in stages]
    owned = [one.weight.flatten(1).ne(0).any(dim=1) | (False if one.bias is None else one.bias.ne(0)) for one in layers]
    counts = torch.as_tensor(share).to(layers[0].weight.device)[:, None] * torch.stack(owned)
    return counts / counts.sum(dim=0).clamp(min=torch.finfo(torch.float64).tiny)
