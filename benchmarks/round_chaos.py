"""Rounds in trouble: kill -9 of server and sites, full disks, late files and clocks, over all messages and transports.

    python benchmarks/round_chaos.py [--only KIND ...] [--over TRANSPORT ...] [--seeds 3]
    python experiments/write_tables.py                          the table of docs/evidence/rounds.md

Every case is played in processes (tests/end_to_end/chaos.py): an undisturbed one over a folder, and for every transport
and seed one in trouble. A round is lost where no model came, where it has other bytes at the server than at a site, or
than the undisturbed one. What is found is written to benchmarks/round_chaos.json, a case at a time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "experiments")]

from record import versions  # noqa: E402

from tests.end_to_end import chaos  # noqa: E402

RESULT = Path(__file__).with_suffix(".json")


def played(kind: str, transports: list[str], seeds: range) -> dict[str, Any]:
    """Return what came of the cases of a kind, by transport."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        calm, expected = chaos.run(kind, "folder", Path(folder) / "calm")
        if calm.lost is not None:
            raise RuntimeError(f"{kind}: the undisturbed round failed: {calm}")
        found: dict[str, Any] = {}
        for transport in transports:
            runs = []
            for seed in seeds:
                home = Path(folder) / f"{transport}-{seed}"
                outcome, model = chaos.run(kind, transport, home, chaos.Trouble.over(transport, seed))
                is_same = outcome.lost is None and model == expected
                runs.append({"seed": seed, **outcome.to_json(), "is_same": is_same})
                sys.stdout.write(f"{kind} {transport} {seed}: {'same' if is_same else outcome}\n")
                sys.stdout.flush()
            found[transport] = runs
        return found


def main() -> None:
    """Play the cases that are asked for, and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(chaos.KINDS), choices=chaos.KINDS)
    parser.add_argument("--over", nargs="*", default=list(chaos.TRANSPORTS), choices=chaos.TRANSPORTS)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    document = json.loads(RESULT.read_text()) if RESULT.exists() else {"kinds": {}}
    document["versions"] = versions()
    for kind in options.only:
        document["kinds"].setdefault(kind, {}).update(played(kind, options.over, range(options.seeds)))
        RESULT.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
