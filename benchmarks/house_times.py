"""Times of the golden fusions on two source trees: ``python benchmarks/house_times.py OLD_SRC NEW_SRC CASES_ROOT``.

Every case of ``tests/golden`` in CASES_ROOT (a checkout whose cases both trees run) is timed on both trees, which take
turns in fresh processes, one thread each. The figure of a case is the ratio of the least times, that of a group (the
file which holds the cases) the ratio of the sums of least times. Written to house.json as "times".
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

TURNS = 3
"""Fresh processes for each tree; the least of their times stands, since other work only adds to it."""

CHILD = """
import json, sys, tempfile, time, warnings
from pathlib import Path
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
import consilience
assert str(Path(consilience.__file__)).startswith(sys.argv[2]), consilience.__file__
import contextlib, io
from tests.golden.cases import CASES
from tests.golden.record import one_thread
times = {}
for name, case in CASES.items():
    with tempfile.TemporaryDirectory() as folder, one_thread(), contextlib.redirect_stdout(io.StringIO()):
        start = time.process_time()
        try:
            case(Path(folder))
        except Exception as error:
            times[name] = None
            continue
        times[name] = time.process_time() - start
groups = {}
for name, case in CASES.items():  # a case for one of several parameters is a closure, which holds its function
    inner = [cell.cell_contents for cell in case.__closure__ or () if callable(cell.cell_contents)]
    groups[name] = (inner[0] if inner else case).__module__.rpartition(".")[2]
json.dump({"times": times, "groups": groups}, sys.stdout)
"""


def run(source: str, cases_root: str) -> dict[str, dict[str, float | None]]:
    """Return seconds of processor time by case, and the group of each case."""
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", CHILD, cases_root, source]
    answer = subprocess.run(command, env=environment, cwd=cases_root, capture_output=True, text=True, check=True)  # noqa: S603
    return json.loads(answer.stdout)


def main(old: str, new: str, cases_root: str) -> None:
    """Time both trees by turns, print and record the ratios."""
    runs: dict[str, list[dict[str, dict[str, float | None]]]] = {"before": [], "after": []}
    for turn in range(TURNS):
        for label, source in (("before", old), ("after", new)) if turn % 2 == 0 else (("after", new), ("before", old)):
            runs[label].append(run(source, cases_root))
    groups = runs["before"][0]["groups"]
    least = {
        label: {
            name: min(seconds for one in turns if (seconds := one["times"][name]) is not None)
            for name in groups
            if all(one["times"][name] is not None for one in turns)
        }
        for label, turns in runs.items()
    }
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    ratios = []
    for name in set(least["before"]) & set(least["after"]):
        for group in (groups[name], "all"):
            sums[group][0] += least["before"][name]
            sums[group][1] += least["after"][name]
        ratios.append(least["after"][name] / least["before"][name])
    table = {group: {"before": b, "after": a, "ratio": a / b} for group, (b, a) in sorted(sums.items())}
    for group, row in table.items():
        sys.stdout.write(f"{group:12} {row['before']:8.2f} s {row['after']:8.2f} s  ratio {row['ratio']:.3f}\n")
    lost = len(groups) - len(ratios)
    sys.stdout.write(f"{len(ratios)} cases, median ratio {statistics.median(ratios):.3f}, not run on both {lost}\n")
    path = Path(__file__).with_name("house.json")
    document = json.loads(path.read_text())
    document["times"] = {
        "cases": len(ratios),
        "not_run_on_both": lost,
        "turns": TURNS,
        "median_ratio": statistics.median(ratios),
        "groups": table,
    }
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:4])
