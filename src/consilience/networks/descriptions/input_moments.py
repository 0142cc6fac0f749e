"""Moments of a site's inputs: of all of them, and of every class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from consilience.checks import Labels
from consilience.networks.descriptions.description import Description, Moments
from consilience.networks.descriptions.disclosure import MAX_CLASS_RANK, MAX_RANK, Leaving, allowed_rank, named
from consilience.networks.descriptions.moments import MomentAccumulator
from consilience.networks.descriptions.observations import Batch
from consilience.networks.descriptions.statistic import Setting, Statistic

MAX_SCATTER_ENTRIES = 2**24
"""Entries of scatter matrices of all classes together that are kept whole (128 MiB); beyond, they are sketched. Chosen
by hand, for memory."""

MAX_CLASS_ENTRIES = 2**22
"""Numbers of the moments by class that leave at most (16 MiB in float32); beyond, their rank is reduced. Chosen by
hand: 26 classes of 784 numbers take a ninth of it."""

MIN_CLASS_RANK = 5
"""Moments by class whose rank would have to be less than this for their size are left out. Chosen by hand."""


class InputMomentStatistic(Statistic):
    """Moments of rows of numbers, by class where they are not too large.

    Parameters
    ----------
    setting : Setting
        The inputs and classes.
    """

    def __init__(self, setting: Setting) -> None:
        """Start without observations."""
        d, n_classes = setting.size, setting.n_classes
        self._d, self._names = d, setting.classes or ()
        rank = min(MAX_CLASS_RANK, MAX_CLASS_ENTRIES // (n_classes * d) - 2) if n_classes else None
        self.class_rank = None if rank is None or rank < min(MIN_CLASS_RANK, d) else rank
        """Directions of the moments of a class for their size; None where there are no moments by class."""
        n_accumulators = 1 if self.class_rank is None else n_classes
        is_whole = n_accumulators * d**2 <= MAX_SCATTER_ENTRIES
        self._sketch_rank = None if is_whole else MAX_RANK if self.class_rank is None else self.class_rank
        self._without_class = setting.n_groups - 1
        self._by_group: dict[int, MomentAccumulator] = {}

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Add the observations of a batch."""
        del answer
        rows = batch.rows
        if self.class_rank is None:
            groups = np.full_like(groups, self._without_class)
        for group in np.unique(groups).tolist():
            if group not in self._by_group:
                self._by_group[group] = MomentAccumulator(self._d, self._sketch_rank)
            self._by_group[group].add(rows[groups == group])

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with the moments of all inputs, and of every class that has enough observations."""
        inputs = None
        if leaving.is_described and (leaving.is_all or self.class_rank is not None):
            inputs = self._of_all(leaving)
        if leaving.is_enough and not leaving.is_all and self.class_rank is None:
            leaving.left_out.append(
                "classes are too many and inputs too large to leave some out of the moments of all inputs"
            )
        class_moments, notes = self._of_classes(leaving)
        return replace(described, inputs=inputs, class_moments=class_moments, notes=(*described.notes, *notes))

    def _of_all(self, leaving: Leaving) -> Moments:
        """Return the moments of the inputs of the groups that may leave together."""
        if self.class_rank is None:
            (whole,) = self._by_group.values()
            return whole.moments(allowed_rank(whole.n, MAX_RANK))
        total = MomentAccumulator(self._d, self._sketch_rank)
        total.widen(MAX_RANK)
        for group in sorted(self._by_group):
            if group in leaving.said:
                total.merge(self._by_group[group])
        return total.moments(allowed_rank(leaving.n_said, MAX_RANK))

    def _of_classes(self, leaving: Leaving) -> tuple[dict[int, Moments], list[str]]:
        """Return the moments of every class that has enough observations, and where their rank is reduced."""
        if not leaving.are_labelled:
            return {}, []
        if self.class_rank is None:
            return {}, ["no moments by class, which would be too large"]
        moments = {
            int(number): self._by_group[int(number)].moments(allowed_rank(leaving.by_class[number], self.class_rank))
            for number in leaving.described
        }
        most = min(MAX_CLASS_RANK, self._d)
        reduced = [f"{self._names[n]} ({len(m.factor)})" for n, m in moments.items() if len(m.factor) < most]
        return moments, [f"directions of the moments of classes reduced from {most}: {named(reduced)}"] * bool(reduced)
