"""Projections of mixture components into a plane: features, or linear discriminants.

In one or two dimensions the features themselves are drawn. In more, with shares s_g of sum 1 of the fused components,
their means m_g and typical covariances S_g,

    W = sum_g s_g S_g = C C^T,    m = sum_g s_g m_g,    matrix of rows sqrt(s_g) (C^-1 (m_g - m))^T = U diag(d) V^T,

and the view is (D, 2) with columns C^-T v_1, C^-T v_2: Fisher's linear discriminants, in which the mean covariance is
the identity, so that the unit of a feature changes nothing. They show (d_1^2 + d_2^2) / sum d^2 of the differences.
Families without a location, and covariances that cannot be factorised, give None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from consilience.checks import Array, Labels

if TYPE_CHECKING:
    from consilience.posteriors.posterior import Posterior

_MAX_LOCALS = 240
"""Of more local components, so many are drawn, evenly chosen. Bounds the size of the page; chosen by hand."""

_MIN_RELATIVE_LENGTH = 1e-6
"""Directions shorter than this share of the longest are rounding, and span nothing. Chosen by hand."""

MAX_DRAWABLE = 1e150
"""Greatest coordinate and variance that is drawn; squares of larger ones overflow float64."""


@dataclass(frozen=True)
class ComponentEllipse:
    """One component in the plane: its centre and the covariance around it."""

    component: int  # the fused one that it is or became, -1 for a dropped one
    centre: tuple[float, float]  # (x, y)
    covariance: tuple[float, float, float]  # (xx, xy, yy)


@dataclass(frozen=True)
class ComponentPlane:
    """Fused and local components in two coordinates."""

    axes: tuple[str, str]  # what the coordinates are
    kind: str  # ``line`` for one dimension (the second is the component's number), ``data``, or ``projected``
    share: float | None  # of the differences between fused means that a projection keeps
    fused: tuple[ComponentEllipse, ...]
    local: tuple[ComponentEllipse, ...]
    n_local: int  # local components there are, of which `local` may be a part


def plane_of(fused: Posterior, local: Array, labels: Labels) -> ComponentPlane | None:
    """Return the components in two coordinates; None for a family without locations, or values too large to draw.

    Local ones have natural parameters (L, P) and labels (L,): which fused component each became, -1 for none.
    """
    drawn_locals = np.unique(np.linspace(0, len(local) - 1, min(len(local), _MAX_LOCALS)).round().astype(np.int64))
    with np.errstate(all="ignore"):  # what overflows is left out below
        location_and_spread = fused.family.locations_and_spreads(fused.natural)
        if location_and_spread is None:
            return None
        mean, spread = location_and_spread[0] + fused.origin, location_and_spread[1]
        dim = mean.shape[1]
        names = fused.features.names or tuple(f"feature {i}" for i in range(dim))
        numbers = np.arange(len(mean))
        parts = [(mean, spread, numbers)]  # fused components first, then local ones
        if len(drawn_locals):
            local_part = fused.family.locations_and_spreads(local[drawn_locals])
            assert local_part is not None  # noqa: S101  (the family is that of the fused components)
            parts.append((local_part[0] + fused.origin, local_part[1], labels[drawn_locals]))
        if dim == 1:
            ellipses = [_stack_on_lines(*part) for part in parts]
            axes, kind, share = (names[0], "fused component"), "line", None
        elif dim == 2:
            ellipses = [_project(m, s, c, np.eye(2)) for m, s, c in parts]
            axes, kind, share = (names[0], names[1]), "data", None
        else:
            try:
                view, share = _discriminant_view(mean, spread, _mass_shares(fused))
            except np.linalg.LinAlgError:
                return None
            # The origin is the unweighted mean of the fused means; it moves the picture, not its shape.
            ellipses = [_project(m - mean.mean(axis=0), s, c, view) for m, s, c in parts]
            axes, kind = ("first axis", "second axis"), "projected"
    if not ellipses[0]:
        return None
    local_ellipses = tuple(ellipses[1]) if len(ellipses) > 1 else ()
    return ComponentPlane(axes, kind, share, tuple(ellipses[0]), local_ellipses, len(local))


def _mass_shares(fused: Posterior) -> Array:
    """Return the shares (G,) of the fused components by weight, else by count, else all equal."""
    mass = fused.weights if fused.weights is not None else fused.counts
    if mass is None or mass.sum() <= 0:
        mass = np.ones(fused.n_components)
    return np.asarray(mass / mass.sum())


def _discriminant_view(mean: Array, spread: Array, mass_shares: Array) -> tuple[Array, float | None]:
    """Return the view (D, 2) on the linear discriminants of the fused means, and the share of differences it shows.

    Where means (G, D) differ in fewer than two directions, the direction in which components are widest fills in.
    Spreads are covariances (G, D, D) or variances (G, D); shares of all mass (G,) have sum 1.
    """
    within = np.einsum("g,g...->...", mass_shares, spread)  # W: (D, D), or its diagonal (D,)
    centred = mean - mass_shares @ mean  # (G, D)
    if within.ndim == 1:  # C is the diagonal of standard deviations; a feature without any keeps its unit
        deviations = np.sqrt(np.where(within > 0, within, 1.0))
        whitened = centred / deviations
        widest_features = np.argsort(-deviations, kind="stable")[:3]
        # Three, since up to two of them may lie in the span of the discriminants.
        candidates = np.zeros((3, len(deviations)))
        candidates[np.arange(len(widest_features)), widest_features] = 1.0
    else:
        cholesky = np.linalg.cholesky(within)
        # The widest directions are the last eigenvectors e of W; in whitened coordinates they are C^T e.
        whitened = np.asarray(np.linalg.solve(cholesky, centred.T).T, dtype=np.float64)
        candidates = (cholesky.T @ np.linalg.eigh(within)[1][:, ::-1][:, :3]).T
    _, singular_values, rows = np.linalg.svd(np.sqrt(mass_shares)[:, None] * whitened, full_matrices=False)
    total = float(np.sum(singular_values**2))
    basis = [
        row
        for row, singular_value in zip(rows[:2], singular_values[:2], strict=True)
        if singular_value > _MIN_RELATIVE_LENGTH * max(singular_values[0], 1e-300)
    ]
    # Gram-Schmidt, where means span fewer than two directions.
    for candidate in candidates:
        residual = candidate - sum((row * (row @ candidate) for row in basis), np.zeros(len(candidate)))
        if len(basis) < 2 and np.linalg.norm(residual) > _MIN_RELATIVE_LENGTH * np.linalg.norm(candidate):
            basis.append(residual / np.linalg.norm(residual))
    # The sign of a singular vector is arbitrary: its largest entry is made positive, so that pictures do not flip.
    oriented = np.stack([row * (1.0 if row[np.abs(row).argmax()] > 0 else -1.0) for row in basis], axis=1)
    view = oriented / deviations[:, None] if within.ndim == 1 else np.linalg.solve(cholesky.T, oriented)
    return view, float(np.sum(singular_values[:2] ** 2)) / total if total > 0 else None


def _project(mean: Array, spread: Array, component: Labels, view: Array) -> list[ComponentEllipse]:
    """Return the ellipses of components with means (n, D) and spreads (n, D, D) or (n, D) in a view (D, 2)."""
    centre = mean @ view  # (n, 2)
    is_full = spread.ndim == 3
    subscripts = "nij,ia,jb->nab" if is_full else "ni,ia,ib->nab"
    covariance = np.einsum(subscripts, spread, view, view, optimize=is_full).reshape(-1, 4)
    # x, y, xx, xy, yy of each component: (n, 5)
    return _drawable_ellipses(np.concatenate([centre, covariance[:, [0, 1, 3]]], axis=1), component)


def _stack_on_lines(mean: Array, spread: Array, component: Labels) -> list[ComponentEllipse]:
    """Put one-dimensional components on a line for each fused one."""
    zero = np.zeros(len(mean))
    return _drawable_ellipses(np.stack([mean[:, 0], component, spread.reshape(-1), zero, zero], axis=1), component)


def _drawable_ellipses(columns: Array, component: Labels) -> list[ComponentEllipse]:
    """Return the ellipses of rows (n, 5) of x, y, xx, xy, yy; what is NaN or too large is left out."""
    drawable_rows = np.flatnonzero((np.abs(columns) < MAX_DRAWABLE).all(axis=1))
    return [
        ComponentEllipse(int(component[i]), (float(x), float(y)), (float(xx), float(xy), float(yy)))
        for i, (x, y, xx, xy, yy) in zip(drawable_rows, columns[drawable_rows], strict=True)
    ]
