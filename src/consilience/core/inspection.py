"""Inspection of files: lines of a name and a text, and what all formats say alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.core.min_count import shown_text
from consilience.drawing.words import printable

MAX_LISTED = 8
"""Groups, arrays and columns that a line names; more are counted."""

Row = tuple[str, str]


def listed(texts: Sequence[str], count: int | None = None) -> str:
    """Return the first of some texts, and how many there are where there are more."""
    total = len(texts) if count is None else count
    return ", ".join(texts[:MAX_LISTED]) + (f", ... ({total})" if total > MAX_LISTED else "")


def table(rows: Sequence[Row]) -> str:
    """Return rows as lines, with whatever files say made printable."""
    return "\n".join(f"{name + ':':12} {printable(value)}" for name, value in rows)


PEOPLE = "What this file tells about people"
"""Name of the row that begins the last part of every inspection."""


def people_rows(rows: Sequence[Row], protection: str) -> list[Row]:
    """Return the last part of an inspection: what a file tells about people, and what protects them.

    `protection` says in words what was withheld.
    """
    differences = "two files differing by one person disclose that person's data, by one site, that site's: publish one"
    return [
        (PEOPLE, ""),
        *rows,
        ("differences", differences),
        ("protection", f"{protection}; no noise is added, so no formal privacy is given"),
    ]


def plain_words(
    what: str,
    n_observations: float | None,
    partners: str,
    made: bool = False,
    following: str | None = None,
    loaded_by: str = "`consilience.rebuild(FUSED)`",
) -> tuple[str, ...]:
    """Return an inspection in sentences: what it is, from how many observations, its partners, what to do next.

    `what` has its article; the number is shown rounded, and None where the header does not say it. `following` is by
    default to check and fuse it, or, for what a fusion made, to compare it with a site's own; `loaded_by` is the call
    that returns such a model in Python.

    Examples
    --------
    >>> for sentence in plain_words("a mixture of 3 components", 1201.0, "mixtures of the same columns"):
    ...     print(sentence)
    This is a mixture of 3 components.
    Behind it are about 1,200 observations.
    It can be fused with mixtures of the same columns.
    Next: see that it fits the others with `consilience check FILE...`, then `consilience fuse FILE... -o FUSED`.
    """
    if n_observations is None:
        behind = "Its header does not say how many observations are behind it."
    elif n_observations == 0:
        behind = "No observation is behind it."
    else:
        behind = f"Behind it are {shown_text(n_observations)} observations."
    following = following or (f"{_COMPARE}, and use it in Python: {loaded_by}" if made else _FUSE)
    return f"This is {what}.", behind, f"It can be fused with {partners}.", f"Next: {following}."


_FUSE = "see that it fits the others with `consilience check FILE...`, then `consilience fuse FILE... -o FUSED`"
_COMPARE = "compare it with a site's own model on that site's data with `consilience evaluate FUSED OWN --data DATA`"


def provenance_rows(made: dict[str, Any]) -> list[Row]:
    """Return how a file came to be; provenance is any JSON object, so nothing of it is taken for granted."""
    rows = [("fused by", f"{made.get('method')} {made.get('options')} seed {made.get('seed')}")]
    result = made.get("result")
    if isinstance(result, dict) and result.get("repaired"):
        rows.append(("repaired", str(result["repaired"])))
    verdict = made.get("verdict")
    if isinstance(verdict, dict) and verdict.get("text"):
        rows.append(("verdict", str(verdict["text"])))
    inputs = made.get("inputs")
    records = [one for one in inputs if isinstance(one, dict)] if isinstance(inputs, list) else []
    return rows + [
        ("from", f"{one.get('name')}: weight {one.get('weight')}, sha256 {one.get('sha256')}") for one in records
    ]
