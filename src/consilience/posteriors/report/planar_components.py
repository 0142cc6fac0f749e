"""Components with a place and a width, seen in a plane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.families import (
    DiagonalGaussian,
    Family,
    Gaussian,
    KnownCovarianceGaussian,
    NormalGamma,
    NormalWishart,
    Point,
    SphericalGaussian,
)
from consilience.families.normal_gamma import SphericalNormalGamma
from consilience.posteriors.posterior import Posterior

_LOCALS_AT_MOST = 240
_NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class Oval:
    """One component in the plane: its centre and the covariance around it.

    Parameters
    ----------
    component
        Number of the fused component that it is or became, -1 for a dropped one.
    centre
        (x, y).
    covariance
        (xx, xy, yy).
    """

    component: int
    centre: tuple[float, float]
    covariance: tuple[float, float, float]


@dataclass(frozen=True)
class Plane:
    """Fused and local components in two coordinates.

    Parameters
    ----------
    axes
        What the coordinates are.
    kind
        ``line`` for one dimension (the second coordinate is the component's number), ``data`` for two, ``projected``
        for more.
    share
        Part of the differences between fused means that a projection keeps.
    fused, local
        The components.
    n_local
        Number of local components there are, of which `local` may be a part.
    """

    axes: tuple[str, str]
    kind: str
    share: float | None
    fused: tuple[Oval, ...]
    local: tuple[Oval, ...]
    n_local: int


def places(family: Family, natural: Array) -> tuple[Array, Array] | None:
    """Return the mean (n, D) and the typical covariance (n, D, D), or variances (n, D), of components that have them.

    The typical covariance of a Normal-Wishart is W^-1 / nu and that of a Normal-Gamma b / a: the inverse of the mean
    precision. A point has variance zero.
    """
    if isinstance(family, Gaussian):
        found = family.from_natural(natural)
        return found["mean"], found["covariance"]
    if isinstance(family, DiagonalGaussian | SphericalGaussian):
        found = family.from_natural(natural)
        return found["mean"], found["variance"].reshape(len(natural), -1) * np.ones(family.dim)
    if isinstance(family, KnownCovarianceGaussian):
        mean = family.mean_parameters(natural)
        return mean, np.broadcast_to(family.covariance, (len(mean), family.dim, family.dim))
    if isinstance(family, NormalWishart):
        mean, _, inverse_scale, dof = family.standard(natural)
        return mean, inverse_scale / dof[:, None, None]
    if isinstance(family, NormalGamma | SphericalNormalGamma):
        mean, _, shape, rate = family.standard(natural)
        return mean, np.repeat(rate / shape[:, None], family.dim // rate.shape[1], axis=1)
    if isinstance(family, Point):
        return natural, np.zeros_like(natural)
    return None


def plane_of(fused: Posterior, local: Array, labels: Labels) -> Plane | None:
    """Return the components in two coordinates; None for a family without places, or values too large to draw.

    Parameters
    ----------
    fused
        The fused components.
    local
        Natural parameters of the local ones (L, P).
    labels
        Which fused component each became (L,).
    """
    chosen = np.unique(np.linspace(0, len(local) - 1, min(len(local), _LOCALS_AT_MOST)).round().astype(np.int64))
    with np.errstate(all="ignore"):  # what overflows is left out below
        whole = places(fused.family, fused.natural)
        if whole is None:
            return None
        mean, spread = whole
        dim = mean.shape[1]
        names = fused.features.names or tuple(f"feature {i}" for i in range(dim))
        numbers = np.arange(len(mean))
        parts = [(mean, spread, numbers)]
        if len(chosen):
            part = places(fused.family, local[chosen])
            assert part is not None  # noqa: S101  (the family is that of the fused components)
            parts.append((*part, labels[chosen]))
        if dim == 1:
            drawn = [_on_lines(*part) for part in parts]
            axes, kind, share = (names[0], "fused component"), "line", None
        elif dim == 2:
            drawn = [_ovals(m, s, c, np.eye(2)) for m, s, c in parts]
            axes, kind, share = (names[0], names[1]), "data", None
        else:
            try:
                view, share = _leading(mean, spread, _shares(fused))
            except np.linalg.LinAlgError:
                return None
            drawn = [_ovals(m - mean.mean(axis=0), s, c, view) for m, s, c in parts]
            axes, kind = ("first axis", "second axis"), "projected"
    if not drawn[0]:
        return None
    return Plane(axes, kind, share, tuple(drawn[0]), tuple(drawn[1]) if len(drawn) > 1 else (), len(local))


def _shares(fused: Posterior) -> Array:
    mass = fused.weights if fused.weights is not None else fused.counts
    if mass is None or mass.sum() <= 0:
        mass = np.ones(fused.n_components)
    share: Array = mass / mass.sum()
    return share


def _leading(mean: Array, spread: Array, share: Array) -> tuple[Array, float | None]:
    """Return two directions (D, 2) and how much of the differences between means they show.

    They are the linear discriminants: the principal axes of the means after the mean covariance within components has
    been made the identity, so the unit of a feature changes nothing. Where fewer than two components differ, the
    direction in which components are widest fills in.
    """
    within = np.einsum("g,g...->...", share, spread)
    centred = mean - share @ mean
    if within.ndim == 1:
        root = np.sqrt(np.where(within > 0, within, 1.0))
        white = centred / root
        widest = np.argsort(-root, kind="stable")[:3]
        candidates = np.zeros((3, len(root)))
        candidates[np.arange(len(widest)), widest] = 1.0
    else:
        factor = np.linalg.cholesky(within)
        white = np.asarray(np.linalg.solve(factor, centred.T).T, dtype=np.float64)
        candidates = (factor.T @ np.linalg.eigh(within)[1][:, ::-1][:, :3]).T
    _, sizes, rows = np.linalg.svd(np.sqrt(share)[:, None] * white, full_matrices=False)
    total = float(np.sum(sizes**2))
    basis = [row for row, size in zip(rows[:2], sizes[:2], strict=True) if size > _NEGLIGIBLE * max(sizes[0], 1e-300)]
    for candidate in candidates:
        rest = candidate - sum((row * (row @ candidate) for row in basis), np.zeros(len(candidate)))
        if len(basis) < 2 and np.linalg.norm(rest) > _NEGLIGIBLE * np.linalg.norm(candidate):
            basis.append(rest / np.linalg.norm(rest))
    upright = np.stack([row * (1.0 if row[np.abs(row).argmax()] > 0 else -1.0) for row in basis], axis=1)
    view = upright / root[:, None] if within.ndim == 1 else np.linalg.solve(factor.T, upright)
    return view, float(np.sum(sizes[:2] ** 2)) / total if total > 0 else None


def _ovals(mean: Array, spread: Array, component: Labels, view: Array) -> list[Oval]:
    centre = mean @ view
    form = "nij,ia,jb->nab" if spread.ndim == 3 else "ni,ia,ib->nab"
    seen = (
        np.einsum(form, spread, view, view, optimize=True) if spread.ndim == 3 else np.einsum(form, spread, view, view)
    )
    columns = np.stack([centre[:, 0], centre[:, 1], seen[:, 0, 0], seen[:, 0, 1], seen[:, 1, 1]], axis=1)
    return _finite(columns, component)


def _on_lines(mean: Array, spread: Array, component: Labels) -> list[Oval]:
    """Put one-dimensional components on a line for each fused one."""
    zero = np.zeros(len(mean))
    return _finite(np.stack([mean[:, 0], component, spread.reshape(-1), zero, zero], axis=1), component)


def _finite(columns: Array, component: Labels) -> list[Oval]:
    good = np.flatnonzero((np.abs(columns) < 1e150).all(axis=1))
    return [
        Oval(int(component[i]), (float(x), float(y)), (float(xx), float(xy), float(yy)))
        for i, (x, y, xx, xy, yy) in zip(good, columns[good], strict=True)
    ]
