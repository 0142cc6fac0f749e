"""Means and standard deviations of a network's channels, and batch normalisation set by them.

A channel's mean and standard deviation are taken over samples and positions of a layer's output, in float64. They are
measured in one pass over inputs; statistics of different batches are merged by the pairwise formula of Chan, Golub and
LeVeque (1983), which does not cancel as sums of squares do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from consilience.checks import Array
from consilience.errors import InputError
from consilience.networks.repair.convolution_patches import weight_blocks, write_weight_blocks
from consilience.networks.repair.partial_forward import (
    Layer,
    PartialForward,
    as_batches,
    call_module,
    evaluation_without_gradients,
    is_norm,
    layer_order,
    observe,
)

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class ChannelMoments:
    """Statistics of channels over samples and positions."""

    mean: Tensor  # (channels,), float64
    std: Tensor  # (channels,): standard deviation, float64
    count: int = 0  # number of samples times positions; 0: unknown

    @classmethod
    def of(cls, part: nn.Module, values: Tensor) -> ChannelMoments:
        """Return the statistics of what a layer or a normalisation reads or gives.

        In two passes, which on a CPU take a quarter of the time of ``torch.var_mean``.
        """
        values, channels = values.to(torch.float64), channel_axis(part) % values.ndim
        axes = [axis for axis in range(values.ndim) if axis != channels]
        mean = values.mean(axes, keepdim=True)
        std = (values - mean).square().mean(axes).sqrt()
        return cls(mean.flatten(), std, values.numel() // len(std))

    def merge(self, other: ChannelMoments) -> ChannelMoments:
        """Return the statistics of both samples together, without the cancellation that sums of squares suffer."""
        count = self.count + other.count
        # Chan, Golub, LeVeque: the variance of two samples is the mean of both, plus that between their means.
        w = other.count / count  # share of the other sample
        gap = other.mean - self.mean
        variance = (1 - w) * self.std.square() + w * other.std.square() + w * (1 - w) * gap.square()
        return ChannelMoments(self.mean + w * gap, variance.sqrt(), count)


def channel_axis(part: nn.Module) -> int:
    """Return the axis of the channels in what a layer or a normalisation reads or gives."""
    if isinstance(part, nn.Linear):
        return -1
    return -len(part.normalized_shape) if isinstance(part, nn.LayerNorm) else 1


def channel_rows(part: nn.Module, values: Tensor) -> Tensor:
    """Return what a layer or a normalisation reads or gives as rows (samples * positions, channels)."""
    return values.movedim(channel_axis(part), -1).flatten(0, -2)


def measure_channels(forward: PartialForward, name: str, of_inputs: bool = False) -> ChannelMoments:
    """Return the statistics of the channels of one part's outputs, or (of batch normalisation) of its inputs."""
    part = forward.module.get_submodule(name)
    total: ChannelMoments | None = None
    for inputs_and_outputs in forward.inputs_and_outputs(name):
        statistics = ChannelMoments.of(part, inputs_and_outputs[0 if of_inputs else 1])
        total = statistics if total is None else total.merge(statistics)
    if total is None:
        raise InputError("batches", "expected at least one batch of inputs, found none", code="E-NEEDED")
    return total


def channel_statistics(
    module: nn.Module, batches: Any, names: Sequence[str] | None = None
) -> dict[str, ChannelMoments]:
    """Return means and standard deviations of the channels of layers' outputs, in one pass.

    Default: of all linear layers, convolutions and batch normalisations that are called, in that order.

    Examples
    --------
    >>> layer = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(layer.weight, 2.0)
    >>> statistics = channel_statistics(nn.Sequential(layer), torch.tensor([[1.0], [3.0]]))["0"]
    >>> float(statistics.mean), float(statistics.std), statistics.count
    (4.0, 2.0, 2)
    """
    batches = as_batches(batches)
    if names is None:
        names = layer_order(module, next(iter(batches))).not_recurrent
    statistics = moments_of_outputs(module, batches, names)
    if bad := [name for name, layer in statistics.items() if not torch.isfinite(layer.mean + layer.std).all()]:
        raise InputError(", ".join(bad), "NaN or infinite values on these inputs", "look at both", "E-NUMBER")
    return statistics


def moments_of_outputs(module: nn.Module, batches: Iterable[Any], names: Iterable[str]) -> dict[str, ChannelMoments]:
    """Return the statistics of the outputs of those named layers that are called, in one pass."""
    statistics: dict[str, ChannelMoments] = {}

    def record(name: str, part: nn.Module, _arguments: Any, output: Tensor) -> None:
        of_batch = ChannelMoments.of(part, output)
        statistics[name] = statistics[name].merge(of_batch) if name in statistics else of_batch

    observe(module, batches, names, record)
    return statistics


def target_statistics(statistics: Sequence[ChannelMoments], weights: Array) -> ChannelMoments:
    """Return weighted means of the models' means and standard deviations, sum_i a_i mu_i and sum_i a_i s_i.

    A channel in which a model gives no signal at all (constantly zero: a unit it does not have) does not count there.
    Weights are the models' (models,), or each channel's own (models, channels).
    """
    means, stds = (torch.stack([getattr(model, field) for model in statistics]) for field in ("mean", "std"))
    is_active = (means != 0) | (stds != 0)  # (models, channels)
    a = weights_over_owners(weights, is_active)
    return ChannelMoments((a * means).sum(dim=0), (a * stds).sum(dim=0))


