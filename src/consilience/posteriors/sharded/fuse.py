"""Fusing shards: what ``fuse`` and ``check`` do with the posteriors of very many sites."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array, Labels, as_weights, is_count
from consilience.core.kind import Prepared, Request
from consilience.core.progress import Progress
from consilience.core.provenance import file_digest, make_provenance
from consilience.engines import Engine, Placed, running
from consilience.errors import InputError, OptionError
from consilience.files.remote import is_remote
from consilience.matching.result import Matching
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.columns import ComponentColumns
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.fuse import RECOMMENDED, fuse_described, history_values
from consilience.posteriors.fusion import PosteriorFusion
from consilience.posteriors.inputs import DescribedInput
from consilience.posteriors.method import Method, fused_order
from consilience.posteriors.methods import make_method
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.rebuild import adapter_of, rebuild
from consilience.posteriors.sharded.methods import SHARDED, ShardedInput, refusals
from consilience.posteriors.sharded.passes import PreparedShard, PreparedShards, prepare
from consilience.posteriors.sharded.pilot_sample import PilotSample, draw_pilot_sample, merge_pilot_samples
from consilience.posteriors.sharded.shard_pass import label_all_rows
from consilience.posteriors.sharded.shards import SHARD_BYTES, Shards, ShardSource, load_shard, open_shards
from consilience.posteriors.sharded.totals import add_totals, fused_posterior, shard_totals

PILOT_SITES = 256
"""Sites in the sample that a fusion of shards starts from; as many or fewer are fused without shards."""

_FEW = 20

OPTIONS = ("pilot_sites", "shard_bytes")
"""Options of ``fuse`` that are for shards only."""


@dataclass(frozen=True)
class _Load:
    """Loads a shard's components."""

    def __call__(self, source: ShardSource) -> ComponentColumns:
        return load_shard(source).components


def prepare_shards(request: Request) -> Prepared:
    """Open shards and check them where they lie; see ``Kind.prepare``. Every shard is loaded, one at a time."""
    if request.method is not None and not isinstance(request.method, str | Method):
        raise OptionError(f"{type(request.method).__name__} fuses networks, and shards hold posteriors")
    if request.n_observations is not None:
        raise OptionError("n_observations: for fitted models only; files say how many observations they had")
    if request.only_check:
        return Prepared.checked(_check_shards(request.source, request))
    return Prepared((), partial(fuse_shards, request.source, request))


