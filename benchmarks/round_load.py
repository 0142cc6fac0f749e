"""Rounds under load: a hundred sites send a mebibyte each, and one server process fuses them, over a folder.

    nice python benchmarks/round_load.py [--only KIND ...] [--rounds 3]
    python experiments/write_tables.py                          the table of docs/sites/rounds.md

What is measured is written to benchmarks/round_load.json, a kind at a time.

Every round is a process of its own, so that start and imports are in it: it waits for nobody, since all contributions
lie in the folder, copies them, checks each alone and beside the others, fuses, writes, publishes and reads again.
Stated are processor seconds, rounds an hour of one processor by these, wall seconds (of a machine that does other
things too), and the peak of resident memory; of a server that fuses nothing, imports only, too.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression

import consilience as cs
from consilience.core.provenance import file_digest
from consilience.federated import Announcement
from consilience.networks.files import write_network

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
from record import versions

RESULT = Path(__file__).with_suffix(".json")
SITES = 100
SERVER = """
import json, sys
from pathlib import Path
import consilience as cs
plan = json.loads(sys.argv[1])
if plan["fuses"]:
    sites = [f"s{number}" for number in range(plan["sites"])]
    result = cs.federated.serve_folder(plan["place"], plan["output"], sites=sites, deadline=3600, poll=0.05,
                                       method=plan["method"], **plan["options"])
    assert len(result.report.sites) + len(result.report.left_out) == plan["sites"], result.report.lines()
status = Path("/proc/self/status").read_text().splitlines()
print(1024 * int(next(line for line in status if line.startswith("VmHWM:")).split()[1]))
"""
"""What a server process runs; it says the peak of its own resident memory."""


def write_weights(number: int, path: Path) -> None:
    """Write a network of 260,000 weights, of one start with all others."""
    start, rng = np.random.default_rng(0), np.random.default_rng([number, 0])
    shapes = {"0.weight": (320, 784), "0.bias": (320,), "2.weight": (10, 320), "2.bias": (10,)}
    arrays = {
        name: (0.05 * start.normal(size=shape) + 0.01 * rng.normal(size=shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    write_network(path, arrays)


def write_mixture(number: int, path: Path) -> None:
    """Write a mixture of 100 components in 34 columns, with full covariances."""
    rng, family, n = np.random.default_rng([number, 1]), cs.families.NormalWishart(dim=34), 100
    centres = 6.0 * np.random.default_rng(0).normal(size=(n, 34))
    count = np.full(n, 200.0)
    natural = family.to_natural(
        mean=centres + 0.1 * rng.normal(size=centres.shape), kappa=count, dof=count + 34.0,
        inverse_scale=count[:, None, None] * (np.eye(34) + 0.01 * np.diag(rng.random(34))),
    )  # fmt: skip
    cs.save(cs.Posterior(family, natural, counts=count, weights=count / count.sum()), path)


def write_sums(number: int, path: Path) -> None:
    """Write the sums of a regression on 500 columns: their products, as a triangle."""
    rng = np.random.default_rng([number, 2])
    rows = rng.normal(size=(700, 500))
    target = rows[:, :5].sum(axis=1) + rng.normal(size=700)
    cs.save(LinearRegression().fit(rows, target), path, data=(rows, target))


KINDS: dict[str, tuple[Callable[[int, Path], None], str | None, dict[str, Any]]] = {
    "sums of a regression": (write_sums, None, {}),
    "networks, average": (write_weights, "average", {}),
    "networks, average, robust=True": (write_weights, "average", {"robust": True}),
    "mixtures, robust=True": (write_mixture, "kl", {"robust": True}),
    "mixtures, k-means of points": (write_mixture, "kmeans", {"n_components": 100}),
}


def announce(path: Path, folder: Path) -> None:
    """Put a file into the folder of its site, and say so, as ``send_folder`` does after its checks."""
    folder.mkdir(parents=True)
    digest = file_digest(path)
    shutil.copy(path, folder / digest)
    (folder / Announcement(path.name, 1, 1, digest).name).touch()


def serve(plan: dict[str, Any]) -> dict[str, float]:
    """Return processor and wall seconds, and peak memory, of one round in a process of its own."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-W", "ignore", "-c", SERVER, json.dumps(plan)]
    told = subprocess.run(command, check=True, capture_output=True)  # noqa: S603  (its own words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "processor_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "wall_seconds": time.perf_counter() - start,
        "peak_bytes": int(told.stdout.split()[-1]),
    }


def main() -> None:
    """Measure the rounds of each kind, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULT.read_text())["kinds"] if RESULT.exists() else {}
    found["imports only"] = {"rounds": [serve({"fuses": False})], "sites": 0, "bytes": 0}
    for kind in arguments.only:
        write, method, options = KINDS[kind]
        rounds = []
        with tempfile.TemporaryDirectory() as folder:
            (files := Path(folder) / "files").mkdir()
            sent = Path(folder) / "sent"
            for number in range(SITES):
                write(number, path := files / f"s{number}")
                announce(path, sent / "sites" / path.name)
            size = int(np.median([path.stat().st_size for path in files.iterdir()]))
            for turn in range(arguments.rounds):
                place = Path(folder) / f"round {turn}"
                shutil.copytree(sent, place)
                plan = {"fuses": True, "sites": SITES, "place": str(place), "method": method, "options": options}
                rounds.append(serve({**plan, "output": str(Path(folder) / f"fused {turn}.safetensors")}))
        found[kind] = {"rounds": rounds, "sites": SITES, "bytes": size}
        RESULT.write_text(json.dumps({"kinds": found, "versions": versions()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
