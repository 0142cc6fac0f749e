"""The default on ensembles that the battery has none of: ``python experiments/battery/outside.py [--only GROUP ...]``.

* ``disjoint``: sites that share no component, eleven shapes (sites, components of each, columns), scikit-learn's two
  mixtures told the number of components, six seeds;
* ``sharing``: such shapes with a component more at each site, drawn from so few that some are shared;
* ``one mode``: sites whose data have a single mode and whose mixtures have up to three components, sixty ensembles;
  ``one mode, 2,000 rows`` the first twenty with more data;
* ``two modes``: two normal distributions so many deviations apart, of which every site fits two components;
* ``hundreds``: components of many sites that share nothing, well apart, exact posteriors of true labels.

No rule was set on these seeds. Losses are of 2,000 draws of all local components side by side, in nats each. A group
takes minutes; ``--only`` runs some, and leaves the others of ``outside.json`` beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.mixture import GaussianMixture as SklearnMixture
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from battery.cells import Setting, simulate
from battery.local_fits import LOCAL, load, mixture
from battery.metrics import GaussianMixture, bench, mixture_scores, plug_in
from record import as_text, versions

import consilience as cs

RESULTS = Path(__file__).with_suffix(".json")
SHAPES = (
    (2, 1, 2), (2, 3, 2), (3, 2, 4), (3, 4, 2), (4, 3, 5), (5, 1, 3), (5, 3, 8), (6, 2, 2), (8, 2, 10), (10, 1, 5),
    (10, 3, 8),
)  # fmt: skip
"""Sites, components of each, columns."""
SEEDS = range(900, 906)
APART, SMALL_LOSS = 6.0, 0.1
MODES = ("normal", "Student-t", "uniform", "two normals half a deviation apart")
DISTANCES = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
HUNDREDS = ((100, 10), (190, 10), (100, 5), (190, 5), (100, 2), (190, 2), (210, 5))
"""Sites of ten components each, and columns; the last have more components than are merged one by one."""


def setting_of(sites: int, each: int, columns: int, seed: int, sharing: str) -> Setting:
    """Return a setting of the battery's kind, of which nothing but its shape is special.

    Sites that share some have one component more each, of half as many in all.
    """
    each += sharing != "disjoint"
    number = sites * each if sharing == "disjoint" else max(each + 1, sites * each // 2)
    return Setting(
        f"outside-{sharing}-{sites}-{each}-{columns}-{seed}", "outside", sharing, seed, sites, number, (each, each),
        columns, APART, 0.0, False, "equal", sharing, "fitted", "default",
    )  # fmt: skip


def fitted(rows: np.ndarray, count: int, seed: int, kind: str) -> Any:
    """Return what a site tells of its mixture."""
    if kind == "variational":
        return cs.describe(mixture(rows, count, seed, "default", LOCAL), min_count=0)
    model = SklearnMixture(count, random_state=seed % 2**32, **LOCAL).fit(rows)
    return cs.describe(model, data=rows, min_count=0)


def side_by_side(sites: Sequence[Any]) -> GaussianMixture:
    """Return all components of all sites, weighted by their counts."""
    mixtures = [plug_in(site) for site in sites]
    sizes = np.concatenate([site.counts for site in sites])
    means, covariances = (np.concatenate([getattr(m, name) for m in mixtures]) for name in ("means", "covariances"))
    return GaussianMixture(sizes / sizes.sum(), means, covariances)


def fused(sites: Sequence[Any], seed: int) -> dict[str, Any]:
    """Return the number that the default finds, and what its mixture loses of all side by side.

    As in the battery the loss is of the matching, groups merged by moments; that of the posterior is there too.
    """
    fusion, together = cs.fuse(list(sites), min_count=0), side_by_side(sites)
    draws = together.draw(2000, np.random.default_rng([seed, 1]))
    at_draws, matched = together.log_density(draws), together.merged(fusion.matching.labels)
    return {
        "components": fusion.posterior.n_components,
        "loss": float((at_draws - matched.log_density(draws)).mean()),
        "posterior_loss": float((at_draws - plug_in(fusion.posterior).log_density(draws)).mean()),
    }


def of_shapes(sharing: str) -> dict[str, Any]:
    """Return the fits of every shape, seed and kind of mixture, and how many are right."""
    rows = []
    for sites, each, columns in SHAPES:
        for seed in SEEDS:
            data = simulate(setting_of(sites, each, columns, seed, sharing))
            true = len(np.unique(np.concatenate(data.labels)))
            for kind in ("variational", "maximum likelihood"):
                told = [
                    fitted(own, len(np.unique(labels)), seed + site, kind)
                    for site, (own, labels) in enumerate(zip(data.rows, data.labels, strict=True))
                ]
                rows.append(
                    {"sites": sites, "each": each, "columns": columns, "seed": seed, "kind": kind, "true": true}
                    | fused(told, seed)
                )
    summary = {
        "fits": len(rows),
        "to within one": sum(abs(row["components"] - row["true"]) <= 1 for row in rows),
        "little lost": sum(row["loss"] < SMALL_LOSS for row in rows),
        "others of twelve in two columns": sum(
            abs(row["components"] - row["true"]) > 1 and row["sites"] * row["each"] == 12 and row["columns"] == 2
            for row in rows
        ),
        "most lost": max(row["loss"] for row in rows),
        "little lost by the posterior": sum(row["posterior_loss"] < SMALL_LOSS for row in rows),
        "most lost by the posterior": max(row["posterior_loss"] for row in rows),
    }
    return {"summary": summary, "rows": rows}


def drawn(mode: str, count: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Return rows of one mode."""
    if mode == "Student-t":
        return rng.standard_t(5, size=(count, columns))
    if mode == "uniform":
        return rng.uniform(-1.0, 1.0, size=(count, columns))
    rows = rng.standard_normal((count, columns))
    if mode != "normal":
        rows[:, 0] += 0.5 * rng.integers(2, size=count)
    return rows


