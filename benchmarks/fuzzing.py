"""What files of strangers do to readers, 2,000 mutants of each format: crashes, hangs, memory. Resumable, in pieces.

    nice python benchmarks/fuzzing.py [--mutants 2000] [--formats csv npz] [--piece 200] [--part mutants|heavy|all]

Every mutant (``tests/fuzz/formats.py``) is read by everything that reads such files, under tracemalloc; models are
checked and fused beside an honest site's too. An exception other than the library's own is a crash, more than 5 s a
hang, more than ten times the file's size and a mebibyte too much. The second part (``tests/fuzz/heavy.py``) are files
made so that few bytes become much memory and that readers just take, each read in a process of its own, whose resident
memory counts: it includes what tracemalloc cannot see.
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
sys.path[:0] = [str(ROOT), str(ROOT / "experiments")]

from record import versions  # noqa: E402

import consilience as cs  # noqa: E402
from consilience.api.kinds import inspect_file  # noqa: E402
from consilience.files.budget import ALLOWANCE_BYTES, allowed_memory  # noqa: E402
from consilience.files.limits import Limits, exceeded_limits  # noqa: E402
from tests.fuzz import formats, heavy, reading  # noqa: E402

RESULT = Path(__file__).with_suffix(".json")
COUNT = 2000
FIRST = 10_000
"""The first number of a mutant: those below are the tests'."""


def piece(name: str, first: int, last: int) -> dict[str, Any]:
    """Return what happened to mutants `first` to `last` of a format."""
    ends: Counter[str] = Counter()
    troubles, slowest, largest = [], 0.0, 0.0
    started = time.perf_counter()
    for number in range(first, last):
        with tempfile.TemporaryDirectory() as folder:
            for said, crash, seconds, peak, size, is_bad in formats.outcomes(name, FIRST + number, Path(folder)):
                ends[said] += 1
                if is_bad:
                    troubles.append({"format": name, "mutant": FIRST + number, "end": said, "crash": crash,
                                     "seconds": seconds, "bytes": peak, "of": size})  # fmt: skip
                slowest = max(slowest, seconds)
                largest = max(largest, max(0, peak - ALLOWANCE_BYTES) / max(1, size))
    return {
        "format": name, "first": first, "last": last, "readings": dict(sorted(ends.items())), "troubles": troubles,
        "slowest": slowest, "largest": largest, "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def resident(path: str) -> str:
    """Return, as JSON, the largest growth of the process's resident memory over all readers of a file."""
    worst = (0, "", 0.0)
    for reader in (cs.load, inspect_file, lambda path: exceeded_limits(path, Limits())):
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
    parser.add_argument("--mutants", type=int, default=COUNT, help="Of each format.")
    parser.add_argument("--formats", nargs="*", default=list(formats.FORMATS), help="To share the work of processes.")
    parser.add_argument("--piece", type=int, default=200)
    parser.add_argument("--part", choices=("mutants", "heavy", "all"), default="all")
    parser.add_argument("--resident", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, default=RESULT)
    given = parser.parse_args()
    if given.resident:
        sys.stdout.write(resident(given.resident))
        return
    honest = [sorted(formats.honest(name).items()) for name in formats.FORMATS]
    corpus = hashlib.sha256(repr(honest).encode()).hexdigest()
    found: dict[str, Any] = json.loads(given.result.read_text()) if given.result.exists() else {}
    if found.get("corpus_sha256") != corpus:
        found = {"corpus_sha256": corpus, "pieces": {}}
    if given.part in ("heavy", "all"):
        with tempfile.TemporaryDirectory() as folder:
            found["heavy"] = heavy_ones(Path(folder))
    tracemalloc.start()
    for first in range(0, given.mutants if given.part in ("mutants", "all") else 0, given.piece):
        for name in given.formats:
            key = f"{name} {first}"
            if key not in found["pieces"]:
                found["pieces"][key] = piece(name, first, min(first + given.piece, given.mutants))
                given.result.write_text(json.dumps(summed(found), indent=1) + "\n")
    given.result.write_text(json.dumps(summed(found), indent=1) + "\n")


def summed(found: dict[str, Any]) -> dict[str, Any]:
    """Return the result with the sums of its pieces, in all and by format."""
    pieces = list(found["pieces"].values())
    rows = {}
    for name in dict.fromkeys(one["format"] for one in pieces):
        its = [one for one in pieces if one["format"] == name]
        ends: Counter[str] = Counter()
        for one in its:
            ends.update(one["readings"])
        kinds = {end: ends[end] for end in ("read", "refused", "crashed", "hung")}
        over = sum(trouble["end"] in ("read", "refused") for one in its for trouble in one["troubles"])
        rows[name] = {
            "mutants": sum(one["last"] - one["first"] for one in its), **kinds, "over": over,
            "slowest": max(one["slowest"] for one in its), "largest": max(one["largest"] for one in its),
        }  # fmt: skip
    counted = ("mutants", "read", "refused", "crashed", "hung", "over")
    totals = {key: sum(row[key] for row in rows.values()) for key in counted}
    return {
        **totals, "formats": len(rows), "by_format": rows,
        "slowest": max((row["slowest"] for row in rows.values()), default=None),
        "largest": max((row["largest"] for row in rows.values()), default=None),
        "troubles": [trouble for one in pieces for trouble in one["troubles"]],
        "heaviest_of_allowed": max((one.get("of_allowed", 0) for one in found.get("heavy", {}).values()), default=None),
        "versions": versions(),
        **{key: value for key, value in found.items() if key in ("corpus_sha256", "heavy", "pieces")},
    }  # fmt: skip


if __name__ == "__main__":
    main()
