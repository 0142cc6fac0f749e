"""Loss barriers on the straight line between two networks: linear mode connectivity.

    theta(t) = (1 - t) theta_a + t theta_b,   B = max_t [ E(t) - ((1 - t) E(0) + t E(1)) ]

of Entezari et al. (2022), "The role of permutation invariance in linear mode connectivity": theta_a and theta_b are the
parameters of the two networks, E(t) is the loss or error of theta(t), and t runs from 0 to 1. Two other definitions are
in use, which compare with the worse end, max_t E(t) - max(E(0), E(1)), and with the mean of the ends,
max_t E(t) - (E(0) + E(1)) / 2; all three are reported.

The maximum is that over a grid of t that holds both ends, so B is never negative and never above that of the continuous
line; `refine` adds a golden-section search around the highest place. A network whose value is not finite counts as
infinite; where an end is, no barrier is defined, and it is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from consilience.checks import Array, is_count
from consilience.core.frozen import FrozenDict
from consilience.drawing.display import Displayed, Tabular
from consilience.drawing.plots import Chart, Plotted, draw_curve
from consilience.drawing.words import format_count
from consilience.errors import InputError, OptionError
from consilience.files.atomic import refuse_to_replace
from consilience.networks.landscape.evaluation import Evaluate, Refresh, evaluate_points
from consilience.networks.landscape.files import Arrays, Names, format_of_arrays, write_arrays
from consilience.networks.landscape.parameters import Model, Span

_GOLDEN_RATIO = (np.sqrt(5.0) - 1.0) / 2.0
"""Share (sqrt(5) - 1) / 2 of a bracket that golden-section search keeps."""

_N_GOLDEN_EVALUATIONS = 12
"""Evaluations of the search. All but the first two shrink the bracket of two grid steps by 0.618: to 1/123 of it.

