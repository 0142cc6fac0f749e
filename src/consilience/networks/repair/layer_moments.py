"""First and second moments of what the layers of a network are given: what a site may send instead of inputs.

A layer's pre-activations W x + b have mean W m + b and variances diag(W C W'), m and C the mean and covariance of its
input x. So from m and C of the models' layers follow the statistics of any network whose layers are given the same,
without any input. They are also what the regression of weights on weights needs (RegMean). For a convolution x is a
patch: the entries under the kernel, (channels, kernel), over all positions. Sums over fewer than a minimum of samples
are refused, since one or two would betray a person's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from consilience.checks import Array
from consilience.errors import InputError
from consilience.networks.landscape.files import Arrays, Names, read_arrays, write_arrays
from consilience.networks.repair.convolution_patches import chunks
from consilience.networks.repair.partial_forward import Layer, as_batches, call, evaluated, is_grouped, structure
from consilience.networks.symmetry.axes import Axis, Segment
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Transport, move_axis


@dataclass(frozen=True, eq=False)
class InputMoments:
    """What one layer is given.

    Parameters
    ----------
    mean
        (d,) over samples and positions.
    covariance
        (d, d), not corrected for the number of samples.
    """

    mean: Array
    covariance: Array

    @property
    def owned(self) -> Array:
        """0 for inputs that are constantly zero, as of units that a model does not have; 1 for the others (d,)."""
        return ((self.mean != 0) | (np.diag(self.covariance) != 0)).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Moments:
    """First and second moments of the inputs of a network's layers.

    Parameters
    ----------
    layers
        By name of the layer, in the order of computation.
    samples
        Number of samples that they were taken over.
    normalised
        Name of a layer -> the batch normalisation that its output goes to.
    outputs
        The layers whose output is the network's.
    skipped
        Name of a layer without moments -> why.
    """

    layers: Mapping[str, InputMoments]
    samples: int
    normalised: Mapping[str, str]
    outputs: frozenset[str]
    skipped: Mapping[str, str]

    def moved(self, symmetry: Symmetry, transports: Mapping[str, Transport], units: Mapping[str, int]) -> Moments:
        """Return the moments of the network whose units are moved.

        What a layer is given goes where the units go that give it, so both axes of a covariance follow the input axis
        of the layer's weight. Signals of units that meet are averaged, as rows are; nothing is split, as columns are.

        Parameters
        ----------
        symmetry
            That of the network, which has the weight of every layer as ``<layer>.weight``.
        transports
            How the units of groups move.
        units
            Number of units of every group before.
        """
        found = {}
        for name, one in self.layers.items():
            key = f"{name}.weight"
            axis = _patch_axis(symmetry.layouts[symmetry.aliases.get(key, key)].axes[1], units, len(one.mean))
            mean = move_axis(one.mean, 0, axis, transports, units)
            covariance = move_axis(one.covariance, 0, axis, transports, units)
            found[name] = InputMoments(mean, move_axis(covariance, 1, axis, transports, units))
        return replace(self, layers=found)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whole or not at all."""
        arrays: Arrays = {}
        for name, one in self.layers.items():
            arrays |= {f"mean.{name}": one.mean, f"covariance.{name}": one.covariance}
        names = {
            "layers": list(self.layers),
            "samples": [str(self.samples)],
            "normalised": list(self.normalised),
            "norms": list(self.normalised.values()),
            "outputs": sorted(self.outputs),
            "skipped": list(self.skipped),
            "reasons": list(self.skipped.values()),
        }
        write_arrays(path, "moments", arrays, names)

    @classmethod
    def load(cls, path: str | Path) -> Moments:
        """Return the moments in a file.

        Raises
        ------
        FileFormatError
            When the file is missing, or no such file.
        """

        def build(arrays: Arrays, names: Names) -> Moments:
            layers = {
                name: InputMoments(arrays[f"mean.{name}"], arrays[f"covariance.{name}"]) for name in names["layers"]
            }
            for name, one in layers.items():
                if one.covariance.shape != (*one.mean.shape, *one.mean.shape) or one.mean.ndim != 1:
                    raise InputError(f"layer {name}: mean {one.mean.shape} and covariance {one.covariance.shape}")
            return cls(
                layers,
                int(names["samples"][0]),
                dict(zip(names["normalised"], names["norms"], strict=True)),
                frozenset(names["outputs"]),
                dict(zip(names["skipped"], names["reasons"], strict=True)),
            )

        return read_arrays(path, "moments", build)


def _patch_axis(axis: Axis, units: Mapping[str, int], length: int) -> Axis:
    """Return the axis of a patch: every channel with the positions of the kernel, as signals, which are received."""
    positions = length // axis.length(units)
    return Axis(tuple(Segment(one.group, one.outer, one.inner * positions) for one in axis.segments), "output")


