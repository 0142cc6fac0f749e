"""The weighted geometric median, and the judgement of whole sites: copies, clusters apart and far ones are left out.

Kinds give distances and averages; all else of a robust average is here.

A row V_j is all that site j says, in coordinates of equal importance; t = ceil(n / 2) - 1 of n sites may be hostile.

**Alike.** d_ij are distances of whole sites, q = med_i med_{j != i} d_ij. Sites nearer to each other than honest ones
come by chance are copies of each other. Colluding sites send their own file several times, or mimic an honest site by
sending its file again with some noise, and nothing tells which; so copies count as one site, however many they are: of
each group its medoid is judged, and the others are left out, while no more than t are. This comes first, since copies
would draw the centre to themselves: four mimics and the honest site that they copy are five of ten. Of the groups of an
average linkage of d^2 those are copies whose mean d^2 is below a^2 q^2, where for m of n points in P normal coordinates

    a^2 = chi2_{P (m - 1)}^-1(0.0001 / C(n, m)) / ((m - 1) chi2_P^-1(1/2)),        a <= 0.65,

is undercut by some m of them in one round of ten thousand (of fewer than 20 coordinates, of a hundred million). Near
copies leave room in that mean for another site, so the two parts of a group must be nearer to each other, too, than two
honest sites are but once in a thousand. Where most fits ended in other optima than the rest, q is what optima differ
by, and tells nothing of copies. So where it is known what squared distance e sampling alone gives honest sites, copies
are nearer than that, too, as one honest group in a hundred is: their mean d^2 / e, and that between the two parts of a
group, with m = 2, is below chi2_{P (m - 1)}^-1(0.01) / (P (m - 1)).

**Collusion.** Sites that push together, each with noise of its own, pass for honest one by one; side by side they are a
cluster apart. x_j are the scores of the sites on the direction in which they differ most (the first principal
coordinate of d_ij). Of all cuts of the sorted scores that set apart two sites or more, and no more than may be hostile,
the largest two-sample statistic

    t = |mean of one side - mean of the other| sqrt(m (n - m) / n) / s,        s^2 = sum of squares within / (n - 2)

is compared with the 0.999 quantile of what it is for n normal numbers. Above it the smaller side is left out. This is
asked before the gate, since a cluster draws the centre, and after it, since one far site hides every other direction.
Sites that differ without such a gap, as under label skew, are no cluster. It is our own step; spectral filtering (DnC,
Shejwalkar and Houmansadr, NDSS 2021) leaves out a given number along that direction whatever the gap.

**Gate.** r_jg is the distance of site j in group g from the geometric median of that group over the sites left, over
the median of these distances; r_j is its median over the groups. Sites with r_j > 1.5 are left out, the worst first,
while no more than t are out. A copy that passes is at most 1.5 median radii away in half of its groups.

**Standardized.** Those that pass are judged once more, by the same steps, in coordinates that are divided by what sites
usually differ by in each (`standardized_coordinates`). Colluders who push where honest sites hardly differ, or who have
in common what they leave alone, are a cluster there.

**Average.** What is left is averaged by the weights of the geometric median of each group, which are convex, so that
they can be applied to moments. Of five copies or more, those beyond three median radii are left out of their group
first, the worst first and fewer than half: an attack on one pair of groups passes the gate of whole sites. Networks are
one group of very many coordinates: one step of Huber's estimate from that median weighs them (`huber_weights`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import ClusterNode, linkage, to_tree
from scipy.special import comb, gammaincinv, ndtri

from consilience.checks import Array, Labels
from consilience.core.details import LeftOut, RobustDetails, why_left_out
from consilience.drawing.words import first_names, shorten
from consilience.errors import Problem

MAX_NAMED_SITES = 8
"""Sites that a verdict names; the others are in the details."""

MIN_VOTES = 3
"""Below three copies nothing tells which of them is right."""

COPY = "copy of another"
"""Step that a site failed which is no site of its own."""

ALIKE_LEVEL = 0.0001
"""Chance that some of so many honest normal sites pass for copies of each other."""

MIN_COORDINATES, LEVEL_OF_FEW = 20, 1e-8
"""Coordinates below which that chance is smaller. Four far sites of ten make the usual distance of the others their
largest, 1.4 times as great in eight coordinates, and spreads too: at 1e-4 honest pairs passed for copies in 5 of 120
rounds of regressions of eight columns, and with two of them gone four hostile sites were half."""

JOIN_LEVEL = 0.001
"""Chance that one honest normal site is as near to a group of copies as its members."""

RELATIVE_LEVEL = 0.01
"""Chance that honest sites are as near to each other as copies are by what else is known of them: a convention. Sites
that differ by more than sampling are as near less often. Of a site's mixture in two columns and four copies with 0.6
deviations of noise in their means the mean square is 0.64 of what sampling gives, and this asks for 0.70."""

MAX_ALIKE = 0.65
"""Root mean square distance, in the usual one, that no copies exceed, however many coordinates: those of sites depend
on each other. Honest pairs came no nearer than 0.55 in 25 coordinates, 0.78 in 135 and 0.82 in 650 or 2,410, of skewed
labels too (seeds 0-2 of benchmarks/hostile_sites.py, where it was chosen); copies of a site with 0.6 deviations of
noise are 0.42 from it and 0.6 from each other."""

GATE_RADIUS = 1.5
"""Distance from the centre, in the median distance, beyond which a site is left out. Chosen on seeds 0-2 of
benchmarks/hostile_sites.py."""

FAR = 2.0
"""Distance, in that beyond which a site is left out, of sites that are left out even where copies were many."""

COLLUSION_LEVEL = 0.999
"""Quantile of the two-sample statistic of normal numbers, above which a cluster is no chance: one round in a thousand
of honest normal sites loses a minority to it."""

N_NULL_DRAWS = 4000
"""Draws of n normal numbers of which that quantile is taken: four lie above it."""

MIN_COLLUDING = 2
"""Sites of the smallest cluster: one site alone is for the gate."""

COPY_RADIUS = 3.0
"""Distance of a copy from the centre of its group, in the median distance, beyond which it is left out there. Sums are
judged by the same number. On seeds 0-2 of benchmarks/hostile_sites.py, 2 cost honest sites of two columns 0.004 nats, 3
cost 0.001 and 4 nothing; all three stop the merged pair."""

MIN_COPIES = 5
"""Copies below which nobody is left out of a group alone: of fewer, the median distance says little."""

MIN_DISTANCE = 1e-3
"""Distance from the centre, in the median distance, below which a copy's weight grows no further."""

