"""SPAHM of very many sites: block coordinate ascent in waves over all shards.

The objective is the log posterior of the matching with the atoms integrated out: a sum over groups of a value of their
number and sum of points (equations (6) and (7) of Yurochkin et al. 2019, with the Gaussian case of section 4.1). With
all other sites fixed it is linear in the matching of one site (their Proposition 1), so each site's step is one
assignment with gains

    value(n_g + 1, t_g + v_l) - value(n_g, t_g)       of joining group g with n_g members of sum t_g,

and the value of a group of one for opening a group. In a wave all shards move at once, each site by site among the
groups as the wave found them, and only sites that would gain by it are visited. Shards that moved at once need not fit
together: a wave that lowers the log posterior is undone, and the shards move one after another, which never lowers it.
Then those shards that would gain by it open groups, one after another, so that none is opened twice.

Between waves the law of the atoms is estimated from the groups, equation (10). All that travels are sums and numbers of
the members of each group, and the labels, which are the only state. Waves end when neither labels nor law change, or at
their limit with the status MAX_ITERATIONS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.details import Status
from consilience.core.progress import Progress, silent
from consilience.engines import Engine, Placed
from consilience.errors import InputError
from consilience.matching.assignment import NO_NEW_GROUPS, Openings, assign_blocks
from consilience.matching.beta_bernoulli import AtomLaw, BetaBernoulliPrior, GaussianAtoms
from consilience.matching.groups import GroupSums, group_sums
from consilience.matching.site_by_site import ascend_among
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.methods.spahm.atom_law import AtomStatistics, point_variances, update_law
from consilience.posteriors.methods.spahm.method import SPAHM
from consilience.posteriors.sharded.passes import PreparedShard, PreparedShards

SMALL_GROUP = 5
"""Members of a group up to which sites with a component in it are always visited.

