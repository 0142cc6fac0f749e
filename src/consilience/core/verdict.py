"""What a fusion chose, and whether it is known to do no harm."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class HarmWarning(UserWarning):
    """A fused model is taken up that is known to be worse than the best of the models that went in.

    Silenced by intent with ``warnings.simplefilter("ignore", consilience.HarmWarning)``.
    """

    code = "W-HARM"


@dataclass(frozen=True)
class Verdict:
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

    def __str__(self) -> str:
        return self.text

    def warn(self, stacklevel: int = 3) -> None:
        """Warn if harm is known, for whoever takes the model up without reading this."""
        if self.harmless is False:
            remedy = f" To do: {self.remedy}." if self.remedy else ""
            warnings.warn(f"{self.text}{remedy} [{HarmWarning.code}]", HarmWarning, stacklevel=stacklevel)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {
            "code": self.code,
            "text": self.text,
            "harmless": self.harmless,
            "candidates": dict(self.candidates),
            "criterion": self.criterion,
            "loss": self.loss,
            "remedy": self.remedy,
        }
