"""Learning what moves together and what never moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from consilience.networks.tracing.axis_parts import (
    MOST_PIECES,
    Atom,
    AxisTerms,
    Factor,
    Term,
    atoms,
    factor_size,
    find,
    host_of,
    link,
    movable,
    put_inside,
    resolve,
    term_size,
)
from consilience.networks.tracing.reshaping import Pieces


class Atoms(Pieces):
    """What is known of all axes; every operation changes the atoms that it learns about."""

    def fix(self, axis: AxisTerms) -> None:
        """Let nothing along an axis move."""
        for atom in atoms(axis):
            self._fix_atom(atom)

    def _fix_atom(self, atom: Atom) -> None:
        atom = find(atom)
        if atom.axis is not None:
            self.fix(atom.axis)
        elif atom.is_family:
            for member in atom.members:
                self._fix_atom(member)
            atom.fixed, atom.host, atom.members = True, None, ()
        elif not atom.fixed:
            atom.fixed = True
            for child in list(atom.contains):
                self._make_family(find(child), atom, {})

    def _make_family(self, child: Atom, host: Atom, above: dict[int, tuple[Atom, ...]]) -> None:
        """Give every unit of the host, which never moves, an atom of its own in place of what lies inside it."""
        parents = {id(find(one)): find(one) for one in child.inside}
        if child.axis is not None or child.fixed or child.is_family or child is host or child.host is not None:
            return
        if len(parents) != 1 or host.size > MOST_PIECES:
            child.inside = []
            return
        (parent,) = parents.values()
        members = tuple(Atom(child.size, child.named) for _ in range(host.size))
        for number, member in enumerate(members):
            outer = above[id(parent)][number : number + 1] if id(parent) in above else tuple(host.inside)
            for one in outer:
                put_inside(member, one)
        child.host, child.members = host, members
        host.contains.append(child)
        for grandchild in list(child.contains):
            self._make_family(find(grandchild), host, {**above, id(child): members})

    def join(self, one: AxisTerms, other: AxisTerms) -> None:
        """Let two axes of the same length move together."""
        a, b = list(one), list(other)
        while a and b:
            a[:1], b[:1] = resolve((a[0],)), resolve((b[0],))
            first, second = term_size(a[0]), term_size(b[0])
            if first == second:
                if self._join_terms(a[0], b[0]):
                    del a[0], b[0]
            elif first > second:
                head, tail = self.cut(a[0], second)
                a[:1] = (*head, *tail)
            else:
                head, tail = self.cut(b[0], first)
                b[:1] = (*head, *tail)

    def _join_terms(self, one: Term, other: Term) -> bool:
        """Join terms of one length factor by factor; False where a factor changed, so that one must look again."""
        a, b = list(one), list(other)
        while a and b:
            left, right = factor_size(a[0]), factor_size(b[0])
            if left == right:
                if self._join_factors(a.pop(0), b.pop(0)):
                    return not (a or b)
            elif left % right == 0:
                a[:1] = self.divide(a[0], right, meets=b[0])
            elif right % left == 0:
                b[:1] = self.divide(b[0], left, meets=a[0])
            else:
                self.gave_up = self.gave_up or movable([(one,), (other,)])
                self.fix((one, other))
                return True
        return True

    def _join_factors(self, one: Factor, other: Factor) -> bool:
        """Join factors of one size; whether that changed any."""
        if isinstance(one, int) or isinstance(other, int):
            loose = [f for f in (one, other) if isinstance(f, Atom) and not f.fixed]
            for factor in loose:
                self._fix_atom(factor)
            return bool(loose)
        one, other = find(one), find(other)
        if one is other:
            return False
        if one.axis is not None or other.axis is not None:
            self.join(((one,),), ((other,),))
            first, second = find(one), find(other)
            if first is not second and first.axis is not None and second.axis is not None:
                first.same = second
        elif one.is_family and other.is_family:
            if host_of(one) is host_of(other):
                for first, second in zip(one.members, other.members, strict=True):
                    self.join(((first,),), ((second,),))
                link(one, other)
            else:
                self._join_factors(self.alike(one), self.alike(other))
        elif one.fixed or other.fixed:
            self._fix_atom(one)
            self._fix_atom(other)
            link(one, other)
        else:
            link(*((one, other) if other.is_family else (other, one)))
        return True

    def alike(self, family: Atom) -> Atom:
        """Let the members of a family move alike, and return what they are then."""
        first, *others = family.members
        for member in others:
            self.join(((first,),), ((member,),))
        family.host, family.members, family.axis = None, (), ((first,),)
        return find(first)

    def inside(self, outer: AxisTerms, axis: AxisTerms) -> AxisTerms:
        """Let units lie inside those of another axis, if either can be told as one atom; return the axis."""
        around, inner = resolve(outer), resolve(axis)
        if all(len(one) == 1 and len(one[0]) == 1 for one in (around, inner)):
            host, atom = around[0][0], inner[0][0]
            if isinstance(atom, Atom) and isinstance(host, Atom) and not (atom.inside or atom.fixed or atom.is_family):
                put_inside(atom, host)
        return axis

    def settle(self, contexts: Iterable[Sequence[AxisTerms]]) -> bool:
        """Make inner units alike that stand in a context without their outer ones; return whether any were."""
        changed = False
        for axes in contexts:
            resolved = [resolve(axis) for axis in axes]
            for number, axis in enumerate(resolved):
                for term in axis:
                    for atom in atoms((term,)):
                        changed = self._settle_atom(atom, term, resolved[:number] + resolved[number + 1 :]) or changed
        return changed

    def _settle_atom(self, atom: Atom, term: Term, others: Sequence[AxisTerms]) -> bool:
        if find(atom) is not atom or atom.axis is not None or atom.fixed:
            return False
        if atom.is_family:
            if not _beside(host_of(atom), term, others):
                self.alike(atom)
                return True
        elif atom.inside:
            parents = {id(find(one)): find(one) for one in atom.inside}
            (parent,) = parents.values() if len(parents) == 1 else (atom,)
            if parent is atom or parent.fixed or parent.axis is not None or not _beside(parent, term, others):
                atom.inside = []
                return True
        return False


def _beside(outer: Atom | None, term: Term, others: Sequence[AxisTerms]) -> bool:
    """Whether it is clear which of its units something in a term belongs to: that of its own term, or of one axis."""
    own = sum(factor is outer for factor in term)
    if own:
        return own == 1
    having = [axis for axis in others if outer in atoms(axis)]
    return len(having) == 1 and len(having[0]) == 1 and sum(one is outer for one in atoms(having[0])) == 1