``_improvable_sites`` leaves a site's own components in the groups that it compares, which matters most in small groups.
Chosen by hand; nobody has measured other values.
"""

CHUNK_ROWS = 4096
"""Rows whose gains for all groups are computed at a time, about. A bound on memory, chosen by hand."""


@dataclass(frozen=True, eq=False)
class PointShard:
    """The points of the active rows of a shard."""

    points: Array  # less a centre that is common to all shards (n, D)
    offsets: Labels  # first row of each site among them, and n (J + 1,)


def points_of(shard: PreparedShard, centre: Array) -> PointShard:
    """Return the points of a shard less `centre` (D,)."""
    points = np.empty((len(shard.owner), len(centre)))
    for rows, _ in shard.chunks():
        natural = np.asarray(shard.natural(rows), dtype=np.float64)
        points[rows] = shard.tangent.family.points(natural) - centre
    return PointShard(points, shard.offsets)


@dataclass(frozen=True, eq=False)
class WaveState:
    """What is common to all shards in a wave: the law, and the groups as the wave found them."""

    law: AtomLaw  # of atoms and of their copies at sites
    sharing: BetaBernoulliPrior  # how many sites share an atom
    marginal: bool  # whether atoms are integrated out, as in ``GaussianAtoms``
    groups: GroupSums  # sums and numbers of points of the groups of all shards
    openings: Openings  # of groups, for the shards that may do so
    seed: int  # of the orders in which sites move

    def objective(self, shard: PointShard) -> GaussianAtoms:
        """Return the objective of the points of one shard."""
        return GaussianAtoms(shard.points, shard.offsets, self.law, self.sharing, self.marginal)


@dataclass(frozen=True, eq=False)
class ShardMove:
    """A shard after a wave."""

    labels: Labels  # of its rows (n,)
    groups: GroupSums  # sums and numbers of its own points in every group
    opening_gain: float = 0.0  # about what the objective would gain if a component opened a group


ShardTurn = tuple[int, Labels, bool, bool]
"""Of one shard: its number, its labels (n,), whether its sites move, and whether they may open groups."""


def first_labels(shard: PointShard, state: WaveState) -> ShardMove:
    """Return a shard with every site matched to the given groups, regardless of all other sites."""
    objective = state.objective(shard)
    labels = np.empty(len(shard.points), dtype=np.int64)  # (n,)
    for first, rows in _chunks(shard.offsets):
        gains = objective.gains(rows, state.groups)
        labels[rows] = assign_blocks(-gains, shard.offsets[first] - rows[0])
    return ShardMove(labels, _sums(shard.points, labels, len(state.groups.mass)))


def move_sites(shard: PointShard, turn: ShardTurn, state: WaveState) -> ShardMove:
    """Return a shard after its sites were matched anew among the groups of the other shards, if it is its turn."""
    shard_number, labels, is_moving, may_open = turn
    n_groups = len(state.groups.mass)
    current = _sums(shard.points, labels, n_groups)
    if not is_moving or not len(labels):
        return ShardMove(labels, current)
    objective = state.objective(shard)
    # What components of other shards add to the groups, (G, D) and (G,).
    others = GroupSums(state.groups.sums - current.sums, state.groups.mass - current.mass)
    others.sums[others.mass == 0] = 0.0  # exactly empty, where differences leave rounding
    sites, opening_gain = _improvable_sites(objective, labels, state.groups, may_open)
    # A generator of its own for each wave and shard, so that the order does not depend on the engine.
    order = np.random.default_rng([state.seed, shard_number]).permutation(sites)
    moved = ascend_among(objective, labels, others, order, state.openings if may_open else NO_NEW_GROUPS)
    return ShardMove(moved, _sums(shard.points, moved, max(n_groups, int(moved.max(initial=-1)) + 1)), opening_gain)


def _improvable_sites(
    objective: GaussianAtoms, labels: Labels, groups: GroupSums, may_open: bool
) -> tuple[Labels, float]:
    """Return the sites whose best matching to the groups is not their own, and the largest gain of opening one.

    Groups count with the site's own components in them, so sites with components in small groups are returned too. A
    group that every site has takes in one more as if one site less had it, since the prior has no larger group.
    """
    offsets = objective.offsets
    improvable, opening_gain = [], 0.0
    used = np.flatnonzero(groups.mass)  # numbers of the G groups with members
    nonempty = GroupSums(groups.sums[used], groups.mass[used])
    joinable = GroupSums(nonempty.sums, np.minimum(nonempty.mass, objective.sharing.n_sites - 1.0))
    nonempty_labels = np.searchsorted(used, labels)  # (n,)
    values = objective.value(nonempty)
    for chunk, rows in _chunks(offsets):
        gains = objective.gains(rows, joinable)  # (k, G): of joining each group
        current, row_numbers = nonempty_labels[rows], np.arange(len(rows))
        remaining_mass = nonempty.mass[current] - 1.0
        # Staying gains what leaving would lose: the value of the group less that without the component. Alone in its
        # group, it gains what opening the group again would.
        remaining = GroupSums(nonempty.sums[current] - objective.pieces[rows], remaining_mass)
        stay_gains = np.where(remaining_mass > 0, values[current] - objective.value(remaining), objective.opening(rows))
        gains[row_numbers, current] = stay_gains
        best = assign_blocks(-gains, offsets[chunk] - rows[0])
        # Moves within the site and in small groups are judged exactly when the site is visited.
        is_improvable = (best != current) | (remaining_mass < SMALL_GROUP)
        opening_gains = objective.opening(rows) - stay_gains
        opening_gain = max(opening_gain, float(opening_gains[remaining_mass > 0].max(initial=0.0)))
        if may_open:
            is_improvable |= opening_gains > 0
        owner = np.repeat(chunk[:-1], np.diff(offsets[chunk]))
        improvable.append(np.unique(owner[is_improvable]))
    return np.concatenate(improvable) if improvable else np.zeros(0, dtype=np.int64), opening_gain


def _chunks(offsets: Labels) -> list[tuple[Labels, Labels]]:
    """Return runs of whole sites of about ``CHUNK_ROWS`` rows.

    Each is two arrays: the numbers of its sites and of the one after the last, and the numbers of its rows.
    """
    edges = np.searchsorted(offsets, np.arange(0, int(offsets[-1]) + CHUNK_ROWS, CHUNK_ROWS))
    # Sites at which runs begin; the last edge is the number of sites.
    edges = np.unique(np.append(np.minimum(edges, len(offsets) - 1), len(offsets) - 1))
    runs = [np.arange(first, end + 1) for first, end in pairwise(edges)]
    return [(run, np.arange(offsets[run[0]], offsets[run[-1]])) for run in runs if offsets[run[-1]] > offsets[run[0]]]


def _sums(points: Array, labels: Labels, n_groups: int) -> GroupSums:
    """Return sums and numbers of the points of each group, (G, D) and (G,)."""
    return group_sums(points, labels, np.ones(len(labels)), n_groups)


def sum_of_squares(shard: PointShard) -> Array:
    """Return the sum of the squared points of a shard (D,)."""
    return np.einsum("nd,nd->d", shard.points, shard.points)


MAX_LAW_STEPS = 100
"""Steps of the law after a wave at most. A bound against slow convergence, chosen by hand."""

LAW_TOLERANCE = 1e-6
"""Distance that the law moves in a step, in widths of the points, below which it has converged.

