"""First and second moments of the inputs of a network's layers: what a site may send instead of inputs.

A layer's pre-activations W x + b have mean W m + b and variances diag(W C W^T), m (d,) and C (d, d) the mean and
covariance of its input x. So m and C of the models' layers determine the channel statistics of any network whose layers
get the same inputs, without any input. They are also what the regression of weights on weights needs (RegMean). For a
convolution x is a patch: the entries under the kernel, (channels, kernel), over all positions. Sums over fewer than a
minimum of samples are refused, since one or two would betray a person's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from consilience.checks import Array
from consilience.errors import InputError
from consilience.networks.landscape.files import Arrays, Names, format_of_arrays, write_arrays
from consilience.networks.repair.convolution_patches import patch_chunks
from consilience.networks.repair.partial_forward import (
    Layer,
    as_batches,
    is_grouped,
    is_transposed,
    layer_order,
    observe,
)
from consilience.networks.symmetry.axes import Axis, Segment
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Transport, move_axis


@dataclass(frozen=True, eq=False)
class InputMoments:
    """Moments of the inputs of one layer.

    Parameters
    ----------
    mean : array of shape (d,)
        Over samples and positions.
    covariance : array of shape (d, d)
        Not corrected for the number of samples.
    """

    mean: Array
    covariance: Array


@dataclass(frozen=True, eq=False)
class LayerMoments:
    """First and second moments of the inputs of a network's layers.

    Parameters
    ----------
    layers : mapping of str to InputMoments
        By name of the layer, in the order of computation.
    samples : int
        Number of samples that they were taken over.
    skipped : mapping of str to str
        Name of a layer without moments -> why.
    """

    layers: Mapping[str, InputMoments]
    samples: int
    skipped: Mapping[str, str]

    def moved(self, symmetry: Symmetry, transports: Mapping[str, Transport], units: Mapping[str, int]) -> LayerMoments:
        """Return the moments of the network whose units are moved.

        The inputs of a layer move with the units that send them, so both axes of a covariance follow the input axis of
        the layer's weight. Signals of units that are merged are averaged, as rows of weights are; they are not split,
        as columns are.

        Parameters
        ----------
        symmetry : Symmetry
            That of the network, which has the weight of every layer as ``<layer>.weight``.
        transports : mapping of str to Transport
            How the units of every group move.
        units : mapping of str to int
            Number of units of every group before.

        Returns
        -------
        Moments
            Those of the moved network.
        """
        layers = {}
        for name, moments in self.layers.items():
            key = f"{name}.weight"  # its axes are (outputs, inputs, *kernel): the second one is that of the inputs
            columns = symmetry.layouts[symmetry.aliases.get(key, key)].axes[1]
            n_positions = len(moments.mean) // columns.length(units)  # of the kernel, in every channel
            segments = (Segment(of.group, of.outer, of.inner * n_positions) for of in columns.segments)
            # Its side is "output", since patches are signals of the units: they are averaged where units merge.
            axis = Axis(tuple(segments), "output")
            mean = move_axis(moments.mean, 0, axis, transports, units)
            covariance = move_axis(moments.covariance, 0, axis, transports, units)
            layers[name] = InputMoments(mean, move_axis(covariance, 1, axis, transports, units))
        return replace(self, layers=layers)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whole or not at all."""
        arrays: Arrays = {}
        for name, moments in self.layers.items():
            arrays |= {f"mean.{name}": moments.mean, f"covariance.{name}": moments.covariance}
        # The file format holds lists of strings beside the arrays; mappings are two lists of equal length.
        names = {
            "layers": list(self.layers),
            "samples": [str(self.samples)],
            "skipped": list(self.skipped),
            "reasons": list(self.skipped.values()),
        }
        write_arrays(MOMENT_FILES, path, arrays, names)

    @classmethod
    def load(cls, path: str | Path) -> LayerMoments:
        """Return the moments in a file.

        Raises
        ------
        FileFormatError
            When the file is missing, or no such file.
        """
        return MOMENT_FILES.load(path)

    @classmethod
    def _from_arrays(cls, arrays: Arrays, names: Names) -> LayerMoments:
        layers = {name: InputMoments(arrays[f"mean.{name}"], arrays[f"covariance.{name}"]) for name in names["layers"]}
        for name, moments in layers.items():
            mean, covariance = moments.mean, moments.covariance
            if covariance.shape != (*mean.shape, *mean.shape) or mean.ndim != 1:
                text = f"layer {name}: mean {mean.shape} and covariance {covariance.shape}"
                raise InputError("", text, code="E-SHAPE")
        return cls(layers, int(names["samples"][0]), dict(zip(names["skipped"], names["reasons"], strict=True)))


