"""Channel-matched images: inputs whose channel statistics are those that the networks had on their own data.

Batch normalisation keeps the mean and variance of what it reads; networks without it may come with those of their
layers' outputs (`Description.channels`). With mu, s^2 these statistics of a channel, m, v those of the images Z in the
same network, the images minimise

    L(Z) = mean_j sum_l mean_c [ (m - mu)^2 / (s^2 + eps) + (sqrt(v) / sqrt(s^2 + eps) - 1)^2 ] + 0.1 TV(Z)

over all models j (of more than eight, eight drawn at random at each step), layers l and channels c, in evaluation mode
and with the weights as they are. TV is the mean absolute difference of neighbours, in units of the images' deviation.
All images are one batch: statistics of small batches are met by images that are like none. DeepInversion (Yin et al.
2020, CVPR) has norms of differences of means and variances in place of the sum; divided by the layers' own deviations
they need no weight by layer or data set.

The images start as draws from what is described of the inputs (``draws``): on two pairs of ResNet-8 those of mean and
covariance gave 81 % after the refit, those of means and variances and white noise 79. Where nobody says these, they
start as white noise, and a scale and an offset for each input channel are fitted to it first, by the statistics of the
first layer that has any: networks do not say otherwise whether they read images in [0, 1] or in [0, 255].
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consilience.checks import Array, is_count
from consilience.core.progress import Progress, silent
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.networks.descriptions.description import Description
from consilience.networks.network import never_saw_data, untrained_norms
from consilience.networks.repair.channel_statistics import channel_axis
from consilience.networks.repair.partial_forward import call_module, is_norm
from consilience.networks.synthetic.draws import draw_inputs

_CALIBRATION_STEPS, _CALIBRATION_RATE, _CALIBRATION_IMAGES = 60, 0.1, 32
_STEPS, _BETAS = 100, (0.5, 0.9)
"""Set on two ResNet-8 of one data set (letters in [0, 1]) and judged on a second pair of them, on Fashion-MNIST and on
CIFAR-10: fewer steps, a schedule, a label term or images of single models lost up to 3 points of accuracy after the
refit. docs/evidence/synthetic_inputs.md has the measurements here."""
_RATE, _TOTAL_VARIATION = 0.1, 0.1
"""In deviations of the inputs. There they were 0.05 and 0.1 in the units of images whose deviation is 0.17, 0.33 or 1:
rates of 0.29, 0.15 and 0.05, weights of 0.02, 0.03 and 0.1. These are between, so that the scale of inputs decides
nothing."""
_NETWORKS_A_STEP = 8
"""Networks, drawn at random, whose statistics a step is asked for; further ones cost time. Chosen by hand, more than
any ensemble measured here has: with two of five ResNet-8 that differ in their classes the images took half as long, and
the network distilled on them had 77.5 and 62.3 % instead of 79.0 and 69.7, with four of five 77.7 and 63.6; with two of
four alike ones 80.1 instead of 78.8."""
_N_IMAGES = 192
"""Of the same source: 96 lost 0.6 points, 384 gained 0.4."""
_RELATIVE_EPS, _ABSOLUTE_EPS = 1e-4, 1e-8
"""eps for described statistics: a share of the layer's mean variance, so that channels that are almost constant do not
decide, and a number against zero. For batch normalisation eps is its own."""


@dataclass(frozen=True, eq=False)
class MatchedImages:
    """Inputs matched to channel statistics.

    Parameters
    ----------
    inputs : Tensor of shape (n, ...), float32
        The images.
    losses : array of shape (steps,)
        L before each step.
    is_cut : bool
        Whether the time was up before all steps were made: other machines then give other images.
    """

    inputs: Tensor
    losses: Array
    is_cut: bool = False


@dataclass(frozen=True, eq=False)
class LayerTarget:
    """Statistics that one layer's channels are to have, over images and positions.

    Parameters
    ----------
    name : str
        Path of the layer.
    of_inputs : bool
        Whether they are of what the layer reads, or of what it gives.
    mean, variance : Tensor of shape (channels,)
        Target statistics.
    eps : float
        What is added to variances in denominators.
    """

    name: str
    of_inputs: bool
    mean: Tensor
    variance: Tensor
    eps: float


def channel_targets(
    module: nn.Module, description: Description | None = None, name: str = "model"
) -> list[LayerTarget]:
    """Return the channel statistics that a network brings: of batch normalisation, else those described.

    Networks without either are refused, and batch normalisation that keeps no statistics or was never trained; so are
    statistics that are NaN, infinite or negative, or described for other layers.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    >>> _ = net(torch.randn(8, 2))                              # one step of training
    >>> [target.name for target in channel_targets(net)]
    ['1']
    >>> channel_targets(nn.Sequential(nn.Linear(2, 3)))
    Traceback (most recent call last):
    ...
    consilience.errors.UnsupportedError: model: has no channel statistics to match: neither batch normalisation nor ...
    """
    norms: dict[str, Any] = {path: part for path, part in module.named_modules() if is_norm(part)}
    described = {} if description is None else dict(description.channels)
    # Described statistics stand in where batch normalisation keeps none of its own.
    try:
        if norms:
            return _targets_of_norms(module, norms, name)
    except UnsupportedError:
        if not described:
            raise
    if not described:
        text = "has no channel statistics to match: neither batch normalisation nor described ones"
        raise UnsupportedError(name, text, "describe it with `data=`")
    parts: dict[str, Any] = dict(module.named_modules())
    if unknown := sorted(set(described) - set(parts)):
        text = f"its description has statistics of {', '.join(unknown)}, which it does not have"
        raise InputError(name, text, code="E-MISMATCH")
    targets = []
    for path, statistics in described.items():
        mean, variance = torch.as_tensor(statistics.mean), torch.as_tensor(statistics.variance)
        _require_statistics(name, path, mean, variance)
        eps = _RELATIVE_EPS * float(variance.mean()) + _ABSOLUTE_EPS
        targets.append(LayerTarget(path, False, mean, variance, eps))
    return targets


def _targets_of_norms(module: nn.Module, norms: Mapping[str, Any], name: str) -> list[LayerTarget]:
    """Return the running statistics of batch normalisation."""
    untracked = [path for path, norm in norms.items() if norm.running_mean is None or norm.running_var is None]
    if untracked:
        text = f"batch normalisation {', '.join(untracked)} keeps no running statistics (`track_running_stats=False`)"
        raise UnsupportedError(name, text, "describe the network with `data=`")
    for path, norm in norms.items():
        _require_statistics(name, path, norm.running_mean, norm.running_var)
    if untrained := [path for path in untrained_norms(module.state_dict()) if path in norms]:
        remedy = "describe the network with `data=`, or train it in `train()` mode"
        raise UnsupportedError(name, never_saw_data(untrained), remedy)
    return [
        LayerTarget(path, True, norm.running_mean.detach(), norm.running_var.detach(), float(norm.eps))
        for path, norm in norms.items()
    ]


def _require_statistics(name: str, path: str, mean: Tensor, variance: Tensor) -> None:
    """Raise InputError for statistics that are not finite, or variances that are negative."""
    if not (torch.isfinite(mean).all() and torch.isfinite(variance).all()):
        text = f"channel statistics of {path} are NaN or infinite"
        raise InputError(name, text, "train or describe it again", "E-NUMBER")
    if (variance < 0).any():
        text = f"channel variances of {path} are negative ({float(variance.min()):.3g})"
        raise InputError(name, text, "train or describe it again", "E-NUMBER")


def matched_images(
    modules: Sequence[nn.Module],
    shape: Sequence[int],
    count: int = _N_IMAGES,
    rng: np.random.Generator | int = 0,
    *,
    descriptions: Sequence[Description | None] | None = None,
    names: Sequence[str] | None = None,
    steps: int = _STEPS,
    calibration_steps: int = _CALIBRATION_STEPS,
    max_seconds: float | None = None,
    progress: Progress = silent,
) -> MatchedImages:
    """Return inputs on which the channels of all networks have the statistics that they had on their own data.

    For images, sequences (channels, steps), volumes and rows of numbers alike; rows have no neighbours, so that TV = 0.

    Parameters
    ----------
    modules : sequence of Module
        The networks; they are left as they are. They may be of different widths.
    shape : sequence of int
        Shape of one input.
    count : int, optional
        Number of inputs. Default: 192.
    rng : numpy.random.Generator or int, optional
        Random generator, or its seed, of what they start from. Default: 0.
    descriptions : sequence of Description or None, of length n_models, optional
        What is said of the networks: channel statistics of those without batch normalisation, and the mean, variance
        and covariance of inputs. Default: nothing.
    names : sequence of str, of length n_models, optional
        Names of the networks in messages. Default: "model 0", ...
    steps, calibration_steps : int, optional
        Steps of Adam on the images, and before them on the scale and offset of channels (none where inputs are
        described). Default: 100 and 60.
    max_seconds : float, optional
        Time after which no further step is made; the result says so. Default: no limit.
    progress : callable, optional
        Called with (steps done, steps in all).

    Returns
    -------
    MatchedImages
        The inputs, and the loss at every step.

    Raises
    ------
    UnsupportedError
        For networks without usable statistics (`channel_targets`), or that fail on such inputs.
    InputError
        For statistics that are none.
    OptionError
        For options out of range, or a time in which not one step can be made.
    """
    for option, value in (("count", count), ("steps", steps)):
        if not is_count(value):
            raise OptionError(option, f"expected a positive whole number, found {value!r}")
    if not modules:
        raise InputError("modules", "expected at least one network, found none", code="E-NEEDED")
    shape = tuple(shape)
    said = [None] * len(modules) if descriptions is None else list(descriptions)
    labels = [f"model {number}" for number in range(len(modules))] if names is None else list(names)
    stated = [described for described in said if described is not None and described.inputs is not None]
    for described in stated:
        if described.input_shape != shape:
            text = f"describes inputs of shape {described.input_shape}, expected {shape}"
            raise InputError(described.name, text, code="E-SHAPE")
    networks = [
        _ObservedNetwork.of(module, description, name, shape)
        for module, description, name in zip(modules, said, labels, strict=True)
    ]
    deadline = inf if max_seconds is None else time.monotonic() + max_seconds
    rng, device = np.random.default_rng(rng), networks[0].device
    n_calibrations = 0 if stated else calibration_steps

    def report(done: int) -> None:
        progress(done, n_calibrations + steps)

    # Where nobody describes inputs, noise is scaled until the first statistics are met best.
    if stated:
        deviation = _described_deviation(stated, shape, device)
        start = draw_inputs(stated, count, rng).inputs.to(device)
    else:
        noise = torch.as_tensor(rng.standard_normal((count, *shape)), dtype=torch.float32, device=device)
        offset, deviation = _calibrate(networks, noise, calibration_steps, deadline, report)
        start = offset + deviation * noise
    optimised, losses = _descend(
        networks, start / deviation, deviation, steps, rng, deadline, lambda done: report(n_calibrations + done)
    )
    if not losses:
        text = f"{max_seconds:g} s are too few for one step"
        raise OptionError("max_seconds", text, "give more time, or fewer images")
    if not np.isfinite(losses).all():
        raise UnsupportedError(", ".join(labels), "give NaN or infinite values on synthetic inputs", "give inputs")
    inputs = (optimised * deviation).to("cpu", torch.float32)
    return MatchedImages(inputs, np.array(losses), is_cut=len(losses) < steps)


def _descend(
    networks: Sequence[_ObservedNetwork],
    start: Tensor,
    deviation: Tensor,
    steps: int,
    rng: np.random.Generator,
    deadline: float,
    report: Callable[[int], None],
) -> tuple[Tensor, list[float]]:
    """Return images in deviations of the inputs, after steps of Adam from a start, and L before each step.

    In these units images in [0, 255] are as far away as others.
    """
    losses: list[float] = []
    optimised = start.requires_grad_()
    optimiser = torch.optim.Adam([optimised], lr=_RATE, betas=_BETAS)
    for step in range(steps):
        if time.monotonic() > deadline:
            break
        asked = networks
        if len(networks) > _NETWORKS_A_STEP:
            asked = [networks[i] for i in sorted(rng.choice(len(networks), _NETWORKS_A_STEP, replace=False).tolist())]
        images = optimised * deviation
        loss = torch.stack([network.loss(images) for network in asked]).mean()
        # Over spatial axes; 0 without such axes.
        neighbours = [optimised.diff(dim=axis) for axis in range(2, optimised.ndim) if optimised.shape[axis] > 1]
        variation = sum((difference.abs().mean() for difference in neighbours), start=optimised.new_zeros(()))
        loss = loss + _TOTAL_VARIATION * variation
        optimised.grad = torch.autograd.grad(loss, optimised)[0]
        optimiser.step()
        losses.append(float(loss.detach()))
        report(step + 1)
    return optimised.detach(), losses


def _described_deviation(stated: Sequence[Description], shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the deviation of every input channel (1, channels, 1, ...), pooled over sites."""
    moments = [(d.n_observations, d.inputs) for d in stated if d.inputs is not None]
    weights = np.array([n for n, _ in moments]) / sum(n for n, _ in moments)  # (sites,)
    channels = shape[0]
    means = np.stack([m.mean.reshape(channels, -1) for _, m in moments])  # (sites, channels, positions)
    variances = np.stack([m.variance.reshape(channels, -1) for _, m in moments])
    mean = np.einsum("s,scp->c", weights, means) / means.shape[2]
    variance = np.einsum("s,scp->c", weights, variances + (means - mean[:, None]) ** 2) / means.shape[2]
    # A channel that is constant at all sites only must not divide by zero.
    deviation = torch.as_tensor(np.sqrt(np.maximum(variance, _ABSOLUTE_EPS)), dtype=torch.float32, device=device)
    return deviation.reshape(1, channels, *[1] * (len(shape) - 1))


