"""Loss surfaces on the plane through three networks, with markers where other networks lie.

After Garipov et al. (2018), "Loss surfaces, mode connectivity, and fast ensembling of DNNs": with networks w0, w1, w2,

    u = (w2 - w0) / dx,  dx = |w2 - w0|,        v = (w1 - w0 - <w1 - w0, u> u) / dy,  dy = the norm of that,

and the points of the plane are w0 + alpha dx u + beta dy v. So w0 is at (0, 0), w2 at (1, 0) and w1 at (skew, 1), with
skew = <w1 - w0, u> / dx. Every point is an affine combination of the three networks,

    (1 - a - beta) w0 + beta w1 + a w2,   a = alpha - beta skew,

so that evaluation needs weights (n, 3) alone. A further network w is marked at its nearest point, with alpha =
<w - w0, u> / dx and beta = <w - w0, v> / dy, and with its distance from the plane. Three networks on one line span no
plane: `InputError` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from consilience.checks import Array, is_count, is_number
from consilience.core.frozen import FrozenDict
from consilience.drawing.display import Displayed, names_in_line
from consilience.drawing.plots import Chart, Plotted, draw_grid
from consilience.errors import InputError, OptionError
from consilience.files.atomic import refuse_to_replace
from consilience.networks.landscape.evaluation import Evaluate, Refresh, evaluate_points
from consilience.networks.landscape.files import Arrays, Names, format_of_arrays, write_arrays
from consilience.networks.landscape.parameters import Model, Span

_DEGENERATE = 1e-6
"""Distance from a line, relative to the longer side, below which three networks span no plane.

