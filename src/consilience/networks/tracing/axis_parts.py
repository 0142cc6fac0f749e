"""What an axis of a tensor is made of, while it is not known yet what moves together.

An axis is a row of *terms* (concatenation), a term a row-major product of factors, a factor a number (a stretch that
never moves) or an *atom*: units that may be renumbered freely as far as is known. Operations join axes: two atoms that
must move together become one, an atom that meets a concatenation or a product becomes one too, and one that meets what
never moves is fixed. Everything that was built of an atom before sees what became of it, so that operations may be
taken in any order.

An atom made by reshaping units to (outer, inner) lies *inside* the outer one: every outer unit may renumber its inner
ones in its own way. Where the outer one never moves, the inner one becomes a *family*: one atom for every outer unit
(queries, keys and values packed into one weight). Both hold only in tensors that have the outer axis beside the inner
one; `Atoms.settle` makes inner units alike where this is not so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias, Union

MOST_PIECES = 64
"""Outer stretches that are told apart at most; beyond, what lies inside them is taken to be alike."""


@dataclass(eq=False)
class Atom:
    """Units that move together; mutable, because what is learnt later changes what was built before.

    Parameters
    ----------
    size
        Number of units.
    named
        Whether an array of the network has it; constants and broadcasts have atoms of their own.
    """

    size: int
    named: bool = False
    fixed: bool = False
    same: Atom | None = None
    axis: AxisTerms | None = None
    host: Atom | None = None
    members: tuple[Atom, ...] = ()
    inside: list[Atom] = field(default_factory=list)
    contains: list[Atom] = field(default_factory=list)

    @property
    def is_family(self) -> bool:
        """Whether it is an atom of its own for every unit of its host."""
        return bool(self.members)


Factor: TypeAlias = Union[int, Atom]  # noqa: UP007  (an alias that mypy and Python 3.11 both evaluate)
Term: TypeAlias = tuple[Factor, ...]
AxisTerms: TypeAlias = tuple[Term, ...]


def find(atom: Atom) -> Atom:
    """Return the atom that stands for this one."""
    while atom.same is not None:
        atom = atom.same
    return atom


def still(size: int) -> AxisTerms:
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


def packed(axis: AxisTerms) -> Atom:
    """Return an atom that is just this axis, to be a factor of another."""
    return Atom(axis_size(axis), axis=axis)


def free(size: int, named: bool = False) -> AxisTerms:
    """Return an axis of units that may move."""
    return still(size) if size == 1 else ((Atom(size, named),),)


def resolve(axis: AxisTerms) -> AxisTerms:
    """Return an axis in terms of what its atoms have become; neighbouring stretches that never move are one."""
    terms: list[Term] = []
    for term in axis:
        for piece in _expand(term):
            still_ones = terms and all(isinstance(f, int) for f in piece + terms[-1])
            if still_ones:
                terms[-1] = (term_size(terms[-1]) + term_size(piece),)
            else:
                terms.append(piece)
    return tuple(terms)


def _expand(term: Term) -> list[Term]:
    factors: list[Factor] = []
    for number, factor in enumerate(term):
        if isinstance(factor, int):
            _append(factors, (factor,))
            continue
        atom = find(factor)
        if atom.size == 1:
            continue
        if atom.axis is not None:
            inner = resolve(atom.axis)
            if len(inner) == 1:
                _append(factors, inner[0])
            elif (times := _times(factors)) is not None:
                rest = term[number + 1 :]
                return [p for _ in range(times) for one in inner for p in _expand(one + rest)]
            else:
                factors.append(atom)
        elif atom.fixed and not hosted(atom):
            _append(factors, (atom.size,))
        else:
            factors.append(atom)
    for number, factor in enumerate(factors):
        rest = tuple(factors[number + 1 :])
        if isinstance(factor, Atom) and any(host_of(one) is factor for one in rest):
            times = _times(factors[:number])
            if times is not None:
                units = [_members_at(rest, factor, unit) for unit in range(factor.size)]
                return [piece for _ in range(times) for one in units for piece in _expand(one)]
    return [tuple(factors) or (1,)]


def atoms(axis: AxisTerms) -> list[Atom]:
    """Return the atoms of a resolved axis, row by row; concatenations inside products are looked into."""
    found = []
    for term in resolve(axis):
        for factor in term:
            if isinstance(factor, Atom):
                found.extend([factor] if factor.axis is None else atoms(factor.axis))
    return found


def movable(axes: Iterable[AxisTerms]) -> bool:
    """Whether units of some array may still move along these axes."""
    return any(
        any(find(one).named and not find(one).fixed for one in (atom.members or (atom,)))
        for axis in axes
        for atom in atoms(axis)
    )


def outer_of(atom: Atom) -> Atom | None:
    """Return the atom whose units this one's lie in, once settled."""
    return find(atom.inside[0]) if atom.inside else None


def put_inside(atom: Atom, outer: Atom) -> None:
    """Let an atom's units lie inside those of another."""
    atom.inside.append(outer)
    find(outer).contains.append(atom)


def link(one: Atom, other: Atom) -> None:
    """Let one atom stand for both."""
    one.same = other
    other.named = other.named or one.named
    other.inside += one.inside
    other.contains += one.contains


def family_of(like: Atom, members: list[Atom]) -> Atom:
    """Return the family of these atoms under the host of another family."""
    family = Atom(members[0].size, like.named, host=like.host, members=tuple(members))
    if like.host is not None:
        find(like.host).contains.append(family)
    return family


def host_of(factor: Factor) -> Atom | None:
    """Return the atom for every unit of which a factor has a member, None if it is no family."""
    return find(factor.host) if isinstance(factor, Atom) and factor.host is not None else None


def hosted(atom: Atom) -> list[Atom]:
    """Return the families that have a member for every unit of this atom."""
    return [find(one) for one in atom.contains if host_of(find(one)) is atom]


def _members_at(term: Term, host: Atom, unit: int) -> Term:
    return tuple(one.members[unit] if isinstance(one, Atom) and host_of(one) is host else one for one in term)


def _append(factors: list[Factor], more: Iterable[Factor]) -> None:
    """Append factors, of which neighbouring numbers are one and ones are left out."""
    for factor in more:
        last = factors[-1] if factors else None
        if isinstance(factor, int) and isinstance(last, int):
            factors[-1] = last * factor
        elif factor != 1:
            factors.append(factor)


def _times(factors: Sequence[Factor]) -> int | None:
    """Return how often what follows is repeated, None where that moves or is too often to be told apart."""
    if any(isinstance(factor, Atom) for factor in factors):
        return None
    times = prod(factor_size(factor) for factor in factors)
    return times if times <= MOST_PIECES else None


def family_at(axis: AxisTerms, host: Atom, units: Sequence[int], part: Atom | None = None) -> AxisTerms:
    """Return an axis at some units of a host: what lies inside these; `part` is the host of what remains several."""
    terms = []
    for term in resolve(axis):
        factors: list[Factor] = []
        for factor in term:
            if not isinstance(factor, Atom) or host_of(factor) is not host:
                factors.append(factor)
            elif len(units) == 1:
                factors.append(factor.members[units[0]])
            else:
                family = Atom(factor.size, factor.named, host=part, members=tuple(factor.members[n] for n in units))
                if part is not None:
                    part.contains.append(family)
                factors.append(family)
        terms.append(tuple(factors))
    return tuple(terms)
