"""How texts are drawn with their classes, on the cells of texts: which description of a class judges networks best.

``python experiments/network_battery/texts.py --half tune`` runs the default with four kinds of described texts and
prints a table; ``--half report --variants none tokens`` the other half. Single results are kept in the file
``texts.json`` beside this one, so that a run may be stopped and started again.

    none              counts of tokens of all texts alone: candidates are compared with the ensemble
    tokens            counts of tokens by class, drawn independently: what ``describe`` gives
    pairs             pairs by class too, drawn as a Markov chain
    tokens and pairs  pairs of all texts, tilted to a class's tokens, where those of the class are too rare to be said
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from network_battery import cells, training
from network_battery.default import describe_sites, result_of
from network_battery.training import Cell
from record import as_text, versions

import consilience as cs

RESULTS = Path(__file__).with_name("texts.json")


def without_classes(described: Any, pairs: dict[int, np.ndarray]) -> Any:
    """Return a described network without counts of tokens by class."""
    return replace(described, description=replace(described.description, class_tokens={}))


def with_pairs(described: Any, pairs: dict[int, np.ndarray]) -> Any:
    """Return a described network whose classes have pairs (k, 3) too."""
    said = described.description
    tokens = {label: replace(of_class, bigrams=pairs[label]) for label, of_class in said.class_tokens.items()}
    return replace(described, description=replace(said, class_tokens=tokens))


def with_tilted_pairs(described: Any, pairs: dict[int, np.ndarray]) -> Any:
    """Return a described network whose classes have pairs of all texts too, where they do not say their own.

    Of n_ab pairs of all texts, with u and u_c the tokens of all and of class c, the class has n_ab u_cb / u_b, scaled
    so that as large a part of the occurrences of a is followed by such a pair as in all texts.
    """
    said = described.description
    first, second, occurrences = np.asarray(said.tokens.bigrams).T
    of_all = np.bincount(first, occurrences, minlength=len(said.tokens.unigrams))
    tokens = {}
    for label, of_class in said.class_tokens.items():
        share = of_class.unigrams / np.maximum(said.tokens.unigrams, 1)
        tilted = occurrences * share[second]
        sums = np.bincount(first, tilted, minlength=len(of_all))
        scale = np.divide(of_all * share, sums, out=np.zeros_like(sums), where=sums > 0)
        table = {(a, b): n for a, b, n in zip(first, second, tilted * scale[first], strict=True) if n > 0}
        table |= {(a, b): float(n) for a, b, n in pairs[label]}
        tokens[label] = replace(of_class, bigrams=np.array([(*pair, n) for pair, n in table.items()]).reshape(-1, 3))
    return replace(described, description=replace(said, class_tokens=tokens))


VARIANTS: dict[str, Callable[[Any, dict[int, np.ndarray]], Any]] = {
    "none": without_classes,
    "tokens": lambda described, pairs: described,
    "pairs": with_pairs,
    "tokens and pairs": with_tilted_pairs,
}


def pairs_by_class(cell: Cell, site: int, described: Any) -> dict[int, np.ndarray]:
    """Return the pairs (k, 3) that a site would say of each class: those in a description of its texts alone."""
    inputs, labels = cell.data.sites[site]
    pairs = {}
    for label in described.description.class_tokens:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few texts moments are left out
            of_class = cs.describe(cell.models[site], inputs[labels == label], example=cell.example).description
        pairs[label] = of_class.tokens.bigrams
    return pairs


def row_of(cell: Cell, described: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return what the default takes of described networks, its verdict, and the gain of the best fused candidate."""
    result = result_of(cell, described, "with", rng=seed)
    accuracies = {name: one["accuracy"] for name, one in result["candidates"].items()}
    losses = {name: one["score"] for name, one in result["candidates"].items()}
    sites = [name for name in losses if name.startswith("site:")]
    best = min((name for name in losses if name not in sites), key=losses.__getitem__)
    best_site = max(accuracies[name] for name in sites)
    drawn = min(losses[name] for name in sites)
    return {
        "accuracy": result["accuracy"],
        "best site": best_site,
        "over best site": result["over_best_site"],
        "best candidate": max(accuracies.values()),
        "ensemble": result["ensemble"]["accuracy"],
        "code": result["verdict"]["code"],
        "harmless": result["verdict"]["harmless"],
        "drawn gain": 1 - losses[best] / drawn if drawn else 0.0,
        "real gain": 1 - (1 - accuracies[best]) / (1 - best_site),
        "candidates": {name: {"score": losses[name], "accuracy": accuracies[name]} for name in losses},
    }


def table(results: dict[str, Any], half: str) -> str:
    """Return a table of results of a half, and their means."""
    lines = [f"{'cell':30} {'variant':17} seed  taken  site  best  harmless  gain drawn real"]
    rows: dict[str, list[dict[str, Any]]] = {}
    for key, row in results.items():
        cell, variant, seed = key.split(" | ")
        if cell.startswith(half):
            rows.setdefault(variant, []).append(row)
            numbers = [100 * row[name] for name in ("accuracy", "best site", "best candidate")]
            gains = [row["drawn gain"], row["real gain"]]
            lines.append(
                f"{cell:30} {variant:17} {seed:>4} {numbers[0]:6.1f}{numbers[1]:6.1f}{numbers[2]:6.1f}"
                f"{row['harmless']!s:>10} {gains[0]:10.2f}{gains[1]:6.2f}"
            )
    for variant, of_variant in rows.items():
        lines.append(f"{variant}: mean {100 * np.mean([row['accuracy'] for row in of_variant]):.1f}, {len(of_variant)}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--half", choices=cells.HALVES, required=True)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    source = versions()["library_source"]
    with threadpool_limits(1):
        for setting in (one for one in cells.plan(options.half) if one.scaling == "tokens"):
            missing = [
                (variant, seed)
                for seed in options.seeds
                for variant in options.variants
                if f"{setting.name} | {variant} | {seed}" not in results
            ]
            if not missing:
                continue
            cell = training.load_cell(setting)
            described = describe_sites(cell)[0]
            pairs = [pairs_by_class(cell, site, one) for site, one in enumerate(described.values())]
            for variant, seed in missing:
                models = {
                    name: VARIANTS[variant](one, of_site)
                    for (name, one), of_site in zip(described.items(), pairs, strict=True)
                }
                results[f"{setting.name} | {variant} | {seed}"] = row_of(cell, models, seed) | {"source": source}
                RESULTS.write_text(as_text(dict(sorted(results.items()))))
    sys.stdout.write(table(results, options.half))


if __name__ == "__main__":
    main()
