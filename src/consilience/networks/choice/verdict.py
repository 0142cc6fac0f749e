"""The verdict on a choice among candidates: which was taken, by which criterion, and what to send to do better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from consilience.core.site_losses import MAX_NAMED
from consilience.core.verdict import UNCOMPARED, Verdict
from consilience.drawing.words import first_names, shorten
from consilience.networks.choice.candidate import Candidate
from consilience.networks.choice.choose import CandidateScores
from consilience.networks.choice.criterion import Criterion
from consilience.networks.choice.sites import Sites
from consilience.networks.classes.shares import MAX_SKEW_OF_ALIKE, class_skew, classes_of_one_site, unseen_classes

MAX_GAP = 0.25
"""Disagreement with the ensemble up to which a network is near it. Above, the verdict advises to keep the ensemble: the
largest losses against it in 26 fusions, 4.4 to 8.7 points, had gaps of 0.22 to 0.30."""

DESCRIBE = "let every site describe its network (`consilience.save(net, path, data=loader)`), or keep fusion.ensemble"
COMPARE = "compare it with the sites' own, which fusion.candidates holds, on rows that none was trained on"
"""The remedy where sites predict numbers, whose distribution no description tells."""
DESCRIBE_MORE = (
    "describe networks with labels, and with more observations of their rare classes, or give unlabelled `inputs=`; "
    "the notes of a description say which classes are left out"
)


@dataclass(frozen=True, eq=False)
class Choice:
    """What the default fusion chose among which candidates."""

    candidates: tuple[Candidate, ...]  # all of them; one where nothing could be compared
    chosen: int  # the number of the one that was taken
    criterion: Criterion | None = None  # by what they were compared; None where they were not
    scores: CandidateScores | None = None  # their losses
    teacher_score: float | None = None  # mean loss of the sites' ensemble
    gap: float | None = None  # share of held-out inputs on which the chosen network and the ensemble disagree
    # `reason`, `remedy`: why nothing was compared, and what to do; empty where it was.
    reason: str = ""
    remedy: str = ""
    notes: tuple[str, ...] = ()  # what was left out, and why
    can_exclude_harm: bool = True  # whether the held-out inputs stand for those of all sites, with their classes
    is_cut_short: bool = False  # whether candidates were left out since time was up
    # What networks of one output for two classes return; None for all others.
    one_output: Literal["logits", "probabilities"] | None = None
    # By site, the distribution of its classes, where that was estimated.
    estimated_classes: Mapping[str, Sequence[float]] | None = None
    lost_classes: tuple[str, ...] = ()  # most of which the one taken misses, and a site's own network does not
    is_named: bool = False  # whether the caller named the method of the one that was taken, so that nothing was chosen

    @property
    def taken(self) -> Candidate:
        """The candidate that was taken."""
        return self.candidates[self.chosen]

    @property
    def loss(self) -> float | None:
        """By how much the mean loss of the one taken exceeds the ensemble's; None where nothing was compared."""
        if self.scores is None or self.teacher_score is None:
            return None
        return float(self.scores.means[self.chosen]) - self.teacher_score

    @property
    def by_name(self) -> dict[str, float]:
        """Mean loss of every candidate by its name."""
        if self.scores is None:
            return {}
        return {
            candidate.name: float(f"{score:.6g}")
            for candidate, score in zip(self.candidates, self.scores.means.tolist(), strict=True)
        }

    @property
    def errors(self) -> dict[str, float]:
        """Standard error of every candidate's difference from the best site's own; empty where none was compared."""
        if self.scores is None or not self.scores.sites:
            return {}
        best = min(self.scores.sites, key=self.scores.means.tolist().__getitem__)
        return {
            candidate.name: float(f"{self.scores.excess(number, best)[1]:.6g}")
            for number, candidate in enumerate(self.candidates)
            if number != best
        }


