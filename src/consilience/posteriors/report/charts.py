"""Charts of components: the criterion over their number, and their entropies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from consilience.core.findings import PathPoint
from consilience.drawing.axes import Axes
from consilience.drawing.curves import curve
from consilience.drawing.svg import colour_class, element, line
from consilience.drawing.words import format_count, format_fixed, format_number
from consilience.posteriors.report.members import ComponentSummary

MAX_DOTS = 600
"""With more local components than these, boxes and ranges stand for dots. Bounds the size of the page; by hand."""

_MAX_ROWS = 60
"""Components beyond these get no row. Bounds the size of the page; chosen by hand."""

_STEP = 24.0
"""Height of a row. Chosen by eye."""


def path_curve(points: Sequence[PathPoint], chosen_number: int, measure: str) -> Markup:
    """Return the criterion, or the cost, against the number of components, with the chosen number marked."""
    xs, ys = [point.n_components for point in points], [point.value for point in points]
    chosen_index = next((i for i, x in enumerate(xs) if x == chosen_number), None)
    ends = f"from {format_number(ys[0])} at {xs[0]} to {format_number(ys[-1])} at {xs[-1]}"
    alt = f"The {measure} against the number of components, {ends}; "
    alt += f"{chosen_number} was chosen" + (
        "." if chosen_index is None else f", where it is {format_number(ys[chosen_index])}."
    )
    return curve(xs, ys, "number of components", measure, alt, chosen_index=chosen_index)


def entropy_chart(components: Sequence[ComponentSummary]) -> Markup:
    """Return, for each fused component, its entropy as a diamond and those of the local ones behind it as dots.

    Components without an entropy have no row. With more than `MAX_DOTS` local ones, a line from the least to the
    largest and a box between the quartiles stand for the dots of each row.
    """
    drawn = [component for component in components if component.entropy is not None][:_MAX_ROWS]
    values = np.array(
        [v for component in drawn for v in (component.entropy, *component.local_entropies)], dtype=np.float64
    )
    rows = [number + 0.5 for number in range(len(drawn))]
    value_range = (float(values.min()), float(values.max()))
    axes = Axes.over(value_range, (float(len(drawn)), 0.0), _STEP * len(drawn), margins=(64.0, 12.0), inset=(12.0, 0.0))
    parts = axes.names("entropy in nats; left is surer", "component") + axes.x_ticks(7)
    parts += axes.rows(rows, [str(component.number) for component in drawn])
    draws_dots = sum(len(component.local_entropies) for component in drawn) <= MAX_DOTS
    n_surer = 0
    for row, component in zip(rows, drawn, strict=True):
        local_entropies, colour = np.array(component.local_entropies), colour_class(component.number)
        if draws_dots:
            parts += axes.dots(((value, row) for value in local_entropies.tolist()), 4, f"dot {colour}")
        elif local_entropies.size:
            y, quantiles = axes.y(row), np.quantile(local_entropies, [0.0, 0.25, 0.75, 1.0]).tolist()
            low, first, third, high = map(axes.x, quantiles)
            parts.append(line(low, y, high, y, f"range {colour}"))
            parts.append(element("rect", x=first, y=y - 5, width=third - first, height=10, kind=f"box {colour}"))
        entropy = component.entropy
        assert entropy is not None  # noqa: S101  (narrows the type; rows without one are left out)
        parts.append(axes.diamond((entropy, row), 7.5, f"diamond {colour}"))
        n_surer += bool(local_entropies.size) and entropy < float(np.median(local_entropies))
    n_compared = sum(bool(component.local_entropies) for component in drawn)
    alt = f"Entropies of {format_count(len(drawn), 'fused component')} and of the local components behind them, "
    alt += f"from {format_fixed(float(values.min()), 1)} to {format_fixed(float(values.max()), 1)} nats. "
    alt += f"{n_surer} of {n_compared} fused components are surer than the median of their local ones."
    return axes.drawing(parts, alt)