Chosen by hand, far above rounding in float64 and far below any trained networks; nobody has measured other values.
"""


@dataclass(frozen=True, eq=False)
class PlaneAxes:
    """An orthonormal frame through three vectors.

    Parameters
    ----------
    origin, u, v : Tensor of shape (P,)
        The point (0, 0), and the orthonormal directions of alpha and beta.
    dx, dy : float
        Lengths of one unit of alpha and of beta.
    skew : float
        The alpha of the second network, whose beta is 1.
    """

    origin: Tensor
    u: Tensor
    v: Tensor
    dx: float
    dy: float
    skew: float

    @classmethod
    def through(cls, w0: Tensor, w1: Tensor, w2: Tensor) -> PlaneAxes:
        """Return the frame in which w0 is at (0, 0), w2 at (1, 0), w1 at (skew, 1); InputError where there is none."""
        w0_to_w2, w0_to_w1 = w2 - w0, w1 - w0
        dx = float(w0_to_w2.norm())
        if dx == 0.0:
            raise InputError("net_a and net_c are the same network: there is no plane; draw the line to net_b instead")
        u = w0_to_w2 / dx
        projection = float(w0_to_w1 @ u)
        v = w0_to_w1 - projection * u
        rounding_rest = float(v @ u)  # what rounding left along u, which matters where v is short
        v = v - rounding_rest * u
        dy = float(v.norm())
        if dy < _DEGENERATE * max(dx, float(w0_to_w1.norm())):
            raise InputError("net_a, net_b and net_c lie on one line: there is no plane; draw their barrier instead")
        return cls(w0, u, v / dy, dx, dy, (projection + rounding_rest) / dx)

    def coordinates(self, point: Tensor) -> tuple[float, float, float]:
        """Return the (alpha, beta) of the nearest point of the plane, and the distance to it."""
        offset = point - self.origin  # (P,)
        x, y = float(offset @ self.u), float(offset @ self.v)
        return x / self.dx, y / self.dy, float((offset - x * self.u - y * self.v).norm())

    def weights(self, alphas: Array, betas: Array) -> Array:
        """Return the weights (n, 3) of w0, w1, w2 whose affine combinations are the points (alpha, beta)."""
        w2_weights = alphas - betas * self.skew
        return np.column_stack([1.0 - w2_weights - betas, betas, w2_weights])


@dataclass(frozen=True)
class Marker:
    """A network near the plane.

    Parameters
    ----------
    name : str
        What to call it.
    alpha, beta : float
        Where it is, or its nearest point on the plane.
    distance : float
        Distance from the plane, in the norm of the parameters; 0 on it.
    values : mapping of str to float
        Values of the network itself, not of its nearest point.
    """

    name: str
    alpha: float
    beta: float
    distance: float
    values: Mapping[str, float]


@dataclass(frozen=True, eq=False, repr=False)
class Plane(Displayed, Plotted):
    """Values on a grid in the plane through three networks.

    Parameters
    ----------
    alphas, betas : ndarray of shape (A,) and (B,)
        Coordinates of the grid, in units of `dx` and `dy`.
    dx, dy : float
        Their lengths: ``alphas * dx`` and ``betas * dy`` are distances between parameters.
    values : mapping of str to ndarray of shape (B, A)
        Surface of every value of the evaluation, a row for each beta; infinite where it was not finite.
    markers : tuple of Marker
        The three networks and the marked ones.
    """

    alphas: Array
    betas: Array
    dx: float
    dy: float
    values: Mapping[str, Array]
    markers: tuple[Marker, ...]

    def __post_init__(self) -> None:
        values = {name: np.array(surface, dtype=np.float64) for name, surface in self.values.items()}
        arrays = {name: np.array(getattr(self, name), dtype=np.float64) for name in ("alphas", "betas")}
        shape = (len(arrays["betas"]), len(arrays["alphas"]))
        if any(surface.shape != shape for surface in values.values()):
            raise InputError("values", f"expected surfaces of shape {shape}, a row for each beta", code="E-SHAPE")
        for array in (*arrays.values(), *values.values()):
            array.setflags(write=False)
        for name, frozen in {**arrays, "values": FrozenDict(values), "markers": tuple(self.markers)}.items():
            object.__setattr__(self, name, frozen)

    def _headline(self) -> str:
        return f"{len(self.alphas)} x {len(self.betas)} places on the plane through three networks"

    def _facts(self) -> dict[str, object | None]:
        ranges = {name: f"{np.min(grid):.4g} to {np.max(grid):.4g}" for name, grid in self.values.items()}
        return {**ranges, "marked": names_in_line([marker.name for marker in self.markers])}

    def _charts(self) -> dict[str, Chart | str]:
        markers = [(marker.name, marker.alpha, marker.beta) for marker in self.markers]
        return {
            name: partial(draw_grid, alphas=self.alphas, betas=self.betas, grid=grid, markers=markers)
            if np.isfinite(grid).any()
            else "no value of it is finite"
            for name, grid in self.values.items()
        }

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the surfaces and markers to a file; `overwrite` allows to replace one of another program."""
        refuse_to_replace(path, overwrite)
        marker_columns = {
            **{name: [getattr(marker, name) for marker in self.markers] for name in ("alpha", "beta", "distance")},
            **{f"values.{name}": [marker.values[name] for marker in self.markers] for name in self.values},
        }
        arrays = {
            "alphas": self.alphas,
            "betas": self.betas,
            "scale": np.array([self.dx, self.dy]),
            **{f"values.{name}": surface for name, surface in self.values.items()},
            **{f"marker.{name}": np.array(column) for name, column in marker_columns.items()},
        }
        names = {"values": list(self.values), "markers": [marker.name for marker in self.markers]}
        write_arrays(PLANE_FILES, path, arrays, names)

    @classmethod
    def load(cls, path: str | Path) -> Plane:
        """Return what `save` wrote; FileFormatError for other files."""
        return PLANE_FILES.load(path)

    @classmethod
    def _from_arrays(cls, arrays: Arrays, names: Names) -> Plane:
        columns = {key[len("marker.") :]: column for key, column in arrays.items() if key.startswith("marker.")}
        if {column.shape for column in columns.values()} != {(len(names["markers"]),)} or arrays["scale"].shape != (2,):
            raise InputError("its markers are not complete")
        markers = []
        for i, name in enumerate(names["markers"]):
            alpha, beta, distance = (float(columns[of][i]) for of in ("alpha", "beta", "distance"))
            values = {value: float(columns[f"values.{value}"][i]) for value in names["values"]}
            markers.append(Marker(name, alpha, beta, distance, values))
        surfaces = {name: arrays[f"values.{name}"] for name in names["values"]}
        dx, dy = arrays["scale"].tolist()
        return cls(arrays["alphas"], arrays["betas"], dx, dy, surfaces, tuple(markers))


PLANE_FILES = format_of_arrays("plane", Plane._from_arrays)