def fuse_shards(models: Any, request: Request) -> PosteriorFusion:
    """Fuse shards: a sample of sites settles the start, passes over all shards the rest."""
    weights, engine, rng, seed, progress = (
        request.weights, request.engine, request.rng, request.seed, request.progress,
    )  # fmt: skip
    shards, size, told = _told(models, request.options)
    chosen, adapter = _chosen(request.method, told, shards)
    with running(engine) as at:
        sizes = [2 * source.size for source in shards.sources]
        blocks = at.place(_Load(), shards.sources, sizes)
        share, parts = _weights(weights, shards, at, blocks)
        sample_seed = int(rng.integers(2**63))
        survey_of = partial(merge_pilot_samples, size=size)
        found: PilotSample = at.reduce(draw_pilot_sample, survey_of, blocks, sample_seed, size, each=parts)
        if twice := _named_twice(found, shards):
            raise InputError(twice)
        if found.n_sites <= size:
            return _fuse_all(shards, chosen, share, rng, seed, progress)
        reasons = refusals(chosen) + _reasons(adapter)
        if reasons:
            raise InputError(reasons)
        pilot = Ensemble.of(found.posteriors, None if share is None else share[found.sample_sites])
        if problems := chosen.refuse(pilot):
            raise InputError(problems)
        direction = chosen.average_direction
        min_count = float(getattr(chosen, "min_count", 0.0))
        centre = pilot.natural.mean(axis=0)
        prepared: Placed[PreparedShard] = at.derive(prepare, blocks, centre, direction, min_count, each=parts)
        first = at.map(_tangent, prepared)[0]
        work = PreparedShards(at, prepared, first, direction, found.n_sites, int(found.rows_by_shard.sum()))
        sites = ShardedInput(work, pilot, found.largest_site, found.smallest_site)
        fit = SHARDED[type(chosen)](chosen, sites, rng, progress)
        totals = work.reduce(shard_totals, add_totals, fit.n_groups, each=fit.labels)
        posterior = fused_posterior(work, shards.kind, totals, chosen.combine, fit.averages)
        labels = np.concatenate(
            work.map(label_all_rows, posterior.natural, direction, chosen.relabels, each=fit.labels)
        )
        sizes_of: Labels = np.concatenate(work.map(_sizes))
        digests = _digests(shards, at)
    order = fused_order(posterior, labels)
    posterior = posterior.take(order)
    labels = np.append(np.argsort(order), -1)[labels]
    owner = np.repeat(np.arange(len(sizes_of), dtype=np.int64), sizes_of)
    details = {"sites": found.n_sites, "shards": len(shards.sources), **fit.details}
    objective = float(fit.history[-1]) if fit.history.size else float("nan")
    result = {
        "n_components": posterior.n_components,
        "status": fit.status.name.lower(),
        "objective": objective if np.isfinite(objective) else None,
        "history": history_values(fit.history),
        **details,
    }
    everything = {**asdict(chosen), "pilot_sites": size}
    inputs = _records(shards, found, share, digests)
    return PosteriorFusion(
        posterior=posterior,
        matching=Matching(labels, owner, posterior.n_components),
        objective=objective,
        history=fit.history,
        status=fit.status,
        details=details,
        provenance=make_provenance(chosen.name, everything, seed, inputs, result),
        inputs=(),
        _rebuild=rebuild,
        atoms=None if fit.atoms is None else fit.atoms.take(order),
    )


def _check_shards(models: Any, request: Request) -> list[str]:
    """Return everything that would go wrong in fusing shards, a line each."""
    weights, engine, method, options = request.weights, request.engine, request.method, request.options
    try:
        shards, size, told = _told(models, options)
    except InputError as error:
        return list(error.problems)
    chosen, adapter = _chosen(method, told, shards)
    problems = refusals(chosen) + _reasons(adapter) if shards.n_sites > size else []
    with running(engine) as at:
        placed = at.place(_identity, shards.sources)
        for found in at.map(_problems, placed):
            problems += found
    if not problems and weights is not None:
        try:
            as_weights(weights, shards.n_sites, "weights of the models")
        except OptionError as error:
            problems.append(str(error))
    return problems


def _told(models: Any, options: Mapping[str, Any]) -> tuple[Shards, int, dict[str, Any]]:
    """Return the shards, the size of the sample, and the method's options."""
    told = dict(options)
    size, shard_bytes = told.pop("pilot_sites", PILOT_SITES), told.pop("shard_bytes", SHARD_BYTES)
    if not is_count(size) or size < 2:
        raise OptionError(f"pilot_sites: expected an integer of at least 2, found {size!r}")
    shards = models if isinstance(models, Shards) else open_shards(models, shard_bytes)
    if shards.n_sites < 2:
        raise InputError(f"fusing takes at least two models, found {shards.n_sites}")
    return shards, int(size), told


def _chosen(method: str | Method | None, options: Mapping[str, Any], shards: Shards) -> tuple[Method, Adapter | None]:
    frame = Posterior.__new__(Posterior)
    object.__setattr__(frame, "source", shards.kind.source)
    adapter = adapter_of(frame)
    if method is not None:
        return make_method(method, options), adapter
    if adapter is None:
        return make_method(RECOMMENDED, options), adapter
    return make_method(adapter.recommended, {**adapter.recommended_options, **options}), adapter


