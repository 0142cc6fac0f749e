"""Described networks with batch normalisation at sites that differ: ``experiments/synthetic_inputs/described.py``.

Networks of one start or of starts of their own are trained at sites that differ in their classes, describe themselves,
and are fused by default: *by the rule*, under which batch normalisation learns its statistics from drawn inputs, alone
where these are like real ones and in further candidates where they are not, and *on images*, under which they are
distilled on images matched to it wherever there are any. A row has by how much more often the sites' networks err on
inputs drawn as they describe them than on their own (the mean excess, which the rule looks at), and the accuracy in per
cent on 5,000 test images: of the sites' networks, of their ensemble by counts, and of what each way chooses, in
``eval()``, in ``train()`` at batches of 128, and in ``eval()`` after the statistics were measured anew on real images
of the sites.

``tune`` cells set the largest excess and the number of steps; ``report`` cells, of other data sets, architectures,
widths, scalings and rows, did not, but for three: those of CIFAR-10 with ResNet-8 of five and two sites showed that an
excess must be looked at, that of MNIST with three sites that candidates must be made both ways where it is large.
Needs the data sets in ``CONSILIENCE_DATA``; trained networks are kept in
``CONSILIENCE_CACHE``. Writes ``described.json`` beside this file after every cell, so that the run may be stopped and
started again; ``--cells`` runs a part by name. ``tables.py`` makes the table of docs/evidence/synthetic_inputs.md.
"""

from __future__ import annotations

import copy
import sys
import time
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from network_battery import training
from network_battery.cells import Setting, plan
from synthetic_inputs import undescribed
from torch import nn

import consilience as cs
from consilience.networks.choice import inputs
from consilience.networks.choice.excess_errors import excess_errors
from consilience.networks.choice.rows import outputs_of
from consilience.networks.repair.channel_statistics import reestimate_batch_norm

RESULTS = Path(__file__).with_suffix(".json")
OTHERS = (
    ("VGG BN", (12, 24), "fashion_mnist", 14, "standard", "common", "0.1", 5, 10_000),
    ("VGG BN", (16, 32), "cifar10", 16, "unit", "own", "0.3", 3, 10_000),
    ("MobileNet BN", (16, 24, 32, 48), "fashion_mnist", 14, "unit", "common", "0.3", 4, 10_000),
    ("MLP BN", (64, 32), "fashion_mnist", 14, "standard", "common", "0.1", 5, 10_000),
    ("MLP BN", (100, 50), "mnist", 14, "unit", "own", "0.3", 3, 10_000),
    ("MLP BN", (48, 32), "sklearn_digits", 8, "unit", "own", "0.3", 2, 1_000),
    ("VGG BN", (10, 20), "mnist", 14, "byte", "common", "0.5", 5, 8_000),
)
"""Cells of other architectures, as in ``network_battery.cells``."""
FIRST_SEED = 4400
REAL_IMAGES = 400
"""Of each site, to measure statistics anew."""


def settings() -> list[Setting]:
    """Return the cells: those of ResNet-8 whose sites differ in their classes, and others."""
    of_battery = [*plan("tune"), *plan("report")]
    resnets = [*undescribed.settings(), *(one for one in of_battery if one.architecture == "ResNet-8 BN")]
    differ = [one for one in resnets if one.skew not in ("IID", "strong and weak")]
    others = [Setting(f"described-{n}", "report", FIRST_SEED + n, *row) for n, row in enumerate(OTHERS)]
    return [*differ, *others]


def results(cell: training.Cell, is_ordered: bool) -> dict[str, Any]:
    """Return the excess, and accuracies by both ways; the images of a site may be ordered, digits before clothes."""
    x, y = cell.data.test

    def accuracy_of(ensemble: Any) -> float:
        return round(100 * float((training.outputs(ensemble, x).argmax(axis=1) == y).mean()), 2)

    def accuracy(net: nn.Module, is_training: bool = False) -> float:
        net = copy.deepcopy(net).train(is_training)
        with torch.no_grad():
            answers = torch.cat([net(batch).argmax(dim=1) for batch in torch.as_tensor(x).split(128)])
        return round(100 * float((answers.numpy() == y).mean()), 2)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cs.errors.WithheldWarning)
        described = [
            cs.describe(model, site, classes=cell.data.n_classes)
            for model, site in zip(cell.models, cell.data.sites, strict=True)
        ]
    excesses = excess_errors(
        [site.description for site in described],
        lambda site, drawn: outputs_of(cell.models[site], drawn),
        cell.models[0],
        np.random.default_rng(0),
    )
    order = np.random.default_rng(0)
    real = torch.cat(
        [
            torch.as_tensor(images)[order.permutation(len(images)) if is_ordered else slice(None)][:REAL_IMAGES]
            for images, _ in cell.data.sites
        ]
    )
    real = real[torch.randperm(len(real), generator=torch.Generator().manual_seed(0))]

    def fused() -> dict[str, Any]:
        started = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the verdict is recorded
            fusion = cs.fuse(described, rng=0)
        return {
            "seconds": round(time.process_time() - started, 1),
            "eval": accuracy(fusion.model),
            "train": accuracy(fusion.model, is_training=True),
            "recalibrated": accuracy(reestimate_batch_norm(fusion.model, real.split(128))),
            "chosen": fusion.details["chosen"],
            "harmless": fusion.verdict.harmless,
            "needs_repair": bool(fusion.needs_repair),
            "ensemble": accuracy_of(fusion.ensemble),
            "candidates": {name: accuracy(net) for name, net in fusion.candidates.items()},
            "scores": dict(fusion.verdict.candidates),
        }

    by_rule = fused()
    with patch.object(inputs, "_what_draws_teach", lambda *_: "nothing"):
        on_images = fused()
    return {
        "excess": {"mean": round(excesses.mean, 3), "sites": [round(excess, 3) for excess in excesses.of_sites]},
        "sites": [accuracy(model) for model in cell.models],
        "rule": by_rule,
        "images": on_images,
    }


def results_of(setting: Setting) -> dict[str, Any]:
    """Return the results of a cell whose networks are trained."""
    return results(training.load_cell(setting), is_ordered=setting.data == "digits_and_clothes")


if __name__ == "__main__":
    undescribed.run(__doc__, RESULTS, settings(), results_of)
