"""The default beside its baselines over fourteen real data sets: ``python experiments/battery/sets.py [--write]``.

Cells are those of ``real.sets``: five splits of every set, in which each site lacks half of the classes. It stops and
starts again as ``run.py`` does; ``--write`` writes ``sets.json`` beside this file, of the cells that were run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from battery import real
from battery.local_fits import CACHE
from battery.methods import METHODS, OF_SETS
from battery.run import GIVE_UP, run, settings_record
from record import as_text, versions


def main() -> None:
    """Run what is missing, and write it all if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=len(real.SET_SEEDS), help="splits of every set")
    parser.add_argument("--sets", nargs="+", choices=real.SETS, default=list(real.SETS))
    parser.add_argument("--again", nargs="+", choices=METHODS, default=[], help="methods to run anew")
    parser.add_argument("--results", type=Path, default=CACHE / "results", help="folder of the files of single cells")
    parser.add_argument("--write", action="store_true", help="write the results beside this file")
    options = parser.parse_args()
    ran, rows = versions(), []
    with threadpool_limits(1):
        for setting in real.sets()[: options.seeds * len(real.SETS)]:
            if setting.data in options.sets and real.is_there(setting):
                again = set(options.again)
                rows.append(run(setting, list(OF_SETS), again, options.results, GIVE_UP, ran["library_source"]))
                sys.stdout.write(f"{setting.name}\n")
                sys.stdout.flush()
    if options.write:
        record = {"settings": settings_record(), "versions": ran, "cells": rows}
        (Path(__file__).parent / "sets.json").write_text(as_text(record))


if __name__ == "__main__":
    main()
