"""Merging three ConvNets of different starts: ``python experiments/fisher/starts.py``.

Setting ``starts`` of ``convnet_recipes.py``: parties with skewed classes that share neither images nor initialisation,
which the published experiments leave out. Every merge is done with units as they are and with units aligned first. The
variant of a method is chosen by the mean validation loss of its aligned merges, two seeds. Writes ``starts.json``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

import torch
from comparing import FISHER, choices, key_of, paired, sources, write
from convnet_recipes import DATASETS
from convnets import CHOOSING, SOURCE, Variant, base, base_rows, prepared, scored, shrunk, variants
from record import remembered
from train_convnets import CACHE, SEEDS, trained_seeds

SETTING = "starts"
METHODS = ("isotropic", FISHER, "Fisher diagonal, normalised", "low rank", "SSF")
HOW = {"as they are": False, "aligned": True}
CHOSEN = {
    "variants": "of low rank and SSF: by the mean validation loss of aligned merges, seeds 0 and 1; unaligned merges"
    " take the same",
    "information": "as in the settings of one start",
    "aligned": "by weights, before anything is averaged: the library's matching, its default",
    "differences": "aligned merges against the aligned Fisher diagonal, others against the other one",
}


def offered() -> dict[str, dict[str, Variant]]:
    """Return methods and their variants, with more damping and shrinkage than suits networks of one start."""
    known = variants("parties")
    further = shrunk(((0.0, 100.0, "kept"), (0.9, 10.0, "kept"), (0.9, 100.0, "kept")), scaled=False)
    return {name: known[name] for name in METHODS} | {"low rank": known["low rank"] | further}


def scores_of(dataset: str, seed: int, runs: Mapping[str, tuple[Variant, bool]], again: set[str]) -> dict[str, Any]:
    """Return scores by key, remembered ones too."""

    def work(key: str) -> dict[str, Any]:
        if key == "base":
            return base(SETTING, dataset, seed)
        one, aligned = runs[key]
        example = {"example": prepared(SETTING, dataset, seed)[2].test.x[:2]} if aligned else {}
        found = scored(SETTING, dataset, seed, one, aligned=aligned, **example)
        sys.stdout.write(f"{SETTING} {dataset} {seed} {key}: {found['test']['loss']:.4f}\n")
        sys.stdout.flush()
        return found

    place = CACHE / "merged" / f"{SETTING}-{dataset}-{seed}.json"
    return remembered(place, ["base", *runs], again, SOURCE, work)


def merged(dataset: str, seeds: list[int], again: set[str]) -> tuple[dict[int, Any], dict[str, Any]]:
    """Return scores by seed, and what was chosen of every method."""
    known, done = offered(), {}
    for seed in seeds:
        every = {key_of(f"{name}, aligned", one): (own[one], True) for name, own in known.items() for one in own}
        if seed in CHOOSING:
            done[seed] = scores_of(dataset, seed, every, again)
    names = {f"{name}, aligned": list(own) for name, own in known.items()}
    picked = choices(names, done, [seed for seed in CHOOSING if seed in done])
    for seed in seeds:
        runs = {}
        for name, own in known.items():
            variant = picked[f"{name}, aligned"]["chosen"]
            runs |= {key_of(f"{name}, {how}", variant): (own[variant], aligned) for how, aligned in HOW.items()}
        done[seed] = scores_of(dataset, seed, runs, again)
    return done, picked


def summary(by_seed: Mapping[int, Any], picked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written down of one set of images."""
    found: dict[str, Any] = {"seeds": list(by_seed), "sources": sources(by_seed), "base": base_rows(by_seed)}
    found["methods"] = {}
    for how in HOW:
        keys = {name: key_of(f"{name}, {how}", picked[f"{name}, aligned"]["chosen"]) for name in METHODS}
        tests = {name: [own[key]["scores"]["test"] for own in by_seed.values()] for name, key in keys.items()}
        for name, own in tests.items():
            row: dict[str, Any] = dict(picked[f"{name}, aligned"])
            for score in ("loss", "accuracy"):
                row[score] = [one[score] for one in own]
                if name != FISHER:
                    row[f"{score} difference"] = paired(row[score], [one[score] for one in tests[FISHER]])
                if HOW[how]:
                    before = found["methods"][f"{name}, as they are"][score]
                    row[f"{score} by alignment"] = paired(row[score], before)
            found["methods"][f"{name}, {how}"] = row
    return found


def main() -> None:
    """Merge what is not merged yet, and write ``starts.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", nargs="*", default=[], metavar="KEY")
    parser.add_argument("--most", type=int, default=SEEDS, help="seeds, from 0")
    told = parser.parse_args()
    torch.set_num_threads(1)
    parts = {}
    for dataset in DATASETS:
        seeds = trained_seeds(SETTING, dataset, range(told.most))
        parts[dataset] = summary(*merged(dataset, seeds, set(told.again)))
        write("starts", {"settings": CHOSEN, "parts": parts})


if __name__ == "__main__":
    main()