def _calibrate(
    networks: Sequence[_ObservedNetwork], noise: Tensor, steps: int, deadline: float, report: Callable[[int], None]
) -> tuple[Tensor, Tensor]:
    """Return an offset and a deviation (1, channels, 1, ...) at which noise meets the first statistics best.

    Only the first layer with statistics is asked: the pass is stopped after it. Deviations are fitted by their
    logarithm, and offsets in these deviations, so that inputs in [0, 255] are not further away than others.
    """
    noise = noise[:_CALIBRATION_IMAGES]
    axes = (1, noise.shape[1], *[1] * (noise.ndim - 2))
    log_deviation, offset = (
        torch.zeros(axes, dtype=noise.dtype, device=noise.device).requires_grad_() for _ in range(2)
    )
    optimiser = torch.optim.Adam([log_deviation, offset], lr=_CALIBRATION_RATE)
    for step in range(steps):
        if time.monotonic() > deadline:
            break
        images = log_deviation.exp() * (noise + offset)
        loss = torch.stack([network.loss(images, only_first=True) for network in networks]).sum()
        log_deviation.grad, offset.grad = torch.autograd.grad(loss, (log_deviation, offset))
        optimiser.step()
        report(step + 1)
    deviation = log_deviation.detach().exp()
    return offset.detach() * deviation, deviation


