"""Credible intervals of fused components' means, as a table by component and feature.

After the hierarchical average an interval is about the mean of the law that sites' components come from. The fused
posterior has the t interval at 90 % as its own, since its information was divided by f = (t_{.95} / z_{.95})^2; at
other levels the factor of that level is put in its place, with the stored degrees of freedom.

Intervals are conditional on the matching and on the local fits. Where components overlap both are surer than they
should be (local variational fits take nobody for undecided), so intervals are too narrow: such components are marked.
The mark is a bound of the pairwise Bayes error. For fused components i and j with weights w and densities p,

    (w_i + w_j) error <= sqrt(w_i w_j) integral sqrt(p_i p_j)        (Bhattacharyya 1943; Kailath 1967)

and a component is marked where the bound of the error with some other one exceeds ``MAX_PAIR_ERROR``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels, is_number
from consilience.drawing.blocks import Block, Column, Table, text_column
from consilience.drawing.display import Displayed, Tabular
from consilience.drawing.plots import Chart, Plotted, draw_intervals
from consilience.drawing.words import shorten
from consilience.errors import InputError, OptionError
from consilience.families.random_effects import RandomEffectsFamily
from consilience.posteriors.details import PosteriorDetails
from consilience.posteriors.hierarchical_average import LEVEL, quantile_ratio
from consilience.posteriors.posterior import Posterior

MAX_PAIR_ERROR = 0.05
"""Bound of the pairwise Bayes error above which intervals are taken for too narrow: means less than 4.3 standard
deviations apart, for two like components. Set by the cells of experiments/average at separations 6 and 2.5, whose
bounds are .006 and .23; not judged on others."""

_SHOWN_ROWS = 40
"""Rows that are printed at most."""


@dataclass(frozen=True)
class Interval:
    """One row of the table.

    Parameters
    ----------
    component : int
        Number of the fused component.
    feature : str
        Name of the feature, or its number where features have none.
    unit : str
        Its unit; empty where none is stated.
    mean, low, high : float
        Posterior mean and ends of the central interval.
    n_sites : int
        Sites whose copies were averaged.
    heterogeneity : float or None
        Variance between sites in units of one observation's; None where it was not estimated.
    optimistic : bool or None
        Whether the component overlaps with another one, so that the interval is too narrow; None where components are
        no densities of data.
    """

    component: int
    feature: str
    unit: str
    mean: float
    low: float
    high: float
    n_sites: int
    heterogeneity: float | None
    optimistic: bool | None


@dataclass(frozen=True, repr=False)
class Intervals(Displayed, Plotted, Tabular):
    """Intervals of all components and features: iterate over it, or make a data frame of it.

    Parameters
    ----------
    rows : tuple of Interval
        The rows, by component, then feature.
    level : float
        Probability inside each interval.
    average : str
        Which average the fusion took.
    """

    rows: tuple[Interval, ...]
    level: float
    average: str
    meaning: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "meaning", _MEANINGS.get(self.average, ""))

    def __iter__(self) -> Iterator[Interval]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Interval:
        return self.rows[index]

    def _headline(self) -> str:
        return f"{100 * self.level:g} %{f', {self.meaning}' if self.meaning else ''}"

    def _facts(self) -> dict[str, object | None]:
        return {
            f"component {row.component}, {shorten(row.feature, 30)}": _range(row) for row in self.rows[:_SHOWN_ROWS]
        }

    def _blocks(self) -> list[Block | None]:
        columns = [
            Column("Component", lambda row: row.component),
            text_column("Feature", lambda row: f"{row.feature} ({row.unit})" if row.unit else row.feature),
            *(Column(name.capitalize(), attrgetter(name)) for name in ("mean", "low", "high")),
            Column("Sites", attrgetter("n_sites")),
            Column("Heterogeneity", attrgetter("heterogeneity")),
        ]
        return [Table("Intervals", self.rows, columns, "row", self.meaning)]

    def summary(self) -> str:
        """Return the rows as a table of text, the first of them where there are many."""
        title = f"{100 * self.level:g} % intervals{f', {self.meaning}' if self.meaning else ''}"
        shown = self.rows[:_SHOWN_ROWS]
        header = ["component", "feature", "mean", "low", "high", "sites", "heterogeneity", ""]
        lines = [header] + [
            [
                str(row.component),
                row.feature + (f" ({row.unit})" if row.unit else ""),
                *(f"{value:.4g}" for value in (row.mean, row.low, row.high)),
                str(row.n_sites),
                "-" if row.heterogeneity is None else f"{row.heterogeneity:.3g}",
                "optimistic: overlaps" if row.optimistic else "",
            ]
            for row in shown
        ]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        text = [
            "  ".join(
                cell.ljust(width) if column in (1, len(header) - 1) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        more = [f"... {len(self.rows) - len(shown)} more rows"] if len(self.rows) > len(shown) else []
        return "\n".join([title, *text, *more])

    def __str__(self) -> str:
        return self.summary()

    def _charts(self) -> dict[str, Chart | str]:
        if not self.rows:
            return {"forest": "there are no rows"}
        names = [f"component {row.component}, {row.feature}" for row in self.rows]
        means, ends = np.array([row.mean for row in self.rows]), np.array([(row.low, row.high) for row in self.rows])
        title = f"Means with {100 * self.level:g} % intervals"
        return {"forest": partial(draw_intervals, names=names, means=means, intervals=ends, title=title)}

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each component and feature."""
        return {column.name: [getattr(row, column.name) for row in self.rows] for column in fields(Interval)}


