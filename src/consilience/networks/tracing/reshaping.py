"""Cuts and reshapes of axes.

Cutting a stretch of free units in two turns them into a concatenation. Reshaping free units to (outer, inner) turns
them into a product whose inner units may move differently inside every outer one. A cut through units, or a reshape
that their number does not admit, cannot be expressed by terms and factors: its units are fixed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
    hosted_families,
    may_move,
    put_inside,
    representative,
    resolve,
    term_size,
)


class AxisReshaping(ABC):
    """Operations that cut and reshape axes, on top of joining and fixing them.

    Attributes
    ----------
    has_fixed_units : bool
        Whether an operation had to fix units that might have moved; whoever reads it resets it.
    """

    def __init__(self) -> None:
        self.has_fixed_units = False

    @abstractmethod
    def join(self, first: AxisTerms, second: AxisTerms) -> None:
        """Let two axes of the same length move together."""

    @abstractmethod
    def fix(self, axis: AxisTerms) -> None:
        """Let nothing along an axis move."""

    @abstractmethod
    def merge_members(self, family: AxisPart) -> AxisPart:
        """Join the members of a family, and return the part that they become."""

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

        Parameters
        ----------
        factor : int or AxisPart
            The factor.
        outer : int
            Size of the outer factor; it divides that of the factor.
        meets : int or AxisPart, optional
            The factor that the outer one is about to be joined with.
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
