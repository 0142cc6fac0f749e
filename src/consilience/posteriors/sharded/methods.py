"""Methods over shards of very many sites: KL-fusion, SPAHM, k-means and average, each started from a pilot sample.

Restarts and the law of atoms come from the method itself, run in memory on a sample of sites; passes over all shards go
on from the components found there. A component that only few sites have may be missing in the sample: KL-fusion
therefore adds the sites that fit worst to the sample once, and starts again if they bring a further component. Of few
components KL-fusion needs no passes: they are gathered and fused in memory. Options that only the in-memory methods
have are refused (``refusals``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.details import Status
from consilience.core.progress import Progress, silent
from consilience.errors import InputError, OptionError
from consilience.matching.beta_bernoulli import BetaBernoulliPrior, GaussianAtoms
from consilience.matching.site_by_site import match_confidence
from consilience.posteriors.details import PosteriorDetails
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.evidence.diagnostics import MAX_DIAGNOSED_ROWS
from consilience.posteriors.method import Method
from consilience.posteriors.methods.average import Average
from consilience.posteriors.methods.kl.method import KLFusion
from consilience.posteriors.methods.kl.problem import KLProblem
from consilience.posteriors.methods.kmeans import KMeans
from consilience.posteriors.methods.spahm.method import SPAHM
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.sharded.descent import Centres, ShardDescent, descend, site_costs
from consilience.posteriors.sharded.passes import Divergence, PreparedShard, PreparedShards, gather, n_active_rows
from consilience.posteriors.sharded.spahm import ascend_shards

MAX_PILOTS = 2
"""Samples that ``fit_kl`` fuses at most: the pilot sample, then once with the worst-matched sites of all shards in it.

