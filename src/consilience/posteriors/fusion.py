"""The result of fusing posteriors: fused posterior, matching, objective and provenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Labels
from consilience.core.details import Status
from consilience.core.fusion import FusedInput, Fusion
from consilience.core.kind import ensemble_is_no_file
from consilience.core.provenance import bind_provenance
from consilience.core.verdict import Verdict
from consilience.drawing.blocks import Block
from consilience.drawing.plots import Chart
from consilience.errors import InputError
from consilience.files.atomic import refuse_to_replace
from consilience.matching.result import Matching
from consilience.posteriors.describe import describe_all
from consilience.posteriors.details import PosteriorDetails
from consilience.posteriors.files import write_posterior
from consilience.posteriors.intervals import Intervals, intervals_of
from consilience.posteriors.plots import components_chart, forest_chart, number_chart
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.summary import notes_of, summary_lines


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PosteriorFusion(Fusion):
    """A fused posterior and how it was computed; further fields are those of `Fusion`.

    Parameters
    ----------
    posterior : Posterior
        Posterior over the G fused components.
    atoms : Posterior, optional
        Posterior over the points that stand for the fused components, conditional on the matching (G, D): what SPAHM
        infers beside `posterior`. Default: None, for methods without.
    """

    no_file = ensemble_is_no_file("concatenate")

    posterior: Posterior
    matching: Matching
    details: PosteriorDetails
    inputs: tuple[FusedInput[Posterior], ...] = field(default=(), repr=False)
    _rebuild: Callable[[Posterior], Any] = field(repr=False)
    _judge: Callable[[Posterior, PosteriorDetails, Status], Verdict] | None = field(default=None, repr=False)
    atoms: Posterior | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        bind_provenance(self.posterior, self.provenance, lambda value: value.digest)

    @cached_property
    def model(self) -> Any:
        """A fitted model of the kind that went in, with the fused components; for an ensemble, a ModelEnsemble.

        Where the verdict knows of harm, a HarmWarning says so.
        """
        self.verdict.warn(stacklevel=5)  # past what caches the property
        return bind_provenance(self._rebuild(self.posterior), self.provenance, lambda model: describe_all(model).digest)

    @property
    def n_components(self) -> int:
        """Number G of fused components."""
        return self.posterior.n_components

    def _own_verdict(self) -> Verdict:
        if self._judge is None:
            return super()._own_verdict()
        return self._judge(self.posterior, self.details, self.status)  # by parameters alone

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be known of single models, a sentence each: what was left out and why, and who is far apart."""
        return tuple(notes_of(self.details))

    def _charts(self) -> Mapping[str, Chart | str]:
        local = [site.value.natural for site in self.inputs]
        labels = self.matching.labels
        is_known = bool(local) and sum(map(len, local)) == len(labels)
        return {
            "components": components_chart(self.posterior, np.concatenate(local) if is_known else None, labels),
            **self.matching._charts(),
            "number": number_chart(self.details, self.n_components),
            "forest": forest_chart(self),
            **super()._charts(),
        }

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each fused component: observations, share, mean and deviation of each feature, sites."""
        columns = self.posterior.to_columns()
        return {"component": columns.pop("component"), "sites": self._n_sites.tolist(), **columns}

    @property
    def _n_sites(self) -> Labels:
        """Number of sites that hold each component (G,)."""
        labels, owner = self.matching.labels, self.matching.owner
        pairs = np.unique(np.stack([labels[labels >= 0], owner[labels >= 0]]), axis=1)
        return np.bincount(pairs[0], minlength=self.n_components)

    def _blocks(self) -> Sequence[Block | None]:
        from consilience.posteriors.report.page import notebook_blocks  # here, so that fusing needs no pages

        return [*super()._blocks(), *notebook_blocks(self)]

    def _summary_lines(self) -> list[str]:
        return summary_lines(self)

    def intervals(self, level: float = 0.9) -> Intervals:
        """Return credible intervals of the components' means, a row for each component and feature.

        After the hierarchical average these are of the mean of the distribution that the sites' components come from.
        They are conditional on the matching, and too narrow where components overlap, which the rows say
        (docs/concepts/average.md).

        Parameters
        ----------
        level : float, default 0.9
            Probability inside each interval.

        Raises
        ------
        OptionError
            For a level that is not between 0 and 1.
        InputError
            For components without means of data, such as inducing points.
        """
        return intervals_of(self.posterior, self.details, self._n_sites, level)

    def _write(self, path: Path) -> None:
        write_posterior(path, self.posterior, self.record)

    def report(self, path: str | Path, *, data: Any = None, truth: Any = None, overwrite: bool = False) -> None:
        """Write a page about the fusion, whole or not at all: one HTML file without scripts that fetches nothing.

        It shows names, counts and parameters of the models that went in, and what `data` show of the fused one, so keep
        it where these may be seen.

        Parameters
        ----------
        path : str or Path
            File to write; usually ``*.html``.
        data : mapping of str to array_like of shape (T, D), array_like, table or path, optional
            Rows by name, or one array of them: for a hidden Markov model, sequences whose states are decoded and
            drawn over time; for a sparse Gaussian process, inputs with their targets in the last column. Instead of an
            array also a table with named columns, or the path of a .csv, .npy or .npz file.
        truth : mapping of str to array_like of shape (T,), array_like, or str, optional
            Known labels by name, or for the one array, to hold beside the decoded states; or the name of the
            column of `data` that has them.
        overwrite : bool, optional
            Whether a file that is there may be replaced which this library did not write. Default: False.

        Raises
        ------
        InputError
            When the path cannot be written, the data do not fit, or nothing of data is shown of such models.
        OptionError
            For a truth without data.
        """
        refuse_to_replace(path, overwrite)
        from consilience.posteriors.report.content import (
            content_of,
        )  # here, so that fusing alone starts without the pages
        from consilience.posteriors.report.illustration import illustrate
        from consilience.posteriors.report.page import write_page

        posterior_of = {(site.name, site.sha256): site.value for site in self.inputs}
        records = self.provenance["inputs"]  # ordered by content, unlike `inputs`
        posteriors = [posterior_of.get((record["name"], record.get("sha256"))) for record in records]
        if self.keeps_models and data is not None:
            raise InputError("data", "an ensemble asks every model by itself, so its report shows no data")
        illustration = illustrate(self.posterior, data, truth)
        write_page(Path(path), content_of(self.record, self.posterior, posteriors, illustration))
