"""Whether inputs mean the same: no rows twice, one unit for a column, one spelling for a class.

A fusion by sums is exact only where its parts mean the same, which numbers alone cannot prove. What looks as if it
were not so is fused and said: as a warning with a code of its own, by `fuse` and by `check`, and in the verdict.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from consilience.checks import Array
from consilience.core.caller import warn_caller
from consilience.drawing.words import first_names
from consilience.errors import Problem, SpellingWarning, TwiceWarning, UnitsWarning

SAME_SUMS = 1e-9
"""Relative difference of sums that is rounding: the same rows in another order leave some 1e-15."""

MIN_SUMS = 4
"""Numbers that equal sums must have at least: few counts agree by chance. Chosen by hand."""

MAX_NAMED = 5
"""Columns that a message names at most. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """Mean and deviation of every column at a site, by which units are compared."""

    names: tuple[str, ...] | None
    n_observations: float
    means: Array  # (d,)
    deviations: Array  # (d,)
    # Whether sites should lie in one place, as those of a mixture need not: each may have components of its own.
    has_origin: bool = True


@dataclass(frozen=True, eq=False)
class Meaning:
    """What an input says that must mean the same at all sites."""

    columns: ColumnMoments | None = None
    labels: tuple[str, ...] | None = None  # its classes, where they are texts
    sums: tuple[Array, ...] = ()  # sums over its rows, which have no order, those of one unit in an array
    sums_error: float = SAME_SUMS  # relative difference of sums that the same rows may have
    # Whether equal contents count once, as extremes do, which honest sites may share.
    is_idempotent: bool = False


@dataclass(frozen=True)
class Doubt:
    """That inputs may not mean the same, and the warning which says so."""

    problem: Problem
    category: type[Warning]

    def warn(self) -> None:
        """Warn at the line of the caller."""
        warn_caller(str(self.problem), self.category)


Labelled = Sequence[tuple[str, Meaning]]
"""Inputs by what messages call them."""


def doubts_of(sites: Labelled) -> list[Doubt]:
    """Return where inputs may not mean the same, a doubt for each site."""
    return [*_equal_sums(sites), *_other_units(sites), *_other_spellings(sites)]


def twice(label: str, text: str) -> Doubt:
    """Return that an input says what another says too."""
    return Doubt(Problem(label, text, "leave one out, unless both have rows of their own"), TwiceWarning)


def _equal_sums(sites: Labelled) -> Iterator[Doubt]:
    """Yield which sites have the sums of another to rounding, but not its digits: the same rows in another order."""
    by_size: dict[int, list[tuple[str, Meaning, Array]]] = defaultdict(list)
    for label, meaning in sites:
        every = np.concatenate([np.ravel(values) for values in meaning.sums]) if meaning.sums else np.zeros(0)
        if len(every) >= MIN_SUMS and np.isfinite(every).all():
            by_size[len(every)].append((label, meaning, every))
    for of_size in by_size.values():
        # Equal sums have equal projections to rounding, so that neighbours of the sorted projections are compared.
        direction = np.random.default_rng(0).uniform(1.0, 2.0, len(of_size[0][2]))
        projections = np.array([np.abs(every) @ direction for *_, every in of_size])
        order = np.argsort(projections, kind="stable")
        for one, other in pairwise(order.tolist()):
            (first_label, first, entries), (label, meaning, every) = of_size[min(one, other)], of_size[max(one, other)]
            if not np.array_equal(entries, every) and _are_equal(first.sums, meaning.sums, meaning.sums_error):
                text = f"has the sums of {first_label}, as the same rows in another order have: they count twice"
                yield twice(label, text)


def _are_equal(sums: Sequence[Array], others: Sequence[Array], error: float) -> bool:
    """Return whether sums differ by an error relative to the largest of their array, or by rounding of any of them.

    Rounding is all that is left of the means of centred columns.
    """
    scales = [float(np.abs(one).max(initial=0.0)) for one in sums]
    rounding = SAME_SUMS * max(scales)
    return len(sums) == len(others) and all(
        one.shape == other.shape and np.allclose(one, other, rtol=error, atol=error * scale + rounding)
        for one, other, scale in zip(sums, others, scales, strict=True)
    )


MIN_OBSERVATIONS = 10
"""Rows below which a site's mean and deviation say too little of its unit. Chosen by hand."""

MIN_RATIO, MIN_RATIO_OF_WIDE = 12.0, 60.0
"""How many times the others' deviation is another unit: of columns whose mean is a deviation or more from zero, and of
all others, whose mean says less. These and the next four numbers were set on half of the tables of
experiments/agreement and are judged on the other half (docs/sites/agreement.md)."""

MAX_CHANGE_OF_SHAPE = 1.5
"""How far the mean over the deviation, which no factor changes, may differ between sites in one unit and another."""

MIN_SHIFT, MAX_RATIO_OF_SHIFTED = 20.0, 3.0
"""Deviations between means that are another origin, such as that of Kelvin, where the deviations agree so far."""

