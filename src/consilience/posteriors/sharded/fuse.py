"""Fusion of shards: the posteriors of very many sites, matched and averaged in passes over their shards.

A pilot sample of sites is fused in memory by the method itself; passes over all shards start from its components, and
sums of each group's natural parameters, added up over shards, give the fused posterior (docs/adr/0018). With no more
sites than the sample has, all are fused in memory, with the bytes of a fusion of the single files. Memory is one shard
for each worker, and the labels (L,) of all components.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array, Json, Labels, as_weights, is_count
from consilience.core.details import WithheldComponent
from consilience.core.gather import Described, counted_twice, doubts_among
from consilience.core.inputs import EQUAL, too_few_models
from consilience.core.kind import Prepared, Request
from consilience.core.min_count import MAX_NAMED, MIN_COUNT, checked_min_count
from consilience.core.provenance import ancestors_of, file_digest
from consilience.engines import Engine, Placed, running
from consilience.errors import InputError, OptionError, Problem
from consilience.files.remote import is_remote
from consilience.files.safetensors_file import SafetensorsFile
from consilience.matching.result import Matching
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.adapters.table import adapter_of_source
from consilience.posteriors.average import AverageRecord, combine
from consilience.posteriors.columns import ComponentColumns, ShardSchema
from consilience.posteriors.describe import unknown_number
from consilience.posteriors.details import MinorityDetails, PosteriorDetails
from consilience.posteriors.ensemble import Ensemble, offsets_of
from consilience.posteriors.files import read_summary
from consilience.posteriors.fuse import fuse_described, fusion_of, judge_of, recommended_method
from consilience.posteriors.fusion import PosteriorFusion
from consilience.posteriors.inputs import PosteriorReading
from consilience.posteriors.method import Method, PosteriorOutcome, fused_order
from consilience.posteriors.methods.kl.method import KLFusion
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.rebuild import rebuild
from consilience.posteriors.robust.minority import GroupHolders
from consilience.posteriors.sharded.descent import label_all_rows
from consilience.posteriors.sharded.methods import MAX_GATHERED_ROWS, SHARDED, ShardedFit, ShardedInput, refusals
from consilience.posteriors.sharded.passes import (
    PilotSample,
    PreparedShard,
    PreparedShards,
    draw_pilot_sample,
    gather,
    merge_pilot_samples,
    prepare,
)
from consilience.posteriors.sharded.shards import SHARD_BYTES, Shards, ShardSource, load_shard
from consilience.posteriors.sharded.shards import shards as open_shards
from consilience.posteriors.sharded.totals import (
    GroupTotals,
    add_totals,
    average_of_sums,
    fused_posterior,
    merge_names,
    shard_holder_names,
    shard_holders,
    shard_totals,
)
from consilience.posteriors.thin_components import nothing_left, remaining_components, without_components
from consilience.posteriors.vocabulary import unnamed_words

PILOT_SITES = 256
"""Sites in the pilot sample; as many or fewer are fused in memory. Chosen by hand; nobody has measured other values."""

_MAX_LISTED_SITES = 20
"""Sites that a message names at most. Chosen by hand."""


def _load_components(source: ShardSource) -> ComponentColumns:
    """Return a shard's components."""
    packed = load_shard(source)
    return replace(packed.components, names=packed.names)


def prepare_shards(request: Request) -> Prepared:
    """Open shards and check them where they lie; see ``Kind.prepare``. Every shard is loaded, one at a time."""
    if request.n_observations is not None and request.n_observations != EQUAL:
        raise OptionError("n_observations", "for fitted models only; files say how many observations they had")
    if request.only_check:
        return Prepared.checked(_check_shards(request.source, request))
    return Prepared((), partial(fuse_shards, request.source, request))


