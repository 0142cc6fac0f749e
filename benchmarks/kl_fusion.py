"""Speed, scaling and memory of KL-fusion: ``python benchmarks/kl_fusion.py [part ...]`` (about twenty minutes for all).

Writes ``kl_fusion.json`` beside this file; a part that is not named keeps its numbers. Ratios compare what ran in one
process on one thread, round by round; seconds are those of one small machine and mean little on another.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scale import run_iteration, run_linear, run_memory
from simulation import run_direct, run_shares, run_simulation
from threadpoolctl import threadpool_limits
from timing import versions
from topics import run_topics

RESULTS = Path(__file__).with_suffix(".json")
PARTS = {
    "direct": run_direct,
    "simulation": run_simulation,
    "shares": run_shares,
    "iteration": run_iteration,
    "linear": run_linear,
    "memory": run_memory,
    "topics": run_topics,
}


def main() -> None:
    """Run the parts that were named, or all."""
    wanted = sys.argv[1:] or list(PARTS)
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        sys.exit(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    for part in wanted:
        with threadpool_limits(1):
            found = {"versions": versions(), **PARTS[part]()}
        stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        stored[part] = found
        ordered = {name: stored[name] for name in PARTS if name in stored}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
        sys.stdout.write(f"{part}: done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
