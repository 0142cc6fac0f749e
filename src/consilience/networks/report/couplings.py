"""Heat maps of couplings: permutations and soft transport plans of each group of units.

A row of a map is a fused unit, a column a unit of a model; the shade is the share of the fused unit that came from
there, p_gi = Pi_gi / sum_i Pi_gi for a soft plan Pi (k, k_i). Larger groups are drawn in blocks of neighbouring units,
of which a cell shows the mean over its rows of the sum over its columns. Columns of a soft plan are ordered by the
fused unit that received most of each, so that a sharp diagonal is a permutation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from consilience.checks import Array, Labels
from consilience.drawing.cells import BLANK, cell_map
from consilience.drawing.svg import drawing, element, text
from consilience.drawing.words import format_count, format_fixed, shorten
from consilience.matching.result import Matching

if TYPE_CHECKING:
    from consilience.networks.landscape.alignment import CouplingDiagnostics

MAX_MAPS = 48
"""Maps beyond these are not drawn. Bounds the size of the page; chosen by hand."""

SHARE_BOUNDS = (0.02, 0.1, 0.25, 0.5, 0.75)
"""Shares from which on each shade is used; less than the first is left blank. Chosen by eye."""

SHARE_SHADES = (1, 3, 5, 6, 8)
"""Shade from each of the bounds on, out of `N_SHADES`."""

_MAX_SIDE, _MIN_SIDE = 64, 12
"""Most and fewest cells of a side of a map, as far as its group has as many units. Chosen by eye."""

_MAX_CELLS = 40_000
"""Cells of all maps together, as far as `_MIN_SIDE` allows: 0.3 MB at the very worst."""

_MAP_SIZE, _LEFT, _TOP, _BOTTOM = 190.0, 40.0, 8.0, 38.0
"""Longer side of a map, and margins around it. Chosen by eye."""


@dataclass(frozen=True, eq=False)
class Coupling:
    """How the units of one group of one model became fused units."""

    # `group`, `model`: names of the group and of the model.
    group: str
    model: str
    # `n_units`, `n_fused`: numbers of units of the model and of the fused network.
    n_units: int
    n_fused: int
    n_unmoved: int | None  # how many of the model's units kept their number; None for a soft coupling
    # (R, C), mean share of the fused units of each block of rows that came from each block of columns. None where
    # all units kept their numbers, and for maps beyond `MAX_MAPS`.
    shares: Array | None
    diagnostics: CouplingDiagnostics | None  # how close a soft coupling is to a permutation; None for a hard matching
    n_sign_flips: int = 0  # how many of the model's units changed sign

    @property
    def is_moved(self) -> bool:
        """Whether any unit has another number or sign, or the number of units is another."""
        return (
            self.n_unmoved is None
            or self.n_unmoved < self.n_units
            or self.n_units != self.n_fused
            or self.n_sign_flips > 0
        )

    @property
    def block_shape(self) -> tuple[int, int]:
        """How many fused units, and how many of the model's, a cell stands for."""
        if self.shares is None:
            return 1, 1
        return math.ceil(self.n_fused / self.shares.shape[0]), math.ceil(self.n_units / self.shares.shape[1])

    @property
    def is_blocked(self) -> bool:
        """Whether a cell stands for more than one unit."""
        return self.block_shape != (1, 1)