def _reasons(adapter: Adapter | None) -> list[str]:
    """Return why models of a kind cannot be fused over shards."""
    if adapter is None:
        return []
    shared = type(adapter).recombine is not Adapter.recombine or type(adapter).refuse is not Adapter.refuse
    return [f"a {adapter.kind} is worked out from all sites at once, so it does not run over shards"] if shared else []


def _weights(
    weights: ArrayLike | None, shards: Shards, engine: Engine, blocks: Placed[ComponentColumns]
) -> tuple[Array | None, list[Array | None]]:
    """Return weights of all sites (J,), scaled to mean 1, and those of each shard; None where all count the same."""
    if weights is None:
        return None, [None] * len(shards.sources)
    share = as_weights(weights, shards.n_sites, "weights of the models")
    share = share * (len(share) / share.sum())
    ends = np.cumsum(engine.map(_n_sites, blocks))
    parts: list[Array | None] = [share[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return share, parts


def _named_twice(found: PilotSample, shards: Shards) -> list[str]:
    """Return which sites are there twice, by name."""
    pairs = found.duplicates()[:_FEW]
    starts = np.cumsum([0, *found.sites_by_shard.tolist()])
    names = {}
    for site in {site for pair in pairs for site in pair}:
        number = int(np.searchsorted(starts, site, side="right")) - 1
        names[site] = load_shard(shards.sources[number]).names[site - int(starts[number])]
    return [f"{names[later]}: has the same contents as {names[first]}; leave one out" for first, later in pairs]


def _n_sites(block: ComponentColumns) -> int:
    return block.n_sites


def _sizes(shard: PreparedShard) -> Labels:
    return shard.components.sizes


def _tangent(shard: PreparedShard) -> Any:
    return shard.tangent


def _identity(source: ShardSource) -> ShardSource:
    return source


def _problems(source: ShardSource) -> list[str]:
    try:
        load_shard(source)
    except InputError as error:
        return list(error.problems)
    return []


def _fuse_all(
    shards: Shards,
    method: Method,
    share: Array | None,
    rng: np.random.Generator,
    seed: int | None,
    progress: Progress,
) -> PosteriorFusion:
    """Fuse few sites as if they had been handed in one by one."""
    described = []
    for packed in map(load_shard, shards.sources):
        for site, (name, digest) in enumerate(zip(packed.names, packed.digests, strict=True)):
            sha256 = digest.tobytes().hex() if digest.any() else None
            described.append(DescribedInput(name, name, packed.components.site(site), sha256))
    return fuse_described(described, method, None, share, rng, seed, progress)


def _digests(shards: Shards, engine: Engine) -> dict[str, str | None]:
    """Return the SHA-256 of every file that is at hand."""
    if not shards.sources[0].packed:
        return {}
    places = {source.paths[0]: source.location(source.paths[0]) for source in shards.sources}
    files = {path: place for path, place in places.items() if not is_remote(path)}
    return dict(zip(files, engine.map(_digest, engine.place(_path, list(files.values()))), strict=True))


def _path(path: str) -> Path:
    return Path(path)


def _digest(path: Path) -> str:
    return file_digest(path)


def _records(
    shards: Shards, found: PilotSample, share: Array | None, digests: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    """Return what a fused file says of its inputs: a record for each packed file, or each run of posterior files."""
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(found.sites_by_shard)])
    records: dict[str, dict[str, Any]] = {}
    for number, source in enumerate(shards.sources):
        count = len(source.paths)
        name = os.path.join(*Path(source.paths[0]).parts[-2:])
        name = name if count == 1 else f"{name} and {count - 1} more"
        record = records.setdefault(name, {"name": name, "components": 0, "weight": 0.0})
        record["components"] += int(found.rows_by_shard[number])
        own = slice(int(starts[number]), int(starts[number + 1]))
        record["weight"] += float(found.sites_by_shard[number] if share is None else share[own].sum())
        if digests.get(source.paths[0]):
            record["sha256"] = digests[source.paths[0]]
    return list(records.values())
