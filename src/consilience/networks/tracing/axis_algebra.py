"""Algebra of axes: joining what moves together, and fixing what never moves.

`AxisAlgebra.join` walks two axes of one length in parallel. Terms and factors of different sizes are cut and divided
until they meet pairwise; factors of one size become one axis part. The parts form a union-find forest in which each
step only merges, expands or fixes parts, so that what was learnt is never taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from consilience.networks.tracing.axis_parts import (
    MAX_OUTER_UNITS,
    AxisPart,
    AxisTerms,
    Factor,
    Term,
    factor_size,
    host_of,
    may_move,
    parts_of,
    put_inside,
    representative,
    resolve,
    term_size,
    unite,
)
from consilience.networks.tracing.reshaping import AxisReshaping


class AxisAlgebra(AxisReshaping):
    """Joins, fixes, cuts and reshapes axes; every operation changes the parts of its axes in place."""

    def fix(self, axis: AxisTerms) -> None:
        """Let nothing along an axis move."""
        for part in parts_of(axis):
            self._fix_part(part)

    def _fix_part(self, part: AxisPart) -> None:
        part = representative(part)
        if part.expansion is not None:
            self.fix(part.expansion)
        elif part.is_family:
            for member in part.members:
                self._fix_part(member)
            part.fixed, part.host, part.members = True, None, ()
        elif not part.fixed:
            part.fixed = True
            for child in list(part.inner_parts):
                self._make_family(representative(child), part, {})

    def _make_family(self, child: AxisPart, host: AxisPart, above: dict[int, tuple[AxisPart, ...]]) -> None:
        """Turn what lies inside the units of a host, which never moves, into a family: a member for every unit.

        `above` holds, by the identity of the families between host and child, their members.
        """
        parents = {id(representative(outer)): representative(outer) for outer in child.outer_parts}
        if child.expansion is not None or child.fixed or child.is_family or child is host or child.host is not None:
            return
        if len(parents) != 1 or host.size > MAX_OUTER_UNITS:
            child.outer_parts = []
            return
        (parent,) = parents.values()
        members = tuple(AxisPart(child.size, child.in_array) for _ in range(host.size))
        for number, member in enumerate(members):
            # A child of the host itself goes up to what the host lies in, a grandchild to the member above it.
            outer_parts = above[id(parent)][number : number + 1] if id(parent) in above else tuple(host.outer_parts)
            for outer in outer_parts:
                put_inside(member, outer)
        child.host, child.members = host, members
        host.inner_parts.append(child)
        for grandchild in list(child.inner_parts):
            self._make_family(representative(grandchild), host, {**above, id(child): members})

    def join(self, first: AxisTerms, second: AxisTerms) -> None:
        """Let two axes of the same length move together."""
        a, b = list(first), list(second)
        while a and b:
            a[:1], b[:1] = resolve((a[0],)), resolve((b[0],))
            size_a, size_b = term_size(a[0]), term_size(b[0])
            if size_a == size_b:
                if self._join_terms(a[0], b[0]):
                    del a[0], b[0]
            elif size_a > size_b:  # cut the longer term where the shorter one ends
                head, tail = self.cut_term(a[0], size_b)
                a[:1] = (*head, *tail)
            else:
                head, tail = self.cut_term(b[0], size_a)
                b[:1] = (*head, *tail)

    def _join_terms(self, first: Term, second: Term) -> bool:
        """Join terms of one length factor by factor; False where a factor changed, so that terms are resolved anew."""
        a, b = list(first), list(second)
        while a and b:
            size_a, size_b = factor_size(a[0]), factor_size(b[0])
            if size_a == size_b:
                if self._join_factors(a.pop(0), b.pop(0)):
                    return not (a or b)
            elif size_a % size_b == 0:  # the larger factor becomes (outer, inner), of which the outer meets the smaller
                a[:1] = self.divide(a[0], size_b, meets=b[0])
            elif size_b % size_a == 0:
                b[:1] = self.divide(b[0], size_a, meets=a[0])
            else:
                self.has_fixed_units = self.has_fixed_units or may_move([(first,), (second,)])
                self.fix((first, second))
                return True
        return True

    def _join_factors(self, first: Factor, second: Factor) -> bool:
        """Join factors of one size; return whether that changed any."""
        if isinstance(first, int) or isinstance(second, int):
            free_parts = [f for f in (first, second) if isinstance(f, AxisPart) and not f.fixed]
            for part in free_parts:
                self._fix_part(part)
            return bool(free_parts)
        first, second = representative(first), representative(second)
        if first is second:
            return False
        if first.expansion is not None or second.expansion is not None:
            self._join_expanded(first, second)
        elif first.is_family and second.is_family:
            self._join_families(first, second)
        elif first.fixed or second.fixed:
            self._fix_part(first)
            self._fix_part(second)
            unite(first, second)
        else:
            unite(*((first, second) if second.is_family else (second, first)))  # a family represents both
        return True

    def _join_expanded(self, first: AxisPart, second: AxisPart) -> None:
        """Join parts of which one at least is an axis by now."""
        self.join(((first,),), ((second,),))
        a, b = representative(first), representative(second)
        if a is not b and a.expansion is not None and b.expansion is not None:
            a.merged_into = b  # their expansions were joined, so that either may stand for both

    def _join_families(self, first: AxisPart, second: AxisPart) -> None:
        """Join families member by member; those of different hosts as the parts that their members become."""
        if host_of(first) is host_of(second):
            for member_a, member_b in zip(first.members, second.members, strict=True):
                self.join(((member_a,),), ((member_b,),))
            unite(first, second)
        else:
            self._join_factors(self.merge_members(first), self.merge_members(second))

    def merge_members(self, family: AxisPart) -> AxisPart:
        """Join the members of a family, and return the part that they become."""
        first, *others = family.members
        for member in others:
            self.join(((first,),), ((member,),))
        family.host, family.members, family.expansion = None, (), ((first,),)
        return representative(first)

    def nest(self, outer: AxisTerms, axis: AxisTerms) -> AxisTerms:
        """Put the units of an axis inside those of another, if each of them is a single part; return the axis."""
        resolved_outer, resolved_inner = resolve(outer), resolve(axis)
        if all(len(terms) == 1 and len(terms[0]) == 1 for terms in (resolved_outer, resolved_inner)):
            host, part = resolved_outer[0][0], resolved_inner[0][0]
            if (
                isinstance(part, AxisPart)
                and isinstance(host, AxisPart)
                and not (part.outer_parts or part.fixed or part.is_family)
            ):
                put_inside(part, host)
        return axis

    def drop_ambiguous_nesting(self, contexts: Iterable[Sequence[AxisTerms]]) -> bool:
        """Drop the nesting of axis parts in tensors that do not show their outer parts; return whether any was dropped.

        Parameters
        ----------
        contexts : iterable of sequences of AxisTerms
            The axes of each tensor that was seen.
        """
        changed = False
        for axes in contexts:
            resolved = [resolve(axis) for axis in axes]
            for number, axis in enumerate(resolved):
                other_axes = resolved[:number] + resolved[number + 1 :]
                for term in axis:
                    for part in parts_of((term,)):
                        changed = self._drop_nesting_of(part, term, other_axes) or changed
        return changed

    def _drop_nesting_of(self, part: AxisPart, term: Term, other_axes: Sequence[AxisTerms]) -> bool:
        """Make a part alike in all outer units unless its outer part is plain from its term or the other axes."""
        if representative(part) is not part or part.expansion is not None or part.fixed:
            return False
        if part.is_family:
            if not _stands_beside(host_of(part), term, other_axes):
                self.merge_members(part)
                return True
        elif part.outer_parts:
            parents = {id(representative(outer)): representative(outer) for outer in part.outer_parts}
            (parent,) = parents.values() if len(parents) == 1 else (part,)  # itself: no single parent
            if (
                parent is part
                or parent.fixed
                or parent.expansion is not None
                or not _stands_beside(parent, term, other_axes)
            ):
                part.outer_parts = []
                return True
        return False


def _stands_beside(outer: AxisPart | None, term: Term, other_axes: Sequence[AxisTerms]) -> bool:
    """Whether an outer part occurs exactly once with its inner part: in the same term, or alone on one other axis."""
    occurrences = sum(factor is outer for factor in term)
    if occurrences:
        return occurrences == 1
    axes = [axis for axis in other_axes if outer in parts_of(axis)]
    return len(axes) == 1 and len(axes[0]) == 1 and sum(part is outer for part in parts_of(axes[0])) == 1