def _range(row: Interval) -> str:
    """Return the mean of a row, its ends and its unit."""
    unit = f" {shorten(row.unit, 12)}" if row.unit else ""
    doubt = ", optimistic: overlaps" if row.optimistic else ""
    return f"{row.mean:.4g} ({row.low:.4g} to {row.high:.4g}){unit}{doubt}"


_MEANINGS = {
    "hierarchical": "of the mean of the distribution that the sites' components come from",
    "product": "given all data, sites taken for alike",
    "barycenter": "as wide as one site's: not of the mean over sites",
}


def intervals_of(posterior: Posterior, details: PosteriorDetails, n_sites: Labels, level: float) -> Intervals:
    """Return the intervals of a fused posterior, of a probability `level` inside.

    `n_sites` (G,) are the sites of each component, where the details do not say whose copies were averaged. A level
    that is no probability, and components without means of data (points, categories, products of blocks) are refused.
    """
    if not is_number(level) or not 0 < level < 1:
        raise OptionError("level", f"expected a number between 0 and 1, found {level!r}")
    family = posterior.family
    if not isinstance(family, RandomEffectsFamily):
        raise InputError(f"intervals are of means and proportions, and a {family.name} has none")
    hierarchical = details.get("hierarchical")
    natural = posterior.natural
    heterogeneity: list[float | None] = [None] * posterior.n_components
    if hierarchical is not None:
        dof = np.array([np.inf if value is None else value for value in hierarchical["effective_dof"]])
        # The information of the stored posterior was divided by the factor of LEVEL.
        factors = (quantile_ratio(dof, LEVEL) / quantile_ratio(dof, level)) ** 2
        natural = family.rescaled_location(natural, factors * np.array(hierarchical["interval_share"]))
        heterogeneity = hierarchical["heterogeneity"][family.part_names[0]]
        n_sites = np.array(hierarchical["n_sites"])
    mean, low, high = (values + posterior.origin for values in family.mean_intervals(natural, level))
    overlapping = overlapping_components(posterior)
    names = posterior.features.names or tuple(str(column) for column in range(mean.shape[1]))
    units = posterior.features.units or ("",) * mean.shape[1]
    rows = tuple(
        Interval(
            component,
            name,
            unit,
            float(mean[component, column]),
            float(low[component, column]),
            float(high[component, column]),
            int(n_sites[component]),
            heterogeneity[component],
            None if overlapping is None else bool(overlapping[component]),
        )
        for component in range(posterior.n_components)
        for column, (name, unit) in enumerate(zip(names, units, strict=True))
    )
    return Intervals(rows, float(level), str(details.get("average", {}).get("name", "")))


def overlapping_components(posterior: Posterior) -> NDArray[np.bool_] | None:
    """Return which components overlap with another one (G,); None for families that are no densities of data."""
    densities = posterior.family.plug_in(posterior.natural) if posterior.family.describes_data else None
    if densities is None:
        return None
    return pair_error_bounds(*densities, posterior.shares).max(axis=1) > MAX_PAIR_ERROR


def pair_error_bounds(means: Array, covariances: Array, weights: Array) -> Array:
    """Return bounds (G, G) of the Bayes error between two Gaussians, 0 on the diagonal.

    sqrt(w_i w_j) exp(-d_ij) / (w_i + w_j), with the Bhattacharyya distance d = (m_i - m_j)^T S^-1 (m_i - m_j) / 8 +
    log(|S| / sqrt(|S_i| |S_j|)) / 2 for S = (S_i + S_j) / 2, of means (G, D), covariances (G, D, D) or variances (G,
    D), and weights (G,).
    """
    bounds = np.zeros((len(means), len(means)))
    is_full = covariances.ndim == 3
    log_det = np.linalg.slogdet(covariances)[1] if is_full else np.log(covariances).sum(axis=1)
    for component in range(len(means)):  # one row at a time: a table of G x G matrices has no bound
        middle = 0.5 * (covariances + covariances[component])
        offset = means - means[component]
        if is_full:
            squares = np.sum(offset * np.linalg.solve(middle, offset[:, :, None])[:, :, 0], axis=1)
            log_det_middle = np.linalg.slogdet(middle)[1]
        else:
            squares, log_det_middle = np.sum(offset**2 / middle, axis=1), np.log(middle).sum(axis=1)
        distance = squares / 8.0 + 0.5 * (log_det_middle - 0.5 * (log_det + log_det[component]))
        total = weights + weights[component]
        share = np.sqrt(weights * weights[component]) / np.where(total > 0, total, 1.0)
        bounds[component] = share * np.exp(-distance)
    np.fill_diagonal(bounds, 0.0)
    return bounds