def layer_moments(module: nn.Module, batches: Any, minimum: int = 100) -> Moments:
    """Return first and second moments of the inputs of every linear layer and convolution, in one pass.

    Parameters
    ----------
    module
        A network; it is left as it is.
    batches
        Inputs: a tensor, or batches of them (tensors, keyword arguments, or inputs with labels, which are not used).
    minimum
        Number of samples below which nothing is returned.

    Raises
    ------
    InputError
        When there are too few samples, or values are not finite.

    Examples
    --------
    >>> found = layer_moments(nn.Sequential(nn.Linear(2, 1)), torch.tensor([[1.0, 0.0], [3.0, 0.0]]), minimum=2)
    >>> found.layers["0"].mean, found.layers["0"].covariance[0, 0]
    (array([2., 0.]), np.float64(1.0))
    """
    rows = as_batches(batches)
    form = structure(module, next(iter(rows)))
    skipped = {name: why for name, why in form.skipped.items() if hasattr(module.get_submodule(name), "weight")}
    sums: dict[str, RunningMoments] = {}
    samples = dict.fromkeys(form.layers, 0)
    layers: list[str] = []
    for name in form.layers:
        if is_grouped(cast(Layer, module.get_submodule(name))):
            skipped[name] = "is a grouped convolution"
        else:
            layers.append(name)

    def watch(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(part: nn.Module, given: Any, _answer: Tensor) -> None:
            for chunk in chunks(cast(Layer, part), given[0]):
                sums[name] = sums[name].with_rows(chunk) if name in sums else RunningMoments.of(chunk)
            samples[name] += len(given[0])

        return hook

    with evaluated(module), ExitStack() as stack:
        for name in layers:
            stack.callback(module.get_submodule(name).register_forward_hook(watch(name)).remove)
        for batch in rows:
            call(module, batch)
    seen = min((samples[name] for name in layers), default=minimum)
    if seen < minimum:
        raise InputError(
            f"batches: moments over {seen} samples may betray single ones; give at least {minimum}, or allow fewer "
            "with minimum=..."
        )
    found = {}
    for name in layers:
        mean, covariance = sums[name].mean_and_covariance()
        found[name] = InputMoments(mean.cpu().numpy(), covariance.cpu().numpy())
    if bad := [name for name, one in found.items() if not np.isfinite(one.covariance).all()]:
        raise InputError(f"{', '.join(bad)}: NaN or infinite values on these inputs; look at the inputs and weights")
    return Moments(found, seen, form.normalised, form.outputs, skipped)


@dataclass(frozen=True, eq=False)
class RunningMoments:
    """Sums over rows of deviations from a first guess of the mean, which keeps rounding small."""

    guess: Tensor
    count: int
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> RunningMoments:
        """Return the sums over rows (samples, d)."""
        size = rows.shape[1]
        zeros = torch.zeros(size, size + 1, dtype=torch.float64, device=rows.device)
        return cls(rows.mean(dim=0), 0, zeros[:, 0], zeros[:, 1:]).with_rows(rows)

    def with_rows(self, rows: Tensor) -> RunningMoments:
        """Return the sums with further rows; products are taken in the rows' own precision."""
        gaps = rows - self.guess
        first = self.first + gaps.sum(dim=0, dtype=torch.float64)
        second = self.second + (gaps.T @ gaps).to(torch.float64)
        return RunningMoments(self.guess, self.count + len(rows), first, second)

    def mean_and_covariance(self) -> tuple[Tensor, Tensor]:
        """Return the mean (d,) and covariance (d, d) of all rows."""
        gap = self.first / self.count
        return self.guess + gap, self.second / self.count - torch.outer(gap, gap)


def mixture(moments: Sequence[Moments], shares: Array) -> Moments:
    """Return the moments of inputs that come from several networks, from each as often as its share says.

    Inputs that a network does not have (constantly zero) count only where they are; two that no network has together
    count as uncorrelated.

    Raises
    ------
    InputError
        When the moments are not of networks of one architecture and width.
    """
    if len(moments) != len(shares):
        raise InputError(f"moments: expected one for each of {len(shares)} models, found {len(moments)}")
    first = moments[0]
    for number, one in enumerate(moments[1:], 1):
        for name in dict.fromkeys((*first.layers, *one.layers)):
            sizes = [len(m.layers[name].mean) if name in m.layers else None for m in (first, one)]
            if sizes[0] != sizes[1]:
                raise InputError(f"moments {number}: layer {name} has {sizes[1]} inputs, but {sizes[0]} in moments 0")
    layers = {name: _mixed([one.layers[name] for one in moments], shares) for name in first.layers}
    return replace(first, layers=layers, samples=sum(one.samples for one in moments))


def _mixed(moments: Sequence[InputMoments], shares: Array) -> InputMoments:
    owned = np.stack([one.owned for one in moments])
    own = shares @ owned
    mean = np.einsum("i,id->d", shares, np.stack([one.mean for one in moments])) / np.where(own > 0, own, 1.0)
    together = np.einsum("i,id,ie->de", shares, owned, owned)
    second = sum(a * (m.covariance + np.outer(m.mean, m.mean)) for a, m in zip(shares, moments, strict=True))
    product = np.outer(mean, mean)
    return InputMoments(mean, np.where(together > 0, second / np.where(together > 0, together, 1.0) - product, 0.0))
