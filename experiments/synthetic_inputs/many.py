"""Fusing 4, 8 and 16 networks into one width and into wider ones: ``experiments/synthetic_inputs/many.py``.

Networks of one architecture are trained on 14 x 14 images of Fashion-MNIST, each on its own ones, of all classes alike,
from a start of its own. Those with batch normalisation are fused from nothing but the networks; the others describe
themselves. Rows: the sites' own networks and their ensemble; the default at the networks' width, at one and a half and
at twice of it (``target_widths``), with its candidates, their scores and the width that the verdict names; and
distillation. Accuracies on 5,000 test images, in evaluation mode. Rows that were computed before candidates of joined
units went (``without joins``, ``refit_joined``, ``refit_partial``) are kept in the file.

Needs ``fashion_mnist.npz`` in the folder ``CONSILIENCE_DATA``; trained networks are kept in ``CONSILIENCE_CACHE`` as
those of ``convolutions.py``. Writes ``many.json`` beside this file after every row, so that the run may be stopped and
started again. ``--train`` only trains, ``--only`` takes cases, ``--rows`` and ``--exact`` rows, ``--again`` computes
anew what is there. ``tables.py`` makes the table of docs/evidence/synthetic_inputs.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from network_battery.architectures import lenet
from record import versions
from synthetic_inputs.compare import ResNet8
from synthetic_inputs.convolutions import BATCH, CACHE, load
from torch import Tensor, nn
from torch.nn import functional

import consilience as cs

RESULTS = Path(__file__).with_suffix(".json")
EPOCHS, RATE = 8, 2e-3
SITE_IMAGES = {"ResNet-8 BN": 3_500, "LeNet": 1_800}
"""So that 8 and 16 sites have images of their own, of the 30,000 that ``convolutions.load`` keeps."""
COUNTS = {"ResNet-8 BN": (2, 4, 8), "LeNet": (4, 8, 16)}
ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "ResNet-8 BN": lambda: ResNet8(1),
    "LeNet": lambda: lenet((1, 14, 14), 10, (8, 16, 64)),
}
FACTORS = (1.5, 2.0)


@dataclass(frozen=True)
class Case:
    """So many networks of an architecture, from a number on."""

    architecture: str
    count: int
    first: int = 0

    @property
    def is_described(self) -> bool:
        """Whether the sites describe themselves: those without batch normalisation."""
        return not self.architecture.endswith("BN")

    @property
    def sites(self) -> range:
        """Numbers of the sites."""
        return range(self.first, self.first + self.count)

    def __str__(self) -> str:
        others = f" from the {self.first + 1}th on" if self.first else ""
        return f"{self.architecture}, {self.count} networks{others}"


CASES = [Case(architecture, count) for architecture, counts in COUNTS.items() for count in counts]
CASES += [Case("ResNet-8 BN", 4, 4)]


def site_data(architecture: str, site: int) -> tuple[Tensor, Tensor]:
    """Return the training images and labels of a site."""
    arrays, n = load("fashion_mnist", 14), SITE_IMAGES[architecture]
    rows = slice(site * n, (site + 1) * n)
    return arrays["x_train"][rows], arrays["y_train"][rows]


def trained(architecture: str, site: int) -> nn.Module:
    """Return the network of a site, from the cache where it is there."""
    x, y = site_data(architecture, site)
    path = CACHE / f"many-{architecture}-{site}-{SITE_IMAGES[architecture]}-{EPOCHS}.pt".replace(" ", "")
    torch.manual_seed(site)
    net = ARCHITECTURES[architecture]()
    if path.exists():
        net.load_state_dict(torch.load(path, weights_only=True))
        return net.eval()
    optimiser = torch.optim.Adam(net.parameters(), lr=RATE)
    n_steps = EPOCHS * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / n_steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
            loss = functional.cross_entropy(net(x[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    CACHE.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), path)
    return net.eval()


def accuracy(net: nn.Module) -> float:
    """Return the percentage of right answers."""
    arrays = load("fashion_mnist", 14)
    with torch.no_grad():
        answers = torch.cat([net.eval()(batch).argmax(dim=1) for batch in arrays["x_test"].split(256)])
    return round(100 * float((answers == arrays["y_test"]).double().mean()), 2)


def widened(nets: Mapping[str, nn.Module], factor: float) -> dict[str, int]:
    """Return the widths of a network so many times as wide."""
    groups = cs.symmetry(next(iter(nets.values())), example=site_data("LeNet", 0)[0][:2]).groups
    return {name: round(factor * size) for name, size in groups.items()}


def rows_of(case: Case) -> Mapping[str, Callable[[], dict[str, Any]]]:
    """Return what computes every row of a case, by its name."""
    nets = {f"site {site}": trained(case.architecture, site) for site in case.sites}
    example = site_data(case.architecture, 0)[0][:2]

    @cache
    def models() -> dict[str, Any]:
        if not case.is_described:
            return dict(nets)
        data = {name: site_data(case.architecture, site) for name, site in zip(nets, case.sites, strict=True)}
        return {name: cs.describe(net, data[name], classes=10) for name, net in nets.items()}

    def sites() -> dict[str, Any]:
        return {"sites": [accuracy(net) for net in nets.values()]}

    def fused(method: str | None, factor: float | None) -> dict[str, Any]:
        options: dict[str, Any] = {} if factor is None else {"target_widths": widened(nets, factor)}
        started = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the verdict is recorded
            fusion = cs.fuse(models(), method, example=example, **options)
        row = {"eval": accuracy(fusion.model), "seconds": round(time.process_time() - started, 1)}
        if not fusion.candidates:
            return row
        return row | {
            "chosen": fusion.details.get("chosen"),
            "candidates": {name: accuracy(net) for name, net in fusion.candidates.items()},
            "scores": dict(fusion.verdict.candidates),
            "loss": fusion.verdict.loss,
            "remedy": fusion.verdict.remedy,
        }

    def ensemble() -> dict[str, Any]:
        return {"eval": accuracy(cs.fuse(list(nets.values()), "ensemble").model)}

    return {
        "sites": sites,
        "ensemble": ensemble,
        "default": partial(fused, None, None),
        **{f"default, {factor:g} times as wide": partial(fused, None, factor) for factor in FACTORS},
        "distill": partial(fused, "distill", None),
    }


def main() -> None:
    """Compute what is missing, and write ``many.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="train networks, compute nothing")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--rows", default="", help="rows whose names contain this")
    parser.add_argument("--exact", default="", help="the one row of this name")
    parser.add_argument("--again", action="store_true", help="compute rows that are there anew")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    results["settings"] = {
        "epochs": EPOCHS,
        "rate": RATE,
        "batch": BATCH,
        "site_images": SITE_IMAGES,
        "seeds": "0, ...",
    }
    results["versions"] = versions() | {"torch": torch.__version__}
    for case in CASES:
        if arguments.only not in str(case):
            continue
        if arguments.train:
            for site in case.sites:
                trained(case.architecture, site)
            sys.stdout.write(f"{case}: trained\n")
            sys.stdout.flush()
            continue
        for name, make in rows_of(case).items():
            key = {"case": str(case), "row": name}
            is_there = any(key.items() <= row.items() for row in results["rows"])
            is_asked = name == arguments.exact if arguments.exact else arguments.rows in name
            if not is_asked or (is_there and not arguments.again):
                continue
            row = key | make()
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()
            results["rows"] = [old for old in results["rows"] if not key.items() <= old.items()] + [row]
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