The same as of SPAHM in memory, for which it was chosen by hand.
"""

OBJECTIVE_ROUNDING = 1e-12
"""Relative fall of the log posterior that counts as rounding, some 5,000 units in the last place. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class ShardAscent:
    """Labels, groups and atom distribution at the end of an ascent."""

    labels: list[Labels]  # of the active rows of every shard (n,), consecutive from 0
    groups: GroupSums  # sums and numbers of the points of each group, less the centre
    law: AtomLaw  # of atoms and copies, of points less the centre
    centre: Array  # what was subtracted from all points (D,)
    history: list[float]  # log posterior after every wave
    status: Status


def ascend_shards(
    method: SPAHM,
    shards: PreparedShards,
    pilot: Ensemble,
    largest_site: int,
    rng: np.random.Generator,
    progress: Progress,
) -> ShardAscent:
    """Return the matching after raising the log posterior in waves over all shards.

    The fusion of the `pilot` sites in memory gives the first groups and the first law. A sample with fewer groups than
    the `largest_site` that has weight has components is refused.
    """
    ensemble, _ = pilot.canonical(relabel=True)
    voting = ensemble.voting()
    match = method.match(voting, rng, silent)
    points = shards.family.points(voting.natural)  # (L of the sample, D)
    centre = points.mean(axis=0)
    assert match.atoms is not None  # noqa: S101  (the Gaussian likelihood has atoms)
    law_parameters = {name: attached.values for name, attached in match.atoms.attached.items()}
    law = AtomLaw(
        law_parameters["mean"] - centre, law_parameters["within_variance"], law_parameters["between_variance"]
    )
    n_groups = int(match.labels.max()) + 1
    if n_groups < largest_site:
        raise InputError(
            f"spahm finds {n_groups} components in the sample of {voting.n_sites} sites, and one site has "
            f"{largest_site}: give a larger pilot_sites"
        )
    groups = group_sums(points - centre, match.labels, np.ones(len(points)), n_groups)
    point_shards: Placed[PointShard] = shards.engine.derive(points_of, shards.shards, centre)
    sharing = BetaBernoulliPrior(shards.n_sites, method.concentration, method.mass, method.clip)
    waves = _Waves(shards.engine, point_shards, method, sharing)
    return waves.run(law, groups, centre, point_variances(points), rng, progress)