@dataclass(frozen=True)
class _Plan:
    """What is fused, and how."""

    shards: Shards
    method: Method
    adapter: Adapter | None  # of the sites' models
    pilot_sites: int  # as many sites or fewer are fused in memory
    min_count: float  # components of fewer observations are left out
    request: Request

    @classmethod
    def open(cls, models: Any, request: Request) -> Self:
        """Return the plan of a call, its options checked and its shards opened."""
        options = dict(request.options)
        pilot_sites, shard_bytes = options.pop("pilot_sites", PILOT_SITES), options.pop("shard_bytes", SHARD_BYTES)
        if not is_count(pilot_sites) or pilot_sites < 2:
            raise OptionError("pilot_sites", f"expected an integer of at least 2, found {pilot_sites!r}")
        shards = models if isinstance(models, Shards) else open_shards(models, shard_bytes=shard_bytes)
        if shards.n_sites < 2:
            raise InputError(too_few_models(shards.n_sites))
        min_count = checked_min_count(options.pop("min_count", MIN_COUNT))
        method = recommended_method(request.method, options, shards.kind.source)
        return cls(shards, method, adapter_of_source(shards.kind.source), int(pilot_sites), min_count, request)

    @property
    def stated(self) -> PosteriorDetails:
        """What the call says of the sites."""
        number = self.request.n_observations
        return {} if number is None else {"n_observations": number}

    def statement_problems(self) -> list[Problem]:
        """Return what the files would have to say and do not: all of them share one source and one vocabulary."""
        return [*self._number_problems(), *self._word_problems()]

    def _word_problems(self) -> list[Problem]:
        """Return that topic models name no words."""
        is_topics = self.adapter is not None and self.adapter.has_vocabulary
        has_words = self.shards.kind.features.names is not None
        return [unnamed_words(self.shards.files[0], self.shards.kind.family)] if is_topics and not has_words else []

    def _number_problems(self) -> list[Problem]:
        """Return why numbers of observations forbid a fusion: all files share one source, which says of them."""
        number, source, adapter = self.request.n_observations, self.shards.kind.source, self.adapter
        if adapter is None or (adapter.records_n_observations and number is None):
            return []
        is_assumed = source.get("samples") == "assumed"
        if is_assumed == (number is not None):
            return []
        if is_assumed:
            return [unknown_number(self.shards.files[0], adapter.kind)]
        text = f"is {EQUAL!r}, but the files say how many observations they had"
        return [Problem("n_observations", text, "leave it out, and give weights if sites are to count otherwise")]

    def refusals(self) -> list[str]:
        """Return why neither the method nor the models' kind run over shards."""
        return refusals(self.method) + _adapter_refusals(self.adapter)


@dataclass(frozen=True)
class _Opened:
    """Components of all sites where they lie, the sites' weights, and a sample of them."""

    columns: Placed[ComponentColumns]
    site_weights: Array | None  # of all sites (J,)
    shard_weights: list[Array | None]  # of each shard's sites
    sample: PilotSample


def fuse_shards(models: Any, request: Request) -> PosteriorFusion:
    """Fuse the posteriors of J sites: a pilot sample of them in memory, then passes over all shards."""
    plan = _Plan.open(models, request)
    if problems := plan.statement_problems():
        raise InputError(problems)
    with running(request.engine) as engine:
        opened = _place(plan, engine)
        if opened.sample.n_sites <= plan.pilot_sites:
            return _fuse_in_memory(plan, opened.site_weights)
        withheld = reduce(_add_thin, engine.map(_thin_sites, opened.columns, plan.min_count))
        if reasons := withheld.empty or plan.refusals():
            raise InputError(reasons)
        pilot = _pilot_of(plan, opened)
        prepared = _prepare_passes(plan, opened, pilot, engine)
        sharded_input = ShardedInput(prepared, pilot, opened.sample.largest_site, opened.sample.smallest_site)
        fit = SHARDED[type(plan.method)](plan.method, sharded_input, request.rng, request.progress)
        if plan.method.drops_minority:
            fit = _without_minority(prepared, fit)
        result = _total(plan, prepared, fit)
        digests = _file_digests(plan.shards, engine)
    return _finish(plan, opened, pilot, withheld, fit, result, digests)


def _place(plan: _Plan, engine: Engine) -> _Opened:
    """Load the components of all sites where they lie, and draw the pilot sample; refuse sites of the same contents."""
    # Twice the file: columns, and what is prepared of them. Chosen by hand, for engines with a limit on memory.
    memory = [2 * source.size for source in plan.shards.sources]
    columns = engine.place(_load_components, plan.shards.sources, memory)
    site_weights, shard_weights = _weights_by_shard(plan.request.weights, plan.shards, engine, columns)
    merge = partial(merge_pilot_samples, size=plan.pilot_sites)
    sample: PilotSample = engine.reduce(
        draw_pilot_sample, merge, columns, int(plan.request.rng.integers(2**63)), plan.pilot_sites, each=shard_weights
    )
    if duplicates := _duplicate_problems(sample, plan.shards):
        raise InputError(duplicates)
    return _Opened(columns, site_weights, shard_weights, sample)


