"""The default on simulations, of whose seeds the last shaped a rule: ``python experiments/kl_fusion/unseen.py``.

Those of ``simulate.py`` by seeds 20 to 25, of fifty sites and of twelve, without fits to all data. Writes
``unseen.json`` beside this file, from which ``tables.py`` makes the table of docs/evidence/kl_fusion.md. Simulations
are kept in the cache folder, so that the run may be stopped and started again (all of it takes about ten minutes).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from compare import METHODS, scores
from record import as_text, versions
from simulate import Setting, load, settings_of
from threadpoolctl import threadpool_limits

RESULTS = Path(__file__).with_name("unseen.json")
SEEDS = range(20, 26)
POINTS = ((0.5, 0.5, 5), (0.5, 0.5, 3), (2.0, 0.5, 5), (0.1, 0.5, 5), (0.5, 2.0, 3))
"""Separation, noise, and most components of a site."""
SITES = (50, 12)


def row(seed: int, setting: Setting) -> dict[str, Any]:
    """Return what the default finds, and its Hausdorff distance over that of the true matching."""
    simulation = load(seed, setting)
    found, floor = (
        scores(METHODS[name](simulation, seed), simulation.means, simulation.labels) for name in ("auto", "floor")
    )
    return {
        "sites": setting.sites,
        "separation": setting.separation,
        "noise": setting.noise,
        "most": setting.most,
        "seed": seed,
        "true": len(simulation.means),
        "components": found["components"],
        "hausdorff_over_floor": found["hausdorff"] / floor["hausdorff"],
        "rand": found["rand"],
        "left_out": found["left_out"],
    }


def main() -> None:
    """Fuse every simulation by the default."""
    rows = []
    with threadpool_limits(1):
        for sites in SITES:
            for separation, noise, most in POINTS:
                setting = Setting(separation, noise, most, sites=sites, pooled=False)
                rows += [row(seed, setting) for seed in SEEDS]
                sys.stdout.write(f"{setting.name}: {[one['components'] for one in rows[-len(SEEDS) :]]}\n")
                sys.stdout.flush()
    common = settings_of(Setting(pooled=False))
    RESULTS.write_text(as_text({"settings": common, "versions": versions(), "rows": rows}))


if __name__ == "__main__":
    main()
