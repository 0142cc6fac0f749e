"""Axes of traced tensors as sums of products of axis parts.

While a module is traced it is not known yet which units move together. An axis is a row of *terms*, one after the other
(concatenation), and a term is a row-major product of *factors*. A factor is a number (a stretch that never moves) or an
*axis part*: units that may be renumbered freely as far as is known. An axis of length 3 * 4 + 5, whose first stretch
has 3 units of 4 fixed positions each, is

    ((part(3), 4), (5,)).

Operations join axes. Two parts that must move together become one (a union-find forest: `AxisPart.merged_into`), a part
that meets a concatenation or a product is expanded to it (`AxisPart.expansion`), and one that meets what never moves is
fixed. Whatever was built of a part before sees what became of it, so that operations may be taken in any order.

A part made by reshaping units to (outer, inner) lies *inside* the outer one: every outer unit may renumber its inner
units in its own way. Where the outer part never moves, the inner one becomes a *family*: one member part for every unit
of the outer one, its *host* (queries, keys and values packed into one weight). Both hold only in tensors that have the
outer axis beside the inner one; `AxisAlgebra.drop_ambiguous_nesting` makes inner units alike where this is not so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias, Union

MAX_OUTER_UNITS = 64
"""Fixed outer units whose inner units may differ, at most; inside more of them, inner units move alike. It bounds the
number of terms of an axis. Chosen by hand; nobody has measured other values."""


@dataclass(eq=False)
class AxisPart:
    """Units that move together, as far as is known.

    Mutable, because what is learnt later changes what was built before.
    """

    size: int  # number of units
    # Whether an array of the network has these units; constants and broadcasts have parts of their own.
    in_array: bool = False
    fixed: bool = False  # whether the units never move
    merged_into: AxisPart | None = None  # the part that represents this one since both were joined
    expansion: AxisTerms | None = None  # the axis that this part turned out to be
    host: AxisPart | None = None  # for a family: the part, fixed, that has a member for every unit
    members: tuple[AxisPart, ...] = ()  # for a family: the part inside each unit of the host
    # Parts whose units contain these; more than one until it is settled which of them does.
    outer_parts: list[AxisPart] = field(default_factory=list)
    # Parts whose units lie inside these, and families that have this part as their host.
    inner_parts: list[AxisPart] = field(default_factory=list)

    @property
    def is_family(self) -> bool:
        """Whether it stands for a part of its own in every unit of its host."""
        return bool(self.members)


Factor: TypeAlias = Union[int, AxisPart]  # noqa: UP007  (an alias that mypy and Python 3.11 both evaluate)
Term: TypeAlias = tuple[Factor, ...]
AxisTerms: TypeAlias = tuple[Term, ...]


def representative(part: AxisPart) -> AxisPart:
    """Return the part that represents this one."""
    while part.merged_into is not None:
        part = part.merged_into
    return part


def fixed_axis(size: int) -> AxisTerms:
    """Return an axis that never moves."""
    return ((size,),)


def factor_size(factor: Factor) -> int:
    """Return how many entries a factor has."""
    return factor if isinstance(factor, int) else factor.size


def term_size(term: Term) -> int:
    """Return how many entries a term has."""
    return prod(factor_size(factor) for factor in term)


def axis_size(axis: AxisTerms) -> int:
    """Return the length of an axis."""
    return sum(term_size(term) for term in axis)


def as_factor(axis: AxisTerms) -> AxisPart:
    """Return a whole axis as one part, so that it can be a factor of a product."""
    return AxisPart(axis_size(axis), expansion=axis)


def free_axis(size: int, in_array: bool = False) -> AxisTerms:
    """Return an axis of units that may move; a single unit cannot."""
    return fixed_axis(size) if size == 1 else ((AxisPart(size, in_array),),)


def resolve(axis: AxisTerms) -> AxisTerms:
    """Return an axis in terms of what its parts have become; neighbouring stretches that never move are merged."""
    terms: list[Term] = []
    for term in axis:
        for expanded in _expand(term):
            both_fixed = terms and all(isinstance(f, int) for f in expanded + terms[-1])
            if both_fixed:
                terms[-1] = (term_size(terms[-1]) + term_size(expanded),)
            else:
                terms.append(expanded)
    return tuple(terms)


def _expand(term: Term) -> list[Term]:
    """Return a term with every part replaced by what it has become; several terms where a factor is a concatenation."""
    factors: list[Factor] = []
    for number, factor in enumerate(term):
        terms = _terms_of(factor)
        if len(terms) == 1:
            _append(factors, terms[0])
        elif (repetitions := _n_repetitions(factors)) is not None:
            # n * (a + b) * rest: the concatenation is written out once for each of the n fixed outer units.
            following = term[number + 1 :]
            return [p for _ in range(repetitions) for inner in terms for p in _expand(inner + following)]
        else:
            assert isinstance(factor, AxisPart)  # noqa: S101  (a number is one term)
            factors.append(representative(factor))
    return _expand_hosts(factors)


def _terms_of(factor: Factor) -> AxisTerms:
    """Return what a factor has become: a number, itself, or the axis that it was expanded to."""
    if isinstance(factor, int):
        return fixed_axis(factor)
    part = representative(factor)
    if part.expansion is not None and part.size > 1:
        return resolve(part.expansion)
    is_number = part.size == 1 or (part.fixed and not hosted_families(part))
    return fixed_axis(part.size) if is_number else ((part,),)


def _expand_hosts(factors: Sequence[Factor]) -> list[Term]:
    """Return a term for every unit of a host that occurs with its families, with their members there."""
    for number, factor in enumerate(factors):
        following = tuple(factors[number + 1 :])
        if isinstance(factor, AxisPart) and any(host_of(inner) is factor for inner in following):
            repetitions = _n_repetitions(factors[:number])
            if repetitions is not None:
                host_units = [_select_members(following, factor, unit) for unit in range(factor.size)]
                return [p for _ in range(repetitions) for members in host_units for p in _expand(members)]
    return [tuple(factors) or (1,)]


def parts_of(axis: AxisTerms) -> list[AxisPart]:
    """Return the parts of a resolved axis in order, those of concatenations inside products included."""
    parts = []
    for term in resolve(axis):
        for factor in term:
            if isinstance(factor, AxisPart):
                parts.extend([factor] if factor.expansion is None else parts_of(factor.expansion))
    return parts


def single_part(axis: AxisTerms) -> AxisPart | None:
    """Return the axis part that an axis consists of, None if it consists of anything else."""
    resolved = resolve(axis)
    if len(resolved) == 1 and len(resolved[0]) == 1 and isinstance(resolved[0][0], AxisPart):
        return resolved[0][0]
    return None


def may_move(axes: Iterable[AxisTerms]) -> bool:
    """Whether units of some array may still move along these axes."""
    return any(
        any(
            representative(member).in_array and not representative(member).fixed for member in (part.members or (part,))
        )
        for axis in axes
        for part in parts_of(axis)
    )


def outer_part(part: AxisPart) -> AxisPart | None:
    """Return the part whose units contain those of this one, once that is settled."""
    return representative(part.outer_parts[0]) if part.outer_parts else None


def put_inside(part: AxisPart, outer: AxisPart) -> None:
    """Put the units of a part inside those of another."""
    part.outer_parts.append(outer)
    representative(outer).inner_parts.append(part)


def unite(part: AxisPart, into: AxisPart) -> None:
    """Let one part represent both."""
    part.merged_into = into
    into.in_array = into.in_array or part.in_array
    into.outer_parts += part.outer_parts
    into.inner_parts += part.inner_parts


def family_like(family: AxisPart, members: list[AxisPart]) -> AxisPart:
    """Return a family of these members under the host of another family."""
    new_family = AxisPart(members[0].size, family.in_array, host=family.host, members=tuple(members))
    if family.host is not None:
        representative(family.host).inner_parts.append(new_family)
    return new_family


def host_of(factor: Factor) -> AxisPart | None:
    """Return the host of a family, None for any other factor."""
    return representative(factor.host) if isinstance(factor, AxisPart) and factor.host is not None else None


def hosted_families(part: AxisPart) -> list[AxisPart]:
    """Return the families that have a member for every unit of this part."""
    return [representative(inner) for inner in part.inner_parts if host_of(representative(inner)) is part]


def _select_members(term: Term, host: AxisPart, unit: int) -> Term:
    """Return a term with the families of a host replaced by their members at one of its units."""
    return tuple(f.members[unit] if isinstance(f, AxisPart) and host_of(f) is host else f for f in term)


def _append(factors: list[Factor], added: Iterable[Factor]) -> None:
    """Append factors in place; neighbouring numbers are multiplied, ones are left out."""
    for factor in added:
        last = factors[-1] if factors else None
        if isinstance(factor, int) and isinstance(last, int):
            factors[-1] = last * factor
        elif factor != 1:
            factors.append(factor)


def _n_repetitions(factors: Sequence[Factor]) -> int | None:
    """Return how often what follows these factors is repeated; None where they move or are too many to write out."""
    if any(isinstance(factor, AxisPart) for factor in factors):
        return None
    repetitions = prod(factor_size(factor) for factor in factors)
    return repetitions if repetitions <= MAX_OUTER_UNITS else None


def at_host_units(axis: AxisTerms, host: AxisPart, units: Sequence[int], new_host: AxisPart | None = None) -> AxisTerms:
    """Return an axis at some units of a host: members in place of its families.

    Where several units are selected, `new_host` is the host of the families that remain.
    """
    terms = []
    for term in resolve(axis):
        factors: list[Factor] = []
        for factor in term:
            if not isinstance(factor, AxisPart) or host_of(factor) is not host:
                factors.append(factor)
            elif len(units) == 1:
                factors.append(factor.members[units[0]])
            else:
                members = tuple(factor.members[n] for n in units)
                family = AxisPart(factor.size, factor.in_array, host=new_host, members=members)
                if new_host is not None:
                    new_host.inner_parts.append(family)
                factors.append(family)
        terms.append(tuple(factors))
    return tuple(terms)