def verdict_of(choice: Choice, sites: Sites) -> Verdict:
    """Return the verdict on a choice: a sentence on what was taken, what it rests on, and the remedy."""
    notes = _notes(choice, sites)
    if choice.scores is None or choice.criterion is None:
        text = f"{choice.reason}, so no candidate was compared; taken: {choice.taken.name}."
        said = " ".join([text, _UNKNOWN, *notes])
        return Verdict(code=UNCOMPARED, text=said, harmless=None, remedy=choice.remedy or None)
    is_labelled = choice.criterion.is_labelled
    percent = choice.criterion.number_format
    can_tell = is_labelled and choice.can_exclude_harm
    harmless: Literal[False] | None = False if can_tell and choice.scores.is_harmful(choice.chosen) else None
    is_better = can_tell and harmless is None and choice.scores.is_better(choice.chosen)
    found = _found(choice, choice.criterion, choice.scores, percent)
    code, text, remedy = _outcome(choice, sites, found, is_labelled, harmless)
    if is_better:
        others = "other " if choice.taken.site is not None else ""
        text += f" {_BETTER.format(others)}"
    elif harmless is None:
        text += f" {_UNKNOWN}"
        if not is_labelled and remedy is None:
            remedy = COMPARE if sites.is_regression else DESCRIBE_MORE if sites.describe_inputs else DESCRIBE
    return Verdict(
        code=code,
        text=" ".join([text, *notes]),
        harmless=harmless,
        candidates=choice.by_name,
        criterion=choice.criterion.name,
        loss=choice.loss,
        remedy=remedy,
        chosen=choice.taken.name,
        errors=choice.errors,
    )


def _found(choice: Choice, criterion: Criterion, scores: CandidateScores, percent: str) -> str:
    """Return the losses of the chosen candidate and of the best site, and the number of candidates."""
    site_scores = [float(scores.means[k]) for k in scores.sites]
    of_sites = f" (best site {percent.format(min(site_scores))})" if site_scores else ""
    among = "" if choice.is_named else f", among {len(choice.candidates)} candidates"
    return f"{percent.format(scores.means[choice.chosen])} {criterion.name}{of_sites}{among}"


def _outcome(
    choice: Choice, sites: Sites, found: str, is_labelled: bool, harmless: Literal[False] | None
) -> tuple[str, str, str | None]:
    """Return the code of a choice that was made, what was taken with what was found of it, and a remedy."""
    taken = choice.taken
    if harmless is False:
        text = f"Taken: {taken.name}, which is worse than a site's own network, with {found}."
        return "harm", text, "take the network of that site, or keep fusion.ensemble"
    if taken.site is not None:
        name = shorten(sites.names[taken.site])
        text = f"No fused network is clearly better than that of {name}, which is returned unchanged: {found}."
        return "site", text, None
    if choice.gap is not None and choice.gap > MAX_GAP and not is_labelled:
        text = f"No single network comes near the sites' ensemble; the nearest fused one, {taken.name}, has {found}."
        remedy = "keep fusion.ensemble, or let every site describe its network with the moments of its classes"
        return "keep_ensemble", text, remedy
    code = "named" if choice.is_named else "labelled" if is_labelled else "chosen"
    return code, f"{'Asked for' if choice.is_named else 'Chosen'}: {taken.name}, with {found}.", None


_UNKNOWN = "Whether it is no worse than the best site is not known."
_BETTER = (
    "On synthetic inputs drawn from the sites' descriptions it is better than every {}site's own network; whether on "
    "real ones too, rows that sites hold out tell."
)


def _notes(choice: Choice, sites: Sites) -> list[str]:
    """Return further sentences: weights, skew, classes of one site, and what was left out."""
    notes = []
    if not sites.are_weights_stated:
        notes.append("All networks count alike, since not every site says its number of observations.")
    counts, classes = sites.class_counts, sites.classes
    if counts is not None and classes is not None:
        # Of a class that a site withholds nobody knows whether it is the only one.
        withheld = {name for one in sites.descriptions if one is not None for name in one.withheld}
        alone, unseen = (
            [classes[number] for number in numbers if classes[number] not in withheld]
            for numbers in (classes_of_one_site(counts), unseen_classes(counts))
        )
        if (skew := class_skew(counts)) > MAX_SKEW_OF_ALIKE:
            of_one = f"; {_named(alone)} {'is' if len(alone) == 1 else 'are'} held by one site only" if alone else ""
            notes.append(f"Sites share {1 - skew:.0%} of their class distribution{of_one}.")
        if unseen:
            notes.append(f"No site saw {_named(unseen)}.")
    if choice.lost_classes:
        notes.append(f"It misses most of {_named(choice.lost_classes)}, of which a site's own network finds most.")
    return [*notes, *(f"{note}." for note in choice.notes)]


def _named(classes: Sequence[str]) -> str:
    """Return the first names of classes and how many more there are."""
    noun = "class" if len(classes) == 1 else "classes"
    return f"{noun} {first_names(classes, MAX_NAMED)}"