def weights_over_owners(weights: Array, has_unit: Tensor) -> Tensor:
    """Return the models' weights over those that have a unit (models, channels); zero, not NaN, where none has it.

    Weights are the models' (models,), or each channel's own (models, channels).
    """
    a = torch.as_tensor(weights, device=has_unit.device).reshape(len(has_unit), -1) * has_unit
    return a / a.sum(dim=0).clamp(min=torch.finfo(torch.float64).tiny)


def running_statistics(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return the running mean and variance of a batch normalisation that keeps them, float64."""
    if norm.running_mean is None or norm.running_var is None:
        text = "batch normalisation without running statistics answers by the batch: there is nothing to repair"
        raise InputError("", text, code="E-NEEDED")
    return norm.running_mean.to(torch.float64), norm.running_var.to(torch.float64)


def gain_and_bias(norm: Any) -> tuple[Tensor, Tensor]:
    """Return gamma and beta of a batch normalisation, float64; 1 and 0 where it has none."""
    mean, _ = running_statistics(norm)
    gain = torch.ones_like(mean) if norm.weight is None else norm.weight.detach().to(torch.float64)
    bias = torch.zeros_like(mean) if norm.bias is None else norm.bias.detach().to(torch.float64)
    return gain, bias


def remeasure_batch_norm(forward: PartialForward, name: str, keep_function: bool) -> None:
    """Set the running statistics of a batch normalisation, where it has any, to those of its inputs, in place.

    Channels without variance stay. To keep its function, gamma and beta follow, so that its output stays the same.
    """
    norm: Any = forward.module.get_submodule(name)
    if norm.running_mean is None:
        return
    inputs, (old_mean, old_variance) = measure_channels(forward, name, of_inputs=True), running_statistics(norm)
    variance = inputs.std.square()
    is_active = variance > 0
    mean, variance = torch.where(is_active, inputs.mean, old_mean), torch.where(is_active, variance, old_variance)
    if keep_function and norm.weight is not None:
        gain, bias = gain_and_bias(norm)
        # The same line through (x, y) in every channel: slope gamma / sqrt(var + eps), value beta at the mean.
        slope = gain / (old_variance + norm.eps).sqrt()
        write_parameter(norm.weight, slope * (variance + norm.eps).sqrt())
        write_parameter(norm.bias, bias + (mean - old_mean) * slope)
    write_parameter(norm.running_mean, mean)
    write_parameter(norm.running_var, variance)


def rescale_channels(part: Layer | _BatchNorm, current: ChannelMoments, target: ChannelMoments) -> Tensor:
    """Give every channel of a part the target mean and standard deviation, in place; return the factors (channels,).

    With y the output, mu and s its current statistics, mu* and s* the target, y becomes (y - mu) s* / s + mu*. The
    factor s* / s goes into weight and bias (for batch normalisation, gamma and beta), the shift into the bias. A part
    without a bias is only scaled: a bias would change the architecture. Channels without deviation are left as they
    are.
    """
    is_active = current.std > 0
    factor = torch.where(is_active, target.std / torch.where(is_active, current.std, 1.0), 1.0)
    if isinstance(part, _BatchNorm):
        write_parameter(part.weight, part.weight.detach().to(torch.float64) * factor)
    else:
        blocks = weight_blocks(part)  # ((groups,) k, d)
        write_weight_blocks(part, blocks * factor.reshape(*blocks.shape[:-1], 1))
    if part.bias is not None:
        bias = part.bias.detach().to(torch.float64)
        write_parameter(part.bias, torch.where(is_active, target.mean + factor * (bias - current.mean), bias))
    return factor


def write_parameter(parameter: Any, values: Tensor) -> None:
    """Write values into a parameter or buffer in its own precision."""
    with torch.no_grad():
        parameter.copy_(values)


def reestimate_batch_norm(module: _Module, batches: Any) -> _Module:
    """Return a copy of a network with running statistics estimated anew, in one pass over inputs.

    They are cumulative averages of the batches' means and variances (momentum None), so that batches should be of one
    size. Everything but batch normalisation is in evaluation mode: no dropout.

    Parameters
    ----------
    module : Module
        A network; it is left as it is. Without batch normalisation, the copy is all that happens.
    batches : Tensor of shape (n, ...) or iterable of batches
        Inputs: a tensor, or batches of them (tensors, keyword arguments, or inputs with labels, which are not used).

    Returns
    -------
    Module
        The copy.

    Raises
    ------
    InputError
        When there are no batches, or one has a single value for a channel.

    Examples
    --------
    >>> net = nn.Sequential(nn.BatchNorm1d(1))
    >>> reestimate_batch_norm(net, torch.tensor([[1.0], [3.0]]))[0].running_mean
    tensor([2.])
    """
    batches, copy = as_batches(batches), deepcopy(module)
    norms = [part for part in copy.modules() if is_norm(part) and part.track_running_stats]
    if not norms:
        return copy
    momenta = [norm.momentum for norm in norms]
    with evaluation_without_gradients(copy):
        # Training mode updates running statistics; without a momentum torch takes their cumulative average.
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        try:
            for batch in batches:
                call_module(copy, batch)
        except ValueError as error:  # torch: more than one value per channel expected
            raise InputError("batches", f"{error}", "give larger batches") from error
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return copy