MOMENT_FILES = format_of_arrays("moments", LayerMoments._from_arrays)


def layer_moments(module: nn.Module, batches: Any, minimum: int = 100) -> LayerMoments:
    """Return first and second moments of the inputs of every linear layer and convolution, in one pass.

    Parameters
    ----------
    module : Module
        A network; it is left as it is.
    batches : Tensor of shape (n, ...) or iterable of batches
        Inputs: a tensor, or batches of them (tensors, keyword arguments, or inputs with labels, which are not used).
    minimum : int, optional
        Number of samples below which nothing is returned. Default: 100.

    Returns
    -------
    Moments
        Those of all layers but grouped and transposed convolutions.

    Raises
    ------
    InputError
        When there are too few samples, or values are not finite.

    Examples
    --------
    >>> moments = layer_moments(nn.Sequential(nn.Linear(2, 1)), torch.tensor([[1.0, 0.0], [3.0, 0.0]]), minimum=2)
    >>> moments.layers["0"].mean, moments.layers["0"].covariance[0, 0]
    (array([2., 0.]), np.float64(1.0))
    """
    batches = as_batches(batches)
    order = layer_order(module, next(iter(batches)))
    skipped = {name: why for name, why in order.skipped.items() if hasattr(module.get_submodule(name), "weight")}
    sums: dict[str, RunningMoments] = {}
    n_samples: dict[str, int] = {}
    for name in order.affine:
        layer = cast(Layer, module.get_submodule(name))
        if is_grouped(layer) or is_transposed(layer):  # which no one matrix of moments serves
            skipped[name] = f"is a {'grouped' if is_grouped(layer) else 'transposed'} convolution"
        else:
            n_samples[name] = 0

    def record(name: str, part: nn.Module, arguments: Any, output: Tensor) -> None:
        # In chunks: the patches of a convolution are kernel-size times as large as its input.
        for rows in patch_chunks(cast(Layer, part), arguments[0], output):
            sums[name] = sums[name].with_rows(rows) if name in sums else RunningMoments.of(rows)
        n_samples[name] += len(arguments[0])

    observe(module, batches, n_samples, record)
    fewest = min(n_samples.values(), default=minimum)
    if fewest < minimum:
        text = f"moments over {fewest} samples may betray single ones"
        raise InputError("batches", text, f"give at least {minimum}, or allow fewer with `minimum=...`", "E-FEW")
    moments = {}
    for name in n_samples:
        mean, covariance = sums[name].mean_and_covariance()
        moments[name] = InputMoments(mean.cpu().numpy(), covariance.cpu().numpy())
    if bad := [name for name, of_layer in moments.items() if not np.isfinite(of_layer.covariance).all()]:
        text, remedy = "NaN or infinite values on these inputs", "look at the inputs and weights"
        raise InputError(", ".join(bad), text, remedy, "E-NUMBER")
    return LayerMoments(moments, fewest, skipped)


@dataclass(frozen=True, eq=False)
class RunningMoments:
    """Sums over rows of deviations from an origin, which keeps rounding small."""

    origin: Tensor  # (..., d): a first guess of the mean: that of the first rows
    n_rows: int  # number of rows
    sums: Tensor  # (..., d): sums of deviations from the origin, float64
    products: Tensor  # (..., d, d): sums of products of deviations, float64

    @classmethod
    def of(cls, rows: Tensor) -> RunningMoments:
        """Return the sums over rows (..., samples, d)."""
        *batch, _, d = rows.shape
        zeros = torch.zeros(*batch, d, d + 1, dtype=torch.float64, device=rows.device)  # both sums in one allocation
        return cls(rows.mean(dim=-2), 0, zeros[..., 0], zeros[..., 1:]).with_rows(rows)

    def with_rows(self, rows: Tensor) -> RunningMoments:
        """Return the sums with further rows; products are taken in the rows' own precision."""
        deviations = rows - self.origin[..., None, :]  # (..., m, d): small, so that single precision suffices
        sums = self.sums + deviations.sum(dim=-2, dtype=torch.float64)
        products = self.products + (deviations.mT @ deviations).to(torch.float64)
        return RunningMoments(self.origin, self.n_rows + rows.shape[-2], sums, products)

    def mean_and_covariance(self) -> tuple[Tensor, Tensor]:
        """Return the mean (..., d) and covariance (..., d, d) of all rows."""
        shift = self.sums / self.n_rows  # of the mean, from the origin
        return self.origin + shift, self.products / self.n_rows - shift[..., :, None] * shift[..., None, :]
