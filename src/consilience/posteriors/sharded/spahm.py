"""SPAHM of very many sites: block coordinate ascent in waves over all shards.

The objective is the log posterior of the matching with the atoms integrated out, equations (6) and (7) of Yurochkin et
al. 2019 (``spahm_wave``). In a wave all shards move at once, each site by site among the groups as the wave found them,
and only sites that would gain by it are visited. Shards that moved at once need not fit together: a wave that lowers
the log posterior is undone, and the shards move one after another, which never lowers it. Then those shards that would
gain by it open groups, one after another, so that none is opened twice.

Between waves the law of the atoms is estimated from the groups, equation (10). All that travels are sums and numbers of
the members of each group, and the labels, which are the only state. Waves end when neither labels nor law change, or at
their limit with the status MAX_ITERATIONS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.progress import Progress, silent
from consilience.core.status import Status
from consilience.engines import Engine, Placed
from consilience.errors import InputError
from consilience.matching.beta_bernoulli import AtomLaw, BetaBernoulliPrior, GaussianAtoms
from consilience.matching.groups import GroupSums, group_sums
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.methods.spahm.atom_law import AtomStatistics, point_variances, update_law
from consilience.posteriors.methods.spahm.method import SPAHM
from consilience.posteriors.sharded.passes import PreparedShards
from consilience.posteriors.sharded.spahm_wave import (
    PointShard,
    ShardMove,
    ShardTurn,
    WaveState,
    first_labels,
    move_sites,
    points_of,
    sum_of_squares,
)

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
    """Labels, groups and atom distribution at the end of an ascent.

    Parameters
    ----------
    labels : list of Labels of shape (n,)
        Labels of the active rows of every shard, consecutive from 0.
    groups : GroupSums
        Sums and numbers of the points of each group, less `centre`.
    law : AtomLaw
        Distributions of atoms and copies, of points less `centre`.
    centre : Array of shape (D,)
        What was subtracted from all points.
    history : list of float
        Log posterior after every wave.
    status : Status
        How the ascent ended.
    """

    labels: list[Labels]
    groups: GroupSums
    law: AtomLaw
    centre: Array
    history: list[float]
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

    Parameters
    ----------
    method : SPAHM
        The options.
    shards : PreparedShards
        The shards.
    pilot : Ensemble
        The sampled sites, whose fusion in memory gives the first groups and the first law.
    largest_site : int
        Components of the largest site that has weight.
    rng : Generator
        Source of randomness, for the order of sites.
    progress : callable
        Called with (waves done, waves at most).

    Raises
    ------
    InputError
        Where the sample has fewer groups than one site has components.
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
