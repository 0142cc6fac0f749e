"""What the columns and the outcome of a regression were made of, as a formula says it: kept with sums, and compared.

Columns of one name have two meanings where a site's rows set the constants of a transform, as `standardize(x)` and
`bs(x, df=4)` do, where a factor has other levels, or where rows have an offset at one site alone. The sums of such
columns are sums of two models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from consilience.errors import Problem

CONSTANTS_REMEDY = (
    "state the constants in the formula, the same at all sites, as in `I((x - 50) / 10)` or"
    " `bs(x, knots=(40, 60), lower_bound=0, upper_bound=100)`, then it is exact"
)
"""What to do about constants that a site's rows have set."""

_MAX_SAID = 8
"""Levels of a factor that a message names. Chosen by hand."""


@dataclass(frozen=True)
class Factor:
    """A categorical column of a formula.

    Parameters
    ----------
    levels : tuple of str
        Its levels in their order, the first of which is the reference of the customary contrasts.
    contrasts : str
        Digest of its contrast matrices.
    """

    levels: tuple[str, ...]
    contrasts: str


@dataclass(frozen=True)
class Design:
    """What columns and outcome were made of; empty where nothing but names of columns is known.

    Parameters
    ----------
    outcome : tuple of str, optional
        Name of the outcome, or of its columns, such as ``np.log(y)``. Default: not known.
    factors : mapping of str to Factor
        Categorical terms.
    constants : mapping of str to mapping of str to float, str or None
        By term, the constants of its transforms by name: numbers where they are means and deviations, else digests;
        None of a term whose values depend on other rows, in a way that is not known.
    extra : mapping of str to str or None
        Offset, exposure and kinds of weights that the rows have, with the name of their column, None if not known.
    hasconst : bool, optional
        Whether the columns are said to span the constant, where they do not, or not to, where they do.
    """

    outcome: tuple[str, ...] | None = None
    factors: Mapping[str, Factor] = field(default_factory=dict)
    constants: Mapping[str, Mapping[str, float | str | None]] = field(default_factory=dict)
    extra: Mapping[str, str | None] = field(default_factory=dict)
    hasconst: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what is known, as JSON values."""
        stated: dict[str, Any] = {
            "outcome": None if self.outcome is None else list(self.outcome),
            "factors": {
                name: {"levels": list(factor.levels), "contrasts": factor.contrasts}
                for name, factor in self.factors.items()
            },
            "constants": {term: dict(values) for term, values in self.constants.items()},
            "extra": dict(self.extra),
            "hasconst": self.hasconst,
        }
        return {name: value for name, value in stated.items() if value not in (None, {})}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Design:
        """Return the design that `to_json` gave."""
        outcome = document.get("outcome")
        return cls(
            None if outcome is None else tuple(outcome),
            {name: Factor(tuple(one["levels"]), one["contrasts"]) for name, one in document["factors"].items()},
            {term: dict(values) for term, values in document["constants"].items()},
            dict(document["extra"]),
            document.get("hasconst"),
        )

    def differences(self, other: Design, label: str, *, same_columns: bool = True) -> list[Problem]:
        """Return how the design of another site differs from this one, that of `label`, a line each.

        Columns of the same names should have the same constants too.
        """
        by_term = self._constant_differences(other, label, same_columns)
        by_term = {**self._factor_differences(other, label), **by_term}  # of a term one line
        return [
            *self._outcome_differences(other, label),
            *(by_term[term] for term in sorted(by_term)),
            *self._extra_differences(other, label),
        ]

    def _outcome_differences(self, other: Design, label: str) -> list[Problem]:
        if self.outcome is None or other.outcome is None or self.outcome == other.outcome:
            return []
        text = f"has the outcome {_listed(other.outcome)}, expected {_listed(self.outcome)} as in {label}"
        return [_problem(text, "fit one outcome at all sites, in one unit and by one formula")]

    def _factor_differences(self, other: Design, label: str) -> dict[str, Problem]:
        problems = {}
        for name in sorted(set(self.factors) & set(other.factors)):
            expected, found = self.factors[name], other.factors[name]
            if found.levels != expected.levels:
                lacks = [level for level in expected.levels if level not in found.levels]
                text = f"lacks the level {_listed(lacks)} of {name}: it has" if lacks else f"has the levels of {name}"
                text = f"{text} {_listed(found.levels)}, expected {_listed(expected.levels)}"
                remedy = "declare the same levels in one order at all sites, as in `C(g, levels=[...])`"
                problems[name] = _problem(f"{text} as in {label}", remedy)
            elif found.contrasts != expected.contrasts:
                text = f"codes the levels of {name} by other contrasts than {label}"
                problems[name] = _problem(text, "state the contrasts in the formula, as in `C(g, Treatment('a'))`")
        return problems

    def _constant_differences(self, other: Design, label: str, same_columns: bool) -> dict[str, Problem]:
        problems = {}
        for term in sorted(set(self.constants) | set(other.constants)):
            expected, found = self.constants.get(term), other.constants.get(term)
            if expected is None or found is None:
                if same_columns:
                    text = f"{'states' if expected is None else 'does not state'} constants of {term}, unlike {label}"
                    problems[term] = _problem(text, CONSTANTS_REMEDY)
            elif None in (*expected.values(), *found.values()):
                text = f"has values of {term} that depend on its other rows, by constants that are not known"
                problems[term] = _problem(f"{text}, and so has {label}", CONSTANTS_REMEDY)
            elif names := [name for name in {*expected, *found} if found.get(name) != expected.get(name)]:
                its, others = (_shown({name: of.get(name) for name in names}) for of in (found, expected))
                text = f"expected {others} as in {label}" if its != others else f"other than in {label}"
                problems[term] = _problem(f"has the term {term} with {its}, {text}", CONSTANTS_REMEDY)
        return problems

    def _extra_differences(self, other: Design, label: str) -> list[Problem]:
        problems = []
        for name in sorted(set(self.extra) ^ set(other.extra)):
            has, lacks = ("is", "is not") if name in other.extra else ("is not", "is")
            text = f"{has} fitted with {name}, and {label} {lacks}"
            value = "zero" if name in ("offset", "entry") else "one"
            problems.append(_problem(text, f"fit all sites with {name}, of {value} where rows have none"))
        for name in sorted(set(self.extra) & set(other.extra)):
            expected, found = self.extra[name], other.extra[name]
            if expected is not None and found is not None and expected != found:
                text = f"has the {name} {found}, expected {expected} as in {label}"
                problems.append(_problem(text, "fit all sites with the same"))
        if self.hasconst != other.hasconst:
            text = f"is fitted with another hasconst than {label}"
            problems.append(_problem(text, "fit all sites with the same, or leave it out"))
        return problems


def _problem(text: str, remedy: str) -> Problem:
    return Problem("", text, remedy, "E-MISMATCH")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_SAID]) + ", ..." * (len(names) > _MAX_SAID)


def _shown(constants: Mapping[str, float | str | None]) -> str:
    """Return constants in words, means first: numbers by their values, digests by their names alone."""
    names = sorted(constants, key=lambda name: (not name.endswith("mean"), name))
    values = [(name, constants[name]) for name in names]
    return " and ".join(
        f"{name} {value:.6g}" if isinstance(value, float) else f"constants of {name}" for name, value in values
    )


def merged_designs(designs: Sequence[Design]) -> Design:
    """Return the design of sites that were found to agree: what any of them states."""
    joined = Design()
    for design in designs:
        names = {*joined.extra, *design.extra}
        joined = Design(
            joined.outcome or design.outcome,
            {**design.factors, **joined.factors},
            {**design.constants, **joined.constants},
            {name: joined.extra.get(name) or design.extra.get(name) for name in sorted(names)},
            joined.hasconst if joined.hasconst is not None else design.hasconst,
        )
    return joined


def design_in_words(design: Design) -> list[tuple[str, str]]:
    """Return what a design says, by name, for inspection."""
    rows = [] if design.outcome is None else [("outcome", _listed(design.outcome))]
    rows += [("factor", f"{name}: {_listed(factor.levels)}") for name, factor in design.factors.items()]
    rows += [("constants", f"{term}: {_shown(values)}") for term, values in design.constants.items()]
    rows += [("extra columns", name if of is None else f"{name} {of}") for name, of in design.extra.items()]
    return rows
