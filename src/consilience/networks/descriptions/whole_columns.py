"""Columns of whole numbers among real inputs: ids of categories and counts that a network reads as such.

A site says how often each of a column's values occurs, where that is often enough. Inputs are drawn as Gaussian rows,
and such a column then takes the value of its rank, a Gaussian copula: with F the distribution of the column's values,
and m, s its mean and deviation,

    x -> F^-1(Phi((x - m) / s)).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from consilience.checks import Array, Labels
from consilience.networks.descriptions.description import Description, Moments
from consilience.networks.descriptions.disclosure import Leaving
from consilience.networks.descriptions.observations import Batch
from consilience.networks.descriptions.statistic import Setting, Statistic, on_device
from consilience.networks.module_outputs import ask
from consilience.networks.output_layout import token_table

MAX_COLUMNS = 512
"""Columns that are tried, at most: each takes a call of the network. Chosen by hand, for time."""
_FRACTION = 0.25
"""What is added to whole numbers to see whether a network reads them as such: it is lost when they are cut or rounded
to whole numbers. Chosen by hand."""


class WholeColumns(Statistic):
    """How often the values of columns of whole numbers occur."""

    def __init__(self, columns: Labels) -> None:
        """Start without observations, for some columns of the rows."""
        self._counts: dict[int, Counter[tuple[int, int]]] = {int(column): Counter() for column in columns}

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Count the values of a batch."""
        for column, counts in self._counts.items():
            counts.update(zip(groups.tolist(), batch.rows[:, column].astype(np.int64).tolist(), strict=True))

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with the values that occur in `min_count` observations, 20 at least of a column."""
        if not leaving.is_described:
            return described
        whole: dict[int, Array] = {}
        for column, counts in self._counts.items():
            of_values: Counter[int] = Counter()
            for (group, value), n in counts.items():
                if group in leaving.said:
                    of_values[value] += n
            said = sorted((value, n) for value, n in of_values.items() if n >= leaving.min_count)
            if said:
                whole[column] = np.array(said, dtype=np.float64)  # (k, 2): values, observations
            else:
                leaving.left_out.append(f"values of column {column} are too rare to be said")
        return replace(described, whole_columns=whole)


def columns_of_whole_numbers(setting: Setting, batch: Batch) -> Labels:
    """Return the columns of rows that a network reads as whole numbers.

    They are those of arguments of whole numbers. In a matrix of real numbers, for a network with a table of ids, they
    are the columns of whole numbers whose fractions would not change what it answers.
    """
    starts = np.cumsum([0, *(part.size for part in setting.parts)])
    whole = [
        np.arange(start, start + part.size)
        for start, part in zip(starts.tolist(), setting.parts, strict=False)
        if part.kind == "whole"
    ]
    if setting.parts or len(setting.shape) != 1 or token_table(setting.module) is None:
        return np.concatenate([*whole, np.zeros(0, dtype=np.int64)])
    are_whole = np.flatnonzero((batch.rows == np.round(batch.rows)).all(axis=0))
    return np.array([column for column in are_whole[:MAX_COLUMNS] if _ignores_fractions(setting, batch, int(column))])


def _ignores_fractions(setting: Setting, batch: Batch, column: int) -> bool:
    """Return whether a network answers the same to whole numbers of a column as to these with a fraction."""
    few: Tensor = on_device(batch.inputs[:8], setting.module)
    moved = few.clone()
    moved[:, column] += _FRACTION
    with torch.no_grad():
        try:
            return bool(torch.equal(ask(setting.module, few), ask(setting.module, moved)))
        except (TypeError, RuntimeError, IndexError):  # several outputs, or ids that are none
            return False


def as_whole(rows: Array, whole: Mapping[int, Array], moments: Moments) -> Array:
    """Return drawn rows (n, d) with the values (k, 2) of some columns in their place; moments are those of the rows.

    Examples
    --------
    >>> moments = Moments(100, np.zeros(1), np.zeros((0, 1)), np.ones(1))
    >>> as_whole(np.array([[-2.0], [0.1], [2.0]]), {0: np.array([[3.0, 50.0], [7.0, 50.0]])}, moments).ravel().tolist()
    [3.0, 7.0, 7.0]
    """
    if not whole:
        return rows
    replaced = rows.copy()
    deviation = np.sqrt(moments.variance)
    for column, counts in whole.items():
        scale = deviation[column] if deviation[column] > 0 else 1.0
        share = norm.cdf((rows[:, column] - moments.mean[column]) / scale)
        ends = np.cumsum(counts[:, 1]) / counts[:, 1].sum()
        place = np.minimum(np.searchsorted(ends, share), len(counts) - 1)
        replaced[:, column] = counts[place, 0]
    return replaced
