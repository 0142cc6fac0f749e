"""A hundred thousand sites in shards: passes against their bare operations, a whole fusion, Dask, and a cost model.

``python benchmarks/shards.py [PART ...]`` writes ``benchmarks/shards.json``; parts are iterations, whole, engines,
storage, and then model. Four hundred megabytes of shards are made in a temporary folder, or where
``CONSILIENCE_SHARDS`` says.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits
from timing import write_parts

import consilience as cs
from consilience.engines import Dask, Local
from consilience.posteriors.columns import ComponentColumns, ShardSchema
from consilience.posteriors.sharded.descent import Centres, add_pass_sums, assign_and_sum
from consilience.posteriors.sharded.file import write_shard
from consilience.posteriors.sharded.header import PackedSites
from consilience.posteriors.sharded.passes import PreparedShards, prepare
from consilience.posteriors.sharded.shards import load_shard

SITES, PER_SITE, DIM, GROUPS, FILES, SEED = 100_000, 5, 100, 50, 4, 0
NOISE = 0.3  # of copies around their component, whose own spread is 1
PASSES, REPEATS = 20, 3
SMALL = 20_000  # sites of the comparison of engines
TASKS = 400  # that do nothing, to tell what the scheduler takes for each
MANY = 100_000_000  # sites of the cost model
MODEL_SHARD = 256 * 2**20
RESULTS = Path(__file__).with_suffix(".json")


def made(folder: Path, sites: int) -> Path:
    """Write float32 shards of sites that each hold five of fifty planted diagonal Gaussians, moved a little."""
    if folder.exists():
        return folder
    rng = np.random.default_rng(SEED)
    family = cs.families.DiagonalGaussian(dim=DIM)
    means = rng.standard_normal((GROUPS, DIM))
    partial_folder = folder.with_suffix(".partial")
    shutil.rmtree(partial_folder, ignore_errors=True)
    partial_folder.mkdir(parents=True)
    truths, count = [], sites // FILES
    for number in range(FILES):
        truth = rng.random((count, GROUPS)).argsort(axis=1)[:, :PER_SITE]
        truths.append(truth.ravel())
        local = means[truth] + NOISE * rng.standard_normal((count, PER_SITE, DIM))
        variance = 0.1 * rng.gamma(10.0, 0.1, size=local.shape)
        natural = family.to_natural(mean=local.reshape(-1, DIM), variance=variance.reshape(-1, DIM))
        offsets = np.arange(0, PER_SITE * count + 1, PER_SITE)
        block = ComponentColumns(
            ShardSchema(family, stated=("counts",)),
            natural.astype(np.float32),
            offsets,
            counts=np.full(PER_SITE * count, 50.0),
        )
        names = tuple(f"site-{number}-{i}" for i in range(count))
        packed = PackedSites(block, names, np.zeros((count, 32), dtype=np.uint8))
        write_shard(partial_folder / f"shard-{number:05d}.safetensors", packed, "safetensors")
    np.save(partial_folder / "truth.npy", np.concatenate(truths))
    partial_folder.rename(folder)
    return folder


def place() -> Path:
    """Return the folder that the shards are made in."""
    return Path(os.environ.get("CONSILIENCE_SHARDS", Path(tempfile.gettempdir()) / "consilience-shards"))


def _bare(natural: np.ndarray, starts: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what twenty passes cannot do without: products with all centres, assignments of sites, sums of groups."""
    labels = np.empty(len(natural), dtype=np.int64)
    sums = np.zeros_like(centres)
    step = 50_000
    for start in range(0, len(natural), step):
        rows = natural[start : start + step]
        costs = -(rows @ centres.T)
        own = labels[start : start + step]
        for first in range(0, len(rows), PER_SITE):
            own[first : first + PER_SITE] = linear_sum_assignment(costs[first : first + PER_SITE])[1]
        member = csr_array((np.ones(len(rows)), (own, np.arange(len(rows)))), shape=(len(centres), len(rows)))
        sums += member @ rows
    return labels, sums / np.maximum(np.bincount(labels, minlength=len(centres)), 1)[:, None]


