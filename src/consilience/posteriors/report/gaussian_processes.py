"""Content of the report of sparse Gaussian processes, as plain values in the units of the data.

A process models standardised values; with shift b and scale a of every column, a point z lies at b + a z in the units
of the data, variances of the target scale by a^2 and length-scales of an input by its a. For one input x the page shows
the mean m(x) with the bands m(x) +- 1.96 sqrt(v(x)) of the function and m(x) +- 1.96 sqrt(v(x) + noise) of
observations; for several inputs, the inducing inputs in the two of shortest length-scale. What overflows is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array
from consilience.errors import ConsilienceError
from consilience.posteriors.adapters.table import adapter_of
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.report.planar_components import MAX_DRAWABLE
from consilience.posteriors.sparse_gp.adapter import InducingPointAdapter, SparseGPAdapter
from consilience.posteriors.sparse_gp.model import SparseGP

_N_FUSED_GRID, _N_SITE_GRID = 240, 120
"""Points of the curves of the fused process and of each site's. Chosen by eye, so that curves look smooth."""

_MAX_SITES = 60
"""Sites beyond these are not drawn. Bounds the size of the page; chosen by hand."""

_MAX_ROWS = 1500
"""Of more rows of data, so many are drawn, evenly chosen. Bounds the size of the page; chosen by hand."""

_Z_95 = 1.959964
"""Standard deviations to either side that hold 95 % of a Gaussian: its 0.975 quantile."""

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class ProcessParameters:
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
class SiteProcess:
    """A site's process: its inducing points, and its mean function over their range; no mean for several inputs."""

    name: str
    inducing: Points
    mean: Points


@dataclass(frozen=True)
class PredictiveBand:
    """Mean at inputs `x` (n,), and half-widths there of the 95 % bands of the function and of observations."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    function: tuple[float, ...]
    observation: tuple[float, ...]


@dataclass(frozen=True)
class ProcessContent:
    """What is shown of a sparse Gaussian process."""

    inputs: tuple[str, ...]  # names of the columns
    axes: tuple[str, str]  # across and upwards: input and target, or the two inputs of shortest length-scale
    fused: ProcessParameters
    site_parameters: tuple[ProcessParameters, ...]  # of the sites that are known
    inducing: Points  # the fused inducing inputs: with their values, or in the two inputs
    site_processes: tuple[SiteProcess, ...]  # of the sites that are known
    band: PredictiveBand | None  # the fused function; None for several inputs
    rows: Points  # data to hold against it, of which `n_rows` were given
    n_rows: int


def process_of(
    fused: Posterior, sites: Sequence[tuple[str, Posterior]], rows: Array | None = None
) -> ProcessContent | None:
    """Return what is shown of a sparse Gaussian process and of rows (n, d + 1) of data; None for other models.

    Sites of other models, or of another number of inputs, are left out.
    """
    fused_gp = _sparse_gp(fused)
    if fused_gp is None:
        return None
    site_gps = [(name, gp) for name, site in sites if (gp := _sparse_gp(site)) is not None and gp.dim == fused_gp.dim]
    names = fused.features.names or (*(f"input {i}" for i in range(fused_gp.dim)), "target")
    lengthscales = fused_gp.kernel.lengthscales * fused_gp.scale[:-1]
    drawn_columns = np.sort(np.argsort(lengthscales, kind="stable")[:2]) if fused_gp.dim > 1 else np.array([0, 1])
    data = np.zeros((0, fused_gp.dim + 1)) if rows is None else rows
    drawn_rows = np.unique(np.linspace(0, len(data) - 1, min(len(data), _MAX_ROWS)).round().astype(np.int64))
    with np.errstate(all="ignore"):  # what overflows is left out
        site_points = [_inducing_points(gp) for _, gp in site_gps]
        extents = [points[:, drawn_columns] for points in (_inducing_points(fused_gp), data, *site_points)]
        return ProcessContent(
            inputs=tuple(names[:-1]),
            axes=(names[drawn_columns[0]], names[drawn_columns[1]]),
            fused=_parameters("fused", fused_gp),
            site_parameters=tuple(_parameters(name, gp) for name, gp in site_gps),
            inducing=_finite_points(_inducing_points(fused_gp)[:, drawn_columns]),
            site_processes=tuple(
                SiteProcess(name, _finite_points(points[:, drawn_columns]), _mean_curve(gp))
                for (name, gp), points in list(zip(site_gps, site_points, strict=True))[:_MAX_SITES]
            ),
            band=_band(fused_gp, np.concatenate([extent[:, 0] for extent in extents])) if fused_gp.dim == 1 else None,
            rows=_finite_points(data[drawn_rows][:, drawn_columns]),
            n_rows=len(data),
        )


def _sparse_gp(posterior: Posterior) -> SparseGP | None:
    """Return the process of any library's sparse Gaussian process; None for whatever is none."""
    try:
        if isinstance(adapter_of(posterior), InducingPointAdapter):
            return SparseGPAdapter().rebuild(posterior)
    except (ConsilienceError, KeyError, TypeError, ValueError):  # a file that only says it is one
        pass
    return None


def _parameters(name: str, gp: SparseGP) -> ProcessParameters:
    target_scale = float(gp.scale[-1])
    return ProcessParameters(
        name=name,
        kernel=gp.kernel.name,
        inducing=gp.n_inducing,
        variance=gp.kernel.variance * target_scale**2,
        noise=gp.noise * target_scale**2 if gp.noise > 0 else None,
        constant=float(gp.shift[-1]) + target_scale * gp.constant,
        lengthscales=tuple((gp.kernel.lengthscales * gp.scale[:-1]).tolist()),
        observations=gp.n_observations if gp.n_observations > 0 else None,
    )


def _inducing_points(gp: SparseGP) -> Array:
    """Return inducing inputs and values (M, d + 1) in units of the data."""
    return gp.shift + gp.scale * np.column_stack([gp.inducing_inputs, gp.mean])


def _finite_points(points: Array) -> Points:
    is_drawable = (np.abs(points) < MAX_DRAWABLE).all(axis=1)
    return tuple((float(x), float(y)) for x, y in points[is_drawable])


def _mean_curve(gp: SparseGP) -> Points:
    """Return the mean function over the range of its inducing inputs, and half a length-scale beyond."""
    if gp.dim > 1:
        return ()
    inputs = _inducing_points(gp)[:, 0]
    margin = 0.5 * float(gp.kernel.lengthscales[0] * gp.scale[0])
    x = np.linspace(inputs.min() - margin, inputs.max() + margin, _N_SITE_GRID)
    return _finite_points(np.column_stack([x, gp.predict(x[:, None])[0]]))


def _band(gp: SparseGP, extent: Array) -> PredictiveBand | None:
    low, high = float(extent.min()), float(extent.max())
    margin = 0.04 * (high - low) or float(gp.kernel.lengthscales[0] * gp.scale[0])
    x = np.linspace(low - margin, high + margin, _N_FUSED_GRID)
    mean, variance = gp.predict(x[:, None])
    noisy = variance + gp.noise * float(gp.scale[-1]) ** 2
    columns = np.stack([x, mean, _Z_95 * np.sqrt(variance), _Z_95 * np.sqrt(noisy)])
    if not np.all(np.abs(columns) < MAX_DRAWABLE):
        return None
    x_values, means, function, observation = columns.tolist()
    return PredictiveBand(tuple(x_values), tuple(means), tuple(function), tuple(observation))
