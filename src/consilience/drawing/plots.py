"""Plots of values on a matplotlib axis, from plain values; the pages of reports are drawn without matplotlib.

Every function draws on an axis that it is given. Names of sites come from files of others: they are shortened, printed
with control characters escaped, and never read as mathematical text, which matplotlib does between dollar signs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from consilience.catalogue import suggestion
from consilience.checks import Array, Labels
from consilience.drawing.words import printable, shorten
from consilience.errors import OptionError, UnsupportedError

Chart = Callable[[Any], None]
"""Draws on a matplotlib axis."""

MAX_CELL_LABELS = 400
"""Cells of a matching up to which each has its number. Chosen by eye."""

MAX_ROWS = 60
"""Sites, coefficients or candidates that a plot has a row for; more are counted in its title. Chosen by eye."""

HALF_OF_A_PLANE = float(np.sqrt(2.0 * np.log(2.0)))
"""Radius, in standard deviations, of the ellipse that holds half of a normal law in the plane: sqrt(chi2_2^-1(1/2))."""

HALF_OF_A_LINE = 0.6744897501960817
"""Standard deviations to either side of the mean that hold half of a normal law: the 3/4 quantile."""

_FUSED, _LOCAL, _SOFT = "#1f5fa8", "#b3471d", "#8a929c"
_COLOURS = (
    "#1f5fa8", "#b3471d", "#18794e", "#8d3f9c", "#806200", "#b0305c", "#0b7180", "#6b5b4d", "#4f52c4", "#55731a",
)  # fmt: skip
"""Those of the reports."""


class Plotted:
    """A value that can be drawn."""

    __slots__ = ()

    @abstractmethod
    def _charts(self) -> Mapping[str, Chart | str]:
        """Return by name what draws it, or why that cannot be drawn; the first that can be is the default."""

    def plot(self, kind: str | None = None, ax: Any = None) -> Any:
        """Draw it on a matplotlib axis.

        Parameters
        ----------
        kind : str, optional
            What to draw; an error names what there is. Default: the first that can be drawn.
        ax : matplotlib.axes.Axes, optional
            The axis to draw on. Default: that of a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        OptionError
            For a kind that does not exist, or that cannot be drawn of this value, saying why.
        UnsupportedError
            Without matplotlib.
        """
        charts = self._charts()
        drawable = [name for name, chart in charts.items() if not isinstance(chart, str)]
        if kind is None and not drawable:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in charts.items())
            raise OptionError("kind", f"nothing of this {type(self).__name__} can be drawn ({reasons})")
        name = drawable[0] if kind is None else kind
        if name not in charts:
            text = f"there is no plot {kind!r} of a {type(self).__name__}{suggestion(kind, charts)}"
            raise OptionError("kind", f"{text}; there are {', '.join(charts)}")
        chart = charts[name]
        if isinstance(chart, str):
            others = f"; there are {', '.join(drawable)}" if drawable else ""
            raise OptionError("kind", f"{name!r} cannot be drawn: {chart}{others}")
        if ax is None:
            ax = _new_axis()
        chart(ax)
        return ax


def _new_axis() -> Any:
    """Return the axis of a new figure."""
    try:
        from matplotlib import pyplot  # here, so that the library starts, and works, without it
    except ModuleNotFoundError as error:
        remedy = "pip install 'consilience[plots]', or write the page with `fusion.report(path)`, which needs nothing"
        raise UnsupportedError("", "plots need matplotlib, which is not installed", remedy, "E-EXTRA") from error
    return pyplot.subplots(layout="constrained")[1]


def label(text: object, limit: int = 30) -> str:
    """Return a name as an axis shows it: shortened, printable, and no mathematical text."""
    return shorten(str(text), limit).replace("$", r"\$")


def draw_matching(ax: Any, labels: Labels, owner: Labels, n_components: int, names: Sequence[str]) -> None:
    """Draw the matching: a row for each site, a column for each fused component, numbers of local components in cells.

    `labels` and `owner` (L,) are the fused component, -1 for none, and the site of each local component. Without names,
    sites are "site 0", ...
    """
    n_sites = int(owner.max()) + 1 if owner.size else 0
    counts = np.zeros((n_sites, n_components))
    assigned = labels >= 0
    np.add.at(counts, (owner[assigned], labels[assigned]), 1)
    ax.imshow(np.minimum(counts, 2.0), aspect="auto", cmap="Blues", vmin=0.0, vmax=3.0, interpolation="nearest")
    if counts.size <= MAX_CELL_LABELS:
        number_in_site = np.arange(len(labels)) - np.searchsorted(owner, owner)
        cells: dict[tuple[int, int], list[str]] = {}
        for row, column, number in zip(owner[assigned], labels[assigned], number_in_site[assigned], strict=True):
            cells.setdefault((int(row), int(column)), []).append(str(number))
        for (row, column), numbers in cells.items():
            ax.text(column, row, ", ".join(numbers), ha="center", va="center", fontsize="small")
    rows = range(n_sites) if n_sites <= MAX_ROWS else ()
    ax.set_yticks(list(rows), [label(names[row] if row < len(names) else f"site {row}") for row in rows])
    if n_components <= MAX_ROWS:
        ax.set_xticks(range(n_components))
    ax.set_xlabel("fused component")
    dropped = int(np.sum(~assigned))
    ax.set_title("Matching" + (f" ({dropped:,} dropped)" if dropped else ""))


def draw_components(
    ax: Any,
    kind: str,
    axes: tuple[str, str],
    fused: Sequence[tuple[int, tuple[float, float], tuple[float, float, float]]],
    local: Sequence[tuple[int, tuple[float, float], tuple[float, float, float]]],
) -> None:
    """Draw components of a number, centre and covariance (xx, xy, yy): an ellipse, or a bar, holds half of each.

    `kind` is ``line`` for one dimension, else ``data`` or ``projected``; `axes` are the names of the coordinates. The
    fused components are thick; the local ones thin, in the colour of what they became, grey for dropped ones.
    """
    from matplotlib.patches import Ellipse

    for components, width in ((local, 0.8), (fused, 2.4)):
        for number, (x, y), (xx, xy, yy) in components:
            colour = _COLOURS[number % len(_COLOURS)] if number >= 0 else _SOFT
            if kind == "line":
                half = HALF_OF_A_LINE * xx**0.5
                ax.plot([x - half, x + half], [y, y], color=colour, linewidth=2 * width, alpha=0.8)
            # Semi-axes of the ellipse are along the eigenvectors, the longer one last.
            lengths, directions = np.linalg.eigh(np.array([[xx, xy], [xy, yy]]))
            ax.plot(x, y, marker="." if width < 1 else "o", color=colour, markersize=3 if width < 1 else 5)
            if kind == "line" or lengths[1] <= 0:
                continue
            sizes = 2.0 * HALF_OF_A_PLANE * np.sqrt(np.maximum(lengths, 0.0))
            angle = float(np.degrees(np.arctan2(directions[1, 1], directions[0, 1])))
            ellipse = Ellipse((x, y), sizes[1], sizes[0], angle=angle, fill=False, edgecolor=colour, linewidth=width)
            ax.add_patch(ellipse)
    for number, (x, y), _ in fused:
        ax.annotate(str(number), (x, y), textcoords="offset points", xytext=(5, 4), fontweight="bold")
    ax.autoscale_view()
    title = "The components: fused (thick) and local (thin)" if local else "The components"
    ax.set(xlabel=label(axes[0], 60), ylabel=label(axes[1], 60), title=title)


def draw_number(ax: Any, values: Mapping[int, float], chosen: int, what: str) -> None:
    """Draw what supports each number of components, the chosen one marked."""
    numbers = sorted(values)
    if what == "probability":
        ax.bar(numbers, [values[n] for n in numbers], color=[_FUSED if n == chosen else _SOFT for n in numbers])
    else:
        ax.plot(numbers, [values[n] for n in numbers], marker="o", color=_FUSED)
        ax.axvline(chosen, color=_LOCAL, linestyle="--")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(xlabel="number of components", ylabel=what, title=f"How many components: {chosen}")


def draw_scores(ax: Any, scores: Mapping[str, float], chosen: str | None, criterion: str | None) -> None:
    """Draw candidates by their scores, the least first, the chosen one marked; those not finite are left out."""
    ranked = sorted(((name, score) for name, score in scores.items() if np.isfinite(score)), key=lambda one: one[1])
    shown = ranked[:MAX_ROWS]
    colours = [_FUSED if name == chosen else _SOFT for name, _ in shown]
    ax.barh(range(len(shown)), [score for _, score in shown], color=colours)
    ax.set_yticks(range(len(shown)), [label(name) for name, _ in shown])
    ax.invert_yaxis()
    ax.set_xlabel(label(criterion or "score", 80))
    more = f" (the best {MAX_ROWS} of {len(ranked):,})" if len(ranked) > MAX_ROWS else ""
    ax.set_title(f"Candidates{more}: less is better")


def draw_intervals(
    ax: Any,
    names: Sequence[str],
    means: Array,
    intervals: Array | None,
    title: str,
    marked: Sequence[bool] | None = None,
) -> None:
    """Draw rows of names with their means (n,) and intervals (n, 2), nan for none; those marked (n,) stand out."""
    n_shown = min(len(names), MAX_ROWS)
    for row in range(n_shown):
        is_marked = marked is not None and marked[row]
        colour = _LOCAL if is_marked else _FUSED
        if intervals is not None and np.all(np.isfinite(intervals[row])):
            ax.plot(intervals[row], [row, row], color=colour, linewidth=2.2 if is_marked else 1.4)
        ax.plot(means[row], row, marker="D" if is_marked else "s", color=colour)
    ax.axvline(0.0, color=_SOFT, linewidth=0.8)
    ax.set_yticks(range(n_shown), [label(name, 40) for name in names[:n_shown]])
    ax.set_ylim(n_shown - 0.5, -0.5)
    more = f" (the first {MAX_ROWS} of {len(names):,})" if len(names) > MAX_ROWS else ""
    ax.set_title(label(title, 90) + more)


def draw_funnel(
    ax: Any, names: Sequence[str], means: Array, errors: Array, centre: float, quantile: float, title: str
) -> None:
    """Draw estimates (n,) over their standard errors (n,), and the funnel in which they lie where sites are alike."""
    widest = 1.05 * float(errors.max())
    ax.fill_betweenx([0.0, widest], [centre, centre - quantile * widest], [centre, centre + quantile * widest],
                     color=_SOFT, alpha=0.25)  # fmt: skip
    ax.axvline(centre, color=_SOFT, linewidth=0.8)
    ax.plot(means, errors, linestyle="", marker="s", color=_FUSED)
    for name, mean, error in list(zip(names, means, errors, strict=True))[:MAX_ROWS]:
        ax.annotate(label(name, 16), (mean, error), textcoords="offset points", xytext=(4, 3), fontsize=7)
    ax.set_ylim(widest, 0.0)
    ax.set(xlabel="estimate", ylabel="standard error", title=label(title, 90))


def draw_curve(ax: Any, t: Array, curve: Array, name: str) -> None:
    """Draw a curve between two networks, and the straight line between its ends, above which it is a barrier."""
    finite = np.isfinite(curve)
    ax.plot(t[finite], curve[finite], color=_FUSED, marker="o", markersize=3)
    if finite[0] and finite[-1]:
        ax.plot([0.0, 1.0], [curve[0], curve[-1]], color=_SOFT, linestyle="--")
    place = "place on the line: 0 is the first network, 1 the second"
    ax.set(xlabel=place, ylabel=label(name), title="Loss barrier")


def draw_history(ax: Any, history: Array) -> None:
    """Draw the objective after each step."""
    ax.plot(np.arange(1, len(history) + 1), history, color=_FUSED, marker="o", markersize=3)
    ax.set(xlabel="step", ylabel="objective", title="Descent of the objective")


def draw_grid(ax: Any, alphas: Array, betas: Array, grid: Array, markers: Sequence[tuple[str, float, float]]) -> None:
    """Draw the values of a plane through three networks, with names where they stand."""
    ax.contourf(alphas, betas, np.where(np.isfinite(grid), grid, np.nan), levels=14, cmap="Blues")
    for name, x, y in markers:
        ax.plot(x, y, marker="o", color=_LOCAL)
        ax.annotate(label(name), (x, y), textcoords="offset points", xytext=(5, 4))
    ax.set_title("Plane through three networks")


def draw_bars(ax: Any, names: Sequence[str], pairs: Mapping[str, Sequence[float]], title: str, what: str) -> None:
    """Draw bars of several series side by side, a group for each name."""
    shown = list(names[:MAX_ROWS])
    height = 0.8 / len(pairs)
    for place, (series, values) in enumerate(pairs.items()):
        ys = np.arange(len(shown)) + place * height
        ax.barh(ys, np.nan_to_num(np.asarray(values[: len(shown)], dtype=float)), height, label=printable(series),
                color=(_SOFT, _FUSED)[place % 2] if len(pairs) > 1 else _FUSED)  # fmt: skip
    ax.set_yticks(np.arange(len(shown)) + 0.4 - height / 2, [label(name) for name in shown])
    ax.invert_yaxis()
    ax.set(xlabel=what, title=title)
    if len(pairs) > 1:
        ax.legend()
