"""Merges of bfloat16 checkpoints: processor time against a bare loop of safetensors and torch, method by method.

``python benchmarks/merging.py [--folder DIR] [--repeats 5] [--tensors 12]``. Both run in one process, in turn, on one
thread, with the files in the system's cache; the loop reads a tensor of every model, computes in float32 and writes all
at the end. Ours is counted without digests, and its wall time on two threads with and without them. Beside TIES stands
what NumPy takes for the operations of its definition, once each on arrays in the cache, and what reading takes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import consilience as cs
from consilience.checkpoints.methods.base import BLOCK_ENTRIES
from consilience.checkpoints.tensor_reader import RunningDigest

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
from record import versions

RESULTS = Path(__file__).with_suffix(".json")
SHAPE = (4096, 2048)
METHODS: Mapping[str, tuple[str, dict[str, Any], int, bool]] = {
    "average of two": ("average", {}, 2, False),
    "average of three": ("average", {}, 3, False),
    "task arithmetic": ("task_arithmetic", {"scaling": 0.5}, 2, True),
    "SLERP": ("slerp", {"t": 0.3}, 2, False),
    "TIES of two": ("ties", {"density": 0.2}, 2, True),
    "TIES of three": ("ties", {"density": 0.2}, 3, True),
    "DARE": ("dare", {"density": 0.5}, 2, True),
}
"""What is merged: our method, its options, number of models, whether there is a base."""


def average(models: Sequence[Tensor], base: Tensor) -> Tensor:
    """Return the mean."""
    return sum(models[1:], start=models[0]) / len(models)


def task_arithmetic(models: Sequence[Tensor], base: Tensor) -> Tensor:
    """Return base + half the sum of changes."""
    return base + 0.5 * sum((model - base for model in models[1:]), start=models[0] - base)


def slerp(models: Sequence[Tensor], base: Tensor) -> Tensor:
    """Return the point at 0.3 of the arc."""
    a, b = models
    angle = torch.arccos(torch.clip((a * b).sum() / (a.norm() * b.norm()), -1, 1))
    return (torch.sin(0.7 * angle) * a + torch.sin(0.3 * angle) * b) / torch.sin(angle)


def ties(models: Sequence[Tensor], base: Tensor) -> Tensor:
    """Return base + the disjoint mean of trimmed changes."""
    deltas = torch.stack([(model - base).flatten() for model in models])
    kept = max(1, round(0.2 * deltas.shape[1]))
    for delta in deltas:
        magnitudes = delta.abs()
        delta[magnitudes < magnitudes.kthvalue(len(delta) - kept + 1).values] = 0
    agrees = (deltas.sign() == deltas.sum(0).sign()) & (deltas != 0)
    merged = (deltas * agrees).sum(0) / agrees.sum(0).clamp(min=1)
    return base + merged.reshape(base.shape)


def dare(models: Sequence[Tensor], base: Tensor) -> Tensor:
    """Return base + the mean of changes, half of each dropped and the rest doubled."""
    changes = [(model - base) * (torch.rand_like(base) < 0.5) * 2 for model in models]
    return base + sum(changes[1:], start=changes[0]) / len(models)


LOOPS: Mapping[str, Callable[[Sequence[Tensor], Any], Tensor]] = {
    "average": average, "task_arithmetic": task_arithmetic, "slerp": slerp, "ties": ties, "dare": dare,
}  # fmt: skip


@contextmanager
def no_digests() -> Iterator[None]:
    """Take no digests of what is read and written."""
    with (
        patch.object(RunningDigest, "feed", return_value=None),
        patch.object(RunningDigest, "finish", return_value=64 * "0"),
    ):
        yield


def bare(models: Sequence[Path], base: Path | None, out: Path, method: str) -> None:
    """Merge tensor by tensor."""
    files = [safe_open(path, "pt") for path in (*models, *(() if base is None else (base,)))]
    merged = {}
    for name in files[0].keys():  # noqa: SIM118  (no mapping)
        values = [file.get_tensor(name).float() for file in files]
        start = values.pop() if base is not None else None
        merged[name] = LOOPS[method](values, start).bfloat16()
    save_file(merged, out)


def operations_of_ties(n_models: int, n_entries: int) -> None:
    """Do what TIES is defined by, once for every entry: changes, thresholds, election, disjoint mean, rounding."""
    draw = np.random.default_rng(0)
    stored = draw.normal(0, 0.02, (n_models + 1, BLOCK_ENTRIES)).astype(ml_dtypes.bfloat16)
    base, *models = np.empty(stored.shape, dtype=np.float32)
    mass, merged, size = np.empty((3, BLOCK_ENTRIES), dtype=np.float32)
    mask, counts = np.empty(BLOCK_ENTRIES, dtype=bool), np.empty(BLOCK_ENTRIES, dtype=np.uint8)
    out = np.empty(BLOCK_ENTRIES, dtype=ml_dtypes.bfloat16)
    for _ in range(n_entries // BLOCK_ENTRIES):
        np.copyto(base, stored[0])
        mass.fill(0)
        for model, values in zip(models, stored[1:], strict=True):
            np.copyto(model, values)
            model -= base
            np.abs(model, out=size)
            np.count_nonzero(np.greater(size, 0.04, out=mask))  # what lies above a threshold, which gives its rank
            model *= np.greater_equal(size, 0.03, out=mask)
            mass += model
        merged.fill(0)
        counts.fill(0)
        for model in models:
            np.greater(np.multiply(model, mass, out=size), 0, out=mask)
            counts += mask
            model *= mask
            merged += model
        merged /= np.maximum(counts, 1, out=counts)
        merged += base
        np.copyto(out, merged, casting="unsafe")


def read_twice(files: Sequence[Path], out: Path) -> None:
    """Read files twice, as thresholds ask that come before the merge, and write as much as one of them holds."""
    piece = bytearray(2**23)
    for path in (*files, *files):
        with path.open("rb", buffering=0) as stream:
            while stream.readinto(piece):
                pass
    with out.open("wb", buffering=0) as stream:
        for _ in range(-(-files[0].stat().st_size // len(piece))):
            stream.write(piece)
        os.fsync(stream.fileno())


def seconds(action: Callable[[], Any]) -> tuple[float, float]:
    """Return processor time and wall time of a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    action()
    return time.process_time() - cpu, time.perf_counter() - wall