@dataclass(frozen=True, eq=False)
class _Waves:
    """The shards, the options and the process that says how sites share atoms."""

    engine: Engine
    shards: Placed[PointShard]
    method: SPAHM
    sharing: BetaBernoulliPrior

    def run(
        self,
        law: AtomLaw,
        groups: GroupSums,
        centre: Array,
        spread: Array,
        rng: np.random.Generator,
        progress: Progress,
    ) -> ShardAscent:
        """Return the ascent from an atom distribution and groups; `spread` (D,) are the variances of the points."""
        seed = int(rng.integers(2**63))
        # Sum of the squared points per dimension (D,): with the groups all that the law and the posterior need.
        squares = np.sum(self.engine.map(sum_of_squares, self.shards), axis=0)
        moved = self.engine.map(first_labels, self.shards, self._state(law, groups, seed))
        labels, groups = self._collect(moved)
        law = self._fit_law(law, groups, squares, spread)
        history = [self._log_posterior(law, groups, squares)]
        status = Status.MAX_ITERATIONS
        for wave in range(self.method.max_iterations):
            progress(wave, self.method.max_iterations)
            state = self._state(law, groups, seed + wave + 1)
            labels_before = labels
            labels, groups = self._wave(state, labels, groups, squares)
            is_unchanged = all(np.array_equal(old, new) for old, new in zip(labels_before, labels, strict=True))
            law_before = law
            law = self._fit_law(law, groups, squares, spread)
            history.append(self._log_posterior(law, groups, squares))
            if is_unchanged and law.distance(law_before, spread) < LAW_TOLERANCE:
                status = Status.CONVERGED
                break
        used = np.flatnonzero(groups.mass)
        new_labels = np.cumsum(groups.mass > 0) - 1  # numbers without gaps of the groups that have members
        status = Status.AT_CAPACITY if len(used) == self.method.max_components else status
        consecutive = [new_labels[labels_of_shard] for labels_of_shard in labels]
        return ShardAscent(consecutive, GroupSums(groups.sums[used], groups.mass[used]), law, centre, history, status)

    def _wave(
        self, state: WaveState, labels: list[Labels], groups: GroupSums, squares: Array
    ) -> tuple[list[Labels], GroupSums]:
        """Return labels and groups after all shards moved, and those that gain by it opened groups."""
        value_before = self._log_posterior(state.law, groups, squares)
        turns: list[ShardTurn] = [(i, labels_of_shard, True, False) for i, labels_of_shard in enumerate(labels)]
        moved = self.engine.map(move_sites, self.shards, state, each=turns)
        proposed, sums = self._collect(moved)
        is_accepted = self._log_posterior(state.law, sums, squares) >= value_before - OBJECTIVE_ROUNDING * abs(
            value_before
        )
        if is_accepted:
            labels, groups = proposed, sums
        # One after another, each shard moves among the groups as the one before left them, so the posterior cannot
        # fall.
        for moving, moved_shard in enumerate(moved):
            may_open = moved_shard.opening_gain > 0
            if may_open or not is_accepted:
                turns = [(i, labels_of_shard, i == moving, may_open) for i, labels_of_shard in enumerate(labels)]
                current_state = replace(state, groups=groups)
                labels, groups = self._collect(self.engine.map(move_sites, self.shards, current_state, each=turns))
        return labels, groups

    def _state(self, law: AtomLaw, groups: GroupSums, seed: int) -> WaveState:
        """Return what a wave tells every shard."""
        return WaveState(law, self.sharing, self.method.marginal, groups, self.method.openings, seed)

    def _collect(self, moved: Sequence[ShardMove]) -> tuple[list[Labels], GroupSums]:
        """Return labels by shard, and the groups of all shards."""
        # A shard that opened groups has more of them; the others have none of their points there.
        n_groups = max(len(moved_shard.groups.mass) for moved_shard in moved)
        width = moved[0].groups.sums.shape[1]
        sums, mass = np.zeros((n_groups, width)), np.zeros(n_groups)
        for moved_shard in moved:
            sums[: len(moved_shard.groups.mass)] += moved_shard.groups.sums
            mass[: len(moved_shard.groups.mass)] += moved_shard.groups.mass
        sums[mass == 0] = 0.0  # exactly empty, where differences leave rounding
        return [moved_shard.labels for moved_shard in moved], GroupSums(sums, mass)

    def _fit_law(self, law: AtomLaw, groups: GroupSums, squares: Array, spread: Array) -> AtomLaw:
        """Return the atom distribution that fits the groups, equation (10); `squares` (D,) are of all points."""
        if not self.method.optimize:
            return law
        used = groups.mass > 0
        copies = AtomStatistics(GroupSums(groups.sums[used], groups.mass[used]), squares)
        for _ in range(MAX_LAW_STEPS):
            law_before, law = law, update_law(copies, law, spread, scalar=self.method.variances == "scalar")
            if law.distance(law_before, spread) < LAW_TOLERANCE:
                break
        return law

    def _log_posterior(self, law: AtomLaw, groups: GroupSums, squares: Array) -> float:
        """Return the log posterior, up to a constant P(v), as ``GaussianAtoms.total`` does of points in memory."""
        used = groups.mass > 0
        nonempty = GroupSums(groups.sums[used], groups.mass[used])
        count = float(nonempty.mass.sum())
        # log posterior = sum over groups of their value - sum over points of their own density terms
        centred = AtomStatistics(nonempty, squares).about(law.mean).squares
        noise = 0.5 * float((centred / law.within).sum())
        if self.method.marginal:
            noise += 0.5 * count * float((np.log(2.0 * np.pi * law.within)).sum())
        empty = GaussianAtoms(np.zeros((0, squares.shape[0])), np.zeros(1, dtype=np.int64), law, self.sharing,
                              self.method.marginal)  # fmt: skip
        return float(empty.value(nonempty).sum()) - noise