def run_iterations() -> dict[str, Any]:
    """Time twenty passes over all shards and twenty times the bare operations on one array in memory, in turn.

    The bare operations have all parameters as float64 in memory, two threads of linear algebra, and start from the same
    centres: components drawn at random. Ours have the shards as they are stored, in float32.
    """
    shards = cs.shards(made(place() / "sites", SITES))
    loaded = [load_shard(source).components for source in shards.sources]
    natural = np.concatenate([np.asarray(block.natural, dtype=np.float64) for block in loaded])
    centre = natural[:2000].mean(axis=0)
    rng = np.random.default_rng(SEED)
    first = natural[rng.choice(len(natural), GROUPS, replace=False)]
    starts = np.arange(0, len(natural), PER_SITE)
    found: dict[str, list[float]] = {"passes": [], "priced": [], "bare": [], "bare_product": []}
    for _ in range(REPEATS):
        for name, strength in (("passes", 0.0), ("priced", 25.0)):
            for engine in (Local(threads=2),):
                placed = engine.derive(prepare, engine.place(partial(_at, loaded), range(len(loaded))), None, centre,
                                       "forward", 1.0)  # fmt: skip
                tangent = engine.map(_tangent, placed)[0]
                work = PreparedShards(engine, placed, tangent, "forward", SITES, len(natural))
                begin = time.perf_counter()
                _passes(work, first, strength)
                found[name].append(time.perf_counter() - begin)
        with threadpool_limits(limits=2, user_api="blas"):
            begin = time.perf_counter()
            moving = first
            for _ in range(PASSES):
                _, moving = _bare(natural, starts, moving)
            found["bare"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            for _ in range(PASSES):
                for start in range(0, len(natural), 50_000):
                    natural[start : start + 50_000] @ moving.T
            found["bare_product"].append(time.perf_counter() - begin)
    middle = {name: median(values) for name, values in found.items()}
    ratios = {name: middle[name] / middle["bare"] for name in ("passes", "priced")}
    settings = {"sites": SITES, "per_site": PER_SITE, "dim": DIM, "groups": GROUPS, "passes": PASSES, "seed": SEED}
    return {"settings": settings, "seconds": found, "median": middle, "over_bare": ratios}


def _at(blocks: list[ComponentColumns], number: int) -> ComponentColumns:
    return blocks[number]


def _tangent(shard: Any) -> Any:
    return shard.tangent


def _passes(work: PreparedShards, natural: np.ndarray, strength: float) -> None:
    """Do what ``descend`` does, for as many passes as asked for whether it has converged or not."""
    users = np.full(len(natural), work.n_rows / len(natural))
    for _ in range(PASSES):
        price = strength * (np.sqrt(users) - np.sqrt(np.maximum(users - 1.0, 0.0)))
        centres = Centres.from_natural(work.tangent, natural, work.direction, price)
        found = work.reduce(assign_and_sum, add_pass_sums, centres, True, 0)
        used = found.groups.mass > 0
        natural = natural.copy()
        natural[used] = work.group_averages(type(found.groups)(found.groups.sums[used], found.groups.mass[used]))
        users = found.users


WHOLE = """
import json, resource, sys, time
import consilience as cs
begin = time.perf_counter()
fusion = cs.fuse(sys.argv[1], min_count=0, **json.loads(sys.argv[2]))
seconds = time.perf_counter() - begin
import numpy as np
from sklearn.metrics import adjusted_rand_score
truth = np.load(sys.argv[1] + "/truth.npy")
print(json.dumps({
    "seconds": seconds, "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    "n_components": fusion.n_components, "rand": adjusted_rand_score(truth, fusion.matching.labels),
    "passes": int(fusion.history.size), "status": fusion.status.name.lower(),
}))
"""
FUSIONS = {
    "kl, number given": {"method": "kl", "n_components": GROUPS},
    "kl, priced": {"method": "kl", "regularization": 0.1, "max_components": 80},
    "spahm": {"method": "spahm"},
    "kmeans": {"method": "kmeans", "n_components": GROUPS},
    "average": {"method": "average"},
}


def run_whole() -> dict[str, Any]:
    """Fuse the shards from the disk, each method in a process of its own, and say how long and how much memory."""
    folder = made(place() / "sites", SITES)
    found = {}
    for name, options in FUSIONS.items():
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", WHOLE, str(folder), json.dumps(options)], capture_output=True, text=True, check=True
        )
        found[name] = {"options": options, **json.loads(done.stdout.splitlines()[-1])}
    return {"settings": {"sites": SITES, "bytes": sum(p.stat().st_size for p in folder.iterdir())}, "results": found}


