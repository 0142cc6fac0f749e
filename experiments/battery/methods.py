"""The methods that the battery judges, each a matching of a cell's local components."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from battery.baselines import SlopeRule, kmeans, runnalls
from battery.local_fits import Cell, pooled
from battery.metrics import Bench, GaussianMixture, matching_scores, mixture_scores

import consilience as cs


@dataclass(frozen=True, eq=False)
class Found:
    """What a method gives: labels (L,), -1 for what is left out, or a mixture where it does not match."""

    labels: np.ndarray | None = None
    mixture: GaussianMixture | None = None
    confidence: np.ndarray | None = None
    status: str | None = None

    def scores(self, on: Bench) -> dict[str, Any]:
        """Return its scores as JSON values."""
        if self.mixture is not None:
            return mixture_scores(on, self.mixture)
        assert self.labels is not None  # noqa: S101  (one of both)
        scores = matching_scores(on, self.labels, self.confidence)
        return scores if self.status is None else scores | {"status": self.status}


def fused(cell: Cell, *method: str, **options: Any) -> Found:
    """Fuse with the library."""
    fusion = cs.fuse(cell.posteriors, *method, min_count=0, **options)
    matching = fusion.matching
    return Found(matching.labels, confidence=matching.confidence, status=fusion.status.name)


METHODS: dict[str, Callable[[Cell], Found]] = {
    "default": fused,
    "told": lambda cell: fused(cell, n_components=cell.n_true),
    "KL-k-means": lambda cell: fused(cell, "kmeans", n_components=cell.n_true),
    "k-means": lambda cell: Found(kmeans(cell, cell.n_true)),
    "Runnalls": lambda cell: Found(runnalls(cell, cell.n_true)),
    "slope rule": lambda cell: Found(SlopeRule(cell).labels()),
    "true matching": lambda cell: Found(cell.truth),
    "concatenation": lambda cell: Found(np.arange(len(cell.truth))),
    "pooled": lambda cell: Found(mixture=GaussianMixture(*pooled(cell))),
}
TOLD = ("told", "k-means", "Runnalls")
"""The three of which the best matching is what the default is held to."""
UNTIMED = ("true matching", "concatenation", "pooled")