SMALLEST = 1e-150
"""Least distance that is divided by, where most points are equal."""

MAX_STEPS, TOLERANCE = 200, 1e-9
"""Weiszfeld's steps end where the centre moves by less, relative to the median distance; the number is only a bound."""

ROUNDING = 1e-12
"""Relative difference that is rounding: a rise of a sum of distances, or what equal sites differ by."""

MAX_RATIO = 1e10
"""Distance, in the usual one, beyond which a site is no farther for the judgement: at 1e16 the rounding of its squares
would be as large as what honest sites differ by."""

LARGEST_SCORE = 1e9
"""Score that a record states of what is farther still, or infinitely far."""

MAX_COORDINATE = 20.0
"""Coordinates of groups are clipped here, so that nothing overflows: far beyond every gate."""

NORMAL_MAD = 1.4826
"""Standard deviation of normal numbers in their median absolute deviation: 1 / Phi^-1(3/4)."""

MAX_DEVIATION = 2.0
"""Where standardized coordinates are cut. Of 2, 2.5 and 3, chosen on networks of the seeds 0 to 2 and 100 to 111 and
mixtures of the seeds 30 to 36 of benchmarks/hostile_sites.py, judged on others: 3 finds more drifts of single networks
and loses more honest sites of mixtures."""


def tolerated(n_sites: int) -> int:
    """Return how many of so many sites may be hostile: fewer than half."""
    return max(0, (n_sites + 1) // 2 - 1)


def minimax_ratio(n_hostile: int, n_sites: int) -> float:
    """Return what error of a parameter so many of n sites can cause whatever the rule, over that of the others' mean.

    With a part e of a population replaced, two honest worlds 2 b deviations apart cannot be told from each other for
    b = Phi^-1(1 / (2 (1 - e))) (Huber, Annals of Mathematical Statistics 35, 1964); the mean of n - k sites has the
    standard error 1 / (n - k)^(1/2).

    Examples
    --------
    >>> [round(minimax_ratio(k, 10), 2) for k in range(5)]
    [1.0, 1.08, 1.35, 1.8, 2.57]
    """
    bias = float(ndtri(0.5 / (1.0 - n_hostile / n_sites)))
    return float(np.sqrt(1.0 + (n_sites - n_hostile) * bias**2))


def weak_spot(robust: Mapping[str, Any]) -> str:
    """Return what robust fusion does not see, as a clause, given what it did (``RobustDetails``)."""
    most, ratio = robust["tolerated"], robust["unseen_error_ratio"]
    sites = "one hostile site that stays" if most == 1 else f"{most:,} hostile sites that stay"
    weak = f"; {robust['weak']}" if "weak" in robust else ""
    return (
        f"{sites} within what honest ones differ by would not be seen, and whatever the rule could move a parameter by"
        f" {ratio:.2g} times its error{weak}"
    )


def robust_sentences(robust: Mapping[str, Any]) -> list[str]:
    """Return who was left out and why, and what robust fusion does not see, a sentence each, for a verdict."""
    left_out = [f"{shorten(record['model'])} ({why_left_out(record)})" for record in robust["left_out"]]
    clauses = [f"Left out: {first_names(left_out, MAX_NAMED_SITES)}"] if left_out else []
    unseen = weak_spot(robust)
    return [f"{clause}." for clause in [*clauses, f"{unseen[0].upper()}{unseen[1:]}"]]


def spread_of(values: Array) -> Array:
    """Return the normal standard deviation (P,) of values (n, P), by their median absolute deviation."""
    deviations: Array = NORMAL_MAD * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    return deviations


def cap_factors(sizes: Array, limit: float) -> Array:
    """Return the factors (J,) that cut sizes to a limit."""
    is_larger = sizes > limit
    factors: Array = np.where(is_larger, limit / np.where(is_larger, sizes, 1.0), 1.0)
    return factors


def evenly_spaced(n: int, most: int) -> Labels:
    """Return the positions of all of n, or of so many of them, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def too_few(subject: str, name: str, count: int, noun: str) -> list[Problem]:
    """Return the problem of a robust average of too few networks, models or sites; none where they are enough."""
    if count >= MIN_VOTES:
        return []
    text = f"{name} needs at least {MIN_VOTES} {noun}: of two, none tells which is right".lstrip()
    return [Problem(subject, text, code="E-FEW")]


# -- The geometric median.


def geometric_median(
    squares: Callable[[Array], Array], votes: Array, start: Array | None = None
) -> tuple[Array, Array]:
    """Return the weights of the geometric median, summing to one, and the distances of the points from it.

    The minimum of sum_j v_j |V_j - c| by Weiszfeld's iteration (1937) c <- sum_j w_j V_j, w_j proportional to
    v_j / d_j, d_j = max(|V_j - c|, 1e-3 med), where med is the median of the distances by votes. It descends
    sum_j v_j (|V_j - c|^2 / d_j + d_j) / 2, so the sum of distances never rises; a step that would raise it, since an
    average is not the one that belongs to the distances, is not taken. It ends where the centre moves by less than
    1e-9 med:

        |c' - c|^2 = 1/2 sum_j (w'_j - w_j) (|V_j - c|^2 - |V_j - c'|^2),

    which holds for every Bregman divergence D(c, V_j) too, with half of D(c, c') + D(c', c) on the left. Of fewer than
    three points the mean is taken: none tells which is right. Several medians are found side by side, each as alone.
    With k of n votes hostile, and the others within r of x, |c - x| <= 2 r (n - k) / (n - 2 k) (Lopuhaa and Rousseeuw,
    Annals of Statistics 19, 1991).

    Parameters
    ----------
    squares : callable
        Takes weights of the shape of `votes`, and returns the squared distances, or divergences, of the points from
        their average by these weights.
    votes : Array of shape (n,) or (n, G)
        Votes v of the points, not negative; of G medians, a column each.
    start : Array of the shape of `votes`, optional
        Squared distances of the points from where it starts. Default: from their mean, for points of which none is far.
    """
    weights, is_open = _shares(votes), np.count_nonzero(votes > 0, axis=0) >= MIN_VOTES
    if start is not None:
        weights = np.where(is_open, _step(np.sqrt(start), votes)[0], weights)
    distances = np.sqrt(np.maximum(squares(weights), 0.0))
    for _ in range(MAX_STEPS):
        updated, usual, least = _step(distances, votes)
        updated = np.where(is_open, updated, weights)
        proposed = np.sqrt(np.maximum(squares(updated), 0.0))
        is_open &= _sum(proposed, votes, least) <= _sum(distances, votes, least) * (1.0 + ROUNDING)
        moved = 0.5 * ((updated - weights) * (distances**2 - proposed**2)).sum(axis=0)
        weights, distances = np.where(is_open, updated, weights), np.where(is_open, proposed, distances)
        is_open &= moved > (TOLERANCE * usual) ** 2
        if not is_open.any():
            break
    return weights, distances


def _step(distances: Array, votes: Array) -> tuple[Array, Array, Array]:
    """Return the weights of the next step, the median distance, and the least that is divided by."""
    usual = weighted_median(distances, votes)
    least = np.maximum(MIN_DISTANCE * usual, SMALLEST)
    # Where most points are equal, theirs is the median.
    pulls = np.where(usual > 0, votes / np.maximum(distances, least), np.where(distances <= 0, votes, 0.0))
    return _shares(pulls), usual, least


def _shares(values: Array) -> Array:
    """Return values over their sum; zeros stay."""
    total = values.sum(axis=0)
    shares: Array = values / np.where(total > 0, total, 1.0)
    return shares


def _sum(distances: Array, votes: Array, least: Array) -> Array:
    """Return sum_j v_j |V_j - c|, with (|V_j - c|^2 / d + d) / 2 for a distance below the least, d."""
    rounded = 0.5 * (np.minimum(distances, least) ** 2 / least + least)
    total: Array = (votes * np.where(distances >= least, distances, rounded)).sum(axis=0)
    return total


def weighted_median(values: Array, votes: Array) -> Array:
    """Return the least of some values (n, ...) that half of the votes (n, ...) do not exceed."""
    order = np.argsort(values, axis=0, kind="stable")
    cumulative = np.cumsum(np.take_along_axis(votes, order, axis=0), axis=0)
    rank = np.expand_dims(np.argmax(cumulative >= 0.5 * cumulative[-1], axis=0), 0)
    median: Array = np.take_along_axis(values, np.take_along_axis(order, rank, axis=0), axis=0)[0]
    return median


def geometric_median_weights(squares: Array, votes: Array) -> tuple[Array, Array]:
    """Return the weights (n,) of the geometric median, and distances (n,) from it, by squared distances S (n, n).

    |V_i - sum_j w_j V_j|^2 = (S w)_i - w' S w / 2. The median distance of a point to all others stands for that from
    where it starts, so that no minority moves it.
    """

    def from_mean(weights: Array) -> Array:
        products = squares @ weights
        return products - 0.5 * float(weights @ products)

    start = weighted_median(squares, np.broadcast_to(votes[:, None], squares.shape))
    return geometric_median(from_mean, votes, start)


def huber_weights(squares: Array, votes: Array) -> Array:
    """Return the weights (n,) of one step of Huber's location estimate from the geometric median, by S (n, n).

    Points within the median distance d of it count by their votes, others by votes times d over their distance. The
    geometric median itself is nearly the point nearest to it: of 2,410 coordinates honest points all lie far out, and
    a hostile one near their mean has half of the weight.
    """
    _, distances = geometric_median_weights(squares, votes)
    usual = weighted_median(distances, votes)
    return _shares(votes / np.maximum(distances, usual)) if usual > 0 else _shares(np.where(distances <= 0, votes, 0.0))


def copy_weights(squares: Array, votes: Array) -> Array:
    """Return the weights (n,) of the copies of one group, summing to one; 0 for copies beyond three median radii."""
    inliers = np.arange(len(squares))
    least = len(squares) - tolerated(len(squares)) if len(squares) >= MIN_COPIES else len(squares)
    while True:
        chosen, distances = geometric_median_weights(squares[np.ix_(inliers, inliers)], votes[inliers])
        usual = float(np.median(distances))
        if len(inliers) <= least or not distances.max() > COPY_RADIUS * usual > 0.0:
            break
        inliers = np.delete(inliers, np.argmax(distances))
    weights = np.zeros(len(squares))
    weights[inliers] = chosen
    return weights


# -- The judgement of whole sites.


@dataclass(frozen=True, eq=False)
class Judgement:
    """Which sites are averaged: all but those of `steps`."""

    scores: Array  # (J,), score of each site at the gate; NaN of those left out before it
    steps: dict[int, str]  # of each site that is left out the step that it failed
    copies_are_known: bool = False  # whether copies are nearer than sampling allows, so that none is an honest site

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Sites (J,) that are averaged."""
        kept = np.ones(len(self.scores), dtype=np.bool_)
        kept[list(self.steps)] = False
        return kept

    @property
    def n_left(self) -> int:
        """Number of sites that may still be left out."""
        return tolerated(len(self.scores)) - len(self.steps)

    @property
    def n_far_left(self) -> int:
        """Number of sites that may still be left out if they are far: fewer than half of them, copies being one.

        Where copies are known as such they are hostile, but one of each group, and no more sites are.
        """
        n_copies = 0 if self.copies_are_known else sum(step == COPY for step in self.steps.values())
        return tolerated(len(self.scores) - n_copies) - (len(self.steps) - n_copies)

    def leave_out(self, sites: Labels, step: str) -> None:
        """Leave some sites out, unless these are too many."""
        if len(sites) <= self.n_left:
            self.steps.update(dict.fromkeys(sites.tolist(), step))

    def leave_out_worst(self, excess: Array, order: Labels | None = None) -> None:
        """Leave out the sites whose `excess` (J,) is above one, the worst first, while no more are out than may be.

        Honest sites may pass for copies of each other, and then as many hostile ones are left: those of an excess above
        two are left out while fewer than half of the sites that count are.
        """
        for site in (np.argsort(-np.nan_to_num(excess), kind="stable") if order is None else order).tolist():
            n_left = self.n_far_left if excess[site] > FAR else self.n_left
            if excess[site] > 1.0 and site not in self.steps and n_left > 0:
                self.steps[site] = "gate"

    def details(self, names: Sequence[str]) -> RobustDetails:
        """Return who was left out, how many hostile sites are tolerated, and what they can do unseen."""
        most = tolerated(len(self.scores))
        ratio = round(minimax_ratio(most, len(self.scores)), 2)
        return {"left_out": self.left_out(names), "tolerated": most, "unseen_error_ratio": ratio}

    def left_out(self, names: Sequence[str]) -> list[LeftOut]:
        """Return the sites that were left out, by name, as JSON values: ``model``, ``step`` and ``score``, if any."""
        records: list[LeftOut] = []
        for site, step in self.steps.items():
            record: LeftOut = {"model": names[site], "step": step}
            if not np.isnan(self.scores[site]):
                record["score"] = round(min(float(self.scores[site]), LARGEST_SCORE), 3)
            records.append(record)
        return sorted(records, key=lambda record: record["model"])


def pairwise_squares(points: Array) -> Array:
    """Return the squared distances (n, n) of points (n, P), by differences, which lose no digits."""
    squares: Array = ((points[:, None] - points) ** 2).sum(axis=2)
    return squares


def standardized_coordinates(rows: Array) -> Array:
    """Return rows (J, C) in median absolute deviations from the median of each coordinate, cut at two.

    A push that is small beside what sites differ by in all coordinates together is large where they hardly differ: in
    weights from inputs that are nearly constant, say. The cut bounds what one coordinate says, so that a site that
    differs in few is not far (as wrapping does: Raymaekers and Rousseeuw, Technometrics 63, 2021).

    Examples
    --------
    >>> standardized_coordinates(np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [9.0, 5.1]])).round(2).tolist()
    [[-1.01, 0.0], [-0.34, 0.0], [0.34, 0.0], [2.0, 2.0]]
    """
    deviations, usual = rows - np.median(rows, axis=0), spread_of(rows)
    # Where most sites agree exactly, the usual deviation is 0, and any other value is cut.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        cut = np.clip(deviations / usual, -MAX_DEVIATION, MAX_DEVIATION)
    standardized: Array = np.where(deviations == 0.0, 0.0, cut)
    return standardized


def standardized_squares(rows: Array) -> Array:
    """Return the squared distances (J, J) of rows (J, C) in standardized coordinates."""
    standardized = standardized_coordinates(rows)
    products = standardized @ standardized.T  # of numbers of two at most: no digits that matter are lost
    sizes = np.diag(products)
    squares: Array = np.maximum(sizes[:, None] + sizes - 2.0 * products, 0.0)
    return squares


@dataclass(frozen=True, eq=False)
class _Pairs:
    """What the pairs of sites (J, J) differ by."""

    squares: Array  # squared distances, in the usual one
    counts: Array  # of so many numbers
    relative: Array  # squared distances, in what honest sites have by chance
    n_relative: Array  # of so many numbers

    def alike_ratio(self, node: ClusterNode) -> float:
        """Return the root mean square distance within a group, in what honest sites exceed; infinity of no copies."""
        if node.is_leaf() or node.dist > MAX_ALIKE**2 or node.count > tolerated(len(self.squares)) + 1:
            return np.inf  # no need to look at so many pairs
        first, second = (child.pre_order() for child in (node.get_left(), node.get_right()))
        members = [*first, *second]
        among, between = np.ix_(members, members), np.ix_(first, second)
        pairs = np.triu_indices(node.count, 1)
        n_relative = int(self.n_relative[among][pairs].min())
        for values, n_points in ((self.relative[among][pairs], node.count), (self.relative[between], 2)):
            if values.mean() > _least_relative(n_points, n_relative):
                return np.inf
        n_coordinates = int(self.counts[among][pairs].min())
        least, least_apart = _least_by_chance(len(self.squares), node.count, n_coordinates)
        within = float(self.squares[among][pairs].mean())
        return max(within**0.5 / least, node.dist**0.5 / least_apart) if least > 0.0 else np.inf


def copies_of_another(
    distances: Array,
    n_coordinates: float | Array,
    limit: int,
    relative: Array | None = None,
    n_relative: float | Array | None = None,
) -> NDArray[np.bool_]:
    """Return which sites (J,) are copies of another that stays, from distances (J, J) of so many numbers, or (J, J).

    The largest groups that are copies of each other count, the nearest first, while their copies are no more than may
    be left out; of a group that has too many its parts. Sites whose squared distances `relative` (J, J) to those that
    honest ones have, of `n_relative` numbers (those of all by default), are no smaller than chance makes them are no
    copies, however far all others lie.
    """
    n_sites = len(distances)
    copies = np.zeros(n_sites, dtype=np.bool_)
    if n_sites < MIN_VOTES or limit < 1:
        return copies
    off_diagonal = distances[~np.eye(n_sites, dtype=np.bool_)].reshape(n_sites, n_sites - 1)
    usual = float(np.median(np.sort(off_diagonal, axis=1)[:, (n_sites - 1) // 2]))
    if not 0.0 < usual < np.inf:
        return copies
    squares = np.minimum(distances / usual, MAX_RATIO) ** 2
    relative = np.zeros_like(squares) if relative is None else relative
    n_relative = n_coordinates if n_relative is None else n_relative
    pairs = _Pairs(squares, *(np.broadcast_to(one, squares.shape) for one in (n_coordinates, relative, n_relative)))
    root = to_tree(linkage(squares[np.triu_indices(n_sites, 1)], "average"))
    waiting, left = [(pairs.alike_ratio(root), root.id, root)], limit
    while waiting:
        ratio, _, node = heappop(waiting)
        if node.is_leaf():
            continue
        if ratio < 1.0 and node.count - 1 <= left:
            members = np.sort(node.pre_order())
            medoid = members[np.argmin(squares[np.ix_(members, members)].sum(axis=1))]
            copies[members[members != medoid]] = True
            left -= node.count - 1
            continue
        for child in (node.get_left(), node.get_right()):
            heappush(waiting, (pairs.alike_ratio(child), child.id, child))
    return copies


@lru_cache(maxsize=4096)
def _least_by_chance(n_sites: int, n_members: int, n_coordinates: int) -> tuple[float, float]:
    """Return the root mean square distance that so many honest sites keep from each other, and one from others.

    Both are in the usual distance.
    """
    if n_coordinates < 1:
        return 0.0, 0.0
    half = 0.5 * n_coordinates  # chi2_P has the quantiles 2 gammaincinv(P / 2, .)
    level = ALIKE_LEVEL if n_coordinates >= MIN_COORDINATES else LEVEL_OF_FEW
    usual, level = gammaincinv(half, 0.5), level / comb(n_sites, n_members)
    within = gammaincinv(half * (n_members - 1), level) / (n_members - 1)
    least, apart = (min(float(np.sqrt(one / usual)), MAX_ALIKE) for one in (within, gammaincinv(half, JOIN_LEVEL)))
    return least, apart


@lru_cache(maxsize=4096)
def _least_relative(n_members: int, n_coordinates: int) -> float:
    """Return the mean squared distance that honest sites keep from each other, in what they have on average."""
    half = 0.5 * max(n_coordinates, 1) * (n_members - 1)
    return float(gammaincinv(half, RELATIVE_LEVEL) / half)


def _split_statistics(scores: Array, limit: int) -> Array:
    """Return the two-sample statistic t (..., n - 1) of every cut of sorted scores (..., n); 0 of cuts not asked for.

    A cut after m scores is asked for where its smaller side has two scores or more, and at most `limit`.
    """
    n = scores.shape[-1]
    centred = scores - scores.mean(axis=-1, keepdims=True)
    size = np.arange(1, n)  # m
    between = np.cumsum(centred, axis=-1)[..., :-1] ** 2 * n / (size * (n - size))
    within = (centred**2).sum(axis=-1, keepdims=True) - between
    smaller = np.minimum(size, n - size)
    is_asked = (smaller >= MIN_COLLUDING) & (smaller <= limit)
    rounding = np.finfo(np.float64).eps * between + np.finfo(np.float64).tiny
    statistics: Array = np.where(is_asked, np.sqrt(between * (n - 2) / np.maximum(within, rounding)), 0.0)
    return statistics


@lru_cache(maxsize=256)
def _largest_by_chance(n_sites: int, limit: int) -> float:
    """Return the 0.999 quantile of the largest statistic of normal numbers, from draws of a fixed seed."""
    rng = np.random.default_rng(0)
    largest = [
        _split_statistics(np.sort(rng.normal(size=n_sites)), limit).max(initial=0.0) for _ in range(N_NULL_DRAWS)
    ]
    return float(np.quantile(largest, COLLUSION_LEVEL))


def colluding_sites(squares: Array, limit: int) -> NDArray[np.bool_]:
    """Return which sites (n,) are a cluster apart of two sites or more; nobody where chance gives such a gap.

    It takes squared distances (n, n) of whole sites, and how many may still be left out.

    Examples
    --------
    >>> points = np.array([0.0, 0.3, -0.2, 0.1, -0.4, 0.2, 5.0, 5.3])
    >>> colluding_sites((points[:, None] - points) ** 2, limit=3).nonzero()[0]
    array([6, 7])
    >>> colluding_sites((points[:6, None] - points[:6]) ** 2, limit=2).any()
    np.False_
    """
    n = len(squares)
    nobody = np.zeros(n, dtype=np.bool_)
    if limit < MIN_COLLUDING or n < 2 * MIN_COLLUDING + 1 or not np.isfinite(squares).all():
        return nobody
    if not np.median(np.median(squares, axis=1)) > 0.0:  # most are equal: the geometric median is theirs
        return nobody
    centring = np.eye(n) - 1.0 / n
    _, vectors = np.linalg.eigh(-0.5 * (centring @ squares @ centring))
    order = np.argsort(vectors[:, -1], kind="stable")
    statistics = _split_statistics(vectors[order, -1], limit)
    cut = int(np.argmax(statistics))
    if not statistics[cut] > _largest_by_chance(n, limit):
        return nobody
    nobody[order[: cut + 1] if 2 * (cut + 1) <= n else order[cut + 1 :]] = True
    return nobody


Groups = list[tuple[Labels, Array]]
"""Of every group the sites that have a copy of it (n,), ascending, and the squared distances (n, n) of the copies."""


def judge(
    groups: Groups,
    n_sites: int,
    n_coordinates: int,
    out: Mapping[int, str] | None = None,
    by_sampling: Sequence[float] | None = None,
    *,
    copies_are_known: bool = False,
    radius: float = GATE_RADIUS,
) -> Judgement:
    """Return which of J sites are averaged, from squared distances in every group, of so many numbers in all.

    Sites that were left `out` before, with the steps that they failed, count as hostile; `copies_are_known` says
    whether copies among them were nearer than sampling allows. `by_sampling` has for every group the squared distance
    that sampling alone gives honest copies, where that is known. Beyond `radius` a site is left out.
    """
    groups = [(sites, _cut(squares)) for sites, squares in groups]
    judgement = Judgement(np.full(n_sites, np.nan), dict(out or {}), copies_are_known or by_sampling is not None)
    shared = np.zeros((n_sites, n_sites))
    for sites, _ in groups:
        shared[np.ix_(sites, sites)] += 1.0
    distances = np.sqrt(_over_groups(groups, [squares for _, squares in groups], shared))
    chosen = np.flatnonzero(judgement.kept)
    counts = shared * (n_coordinates / max(len(groups), 1))
    among = np.ix_(chosen, chosen)
    with np.errstate(invalid="ignore"):
        relative = None if by_sampling is None else (distances**2 / _over_groups(groups, by_sampling, shared))[among]
    if relative is not None:
        relative = np.where(np.isnan(relative), np.inf, relative)
    copies = copies_of_another(distances[among], counts[among], judgement.n_left, relative)
    judgement.leave_out(chosen[copies], COPY)

    def leave_out_colluding() -> None:
        chosen = np.flatnonzero(judgement.kept)
        colluding = chosen[colluding_sites(distances[np.ix_(chosen, chosen)] ** 2, judgement.n_left)]
        judgement.leave_out(colluding, "collusion")
        judgement.scores[colluding] = np.nan

    leave_out_colluding()
    judgement.scores[:] = _radii(groups, judgement.kept)
    judgement.leave_out_worst(judgement.scores / radius)
    leave_out_colluding()
    return judgement


def _over_groups(groups: Groups, squares: Sequence[Array | float], shared: Array) -> Array:
    """Return the sum over groups of squared distances (J, J); infinity where two sites share no group.

    Of groups that not both have, nothing is known: the others stand for them.
    """
    total = np.zeros_like(shared)
    for (sites, _), of_group in zip(groups, squares, strict=True):
        total[np.ix_(sites, sites)] += of_group
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(shared > 0, total / shared, np.nan) * max(len(groups), 1)
    return np.where(np.isnan(found), np.inf, found)


def judge_twice(
    groups: Groups,
    standardized: Callable[[NDArray[np.bool_]], Groups],
    n_sites: int,
    n_coordinates: int,
    out: Mapping[int, str] | None = None,
    by_sampling: Sequence[float] | None = None,
) -> Judgement:
    """Return which sites are averaged: those that pass as they are (``judge``), and then in standardized coordinates.

    `standardized` takes which sites (J,) have passed, and returns of every group those of them that have a copy of it,
    and the squared distances of their `standardized_coordinates`.
    """
    first = judge(groups, n_sites, n_coordinates, out, by_sampling)
    known = first.copies_are_known
    later = judge(standardized(first.kept), n_sites, n_coordinates, first.steps, copies_are_known=known)
    return Judgement(np.where(first.kept, later.scores, first.scores), later.steps, known)


def _cut(squares: Array) -> Array:
    """Return squared distances (n, n) cut where rounding would begin to hide small ones."""
    usual = float(np.median(np.median(squares, axis=1))) if len(squares) else 0.0
    return np.minimum(squares, MAX_RATIO**2 * usual) if usual > 0.0 else squares


def _radii(groups: Groups, kept: NDArray[np.bool_]) -> Array:
    """Return the score (J,) of each kept site: its median distance from the centres, in the median of all sites."""
    scores = np.full((len(groups) + 1, len(kept)), np.nan)
    for row, (sites, squares) in enumerate(groups):
        is_in = kept[sites]
        if np.count_nonzero(is_in) < MIN_VOTES:
            continue
        _, distances = geometric_median_weights(squares[np.ix_(is_in, is_in)], np.ones(np.count_nonzero(is_in)))
        usual = float(np.median(distances))
        if usual > 0.0:
            scores[row, sites[is_in]] = distances / usual
    radii = np.full(len(kept), np.nan)
    has_score = ~np.isnan(scores).all(axis=0)
    radii[has_score] = np.nanmedian(scores[:, has_score], axis=0)
    return radii
