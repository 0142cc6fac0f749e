"""Algebra of axes: joining what moves together, fixing what never moves, cuts and reshapes.

`AxisAlgebra.join` walks two axes of one length in parallel. Terms and factors of different sizes are cut and divided
until they meet pairwise; factors of one size become one axis part. The parts form a union-find forest in which each
step only merges, expands or fixes parts, so that what was learnt is never taken back.

Cutting a stretch of free units in two turns them into a concatenation. Reshaping free units to (outer, inner) turns
them into a product whose inner units may move differently inside every outer one. A cut through units, or a reshape
that their number does not admit, cannot be expressed by terms and factors: its units are fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from consilience.networks.tracing.axis_parts import (
    MAX_OUTER_UNITS,
    AxisPart,
    AxisTerms,
    Factor,
    Term,
    as_factor,
    axis_size,
    factor_size,
    family_like,
    fixed_axis,
    host_of,
    hosted_families,
    may_move,
    parts_of,
    put_inside,
    representative,
    resolve,
    single_part,
    term_size,
    unite,
)


class AxisAlgebra:
    """Joins, fixes, cuts and reshapes axes; every operation changes the parts of its axes in place.

    Attributes
    ----------
    has_fixed_units : bool
        Whether an operation had to fix units that might have moved; whoever reads it resets it.
    """

    def __init__(self) -> None:
        self.has_fixed_units = False

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
        host, part = single_part(outer), single_part(axis)
        if host is not None and part is not None and not (part.outer_parts or part.fixed or part.is_family):
            put_inside(part, host)
        return axis

    def drop_ambiguous_nesting(self, contexts: Iterable[Sequence[AxisTerms]]) -> bool:
        """Drop the nesting of axis parts in tensors that do not show their outer parts; return whether any was dropped.

        `contexts` are the axes of each tensor that was seen.
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

    def split(self, axis: AxisTerms, sizes: Sequence[int]) -> list[AxisTerms]:
        """Return the stretches of an axis, of these lengths in order."""
        stretches = []
        remaining = resolve(axis)
        for size in sizes:
            stretch: list[Term] = []
            while (missing := size - axis_size(tuple(stretch))) > 0:
                term, remaining = remaining[0], remaining[1:]
                if term_size(term) > missing:
                    before, after = self.cut_term(term, missing)
                    stretch, remaining = [*stretch, *before], (*after, *remaining)
                else:
                    stretch.append(term)
            stretches.append(tuple(stretch))
            remaining = resolve(remaining)  # a cut may have changed parts that come later
        return stretches

    def cut_term(self, term: Term, length: int) -> tuple[AxisTerms, AxisTerms]:
        """Return a term before and after its first `length` entries."""
        first, inner_factors = term[0], term[1:]
        inner_size = term_size(inner_factors)
        if isinstance(first, AxisPart) and (length % inner_size or hosted_families(first)):
            # The cut goes through the inner entries of one unit, or parts units that differ inside.
            self.has_fixed_units = self.has_fixed_units or may_move([(term,)])
            self.fix(((first,),))
            self._merge_hosted_families(first)
            first = first.size
        if isinstance(first, AxisPart):
            before, after = self._cut_part(first, length // inner_size)
            return ((before, *inner_factors),), ((after, *inner_factors),)
        # n * inner: `whole` repetitions come before, one is cut after `partial` entries, the others come after.
        whole, partial = divmod(length, inner_size)
        before_cut, after_cut = self.cut_term(inner_factors, partial) if partial else ((), ())
        head = (((whole, *inner_factors),) if whole else ()) + before_cut
        remaining = first - whole - bool(partial)
        return head, after_cut + (((remaining, *inner_factors),) if remaining else ())

    def _merge_hosted_families(self, host: AxisPart) -> None:
        """Merge the families of a host, so that it becomes a number like others."""
        for family in hosted_families(representative(host)):
            self.merge_members(family)

    def _cut_part(self, part: AxisPart, size: int) -> tuple[Factor, Factor]:
        """Return the first `size` units of a part and the others, as parts of their own."""
        sizes = (size, part.size - size)
        if part.is_family:
            cuts = [self.split(((member,),), sizes) for member in part.members]
            before, after = (family_like(part, [as_factor(cut[side]) for cut in cuts]) for side in (0, 1))
        else:
            before, after = (AxisPart(n_units, part.in_array) for n_units in sizes)
            for stretch in (before, after):
                for outer in part.outer_parts:
                    put_inside(stretch, outer)
            for inner in part.inner_parts:
                representative(inner).outer_parts = []  # inside which of the two is not known
        part.expansion, part.host, part.members = ((before,), (after,)), None, ()
        return before, after

    def divide(self, factor: Factor, outer: int, meets: Factor | None = None) -> tuple[Factor, Factor]:
        """Return a factor as a product of an outer factor and an inner one.

        `outer`, the size of the outer one, divides that of the factor; `meets` is what the outer one is about to be
        joined with.
        """
        if isinstance(factor, int):
            return outer, factor // outer
        part = representative(factor)
        if part.expansion is not None:
            first, second = (as_factor(axis) for axis in self.unflatten(((part,),), (outer, part.size // outer)))
            return first, second
        if part.fixed:
            self._merge_hosted_families(part)
            return outer, part.size // outer
        if part.is_family:
            divided = [self.unflatten(((m,),), (outer, part.size // outer)) for m in part.members]
            outer_family, inner_family = (
                family_like(part, [as_factor(axes[side]) for axes in divided]) for side in (0, 1)
            )
            part.expansion, part.host, part.members = ((outer_family, inner_family),), None, ()
            return outer_family, inner_family
        inner = AxisPart(part.size // outer, part.in_array)
        if isinstance(meets, int):  # the outer units will be fixed, and the inner ones alike for all of them
            part.expansion = ((outer, inner),)
            for parent in part.outer_parts:
                put_inside(inner, parent)
            return outer, inner
        outer_part = AxisPart(outer, part.in_array)
        for parent in part.outer_parts:
            put_inside(outer_part, parent)
        for child in part.inner_parts:
            child_part = representative(child)
            child_part.outer_parts = [outer_part if representative(p) is part else p for p in child_part.outer_parts]
            outer_part.inner_parts.append(child)
        part.expansion = ((outer_part, inner),)
        put_inside(inner, outer_part)
        return outer_part, inner

    def flatten(self, axes: Sequence[AxisTerms]) -> AxisTerms:
        """Return the axis of all combinations in row-major order, as ``flatten`` of torch makes it."""
        return resolve((tuple(as_factor(axis) for axis in axes),))

    def unflatten(self, axis: AxisTerms, sizes: Sequence[int]) -> list[AxisTerms]:
        """Return the axes of these sizes whose combinations are this axis; the inverse of `flatten`."""
        sizes = list(sizes)
        axis = resolve(axis)
        if len(sizes) == 1:
            return [axis]
        outer, inner = sizes[0], prod(sizes[1:])
        if len(axis) == 1:
            head, tail = self._divide_term(axis[0], outer)
            return [(head,), *self.unflatten((tail,), sizes[1:])]
        if all(term_size(term) == inner for term in axis) and outer <= MAX_OUTER_UNITS:
            # Stretches of equal length, such as queries, keys and values: a fixed outer axis of families.
            host = AxisPart(outer, fixed=True)
            family = AxisPart(inner, host=host, members=tuple(as_factor((term,)) for term in axis))
            host.inner_parts.append(family)
            return [((host,),), *self.unflatten(((family,),), sizes[1:])]
        if any(term_size(term) % inner for term in axis):
            self.has_fixed_units = self.has_fixed_units or may_move([axis])
            self.fix(axis)
            return [fixed_axis(size) for size in sizes]
        divided = [self._divide_term(term, term_size(term) // inner) for term in axis]
        for _, tail in divided[1:]:
            self.join((divided[0][1],), (tail,))
        return [tuple(head for head, _ in divided), *self.unflatten((divided[0][1],), sizes[1:])]

    def _divide_term(self, term: Term, outer: int) -> tuple[Term, Term]:
        """Return a term as a product of a term of size `outer` and an inner term."""
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
                # The boundary falls between factors: (6, 2) has no product with an outer factor of size 4.
                self.has_fixed_units = self.has_fixed_units or may_move([(term,)])
                self.fix((term,))
                head_size = prod(factor_size(f) for f in head)
                return (head_size * outer,), (term_size(term) // (head_size * outer),)
        return tuple(head) or (1,), (1,)


def _stands_beside(outer: AxisPart | None, term: Term, other_axes: Sequence[AxisTerms]) -> bool:
    """Whether an outer part occurs exactly once with its inner part: in the same term, or alone on one other axis."""
    occurrences = sum(factor is outer for factor in term)
    if occurrences:
        return occurrences == 1
    axes = [axis for axis in other_axes if outer in parts_of(axis)]
    return len(axes) == 1 and len(axes[0]) == 1 and sum(part is outer for part in parts_of(axes[0])) == 1
