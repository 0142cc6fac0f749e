"""Distances of the models from their average by group and by layer, before and after matching, and their bar chart.

The distance of a group is, over all arrays that touch it and with a_j the weight and theta_j the parameters of model j,

    sum_j a_j |theta_j - theta|^2 / sum_j a_j |theta_j|^2,        theta = sum_j a_j theta_j,

which is 0 for copies and 1 - sum_j a_j^2 for models of independent parameters of mean zero ("nothing in common").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from consilience.checks import Array
from consilience.drawing.axes import Axes
from consilience.drawing.svg import element, text
from consilience.drawing.words import format_count, format_fixed, shorten
from consilience.networks.methods.weight_matching.state import RUNNING_STATISTICS
from consilience.networks.network import Network
from consilience.networks.summary import distances_by_array, relative_distance
from consilience.networks.symmetry.transport import Transport

MAX_ROWS = 60
"""Groups beyond these get no bar. Bounds the size of the page; chosen by hand."""

_STEP = 34.0
"""Height of a row. Chosen by eye."""


@dataclass(frozen=True)
class GroupSummary:
    """Numbers and distances of one group of units that move together."""

    name: str  # name of the group
    units: tuple[int, ...]  # number of units of each model, in their order
    fused: int  # number of units of the fused network
    shared: int | None = None  # how many of these more than one model has; None where that is not known
    # `after`, `before`: distance of the models from their average with units matched and as they are, as a share
    # of the mean square; None where it is not known.
    after: float | None = None
    before: float | None = None
    parent: str | None = None  # the group whose units its own lie in, as heads have

    @property
    def unit_counts_text(self) -> str:
        """The units of the models in a few words."""
        if len(set(self.units)) <= 1:
            return f"{self.units[0]:,}" + (" each" if len(self.units) > 1 else "") if self.units else "–"
        return ", ".join(f"{count:,}" for count in self.units[:8]) + (" …" if len(self.units) > 8 else "")


def bars(groups: Sequence[GroupSummary], unrelated_distance: float | None) -> Markup:
    """Return bars of the distances of every group; a line marks that of models with nothing in common, if given."""
    drawn = [group for group in groups if group.after is not None or group.before is not None][:MAX_ROWS]
    values = [value for group in drawn for value in (group.before, group.after) if value is not None]
    names = [shorten(group.name, 30) for group in drawn]
    # Room for the label of the line, and a positive length where all distances are zero.
    highest = max([*values, *([] if unrelated_distance is None else [1.08 * unrelated_distance]), 1e-3])
    margins = (max(60.0, 16.0 + 7.4 * max(map(len, names))), 60.0)
    axes = Axes.over((0.0, highest), (float(len(drawn)), 0.0), _STEP * len(drawn), margins=margins)
    parts = axes.names("distance from the average, as a share of the mean square", "group") + axes.x_ticks(6)
    if unrelated_distance is not None:
        parts.append(axes.upright(unrelated_distance))
        parts.append(text(axes.x(unrelated_distance), 16, "nothing in common", "tick", "middle"))
    parts += axes.y_labels([row + 0.5 for row in range(len(drawn))], names, "name")
    for row, group in enumerate(drawn):
        for value, offset, kind in ((group.before, 4.0, "bar-before"), (group.after, 16.0, "bar-after")):
            if value is not None:
                y, length = axes.y(row) + offset, max(axes.x(value) - axes.left, 1.0)
                parts.append(element("rect", x=axes.left, y=y, width=length, height=11, kind=kind))
                parts.append(text(axes.left + length + 6, y + 10, format_fixed(value, 3), "tick clear"))
    return axes.drawing(parts, _description(drawn))


def _description(drawn: Sequence[GroupSummary]) -> str:
    descriptions = [
        f"{shorten(group.name, 40)} "
        + " then ".join(
            f"{format_fixed(value, 3)} {when}"
            for value, when in ((group.before, "before"), (group.after, "after"))
            if value is not None
        )
        for group in drawn[:12]
    ]
    more = f", and {len(drawn) - 12} more" if len(drawn) > 12 else ""
    n_groups = format_count(len(drawn), "group")
    return f"Distances of the models from their average in {n_groups}: {'; '.join(descriptions)}{more}."


@dataclass(frozen=True)
class LayerSummary:
    """Size of one layer, and distances of the models in it."""

    name: str  # name of its arrays without their last part
    entries: int  # number of weights in the fused network
    # Weighted mean squared distance of the aligned models from their average, as a share of their mean square;
    # None where the matching is not known.
    after: float | None
    before: float | None  # the same without moving any unit; None where widths differ


def layers_of(
    networks: Sequence[Network], weights: Array, transports: Sequence[Mapping[str, Transport]]
) -> tuple[LayerSummary, ...]:
    """Return every layer with weights, in the order of the arrays.

    For a layer with weights theta_j in model j, aligned by T_j (the identity before matching), and weights a_j of sum
    1, the distance is

        sum_j a_j |T_j theta_j - theta|^2 / sum_j a_j |T_j theta_j|^2,        theta = sum_j a_j T_j theta_j,

    summed over the arrays of the layer; running statistics of normalisation are left out. A layer of zeros has 0.
    """
    after, before = distances_by_array(networks, weights, transports)
    keys_of_layer: dict[str, list[str]] = {}
    for key in after:
        if not key.endswith(RUNNING_STATISTICS):  # running means and variances are no weights
            keys_of_layer.setdefault(key.rpartition(".")[0] or key, []).append(key)
    return tuple(
        LayerSummary(
            name,
            sum(after[key].size for key in keys),
            relative_distance(after, keys),
            None if before is None else relative_distance(before, keys),
        )
        for name, keys in keys_of_layer.items()
    )
