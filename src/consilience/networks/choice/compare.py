"""Networks compared on the same inputs, sites' own among them, and the choice of one; see ``default``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from consilience.checks import Array, Labels
from consilience.errors import InputError, UnsupportedError, reason_of
from consilience.networks.choice.candidate import Candidate, CandidateOptions
from consilience.networks.choice.choose import CandidateFacts, CandidateScores
from consilience.networks.choice.criterion import (
    Criterion,
    Disagreement,
    Divergence,
    ErrorOnLabels,
    MeanOfHeads,
    NextToken,
    SquaredGap,
)
from consilience.networks.choice.excess_errors import ExcessErrors, excess_errors
from consilience.networks.choice.inputs import MAX_EXCESS_OF_STATISTICS, ChoiceInputs
from consilience.networks.choice.rows import Rows, outputs_of
from consilience.networks.choice.sites import Sites
from consilience.networks.choice.teacher import Teacher
from consilience.networks.choice.verdict import Choice
from consilience.networks.choice.workshop import Workshop
from consilience.networks.classes.logits import OneOutput, TwoClasses, as_probabilities
from consilience.networks.classes.shares import class_skew
from consilience.networks.output_layout import as_row_outputs

_ASKED = "asked"
"""What seconds are known by in which all sites' networks are asked on the inputs to compare on."""


