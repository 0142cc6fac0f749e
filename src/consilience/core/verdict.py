"""What a fusion chose, and whether it is known to do no harm."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from consilience.checks import Json
from consilience.drawing.blocks import Block, Facts, Paragraph, markup, sentences
from consilience.drawing.display import MAX_NAMES, Displayed, Tabular
from consilience.drawing.plots import Chart, Plotted, draw_scores
from consilience.drawing.words import shorten
from consilience.errors import HarmWarning, UncomparedWarning

UNCOMPARED = "no_inputs"
"""The code of a verdict on networks of which nothing tells whether the fused one is better than any of them."""
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
    """

    code: str
    text: str
    harmless: bool | None = None
    candidates: Mapping[str, float] = field(default_factory=dict)
    criterion: str | None = None
    loss: float | None = None
    remedy: str | None = None

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
        return FUSED if FUSED in self.candidates else None

    def in_short(self, n_models: int, outcome: str) -> str:
        """Return one sentence for a reader who fuses no models: what came out, whether it is better, what comes next.

        `outcome` is what came out, such as "one model of 3 components".
        """
        criterion = self.criterion or ""
        words = next((said for start, said in _IN_WORDS.items() if criterion.startswith(start)), criterion)
        basis = f"judged by {words}" if words else "by how it was computed"
        if self.harmless:
            known = f"known to be no worse than any of them ({basis})"
            following = "check it on data that no site has trained on"
        elif self.harmless is False:
            known = f"known to be worse than the best of them ({basis})"
            following = "do not adopt it before the causes below are mended"
        else:
            known = "not known to be better than each of them"
            following = "compare it with each site's own on that site's data before anybody adopts it"
        if self.remedy:
            following = "see to what is marked below before anybody adopts it"
        went_in = f"{n_models:,} models went in" if n_models != 1 else "1 model went in"
        return f"{went_in} and {outcome} came out, {known}; next, {following}."

    def paragraph(self) -> Paragraph:
        """Return the verdict as reports and notebooks show it."""
        remedy = f"To do: {shorten(self.remedy, 400)}." if self.remedy else ""
        said = sentences(markup("<strong>{}</strong>", shorten(self.text, 600)), remedy)
        return Paragraph(said, self.paragraph_kind)

    @property
    def paragraph_kind(self) -> str:
        """CSS class of the verdict: amber where there is something to act on, green only where harm is excluded."""
        if self.harmless is False or self.remedy:
            return "status act"
        return "status" if self.harmless else "status open"

    @classmethod
    def read(cls, record: object) -> Verdict | None:
        """Return the verdict in a provenance, which may be somebody else's; None where it has none or another form."""
        if not isinstance(record, Mapping) or not isinstance(record.get("text"), str) or not record["text"]:
            return None
        harmless, criterion, remedy = (record.get(name) for name in ("harmless", "criterion", "remedy"))
        return cls(
            str(record.get("code", "")),
            record["text"],
            harmless if isinstance(harmless, bool) else None,
            criterion=criterion if isinstance(criterion, str) and criterion else None,
            remedy=remedy if isinstance(remedy, str) and remedy else None,
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
        """Return the verdict as JSON values."""
        return {**vars(self), "candidates": dict(self.candidates)}
