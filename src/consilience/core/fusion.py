"""What every fusion returns, whatever was fused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, final

import numpy as np

from consilience.checks import Array, Json
from consilience.core.details import Details, Status
from consilience.core.site_losses import SiteChoice
from consilience.core.verdict import SIDE_BY_SIDE, Verdict
from consilience.drawing.blocks import Block, Facts, Paragraph
from consilience.drawing.display import Displayed, Tabular, names_in_line
from consilience.drawing.plots import Chart, Plotted, draw_history, draw_scores
from consilience.drawing.words import format_count, printable
from consilience.errors import InputError, Problem
from consilience.files.atomic import refuse_to_replace

if TYPE_CHECKING:
    from consilience.core.agreement import Doubt
    from consilience.networks.network import Network
    from consilience.posteriors.posterior import Posterior

_OF_MODELS = (
    "decision_function", "fit", "forward", "kneighbors", "predict", "predict_log_proba", "predict_proba", "sample",
    "score", "score_samples", "state_dict", "transform",
)  # fmt: skip
"""Names that fitted models have: what somebody asks of a fusion who takes it for its model."""

_ELSEWHERE = {
    "posterior": "what was fused are networks: see .network",
    "atoms": "what was fused are networks: see .network",
    "network": "what was fused are posteriors: see .posterior",
    "aligned": "what was fused are posteriors: see .inputs and .matching",
    "aligned_models": "what was fused are posteriors: see .inputs and .matching",
    "quality": "what was fused are posteriors: see .matching.confidence",
}

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False, slots=True)  # there may be very many
class FusedInput(Generic[Value]):
    """An input that was fused; kept for the report, never saved."""

    name: str  # its name in results and reports
    value: Value  # what it was described as: a posterior, statistics, draws
    sha256: str | None  # digest of its file; None for an object in memory
    # Its weight, scaled to mean 1. Default: None, where inputs count by what they say themselves.
    weight: float | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Fusion(Displayed, Plotted, Tabular, ABC):
    """A fused model and how it came about: what every kind's fusion has.

    Parameters
    ----------
    matching
        The fused component of each component that went in; by group for networks.
    details : Details
        What the method found on its way: a dictionary of JSON values, whose keys the kind's own record states.
    provenance : mapping of str to value
        Method, options, seed, inputs and versions, as JSON values; every saved file carries it.
    objective : float, optional
        Value of the method's objective at the end. Default: NaN, for a method without one.
    history : array of shape (iterations,), optional
        The objective after each iteration. Default: empty.
    status : Status, optional
        How the fusion ended; ``status.value`` says what to do about it. Default: converged.
    inputs : tuple, optional
        The models that went in, in the order in which they were fused: as handed in, but draws and estimators by name.
        Default: empty, where they are not at hand, as of shards.
    keeps_models : bool, optional
        Whether `model` is all models side by side, which no file holds. Default: False.
    doubts : tuple of str, optional
        Why the inputs may not mean the same, a sentence each; they stand in the verdict. Default: none.
    at_sites : SiteChoice, optional
        What rows that sites held out say of it, by which it was chosen and is judged. Default: None, nobody asked them.
    """

    kind: ClassVar[str]
    no_file: ClassVar[tuple[str, str]]
    """Why an ensemble of such models is no file, and what to do instead."""

    matching: Any
    details: Details
    provenance: Mapping[str, Any] = field(repr=False)
    objective: float = float("nan")
    history: Array = field(default_factory=lambda: np.zeros(0))
    status: Status = Status.CONVERGED
    inputs: tuple[Any, ...] = field(default=(), repr=False)
    keeps_models: bool = False
    doubts: tuple[Problem, ...] = ()
    at_sites: SiteChoice | None = field(default=None, repr=False)

    if TYPE_CHECKING:

        @property
        def posterior(self) -> Posterior: ...  # noqa: D102
        @property
        def network(self) -> Network: ...  # noqa: D102
        @property
        def atoms(self) -> Posterior | None: ...  # noqa: D102

    def _where_else(self, name: str) -> str:
        if name in _OF_MODELS or (name.endswith("_") and not name.startswith("_")):  # as fitted attributes do
            return f"the fused model may have it, as fusion.model.{name}"
        return _ELSEWHERE.get(name) or super()._where_else(name)

    @property
    @abstractmethod
    def model(self) -> Any:
        """The fused model, of the kind that went in."""

    @property
    @abstractmethod
    def n_components(self) -> int:
        """Number of fused components, or of fused units of a network."""

    @final
    @cached_property
    def verdict(self) -> Verdict:
        """The judgement on the fusion in one sentence: how it ended, what is still to do, whether harm is excluded.

        Nothing is known to be harmless whose inputs may not mean the same (`doubts`).
        """
        verdict = self._own_verdict() if self.at_sites is None else self._verdict_at_sites(self.at_sites)
        if self.single_site is not None:
            verdict = replace(verdict, single_site=self.single_site)
        if not self.doubts:
            return verdict
        remedies = filter(None, [*(doubt.remedy for doubt in self.doubts), verdict.remedy])
        return replace(
            verdict,
            text=f"{verdict.text} In doubt: {'; '.join(f'{doubt.subject} {doubt.text}' for doubt in self.doubts)}.",
            harmless=False if verdict.harmless is False else None,
            remedy="; ".join(dict.fromkeys(remedies)) or None,
            is_doubtful=True,
        )

    def _verdict_at_sites(self, choice: SiteChoice) -> Verdict:
        """Return the verdict of the sites, with what is still wrong with the fused model."""
        verdict, problems = choice.verdict(), self.open_problems()
        if not problems:
            return verdict
        remedies = filter(None, [verdict.remedy, *problems.values()])
        text = f"{verdict.text} Open: {'; '.join(problems)}."
        return replace(verdict, text=text, remedy="; ".join(dict.fromkeys(remedies)), is_doubtful=True)

    @property
    def single_site(self) -> str | None:
        """Name of the input that was returned as it is, as no fused one is better; None where models were fused."""
        return None

    def without_single_site(self) -> Self:
        """Return the fusion with its best fused candidate, where an input was returned as it is."""
        return self

    def chosen_at(self, choice: SiteChoice) -> Self:
        """Return the fusion with what sites say of the model that they chose."""
        said = choice.to_json()
        result = {**self.provenance.get("result", {}), "held_out": said}
        details: Any = {**self.details, "held_out": said}
        provenance = {**self.provenance, "result": result}
        return replace(self, at_sites=choice, details=details, provenance=provenance)

    def with_doubts(self, doubts: Sequence[Doubt]) -> Self:
        """Return the fusion with why its inputs may not mean the same."""
        return replace(self, doubts=tuple(doubt.problem for doubt in doubts)) if doubts else self

    def _own_verdict(self) -> Verdict:
        """Return the verdict on inputs that mean the same."""
        ending = self.status.value.partition("; ")[0]
        problems = [*([] if self.status is Status.CONVERGED else [ending]), *self.open_problems()]
        remedies = [remedy for remedy in (self.status.remedy, *self.open_problems().values()) if remedy]
        subject = "all models side by side are" if self.keeps_models else "the fused model is"
        text = "; ".join([f"Whether {subject} no worse than the best of the models is not known", *problems])
        return Verdict(
            code=self.status.name.lower(),
            text=f"{text}.",
            harmless=None,
            remedy="; ".join(dict.fromkeys(remedies)) or None,
        )

    @property
    def in_short(self) -> str:
        """What command, cell and report begin with: what was fused, whether it is better, what comes next."""
        return self.verdict.in_short(self._n_models, self._came_out())

    @property
    def site_names(self) -> tuple[str, ...]:
        """Names of the models that went in; empty where they have none, such as the sites of shards."""
        return tuple(str(record["name"]) for record in self.provenance.get("inputs", ()))

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be known of single models, a sentence each: what was left out and why, and who is far apart."""
        return ()

    def _headline(self) -> str:
        return f"{format_count(self._n_models, 'model')} -> {self._outcome()} (method {self.provenance.get('method')})"

    @property
    def _n_models(self) -> int:
        """Number of models that went in."""
        of_shards = self.details.get("sites")
        return of_shards if isinstance(of_shards, int) else len(self.site_names)

    def _came_out(self) -> str:
        """Return a description of the fused model, as a part of a sentence."""
        return SIDE_BY_SIDE if self.keeps_models else f"one model of {self._outcome()}"

    def _outcome(self) -> str:
        """Return the size of the fused model in few words."""
        return format_count(self.n_components, "component")

    def _facts(self) -> dict[str, object | None]:
        verdict, notes = self.verdict, self.notes
        more = f" (and {len(notes) - 1} more: fusion.notes)" if len(notes) > 1 else ""
        return {
            "": verdict.text,
            "to do": verdict.remedy,
            "note": f"{notes[0]}{more}" if notes else None,
            "models": names_in_line(self.site_names),
        }

    def _charts(self) -> Mapping[str, Chart | str]:
        verdict = self.verdict
        scores = partial(
            draw_scores,
            scores=verdict.candidates,
            chosen=verdict._chosen or self.details.get("chosen"),
            criterion=verdict.criterion,
        )
        history = self.history
        return {
            "candidates": scores if verdict.candidates else "nothing was compared",
            "history": partial(draw_history, history=history) if len(history) > 1 else "it was found in one step",
        }

    def _blocks(self) -> Sequence[Block | None]:
        verdict = self.verdict
        facts = {"Models": names_in_line(self.site_names), "What to know": "; ".join(self.notes) or None}
        return [Paragraph(self.in_short, "short"), verdict.paragraph(), Facts(facts) if any(facts.values()) else None]

    @property
    def record(self) -> dict[str, Json]:
        """The provenance with the verdict, as every saved file carries it."""
        return {**self.provenance, "verdict": self.verdict.to_json()}

    def summary(self) -> str:
        """Return as text the verdict in short and in full, what to do, and what else a reader should know."""
        return "\n".join([self.in_short, *self._verdict_lines(), *self._summary_lines()])

    def _verdict_lines(self) -> Sequence[str]:
        """Return the verdict in full and what to do."""
        verdict = self.verdict
        return [printable(verdict.text), *([f"to do: {printable(verdict.remedy)}"] if verdict.remedy else [])]

    def _summary_lines(self) -> Sequence[str]:
        """Return the lines of the summary after the verdict."""
        return self.notes

    def open_problems(self) -> Mapping[str, str]:
        """Return what is still wrong with the fused model, each with its remedy."""
        return {}

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the fused model with its provenance and verdict, whole or not at all.

        Where the verdict knows of harm, a HarmWarning says so.

        Parameters
        ----------
        path : str or Path
            File to write; usually ``*.safetensors``.
        overwrite : bool, optional
            Whether a file that is there may be replaced which this library did not write. Default: False.

        Raises
        ------
        InputError
            When the path cannot be written, or the fused model is an ensemble.
        """
        if self.keeps_models:
            raise InputError(path, *self.no_file)
        refuse_to_replace(path, overwrite)
        self.verdict.warn()
        self._write(Path(path))

    @abstractmethod
    def _write(self, path: Path) -> None:
        """Write the fused model with `record`."""

    @abstractmethod
    def report(self, path: str | Path, *args: Any, **kwargs: Any) -> None:
        """Write a page about the fusion, whole or not at all: one HTML file without scripts that fetches nothing.

        With `overwrite` a file that is there is replaced also where this library did not write it.
        """