@dataclass(eq=False)
class CandidateComparison:
    """Sites' own networks, and what subclasses or callers make of them, on the same inputs; one of them is chosen."""

    workshop: Workshop  # the networks and their averages
    inputs: ChoiceInputs  # inputs to fit, to stop and to compare on
    rng: np.random.Generator  # source of the draws of refits and distillations
    started: float  # ``time.monotonic()`` at the start of the fusion
    # Which candidates subclasses make besides averages, and until when.
    options: CandidateOptions = field(default_factory=CandidateOptions)
    notes: list[str] = field(default_factory=list)  # what was left out, and why; grows while candidates are made
    is_cut_short: bool = False  # whether something was left out since time was up
    n_made: int = 0  # candidates so far, besides the sites'
    # Seconds that candidates took, by how they were made, the longest of each.
    seconds: dict[str, float] = field(default_factory=dict)

    @cached_property
    def on_fit(self) -> Array:
        """What the sites' networks answer on the inputs to fit on (J, n, k)."""
        return self._site_outputs(self.inputs.fit)

    @cached_property
    def on_early(self) -> Array:
        """What they answer on the inputs to stop on (J, n, k)."""
        return self._site_outputs(self.inputs.early)

    @cached_property
    def on_held(self) -> Array:
        """What they answer on the inputs to compare on (J, n, k)."""
        with self._timed(_ASKED):
            return self._site_outputs(self.inputs.held)

    def _site_outputs(self, rows: Rows) -> Array:
        return np.stack([self._outputs(module, rows) for module in self.workshop.modules])

    def _outputs(self, module: Any, rows: Rows) -> Array:
        """Return what a network answers on inputs (n, k), of two classes always two numbers."""
        return outputs_of(self._as_classifier(module), rows)

    def _as_classifier(self, module: nn.Module) -> nn.Module:
        """Return the network as one that returns rows, for two classes always two numbers."""
        rows = self._as_rows(module)
        return rows if self.one_output is None else TwoClasses(rows, self.one_output)

    def _as_rows(self, module: nn.Module) -> nn.Module:
        """Return the network as one that returns rows, and takes the arguments of `Rows`."""
        layout = self.inputs.layout
        return module if layout is None else as_row_outputs(module, layout, self.inputs.fit.inputs)

    @cached_property
    def one_output(self) -> OneOutput | None:
        """What networks of one output for two classes return; None for all others.

        Raises UnsupportedError where it is neither the log odds of a linear layer nor a probability.
        """
        classes = self.workshop.sites.classes
        if classes is None or len(classes) != 2:
            return None
        held = self.inputs.held
        answers = np.concatenate([outputs_of(self._as_rows(module), held) for module in self.workshop.modules])
        if answers.shape[1] != 1:
            return None
        if self.workshop.head is not None:
            return "logits"
        if ((answers >= 0) & (answers <= 1)).all():
            return "probabilities"
        raise UnsupportedError("the networks answer 1 number for 2 classes, neither log odds nor a probability")

    @cached_property
    def teacher(self) -> Teacher:
        """The ensemble of all sites."""
        return Teacher(self.sites, self.classifies, self._heads)

    @property
    def _heads(self) -> tuple[tuple[slice, bool], ...]:
        """Columns of every output, and whether it classifies, for networks of several; empty for one.

        Where no site describes labels of outputs, those of several numbers are taken for classes.
        """
        layout = self.inputs.layout
        if layout is None or len(layout.widths) < 2:
            return ()
        said = map(self.workshop.ordered.classify, range(len(layout.widths)))
        return tuple(
            (columns, columns.stop - columns.start > 1 if classify is None else classify)
            for columns, classify in zip(layout.heads, said, strict=True)
        )

    @cached_property
    def classifies(self) -> bool:
        """Whether the networks classify; of those whose sites say nothing of labels, several outputs are classes.

        Language models classify tokens; networks that return the shape of their inputs, or several outputs, do not.
        """
        sites, n_outputs, layout = self.workshop.ordered, self.on_held.shape[2], self.inputs.layout
        if self._is_language_model:
            return True
        if layout is not None and sites.classes is None and layout.is_reconstruction:
            return False
        if self._heads:
            return False
        if sites.classes is not None and n_outputs != len(sites.classes):
            raise UnsupportedError(f"the networks answer {n_outputs} numbers for {len(sites.classes)} classes")
        return (sites.classes is not None or n_outputs > 1) and not sites.is_regression

    @cached_property
    def sites(self) -> Sites:
        """The sites in canonical order, their classes estimated where nobody says them and images are matched.

        On images that have the statistics of the data of all sites, the mean answer of a site's network tells the
        distribution of its classes: to 0.07 to 0.19 in total variation (docs/evidence/synthetic_inputs.md). Counts that
        a site says are kept.
        """
        sites = self.workshop.ordered
        if self.inputs.source != "matched" or sites.class_counts is not None or not self.classifies:
            return sites
        answers = np.stack([as_probabilities(of_site) for of_site in self.on_fit])  # (J, n, C)
        estimated = answers.mean(axis=1)  # (J, C)
        # Answers without the frequencies of classes tell none, nor do NaN.
        removed = any(said is not None and said.class_prior == "removed" for said in sites.descriptions)
        if removed or not np.isfinite(estimated).all():
            return sites
        for number, said in enumerate(sites.descriptions):
            if said is not None and said.class_counts is not None and said.class_counts.any():
                estimated[number] = said.class_counts / said.class_counts.sum()
        return replace(sites, estimated_classes=estimated)

    @property
    def max_made(self) -> int:
        """Largest number of candidates besides the sites' networks."""
        return 0

    def _made(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Yield what is made of the networks, given all candidates so far, which grow meanwhile: here nothing."""
        del candidates
        return iter(())

    def choose(self) -> Choice:
        """Return all candidates with their scores, and the one to take."""
        n_steps = self.max_made
        candidates = self.site_candidates()
        n_sites = len(candidates)
        for candidate in self._made(candidates):
            candidates.append(candidate)
            self.n_made = len(candidates) - n_sites
            self.workshop.progress(len(candidates) - n_sites, n_steps)
        choice = self.compare(candidates)
        self.workshop.progress(n_steps, n_steps)
        return choice

    def site_candidates(self) -> list[Candidate]:
        """Return the sites' own networks; on matched images of sites that differ in their classes to compare only.

        There no site stands for all. One that holds the classes that most images are taken for agrees with the ensemble
        on them: of digits of four classes in ten such a site, of 43 %, could not be distinguished from a fused network
        of 90.
        """
        candidates = self.workshop.site_candidates()
        if not self._sites_stand_for_all:
            return [replace(candidate, is_eligible=False) for candidate in candidates]
        return candidates

    @property
    def _sites_stand_for_all(self) -> bool:
        """Whether some sites can be judged as all: not on matched images where classes differ."""
        return self.inputs.source != "matched" or self._are_classes_alike

    @property
    def _notes_on_classes(self) -> list[str]:
        """Notes on estimated class distributions that differ between sites."""
        counts = self.sites.class_counts
        if self.sites.estimated_classes is None or counts is None or self._are_classes_alike:
            return []
        return [
            f"Sites share {1 - class_skew(counts):.0%} of their class distribution, as their answers on matched images "
            "tell, so that no single site stands for all"
        ]

    @property
    def _are_classes_alike(self) -> bool:
        """Whether sites have their classes alike, where these are given or estimated; regressions have none."""
        return self.sites.have_classes_alike is not False

    def compare(
        self, candidates: Sequence[Candidate], choose: Callable[[CandidateScores], int] = CandidateScores.choose
    ) -> Choice:
        """Return candidates with their scores on held-out inputs, and which of them a rule takes."""
        held = self.inputs.held
        criterion = self._criterion(held, self.on_held)
        scores, answers = self._scored(candidates, held, self.on_held)
        ensemble = self.teacher.answers(self.on_held, held.inputs)
        chosen = choose(scores)
        gap = None
        if self.classifies and not self._is_language_model:
            gap = float(np.mean(answers[chosen] != ensemble.argmax(axis=1)))
        return Choice(
            tuple(candidates),
            chosen,
            criterion,
            scores,
            float(criterion.losses(ensemble).mean()),
            gap,
            notes=(*self.inputs.notes, *self._notes_on_classes, *self.notes),
            can_exclude_harm=self.inputs.stand_for_all,
            one_output=self.one_output,
            is_cut_short=self.is_cut_short,
            estimated_classes=self.sites.estimated_by_name,
            lost_classes=self._lost_classes(candidates, answers, chosen) if criterion.is_labelled else (),
        )

    def _scored(
        self, candidates: Sequence[Candidate], rows: Rows, on_sites: Array
    ) -> tuple[CandidateScores, list[Labels]]:
        """Return the scores of candidates on inputs, given the sites' outputs on them, and what class each answers."""
        criterion = self._criterion(rows, on_sites)
        losses, ties, answers = [], [], []
        for outputs in self._outputs_of(candidates, rows, on_sites):
            losses.append(_by_input(criterion.losses(outputs), rows))
            ties.append(_by_input(criterion.ties(outputs), rows))
            answers.append(outputs.argmax(axis=1))
        own_errors = self._own_errors if criterion.is_labelled else None
        facts = [self._facts_of(candidate, own_errors) for candidate in candidates]
        mean_gap = self._excesses.mean if criterion.is_labelled else 0.0
        return CandidateScores(np.stack(losses), np.stack(ties), facts, mean_gap, self._are_classes_alike), answers

    def _facts_of(self, candidate: Candidate, own_errors: Sequence[tuple[float, float]] | None) -> CandidateFacts:
        """Return what is known of a candidate besides its losses."""
        site = candidate.site
        return CandidateFacts(
            is_site=site is not None,
            margin=self.inputs.margin if candidate.effort.is_fitted else 0.0,
            is_eligible=candidate.is_eligible,
            size=float(sum(self.workshop.ordered.weights[one] for one in candidate.sites)),
            own_error=None if site is None or own_errors is None else own_errors[site],
            stands_for_sites=self._stands_for_sites(candidate),
        )

    def _lost_classes(self, candidates: Sequence[Candidate], answers: Sequence[Labels], chosen: int) -> tuple[str, ...]:
        """Return the classes of which the chosen network takes most for another, and a site's own does not."""
        labels, names = self.inputs.held.labels, self.workshop.ordered.classes
        if labels is None or names is None:
            return ()
        own = [number for number, candidate in enumerate(candidates) if candidate.site is not None]

        def excess(candidate: int, number: int) -> int:
            """Return how many more inputs of a class a candidate finds than it misses."""
            is_right = answers[candidate][labels == number] == number
            return int(is_right.sum() - (~is_right).sum())

        return tuple(
            name
            for number, name in enumerate(names)
            if excess(chosen, number) < 0 and any(excess(site, number) > 0 for site in own)
        )

    def _outputs_of(self, candidates: Sequence[Candidate], rows: Rows, on_sites: Array) -> Iterator[Array]:
        """Yield what candidates answer on inputs, one at a time, as outputs may be many; those of sites are known."""
        for candidate in candidates:
            yield self._outputs(candidate.module, rows) if candidate.site is None else on_sites[candidate.site]

    @cached_property
    def _excesses(self) -> ExcessErrors:
        """By how much more often sites' networks err on inputs drawn as their site describes them than on its own."""
        excesses = excess_errors(
            self.workshop.ordered.descriptions,
            lambda site, rows: self._outputs(self.workshop.modules[site], rows),
            self.workshop.plain_modules[0],
            self.rng,
        )
        if excesses.mean > MAX_EXCESS_OF_STATISTICS:
            self.notes.append(
                f"inputs drawn from descriptions are unlike real ones: on them the sites' networks err "
                f"{excesses.mean:.1%} {'more' if excesses.is_harder else 'less'} often than on the sites' own"
            )
        return excesses

    @property
    def _own_errors(self) -> list[tuple[float, float]] | None:
        """Errors of sites' networks on their own rows, with standard errors; None where they do not compare.

        They do where class distributions are alike, and all say the error on rows of one kind: held out or trained on.
        """
        said = [one for one in self.workshop.ordered.descriptions if one is not None]
        known = [(e, (e * (1 - e) / one.n_observations) ** 0.5) for one in said if (e := one.own_error) is not None]
        is_known = len(known) == len(self.workshop.modules) and len({one.held_out is None for one in said}) == 1
        return known if is_known and self.sites.have_classes_alike else None

    def _stands_for_sites(self, candidate: Candidate) -> bool:
        """Whether what was fitted needs a margin over it: a site's own network, and on matched images several of these.

        On inputs drawn with their classes, which judge by labels, several side by side are candidates as others are: of
        four described LeNets in twice the width that was 2.3 points better (experiments/synthetic_inputs).
        """
        return candidate.site is not None or (len(candidate.sites) > 1 and self.inputs.source == "matched")

    def best(self, candidates: Sequence[Candidate], count: int) -> list[Candidate]:
        """Return so many candidates of the least loss on the inputs to stop by, ties broken by the criterion's rule."""
        early = self.inputs.early
        criterion = self._criterion(early, self.on_early)
        losses, ties = [], []
        for outputs in self._outputs_of(candidates, early, self.on_early):
            losses.append(float(criterion.losses(outputs).mean()))
            ties.append(float(criterion.ties(outputs).mean()))
        return [candidates[int(number)] for number in np.lexsort((ties, losses))[:count]]

    def _criterion(self, rows: Rows, outputs: Array) -> Criterion:
        """Return what candidates are compared by on inputs, for the sites' outputs (J, n, k) on them."""
        if rows.labels is not None and self.classifies:
            return ErrorOnLabels(rows.labels)
        if rows.next_tokens is not None:
            return NextToken(rows.next_tokens)
        answers = self.teacher.answers(outputs, rows.inputs)
        if self._heads:
            of_heads = [
                (columns, Disagreement(answers[:, columns]) if classifies else SquaredGap(answers[:, columns]))
                for columns, classifies in self._heads
            ]
            return MeanOfHeads(tuple(of_heads))
        if not self.classifies:
            return SquaredGap(answers)
        return Divergence(answers) if self._is_language_model else Disagreement(answers)

    @property
    def _is_language_model(self) -> bool:
        """Whether the networks answer the token after each."""
        return self.inputs.layout is not None and self.inputs.layout.is_next_token

    @property
    def _seconds_left(self) -> float | None:
        """Seconds left for further candidates, those for evaluating all of them deducted; None without a bound."""
        most = self.options.max_seconds
        if most is None:
            return None
        asked = self.seconds.get(_ASKED, 0.0) / len(self.workshop.modules)
        return most - (time.monotonic() - self.started) - (self.n_made + 1) * asked

    def _is_too_late(self, what: str, how: str = "") -> bool:
        """Return whether a bound on seconds leaves no time for what takes as long as before, and note what is left out.

        `how` is what seconds of candidates that were made so are known by.
        """
        left = self._seconds_left
        if left is None or left > self.seconds.get(how, 0.0):
            return False
        self.is_cut_short = True
        self.notes.append(f"{what} was left out: {self.options.max_seconds:g} seconds had passed")
        return True

    @contextmanager
    def _timed(self, how: str) -> Iterator[None]:
        """Remember how long it takes to make a candidate so."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[how] = max(self.seconds.get(how, 0.0), time.monotonic() - start)

    @contextmanager
    def _or_noted(self, what: str) -> Iterator[None]:
        """Leave out a candidate that cannot be made, with a note on why."""
        try:
            yield
        except (InputError, UnsupportedError) as error:
            self.notes.append(f"{what} was left out: {reason_of(error)}")


def _by_input(losses: Array, rows: Rows) -> Array:
    """Return the mean loss (n,) of every input, whose rows come one after the other: losses at positions depend."""
    by_input: Array = losses.reshape(len(rows), -1).mean(axis=1)
    return by_input