Chosen by hand; nobody has measured a third sample.
"""

WORST_SITES_DIVISOR = 4
"""The worst-matched sites that join the pilot sample are one for each so many sites in it. Chosen by hand."""

MAX_GATHERED_ROWS = MAX_DIAGNOSED_ROWS
"""Components up to which those of all shards are fused in memory: what memory can do at once needs no passes."""

GROUPS_PER_SITE = 3
"""Groups at most under a price where nobody says otherwise, in components of the largest site: as in memory."""


@dataclass(frozen=True, eq=False)
class ShardedFit:
    """Labels of all components, and what else a method determined in fitting the shards."""

    labels: Sequence[Labels]  # of the active rows of every shard (n,), consecutive from 0 over all shards
    n_groups: int
    history: Array = field(default_factory=lambda: np.zeros(0))  # the objective after each pass
    status: Status = Status.CONVERGED
    details: PosteriorDetails = field(default_factory=PosteriorDetails)
    averages: Array | None = None  # fused components (G, P), where they come with the matching
    atoms: Posterior | None = None  # over the points that stand for the components (G, D)
    confidence: Sequence[Array] | None = None  # of each match of the active rows of every shard (n,)


@dataclass(frozen=True, eq=False)
class ShardedInput:
    """The shards that a method works on, and a pilot sample of their sites."""

    shards: PreparedShards
    pilot: Ensemble  # the sampled sites
    largest_site: int  # components of the largest site
    smallest_site: int  # and of the smallest


def _pilot_matching(
    method: Method, pilot: Ensemble, rng: np.random.Generator, progress: Progress
) -> tuple[Array, Array, PosteriorDetails]:
    """Return what a method finds in a sample: averages (G, P), their numbers of users (G,), and its details."""
    ensemble, _ = pilot.canonical(relabel=True)
    voting = ensemble.voting()
    match = method.match(voting, rng, progress)
    n_groups = int(match.labels.max()) + 1
    averages = method.average(voting, match.labels, n_groups)  # (G, P)
    users = np.bincount(match.labels[match.labels >= 0], minlength=n_groups).astype(np.float64)  # (G,)
    return averages, users, match.details


def fit_kl(method: KLFusion, sites: ShardedInput, rng: np.random.Generator, progress: Progress) -> ShardedFit:
    """Fit KL-fusion: the number of components from a sample and the worst-matched sites, then passes over all shards.

    Matches cost a sum over sites, groups lambda sqrt(n_g): for J' of J sites the same balance has lambda sqrt(J' / J).
    Other divergences have no evidence: as in memory they take the number that is found under Kullback-Leibler.
    """
    shards, is_kl = sites.shards, method.divergence == "kl"
    if sum(shards.map(n_active_rows)) <= MAX_GATHERED_ROWS:
        return _fit_in_memory(method, shards, rng, progress)
    if not is_kl and method.finds_number and method.regularization == "auto":
        # No two components of the largest site may become the same, whatever the evidence says.
        selected = fit_kl(replace(method, divergence="kl"), sites, rng, silent)
        count = max(selected.n_groups, sites.largest_site)
        fit = fit_kl(replace(method, n_components=count), sites, rng, progress)
        return replace(fit, details={**fit.details, "path": selected.details["path"]})
    if not is_kl:
        shards = replace(shards, divergence=Divergence(method.divergence, method.order))
    of_sample, strength, details = _of_sample(method, sites)
    limit = _limit(method.n_components or of_sample.max_components, sites.largest_site, shards.n_rows)
    passes = partial(
        descend,
        shards,
        strength=strength,
        exclusive=True,
        limit=limit,
        max_iterations=method.max_iterations,
        tolerance=method.tolerance,
        progress=progress,
    )
    n_samples = 1 if method.n_components is not None or strength > 0 else MAX_PILOTS
    descent, found = _descend_from_samples(of_sample, sites, passes, n_samples, rng)
    status = descent.status
    if status is Status.CONVERGED and method.finds_number and descent.n_groups == limit < shards.n_rows:
        status = Status.AT_CAPACITY
    centres = None if is_kl else descent.centres
    return ShardedFit(descent.labels, descent.n_groups, descent.history, status, {**details, **found}, centres)


def _of_sample(method: KLFusion, sites: ShardedInput) -> tuple[KLFusion, float, PosteriorDetails]:
    """Return the method that fuses a sample of the sites, lambda of the passes over all, and what to report of it."""
    pilot, n_sites = sites.pilot, sites.shards.n_sites
    if method.n_components is not None:
        if len(pilot.natural) < method.n_components <= sites.shards.n_rows:
            raise InputError(
                f"n_components is {method.n_components}, but the sample of {pilot.n_sites} sites, from which passes "
                f"start, has {len(pilot.natural)} components: give a larger pilot_sites"
            )
        # Passes descend on equation (6) from the sample, which is solved by (6), too.
        return replace(method, max_components=None, regularization=0.0), 0.0, {}
    if method.regularization == "auto":
        return method, 0.0, {}
    spread = KLProblem(pilot, method.geometry(pilot)).spread  # standard deviation of divergences (Claici et al.)
    strength = method.regularization * spread
    limit = method.max_components
    if limit is None and strength > 0:
        limit = GROUPS_PER_SITE * sites.largest_site
    # Matches cost a sum over sites; J / J' times fewer users make sqrt(n_g) smaller by the root of that only.
    scaled = method.regularization * (pilot.n_sites / n_sites) ** 0.5
    details: PosteriorDetails = {"regularization": float(method.regularization), "spread": spread}
    return replace(method, max_components=limit, regularization=scaled), strength, details


def _descend_from_samples(
    method: KLFusion, sites: ShardedInput, passes: Callable[..., ShardDescent], n_samples: int, rng: np.random.Generator
) -> tuple[ShardDescent, PosteriorDetails]:
    """Return the descent from what the method finds in a sample, and what to report of it.

    It starts anew, `n_samples` times at most, while the worst-matched sites of all bring a further component.
    """
    sample, descent = sites.pilot, None
    for _ in range(n_samples):
        averages, users, found = _pilot_matching(method, sample, rng, silent)
        if descent is not None and len(averages) <= descent.n_groups:
            break  # the worst-matched sites brought no further component
        missing = sites.largest_site - len(averages)
        if missing > 0:  # no two components of one site may become the same
            averages, users = _add_farthest_components(method, sample, averages, users, missing)
        # In all shards a group has about as many times more users as there are times more sites.
        descent = passes(averages, users=users * (sites.shards.n_sites / sample.n_sites))
        if n_samples > 1:
            sample = _add_worst_sites(sites, sample, descent)
    assert descent is not None  # noqa: S101  (at least one sample is fused)
    details: PosteriorDetails = {}
    if "path" in found:
        details["path"] = found["path"]
    if "heterogeneity" in found:
        details["heterogeneity"] = found["heterogeneity"]
    return descent, {**details, "pilot_sites": sample.n_sites}


def _fit_in_memory(
    method: KLFusion, shards: PreparedShards, rng: np.random.Generator, progress: Progress
) -> ShardedFit:
    """Return what the method finds for the components of all shards, few in all, in memory."""
    gathered = gather(shards)
    ensemble = gathered.ensemble
    match = method.match(ensemble, rng, progress)
    n_groups = int(match.labels.max()) + 1
    return ShardedFit(
        gathered.by_shard(match.labels),
        n_groups,
        match.history,
        match.status,
        match.details,
        averages=None if method.divergence == "kl" else method.average(ensemble, match.labels, n_groups),
        confidence=None if match.confidence is None else gathered.by_shard(match.confidence),
    )


def _limit(requested: int | None, largest_site: int, n_rows: int) -> int:
    """Return the number of groups at most."""
    if requested is not None and requested < largest_site:
        raise OptionError(
            f"at most {requested} components were asked for, but a site has {largest_site}, and no two of one site may "
            f"become the same: give at least {largest_site}"
        )
    return n_rows if requested is None else min(n_rows, requested)


def _add_farthest_components(
    method: KLFusion, pilot: Ensemble, averages: Array, users: Array, missing: int
) -> tuple[Array, Array]:
    """Return centres with the `missing` farthest components of the sample added, so that the largest site has room."""
    costs = method.geometry(pilot).costs(averages).min(axis=0)  # (L of the sample,): to the nearest centre
    farthest = np.resize(np.argsort(-costs, kind="stable"), missing)
    return np.concatenate([averages, pilot.natural[farthest]]), np.concatenate([users, np.zeros(missing)])


def _add_worst_sites(sites: ShardedInput, sample: Ensemble, descent: ShardDescent) -> Ensemble:
    """Return the sample with the worst-matched sites of all shards: they may have what no sampled site has."""
    shards = sites.shards
    centres = Centres.from_natural(shards.tangent, descent.centres, shards.direction, np.zeros(descent.n_groups))
    count = max(1, sites.pilot.n_sites // WORST_SITES_DIVISOR)
    worst = shards.reduce(worst_sites, partial(merge_worst_sites, count=count), centres, count)
    sampled = {posterior.natural.tobytes() for posterior in sample.posteriors}
    added = [(posterior, weight) for _, posterior, weight in worst if posterior.natural.tobytes() not in sampled]
    if not added:
        return sample
    posteriors, weights = [*sample.posteriors, *(p for p, _ in added)], [*sample.site_weights, *(w for _, w in added)]
    return Ensemble.of(posteriors, weights)


SiteCost = tuple[float, Posterior, float]
"""Of one site: its weighted divergences from the matched centres, its posterior and its weight."""


def worst_sites(shard: PreparedShard, centres: Centres, count: int) -> list[SiteCost]:
    """Return the `count` sites of a shard that are farthest from their centres, the farthest first."""
    costs = site_costs(shard, centres)
    worst: list[SiteCost] = []
    for site in np.argsort(-costs, kind="stable")[:count].tolist():
        weight = 1.0 if shard.weights is None else float(shard.weights[site])
        if weight > 0:
            worst.append((float(costs[site]), shard.components.site(site), weight))
    return worst


def merge_worst_sites(parts: Sequence[list[SiteCost]], count: int) -> list[SiteCost]:
    """Return the `count` farthest sites of several shards."""
    return sorted((site_cost for part in parts for site_cost in part), key=lambda site_cost: -site_cost[0])[:count]


def fit_kmeans(method: KMeans, sites: ShardedInput, rng: np.random.Generator, progress: Progress) -> ShardedFit:
    """Fit k-means to all components, from the centres that clustering the sample gives."""
    averages, users, _ = _pilot_matching(method, sites.pilot, rng, silent)
    descent = descend(
        sites.shards,
        averages,
        0.0,
        users,
        exclusive=False,
        limit=len(averages),
        max_iterations=method.max_iterations,
        tolerance=0.0,
        progress=progress,
    )
    n_violations = sum(sites.shards.map(_shared_clusters, each=descent.labels))
    details: PosteriorDetails = {"violations": int(n_violations), "pilot_sites": sites.pilot.n_sites}
    return ShardedFit(descent.labels, descent.n_groups, descent.history, descent.status, details)


def _shared_clusters(shard: PreparedShard, labels: Labels) -> int:
    """Return how many components share a cluster with an earlier one of their own site."""
    # A site and a cluster make one number; components beyond the first of each share it.
    return len(labels) - len(np.unique(shard.owner * (int(labels.max(initial=0)) + 1) + labels))


def fit_average(method: Average, sites: ShardedInput, rng: np.random.Generator, progress: Progress) -> ShardedFit:
    """Label every component with its number in its site."""
    if sites.smallest_site != sites.largest_site:
        raise OptionError(
            f"average needs models of equal size, found {sites.smallest_site} to {sites.largest_site} components; use "
            "method 'kl', which matches them"
        )
    return ShardedFit(sites.shards.map(_component_numbers), sites.largest_site)


def _component_numbers(shard: PreparedShard) -> Labels:
    """Return the number of every active row in its site (n,)."""
    return np.arange(len(shard.owner), dtype=np.int64) - shard.offsets[shard.owner]


def fit_spahm(method: SPAHM, sites: ShardedInput, rng: np.random.Generator, progress: Progress) -> ShardedFit:
    """Fit SPAHM in waves over all shards, from the components of the sample."""
    ascent = ascend_shards(method, sites.shards, sites.pilot, sites.largest_site, rng, progress)
    n_groups = len(ascent.groups.mass)
    atoms = method.atoms_of(ascent.law, ascent.groups, ascent.centre)
    details: PosteriorDetails = {
        "within_variance": float(ascent.law.within.mean()),
        "between_variance": float(ascent.law.between.mean()),
        "pilot_sites": sites.pilot.n_sites,
    }
    averages = atoms.parameters()["mean"] if method.shrink and not sites.shards.family.has_width else None
    confidence = None
    if sum(sites.shards.map(n_active_rows)) <= MAX_DIAGNOSED_ROWS:
        gathered = gather(sites.shards)
        points = sites.shards.family.points(gathered.ensemble.natural) - ascent.centre
        sharing = BetaBernoulliPrior(gathered.ensemble.voting().n_sites, method.concentration, method.mass, method.clip)
        objective = GaussianAtoms(points, gathered.ensemble.offsets, ascent.law, sharing, method.marginal)
        confidence = gathered.by_shard(match_confidence(objective, gathered.labels(ascent.labels)))
    history = -np.array(ascent.history)
    return ShardedFit(ascent.labels, n_groups, history, ascent.status, details, averages, atoms, confidence)


Fit = Callable[[Any, ShardedInput, np.random.Generator, Progress], ShardedFit]

SHARDED: Mapping[type[Method], Fit] = {KLFusion: fit_kl, SPAHM: fit_spahm, KMeans: fit_kmeans, Average: fit_average}
"""Every method that runs over shards, and the function that fits it."""


def refusals(method: Method) -> list[str]:
    """Return why a method cannot run over shards of more sites than the sample has, a line each."""
    if type(method) not in SHARDED:
        names = ", ".join(sorted(kind.name for kind in SHARDED))
        return [f"method {method.name!r} does not run over shards; methods that do: {names}"]
    reasons = []
    if method.is_robust:
        reasons.append(
            "robust fusion does not run over shards, `minority='drop'` does; fuse the posterior files themselves"
        )
    if isinstance(method, KLFusion) and method.assignment != "integral":
        reasons.append(f"`assignment={method.assignment!r}` does not run over shards; use 'integral'")
    if isinstance(method, SPAHM) and method.likelihood != "gaussian":
        reasons.append(f"`likelihood={method.likelihood!r}` does not run over shards; use 'gaussian'")
    if isinstance(method, SPAHM) and method.n_components != "process":
        reasons.append(
            f"`n_components={method.n_components!r}` does not run over shards; use 'process', or method 'kl'"
        )
    return reasons
