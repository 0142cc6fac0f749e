"""Refitting recurrent layers: teacher forcing at the mean states, least squares in closed form.

Every aligned model runs its own cell on its own inputs and states. With z_it the pre-activations of its gates and h_it
its states, the mean states are hbar_t = sum_i a_i h_it, and W, b are the minimiser of

    sum_t E |W [x_t; hbar_{t-1}] + b - sum_i a_i z_it|^2 + ridge * mean square of what is read * |W - W_0|^2,

x_t what the fused network's layer is given. A projection of an LSTM is fitted to the mean states from the mean of what
it projects. States of the fused network itself, in place of the mean states, would let the errors of one step grow in
the next: its recurrence is run only when later layers ask for what it gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.checks import Array
from consilience.errors import InputError
from consilience.networks.repair.partial_forward import Stage, not_finite
from consilience.networks.repair.recurrent_layers import Cell, Run, Sequences, cell_of, put_cell
from consilience.networks.repair.regression import Joint


def fit_recurrent(
    stages: Sequence[Stage], name: str, share: Array, rows: Sequence[float], ridge: float, draw: np.random.Generator
) -> None:
    """Fit a recurrent layer of the fused network, in place, to what the models' layers do.

    Parameters
    ----------
    stages
        Of the fused network and of the models, run as far as the layer.
    name
        The layer.
    share
        What each model counts.
    rows
        How many steps of samples are used at most, for each batch; whole samples are drawn, at least one.
    ridge
        How much weights are drawn towards what they are.
    draw
        Draws the samples.

    Raises
    ------
    InputError
        When the layer is not reached, or values are not finite.
    """
    modules: list[Any] = [stage.module.get_submodule(name) for stage in stages]
    fused, *models = modules
    batches = _chosen(stages, name, rows, draw)
    for layer in range(fused.num_layers):
        cells = [cell_of(fused, layer, way) for way in range(2 if fused.bidirectional else 1)]
        counts = [_Counts.of([cell_of(model, layer, way) for model in models], share) for way in range(len(cells))]
        gates: list[_Sums | None] = [None] * len(cells)
        projections: list[_Sums | None] = [None] * len(cells)
        for batch in batches:
            runs = [given.run(model, layer) for model, given in zip(models, batch[1:], strict=True)]
            for way, cell in enumerate(cells):
                mean = counts[way].mean([one[way] for one in runs])
                gates[way] = _with(gates[way], *_asked(cell, batch[0], mean, layer * len(cells) + way, way))
                if cell.projection is not None:
                    left = mean.states[1:] - mean.made @ cell.projection.T
                    projections[way] = _with(projections[way], mean.made.flatten(0, 1), left.flatten(0, 1))
            batch[1:] = [given.after(one) for given, one in zip(batch[1:], runs, strict=True)]
        for way, cell in enumerate(cells):
            put_cell(fused, layer, way, _fitted(name, cell, gates[way], projections[way], ridge))
        if layer + 1 < fused.num_layers:
            for batch in batches:
                batch[0] = batch[0].after(batch[0].run(fused, layer))


def _chosen(
    stages: Sequence[Stage], name: str, rows: Sequence[float], draw: np.random.Generator
) -> list[list[Sequences]]:
    """Return what the fused network's layer and the models' are given, batch by batch, for the same samples."""
    layers: list[Any] = [stage.module.get_submodule(name) for stage in stages]
    found = []
    for most, *given in zip(rows, *(stage.before(name) for stage in stages), strict=True):
        shape = given[0][0].shape
        steps, size = (shape[1], shape[0]) if layers[0].batch_first else (shape[0], shape[1])
        some = ceil(most / max(steps, 1))
        numbers = np.arange(size) if size <= some else np.sort(draw.choice(size, some, replace=False))
        chosen = torch.as_tensor(numbers, device=given[0][0].device)
        both = zip(layers, given, strict=True)
        found.append([Sequences.given_to(one, values, first, chosen) for one, (values, first) in both])
    return found


def _asked(cell: Cell, given: Sequences, mean: Run, place: int, way: int) -> tuple[Tensor, Tensor]:
    """Return rows of what a cell reads (n, d + p), and what the mean pre-activations have beside its own (n, rows)."""
    values = given.values.flip(0) if way else given.values
    # before the first step the fused network has a state of its own
    states = torch.cat([given.states[place][None], mean.states[1:-1]])
    read = torch.cat([values, states], dim=-1).flatten(0, 1)
    left = torch.addmm(mean.rows.flatten(0, 1), read, cell.weight.T, alpha=-1)
    return read, left if cell.bias is None else left - cell.bias


def _fitted(name: str, cell: Cell, gates: _Sums | None, projection: _Sums | None, ridge: float) -> Cell:
    """Return the cell with its weights changed by what is left to be answered."""
    if gates is None or gates.count == 0:
        raise InputError("inputs: expected a tensor of at least one input, found none")
    joint = gates.joint()
    if not torch.isfinite(joint.cross).all():
        raise InputError(not_finite(name))
    weight = cell.weight.to(torch.float64)
    bias = None if cell.bias is None else cell.bias.to(torch.float64)
    for rows, columns in cell.blocks():
        part = Joint(
            joint.given[columns], joint.wanted[rows], joint.covariance[columns, columns], joint.cross[rows, columns]
        )
        change, shift = part.fit(torch.zeros_like(part.cross), bias is not None, ridge)
        weight[rows, columns] += change
        if bias is not None:
            bias[rows] += shift
    found = replace(cell, weight=weight, bias=bias)
    if cell.projection is None or projection is None:
        return found
    joint = projection.joint()
    change, _ = joint.fit(torch.zeros_like(joint.cross), False, ridge)
    return replace(found, projection=cell.projection + change)


@dataclass(frozen=True, eq=False)
class _Counts:
    """What each model counts for each unit (models, k) and each state (models, p): nothing where it has no such one."""

    units: Tensor
    states: Tensor

    @classmethod
    def of(cls, cells: Sequence[Cell], share: Array) -> _Counts:
        units = torch.stack([_owned(cell) for cell in cells])
        projected = [cell.projection.ne(0).any(dim=1) for cell in cells if cell.projection is not None]
        states = torch.stack(projected) if projected else units
        weight = cells[0].weight
        return cls(*((_shared(share, one)).to(weight) for one in (units, states)))

    def mean(self, runs: Sequence[Run]) -> Run:
        """Return the mean of what the models' cells did."""
        gates = runs[0].rows.shape[-1] // self.units.shape[1]
        return Run(
            _sum(self.units.repeat(1, gates), [one.rows for one in runs]),
            _sum(self.states, [one.states for one in runs]),
            _sum(self.units, [one.made for one in runs]),
        )