Chosen by hand; nobody has measured other values.
"""


@dataclass(frozen=True, eq=False, repr=False)
class Barrier(Displayed, Plotted, Tabular):
    """Curves along the line between two networks, and their barriers.

    Heights are NaN where an end is infinite, and infinite where a network between finite ends is.

    Parameters
    ----------
    t : ndarray of shape (n,)
        Places on the line, ascending from 0 (the first network) to 1 (the second).
    values : mapping of str to ndarray of shape (n,)
        Curve of every value of the evaluation, in its units; infinite where it was not finite.

    Examples
    --------
    >>> curve = Barrier(np.array([0.0, 0.5, 1.0]), {"loss": np.array([1.0, 4.0, 3.0])})
    >>> curve.height(), curve.height_over_maximum(), curve.height_over_mean(), curve.peak(), curve.area()
    (2.0, 1.0, 2.0, 0.5, 1.0)
    """

    t: Array
    values: Mapping[str, Array]

    def __post_init__(self) -> None:
        t = np.array(self.t, dtype=np.float64)
        values = {name: np.array(curve, dtype=np.float64) for name, curve in self.values.items()}
        if t.ndim != 1 or len(t) < 2 or t[0] != 0.0 or t[-1] != 1.0 or np.any(np.diff(t) <= 0):
            raise InputError("t", "expected at least two ascending places from 0 to 1", code="E-NUMBER")
        if any(curve.shape != t.shape for curve in values.values()):
            raise InputError("values", f"expected curves of {len(t)} numbers", code="E-SHAPE")
        for array in (t, *values.values()):
            array.setflags(write=False)
        object.__setattr__(self, "t", t)
        object.__setattr__(self, "values", FrozenDict(values))

    def _headline(self) -> str:
        return f"{format_count(len(self.t), 'place')} on the line between two networks"

    def _facts(self) -> dict[str, object | None]:
        return {
            name: f"{self.height(name):.4g} above the line between the ends ({curve[0]:.4g} and {curve[-1]:.4g})"
            for name, curve in self.values.items()
        }

    def _charts(self) -> dict[str, Chart | str]:
        return {
            name: partial(draw_curve, t=self.t, curve=curve, name=name)
            if np.isfinite(curve).any()
            else "no value of it is finite"
            for name, curve in self.values.items()
        }

    def to_columns(self) -> dict[str, list[float]]:
        """Return a row for each place on the line: t, and the value of every curve."""
        return {"t": self.t.tolist(), **{name: curve.tolist() for name, curve in self.values.items()}}

    def curve(self, name: str = "loss") -> Array:
        """Return E(t) at every place (n,), for the value of this name."""
        if name not in self.values:
            raise InputError(f"no curve {name!r}; the evaluation returned {', '.join(self.values)}")
        return self.values[name]

    def excess(self, name: str = "loss") -> Array:
        """Return E(t) - ((1 - t) E(0) + t E(1)) at every place (n,)."""
        curve = self.curve(name)
        if not np.isfinite(curve[0] + curve[-1]):
            return np.full_like(curve, np.nan)
        return curve - ((1.0 - self.t) * curve[0] + self.t * curve[-1])

    def height(self, name: str = "loss") -> float:
        """Return the barrier over the straight line between the ends: the greatest excess, never negative."""
        return float(self.excess(name).max())

    def height_over_maximum(self, name: str = "loss") -> float:
        """Return the barrier over the worse end, max_t E(t) - max(E(0), E(1))."""
        curve = self.curve(name)
        return float(curve.max() - curve[[0, -1]].max()) if np.isfinite(curve[0] + curve[-1]) else float("nan")

    def height_over_mean(self, name: str = "loss") -> float:
        """Return the barrier over the mean of the ends, max_t E(t) - (E(0) + E(1)) / 2."""
        curve = self.curve(name)
        return float(curve.max() - curve[[0, -1]].mean()) if np.isfinite(curve[0] + curve[-1]) else float("nan")

    def peak(self, name: str = "loss") -> float:
        """Return the place t of the greatest excess; NaN where an end is infinite."""
        excess = self.excess(name)
        return float("nan") if np.isnan(excess[0]) else float(self.t[excess.argmax()])

    def midpoint(self, name: str = "loss") -> float:
        """Return the value at t = 1/2, interpolated where that is not on the grid."""
        return float(np.interp(0.5, self.t, self.curve(name)))

    def area(self, name: str = "loss") -> float:
        """Return the area under the positive part of the excess, by trapezoids."""
        return float(np.trapezoid(np.maximum(self.excess(name), 0.0), self.t))

    def summary(self) -> dict[str, dict[str, float]]:  # type: ignore[override]  # numbers, before texts were
        """Return every number above for every curve, as plain values."""
        measures = (self.height, self.height_over_maximum, self.height_over_mean, self.peak, self.midpoint, self.area)
        return {name: {measure.__name__: measure(name) for measure in measures} for name in self.values}

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the curves to a file; `overwrite` allows to replace one that this library did not write."""
        refuse_to_replace(path, overwrite)
        curves = {f"values.{name}": curve for name, curve in self.values.items()}
        write_arrays(BARRIER_FILES, path, {"t": self.t, **curves}, {"values": list(self.values)})

    @classmethod
    def load(cls, path: str | Path) -> Barrier:
        """Return what `save` wrote; FileFormatError for other files."""
        return BARRIER_FILES.load(path)

    @classmethod
    def _from_arrays(cls, arrays: Arrays, names: Names) -> Barrier:
        return cls(arrays["t"], {name: arrays[f"values.{name}"] for name in names["values"]})


BARRIER_FILES = format_of_arrays("barrier", Barrier._from_arrays)


