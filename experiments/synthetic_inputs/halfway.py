"""Distillation from a site's own network, and a quarter, half and all of the way: ``halfway.py`` in this folder.

Sites are alike. The site's network that agrees most with the ensemble, or errs least on inputs drawn by class, is
distilled from the ensemble as the default does it, and averaged with itself before. Rows: what it gains on test images
and on the inputs that the default compares candidates by, at every share of the way. Networks are those of
``convolutions.py`` (pairs) and ``many.py`` (four and eight); inputs are matched images (nothing described), draws, or
images that the caller gives. ``tune`` rows shaped the rule; ``report`` rows did not.

Needs ``CONSILIENCE_DATA``; trained networks are kept in ``CONSILIENCE_CACHE``. Writes ``halfway.json`` beside this file
after every row, so that the run may be stopped and started again; ``--rows`` runs those whose names contain a text.
``tables.py`` makes the table of docs/evidence/synthetic_inputs.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from record import as_text, versions
from synthetic_inputs import convolutions, many
from torch import nn

import consilience as cs
from consilience.networks.choice import make_candidates
from consilience.networks.choice.make_candidates import NetworkComparison
from consilience.networks.distillation import part_way

RESULTS = Path(__file__).with_suffix(".json")
SHARES = (0.25, 0.5, 1.0)
PAIRS = {
    "tune": [
        (0, "ResNet-8 BN, fashion-mnist 14x14", "default"),
        (0, "VGG11 BN, fashion-mnist 28x28", "default"),
        (0, "MobileNet BN, fashion-mnist 14x14", "default"),
        (0, "ResNet-8 BN, cifar10 16x16", "default"),
        (0, "VGG11, fashion-mnist 28x28", "default, described"),
        (0, "ResNet-8 GN, fashion-mnist 14x14", "default, described"),
        (0, "ResNet-8 BN, fashion-mnist 14x14", "default, 2,000 images"),
        (0, "VGG11, fashion-mnist 28x28", "default, 2,000 images"),
    ],
    "report": [
        (1, "ResNet-14 BN, fashion-mnist 14x14", "default"),
        (1, "ResNet-8 BN, cifar10 16x16", "default"),
        (1, "VGG11, fashion-mnist 28x28", "default, described"),
        (1, "ResNet-14 BN, fashion-mnist 14x14", "default, 2,000 images"),
        (1, "MobileNet BN, fashion-mnist 14x14", "default, 2,000 images"),
    ],
}
MANY = {
    "tune": [
        ("ResNet-8 BN, 4 networks", "nothing described"),
        ("ResNet-8 BN, 4 networks", "described"),
        ("ResNet-8 BN, 4 networks", "2,000 images"),
        ("ResNet-8 BN, 4 networks", "200 images"),
        ("LeNet, 4 networks", "described"),
        ("LeNet, 4 networks", "2,000 images"),
        ("LeNet, 4 networks", "200 images"),
    ],
    "report": [
        ("ResNet-8 BN, 8 networks", "nothing described"),
        ("ResNet-8 BN, 4 networks from the 5th on", "nothing described"),
        ("ResNet-8 BN, 8 networks", "2,000 images"),
        ("LeNet, 16 networks", "described"),
    ],
}
FIRST_UNSEEN = 28_000
"""The first image that none of eight sites of 3,500 has."""


class DoneError(Exception):
    """Ends a fusion whose distillation was measured."""


def measured(fuse: Callable[[], object], accuracy: Callable[[nn.Module], float]) -> dict[str, Any]:
    """Return what a distillation from a site's own network gains in a fusion."""
    row: dict[str, Any] = {}

    def choose(comparison: NetworkComparison) -> None:
        sites = comparison.site_candidates()
        start = comparison.starts(sites)[-1]
        with patch.object(make_candidates, "part_way", lambda _, after: after):
            candidate, distilled = comparison.distil(start, np.random.default_rng(0), steps=comparison.options.steps)
        before = start.module
        after = before if candidate is None else candidate.module
        criterion = comparison._criterion(comparison.inputs.held, comparison.on_held)
        held = comparison.inputs.held
        of_site = criterion.losses(comparison._outputs(before, held))
        row.update(
            site=accuracy(before),
            best_site=max(accuracy(module) for module in comparison.workshop.modules),
            mean_site=float(np.mean([accuracy(module) for module in comparison.workshop.modules])),
            loss=float(of_site.mean()),
            best_step=distilled.best_step,
        )
        for share in SHARES:
            module = part_way(before, after, share)
            gain = of_site - criterion.losses(comparison._outputs(module, held))
            error = gain.std(ddof=1) / len(gain) ** 0.5
            row[f"{share:g} of the way"] = {
                "accuracy": accuracy(module),
                "gain": float(gain.mean() / of_site.mean()),
                "standard errors": float(gain.mean() / error) if error else 0.0,
            }
        raise DoneError

    with patch.object(NetworkComparison, "choose", choose), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fuse()
        except DoneError:
            return row
    raise RuntimeError("the fusion compared nothing")


def of_pair(number: int, group: str, row: str) -> tuple[str, Callable[[], dict[str, Any]]]:
    """Return the name of a row of a pair of networks, and what computes it."""
    case = next(case for case in convolutions.CASES if case.group == group and case.seed == number)
    how = row.removeprefix("default, ").replace("default", "nothing described")

    def compute() -> dict[str, Any]:
        ensemble = convolutions.sites_row(case)["eval"]
        found = measured(convolutions.fusions_of(case)[row], lambda net: convolutions.accuracy(net, case))
        return {"ensemble": ensemble} | found

    return f"{case}; {how}", compute


def of_many(name: str, how: str) -> tuple[str, Callable[[], dict[str, Any]]]:
    """Return the name of a row of several networks, and what computes it."""
    case = next(case for case in many.CASES if str(case) == name)

    def compute() -> dict[str, Any]:
        nets: dict[str, Any] = {f"site {site}": many.trained(case.architecture, site) for site in case.sites}
        options: dict[str, Any] = {"example": many.site_data(case.architecture, 0)[0][:2]}
        ensemble = many.accuracy(cs.fuse(list(nets.values()), "ensemble").model)
        if how == "described":
            data = {
                site: many.site_data(case.architecture, number) for site, number in zip(nets, case.sites, strict=True)
            }
            nets = {site: cs.describe(net, data[site], classes=10) for site, net in nets.items()}
        elif how.endswith("images"):
            count = int(how.partition(" ")[0].replace(",", ""))
            options["inputs"] = convolutions.load("fashion_mnist", 14)["x_train"][FIRST_UNSEEN:][:count]
        return {"ensemble": ensemble} | measured(lambda: cs.fuse(nets, **options), many.accuracy)

    return f"{name}; {how}", compute


def main() -> None:
    """Compute what is missing, and write ``halfway.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="rows whose names contain this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    for half in ("tune", "report"):
        makers = [of_many(*of) for of in MANY[half]] + [of_pair(*of) for of in PAIRS[half]]
        for name, compute in makers:
            if arguments.rows not in name or any(row["name"] == name for row in rows):
                continue
            rows.append({"half": half, "name": name} | compute())
            sys.stdout.write(f"{rows[-1]}\n")
            sys.stdout.flush()
            RESULTS.write_text(as_text({"rows": rows, "versions": versions()}))


if __name__ == "__main__":
    main()
