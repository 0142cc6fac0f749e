"""The result of matching: which fused component each local component became, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.drawing.blocks import Block, Column, Facts, Table
from consilience.drawing.display import MAX_NAMES, Displayed, Tabular
from consilience.drawing.plots import Chart, Plotted, draw_matching
from consilience.drawing.words import format_count, printable
from consilience.errors import OptionError

MAX_LABELS = 20
"""Labels of a model that a line of text holds; more are counted. Chosen by hand for a terminal."""


@dataclass(frozen=True, eq=False, repr=False)
class Matching(Displayed, Plotted, Tabular):
    """Which fused component each local component became.

    Parameters
    ----------
    labels
        Global index of each local component (L,), in the order of the models given; -1 for a dropped one.
    owner
        The model of each local component (L,), ascending.
    n_components
        Number G of fused components.
    coupling
        Optional soft plan (L, G).
    confidence
        How sure each match is (L,), from 0 to 1; None where the method does not say, NaN where it cannot.
    signs
        1 or -1 for each local component (L,): whether it changed sign to be matched; None where none can.
    names
        Name of each model (J,); empty for models without names, such as the sites of shards.
    """

    labels: Labels
    owner: Labels
    n_components: int
    coupling: Array | None = None
    confidence: Array | None = None
    signs: Array | None = None
    names: tuple[str, ...] = ()

    def _headline(self) -> str:
        n_sites = len(self.names) or (int(self.owner.max()) + 1 if self.owner.size else 0)
        here = f"{format_count(len(self.labels), 'component')} of {format_count(n_sites, 'model')}"
        dropped = int(np.sum(self.labels < 0))
        return f"{here} -> {self.n_components:,}" + (f", {dropped:,} dropped" if dropped else "")

    def _facts(self) -> dict[str, object | None]:
        rows = {printable(name): self.of_site(site) for site, name in enumerate(self.names[:MAX_NAMES])}
        facts: dict[str, object | None] = {
            name: ", ".join(str(label) if label >= 0 else "dropped" for label in labels[:MAX_LABELS].tolist())
            + (f" and {len(labels) - MAX_LABELS:,} more" if len(labels) > MAX_LABELS else "")
            for name, labels in rows.items()
        }
        if len(self.names) > MAX_NAMES:
            facts["further models"] = f"{len(self.names) - MAX_NAMES:,}"
        shared = int(np.sum(self.members > 1))
        facts["shared"] = f"{shared:,} of {self.n_components:,} come from more than one component"
        return facts

    def _charts(self) -> dict[str, Chart | str]:
        draw = partial(
            draw_matching, labels=self.labels, owner=self.owner, n_components=self.n_components, names=self.names
        )
        return {"matching": draw if self.labels.size else "nothing was matched"}

    def _blocks(self) -> list[Block | None]:
        if len(self.names) > MAX_NAMES:
            return [Facts(self._facts())]
        columns = self.to_columns()
        rows = list(zip(*columns.values(), strict=True))
        heads = [
            Column(name.capitalize(), itemgetter(place), "" if name == "site" else "n")
            for place, name in enumerate(columns)
        ]
        return [Table("Matching", rows, heads, "component", self._facts()["shared"], "narrow")]

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each local component: its site, its number there, what it became, and how sure that is."""
        numbers = np.arange(len(self.labels)) - np.searchsorted(self.owner, self.owner)
        sites = self.owner.tolist()
        columns: dict[str, list[Any]] = {
            "site": [self.names[site] for site in sites] if self.names else sites,
            "component": numbers.tolist(),
            "fused": [label if label >= 0 else None for label in self.labels.tolist()],
        }
        if self.confidence is not None:
            columns["confidence"] = self.confidence.tolist()
        return columns

    @property
    def members(self) -> Labels:
        """Number of local components behind each fused one (G,)."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.n_components)

    @property
    def component_confidence(self) -> Array | None:
        """Mean confidence of the matches behind each fused component (G,)."""
        if self.confidence is None:
            return None
        has_confidence = (self.labels >= 0) & np.isfinite(self.confidence)  # (L,)
        labels, confidence = self.labels[has_confidence], self.confidence[has_confidence]
        totals = np.bincount(labels, weights=confidence, minlength=self.n_components)
        counts = np.bincount(labels, minlength=self.n_components)
        return np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)

    def of_site(self, site: int | str) -> Labels:
        """Return the labels of the components of one model, given its number or its name.

        Raises
        ------
        OptionError
            For a name that no model has.
        """
        if isinstance(site, str):
            if site not in self.names:
                raise OptionError(site, f"is no model here; the models are {', '.join(self.names) or 'without names'}")
            site = self.names.index(site)
        start, end = np.searchsorted(self.owner, [site, site + 1])
        return self.labels[start:end]
