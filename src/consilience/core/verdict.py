"""What a fusion chose, and whether it is known to do no harm."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from consilience.checks import Json
from consilience.drawing.blocks import Block, Facts, Paragraph, markup, prose, sentences
from consilience.drawing.display import MAX_NAMES, Displayed, Tabular
from consilience.drawing.plots import Chart, Plotted, draw_scores
from consilience.drawing.words import shorten
from consilience.errors import HarmWarning, UncomparedWarning

UNCOMPARED = "no_inputs"
"""The code of a verdict on networks of which nothing tells whether the fused one is better than any of them."""
SIDE_BY_SIDE = "all of them side by side"
"""What comes of a method that keeps all models."""
_OPEN = frozenset({
    "approximate", "chosen", "converged", "exact", "fine", "homogeneous", "iterative", "labelled", "named", "no_inputs",
    "private", "rounded", "site", "sites", "stacked", "weighted",
})  # fmt: skip
"""Codes of verdicts that know of nothing against the fused model."""
_OF_CHOICE = ("chosen", "errors")
"""Fields that only a choice among candidates has."""
FUSED = "fused"
"""What the candidates of a verdict call the fused model."""


_IN_WORDS = {
    "virtual loss": "how well each describes observations drawn from all models, not from people",
    "bound on the virtual loss": "how far its topics are from those of all models, without any document",
}
"""Criteria in words of a reader who knows no information theory, by how their names begin."""


@dataclass(frozen=True, repr=False)
class Verdict(Displayed, Plotted, Tabular):
    """The judgement on a fusion, computed from parameters and statistics alone.

    Parameters
    ----------
    code
        A short name of the case, such as "converged".
    text
        One sentence for the user.
    harmless
        Whether the fused model is no worse than the best model that went in, on the population of all sites: True and
        False where it is known, None where it is not.
    candidates
        Score of every candidate by name, where there was a choice.
    criterion
        What the scores are; None where there was no choice.
    loss
        What is lost against keeping all models, in units of the criterion; None where it is not known.
    remedy
        What to send or to set to do better; None where there is nothing to mend.
    single_site
        Name of the input whose own model is returned, where nothing was fused; None where models were.
    standing
        What the fused model is by how it was computed, a sentence without its end; None for nothing to say.
    is_doubtful
        Whether the inputs may not mean the same, or something is still wrong with the fused model.
    chosen
        Name of the candidate that was taken, where there was a choice.
    errors
        By candidate, the standard error of its score's difference from that of the best of the sites' own models; empty
        where it is not known.
    """

    code: str
    text: str
    harmless: bool | None = None
    candidates: Mapping[str, float] = field(default_factory=dict)
    criterion: str | None = None
    loss: float | None = None
    remedy: str | None = None
    single_site: str | None = None
    standing: str | None = None
    is_doubtful: bool = False
    chosen: str | None = None
    errors: Mapping[str, float] = field(default_factory=dict)

    def _headline(self) -> str:
        return self.code

    def _facts(self) -> dict[str, object | None]:
        ranked = sorted(self.candidates.items(), key=lambda entry: entry[1])
        scores = ", ".join(f"{shorten(name, 24)} {score:.4g}" for name, score in ranked[:MAX_NAMES])
        more = f" and {len(ranked) - MAX_NAMES} more" if len(ranked) > MAX_NAMES else ""
        return {
            "": self.text,
            "to do": self.remedy,
            "harmless": {True: "yes", False: "no", None: "not known"}[self.harmless],
            "candidates": f"{scores}{more} ({self.criterion})" if scores else None,
        }

    def _charts(self) -> dict[str, Chart | str]:
        draw = partial(draw_scores, scores=self.candidates, chosen=self._chosen, criterion=self.criterion)
        return {"candidates": draw if self.candidates else "nothing was compared"}

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for each candidate, the best first: its name and its score."""
        ranked = sorted(self.candidates.items(), key=lambda entry: entry[1])
        return {"candidate": [name for name, _ in ranked], "score": [score for _, score in ranked]}

    @property
    def _chosen(self) -> str | None:
        """The candidate that is the fused model; None where the verdict does not say."""
        return self.chosen or (FUSED if FUSED in self.candidates else None)

    def in_short(self, n_models: int, outcome: str) -> str:
        """Return what a reader who fuses no models needs: what came of it, whether it is better, what comes next.

        `outcome` is the fused model, such as "one model of 3 components".
        """
        models = f"{n_models:,} models" if n_models != 1 else "1 model"
        if self.single_site is not None:
            opening = f"Not fused: this is the model of {shorten(self.single_site)}, as it came."
        elif outcome == SIDE_BY_SIDE:
            opening = f"{models} side by side, not fused into one."
        else:
            opening = f"{outcome[0].upper()}{outcome[1:]}, fused from {models}."
        side_by_side = self.single_site is None and outcome == SIDE_BY_SIDE
        it = "them" if side_by_side else "it"
        following = f"check {it} on data that no site has trained on"
        if self.harmless is False:
            following = f"do not adopt {it} before the causes below are mended"
        elif self.speaks_against or (self.remedy and not self.harmless):
            following = f"see what is said below before anybody adopts {it}"
        elif not self.harmless:
            following = f"compare {it} with each site's own on that site's data before anybody adopts {it}"
        return f"{opening} {self._known(side_by_side=side_by_side)} Next: {following}."

    def _known(self, *, side_by_side: bool) -> str:
        """Return a sentence on how good the fused model, or all side by side, is known to be, and by what."""
        criterion = self.criterion or ""
        words = next((said for start, said in _IN_WORDS.items() if criterion.startswith(start)), criterion)
        basis = f" (judged by {words})" if words else ""
        it_is, of_them = ("all together are", "alone") if side_by_side else ("it is", "of them")
        if self.single_site is not None and self.harmless is not False:
            unknown = "Nothing tells whether a fused one would be better"
            return f"{f'No fused one is clearly better{basis}' if words else unknown}."
        if self.harmless is False:
            return f"{it_is.capitalize()} worse than the best {of_them}{basis}."
        if self.standing:
            return f"{self.standing}."
        if self.harmless:
            return f"{it_is.capitalize()} known to be no worse than any {of_them}{basis}."
        return f"Whether {it_is} better than each {of_them} is not known{basis}."

    @property
    def speaks_against(self) -> bool:
        """Whether something is known that speaks against the fused model: harm, a loss, a site that does not fit."""
        return self.harmless is False or self.is_doubtful or (self.harmless is None and self.code not in _OPEN)

    def paragraph(self) -> Paragraph:
        """Return the verdict as reports and notebooks show it."""
        remedy = f"To do: {shorten(self.remedy, 400)}." if self.remedy else ""
        said = sentences(markup("<strong>{}</strong>", prose(shorten(self.text, 800))), remedy)
        return Paragraph(said, self.paragraph_kind)

    @property
    def paragraph_kind(self) -> str:
        """CSS class of the verdict: green where harm is excluded, amber where something speaks against the fused model.

        Else it is grey: not known, and the text says what would tell.
        """
        if self.speaks_against:
            return "status act"
        return "status" if self.harmless else "status open"

    @classmethod
    def read(cls, record: object) -> Verdict | None:
        """Return the verdict in a provenance, which may be somebody else's; None where it has none or another form."""
        if not isinstance(record, Mapping) or not isinstance(record.get("text"), str) or not record["text"]:
            return None
        harmless = record.get("harmless")

        def said(name: str) -> str | None:
            text = record.get(name)
            return text if isinstance(text, str) and text else None

        return cls(
            str(record.get("code", "")),
            record["text"],
            harmless if isinstance(harmless, bool) else None,
            criterion=said("criterion"),
            remedy=said("remedy"),
            single_site=said("single_site"),
            standing=said("standing"),
            is_doubtful=record.get("is_doubtful") is True,
            chosen=said("chosen"),
        )

    def _blocks(self) -> list[Block | None]:
        facts = {name.capitalize(): text for name, text in self._facts().items() if name and name != "to do"}
        return [self.paragraph(), Facts(facts)]

    def __str__(self) -> str:
        return self.text

    def warn(self, stacklevel: int = 3) -> None:
        """Warn if harm is known, or nothing was compared, for whoever takes the model up without reading this."""
        category = HarmWarning if self.harmless is False else UncomparedWarning if self.code == UNCOMPARED else None
        if category is not None:
            remedy = f" To do: {self.remedy}." if self.remedy else ""
            warnings.warn(f"{self.text}{remedy} [{category.code}]", category, stacklevel=stacklevel)

    def to_json(self) -> dict[str, Json]:
        """Return the verdict as JSON values; what only a choice has is left out where there was none."""
        record = {**vars(self), "candidates": dict(self.candidates), "errors": dict(self.errors)}
        return {name: value for name, value in record.items() if value or name not in _OF_CHOICE}
