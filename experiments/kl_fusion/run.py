"""Figures 2 and 3 of Claici et al. 2020, and more and wider sites: ``python experiments/kl_fusion/run.py``.

Takes the simulations that ``simulate.py`` has made (it makes none itself), runs every method of ``compare.py`` on each,
and writes ``results.json`` and ``figure.svg`` beside this file. What was run is kept in the cache folder, one small
file for each simulation, so that the run may be stopped and started again (all of it takes about a quarter of an hour).
``--again METHOD ...`` runs these methods anew, for instance after the library has changed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from baselines import KMEANS
from compare import CONCENTRATIONS, DIRICHLET_PROCESS, METHODS, PAPER, PUBLISHED_SPAHM, fused, scores
from figure import draw
from record import as_text, remembered, versions
from simulate import ARMS, CACHE, LARGE, NOISES, PLAN, SEPARATIONS, WIDE, Setting, load, settings_of
from summary import point, targets
from threadpoolctl import threadpool_limits

HERE = Path(__file__).parent
CHOSEN = {
    "simulation": "as the paper and its authors' code: means, subsets, covariances, J, D, G, M, the fixed sigma or s",
    "separations, noises": "we chose; the paper gives them in figures only",
    "arms": "'any subset' is the paper's; 'at most three' was added, so that the largest site is not the answer",
    "local and pooled fits": "variational mixtures told the true number, as the paper; 16 starts, as its authors' code",
    "auto": "the library's default; its two constants (evidence to the power 1 / (1 + J / 25), 5 nats) were chosen on "
    "seeds 0 to 5 of these simulations and on the digits demo, so seeds 6 to 9 are also reported alone",
    "paper": "lambda = 0.1 times the standard deviation of divergences as the paper; at most 10 components, we chose",
    "SPAHM": "on the local means, as its paper; the library's default, nothing chosen on these simulations",
    "SPAHM, published": "s = s0 = 1 at first, one start, ten rounds, -log k, counts clipped at 10, as the code",
    "Dirichlet process": "truncation min(N, 2 max L_j + 10) and spherical covariances fixed beforehand; concentration "
    "by the lower bound of each fit; components with a point of their own",
    "k-means": "told the true number of components",
    "floor": "told the true matching",
}


def simulated(seed: int, setting: Setting) -> bool:
    """Return whether a simulation has been made."""
    return (CACHE / f"{setting.name}-seed{seed}.npz").exists()


def kept(seed: int, setting: Setting) -> Path:
    """Return where the results of a simulation are kept."""
    return CACHE / "results" / f"{setting.name}-seed{seed}.json"


def run(seed: int, setting: Setting, again: set[str], source: str) -> dict[str, Any]:
    """Return the results of a simulation, of every method and about the truth."""
    simulation = load(seed, setting)

    def work(name: str) -> dict[str, Any] | None:
        found = METHODS[name](simulation, seed)
        return None if found is None else scores(found, simulation.means, simulation.labels)

    methods = remembered(kept(seed, setting), METHODS, again, source, work)
    return {"seed": seed, "true": len(simulation.means), "locals": len(simulation.labels), "methods": methods}


def main() -> None:
    """Run what is missing, collect everything, draw it."""
    again = set(sys.argv[2:]) if sys.argv[1:2] == ["--again"] else set()
    if len(sys.argv) > 1 and (not again or not again <= set(METHODS)):
        sys.exit(f"usage: run.py [--again METHOD ...]; the methods are {', '.join(map(repr, METHODS))}")
    ran, ready = versions(), [one for one in PLAN if simulated(*one)]
    rows: dict[Setting, list[dict[str, Any]]] = {}
    with threadpool_limits(1):
        if ready:
            fused(load(*ready[0]))  # so that the first time is not that of loading libraries
        for number, (seed, setting) in enumerate(ready):
            rows.setdefault(setting, []).append(run(seed, setting, again, ran["library_source"]))
            sys.stdout.write(f"{number + 1} of {len(ready)}: {setting.name} seed {seed}\n")
            sys.stdout.flush()
    points = [point(setting, rows[setting]) for setting in dict.fromkeys(one for _, one in PLAN) if setting in rows]
    result = {
        "settings": {
            **settings_of(Setting()),
            "separations": SEPARATIONS,
            "noises": NOISES,
            "arms": ARMS,
            "more sites": [settings_of(setting) for setting in LARGE],
            "more dimensions": [settings_of(setting) for setting in WIDE],
            "paper": {**PAPER, "assignment": "relaxed"},
            "published_spahm": PUBLISHED_SPAHM,
            "kmeans": KMEANS,
            "dirichlet_process": {**DIRICHLET_PROCESS, "concentrations": CONCENTRATIONS},
            "simulations_planned": len(PLAN),
            "simulations_used": len(ready),
        },
        "chosen": CHOSEN,
        "versions": ran,
        "targets": targets(points),
        "points": points,
    }
    (HERE / "results.json").write_text(as_text(result))
    draw(points, HERE / "figure.svg")


if __name__ == "__main__":
    main()
