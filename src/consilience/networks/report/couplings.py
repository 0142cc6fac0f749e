"""Who became whom in each group of units: permutations and soft couplings as heat maps.

A row of a map is a fused unit (or some neighbouring ones), a column a unit of a model; the shade is the share of the
fused unit that came from there.
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
from consilience.drawing.cells import BLANK, cells
from consilience.drawing.svg import drawing, element, text
from consilience.drawing.words import counted, fixed, shortened
from consilience.matching.result import Matching

if TYPE_CHECKING:
    from consilience.networks.landscape.couplings import CouplingDiagnostics

MAPS_AT_MOST = 48
"""More than these are not drawn."""

BOUNDS = (0.02, 0.1, 0.25, 0.5, 0.75)
"""Shares from which on each shade is used; less than the first is left blank."""

SHADES_OF_SHARES = (1, 3, 5, 6, 8)

_SIDE_AT_MOST, _SIDE_AT_LEAST = 64, 12
_CELLS_AT_MOST = 40_000  # of all maps together: 0.3 MB at the very worst
_SIZE, _LEFT, _TOP, _BOTTOM = 190.0, 40.0, 8.0, 38.0


@dataclass(frozen=True, eq=False)
class Coupling:
    """How the units of one group of one model became fused units.

    Parameters
    ----------
    group, model
        Their names.
    own, fused
        Numbers of units.
    kept
        How many of the model's units kept their number; None for a soft coupling.
    shares
        Mean share of the fused units of each block of rows that came from each block of columns (R, C). None where all
        units kept their numbers, and for maps beyond `MAPS_AT_MOST`.
    diagnostics
        How close a soft coupling is to a permutation; None for a hard matching.
    turned
        How many of the model's units changed sign.
    """

    group: str
    model: str
    own: int
    fused: int
    kept: int | None
    shares: Array | None
    diagnostics: CouplingDiagnostics | None
    turned: int = 0

    @property
    def moved(self) -> bool:
        """Whether any unit is somewhere else now."""
        return self.kept is None or self.kept < self.own or self.own != self.fused or self.turned > 0

    @property
    def block(self) -> tuple[int, int]:
        """How many fused units, and how many of the model's, a cell stands for."""
        if self.shares is None:
            return 1, 1
        return math.ceil(self.fused / self.shares.shape[0]), math.ceil(self.own / self.shares.shape[1])

    @property
    def summed(self) -> bool:
        """Whether a cell stands for more than one unit."""
        return self.block != (1, 1)