def _owned(cell: Cell) -> Tensor:
    """Return which units a cell has (k,): those with a weight or bias in any gate."""
    rows = cell.weight.ne(0).any(dim=1) | (False if cell.bias is None else cell.bias.ne(0))
    return rows.reshape(-1, cell.units).any(dim=0)


def _shared(share: Array, owned: Tensor) -> Tensor:
    counts = torch.as_tensor(share).to(owned.device)[:, None] * owned
    return counts / counts.sum(dim=0).clamp(min=torch.finfo(torch.float64).tiny)


def _sum(counts: Tensor, values: Sequence[Tensor]) -> Tensor:
    total = counts[0] * values[0]
    for count, one in zip(counts[1:], values[1:], strict=True):
        total.addcmul_(count, one)
    return total


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over rows of what is read (less a first guess of its mean) and of what is to be answered, float64.

    Products are taken in the rows' own precision, as `RunningMoments` does; among the answers they are not needed.
    """

    guess: Tensor
    count: int
    read: Tensor
    asked: Tensor
    second: Tensor
    cross: Tensor

    def with_rows(self, read: Tensor, asked: Tensor) -> _Sums:
        gaps = read - self.guess
        return _Sums(
            self.guess,
            self.count + len(read),
            self.read + gaps.sum(dim=0, dtype=torch.float64),
            self.asked + asked.sum(dim=0, dtype=torch.float64),
            self.second + (gaps.T @ gaps).to(torch.float64),
            self.cross + (asked.T @ gaps).to(torch.float64),
        )

    def joint(self) -> Joint:
        gap, wanted = self.read / self.count, self.asked / self.count
        return Joint(
            self.guess + gap,
            wanted,
            self.second / self.count - torch.outer(gap, gap),
            self.cross / self.count - torch.outer(wanted, gap),
        )


def _with(sums: _Sums | None, read: Tensor, asked: Tensor) -> _Sums:
    """Return sums with further rows; the first ones tell what the mean is about."""
    if sums is None:
        zeros = torch.zeros(read.shape[1], read.shape[1] + 1, dtype=torch.float64, device=read.device)
        asks = torch.zeros(asked.shape[1], read.shape[1] + 1, dtype=torch.float64, device=read.device)
        sums = _Sums(read.mean(dim=0), 0, zeros[:, 0], asks[:, 0], zeros[:, 1:], asks[:, 1:])
    return sums.with_rows(read, asked)