MIN_OUTLYING, MOST_COLUMNS, FEW_COLUMNS = 8.0, 0.98, 8
"""How many times what most other columns differ a column has to: sparse columns, such as pixels, differ by large
factors honestly. "Most" is this part of the columns, and half of few."""

MIN_OUTLYING_SITE = 5.0
"""How many times what the other sites differ among themselves, in the median, a site has to."""

STANDARD_ERRORS_OF_ZERO = 3.0
"""Standard errors within which a mean is said to be zero, as of centred columns."""


def _other_units(sites: Labelled) -> Iterator[Doubt]:
    """Yield the sites that have columns in what may be another unit, a doubt each.

    A factor multiplies mean and deviation alike, an origin moves the mean and leaves the deviation; sites that differ
    honestly do neither as exactly. Every site is compared with the median of the others.
    """
    known = _with_columns(sites)
    if len(known) < 2 or len({len(own.means) for _, own in known}) > 1:
        return
    means = np.stack([own.means for _, own in known])  # (J, d)
    deviations = np.stack([own.deviations for _, own in known])  # (J, d)
    counts = np.array([own.n_observations for _, own in known])  # (J,)
    with np.errstate(all="ignore"):
        ratios, gaps, is_scaled, is_shifted = _compared(means, deviations, counts)
    is_shifted = is_shifted & np.array([own.has_origin for _, own in known])[:, None]
    others = known[0][0] if len(known) == 2 else "the other sites"
    first = len(known) == 2  # of two, one is as odd as the other: said once
    for site, (label, own) in enumerate(known[first:], first):

        def described(column: int, site: int = site, names: tuple[str, ...] | None = own.names) -> str:
            how = f"mean {_shown(gaps[site, column])} deviations away"
            if is_scaled[site, column]:
                how = f"values {_shown(ratios[site, column])} times as large"
            return f"{name_of(names, column)} ({how})"

        odd = list(map(described, np.flatnonzero(is_scaled[site] | is_shifted[site]).tolist()))
        if odd:
            text = f"may have another unit than {others} in {first_names(odd, MAX_NAMED)}"
            yield Doubt(Problem(label, text, "give every column one unit at all sites"), UnitsWarning)


def _with_columns(sites: Labelled) -> list[tuple[str, ColumnMoments]]:
    """Return the sites that say enough of their columns."""
    stated = [(label, meaning.columns) for label, meaning in sites]
    return [(label, own) for label, own in stated if own is not None and own.n_observations >= MIN_OBSERVATIONS]


def _shown(number: float) -> str:
    """Return a number to three digits, without an exponent where it is large."""
    return f"{number:,.0f}" if number >= 100.0 else f"{number:.3g}"


def name_of(names: tuple[str, ...] | None, column: int) -> str:
    """Return what messages call a column: its name, or its number from 0."""
    return f"column {column}" if names is None else names[column]


def _compared(means: Array, deviations: Array, counts: Array) -> tuple[Array, Array, Array, Array]:
    """Return ratios of deviations, gaps between means, and which columns are scaled and which shifted, all (J, d)."""
    scales, centres = _of_others(deviations), _of_others(means)
    ratios = deviations / scales
    sizes = np.where(np.isfinite(ratios) & (ratios > 0), np.maximum(ratios, 1.0 / ratios), 1.0)
    gaps = np.abs(means - centres) / np.maximum(deviations, scales)
    shapes, usual_shapes = means / deviations, centres / scales
    change = shapes / usual_shapes
    nearest, farthest = (of(np.abs(shapes), np.abs(usual_shapes)) for of in (np.minimum, np.maximum))
    is_centred = farthest < STANDARD_ERRORS_OF_ZERO / np.sqrt(counts)[:, None]
    keeps_shape = is_centred | (np.maximum(change, 1.0 / change) <= MAX_CHANGE_OF_SHAPE)
    least = np.where(nearest < 1.0, MIN_RATIO_OF_WIDE, MIN_RATIO)
    # Columns of 0 and 1, of variance m (1 - m), have no unit, and one that is constant at some site is sparse.
    is_binary = np.abs(deviations**2 - means * (1.0 - means)) <= 1e-9 * (1.0 + means**2)
    is_judged = ~(is_binary & (is_binary.mean(axis=0) > 0.5)) & ~(deviations <= 1e-12 * np.abs(means)).any(axis=0)
    is_scaled = is_judged & keeps_shape & (sizes >= np.maximum(least, MIN_OUTLYING * _of_most(sizes)))
    is_scaled &= np.log(sizes) >= MIN_OUTLYING_SITE * _spread_of_others(np.log(np.where(is_judged, deviations, 1.0)))
    gaps = np.where(np.isfinite(gaps), gaps, 0.0)
    is_shifted = is_judged & (sizes <= MAX_RATIO_OF_SHIFTED) & ~is_scaled
    is_shifted &= gaps >= np.maximum(MIN_SHIFT, MIN_OUTLYING * _of_most(gaps))
    is_shifted &= np.abs(means - centres) >= MIN_OUTLYING_SITE * _spread_of_others(means)
    return ratios, gaps, is_scaled, is_shifted


