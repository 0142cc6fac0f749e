"""Sparse Gaussian processes as plain values, in the units of the data: the fused function beside those of its sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array
from consilience.errors import ConsilienceError
from consilience.posteriors.adapters import adapter_of
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.sparse_gp.adapter import InducingPointAdapter, SparseGPAdapter
from consilience.posteriors.sparse_gp.model import SparseGP

_GRID, _SITE_GRID = 240, 120
_SITES_AT_MOST = 60
_ROWS_AT_MOST = 1500
_WIDE = 1.959964  # standard deviations to either side that hold 95 % of a Gaussian

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Kernel:
    """Parameters of one process in units of the data; `noise` is None where it is not known, as observations are."""

    name: str
    kernel: str
    inducing: int
    variance: float
    noise: float | None
    constant: float
    lengthscales: tuple[float, ...]
    observations: float | None


@dataclass(frozen=True)
class Source:
    """A site's process: the places of its inducing inputs, and its mean over the range of these."""

    name: str
    inducing: Points
    mean: Points


@dataclass(frozen=True)
class Band:
    """At places `x`: the mean, and half the width of what holds 95 % of the function and of observations."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    function: tuple[float, ...]
    observation: tuple[float, ...]


@dataclass(frozen=True)
class Process:
    """What is shown of a sparse Gaussian process.

    Parameters
    ----------
    inputs
        Names of the input columns.
    axes
        What is drawn across and upwards: input and target, or the two inputs of shortest length-scale.
    fused
        Parameters of the fused process.
    kernels
        Those of the sites that are known.
    inducing
        Places of the fused inducing inputs: with their values, or in the two inputs.
    sources
        The sites that are known.
    band
        The fused function, of one input.
    rows
        Data to hold against it, of which `n_rows` were given.
    """

    inputs: tuple[str, ...]
    axes: tuple[str, str]
    fused: Kernel
    kernels: tuple[Kernel, ...]
    inducing: Points
    sources: tuple[Source, ...]
    band: Band | None
    rows: Points
    n_rows: int


def process_of(fused: Posterior, sites: Sequence[tuple[str, Posterior]], rows: Array | None = None) -> Process | None:
    """Return what is shown of a sparse Gaussian process; None for other models.

    Parameters
    ----------
    fused
        The fused process.
    sites
        Name and posterior of the sites that are known.
    rows
        Inputs and targets (n, d + 1).
    """
    whole = _value(fused)
    if whole is None:
        return None
    known = [(name, value) for name, site in sites if (value := _value(site)) is not None and value.dim == whole.dim]
    names = fused.features.names or (*(f"input {i}" for i in range(whole.dim)), "target")
    scales = whole.kernel.lengthscales * whole.scale[:-1]
    short = np.sort(np.argsort(scales, kind="stable")[:2]) if whole.dim > 1 else np.array([0, 1])
    given = np.zeros((0, whole.dim + 1)) if rows is None else rows
    chosen = np.unique(np.linspace(0, len(given) - 1, min(len(given), _ROWS_AT_MOST)).round().astype(np.int64))
    with np.errstate(all="ignore"):  # what overflows is left out
        places = [_places(value) for _, value in known]
        ends = [_places(whole)[:, short], given[:, short], *(place[:, short] for place in places)]
        return Process(
            inputs=tuple(names[:-1]),
            axes=(names[short[0]], names[short[1]]),
            fused=_kernel("fused", whole),
            kernels=tuple(_kernel(name, value) for name, value in known),
            inducing=_points(_places(whole)[:, short]),
            sources=tuple(
                Source(name, _points(place[:, short]), _mean(value))
                for (name, value), place in list(zip(known, places, strict=True))[:_SITES_AT_MOST]
            ),
            band=_band(whole, np.concatenate([end[:, 0] for end in ends])) if whole.dim == 1 else None,
            rows=_points(given[chosen][:, short]),
            n_rows=len(given),
        )


def _value(posterior: Posterior) -> SparseGP | None:
    """Return the process of any library's sparse Gaussian process; None for whatever is none."""
    try:
        if isinstance(adapter_of(posterior), InducingPointAdapter):
            return SparseGPAdapter().rebuild(posterior)
    except (ConsilienceError, KeyError, TypeError, ValueError):  # a file that only says it is one
        pass
    return None


def _kernel(name: str, value: SparseGP) -> Kernel:
    height = float(value.scale[-1])
    return Kernel(
        name=name,
        kernel=value.kernel.name,
        inducing=value.n_inducing,
        variance=value.kernel.variance * height**2,
        noise=value.noise * height**2 if value.noise > 0 else None,
        constant=float(value.shift[-1]) + height * value.constant,
        lengthscales=tuple((value.kernel.lengthscales * value.scale[:-1]).tolist()),
        observations=value.n_observations if value.n_observations > 0 else None,
    )


def _places(value: SparseGP) -> Array:
    """Return inducing inputs and values (M, d + 1) in units of the data."""
    return value.shift + value.scale * np.column_stack([value.inducing_inputs, value.mean])


def _points(places: Array) -> Points:
    good = (np.abs(places) < 1e150).all(axis=1)
    return tuple((float(x), float(y)) for x, y in places[good])


def _mean(value: SparseGP) -> Points:
    """Return the mean function over the range of its inducing inputs, and half a length-scale beyond."""
    if value.dim > 1:
        return ()
    own = _places(value)[:, 0]
    reach = 0.5 * float(value.kernel.lengthscales[0] * value.scale[0])
    x = np.linspace(own.min() - reach, own.max() + reach, _SITE_GRID)
    return _points(np.column_stack([x, value.predict(x[:, None])[0]]))


def _band(value: SparseGP, ends: Array) -> Band | None:
    low, high = float(ends.min()), float(ends.max())
    margin = 0.04 * (high - low) or float(value.kernel.lengthscales[0] * value.scale[0])
    x = np.linspace(low - margin, high + margin, _GRID)
    mean, variance = value.predict(x[:, None])
    noisy = variance + value.noise * float(value.scale[-1]) ** 2
    columns = np.stack([x, mean, _WIDE * np.sqrt(variance), _WIDE * np.sqrt(noisy)])
    if not np.all(np.abs(columns) < 1e150):
        return None
    across, middle, function, observation = columns.tolist()
    return Band(tuple(across), tuple(middle), tuple(function), tuple(observation))
