"""The methods that run over shards of very many sites: each starts from what it finds in a sample of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.progress import Progress, silent
from consilience.core.status import Status
from consilience.errors import OptionError
from consilience.families import Point
from consilience.posteriors.average import kl_average
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.method import Method
from consilience.posteriors.methods.average import Average
from consilience.posteriors.methods.kl.method import KLFusion
from consilience.posteriors.methods.kl.problem import KLProblem
from consilience.posteriors.methods.kmeans import KMeans
from consilience.posteriors.methods.spahm.method import SPAHM
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.sharded.descent import Descent, descend
from consilience.posteriors.sharded.passes import Shard, Work
from consilience.posteriors.sharded.shard_pass import Centres, site_costs
from consilience.posteriors.sharded.spahm import ascend_shards

_LOOKS = 2
_PART = 4
_MOSTLY = 0.5


@dataclass(frozen=True, eq=False)
class Found:
    """What a method found in all shards.

    Parameters
    ----------
    labels
        Of the rows of every shard that take part, consecutive from 0 over all shards.
    n_groups
        Number of groups G.
    history
        The objective after each pass.
    status
        How it ended.
    details
        Further facts worth reporting, as JSON values.
    averaged
        Fused components (G, P) of methods that find them with the matching.
    atoms
        Posterior over the points that stand for the fused components (G, D), for methods that have one.
    """

    labels: Sequence[Labels]
    n_groups: int
    history: Array = field(default_factory=lambda: np.zeros(0))
    status: Status = Status.CONVERGED
    details: Mapping[str, Any] = field(default_factory=dict)
    averaged: Array | None = None
    atoms: Posterior | None = None


@dataclass(frozen=True, eq=False)
class Sites:
    """The shards that a method works on.

    Parameters
    ----------
    work
        The shards, prepared.
    pilot
        The sampled sites.
    largest, smallest
        Components of the largest and of the smallest site.
    """

    work: Work
    pilot: Ensemble
    largest: int
    smallest: int


def _pilot_matching(
    method: Method, pilot: Ensemble, rng: np.random.Generator, progress: Progress
) -> tuple[Array, Array, Mapping[str, Any]]:
    """Return what a method finds in some sites: averages (G, P), their users (G,), and its details."""
    ensemble, _ = pilot.canonical(relabel=True)
    voting = ensemble.voting()
    found = method.match(voting, rng, progress)
    n_groups = int(found.labels.max()) + 1
    averages = kl_average(voting, found.labels, n_groups, method.average_direction)
    users = np.bincount(found.labels[found.labels >= 0], minlength=n_groups).astype(np.float64)
    return averages, users, found.details


def fit_kl(method: KLFusion, sites: Sites, rng: np.random.Generator, progress: Progress) -> Found:
    """KL-fusion: the number of components from a sample, and from the worst-matched sites; then passes over all.

    lambda is a price for sqrt(n_g): in a sample of J' out of J sites it is lambda sqrt(J' / J), so that both weigh
    components alike.
    """
    work, pilot = sites.work, sites.pilot
    share = pilot.n_sites / work.n_sites
    strength, told = 0.0, method
    details: dict[str, Any] = {}
    if method.n_components is None and method.regularization != "auto":
        spread = KLProblem.of(pilot, method.direction).spread
        strength = method.regularization * spread
        told = replace(method, regularization=method.regularization * share**0.5)
        details |= {"regularization": float(method.regularization), "spread": spread}
    limit = _limit(method.n_components or method.max_components, sites.largest, work.n_rows)
    told = replace(told, max_components=None if told.n_components else limit)
    passes = partial(
        descend,
        work,
        exclusive=True,
        limit=limit,
        max_iterations=method.max_iterations,
        tolerance=method.tolerance,
        progress=progress,
    )
    looked = pilot
    descent: Descent | None = None
    for _ in range(_LOOKS):
        averages, users, found = _pilot_matching(told, looked, rng, silent)
        if descent is not None and len(averages) <= descent.n_groups:
            break
        if len(averages) < sites.largest:  # no two components of one site may become the same
            averages, users = _with_more(looked, averages, users, sites.largest - len(averages))
        descent = passes(averages, strength, users * (work.n_sites / looked.n_sites))
        if method.n_components is not None or strength > 0:
            break
        looked = _with_worst(sites, looked, descent)
    assert descent is not None  # noqa: S101  (there is at least one look)
    details |= {name: found[name] for name in ("path", "heterogeneity") if name in found}
    details["pilot_sites"] = looked.n_sites
    status = descent.status
    spread_out = max(found.get("heterogeneity", {}).values(), default=0.0)
    if status is Status.CONVERGED and descent.n_groups == sites.largest and spread_out > _MOSTLY:
        status = Status.POOLED
    if status is Status.CONVERGED and method.n_components is None and descent.n_groups == limit < work.n_rows:
        status = Status.AT_CAPACITY
    return Found(descent.labels, descent.n_groups, descent.history, status, details)


def _limit(told: int | None, largest: int, n_rows: int) -> int:
    if told is not None and told < largest:
        raise OptionError(
            f"at most {told} components were asked for, but a site has {largest}, and no two of one site may become "
            f"the same: give at least {largest}"
        )
    return min(n_rows, 3 * largest if told is None else told)


def _with_more(pilot: Ensemble, averages: Array, users: Array, missing: int) -> tuple[Array, Array]:
    """Return centres with the sampled components farthest from them added, so that the largest site has room."""
    costs = KLProblem.of(pilot).geometry.costs(averages).min(axis=0)
    farthest = np.resize(np.argsort(-costs, kind="stable"), missing)
    return np.concatenate([averages, pilot.natural[farthest]]), np.concatenate([users, np.zeros(missing)])


def _with_worst(sites: Sites, looked: Ensemble, descent: Descent) -> Ensemble:
    """Return the sample with the sites that fit the components worst: what few sites have, no sample may have met."""
    work = sites.work
    centres = Centres.of(work.tangent, descent.centres, work.direction, np.zeros(descent.n_groups))
    count = max(1, sites.pilot.n_sites // _PART)
    worst = work.reduce(worst_sites, partial(add_worst, count=count), centres, count)
    have = {posterior.natural.tobytes() for posterior in looked.posteriors}
    new = [(posterior, weight) for _, posterior, weight in worst if posterior.natural.tobytes() not in have]
    if not new:
        return looked
    posteriors, weights = [*looked.posteriors, *(p for p, _ in new)], [*looked.site_weights, *(w for _, w in new)]
    return Ensemble.of(posteriors, weights)


Worst = tuple[float, Posterior, float]


def worst_sites(shard: Shard, centres: Centres, count: int) -> list[Worst]:
    """Return the sites of a shard whose components are farthest from their centres: how far, posterior, weight."""
    costs = site_costs(shard, centres)
    found = []
    for site in np.argsort(-costs, kind="stable")[:count].tolist():
        weight = 1.0 if shard.weights is None else float(shard.weights[site])
        if weight > 0:
            found.append((float(costs[site]), shard.block.site(site), weight))
    return found


def add_worst(parts: Sequence[list[Worst]], count: int) -> list[Worst]:
    """Return the worst sites of several shards."""
    return sorted((one for part in parts for one in part), key=lambda one: -one[0])[:count]


def fit_kmeans(method: KMeans, sites: Sites, rng: np.random.Generator, progress: Progress) -> Found:
    """Cluster all components from the centres that clustering the sample gives."""
    count = method.n_components or sites.largest
    averages, users, _ = _pilot_matching(replace(method, n_components=count), sites.pilot, rng, silent)
    descent = descend(
        sites.work,
        averages,
        0.0,
        users,
        exclusive=False,
        limit=count,
        max_iterations=method.max_iterations,
        tolerance=0.0,
        progress=progress,
    )
    broken = sum(sites.work.map(_shared_clusters, each=descent.labels))
    details = {"violations": int(broken), "pilot_sites": sites.pilot.n_sites}
    return Found(descent.labels, descent.n_groups, descent.history, descent.status, details)


def _shared_clusters(shard: Shard, labels: Labels) -> int:
    """Return how many components share a cluster with an earlier one of their own site."""
    return len(labels) - len(np.unique(shard.owner * (int(labels.max(initial=0)) + 1) + labels))


def fit_average(method: Average, sites: Sites, rng: np.random.Generator, progress: Progress) -> Found:
    """Label every component with its place in its site."""
    del method, rng, progress
    if sites.smallest != sites.largest:
        raise OptionError(
            f"average needs models of equal size, found {sites.smallest} to {sites.largest} components; use method "
            "'kl', which matches them"
        )
    return Found(sites.work.map(_places), sites.largest)


def _places(shard: Shard) -> Labels:
    return np.arange(len(shard.owner), dtype=np.int64) - shard.offsets[shard.owner]


def fit_spahm(method: SPAHM, sites: Sites, rng: np.random.Generator, progress: Progress) -> Found:
    """SPAHM: waves over all shards from the components of the sample."""
    found = ascend_shards(method, sites.work, sites.pilot, rng, progress)
    n_groups = len(found.groups.mass)
    atoms = method.atoms_of(found.law, found.groups, found.centre)
    details = {
        "within_variance": float(found.law.within.mean()),
        "between_variance": float(found.law.between.mean()),
        "pilot_sites": sites.pilot.n_sites,
    }
    points = isinstance(sites.work.family, Point)
    averaged = atoms.parameters()["mean"] if points and method.shrink else None
    return Found(found.labels, n_groups, -np.array(found.history), found.status, details, averaged, atoms)


Fit = Callable[[Any, Sites, np.random.Generator, Progress], Found]

SHARDED: Mapping[type[Method], Fit] = {KLFusion: fit_kl, SPAHM: fit_spahm, KMeans: fit_kmeans, Average: fit_average}
"""Every method that runs over shards, and what runs it."""


def refusals(method: Method) -> list[str]:
    """Return why a method cannot run over shards of more sites than the sample has, a line each."""
    if type(method) not in SHARDED:
        known = ", ".join(sorted(kind.name for kind in SHARDED))
        return [f"method {method.name!r} does not run over shards; methods that do: {known}"]
    reasons = []
    if method.robust is not None or method.minority == "drop":
        reasons.append("robust fusion and minority='drop' do not run over shards; fuse the posterior files themselves")
    if isinstance(method, KLFusion) and method.divergence != "kl":
        reasons.append(f"divergence={method.divergence!r} does not run over shards; use 'kl'")
    if isinstance(method, KLFusion) and method.assignment != "integral":
        reasons.append(f"assignment={method.assignment!r} does not run over shards; use 'integral'")
    if isinstance(method, SPAHM) and method.likelihood != "gaussian":
        reasons.append(f"likelihood={method.likelihood!r} does not run over shards; use 'gaussian'")
    return reasons
