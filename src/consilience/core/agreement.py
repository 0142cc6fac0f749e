"""Whether inputs mean the same: no rows twice, one unit for a column, one spelling for a class.

A fusion by sums is exact only where its parts mean the same, which numbers alone cannot prove. What looks as if it
were not so is fused and said: as a warning with a code of its own, by `fuse` and by `check`, and in the verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from consilience.checks import Array
from consilience.core.caller import warn_caller
from consilience.errors import Problem, TwiceWarning

SAME_SUMS = 1e-9
"""Relative difference of sums that is rounding: the same rows in another order leave some 1e-15."""

MIN_SUMS = 4
"""Numbers that equal sums must have at least: few counts agree by chance. Chosen by hand."""

MAX_NAMED = 5
"""Columns that a message names at most. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """Mean and deviation of every column at a site, by which units are compared."""

    names: tuple[str, ...] | None
    n_observations: float
    means: Array  # (d,)
    deviations: Array  # (d,)


@dataclass(frozen=True, eq=False)
class Meaning:
    """What an input says that must mean the same at all sites."""

    columns: ColumnMoments | None = None
    labels: tuple[str, ...] | None = None  # its classes, where they are texts
    sums: Array | None = None  # sums over its rows, which have no order


@dataclass(frozen=True)
class Doubt:
    """That inputs may not mean the same, and the warning which says so."""

    problem: Problem
    category: type[Warning]

    def warn(self) -> None:
        """Warn at the line of the caller."""
        warn_caller(str(self.problem), self.category)


Labelled = Sequence[tuple[str, Meaning]]
"""Inputs by what messages call them."""


def doubts_of(sites: Labelled) -> list[Doubt]:
    """Return where inputs may not mean the same, a doubt for each site."""
    return [*_equal_sums(sites), *_other_units(sites), *_other_spellings(sites)]


def twice(label: str, text: str) -> Doubt:
    """Return that an input says what another says too."""
    return Doubt(Problem(label, text, "leave one out, unless both have rows of their own"), TwiceWarning)


def _equal_sums(sites: Labelled) -> Iterator[Doubt]:
    """Yield which sites have the sums of another to rounding, but not its digits: the same rows in another order."""
    by_size: dict[int, list[tuple[str, Array]]] = defaultdict(list)
    for label, meaning in sites:
        if meaning.sums is not None and len(meaning.sums) >= MIN_SUMS and np.isfinite(meaning.sums).all():
            by_size[len(meaning.sums)].append((label, meaning.sums))
    for of_size in by_size.values():
        # Equal sums have equal projections to rounding, so that neighbours of the sorted projections are compared.
        direction = np.random.default_rng(0).uniform(1.0, 2.0, len(of_size[0][1]))
        projections = np.array([np.abs(sums) @ direction for _, sums in of_size])
        order = np.argsort(projections, kind="stable")
        for one, other in pairwise(order.tolist()):
            (first_label, first), (label, sums) = of_size[min(one, other)], of_size[max(one, other)]
            if not np.array_equal(first, sums) and np.allclose(first, sums, rtol=SAME_SUMS, atol=_rounding(first)):
                text = f"has the sums of {first_label}, as the same rows in another order have: they count twice"
                yield twice(label, text)


def _rounding(sums: Array) -> float:
    """Return what rounding may leave of a sum that is zero, such as a mean of centred columns."""
    return SAME_SUMS * float(np.abs(sums).max(initial=0.0))


MIN_SCALE, MIN_SCALE_OF_CENTRED, MIN_SHIFT = 8.0, 100.0, 30.0
MAX_CV_RATIO, MIN_MEAN = 1.5, 3.0


def _other_units(sites: Labelled) -> Iterator[Doubt]:
    return iter(())


def _other_spellings(sites: Labelled) -> Iterator[Doubt]:
    return iter(())