def _pilot_of(plan: _Plan, opened: _Opened) -> Ensemble:
    """Return the sites of the pilot sample as an ensemble that the method does not refuse."""
    sample, method = opened.sample, plan.method
    weights = None if opened.site_weights is None else opened.site_weights[sample.sample_sites]
    sites = [without_components(site, remaining_components(site, plan.min_count)) for site in sample.posteriors]
    pilot = Ensemble.of(sites, weights)
    if isinstance(method, KLFusion) and (method.n_components or 0) > len(pilot.natural):
        method = replace(method, n_components=None)  # all sites may have as many components as the sample has not
    if problems := method.refuse(pilot):
        raise InputError(problems)
    return pilot


def _prepare_passes(plan: _Plan, opened: _Opened, pilot: Ensemble, engine: Engine) -> PreparedShards:
    """Return all shards, prepared for passes with costs about the centre of the pilot sample."""
    method, direction = plan.method, plan.method.average_direction
    min_active_count = max(plan.min_count, float(getattr(method, "min_matching_count", 0.0)))
    centre = pilot.natural.mean(axis=0)  # (P,)
    placed: Placed[PreparedShard] = engine.derive(
        prepare, opened.columns, centre, direction, min_active_count, each=opened.shard_weights
    )
    tangent = engine.map(attrgetter("tangent"), placed)[0]  # the same in every shard: all have the same centre
    n_components = int(opened.sample.rows_by_shard.sum())
    return PreparedShards(engine, placed, tangent, direction, opened.sample.n_sites, n_components)


@dataclass(frozen=True)
class _Totals:
    """What passes over all shards found of the fitted groups."""

    posterior: Posterior
    record: AverageRecord
    labels: Labels  # of all components (L,), those of sites without weight among them
    confidence: Array | None  # of the matching (L,)
    components_of_site: Labels  # (J,)
    minority: list[MinorityDetails]


def _total(plan: _Plan, shards: PreparedShards, fit: ShardedFit) -> _Totals:
    """Return the fused posterior of a fit, from sums over all shards, and what else is known of its groups."""
    holders: GroupHolders = shards.sum(shard_holders, fit.n_groups, each=fit.labels)
    holders_by_name = shards.reduce(shard_holder_names, merge_names, holders.minority, each=fit.labels)
    totals = shards.reduce(shard_totals, add_totals, fit.n_groups, each=fit.labels)
    averages, record = _averages(shards, plan.shards.kind, totals, plan.method, fit)
    posterior = fused_posterior(shards, plan.shards.kind, totals, record.name, averages)
    labels = shards.map(
        label_all_rows, posterior.natural, plan.method.average_direction, plan.method.relabels, each=fit.labels
    )
    return _Totals(
        posterior,
        record,
        np.concatenate(labels),
        None if fit.confidence is None else np.concatenate(shards.map(PreparedShard.scatter, each=fit.confidence)),
        np.concatenate(shards.map(attrgetter("components.sizes"))),
        holders.records(holders_by_name),
    )


