"""Memory of one whole fusion of many sites, in a process of its own: ``python benchmarks/memory.py HOW GAUGE``.

HOW is ``n_components``, ``regularization`` or ``default``; GAUGE is ``resident`` (peak of the process above what it
held with the input made, Linux only) or ``traced`` (peak of what Python and NumPy allocated meanwhile, the same on
every run but slow). An optional third argument is another number of sites.
"""

from __future__ import annotations

import json
import sys
import time
import tracemalloc
from pathlib import Path

from scale import LINEAR, PRICE, planted

import consilience as cs

OPTIONS = {
    "n_components": {"n_components": LINEAR["groups"]},
    "regularization": {"regularization": PRICE},
    "default": {},
}
"""What is told of the number of components."""


def status(field: str) -> int:
    """Return a field of the process's status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def main() -> None:
    """Print the peak as a multiple of the stacked input, L x P x 8 bytes."""
    how, gauge = sys.argv[1:3]
    sites = int(sys.argv[3]) if len(sys.argv) > 3 else LINEAR["sites"][-1]
    options = OPTIONS[how]
    posteriors, _ = planted(sites, LINEAR["dim"], LINEAR["groups"])
    stacked = sum(posterior.natural.nbytes for posterior in posteriors)
    if gauge == "traced":
        tracemalloc.start()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
        before = status("VmRSS")
    start = time.process_time()
    cs.fuse(posteriors, restarts=1, min_count=0, **options)
    taken = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1] if gauge == "traced" else status("VmHWM") - before
    found = {"input_bytes": stacked, f"{gauge}_bytes": peak, f"{gauge}_multiple": peak / stacked}
    if gauge == "resident":
        found["cpu_seconds"] = taken
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
