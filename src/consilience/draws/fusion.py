"""The result of fusing draws: draws of the full posterior, in the container that went in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from consilience.core.fusion import FusedInput, Fusion
from consilience.core.provenance import bind_provenance
from consilience.core.verdict import Verdict
from consilience.drawing.plots import Chart, draw_intervals
from consilience.drawing.words import format_number, printable
from consilience.draws.containers import to_container
from consilience.draws.details import DrawsDetails
from consilience.draws.draws import LEVEL, Draws, as_draws
from consilience.draws.files import write_draws
from consilience.files.atomic import refuse_to_replace
from consilience.matching.result import Matching

MAX_PARAMETERS = 20
"""Parameters that are printed; more are counted. Chosen by hand."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DrawsFusion(Fusion):
    """Draws of the posterior of all sites' data.

    Parameters
    ----------
    draws : Draws
        The fused draws, in one chain.
    """

    draws: Draws
    matching: Matching
    details: DrawsDetails
    inputs: tuple[FusedInput[Draws], ...] = field(default=(), repr=False)
    _verdict: Verdict = field(repr=False)

    def __post_init__(self) -> None:
        bind_provenance(self.draws, self.provenance, lambda value: value.digest)

    def _where_else(self, name: str) -> str:
        is_elsewhere = name in ("posterior", "network", "statistics")
        return "the draws are in .draws" if is_elsewhere else super()._where_else(name)

    @cached_property
    def model(self) -> Any:
        """The fused draws in the container that went in: InferenceData, a DataTree, a dictionary of arrays.

        Warns where the verdict knows that they do harm.

        Raises
        ------
        UnsupportedError
            Where the container's library is not installed.
        """
        self.verdict.warn(stacklevel=5)  # past what caches the property
        return bind_provenance(to_container(self.draws), self.provenance, lambda container: as_draws(container).digest)

    def _own_verdict(self) -> Verdict:
        return self._verdict

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be known of single sites, a sentence each: whose coordinates were aligned by name."""
        return tuple(map(printable, self.details.get("aligned_columns", ())))

    def _came_out(self) -> str:
        return self._outcome()

    def _outcome(self) -> str:
        return f"{self.draws.n_draws:,} draws of their joint posterior"

    @property
    def n_components(self) -> int:
        """Number of exchangeable components; of variables where there are none."""
        return self.draws.n_components

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each parameter of the fused draws: mean, standard deviation, ends of the 90 % interval."""
        return self.draws.to_columns()

    def _summary_lines(self) -> list[str]:
        draws = self.draws
        entries = draws.entries().reshape(draws.n_draws, -1)
        lines = [
            f"{name:24} {format_number(float(column.mean()))} ± {format_number(float(column.std()))}"
            for name, column in zip(draws.names[:MAX_PARAMETERS], entries.T, strict=False)
        ]
        more = len(draws.names) - MAX_PARAMETERS
        lines += [f"and {more} more parameters"] if more > 0 else []
        return [*lines, *self.notes]

    def _charts(self) -> Mapping[str, Chart | str]:
        columns = self.draws.to_columns()
        chart = partial(
            draw_intervals,
            names=columns["parameter"],
            means=np.array(columns["mean"]),
            intervals=np.column_stack([columns["low"], columns["high"]]),
            title=f"Parameters, {100 * LEVEL:.0f} % intervals",
        )
        labels = self.matching._charts()["matching"] if self.draws.exchangeable else "no components were matched"
        return {"parameters": chart, "matching": labels}

    def _write(self, path: Path) -> None:
        write_draws(path, self.draws, self.record)

    def report(self, path: str | Path, *args: Any, overwrite: bool = False, **kwargs: Any) -> None:
        """Write a page about the fusion, whole or not at all: one HTML file without scripts that fetches nothing.

        With `overwrite` a file that is there is replaced also where this library did not write it.

        Raises
        ------
        InputError
            When the path cannot be written.
        """
        refuse_to_replace(path, overwrite)
        from consilience.draws.report import content_of, write_page  # here, so that fusing needs no pages

        sites = [(site.name, site.value) for site in self.inputs]
        write_page(Path(path), content_of(self.draws, self.record, sites), *args, **kwargs)