def _finish(
    plan: _Plan,
    opened: _Opened,
    pilot: Ensemble,
    withheld: _ThinSites,
    fit: ShardedFit,
    totals: _Totals,
    digests: Mapping[str, str | None],
) -> PosteriorFusion:
    """Return the fusion, its components in the order of their contents."""
    method, sample = plan.method, opened.sample
    order = fused_order(totals.posterior, totals.labels)  # (G,)
    posterior, record = totals.posterior.take(order), totals.record.take(order)
    # Index -1, of dropped components, reads the last entry, which is -1 again.
    new_labels = np.append(np.argsort(order), -1)  # (G + 1,)
    labels = new_labels[totals.labels]  # (L,)
    sizes = totals.components_of_site
    owner = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)  # (L,)
    details: PosteriorDetails = {
        "sites": sample.n_sites, "shards": len(plan.shards.sources), **fit.details, **record.details(), **plan.stated
    }  # fmt: skip
    if withheld.count:
        details["withheld"] = {
            "min_count": plan.min_count, "count": withheld.count, "components": list(withheld.records[:MAX_NAMED])
        }  # fmt: skip
    if totals.minority:
        renumbered: list[MinorityDetails] = [
            {**one, "component": int(new_labels[one["component"]])} for one in totals.minority
        ]
        details["minority"] = sorted(renumbered, key=itemgetter("component"))
    outcome = PosteriorOutcome(
        posterior,
        Matching(labels, owner, posterior.n_components, confidence=totals.confidence),
        float(fit.history[-1]) if fit.history.size else float("nan"),
        fit.history,
        fit.status,
        details,
        None if fit.atoms is None else fit.atoms.take(order),
    )
    of_sample = _labels_of_sites(labels, sizes, sample.sample_sites)
    return fusion_of(
        outcome,
        method,
        {"pilot_sites": plan.pilot_sites, "min_count": float(plan.min_count)},
        plan.request.seed,
        _input_records(plan.shards, sample, opened.site_weights, digests),
        _rebuild=rebuild,
        _judge=judge_of(method, plan.adapter, posterior, pilot, of_sample, n_sites=sample.n_sites),
    )


def _labels_of_sites(labels: Labels, components_of_site: Labels, sites: Labels) -> Labels:
    """Return the labels (n,) of the components of some sites, of those of all (L,)."""
    ends = np.cumsum(components_of_site)[sites]
    return np.concatenate([labels[slice(*of)] for of in zip(ends - components_of_site[sites], ends, strict=True)])


def _averages(
    shards: PreparedShards, kind: ShardSchema, totals: GroupTotals, method: Method, fit: ShardedFit
) -> tuple[Array | None, AverageRecord]:
    """Return the fused components (G, P), None for those that follow from the totals, and which average they are.

    Few components are gathered: what heterogeneity takes at once is then what memory computes.
    """
    if fit.averages is not None and method.combine != "product":
        record = average_of_sums(shards, kind, totals, "barycenter", "")
        return fit.averages, replace(record, requested=method.combine, reason=method.own_average)
    if method.combine in ("auto", "hierarchical"):
        if shards.n_rows <= MAX_GATHERED_ROWS:
            gathered = gather(shards)
            labels = gathered.labels(fit.labels)
            fused, record = combine(
                gathered.ensemble, labels, fit.n_groups, method.combine, method.average, own_average=method.own_average
            )
            return (None if record.name == "barycenter" else fused.natural), record
        if method.combine == "hierarchical":
            raise InputError(TOO_MANY_FOR_HIERARCHICAL.format(shards.n_rows))
    return None, average_of_sums(shards, kind, totals, method.combine, method.own_average)


TOO_MANY_FOR_HIERARCHICAL = (
    f"`combine='hierarchical'` takes all copies at once, up to {MAX_GATHERED_ROWS:,} components over shards, found "
    "{:,}: use `combine='auto'` or 'product', or fuse the posterior files themselves"
)
"""Why the hierarchical average of very many components is refused."""


def _without_minority(shards: PreparedShards, fit: ShardedFit) -> ShardedFit:
    """Return a fit without the components that fewer than half of the sites hold."""
    holders: GroupHolders = shards.sum(shard_holders, fit.n_groups, each=fit.labels)
    remaining, new_labels = holders.without_minority()
    n_dropped = fit.n_groups - len(remaining)
    return replace(
        fit,
        labels=[new_labels[labels] for labels in fit.labels],
        n_groups=len(remaining),
        details={**fit.details, "dropped": n_dropped} if n_dropped else fit.details,
        averages=None if fit.averages is None else fit.averages[remaining],
        atoms=None if fit.atoms is None else fit.atoms.take(remaining),
    )


@dataclass(frozen=True)
class _ThinSites:
    """Components of shards with too few observations: records of the first, how many, and sites of nothing else."""

    records: tuple[WithheldComponent, ...]
    count: int
    empty: tuple[Problem, ...]


