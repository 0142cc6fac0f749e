"""What a hundred thousand files of strangers do to the readers: crashes, hangs, memory. Resumable, in pieces.

    nice python benchmarks/fuzzing.py [--mutants 100000] [--first 0] [--piece 1000] [--part mutants|heavy|all]

Every mutant (``tests/fuzz/mutants.py``) is read by everything that reads such files, under tracemalloc: an exception
other than the library's own is a crash, more than 5 s a hang, more than ten times the file's size and a mebibyte too
much. The second part (``tests/fuzz/heavy.py``) are files made so that few bytes become much memory and that readers
just take, each read in a process of its own, whose resident memory counts: it includes what tracemalloc cannot see.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from consilience.core.provenance import library_versions  # noqa: E402
from consilience.files.budget import ALLOWANCE_BYTES, allowed_memory  # noqa: E402
from tests.fuzz import heavy, mutants, reading  # noqa: E402

RESULT = Path(__file__).with_suffix(".json")
COUNT = 100_000


def piece(first: int, last: int, folder: Path) -> dict[str, Any]:
    """Return what happened to mutants `first` to `last`."""
    said: Counter[str] = Counter()
    troubles, slowest, largest = [], [0.0, -1], [0.0, -1]
    started = time.perf_counter()
    for number in range(first, last):
        seed, content = mutants.mutant(number)
        path = folder / ("mutant.json" if seed.endswith(".json") else "mutant")
        path.write_bytes(content)
        for reader in reading.readers(seed):
            how, crash, seconds, peak = reading.outcome(path, reader)
            said[f"{seed}: {how}"] += 1
            if crash or reading.too_much(len(content), seconds, peak):
                troubles.append({"mutant": number, "seed": seed, "crash": crash, "seconds": seconds, "bytes": peak})
            slowest = max(slowest, [seconds, number])
            largest = max(largest, [max(0, peak - ALLOWANCE_BYTES) / max(1, len(content)), number])
    return {
        "first": first, "last": last, "readings": dict(sorted(said.items())), "troubles": troubles,
        "slowest": slowest, "largest": largest, "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def resident(path: str, seed: str) -> str:
    """Return, as JSON, the largest growth of the process's resident memory over all readers of a file."""
    worst = (0, "", 0.0)
    for reader in reading.readers(seed):
        Path("/proc/self/clear_refs").write_text("5")
        before, start = status("VmRSS"), time.perf_counter()
        how = reading.outcome(Path(path), reader)[0]
        worst = max(worst, (status("VmHWM") - before, how, time.perf_counter() - start))
    return json.dumps(worst)


def status(field: str) -> int:
    """Return a field of the process's status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def heavy_ones(folder: Path, counts: tuple[int, ...] = (100_000,)) -> dict[str, Any]:
    """Return the resident memory that heavy files cost, as a multiple of what they may."""
    told = {}
    for name in (*heavy.DOCUMENTS, *heavy.HEADERS):
        for count in counts:
            for taken in (True,):
                path = folder / "heavy"
                path.write_bytes(heavy.heavy(name, count, taken=taken))
                command = [sys.executable, str(Path(__file__).resolve()), "--resident", str(path)]
                done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)  # noqa: S603  (this file)
                if done.returncode:
                    told[f"{name}, {count}"] = {"crash": done.stderr[-300:]}
                    continue
                grown, how, seconds = json.loads(done.stdout)
                size = path.stat().st_size
                told[f"{name}, {count}, {'padded' if taken else 'bare'}"] = {
                    "bytes": size, "grown": grown, "of_allowed": round(grown / allowed_memory(size), 3),
                    "how": how, "seconds": round(seconds, 2),
                }  # fmt: skip
    return told


def main() -> None:
    """Run what has not been run, and write the result after every piece."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=COUNT)
    parser.add_argument("--first", type=int, default=0, help="Where to start, to share the work between processes.")
    parser.add_argument("--piece", type=int, default=1000)
    parser.add_argument("--part", choices=("mutants", "heavy", "all"), default="all")
    parser.add_argument("--resident", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, default=RESULT)
    given = parser.parse_args()
    if given.resident:
        sys.stdout.write(resident(given.resident, "wishart"))
        return
    corpus = hashlib.sha256(b"".join(name.encode() + one for name, one in mutants.seeds().items())).hexdigest()
    found: dict[str, Any] = json.loads(given.result.read_text()) if given.result.exists() else {}
    if found.get("corpus_sha256") != corpus:
        found = {"corpus_sha256": corpus, "pieces": {}}
    with tempfile.TemporaryDirectory() as name:
        if given.part in ("heavy", "all"):
            found["heavy"] = heavy_ones(Path(name))
        tracemalloc.start()
        for first in range(given.first, given.mutants if given.part in ("mutants", "all") else 0, given.piece):
            if str(first) not in found["pieces"]:
                found["pieces"][str(first)] = piece(first, min(first + given.piece, given.mutants), Path(name))
            given.result.write_text(json.dumps(summed(found), indent=1) + "\n")
    given.result.write_text(json.dumps(summed(found), indent=1) + "\n")


def summed(found: dict[str, Any]) -> dict[str, Any]:
    """Return the result with the sums of its pieces."""
    pieces = list(found["pieces"].values())
    readings: Counter[str] = Counter()
    for one in pieces:
        readings.update(one["readings"])
    return {
        "mutants": sum(one["last"] - one["first"] for one in pieces),
        "readings": sum(readings.values()),
        "by_outcome": {
            how: sum(count for key, count in readings.items() if key.endswith(how))
            for how in ("read", "refused", "crashed")
        },
        "by_seed": dict(sorted(readings.items())),
        "troubles": [trouble for one in pieces for trouble in one["troubles"]],
        "slowest_seconds_and_mutant": max((one["slowest"] for one in pieces), default=None),
        "largest_multiple_beyond_a_mebibyte_and_mutant": max((one["largest"] for one in pieces), default=None),
        "heaviest_of_allowed": max((one.get("of_allowed", 0) for one in found.get("heavy", {}).values()), default=None),
        "versions": library_versions(),
        **{key: value for key, value in found.items() if key in ("corpus_sha256", "heavy", "pieces")},
    }  # fmt: skip


if __name__ == "__main__":
    main()