def _of_others(values: Array) -> Array:
    """Return for each site the median of the others (J, d), of values (J, d)."""
    ranks = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0)
    ordered, n_others = np.sort(values, axis=0), len(values) - 1
    below, above = (n_others - 1) // 2, n_others // 2  # places of the middle of the others, once one is taken out
    low, high = (np.take_along_axis(ordered, place + (ranks <= place), axis=0) for place in (below, above))
    return np.asarray(0.5 * (low + high))


def _spread_of_others(values: Array) -> Array:
    """Return for each site the median absolute deviation of the others (J, d): zero where there is one other."""
    centres, found = _of_others(values), np.full_like(values, np.nan)
    for column in range(values.shape[1]):
        for centre in np.unique(centres[:, column]):  # three at most: who is taken out moves the median by one place
            is_its = centres[:, column] == centre
            found[is_its, column] = _of_others(np.abs(values[:, [column]] - centre))[is_its, 0]
    return found


def _of_most(values: Array) -> Array:
    """Return what most other columns reach at some site (d,), of values (J, d); 1 for a column alone."""
    largest = values.max(axis=0)
    d = len(largest)
    if d == 1:
        return np.ones(1)
    part = MOST_COLUMNS if d > FEW_COLUMNS else 0.5
    return np.array([np.quantile(np.delete(largest, column), part) for column in range(d)])


MIN_LETTERS = 5
"""Letters of a label from which one edit away is a slip; shorter ones, such as cat and bat, differ by meaning."""


def _other_spellings(sites: Labelled) -> Iterator[Doubt]:
    """Yield the sites that have a class which another site may have in another spelling, a doubt each.

    Labels that differ in case, blanks or punctuation are doubted wherever they stand at different sites; labels one
    letter apart where neither site has the other's.
    """
    known = [(label, meaning.labels) for label, meaning in sites if meaning.labels]
    owners: dict[str, list[int]] = defaultdict(list)
    for site, (_, labels) in enumerate(known):
        for one in labels:
            owners[one].append(site)
    names = list(owners)
    slips: dict[int, list[str]] = defaultdict(list)
    for first, second in _alike(names):
        apart = not set(owners[first]) & set(owners[second])
        if apart:  # a site that has both means two classes
            rarer, other = sorted((first, second), key=lambda one: (len(owners[one]), -names.index(one)))
            slips[owners[rarer][0]].append(f"{rarer!r} for {other!r} of {known[owners[other][0]][0]}")
    for site in sorted(slips):
        text = f"has the {'class' if len(slips[site]) == 1 else 'classes'} {first_names(slips[site], MAX_NAMED)}"
        problem = Problem(known[site][0], f"{text}: two classes here, one perhaps", "spell labels alike at all sites")
        yield Doubt(problem, SpellingWarning)


def _alike(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of labels that may be one: but for case, blanks and hyphens, or for one letter inside a word.

    Words one edit apart are equal without one of their letters, and so are found without comparing all pairs.
    """
    same: dict[str, list[str]] = defaultdict(list)
    edited: dict[str, list[str]] = defaultdict(list)
    for name in names:
        plain = _plain(name)
        same[plain].append(name)
        if len(plain) >= MIN_LETTERS and plain.isalpha():
            for form in {plain, *(plain[:i] + plain[i + 1 :] for i in range(1, len(plain) - 1))}:
                edited[form].append(name)
    for group in same.values():
        yield from combinations(group, 2)
    seen: set[tuple[str, str]] = set()
    for group in edited.values():
        for pair in combinations(group, 2):
            if pair not in seen and _is_slip(*map(_plain, pair)):
                seen.add(pair)
                yield pair


def _plain(label: str) -> str:
    """Return a label without case, blanks, and hyphens and dots inside; a sign at its end is another class."""
    return re.sub(r"[\s_]+|(?<=\w)[-.](?=\w)", "", label.casefold())


def _is_slip(first: str, second: str) -> bool:
    """Return whether words are one letter or one swap apart, neither at the first letter nor at the last.

    Ends tell classes apart: species a and b, mouse and house.
    """
    if first == second or first[0] != second[0] or first[-1] != second[-1]:
        return False
    if len(first) == len(second):
        differing = [place for place, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
        is_swap = len(differing) == 2 and sorted(first) == sorted(second) and differing[1] == differing[0] + 1
        return len(differing) == 1 or is_swap
    shorter, longer = sorted((first, second), key=len)
    inner = range(1, len(longer) - 1)
    return longer[:-1] != shorter and any(longer[:i] + longer[i + 1 :] == shorter for i in inner)