def _thin_sites(columns: ComponentColumns, min_count: float) -> _ThinSites:
    """Return what of one shard's sites is too thin; see ``thin_components``."""
    if columns.counts is None or columns.kind.source.get("samples") == "assumed":
        return _ThinSites((), 0, ())
    rows = np.flatnonzero(columns.counts < min_count)  # (n,)
    n_thin = np.bincount(columns.owner[rows], minlength=columns.n_sites)
    starts, names, counts = columns.offsets, columns.names or tuple(map(str, range(columns.n_sites))), columns.counts
    # How few observations they have stays untold, as in memory.
    records = tuple(
        WithheldComponent(model=names[columns.owner[row]], component=int(row - starts[columns.owner[row]]))
        for row in rows[:MAX_NAMED]
    )
    empty = [
        nothing_left(names[site], int(n_thin[site]), float(counts[starts[site] : starts[site + 1]].max()), min_count)
        for site in np.flatnonzero(n_thin == columns.sizes)[:_MAX_LISTED_SITES]
    ]
    return _ThinSites(records, len(rows), tuple(empty))


def _add_thin(first: _ThinSites, second: _ThinSites) -> _ThinSites:
    return _ThinSites(
        (*first.records, *second.records)[:MAX_NAMED], first.count + second.count, first.empty + second.empty
    )


def _check_shards(models: Any, request: Request) -> list[str]:
    """Return everything that would go wrong in fusing shards, a line each."""
    try:
        plan = _Plan.open(models, request)
    except InputError as error:
        return list(error.problems)
    shards, method = plan.shards, plan.method
    problems: list[str] = [*plan.statement_problems()]
    problems += plan.refusals() if shards.n_sites > plan.pilot_sites else []
    problems += [
        f"{need.subject} needs every model's {need.field}, which the shards do not state"
        for need in method.site_needs()
        if need.field not in shards.kind.stated
    ]
    with running(request.engine) as engine:
        sources = engine.place(copy, shards.sources)
        for shard_problems in engine.map(_load_problems, sources):
            problems += shard_problems
        if not problems and shards.n_sites <= plan.pilot_sites:  # as many are fused in memory, which looks at ancestors
            problems += counted_twice(_described_sites(shards))
        if not problems:
            columns = engine.place(_load_components, shards.sources)
            problems += reduce(_add_thin, engine.map(_thin_sites, columns, plan.min_count)).empty
    if not problems and request.weights is not None:
        try:
            as_weights(request.weights, shards.n_sites, "weights of the models")
        except OptionError as error:
            problems.append(str(error))
    return problems


def _adapter_refusals(adapter: Adapter | None) -> list[str]:
    """Return why models of a kind cannot be fused over shards."""
    if adapter is None:
        return []
    if adapter.components == "labelled":
        return [
            f"the components of a {adapter.kind} have labels, which only a fusion in memory reads; hand in the files"
        ]
    if type(adapter).recombine is Adapter.recombine and type(adapter).refuse is Adapter.refuse:
        return []
    return [f"a {adapter.kind} is worked out from all sites at once, so it does not run over shards"]


def _weights_by_shard(
    weights: ArrayLike | None, shards: Shards, engine: Engine, columns: Placed[ComponentColumns]
) -> tuple[Array | None, list[Array | None]]:
    """Return weights of all sites (J,) and those of each shard, or None where all count the same.

    The former have mean 1 over all sites, as they are recorded; the latter over those that have a say, as in memory.
    """
    if weights is None:
        return None, [None] * len(shards.sources)
    site_weights = as_weights(weights, shards.n_sites, "weights of the models")
    site_weights = site_weights * (len(site_weights) / site_weights.sum())  # (J,)
    ends = np.cumsum(engine.map(attrgetter("n_sites"), columns))  # one past the last site of each shard (S,)
    if ends[-1] != shards.n_sites:
        text = f"the shards held {shards.n_sites} sites when they were opened, and now {ends[-1]}, so one was replaced"
        raise InputError(shards.files[0], text, "open them again")
    starts = [0, *ends[:-1]]
    voting_weights = site_weights * (np.count_nonzero(site_weights) / site_weights.sum())
    shard_weights: list[Array | None] = [voting_weights[start:end] for start, end in zip(starts, ends, strict=True)]
    return site_weights, shard_weights


