"""SPAHM of very many sites, block by block: a shard's sites are matched one by one, among what other shards have.

In a wave all shards move at once, each against the groups as the wave found them, and only sites that would gain by it
are visited. Then those shards that would gain by it open groups, one after another, so that none is opened twice. A
wave that lowers the log posterior
(shards that moved at once need not fit together) is undone, and the shards move one after another, which never does.
All that travels are sums and numbers of the members of each group, of which the law is estimated too, equations (10)
of Yurochkin et al. 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.progress import Progress, silent
from consilience.core.status import Status
from consilience.engines import Engine, Placed
from consilience.matching.beta_bernoulli import AtomLaw, BetaBernoulliPrior, GaussianAtoms
from consilience.matching.groups import GroupSums, group_sums
from consilience.matching.site_step import Openings
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.methods.spahm.atom_law import AtomStatistics, point_variances, update_law
from consilience.posteriors.methods.spahm.method import SPAHM
from consilience.posteriors.sharded.passes import Work
from consilience.posteriors.sharded.spahm_wave import (
    Moved,
    PointShard,
    Told,
    Turn,
    first_labels,
    move,
    points_of,
    sum_of_squares,
)

_LAW_STEPS = 100
_SETTLED = 1e-6
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Ascent:
    """Where waves ended.

    Parameters
    ----------
    labels
        Of the rows of every shard that take part, consecutive from 0.
    groups
        Sums and number of the points of each group, less `centre`.
    law
        Of atoms and copies, likewise.
    centre
        What was taken off all points (D,).
    history
        Log posterior after every wave.
    status
        How it ended.
    """

    labels: list[Labels]
    groups: GroupSums
    law: AtomLaw
    centre: Array
    history: list[float]
    status: Status


def ascend_shards(method: SPAHM, work: Work, pilot: Ensemble, rng: np.random.Generator, progress: Progress) -> Ascent:
    """Raise the log posterior in waves over all shards, from the components that the sample has."""
    ensemble, _ = pilot.canonical(relabel=True)
    voting = ensemble.voting()
    found = method.match(voting, rng, silent)
    points = work.family.points(voting.natural)
    centre = points.mean(axis=0)
    assert found.atoms is not None  # noqa: S101  (the Gaussian likelihood has atoms)
    known = {name: one.values for name, one in found.atoms.attached.items()}
    law = AtomLaw(known["mean"] - centre, known["within_variance"], known["between_variance"])
    groups = group_sums(points - centre, found.labels, np.ones(len(points)), int(found.labels.max()) + 1)
    shards: Placed[PointShard] = work.engine.derive(points_of, work.shards, centre)
    waves = _Waves(
        work.engine, shards, method, BetaBernoulliPrior(work.n_sites, method.concentration, method.mass, method.clip)
    )
    return waves.run(law, groups, centre, point_variances(points), rng, progress)


@dataclass(frozen=True, eq=False)
class _Waves:
    engine: Engine
    shards: Placed[PointShard]
    method: SPAHM
    sharing: BetaBernoulliPrior

    def run(
        self, law: AtomLaw, groups: GroupSums, centre: Array, spread: Array, rng: np.random.Generator, report: Progress
    ) -> Ascent:
        seed = int(rng.integers(2**63))
        squares = np.sum(self.engine.map(sum_of_squares, self.shards), axis=0)
        moved = self.engine.map(first_labels, self.shards, self._told(law, groups, seed))
        labels, groups = self._together(moved)
        law = self._improved(law, groups, squares, spread)
        history = [self._value(law, groups, squares)]
        status = Status.MAX_ITERATIONS
        for wave in range(self.method.max_iterations):
            report(wave, self.method.max_iterations)
            told = self._told(law, groups, seed + wave + 1)
            before = labels
            labels, groups = self._wave(told, labels, groups, squares)
            same = all(np.array_equal(one, other) for one, other in zip(before, labels, strict=True))
            settled_law = law
            law = self._improved(law, groups, squares, spread)
            history.append(self._value(law, groups, squares))
            if same and law.distance(settled_law, spread) < _SETTLED:
                status = Status.CONVERGED
                break
        used = np.flatnonzero(groups.mass)
        numbers = np.cumsum(groups.mass > 0) - 1
        status = Status.AT_CAPACITY if len(used) == self.method.max_components else status
        consecutive = [numbers[own] for own in labels]
        return Ascent(consecutive, GroupSums(groups.sums[used], groups.mass[used]), law, centre, history, status)

    def _wave(
        self, told: Told, labels: list[Labels], groups: GroupSums, squares: Array
    ) -> tuple[list[Labels], GroupSums]:
        """All shards at once, or where that lowers the posterior one after another; then who wishes opens groups."""
        before = self._value(told.law, groups, squares)
        turns: list[Turn] = [(i, own, True, False) for i, own in enumerate(labels)]
        moved = self.engine.map(move, self.shards, told, each=turns)
        proposed, sums = self._together(moved)
        fits = self._value(told.law, sums, squares) >= before - _ROUNDING * abs(before)
        if fits:
            labels, groups = proposed, sums
        for moving, one in enumerate(moved):
            opens = one.wish > 0
            if opens or not fits:
                turns = [(i, own, i == moving, opens) for i, own in enumerate(labels)]
                now = replace(told, groups=groups)
                labels, groups = self._together(self.engine.map(move, self.shards, now, each=turns))
        return labels, groups

    def _told(self, law: AtomLaw, groups: GroupSums, seed: int) -> Told:
        openings = Openings(self.method.max_components, self.method.factorial)
        return Told(law, self.sharing, self.method.marginal, groups, openings, seed)

    def _together(self, moved: Sequence[Moved]) -> tuple[list[Labels], GroupSums]:
        """Return labels by shard, and the groups of all."""
        n_groups = max(len(one.groups.mass) for one in moved)
        width = moved[0].groups.sums.shape[1]
        sums, mass = np.zeros((n_groups, width)), np.zeros(n_groups)
        for one in moved:
            sums[: len(one.groups.mass)] += one.groups.sums
            mass[: len(one.groups.mass)] += one.groups.mass
        sums[mass == 0] = 0.0
        return [one.labels for one in moved], GroupSums(sums, mass)

    def _improved(self, law: AtomLaw, groups: GroupSums, squares: Array, spread: Array) -> AtomLaw:
        if not self.method.optimize:
            return law
        used = groups.mass > 0
        copies = AtomStatistics(GroupSums(groups.sums[used], groups.mass[used]), squares)
        for _ in range(_LAW_STEPS):
            before, law = law, update_law(copies, law, spread, scalar=self.method.variances == "scalar")
            if law.distance(before, spread) < _SETTLED:
                break
        return law

    def _value(self, law: AtomLaw, groups: GroupSums, squares: Array) -> float:
        """Return the log posterior (up to P(v)), as ``GaussianAtoms.total`` does of all points."""
        used = groups.mass > 0
        there = GroupSums(groups.sums[used], groups.mass[used])
        count = float(there.mass.sum())
        centred = AtomStatistics(there, squares).about(law.mean).squares
        noise = 0.5 * float((centred / law.within).sum())
        if self.method.marginal:
            noise += 0.5 * count * float((np.log(2.0 * np.pi * law.within)).sum())
        empty = GaussianAtoms(np.zeros((0, squares.shape[0])), np.zeros(1, dtype=np.int64), law, self.sharing,
                              self.method.marginal)  # fmt: skip
        return float(empty.value(there).sum()) - noise
