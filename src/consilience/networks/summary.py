"""Match quality of units, by group, and the summary of a fusion of networks for the command line.

For the arrays theta that touch a group, with models i of weight a_i and their weighted mean,

    distance = sum_theta sum_i a_i |theta_i - mean|^2 / sum_theta sum_i a_i |theta_i|^2.

It is computed from the transports alone, so that every method is judged alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.core.verdict import Verdict
from consilience.drawing.words import format_count, printable
from consilience.networks.methods.weight_matching.state import RUNNING_STATISTICS
from consilience.networks.network import Network, identity_transports, square_sum
from consilience.networks.symmetry.transport import Transport

if TYPE_CHECKING:
    from consilience.networks.fusion import NetworkFusion

MAX_GROUPS = 8
"""Groups that have a line; of more, the number is stated. Chosen by hand for a terminal."""

MAX_CANDIDATES = 6
"""Candidates that have a line; of more, the number is stated. Chosen by hand for a terminal."""

_STALE_STATISTICS = (
    "its statistics of batch normalisation are averages, which fit no network: measure them again with "
    "consilience.repair, given unlabeled inputs or moments from the sites"
)
_OTHER_UNITS = (
    "gamma and beta of its batch normalisation are not the models', so that training mode is another network: write "
    "them at the models' own with consilience.networks.repair.anchor"
)


def summary_lines(
    fusion: NetworkFusion,
    what: str = "networks",
    more: Sequence[str] = (),
    is_comparable: Callable[[str], bool] = lambda _group: True,
) -> list[str]:
    """Return the lines of a summary after the verdict: widths, match quality by group, open problems.

    `what` names the kind of model, in the plural; `more` are lines after the objective; `is_comparable` says whether
    the distances between the units of a group, given by name, mean something.
    """
    method = fusion.provenance["method"]
    lines = [] if fusion.judgement is None else list(_candidates(fusion.judgement))
    if fusion.single_site is not None:  # how networks were matched tells nothing of it
        return [*lines, *(f"note: {printable(note)}" for note in fusion.notes[:MAX_GROUPS])]
    if fusion.keeps_models or not fusion.groups:
        order = "side by side" if fusion.keeps_models else "units as they are numbered"
        lines.append(f"{len(fusion.inputs)} {what}, {order} (method {method})")
    else:
        lines.append(f"{_widths(fusion, what)} (method {method})")
        lines += _quality_table(fusion, is_comparable)
    if fusion.history.size and math.isfinite(fusion.objective):
        steps = format_count(fusion.history.size, "step")
        lines.append(f"objective {fusion.objective:.6g} after {steps}: {fusion.status.value}")
    lines += more
    if fusion.details.get("proved"):
        lines.append("symmetry: proved")
    if "aligned" in fusion.details:
        stated: Mapping[str, object] = fusion.details
        how = "merged with units aligned" if stated["aligned"] else "merged as they are"
        settings = (f"{word}{stated[key]}" for key, word in _MERGE_SETTINGS.items() if key in stated)
        lines.append(", ".join([how, *settings]))
    lines += [f"note: {printable(note)}" for note in fusion.notes[:MAX_GROUPS]]
    lines += _repairs(fusion)
    return lines


def _widths(fusion: NetworkFusion, what: str) -> str:
    """Return how many units the models have, and the fused network; those inside others are not counted."""
    outer_groups = [name for name, group in fusion.network.symmetry.by_name.items() if group.parent is None]
    units = _range([sum(local.network.units[name] for name in outer_groups) for local in fusion.inputs], " to ")
    return (
        f"{len(fusion.inputs)} {what} with {units} units each in {format_count(len(fusion.groups), 'group')}"
        f" -> {sum(fusion.groups[name] for name in outer_groups)} units"
    )


def _range(counts: Sequence[int], to: str) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)}{to}{max(counts)}"


def _candidates(verdict: Verdict) -> Iterator[str]:
    """Yield the candidates of a choice with their scores, the best first."""
    ranked = sorted(verdict.candidates.items(), key=lambda entry: entry[1])
    width = max((len(printable(name)) for name, _ in ranked[:MAX_CANDIDATES]), default=0)
    for name, score in ranked[:MAX_CANDIDATES]:
        yield f"  {printable(name):{width}}  {score:.4f}"
    if len(ranked) > MAX_CANDIDATES:
        yield f"  and {len(ranked) - MAX_CANDIDATES} more"


_MERGE_SETTINGS = {"structure": "", "prior": "prior ", "shrinkage": "shrinkage ", "masked": "parameters in a mask: "}


def _quality_table(fusion: NetworkFusion, is_comparable: Callable[[str], bool]) -> list[str]:
    """Return a line for each of the first groups: units before and after, how many are shared, distance."""
    rows = [("group", "units", "fused", "shared", "distance")]
    for name in list(fusion.groups)[:MAX_GROUPS]:
        quality = fusion.quality[name]
        local_widths = _range([local.network.units[name] for local in fusion.inputs], "-")
        before = "" if quality.before is None else f"{quality.before:.3f} -> "
        distance = f"{before}{quality.distance:.3f}" if is_comparable(name) else ""
        rows.append((printable(name), local_widths, str(quality.units), str(quality.shared), distance))
    n_columns = 5 if any(row[4] for row in rows[1:]) else 4  # without distances where none is comparable
    columns = [max(len(row[column]) for row in rows) for column in range(n_columns)]
    aligned = [[f"{cell:>{width}}" for cell, width in zip(row[1:n_columns], columns[1:], strict=True)] for row in rows]
    lines = [f"  {row[0]:{columns[0]}}  " + "  ".join(cells) for row, cells in zip(rows, aligned, strict=True)]
    more = len(fusion.groups) - MAX_GROUPS
    return [*lines, f"  and {more} more groups"] if more > 0 else lines


def _repairs(fusion: NetworkFusion) -> list[str]:
    """Return whether layers were fitted, and what should still be done."""
    details = fusion.details
    lines = [f"refit: {printable(str(details['refit']))}"] if "refit" in details else []
    if fusion.repaired is not None and fusion.repaired != details.get("refit"):
        lines.append(f"repaired: {printable(fusion.repaired)}")
    lines += [f"warning: {printable(problem)}" for problem in fusion.untrained_networks]
    if fusion.has_averaged_statistics:
        lines.append(f"warning: {_STALE_STATISTICS}")
    if fusion.scales_twice_in_training:
        lines.append(f"warning: {_OTHER_UNITS}")
    return lines


@dataclass(frozen=True)
class GroupQuality:
    """Match quality of the units of one group."""

    units: int  # number of fused units
    shared: int  # number of fused units that more than one model has
    # Weighted mean squared distance of the aligned models from their average, over all arrays that touch the
    # group, relative to their mean square: 0 for copies; 1 - sum a_i^2 for models that have nothing in common.
    distance: float
    before: float | None  # the same with units as the models number them; None where widths differ


def match_quality(
    networks: Sequence[Network], weights: Array, transports: Sequence[Mapping[str, Transport]]
) -> dict[str, GroupQuality]:
    """Return the match quality of every group.

    `weights` (n_models,) sum to 1; `transports` are those of the units of every model and group.
    """
    symmetry = networks[0].symmetry
    after, before = distances_by_array(networks, weights, transports)
    quality = {}
    for name in symmetry.by_name:
        # Statistics of batch normalisation describe data, not units, and are of another scale.
        arrays = {place.array for place in symmetry.places(name) if place.array in after}
        # In one order, so that the sum has the same bits whatever the hash seed.
        keys = sorted(key for key in arrays if not key.endswith(RUNNING_STATISTICS))
        n_owners = sum((model_transports[name].owned for model_transports in transports), start=np.zeros(()))  # (K,)
        quality[name] = GroupQuality(
            transports[0][name].width,
            int((n_owners > 1).sum()),
            relative_distance(after, keys),
            None if before is None else relative_distance(before, keys),
        )
    return quality


class ArrayDistance(NamedTuple):
    """How far one array of the models is from its average."""

    distance: float  # weighted mean squared distance
    mean_square: float  # weighted mean square
    size: int  # entries


def distances_by_array(
    networks: Sequence[Network], weights: Array, transports: Sequence[Mapping[str, Transport]]
) -> tuple[dict[str, ArrayDistance], dict[str, ArrayDistance] | None]:
    """Return the distances of all arrays with units moved, and as the models number them; None where widths differ."""
    after = _distances([n.move(t) for n, t in zip(networks, transports, strict=True)], weights)
    if any(dict(network.units) != dict(networks[0].units) for network in networks):
        return after, None
    return after, _distances([n.move(identity_transports(n.units)) for n in networks], weights)


def _distances(models: Sequence[Mapping[str, AnyArray]], weights: Array) -> dict[str, ArrayDistance]:
    def mean_square(arrays: Sequence[AnyArray]) -> float:
        return sum(weight * square_sum(values) for weight, values in zip(weights.tolist(), arrays, strict=True))

    distances = {}
    for key in models[0]:
        arrays = [model[key] for model in models]
        weighted = [weight * values for weight, values in zip(weights.tolist(), arrays, strict=True)]
        mean = sum(weighted[1:], start=weighted[0])
        gap = mean_square([values - mean for values in arrays])
        distances[key] = ArrayDistance(gap, mean_square(arrays), math.prod(arrays[0].shape))
    return distances


def relative_distance(distances: Mapping[str, ArrayDistance], keys: Sequence[str]) -> float:
    """Return the squared distance relative to the mean square, over some arrays; 0 where these are zero."""
    total = sum(distances[key].mean_square for key in keys)
    return sum(distances[key].distance for key in keys) / total if total else 0.0