def plane(
    net_a: nn.Module,
    net_b: Model,
    net_c: Model,
    evaluate: Evaluate,
    points: int = 21,
    margin: float = 0.2,
    refresh: Refresh | None = None,
    marked: Mapping[str, Model] | None = None,
    *,
    names: tuple[str, str, str] = ("net_a", "net_b", "net_c"),
    include_frozen: bool = True,
) -> Plane:
    """Evaluate networks on a grid in the plane through three, and return the surfaces and where networks lie.

    Parameters
    ----------
    net_a : Module
        Network at (0, 0).
    net_b, net_c : Module or mapping of names to tensors
        Networks at (skew, 1) and (1, 0). The figures of the fusion papers take the first base model, the second, and
        the second aligned to the first.
    evaluate : callable
        As for `barrier`.
    points : int, optional
        Places on each side of the grid. Default: 21, as in the code of Garipov et al.
    margin : float, optional
        How far the grid goes on, in units of the axes, beyond the rectangle that holds the three networks.
        Default: 0.2, as in the code of Garipov et al.
    refresh : callable, optional
        As for `barrier`; networks at the markers are refreshed as well.
    marked : mapping of str to Module or mapping, optional
        Other networks of the same architecture to find in the plane, by name: the fused one. Default: none.
    names : tuple of three str, optional
        What to call the three networks.
    include_frozen : bool, optional
        As for `barrier`: without them, frozen embeddings count neither in the path nor in distances. Default: True.

    Returns
    -------
    Plane
        Surfaces of all values of the evaluation, and markers.

    Raises
    ------
    InputError
        When the three lie on a line, or networks differ in a tensor, which is named.
    OptionError
        For `points` less than 2, a negative `margin`, or names that are not all different.

    Examples
    --------
    >>> nets = [nn.Linear(2, 1, bias=False) for _ in range(3)]
    >>> for net, weight in zip(nets, ([0.0, 0.0], [1.0, 2.0], [4.0, 0.0])):
    ...     net.load_state_dict({"weight": Tensor([weight])})
    <All keys matched successfully>
    <All keys matched successfully>
    <All keys matched successfully>
    >>> surface = plane(*nets, lambda net: {"loss": net.weight.square().sum().item()}, points=3, margin=0.0)
    >>> surface.dx, surface.dy, [(marker.alpha, marker.beta) for marker in surface.markers]
    (4.0, 2.0, [(0.0, 0.0), (0.25, 1.0), (1.0, 0.0)])
    >>> surface.values["loss"]
    array([[ 0.,  4., 16.],
           [ 1.,  5., 17.],
           [ 4.,  8., 20.]])
    """
    if not is_count(points) or points < 2:
        raise OptionError("points", f"expected a whole number from 2, found {points!r}")
    if not is_number(margin):
        raise OptionError("margin", f"expected a finite number that is not negative, found {margin!r}")
    labels = [*names, *(marked or {})]
    if len(labels) != 3 + len(marked or {}) or len(set(labels)) != len(labels):
        text = f"expected three names that are different from each other and marked, found {labels}"
        raise OptionError("names", text)
    models = {"net_a": net_a, "net_b": net_b, "net_c": net_c}
    span = Span.of({**models, **{f"marked[{key!r}]": model for key, model in (marked or {}).items()}}, include_frozen)
    axes = PlaneAxes.through(*span.vectors[:3])

    # With w1 beside the stretch from w0 to w2, the rectangle of all three is wider than the unit square.
    alphas = np.linspace(min(0.0, axes.skew) - margin, max(1.0, axes.skew) + margin, points)
    betas = np.linspace(-margin, 1.0 + margin, points)
    grid = axes.weights(*(side.ravel() for side in np.meshgrid(alphas, betas)))  # (points^2, 3), a row for each beta
    # One weight each for the networks themselves, after the points of the grid, in which the marked ones have no part.
    weights = np.vstack([np.pad(grid, ((0, 0), (0, len(labels) - 3))), np.eye(len(labels))])
    values = evaluate_points(span, weights, evaluate, refresh)

    anchors = [(0.0, 0.0, 0.0), (axes.skew, 1.0, 0.0), (1.0, 0.0, 0.0)]
    coordinates = chain(anchors, map(axes.coordinates, span.vectors[3:]))
    markers = [
        Marker(label, *coordinate, {name: float(column[points * points + i]) for name, column in values.items()})
        for i, (label, coordinate) in enumerate(zip(labels, coordinates, strict=True))
    ]
    surfaces = {name: column[: points * points].reshape(points, points) for name, column in values.items()}
    return Plane(alphas, betas, axes.dx, axes.dy, surfaces, tuple(markers))