class _ChannelDistance(torch.autograd.Function):
    """`channel_distance` with its slope in closed form: recorded step by step, images take a third longer."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, target_mean: Tensor, scale: Tensor, axis: int) -> Tensor:
        """Return the distance, and keep what the slope takes."""
        axes = [number for number in range(values.ndim) if number != axis % values.ndim]
        mean = values.mean(axes, keepdim=True)
        centred = values - mean  # which no layer behind changes in place
        variance = centred.square().mean(axes)
        # The square root has no slope at 0, where a channel is constant on the images.
        deviation = (variance + _ABSOLUTE_EPS * scale).sqrt()
        gap, excess = mean.flatten() - target_mean, deviation / scale.sqrt() - 1
        # The slope in a value x is offset + factor (x - m).
        offset = 2 * gap / (scale * values.numel())
        factor = 2 * excess / (scale.sqrt() * deviation * values.numel())
        ctx.save_for_backward(centred, offset.reshape(mean.shape), factor.reshape(mean.shape))
        return (gap.square() / scale + excess.square()).mean()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        """Return the slope in the values."""
        centred, offset, factor = ctx.saved_tensors
        return torch.addcmul(slope * offset, slope * factor, centred), None, None, None


def channel_distance(values: Tensor, target_mean: Tensor, scale: Tensor, axis: int) -> Tensor:
    """Return mean_c [ (m - mu)^2 / s^2 + (sqrt(v) / s - 1)^2 ] of the channels of values on an axis.

    `target_mean` mu and `scale` s^2 are of shape (channels,).
    """
    return _ChannelDistance.apply(values, target_mean, scale, axis)  # type: ignore[no-untyped-call]


class _PassStoppedError(Exception):
    """Ends a forward pass after the last layer that was asked."""


@dataclass(frozen=True, eq=False)
class _ObservedNetwork:
    """A copy of a network, in evaluation mode and without gradients of its weights, with its targets."""

    module: nn.Module  # the copy
    targets: Sequence[LayerTarget]  # in the order in which the layers are called
    name: str  # in messages

    @classmethod
    def of(
        cls, module: nn.Module, description: Description | None, name: str, shape: tuple[int, ...]
    ) -> _ObservedNetwork:
        """Return a network with its targets, in the order of its calls on such inputs."""
        targets = channel_targets(module, description, name)
        copy = deepcopy(module).eval().requires_grad_(False)
        device = next((values.device for values in copy.parameters()), torch.device("cpu"))
        moved = {
            target.name: replace(target, mean=target.mean.to(device), variance=target.variance.to(device))
            for target in targets
        }
        observed = cls(copy, list(moved.values()), name)
        calls: list[str] = []

        def record(target: LayerTarget, part: nn.Module, values: Tensor) -> None:
            if target.name not in calls:
                calls.append(target.name)
            if (n_channels := values.shape[channel_axis(part)]) != len(target.mean):
                text = f"has statistics of {len(target.mean)} channels of {target.name}, which has {n_channels}"
                raise InputError(name, text, "describe it again", "E-MISMATCH")

        # Of two inputs, since batches of one hide which axis is which.
        with torch.no_grad(), observed._observed(record):
            try:
                call_module(copy, torch.zeros((2, *shape), device=device))
            except (RuntimeError, IndexError, ValueError) as error:
                if isinstance(error, InputError):
                    raise
                raise UnsupportedError(name, f"fails on inputs of shape {tuple(shape)} ({error})") from error
        if not calls:
            raise UnsupportedError(name, "calls none of the layers whose statistics are known", "give inputs")
        return cls(copy, [moved[path] for path in calls], name)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.targets[0].mean.device

    def loss(self, images: Tensor, only_first: bool = False) -> Tensor:
        """Return sum_l mean_c of the statistics' distance on images, of all layers or only of the first one."""
        terms: list[Tensor] = []

        def record(target: LayerTarget, part: nn.Module, values: Tensor) -> None:
            scale = target.variance.to(values) + target.eps
            terms.append(channel_distance(values, target.mean.to(values), scale, channel_axis(part)))
            if only_first:
                raise _PassStoppedError

        with self._observed(record), suppress(_PassStoppedError):
            call_module(self.module, images)
        return torch.stack(terms).sum()

    @contextmanager
    def _observed(self, record: Callable[[LayerTarget, nn.Module, Tensor], None]) -> Iterator[None]:
        """Call `record` with every target, its layer, and what that reads or gives, for the while."""

        def hook(target: LayerTarget, part: nn.Module, arguments: Any, output: Any) -> None:
            record(target, part, arguments[0] if target.of_inputs else output)

        with ExitStack() as stack:
            for target in self.targets:
                part = self.module.get_submodule(target.name)
                stack.enter_context(part.register_forward_hook(partial(hook, target)))
            yield
