"""Means and variances of the channels of a network's layers, and the means of what its last layer reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from consilience.checks import Labels
from consilience.errors import InputError
from consilience.networks.descriptions.description import ChannelStatistics, Description
from consilience.networks.descriptions.disclosure import Leaving
from consilience.networks.descriptions.statistic import Setting, Statistic
from consilience.networks.repair.channel_statistics import channel_axis
from consilience.networks.repair.partial_forward import layer_order, not_finite_problem

MAX_CHANNEL_SUMS = 2**23
"""Sums of channels by class at most; beyond, channels are summed over all classes. Chosen by hand, for memory."""

CHANNEL_LAYERS = (_ConvNd, nn.Linear, _NormBase, nn.GroupNorm, nn.LayerNorm)
"""Layers whose outputs have channels: convolutions, linear layers, and normalisations."""


class ChannelStatistic(Statistic):
    """Sums over the outputs of layers with channels, by class where memory allows."""

    def __init__(self, setting: Setting) -> None:
        """Start without outputs, hooked into every layer whose output has channels."""
        self._n_groups = setting.n_groups
        self._groups = torch.zeros(0, dtype=torch.int64)
        self._sums: dict[str, _ChannelSums] = {}
        self._n_sums = 0
        for path, part in setting.module.named_modules():
            if isinstance(part, CHANNEL_LAYERS):
                setting.hooks.callback(part.register_forward_hook(self._recorder(path, channel_axis(part))).remove)

    def begin(self, groups: Labels) -> None:
        """Learn the groups (n,) of the observations that pass next."""
        self._groups = torch.from_numpy(groups)

    def _recorder(self, path: str, axis: int) -> Callable[..., None]:
        """Return a hook that adds the outputs of a layer to its sums."""

        def record(_part: nn.Module, _arguments: Any, output: Any) -> None:
            n = len(self._groups)
            if not isinstance(output, Tensor) or not n or output.ndim < 2:
                return
            if len(output) != n:  # the first axis is not that of the observations
                return
            values = output.movedim(axis, 1).flatten(2) if output.ndim > 2 else output[:, :, None]
            means, variances = _over_positions(values)  # (n, channels) each
            if not torch.isfinite(means).all():
                raise InputError(not_finite_problem(path))
            groups = self._groups
            if path not in self._sums:
                self._n_sums += values.shape[1] * self._n_groups
                self._sums[path] = _ChannelSums(means, self._n_groups if self._n_sums <= MAX_CHANNEL_SUMS else 1)
            if len(self._sums[path].counts) == 1:
                groups = torch.zeros_like(groups)
            self._sums[path].add(means, variances, values.shape[2], groups)

        return record

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with the statistics of all layers whose sums may leave."""
        if not leaving.is_enough:
            return described
        channels = {
            path: sums.statistics(leaving.said)
            for path, sums in self._sums.items()
            if leaving.is_all or len(sums.counts) > 1
        }
        return replace(described, channels=channels)


class _ChannelSums:
    """Sums over the output of a layer by class (groups, channels), about the means of the first batch.

    Within an observation mean and variance are those of torch, over observations sums are float64.
    """

    def __init__(self, means: Tensor, n_groups: int) -> None:
        """Start without values; `means` (n, channels) of some observations say about what sums are taken."""
        self.centre = means.mean(dim=0)  # (channels,)
        self.counts = torch.zeros(n_groups, dtype=torch.float64)  # of observations times positions
        self.sums = torch.zeros(n_groups, len(self.centre), dtype=torch.float64)
        self.squares = torch.zeros_like(self.sums)

    def add(self, means: Tensor, variances: Tensor, n_positions: int, groups: Tensor) -> None:
        """Add means and variances (n, channels) over the positions of observations of some groups (n,)."""
        centred = means - self.centre
        self.sums.index_add_(0, groups, n_positions * centred)
        self.squares.index_add_(0, groups, n_positions * (variances + centred.square()))
        self.counts.index_add_(0, groups, torch.full((len(means),), float(n_positions), dtype=torch.float64))

    def statistics(self, groups: Labels) -> ChannelStatistics:
        """Return mean and variance over some groups; over all where they are not told apart."""
        if len(self.counts) == 1:
            groups = np.zeros(1, dtype=np.int64)
        count = self.counts[groups].sum()
        shift = self.sums[groups].sum(dim=0) / count
        variance = self.squares[groups].sum(dim=0) / count - shift.square()
        mean = self.centre + shift
        return ChannelStatistics(mean.numpy(), variance.clamp(min=0.0).numpy())


def _over_positions(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance (n, channels) of outputs (n, channels, positions), float64 on the CPU."""
    means = values.mean(dim=2)
    # Twice as fast as torch.var_mean.
    variances = torch.linalg.vector_norm(values - means[:, :, None], dim=2).square() / values.shape[2]
    return means.to(device="cpu", dtype=torch.float64), variances.to(device="cpu", dtype=torch.float64)


class FeatureMeans(Statistic):
    """Sums of what the last layer reads, by class; of networks whose last layer is linear."""

    def __init__(self, setting: Setting) -> None:
        """Start without observations, hooked into the last layer."""
        self._groups = torch.zeros(0, dtype=torch.int64)
        self._sums: Tensor | None = None
        with torch.no_grad():
            last = layer_order(setting.module, setting.arguments(setting.first)).outputs
        head = setting.module.get_submodule(next(iter(last))) if len(last) == 1 else None
        if isinstance(head, nn.Linear) and head.out_features == setting.n_outputs:
            self._sums = torch.zeros(setting.n_groups, head.in_features, dtype=torch.float64)
            setting.hooks.callback(head.register_forward_pre_hook(self._record).remove)

    def begin(self, groups: Labels) -> None:
        """Learn the groups (n,) of the observations that pass next."""
        self._groups = torch.from_numpy(groups)

    def _record(self, _part: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Add what the last layer reads to the sums of its class."""
        features = arguments[0]
        if self._sums is not None and features.ndim == 2 and len(features) == len(self._groups):
            self._sums.index_add_(0, self._groups, features.to(device="cpu", dtype=torch.float64))

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with the means (C, h) of every class that is described; NaN for all others."""
        if self._sums is None or not len(leaving.described):
            return described
        means = self._sums[:-1].numpy() / np.maximum(leaving.by_class, 1)[:, None]
        is_said = np.isin(np.arange(len(means)), leaving.described)
        return replace(described, class_features=np.where(is_said[:, None], means, np.nan))