def _duplicate_problems(sample: PilotSample, shards: Shards) -> list[Problem]:
    """Return a line for each site that has the contents of an earlier one, by name."""
    pairs = sample.duplicates()[:_MAX_LISTED_SITES]
    starts = offsets_of(sample.sites_by_shard)  # first site of each shard (S + 1,)
    names = {}
    for site in {site for pair in pairs for site in pair}:
        shard = int(np.searchsorted(starts, site, side="right")) - 1
        source = shards.sources[shard]
        name = load_shard(source).names[site - int(starts[shard])]
        names[site] = f"{source.paths[0]}: {name}" if source.packed else name  # packed files may share names of sites
    return [
        Problem(names[later], f"has the same contents as {names[first]}", "leave one out", "E-TWICE")
        for first, later in pairs
    ]


def _load_problems(source: ShardSource) -> list[Problem]:
    """Return what is wrong with a shard, a line each, by loading it."""
    try:
        load_shard(source)
    except InputError as error:
        return list(error.problems)
    return []


def _fuse_in_memory(plan: _Plan, site_weights: Array | None) -> PosteriorFusion:
    """Fuse sites as if they had been handed in one by one."""
    described, request = _described_sites(plan.shards), plan.request
    if problems := counted_twice(described):
        raise InputError(problems)
    doubts = doubts_among(described, PosteriorReading(None, are_equal=False))
    for doubt in doubts:
        doubt.warn()
    fusion = fuse_described(
        described, plan.method, None, site_weights, request.rng, request.seed, request.progress, plan.stated,
        plan.min_count,
    )  # fmt: skip
    return fusion.with_doubts(doubts)


def _described_sites(shards: Shards) -> list[Described[Posterior]]:
    """Return all sites, few enough for memory, as if they had been handed in one by one.

    Packed files say nothing of how their sites came about; single files that were fused say from what.
    """
    described, reading = [], PosteriorReading(None, are_equal=False)
    for source in shards.sources:
        shard = load_shard(source)
        for site, (name, digest) in enumerate(zip(shard.names, shard.digests, strict=True)):
            sha256 = digest.tobytes().hex() if digest.any() else None
            ancestors = ancestors_of(None)
            if not source.packed and not is_remote(source.paths[site]):
                file = SafetensorsFile(Path(source.location(source.paths[site])), source.paths[site])
                made = read_summary(file).header.provenance
                ancestors = ancestors_of(None if made is None else made.model_dump(exclude_unset=True))
            posterior = shard.components.site(site)
            described.append(Described(name, name, posterior, posterior, reading, sha256, ancestors))
    return described


def _file_digests(shards: Shards, engine: Engine) -> dict[str, str | None]:
    """Return the SHA-256 of every local packed file, by path; none for posterior files and remote ones."""
    if not shards.sources[0].packed:
        return {}
    locations = {source.paths[0]: source.location(source.paths[0]) for source in shards.sources}
    files = {path: location for path, location in locations.items() if not is_remote(path)}
    return dict(zip(files, engine.map(file_digest, engine.place(Path, list(files.values()))), strict=True))


def _input_records(
    shards: Shards, sample: PilotSample, site_weights: Array | None, digests: Mapping[str, str | None]
) -> list[dict[str, Json]]:
    """Return the inputs' records of a fused file: one for each packed file, or for each run of posterior files."""
    starts = offsets_of(sample.sites_by_shard)  # (S + 1,)
    records: dict[str, dict[str, Any]] = {}
    path_ends = _distinct_ends([source.paths[0] for source in shards.sources])
    for shard, source in enumerate(shards.sources):
        n_files, name = len(source.paths), path_ends[source.paths[0]]
        name = name if n_files == 1 else f"{name} and {n_files - 1} more"
        record = records.setdefault(source.paths[0], {"name": name, "components": 0, "weight": 0.0})
        record["components"] += int(sample.rows_by_shard[shard])
        sites = slice(int(starts[shard]), int(starts[shard + 1]))
        record["weight"] += float(sample.sites_by_shard[shard] if site_weights is None else site_weights[sites].sum())
        if digests.get(source.paths[0]):
            record["sha256"] = digests[source.paths[0]]
    return list(records.values())


def _distinct_ends(paths: Sequence[str]) -> dict[str, str]:
    """Return the ends of paths, by path: their last two parts, or as many as tell all of them apart."""
    parts = {path: Path(path).parts for path in paths}
    longest = max(len(path_parts) for path_parts in parts.values())
    for length in range(2, max(longest, 2) + 1):
        ends = {path: os.path.join(*path_parts[-length:]) for path, path_parts in parts.items()}
        if len(set(ends.values())) == len(ends):
            break
    return ends