def of_one_mode(number: int, n_rows: int | None = None) -> dict[str, Any]:
    """Return the number of components of so many ensembles, and how many have one."""
    rows = []
    for one in range(number):
        rng = np.random.default_rng([900, one])
        sites, columns = int(rng.integers(2, 9)), int(rng.integers(1, 6))
        count, mode = n_rows or int(rng.integers(60, 301)), MODES[one % len(MODES)]
        told = [
            fitted(drawn(mode, count, columns, rng), int(rng.integers(1, 4)), one, "variational") for _ in range(sites)
        ]
        own = {"mode": mode, "sites": sites, "columns": columns, "rows": count, "local": sum(map(len_of, told))}
        rows.append(own | fused(told, one))
    found = {mode: [row["components"] for row in rows if row["mode"] == mode] for mode in MODES}
    summary = {"ensembles": number, "one component": sum(row["components"] == 1 for row in rows)}
    by_mode = {
        mode: {"ensembles": len(numbers), "one component": numbers.count(1), "most": max(numbers)}
        for mode, numbers in found.items()
    }
    return {"summary": summary | {"modes": by_mode}, "rows": rows}


def len_of(site: Any) -> int:
    """Return a site's number of components."""
    return int(site.n_components)


def of_two_modes() -> dict[str, Any]:
    """Return by distance how many ensembles of five sites of 300 rows keep two components."""
    rows = []
    for distance in DISTANCES:
        for seed in SEEDS:
            rng = np.random.default_rng([seed, 2])
            told = []
            for site in range(5):
                data = rng.standard_normal((300, 2))
                data[:, 0] += distance * rng.integers(2, size=300)
                told.append(fitted(data, 2, seed + site, "variational"))
            rows.append({"distance": distance, "seed": seed} | fused(told, seed))
    kept = {f"{d:g}": sum(row["components"] == 2 for row in rows if row["distance"] == d) for d in DISTANCES}
    return {"summary": {"ensembles of each": len(SEEDS), "two components": kept}, "rows": rows}


def of_hundreds() -> dict[str, Any]:
    """Return the number of components of hundreds of sites; what is in the file is not run again."""
    known = json.loads(RESULTS.read_text())["groups"] if RESULTS.exists() else {}
    rows: dict[str, Any] = known.get("hundreds", {})
    for sites, columns in HUNDREDS:
        if (name := f"{sites} sites, {columns} columns") in rows:
            continue
        setting = Setting(
            f"outside-hundreds-{sites}-{columns}", "outside", "disjoint", 900, sites, 10 * sites, (10, 10), columns,
            10.0, 0.0, False, "equal", "disjoint", "exact", "agreed",
        )  # fmt: skip
        cell = load(setting)
        fusion = cs.fuse(cell.posteriors, min_count=0)
        scores = mixture_scores(bench(cell), plug_in(fusion.posterior))
        rows[name] = {"true": cell.n_true, **scores}
    return rows


GROUPS: dict[str, Callable[[], dict[str, Any]]] = {
    "one mode": lambda: of_one_mode(60),
    "two modes": of_two_modes,
    "one mode, 2,000 rows": lambda: of_one_mode(20, 2000),
    "hundreds": of_hundreds,
    "disjoint": lambda: of_shapes("disjoint"),
    "sharing": lambda: of_shapes("random"),
}


def main() -> None:
    """Run the groups that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    options = parser.parse_args()
    groups = json.loads(RESULTS.read_text())["groups"] if RESULTS.exists() else {}
    settings = {"shapes": SHAPES, "seeds": list(SEEDS), "separation": APART, "small loss": SMALL_LOSS, "local": LOCAL}
    with threadpool_limits(1):
        for name in options.only:
            groups[name] = GROUPS[name]()
            RESULTS.write_text(as_text({"settings": settings, "versions": versions(), "groups": groups}))
            shown = groups[name].get("summary", groups[name])
            sys.stdout.write(f"{name}: {json.dumps(shown)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
