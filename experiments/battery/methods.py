"""The methods that the battery judges, each a matching of a cell's local components."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from battery.baselines import SlopeRule, kmeans, runnalls
from battery.local_fits import Cell, pooled
from battery.metrics import Bench, GaussianMixture, matching_scores, mixture_scores, plug_in

import consilience as cs


@dataclass(frozen=True, eq=False)
class Found:
    """What a method gives: labels (L,), -1 for what is left out, or a mixture where it does not match."""

    labels: np.ndarray | None = None
    mixture: GaussianMixture | None = None
    fused: GaussianMixture | None = None  # what the library returns, where its average is scored, too
    confidence: np.ndarray | None = None
    status: str | None = None

    def scores(self, on: Bench) -> dict[str, Any]:
        """Return its scores as JSON values."""
        if self.mixture is not None:
            return mixture_scores(on, self.mixture)
        assert self.labels is not None  # noqa: S101  (one of both)
        scores = matching_scores(on, self.labels, self.confidence)
        if self.fused is not None:
            scores["fused"] = mixture_scores(on, self.fused)
        return scores if self.status is None else scores | {"status": self.status}


def fused(cell: Cell, *method: str, **options: Any) -> Found:
    """Fuse with the library."""
    fusion = cs.fuse(cell.posteriors, *method, min_count=0, **options)
    matching = fusion.matching
    returned = plug_in(fusion.posterior)
    return Found(matching.labels, fused=returned, confidence=matching.confidence, status=fusion.status.name)


def best_site(cell: Cell) -> Found:
    """Return the site's own mixture that describes the held-out data best: no site could know that it is."""
    sites = map(plug_in, cell.posteriors)
    return Found(mixture=max(sites, key=lambda site: float(site.log_density(cell.held_out).mean())))


METHODS: dict[str, Callable[[Cell], Found]] = {
    "default": fused,
    "told": lambda cell: fused(cell, n_components=cell.n_true),
    "KL-k-means": lambda cell: fused(cell, "kmeans", n_components=cell.n_true),
    "k-means": lambda cell: Found(kmeans(cell, cell.n_true)),
    "Runnalls": lambda cell: Found(runnalls(cell, cell.n_true)),
    "slope rule": lambda cell: Found(SlopeRule(cell).labels()),
    "true matching": lambda cell: Found(cell.truth),
    "naive average": lambda cell: Found(mixture=fused(cell, "average").fused),
    "best site": best_site,
    "concatenation": lambda cell: Found(np.arange(len(cell.truth))),
    "pooled": lambda cell: Found(mixture=GaussianMixture(*pooled(cell))),
}
TOLD = ("told", "k-means", "Runnalls")
"""The three of which the best matching is what the default is held to."""
UNTIMED = ("true matching", "best site", "concatenation", "pooled")
"""Those that are no fusions."""
OF_SETS = ("default", "told", "k-means", "Runnalls", "naive average", "concatenation", "best site", "pooled")
"""Those of the table over real sets."""
