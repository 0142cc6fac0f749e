"""Means and standard deviations of what the channels of a network give, and batch normalisation set by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from consilience.checks import Array
from consilience.errors import InputError
from consilience.networks.repair.partial_forward import Layer, Stage, as_batches, call, evaluated, is_norm, structure

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """What channels give, over samples and positions.

    Parameters
    ----------
    mean, std
        Mean and standard deviation (channels,), float64.
    count
        Number of samples times positions.
    """

    mean: Tensor
    std: Tensor
    count: int = 0

    @classmethod
    def of(cls, rows: Tensor) -> ChannelStatistics:
        """Return the statistics of rows (samples, channels)."""
        variance, mean = torch.var_mean(rows.to(torch.float64), dim=0, correction=0)
        return cls(mean, variance.sqrt(), len(rows))

    def joined(self, other: ChannelStatistics) -> ChannelStatistics:
        """Return the statistics of both, without the cancellation that sums of squares suffer."""
        count = self.count + other.count
        share = other.count / count
        gap = other.mean - self.mean
        variance = (1 - share) * self.std.square() + share * other.std.square() + share * (1 - share) * gap.square()
        return ChannelStatistics(self.mean + share * gap, variance.sqrt(), count)

    def through(self, norm: _BatchNorm) -> ChannelStatistics:
        """Return the statistics of what batch normalisation makes of such values in evaluation mode."""
        mean, variance = running_statistics(norm)
        gain, bias = gain_and_bias(norm)
        scale = gain / (variance + norm.eps).sqrt()
        return ChannelStatistics((self.mean - mean) * scale + bias, self.std * scale.abs(), self.count)


def channel_rows(part: nn.Module, values: Tensor) -> Tensor:
    """Return what a layer or batch normalisation answered as (samples times positions, channels)."""
    return values.movedim(-1 if isinstance(part, nn.Linear) else 1, -1).flatten(0, -2)


def measured(stage: Stage, name: str, given: bool = False) -> ChannelStatistics:
    """Return the statistics of what one part answers, or (of batch normalisation) of what it is given."""
    part = stage.module.get_submodule(name)
    total: ChannelStatistics | None = None
    for values in stage.at(name):
        one = ChannelStatistics.of(channel_rows(part, values[0 if given else 1]))
        total = one if total is None else total.joined(one)
    if total is None:
        raise InputError("batches: expected at least one batch of inputs, found none")
    return total


def channel_statistics(
    module: nn.Module, batches: Any, names: Sequence[str] | None = None
) -> dict[str, ChannelStatistics]:
    """Return means and standard deviations of what channels give, in one pass.

    Parameters
    ----------
    module
        A network; it is left as it is.
    batches
        Inputs: a tensor, or batches of them (tensors, keyword arguments, or inputs with labels, which are not used).
    names
        Linear layers, convolutions and batch normalisations; None takes all that are called, in that order.

    Raises
    ------
    InputError
        When there are no batches, or values are not finite.

    Examples
    --------
    >>> layer = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(layer.weight, 2.0)
    >>> found = channel_statistics(nn.Sequential(layer), torch.tensor([[1.0], [3.0]]))["0"]
    >>> float(found.mean), float(found.std), found.count
    (4.0, 2.0, 2)
    """
    rows = as_batches(batches)
    if names is None:
        names = structure(module, next(iter(rows))).order
    found: dict[str, ChannelStatistics] = {}

    def watch(name: str) -> Any:
        def hook(part: nn.Module, _given: Any, answer: Tensor) -> None:
            one = ChannelStatistics.of(channel_rows(part, answer))
            found[name] = found[name].joined(one) if name in found else one

        return hook

    handles = [module.get_submodule(name).register_forward_hook(watch(name)) for name in names]
    try:
        with evaluated(module):
            for batch in rows:
                call(module, batch)
    finally:
        for handle in handles:
            handle.remove()
    refuse_not_finite(found)
    return found


def refuse_not_finite(statistics: Mapping[str, ChannelStatistics]) -> None:
    """Raise InputError naming the layers whose statistics are not finite."""
    if bad := [name for name, one in statistics.items() if not torch.isfinite(one.mean + one.std).all()]:
        raise InputError(f"{', '.join(bad)}: NaN or infinite values on these inputs; look at both")


def goals(statistics: Sequence[ChannelStatistics], weights: Array) -> ChannelStatistics:
    """Return weighted means of the models' means and standard deviations.

    A channel that a model gives no signal in at all (constantly zero: a unit it does not have) does not count there.
    """
    mean, std = (torch.stack([getattr(one, what) for one in statistics]) for what in ("mean", "std"))
    share = torch.as_tensor(weights, device=mean.device)[:, None] * ((mean != 0) | (std != 0))
    share = share / share.sum(dim=0).clamp(min=torch.finfo(torch.float64).tiny)
    return ChannelStatistics((share * mean).sum(dim=0), (share * std).sum(dim=0))


def running_statistics(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return the running mean and variance of a batch normalisation that keeps them, float64."""
    if norm.running_mean is None or norm.running_var is None:
        raise InputError(
            "batch normalisation without running statistics answers by the batch: there is nothing to repair"
        )
    return norm.running_mean.to(torch.float64), norm.running_var.to(torch.float64)