def couplings_of(matching: Mapping[str, Matching], models: Sequence[str]) -> tuple[Coupling, ...]:
    """Return the coupling of every group and model, in this order."""
    matchings = [
        _GroupMatching(group, model, group_matching, site)
        for group, group_matching in matching.items()
        for site, model in enumerate(models)
        if group_matching.of_site(site).size
    ]
    drawn_matchings = [
        group_matching for group_matching in matchings if group_matching.is_soft or not group_matching.is_identity
    ][:MAX_MAPS]
    # Side^2 cells each: as fine as the bound on all cells of the page allows.
    side = max(_MIN_SIDE, min(_MAX_SIDE, math.isqrt(_MAX_CELLS // max(len(drawn_matchings), 1))))
    return tuple(
        group_matching.coupling(side if any(group_matching is drawn for drawn in drawn_matchings) else None)
        for group_matching in matchings
    )


@dataclass(frozen=True, eq=False)
class _GroupMatching:
    """The matching of one group of one model: which fused unit each of its units became."""

    group: str
    model: str
    matching: Matching
    number: int

    @property
    def labels(self) -> Labels:
        return self.matching.of_site(self.number)

    @property
    def is_soft(self) -> bool:
        # A plan that is a permutation in every row is drawn as the hard matching that it is.
        return self.matching.coupling is not None and bool(((self._plan > 0).sum(axis=1) > 1).any())

    @property
    def is_identity(self) -> bool:
        whole = len(self.labels) == self.matching.n_components and self.n_sign_flips == 0
        return whole and np.array_equal(self.labels, np.arange(len(self.labels)))

    @property
    def n_sign_flips(self) -> int:
        """How many units changed sign."""
        signs = self.matching.signs
        return 0 if signs is None else int((signs[self.matching.owner == self.number] < 0).sum())

    @property
    def _plan(self) -> Array:
        """The plan Pi (k, k_i): how much of every fused unit is from each of the model's."""
        assert self.matching.coupling is not None  # noqa: S101  (narrows the type)
        # Rows of the coupling are the units of all models, one model after the other.
        start, end = np.searchsorted(self.matching.owner, [self.number, self.number + 1])
        return self.matching.coupling[start:end].T

    def coupling(self, side: int | None) -> Coupling:
        """Return the coupling, with a map of at most `side` cells each way; without a map for None."""
        n_fused, labels = self.matching.n_components, self.labels
        n_unmoved, diagnostics = None, None
        if self.is_soft:
            from consilience.networks.landscape.alignment import coupling_diagnostics  # here, since it needs torch

            plan = self._plan
            diagnostics, row_mass = coupling_diagnostics(plan), plan.sum(axis=1, keepdims=True)
            # (k, k_i), rows of sum 1, columns ordered by the fused unit that has most of each
            row_shares = (plan / np.where(row_mass > 0, row_mass, 1.0))[:, np.argsort(labels, kind="stable")]
            row, column = np.nonzero(row_shares)
            share = row_shares[row, column]
        else:
            n_unmoved = int((labels == np.arange(len(labels))).sum())
            column = np.flatnonzero(labels >= 0)
            row, share = labels[column], np.ones(len(column))
        shares = None if side is None else _block_means(row, column, share, n_fused, len(labels), side)
        return Coupling(self.group, self.model, len(labels), n_fused, n_unmoved, shares, diagnostics, self.n_sign_flips)


def _block_means(row: Labels, column: Labels, value: Array, rows: int, columns: int, side: int) -> Array:
    """Return the mean over the rows of each block of the sum over its columns, in at most `side` blocks each way.

    Rows, columns and values (n,) are those of the entries of a matrix (rows, columns) that are not zero.
    """
    block_rows, block_columns = math.ceil(rows / side), math.ceil(columns / side)
    n_blocks = math.ceil(rows / block_rows), math.ceil(columns / block_columns)
    total = np.bincount(
        (row // block_rows) * n_blocks[1] + column // block_columns, weights=value, minlength=n_blocks[0] * n_blocks[1]
    )
    # The last block of rows may be smaller than the others.
    rows_in_block = np.diff(np.minimum(np.arange(n_blocks[0] + 1) * block_rows, rows))
    return np.asarray(total.reshape(n_blocks) / rows_in_block[:, None], dtype=np.float64)


def coupling_map(coupling: Coupling, shares: Array) -> Markup:
    """Return the heat map of one coupling."""
    bound_index = np.searchsorted(SHARE_BOUNDS, shares, side="right") - 1  # (R, C); -1 takes the last shade, BLANK
    shades = np.append(np.array(SHARE_SHADES), BLANK)[bound_index]
    n_longest = max(coupling.n_units, coupling.n_fused)
    map_width, map_height = (max(60.0, _MAP_SIZE * count / n_longest) for count in (coupling.n_units, coupling.n_fused))
    map_bottom = _TOP + map_height
    last = str(coupling.n_units - 1) if coupling.n_unmoved is not None else ""
    upright = f"translate({_LEFT - 20:.0f} {_TOP + map_height / 2:.0f}) rotate(-90)"
    parts = [
        cell_map(shades, _LEFT, _TOP, map_width, map_height),
        element("rect", x=_LEFT, y=_TOP, width=map_width, height=map_height, kind="border"),
        text(_LEFT - 6, _TOP + 11, "0", "tick", "end"),
        text(_LEFT - 6, map_bottom, str(coupling.n_fused - 1), "tick", "end"),
        text(_LEFT, map_bottom + 15, "0" if coupling.n_unmoved is not None else "", "tick"),
        text(_LEFT + map_width, map_bottom + 15, last, "tick", "end"),
        element("text", "fused unit", transform=upright, kind="axis", text_anchor="middle"),
        text(_LEFT + 0.5 * map_width, map_bottom + 31, "unit of the model", "axis", "middle"),
    ]
    return drawing(parts, map_bottom + _BOTTOM, _description(coupling, shares), _LEFT + max(map_width, 120.0) + 6)


def _description(coupling: Coupling, shares: Array) -> str:
    sizes = f"Group {shorten(coupling.group, 40)}: {format_count(coupling.n_units, 'unit')} of "
    sizes += f"{shorten(coupling.model, 40)} against {format_count(coupling.n_fused, 'fused unit')}, in "
    sizes += f"{shares.shape[0]} × {shares.shape[1]} cells. "
    if coupling.n_unmoved is not None:
        return f"{sizes}{format_count(coupling.n_unmoved, 'unit')} kept their number."
    n_partners = coupling.diagnostics.effective_partners if coupling.diagnostics is not None else math.nan
    return f"{sizes}A fused unit is made of {format_fixed(n_partners, 2)} units in effect."


def share_legend() -> tuple[tuple[int, str], ...]:
    """Return every shade with the shares that it stands for."""
    ends = [f"{low:.0%} to {high:.0%}".replace("%", " %") for low, high in pairwise(SHARE_BOUNDS)]
    return tuple(zip(SHARE_SHADES, [*ends, f"{SHARE_BOUNDS[-1]:.0%} or more".replace("%", " %")], strict=True))
