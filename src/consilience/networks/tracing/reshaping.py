"""Taking axes apart and reshaping them.

A stretch of free units cut in two becomes a concatenation; free units seen as (outer, inner) become a product whose
inner units may move differently inside every outer one. What cannot be expressed is fixed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod

from consilience.networks.tracing.axis_parts import (
    MOST_PIECES,
    Atom,
    AxisTerms,
    Factor,
    Term,
    axis_size,
    factor_size,
    family_of,
    find,
    hosted,
    movable,
    packed,
    put_inside,
    resolve,
    still,
    term_size,
)


class Pieces(ABC):
    """Operations that take axes apart; `gave_up` says whether one had to fix what it could not express."""

    def __init__(self) -> None:
        self.gave_up = False

    @abstractmethod
    def join(self, one: AxisTerms, other: AxisTerms) -> None:
        """Let two axes of the same length move together."""

    @abstractmethod
    def fix(self, axis: AxisTerms) -> None:
        """Let nothing along an axis move."""

    @abstractmethod
    def alike(self, family: Atom) -> Atom:
        """Let the members of a family move alike, and return what they are then."""

    def split(self, axis: AxisTerms, sizes: Sequence[int]) -> list[AxisTerms]:
        """Return the stretches of an axis, of these lengths in order."""
        pieces = []
        rest = resolve(axis)
        for size in sizes:
            taken: list[Term] = []
            while (missing := size - axis_size(tuple(taken))) > 0:
                head, rest = rest[0], rest[1:]
                if term_size(head) > missing:
                    before, after = self.cut(head, missing)
                    taken, rest = [*taken, *before], (*after, *rest)
                else:
                    taken.append(head)
            pieces.append(tuple(taken))
            rest = resolve(rest)
        return pieces

    def cut(self, term: Term, length: int) -> tuple[AxisTerms, AxisTerms]:
        """Return what a term is before and after so many entries."""
        first, rest = term[0], term[1:]
        inner = term_size(rest)
        if isinstance(first, Atom) and (length % inner or hosted(first)):
            self.gave_up = self.gave_up or movable([(term,)])
            self.fix(((first,),))
            self._spread(first)
            first = first.size
        if isinstance(first, Atom):
            before, after = self._cut_atom(first, length // inner)
            return ((before, *rest),), ((after, *rest),)
        whole, part = divmod(length, inner)
        before_part, after_part = self.cut(rest, part) if part else ((), ())
        head = (((whole, *rest),) if whole else ()) + before_part
        remaining = first - whole - bool(part)
        return head, after_part + (((remaining, *rest),) if remaining else ())

    def _spread(self, host: Atom) -> None:
        """Let the families of a host be alike, so that it is a number like others."""
        for family in hosted(find(host)):
            self.alike(family)

    def _cut_atom(self, atom: Atom, size: int) -> tuple[Factor, Factor]:
        sizes = (size, atom.size - size)
        if atom.is_family:
            cuts = [self.split(((member,),), sizes) for member in atom.members]
            before, after = (family_of(atom, [packed(cut[side]) for cut in cuts]) for side in (0, 1))
        else:
            before, after = (Atom(one, atom.named) for one in sizes)
            for piece in (before, after):
                for parent in atom.inside:
                    put_inside(piece, parent)
            for child in atom.contains:
                find(child).inside = []
        atom.axis, atom.host, atom.members = ((before,), (after,)), None, ()
        return before, after

    def divide(self, factor: Factor, outer: int, meets: Factor | None = None) -> tuple[Factor, Factor]:
        """Return a factor as a product of an outer one of this size and what lies inside it."""
        if isinstance(factor, int):
            return outer, factor // outer
        atom = find(factor)
        if atom.axis is not None:
            first, second = (packed(axis) for axis in self.unflatten(((atom,),), (outer, atom.size // outer)))
            return first, second
        if atom.fixed:
            self._spread(atom)
            return outer, atom.size // outer
        if atom.is_family:
            divided = [self.unflatten(((m,),), (outer, atom.size // outer)) for m in atom.members]
            x, y = (family_of(atom, [packed(axes[side]) for axes in divided]) for side in (0, 1))
            atom.axis, atom.host, atom.members = ((x, y),), None, ()
            return x, y
        inner = Atom(atom.size // outer, atom.named)
        if isinstance(meets, int):  # it will be alike for all outer units anyway
            atom.axis = ((outer, inner),)
            for parent in atom.inside:
                put_inside(inner, parent)
            return outer, inner
        around = Atom(outer, atom.named)
        for parent in atom.inside:
            put_inside(around, parent)
        for child in atom.contains:
            find(child).inside = [around if find(one) is atom else one for one in find(child).inside]
            around.contains.append(child)
        atom.axis = ((around, inner),)
        put_inside(inner, around)
        return around, inner

    def flatten(self, axes: Sequence[AxisTerms]) -> AxisTerms:
        """Return the axis of all combinations, the last running fastest."""
        return resolve((tuple(packed(axis) for axis in axes),))

    def unflatten(self, axis: AxisTerms, sizes: Sequence[int]) -> list[AxisTerms]:
        """Return the axes whose combinations are this one, the last running fastest."""
        sizes = list(sizes)
        axis = resolve(axis)
        if len(sizes) == 1:
            return [axis]
        outer, inner = sizes[0], prod(sizes[1:])
        if len(axis) == 1:
            head, tail = self._divide_term(axis[0], outer)
            return [(head,), *self.unflatten((tail,), sizes[1:])]
        if all(term_size(term) == inner for term in axis) and outer <= MOST_PIECES:
            host = Atom(outer, fixed=True)
            family = Atom(inner, host=host, members=tuple(packed((term,)) for term in axis))
            host.contains.append(family)
            return [((host,),), *self.unflatten(((family,),), sizes[1:])]
        if any(term_size(term) % inner for term in axis):
            self.gave_up = self.gave_up or movable([axis])
            self.fix(axis)
            return [still(size) for size in sizes]
        divided = [self._divide_term(term, term_size(term) // inner) for term in axis]
        for _, tail in divided[1:]:
            self.join((divided[0][1],), (tail,))
        return [tuple(head for head, _ in divided), *self.unflatten((divided[0][1],), sizes[1:])]

    def _divide_term(self, term: Term, outer: int) -> tuple[Term, Term]:
        head: list[Factor] = []
        for number, factor in enumerate(term):
            size = factor_size(factor)
            if outer == 1:
                return tuple(head) or (1,), term[number:]
            if outer % size == 0:
                head.append(factor)
                outer //= size
            elif size % outer == 0:
                first, second = self.divide(factor, outer)
                return (*head, first), (second, *term[number + 1 :])
            else:
                self.gave_up = self.gave_up or movable([(term,)])
                self.fix((term,))
                done = prod(factor_size(one) for one in head)
                return (done * outer,), (term_size(term) // (done * outer),)
        return tuple(head) or (1,), (1,)