def gain_and_bias(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return gamma and beta of a batch normalisation, float64; 1 and 0 where it has none."""
    mean, _ = running_statistics(norm)
    weight, shift = _affine(norm)
    gain = torch.ones_like(mean) if weight is None else weight.detach().to(torch.float64)
    bias = torch.zeros_like(mean) if shift is None else shift.detach().to(torch.float64)
    return gain, bias


def _affine(norm: Any) -> tuple[Tensor | None, Tensor | None]:
    return norm.weight, norm.bias  # torch declares them as tensors always


def restate(norm: _BatchNorm, mean: Tensor, variance: Tensor, keep_function: bool) -> None:
    """Set the running statistics of a batch normalisation, in place.

    With `keep_function`, gamma and beta follow, so that it answers as before. Channels without variance are left as
    they are.
    """
    old_mean, old_variance = running_statistics(norm)
    alive = variance > 0
    mean, variance = torch.where(alive, mean, old_mean), torch.where(alive, variance, old_variance)
    if keep_function and norm.weight is not None:
        gain, bias = gain_and_bias(norm)
        slope = gain / (old_variance + norm.eps).sqrt()
        put(norm.weight, slope * (variance + norm.eps).sqrt())
        put(norm.bias, bias + (mean - old_mean) * slope)
    put(norm.running_mean, mean)
    put(norm.running_var, variance)


def rescale(part: Layer | _BatchNorm, now: ChannelStatistics, goal: ChannelStatistics) -> Tensor:
    """Give every channel of a part the mean and standard deviation that it should have, in place.

    The scale goes into weight and bias (for batch normalisation, gamma and beta), the shift into the bias. A part
    without a bias is only scaled: a bias would change the architecture. Channels without deviation are left as they
    are.

    Returns
    -------
    Tensor
        The factors (channels,).
    """
    alive = now.std > 0
    factor = torch.where(alive, goal.std / torch.where(alive, now.std, 1.0), 1.0)
    weight = part.weight.detach().to(torch.float64)
    put(part.weight, weight * factor.reshape(-1, *[1] * (weight.ndim - 1)))
    if part.bias is not None:
        bias = part.bias.detach().to(torch.float64)
        put(part.bias, torch.where(alive, goal.mean + factor * (bias - now.mean), bias))
    return factor


def put(parameter: Any, values: Tensor) -> None:
    """Write values into a parameter or buffer in its own precision."""
    with torch.no_grad():
        parameter.copy_(values)


def reestimate_batch_norm(module: _Module, batches: Any) -> _Module:
    """Return a copy of a network with running statistics estimated anew, in one pass over inputs.

    They are cumulative averages of the batches' means and variances (momentum None), so that batches should be of one
    size. Everything but batch normalisation is in evaluation mode: no dropout.

    Parameters
    ----------
    module
        A network; it is left as it is. Without batch normalisation, the copy is all that happens.
    batches
        Inputs: a tensor, or batches of them (tensors, keyword arguments, or inputs with labels, which are not used).

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
    rows, copy = as_batches(batches), deepcopy(module)
    norms = [part for part in copy.modules() if is_norm(part) and part.track_running_stats]
    if not norms:
        return copy
    momenta, training = [norm.momentum for norm in norms], [norm.training for norm in copy.modules()]
    copy.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    try:
        with torch.no_grad():
            for batch in rows:
                call(copy, batch)
    except ValueError as error:  # torch: more than one value per channel expected
        raise InputError(f"batches: {error}; give larger batches") from error
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    for part, flag in zip(copy.modules(), training, strict=True):
        part.training = flag
    return copy