def measure(name: str, folder: Path) -> dict[str, float]:
    """Return the times of one method, once each."""
    method, options, n_models, has_base = METHODS[name]
    models, base = [folder / f"{number}.safetensors" for number in range(1, n_models + 1)], folder / "0.safetensors"
    start = base if has_base else None
    out = folder / "out.safetensors"

    def ours(threads: int) -> tuple[float, float]:
        return seconds(
            lambda: cs.merge(models, out, method, base=start, threads=threads, overwrite=True, resume=False, **options)
        )

    found = {"loop": seconds(lambda: bare(models, start, out, method))[0]}
    found["wall with digests"] = ours(2)[1]
    with no_digests():
        found["wall without digests"] = ours(2)[1]
        found["ours"] = ours(1)[0]
    return found


def main() -> None:
    """Measure all methods in turn, write the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tensors", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        draw = torch.Generator().manual_seed(0)
        start = {f"layers.{i}.weight": 0.02 * torch.randn(SHAPE, generator=draw) for i in range(options.tensors)}
        for number in range(4):
            state = {
                key: (v + (0.002 * torch.randn(SHAPE, generator=draw) if number else 0)).bfloat16()
                for key, v in start.items()
            }
            save_file(state, folder / f"{number}.safetensors")
        del start, state
        n_entries = options.tensors * SHAPE[0] * SHAPE[1]
        rounds, operations, passes = [], [], []
        for _ in range(options.repeats):
            rounds.append({name: measure(name, folder) for name in METHODS})
            operations.append(seconds(lambda: operations_of_ties(3, n_entries))[0])
            files = [folder / f"{number}.safetensors" for number in range(4)]
            passes.append(seconds(lambda files=files: read_twice(files, folder / "out.safetensors"))[0])  # type: ignore[misc]
    rows = {
        name: {key: median(one[name][key] for one in rounds) for key in rounds[0][name]}
        | {"ratio": median(one[name]["ours"] / one[name]["loop"] for one in rounds)}
        | {"digests": median(one[name]["wall with digests"] / one[name]["wall without digests"] for one in rounds)}
        for name in METHODS
    }
    averages = [one["average of three"]["ours"] for one in rounds]
    times = {
        "TIES of three": median(one["TIES of three"]["ours"] / one["average of three"]["ours"] for one in rounds),
        "its operations": median(one / average for one, average in zip(operations, averages, strict=True)),
        "reading four files twice, writing one": median(
            one / average for one, average in zip(passes, averages, strict=True)
        ),
    }
    record = {
        "entries": n_entries,
        "repeats": options.repeats,
        "methods": rows,
        "times the average of three": times,
        "versions": versions() | {"torch": torch.__version__},
    }
    RESULTS.write_text(f"{json.dumps(record, indent=1)}\n")
    for name, row in rows.items():
        sys.stdout.write(f"{name:18s} ours {row['ours']:.2f} loop {row['loop']:.2f} ratio {row['ratio']:.2f} "
                         f"digests {row['digests']:.2f}\n")  # fmt: skip
    sys.stdout.write(f"times the average of three: {times}\n")


if __name__ == "__main__":
    main()
