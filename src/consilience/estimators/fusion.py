"""The result of fusing estimators: the sums of all sites, and the estimator that they give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from consilience.core.features import Features
from consilience.core.fusion import FusedInput, Fusion
from consilience.core.inspection import MAX_LISTED
from consilience.core.provenance import bind_provenance
from consilience.core.scores import LEVEL
from consilience.core.verdict import Verdict
from consilience.drawing.plots import Chart, draw_intervals
from consilience.drawing.words import printable
from consilience.estimators.describe import describe_all
from consilience.estimators.details import EstimatorDetails
from consilience.estimators.files import write_statistics
from consilience.estimators.inference import coefficients_of, column_names, inference_of
from consilience.estimators.statistics import Statistics
from consilience.files.atomic import refuse_to_replace
from consilience.matching.result import Matching

ALL_SITES = "all sites"
"""What plots call the estimate from the sums of all sites."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class EstimatorFusion(Fusion):
    """Statistics of the rows of all sites, and the estimator that they give.

    Parameters
    ----------
    statistics : Statistics
        Sums over all sites.
    """

    statistics: Statistics
    matching: Matching
    details: EstimatorDetails
    inputs: tuple[FusedInput[Statistics], ...] = field(default=(), repr=False)
    _model: Any = field(repr=False)
    _verdict: Verdict = field(repr=False)

    def __post_init__(self) -> None:
        bind_provenance(self.statistics, self.provenance, lambda value: value.digest)

    def _where_else(self, name: str) -> str:
        if hasattr(type(self._model), name):
            return f"its fitted model does: fusion.model.{name}"
        return "the sums are in .statistics" if name in ("posterior", "network") else super()._where_else(name)

    @cached_property
    def model(self) -> Any:
        """The estimator of the class that went in: what ``fit`` gives on the rows of all sites."""
        return bind_provenance(self._model, self.provenance, lambda model: describe_all(model).digest)

    def _own_verdict(self) -> Verdict:
        return self._verdict

    @property
    def n_components(self) -> int:
        """Number of classes; 1 for estimators without."""
        return self.statistics.n_components

    @property
    def features(self) -> Features:
        """What the columns mean."""
        return self.statistics.features

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be known of single sites, a sentence each: classes that few know, what was left out and why."""
        details, statistics = self.details, self.statistics
        lines: list[str] = []
        known = details.get("classes", {})
        if statistics.classes is not None:
            for name in statistics.classes.names:
                holders = [site for site, counts in known.items() if name in counts]
                if 0 < len(holders) < len(known):
                    listed = ", ".join(map(printable, holders[:MAX_LISTED])) + ", ..." * (len(holders) > MAX_LISTED)
                    lines.append(f"class {printable(name)} is known to {len(holders)} of {len(known)} sites: {listed}")
        withheld = details.get("withheld")
        if withheld:
            lines += [
                f"{printable(one['model'])}: {printable(str(one['component']))} has fewer than"
                f" {withheld['min_count']:g} rows, and was left out"
                for one in withheld["components"][:MAX_LISTED]
            ]
        lines += [printable(line) for line in details.get("aligned_columns", [])]
        lines += [f"sites differ: {printable(line)}" for line in details.get("hyper_parameters", [])]
        return tuple(lines)

    def _charts(self) -> Mapping[str, Chart | str]:
        fused = coefficients_of(self.statistics)
        title = (
            "Coefficients"
            if fused is None or fused.intervals is None
            else f"Coefficients, {100 * LEVEL:.0f} % intervals"
        )
        classes = self.matching._charts()["matching"] if self.statistics.classes is not None else "it has no classes"
        return {
            "coefficients": f"a {self.statistics.kind} has no coefficients"
            if fused is None
            else partial(draw_intervals, names=fused.names, means=fused.values, intervals=fused.intervals, title=title),
            "sites": self._sites_chart(),
            "matching": classes,
        }

    def _sites_chart(self) -> Chart | str:
        """Return what draws the coefficients of all sites together and of each alone, or why that cannot be."""
        together = inference_of(self.statistics)
        alone = [(site.name, inference_of(site.value)) for site in self.inputs]
        known = [(name, inference) for name, inference in alone if inference is not None]
        if together is None or not known:
            return "only linear regressions have intervals of each site"
        rows = [
            (f"{column}, {name}", inference.coefficients[c], inference.intervals(LEVEL)[c], name == ALL_SITES)
            for c, column in enumerate(column_names(self.statistics))
            for name, inference in [(ALL_SITES, together), *known]
        ]
        names, means, ends, marked = zip(*rows, strict=True)
        title = f"Coefficients by site, {100 * LEVEL:.0f} % intervals"
        return partial(
            draw_intervals, names=names, means=np.array(means), intervals=np.array(ends), title=title, marked=marked
        )

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each coefficient; else a row for each site.

        A coefficient has its standard error and its interval of `level`, if these are known.
        """
        fused = coefficients_of(self.statistics)
        if fused is None:
            names = [site.name for site in self.inputs]
            return {"site": names, "rows": [site.value.n_observations for site in self.inputs]}
        columns: dict[str, list[Any]] = {"coefficient": list(fused.names), "fused": fused.values.tolist()}
        if fused.errors is not None:
            columns["standard_error"] = fused.errors.tolist()
        if fused.intervals is not None:
            low, high = fused.intervals.T.tolist()
            columns |= {"low": low, "high": high, "level": [LEVEL] * len(low)}
        return columns

    def _summary_lines(self) -> list[str]:
        statistics = self.statistics
        classes = "" if statistics.classes is None else f" of {len(statistics.classes)} classes"
        sites = len(self.provenance["inputs"])
        rows = f"{statistics.n_observations:,.0f} rows{classes}"
        return [f"{sites} sites with {rows} -> {statistics.kind}", *self.notes]

    def _came_out(self) -> str:
        return f"one {self._outcome()}"

    def _outcome(self) -> str:
        return f"{self.statistics.kind} on {self.statistics.n_observations:,.0f} rows"

    def _write(self, path: Path) -> None:
        write_statistics(path, self.statistics, self.record)

    def report(self, path: str | Path, *, level: float = LEVEL, overwrite: bool = False) -> None:
        """Write a page about the fusion, whole or not at all: one HTML file without scripts that fetches nothing.

        It shows names, rows and coefficients of the sites, so keep it where these may be seen.

        Parameters
        ----------
        path : path
            File for the page.
        level : float, optional
            Probability of all intervals on the page, between 0 and 1. Default: 0.95.
        overwrite : bool, optional
            Whether a file that is there may be replaced which this library did not write. Default: False.

        Raises
        ------
        InputError
            When the path cannot be written.
        OptionError
            For a level that is no probability.
        """
        refuse_to_replace(path, overwrite)
        from consilience.estimators.report import content_of, write_page  # here, so that fusing needs no pages

        sites = [(site.name, site.value) for site in self.inputs]
        write_page(Path(path), content_of(self.statistics, self.record, sites, level))