def couplings_of(matching: Mapping[str, Matching], models: Sequence[str]) -> tuple[Coupling, ...]:
    """Return the coupling of every group and model, in this order.

    Parameters
    ----------
    matching
        By group, which fused unit each unit of every model became.
    models
        What to call the models.
    """
    found = [
        _Found(group, model, one, number)
        for group, one in matching.items()
        for number, model in enumerate(models)
        if one.of_site(number).size
    ]
    drawn = [one for one in found if one.soft or not one.stays][:MAPS_AT_MOST]
    side = max(_SIDE_AT_LEAST, min(_SIDE_AT_MOST, math.isqrt(_CELLS_AT_MOST // max(len(drawn), 1))))
    return tuple(one.coupling(side if any(one is other for other in drawn) else None) for one in found)


@dataclass(frozen=True, eq=False)
class _Found:
    group: str
    model: str
    matching: Matching
    number: int

    @property
    def labels(self) -> Labels:
        return self.matching.of_site(self.number)

    @property
    def soft(self) -> bool:
        return self.matching.coupling is not None and bool(((self._plan > 0).sum(axis=1) > 1).any())

    @property
    def stays(self) -> bool:
        whole = len(self.labels) == self.matching.n_components and self.turned == 0
        return whole and np.array_equal(self.labels, np.arange(len(self.labels)))

    @property
    def turned(self) -> int:
        """How many units changed sign."""
        signs = self.matching.signs
        return 0 if signs is None else int((signs[self.matching.owner == self.number] < 0).sum())

    @property
    def _plan(self) -> Array:
        """The plan (k, k_i): how much of every fused unit is from each of the model's."""
        assert self.matching.coupling is not None  # noqa: S101  (narrows the type)
        start, end = np.searchsorted(self.matching.owner, [self.number, self.number + 1])
        return self.matching.coupling[start:end].T

    def coupling(self, side: int | None) -> Coupling:
        fused, labels = self.matching.n_components, self.labels
        kept = int((labels == np.arange(len(labels))).sum())
        if not self.soft:
            own = np.flatnonzero(labels >= 0)
            shares = None if side is None else _blocks(labels[own], own, np.ones(len(own)), fused, len(labels), side)
            return Coupling(self.group, self.model, len(labels), fused, kept, shares, None, self.turned)
        from consilience.networks.landscape.couplings import coupling_diagnostics  # here, since its package needs torch

        plan = self._plan
        shares = None
        if side is not None:
            rows = plan.sum(axis=1, keepdims=True)
            ordered = (plan / np.where(rows > 0, rows, 1.0))[:, np.argsort(labels, kind="stable")]
            row, column = np.nonzero(ordered)
            shares = _blocks(row, column, ordered[row, column], fused, len(labels), side)
        return Coupling(
            self.group, self.model, len(labels), fused, None, shares, coupling_diagnostics(plan), self.turned
        )


def _blocks(row: Labels, column: Labels, value: Array, rows: int, columns: int, side: int) -> Array:
    """Return the mean over the rows of each block of the sum over its columns, in at most `side` blocks each way."""
    high, wide = math.ceil(rows / side), math.ceil(columns / side)
    shape = math.ceil(rows / high), math.ceil(columns / wide)
    total = np.bincount((row // high) * shape[1] + column // wide, weights=value, minlength=shape[0] * shape[1])
    size = np.diff(np.minimum(np.arange(shape[0] + 1) * high, rows))
    return np.asarray(total.reshape(shape) / size[:, None], dtype=np.float64)


def coupling_map(one: Coupling, shares: Array) -> Markup:
    """Return the heat map of one coupling."""
    level = np.searchsorted(BOUNDS, shares, side="right") - 1
    shades = np.append(np.array(SHADES_OF_SHARES), BLANK)[level]
    longest = max(one.own, one.fused)
    wide, high = (max(60.0, _SIZE * count / longest) for count in (one.own, one.fused))
    foot = _TOP + high
    parts = [
        cells(shades, _LEFT, _TOP, wide, high),
        element("rect", x=_LEFT, y=_TOP, width=wide, height=high, kind="border"),
        text(_LEFT - 6, _TOP + 11, "0", "tick", "end"),
        text(_LEFT - 6, foot, str(one.fused - 1), "tick", "end"),
        text(_LEFT, foot + 15, "0" if one.kept is not None else "", "tick"),
        text(_LEFT + wide, foot + 15, str(one.own - 1) if one.kept is not None else "", "tick", "end"),
        element(
            "text",
            "fused unit",
            transform=f"translate({_LEFT - 20:.0f} {_TOP + high / 2:.0f}) rotate(-90)",
            kind="axis",
            text_anchor="middle",
        ),
        text(_LEFT + 0.5 * wide, foot + 31, "unit of the model", "axis", "middle"),
    ]
    return drawing(parts, foot + _BOTTOM, _alt(one, shares), _LEFT + max(wide, 120.0) + 6)


def _alt(one: Coupling, shares: Array) -> str:
    said = f"Group {shortened(one.group, 40)}: {counted(one.own, 'unit')} of {shortened(one.model, 40)} against "
    said += f"{counted(one.fused, 'fused unit')}, in {shares.shape[0]} × {shares.shape[1]} cells. "
    if one.kept is not None:
        return f"{said}{counted(one.kept, 'unit')} kept their number."
    partners = one.diagnostics.effective_partners if one.diagnostics is not None else math.nan
    return f"{said}A fused unit is made of {fixed(partners, 2)} units in effect."


def share_legend() -> tuple[tuple[int, str], ...]:
    """Return every shade with the shares that it stands for."""
    ends = [f"{low:.0%} to {high:.0%}".replace("%", " %") for low, high in pairwise(BOUNDS)]
    return tuple(zip(SHADES_OF_SHARES, [*ends, f"{BOUNDS[-1]:.0%} or more".replace("%", " %")], strict=True))
