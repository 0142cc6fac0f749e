"""What fusing posteriors returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from consilience.checks import Array
from consilience.core.fusion import Fusion
from consilience.core.status import Status
from consilience.errors import InputError
from consilience.matching.result import Matching
from consilience.posteriors.files import write_posterior
from consilience.posteriors.methods.ensemble import NO_FILE
from consilience.posteriors.posterior import Posterior


@dataclass(frozen=True, eq=False)
class FusionInput:
    """One of the models that went in; kept for the report, never saved.

    Parameters
    ----------
    name
        What it is called in messages: its path, or its place in the list.
    posterior
        What it was described as.
    weight
        How much it counted, weights scaled to mean 1.
    sha256
        Digest of its file; None for a model that was handed in as an object.
    """

    name: str
    posterior: Posterior
    weight: float
    sha256: str | None


@dataclass(frozen=True, eq=False)
class PosteriorFusion(Fusion):
    """A fused posterior and how it came about.

    Parameters
    ----------
    posterior
        Posterior over the fused components.
    matching
        Which fused component each local component became.
    objective
        Value of the method's objective at the end; NaN for a method without one.
    history
        The objective after each iteration (iterations,).
    status
        How the fusion ended; ``status.value`` says what to do about it.
    details
        What the method found on its way, such as the regularization it chose.
    provenance
        Method, options, seed, inputs and versions, as JSON values; every saved file carries it.
    inputs
        What went in, in the order given.
    keeps_models
        Whether `model` is all models side by side, which no file holds.
    atoms
        Posterior over the points that stand for the fused components, given the matching (G, D): what SPAHM finds
        beside `posterior`. None for methods without.
    """

    posterior: Posterior
    matching: Matching
    objective: float
    history: Array
    status: Status
    details: Mapping[str, Any]
    provenance: Mapping[str, Any]
    inputs: tuple[FusionInput, ...] = field(repr=False)
    _rebuild: Callable[[Posterior], Any] = field(repr=False)
    keeps_models: bool = False
    atoms: Posterior | None = field(default=None, repr=False)

    @cached_property
    def model(self) -> Any:
        """A fitted model of the kind that went in, with the fused components; for an ensemble, a ModelEnsemble."""
        return self._rebuild(self.posterior)

    @property
    def n_components(self) -> int:
        """Number G of fused components."""
        return self.posterior.n_components

    def save(self, path: str | Path) -> None:
        """Write the fused posterior with its provenance, whole or not at all.

        Raises
        ------
        InputError
            When the path cannot be written, or the fused model is an ensemble.
        """
        if self.keeps_models:
            raise InputError(f"{path}: {NO_FILE}")
        write_posterior(Path(path), self.posterior, dict(self.provenance))

    def report(self, path: str | Path, *, data: Any = None, truth: Any = None) -> None:
        """Write a page about the fusion, whole or not at all: one HTML file without scripts that fetches nothing.

        It shows names, counts and parameters of the models that went in, and what `data` show of the fused one, so keep
        it where these may be seen.

        Parameters
        ----------
        path
            Where to; usually ``*.html``.
        data
            Rows (T, D) by name, or one array of them: for a hidden Markov model, sequences whose states are decoded and
            drawn over time; for a sparse Gaussian process, inputs with their targets in the last column. Instead of an
            array also a table with named columns, or the path of a .csv, .npy or .npz file.
        truth
            Known labels (T,) by name, or for the one array, to hold beside the decoded states; or the name of the
            column of `data` that has them.

        Raises
        ------
        InputError
            When the path cannot be written, the data do not fit, or nothing of data is shown of such models.
        OptionError
            For a truth without data.
        """
        from consilience.posteriors.report.content import content_of  # here, so that fusing alone starts without jinja2
        from consilience.posteriors.report.illustration import illustrate
        from consilience.posteriors.report.page import write_page

        posteriors = {(one.name, one.sha256): one.posterior for one in self.inputs}
        records = self.provenance["inputs"]
        known = [posteriors.get((record["name"], record.get("sha256"))) for record in records]
        if self.keeps_models and data is not None:
            raise InputError("data: an ensemble asks every model by itself, so nothing is shown of them beside it")
        shown = illustrate(self.posterior, data, truth)
        write_page(Path(path), content_of(self.provenance, self.posterior, known, shown))