def barrier(
    net_a: nn.Module,
    net_b: Model,
    evaluate: Evaluate,
    points: int = 25,
    refine: bool = False,
    refresh: Refresh | None = None,
    *,
    include_frozen: bool = True,
) -> Barrier:
    """Evaluate networks on the straight line between two, and return the curves with their barriers.

    Parameters
    ----------
    net_a : Module
        The network at t = 0; it is not changed, and the networks between are copies of it.
    net_b : Module or mapping of names to tensors
        The network at t = 1, of the same architecture and widths, aligned or not.
    evaluate : callable
        Function of a module that returns numbers by name, lower being better, such as ``{"loss": .., "error": ..}``: on
        a fixed data set, the same at every call. A `BatchedEvaluation` such as `Classification` is asked for many
        networks at once.
    points : int, optional
        Number of places on the line, ends included; the middle is always one of them. Default: 25, as in the scripts
        published with re-basin methods.
    refine : bool, optional
        Whether to search on between the neighbours of the highest place of "loss", or of the first curve where there
        is no "loss". Default: False.
    refresh : callable, optional
        Called with every network on the line, ends included, before it is evaluated: sets its normalisation statistics
        in place. Without it, batch normalisation of averaged statistics inflates barriers. Default: none.
    include_frozen : bool, optional
        Whether parameters with ``requires_grad=False`` are interpolated; if not, they must be the same in both.
        Default: True.

    Returns
    -------
    Barrier
        Curves of all values of the evaluation over t.

    Raises
    ------
    InputError
        Naming the tensor when the architectures or widths differ, or a tensor is not finite.
    OptionError
        When `points` is less than 2.

    Examples
    --------
    A loss with minima at -1 and 1 and a hill of height 1 between:

    >>> nets = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    >>> _ = nn.init.constant_(nets[0].weight, -1.0), nn.init.constant_(nets[1].weight, 1.0)
    >>> curve = barrier(*nets, lambda net: {"loss": (net.weight.item() ** 2 - 1.0) ** 2}, points=5)
    >>> curve.height(), curve.peak()
    (1.0, 0.5)
    """
    if not is_count(points) or points < 2:
        raise OptionError("points", f"expected a whole number from 2, found {points!r}")
    span = Span.of({"net_a": net_a, "net_b": net_b}, include_frozen)

    def values_at(t: Array) -> dict[str, Array]:
        return evaluate_points(span, np.column_stack([1.0 - t, t]), evaluate, refresh)

    t = np.union1d(np.arange(points) / (points - 1.0), 0.5)  # (n,), the middle also where `points` is even
    curve = Barrier(t, values_at(t))
    return _refine_maximum(curve, values_at) if refine else curve


def _refine_maximum(curve: Barrier, values_at: Callable[[Array], dict[str, Array]]) -> Barrier:
    """Return the curve with the places of a golden-section search for the maximum of the excess added."""
    name = "loss" if "loss" in curve.values else next(iter(curve.values))
    excess = curve.excess(name)
    if not np.all(np.isfinite(excess)) or excess.max() <= 0.0:  # nothing to refine
        return curve
    start, end = curve.curve(name)[[0, -1]]  # E(0), E(1)
    values_of_place: dict[float, dict[str, Array]] = {}

    def height(t: float) -> float:
        values_of_place[t] = values_at(np.array([t]))
        return float(values_of_place[t][name][0] - ((1.0 - t) * start + t * end))

    # The excess is zero at both ends and positive here, so the peak has a neighbour on either side.
    peak = int(excess.argmax())
    low, high = float(curve.t[peak - 1]), float(curve.t[peak + 1])
    # Golden-section search: of the four places low < left < right < high, one end goes and one inner place stays, so
    # every step costs one evaluation. A maximum beside the bracket is not found; the grid has it, then.
    left, right = high - _GOLDEN_RATIO * (high - low), low + _GOLDEN_RATIO * (high - low)
    left_height, right_height = height(left), height(right)
    for _ in range(_N_GOLDEN_EVALUATIONS - 2):
        if left_height >= right_height:
            high, right, right_height = right, left, left_height
            left = high - _GOLDEN_RATIO * (high - low)
            left_height = height(left)
        else:
            low, left, left_height = left, right, right_height
            right = low + _GOLDEN_RATIO * (high - low)
            right_height = height(right)
    # All places that were evaluated join the grid, so the barrier is never below that of the grid.
    t, order = np.unique(np.concatenate([curve.t, list(values_of_place)]), return_index=True)
    added_values = {key: np.concatenate([values[key] for values in values_of_place.values()]) for key in curve.values}
    return Barrier(
        t, {key: np.concatenate([grid_values, added_values[key]])[order] for key, grid_values in curve.values.items()}
    )