def run_engines() -> dict[str, Any]:
    """Fuse fewer sites here and on two Dask workers, and once more with a worker killed in the middle."""
    from distributed import Client, LocalCluster

    folder = made(place() / "fewer", SMALL)
    options: dict[str, Any] = {"method": "kl", "n_components": GROUPS, "shard_bytes": 4 * 2**20}
    begin = time.perf_counter()
    here = cs.fuse(str(folder), min_count=0, **options)
    seconds = {"local": time.perf_counter() - begin}
    begin = time.perf_counter()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        seconds["start of the cluster"] = time.perf_counter() - begin
        killed: list[int] = []

        def kill(done: int, _total: int) -> None:
            if done == 1 and not killed:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        alike = {}
        for name, progress in (("dask, first", False), ("dask", False), ("dask, a worker killed", kill)):
            begin = time.perf_counter()
            there = cs.fuse(str(folder), engine=client, progress=progress, min_count=0, **options)
            seconds[name] = time.perf_counter() - begin
            alike[name] = bool(
                np.array_equal(there.posterior.natural, here.posterior.natural)
                and np.array_equal(there.matching.labels, here.matching.labels)
            )
        for engine in (Dask(client),):
            idle = engine.place(_number, range(TASKS))
            engine.map(_number, idle)
            begin = time.perf_counter()
            engine.reduce(_number, _last, idle)
            task = (time.perf_counter() - begin) / TASKS
    truth = np.load(folder / "truth.npy")
    return {
        "seconds_per_task": task,
        "settings": {"sites": SMALL, "workers": 2, **options},
        "seconds": seconds,
        "same_bits": alike,
        "killed": len(killed),
        "rand": adjusted_rand_score(truth, here.matching.labels),
    }


def _number(number: int) -> int:
    return number


def _last(numbers: Sequence[int]) -> int:
    return numbers[-1]


def run_storage() -> dict[str, Any]:
    """Read as many sites from posterior files, from packed safetensors and from Parquet, checks included."""
    count = 4000
    source = load_shard(cs.shards(made(place() / "fewer", SMALL)).sources[0]).components
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "files").mkdir()
        for site in range(count):
            cs.save(source.site(site), folder / "files" / f"site-{site:05d}.safetensors", min_count=0)
        places = {"posterior files": folder / "files"}
        for form in ("safetensors", "parquet"):
            begin = time.perf_counter()
            cs.pack(folder / "files", folder / form, dtype="float32", form=form)  # type: ignore[arg-type]
            found[f"packing, {form}"] = time.perf_counter() - begin
            places[form] = folder / form
        for kind, where in places.items():
            times = []
            for _ in range(REPEATS):
                begin = time.perf_counter()
                for one in cs.shards(where).sources:
                    load_shard(one)
                times.append(time.perf_counter() - begin)
            found[kind] = {"seconds": times, "sites_per_second": count / median(times),
                           "bytes": sum(p.stat().st_size for p in where.iterdir())}  # fmt: skip
    return {"settings": {"sites": count, "per_site": PER_SITE, "dim": DIM}, "results": found}


def run_model() -> dict[str, Any]:
    """Say what a hundred million sites would take, by what the other parts wrote; nothing of it was run."""
    found = json.loads(RESULTS.read_text())
    core = 2 * found["iterations"]["median"]["passes"] / (PASSES * SITES)  # two threads
    read = 1.0 / found["storage"]["results"]["safetensors"]["sites_per_second"]
    task = found["engines"]["seconds_per_task"]
    size = MANY * PER_SITE * 2 * DIM * 4
    shards = size // MODEL_SHARD
    rows = []
    for cores in (2, 64, 512, 4096):
        kept = size / cores / 2**30
        rows.append(
            {
                "cores": cores,
                "load_seconds": MANY * read / cores + shards * task,
                "pass_seconds": MANY * core / cores + shards * (1 + 1 / 7) * task,
                "gib_per_core": kept,
            }
        )
    constants = {"pass_seconds_per_site_and_core": core, "load_seconds_per_site_and_core": read,
                 "seconds_per_task": task, "shards": int(shards), "bytes": size,
                 "driver_bytes": MANY * PER_SITE * 16, "passes": PASSES}  # fmt: skip
    return {"constants": constants, "rows": rows}


PARTS = {
    "iterations": run_iterations,
    "whole": run_whole,
    "engines": run_engines,
    "storage": run_storage,
    "model": run_model,
}

if __name__ == "__main__":
    import distributed
    import pyarrow

    write_parts(RESULTS, PARTS, sys.argv[1:], {"distributed": distributed.__version__, "pyarrow": pyarrow.__version__})
