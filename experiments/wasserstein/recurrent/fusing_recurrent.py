"""Fuse recurrent networks: ``python experiments/wasserstein/recurrent/fusing_recurrent.py [KIND ...]``.

The networks are those of kinds ``mnist_rnn``, ``ag_news_lstm``, ``sst2_gru`` and so on that ``training.py`` trained:
four data sets, RNN (tanh), LSTM and GRU cells, two networks of a seed. Methods are those of table 2 of the paper on WB
fusion, variants of its GWB fusion, and what the library recommends. Every kind is written to ``recurrent.json`` beside
this file; what is scored already is kept in the cache folder, so that the run may be stopped and started again.
``--again METHOD ...`` scores these methods anew, ``--only METHOD ...`` none but these.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fusing import Prepared, fused, record, scored, scores_file, trained_seeds
from recipes import RECIPES
from recurrent.cells import KINDS
from training import load_trained

import consilience as cs
import consilience.networks.landscape

sys.path.append(str(Path(__file__).resolve().parents[2]))
from record import as_text, versions

HERE = Path(__file__).parent
SEEDS, UNLABELED = 5, 1000
EQUATION_43 = {"sent": False, "signs": False, "mode": "paper", "epsilon": 0.005, "starts": ("uniform",)}
METHODS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "average": ("average", {}),
    "OT": ("ot", {}),
    "FedMA": ("fedma", {}),
    "WB": ("wb", {}),
    "GWB": ("gwb", {}),
    "GWB without signs": ("gwb", {"signs": False}),
    "GWB without what is sent": ("gwb", {"sent": False}),
    "GWB, mirror": ("gwb", {"mode": "mirror"}),
    "GWB, equation (43)": ("gwb", EQUATION_43),
    "Re-Basin": ("rebasin", {}),
    "consensus without refit": ("consensus", {"refit": False}),
    "consensus": ("consensus", {}),
    "ensemble": ("ensemble", {"mean": "logits"}),
}
ON_TRAINING = "consensus, refit on training inputs"
VALIDATED = ("GWB", "consensus without refit", "consensus")
CHOSEN = {
    "published": "table 2 of the paper on Wasserstein-barycenter fusion",
    "data": "AG News: 42,906 of 120,000 training texts; DBpedia: 35,000 of 560,000, and 5,600 of 70,000 for test;"
    " SST-2: tested on its 872 development texts, validation on 2,500 training phrases",
    "training": "GloVe 50-d for both cells (the paper: 100-d for RNN); fewer epochs, batch 64, RNN on AG News and"
    " DBpedia at rate 3e-4",
    "hyper-parameters": "the library's defaults everywhere; of"
    " equation (43), epsilon 0.005 is one of the paper's, and alpha is left at the default",
    "baselines": "average, OT, FedMA and WB do not look at hidden-to-hidden weights, as in the paper",
    "inputs": f"{ON_TRAINING}: {UNLABELED:,} of them, without labels",
    "recommended": f"chosen among {', '.join(VALIDATED)} by accuracy on validation samples",
    "paired": "each seed's fused network against the mean of its own base networks, on test samples, 95 % interval",
}


def prepared(kind: str, seed: int) -> Prepared:
    """Return two networks of one kind and how they are fused."""
    data, models = RECIPES[kind].data(seed, 0), [load_trained(kind, seed, which) for which in range(2)]

    def run(method: str | None, told: dict[str, Any]) -> Callable[[], cs.results.NetworkFusion]:
        return lambda: fused(models, data.train, method, **told)

    runs = {name: run(*one) for name, one in METHODS.items()}
    runs[ON_TRAINING] = run("consensus", {"inputs": data.train.x[:UNLABELED]})
    return models, runs, data


def all_scores(kind: str) -> dict[int, Any]:
    """Return the scores of all seeds of a kind that have some, in this run or earlier."""
    files = {seed: scores_file(kind, seed) for seed in range(SEEDS)}
    return {seed: json.loads(file.read_text())["methods"] for seed, file in files.items() if file.exists()}


def main() -> None:
    """Score what was asked for, as far as it is trained, and write ``recurrent.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []])
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(SEEDS)))
    parser.add_argument("--again", nargs="*", default=[], metavar="METHOD")
    parser.add_argument("--only", nargs="*", default=[], metavar="METHOD")
    told = parser.parse_args()
    torch.set_num_threads(1)
    path, stamp = HERE / "recurrent.json", versions()
    for seed, kind in product(told.seeds, told.kinds or KINDS):  # seeds first, so that every kind has something early
        if not trained_seeds(kind, [seed]):
            continue
        prepare = partial(prepared, kind)
        scored(kind, seed, prepare, set(told.again), stamp["library_source"], VALIDATED, told.only)
        found = record(kind, all_scores(kind))
        if not found["methods"]:  # the base networks alone
            continue
        result = json.loads(path.read_text()) if path.exists() else {"kinds": {}}
        result["kinds"][kind] = {"recipe": RECIPES[kind].as_json(), **found}
        result |= {"settings": CHOSEN, "versions": stamp}
        path.write_text(as_text(result))


if __name__ == "__main__":
    main()
