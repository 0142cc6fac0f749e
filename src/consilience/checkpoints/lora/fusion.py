"""The result of fusing LoRA adapters, and its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consilience.checkpoints.lora.adapter import LoraAdapter
from consilience.checks import Json
from consilience.core.details import Details
from consilience.core.fusion import FusedInput, Fusion
from consilience.core.page_blocks import columns_of_sites, opening, options_and_versions
from consilience.core.provenance import bind_provenance
from consilience.core.verdict import Verdict
from consilience.drawing.blocks import Column, Facts, Items, Section, Table, text_column
from consilience.drawing.html import Page
from consilience.drawing.words import format_count, printable
from consilience.files.atomic import refuse_to_replace, write_bytes

MAX_MODULES = 500
"""Modules in the table of a page. A bound on its length."""

TELLS = (
    "Its factors are weights that were trained on the data of a site: whoever has them and the base has the model.",
    "Modules that were trained as a whole, and biases, travel whole; token rows say which tokens were trained.",
    "Adapters of a few rows repeat them: models say what they have seen too often.",
    "The mean of two adapters discloses each of them to the other's owner.",
    "No noise is added, so no formal privacy is given.",
)
"""What an adapter tells about people, a sentence each."""


class AdapterDetails(Details, total=False):
    """What fusing adapters found: ranks by module, what they lose, how far the mean goes."""

    ranks: dict[str, int]
    errors: dict[str, float]
    error: float
    changes: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AdapterFusion(Fusion):
    """One LoRA adapter of several.

    Parameters
    ----------
    adapter : LoraAdapter
        The fused adapter; ``fusion.model.write("folder")`` writes it as its program reads it.
    """

    kind = "adapters"
    no_file = ("every method for adapters writes a file", "")

    adapter: LoraAdapter
    details: AdapterDetails
    inputs: tuple[FusedInput[LoraAdapter], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        bind_provenance(self.adapter, self.provenance, lambda value: value.digest)

    @property
    def model(self) -> LoraAdapter:
        """The fused adapter."""
        return self.adapter

    @property
    def n_components(self) -> int:
        """Number of modules."""
        return len(self.details["ranks"])

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be known of the adapters, a sentence each."""
        return tuple(map(printable, self.details.get("notes", ())))

    def _came_out(self) -> str:
        return outcome(self.record)

    def _outcome(self) -> str:
        return f"an adapter of {format_count(self.n_components, 'module')}"

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each module: its name, its rank, and what that and rounding lose, over its size."""
        ranks, errors = self.details["ranks"], self.details["errors"]
        return {"module": list(ranks), "rank": list(ranks.values()), "error": [errors[name] for name in ranks]}

    def _own_verdict(self) -> Verdict:
        lost = self.details["error"]
        exact = "the product of every module is the weighted mean of the adapters' products"
        text = exact if not lost else f"{exact}, with an error of {lost:.1e} of its size"
        known = "whether it is no worse than the best of the adapters is not known"
        standing = "Its changes are the weighted mean of theirs; nothing tells whether it answers better"
        return Verdict("stacked" if not lost else "rounded", f"{text}; {known}.", harmless=None, standing=standing)

    def _write(self, path: Path) -> None:
        self.adapter.pack(path, self.record)

    def report(self, path: str | Path, *args: Any, overwrite: bool = False, **kwargs: Any) -> None:
        """Write a page about the fusion, whole or not at all: one HTML file without scripts that fetches nothing.

        With `overwrite` a file that is there is replaced also where this library did not write it.

        Raises
        ------
        InputError
            When the path cannot be written.
        """
        refuse_to_replace(path, overwrite)
        write_page(Path(path), self.record, *args, **kwargs)


def outcome(record: Mapping[str, Any]) -> str:
    """Return the modules and the highest rank of the fused adapter, from the record of its fusion."""
    ranks = record["result"].get("ranks") or {}
    highest = max(ranks.values(), default=0)
    return f"one adapter of {format_count(len(ranks), 'module')}, of rank {highest} at most"


def write_page(path: Path, record: Mapping[str, Json]) -> None:
    """Write the report of a fused adapter, by its record."""
    write_bytes(path, render(record).encode("utf-8"))


def render(record: Mapping[str, Any]) -> str:
    """Return the report as HTML; the same record gives the same text."""
    sections = [_what_went_in(record), _modules(record), _what_it_tells(), _how_it_was_made(record)]
    return Page(
        "Fusion report",
        (format_count(len(record["inputs"]), "adapter"), f"→ {outcome(record)}"),
        opening(record, outcome(record)),
        sections,
        "One file: no scripts, nothing fetched, no weights.",
        ("report.css", "network.css"),
    ).render()


def _what_went_in(record: Mapping[str, Any]) -> Section:
    """Return the adapters with how far they change their base."""
    records: Sequence[Any] = record["inputs"]
    sizes = (record["result"].get("changes") or {}).get("models") or {}
    columns = [
        Column("Modules", lambda one: one["components"], digits=0),
        Column("Weight", lambda one: one["weight"], digits=3),
        Column("Size of its change", lambda one: sizes.get(one["name"]), digits=4),
    ]
    return Section("in", "What went in", [Table("Table of sites", records, columns_of_sites(records, columns), "site")])


def _modules(record: Mapping[str, Any]) -> Section:
    """Return ranks and losses of the modules."""
    ranks, errors = record["result"].get("ranks") or {}, record["result"].get("errors") or {}
    columns = [
        text_column("Module", lambda name: name),
        Column("Rank", lambda name: ranks[name], digits=0),
        text_column("Lost, of its size", lambda name: f"{errors.get(name, 0.0):.1e}"),
    ]
    more = len(ranks) - MAX_MODULES
    caption = f"{more:,} more modules are in the file." if more > 0 else ""
    rows = list(ranks)[:MAX_MODULES]
    return Section("modules", "The merged modules", [Table("Modules", rows, columns, "module", caption)])


def _what_it_tells() -> Section:
    """Return what adapters tell about people."""
    return Section("people", "What it tells about people", [Items(list(TELLS))])


def _how_it_was_made(record: Mapping[str, Any]) -> Section:
    """Return method, notes, options and versions."""
    notes = "; ".join(record["result"].get("notes") or ()) or None
    facts: dict[str, object | None] = {"Method": record.get("method"), "What to know": notes}
    return Section("made", "How it was made", [Facts(facts), *options_and_versions(record)])
