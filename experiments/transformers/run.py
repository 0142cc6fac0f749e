"""Fusions of Hugging Face networks: the default with descriptions, with inputs, with neither, and beside it methods.

``python experiments/transformers/run.py --half report`` trains and fuses what is missing, each setting into a file of
its own in ``CONSILIENCE_CACHE``; it may be stopped and started again, ``--only vit`` runs settings by their names, and
``--part 0 2`` every other one. ``--write`` writes all that is there to ``report.json`` (or ``tune.json``) beside this
file, over the same settings.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1]))
from networks import CACHE, HALVES, Pair, Setting, score, settings, trained
from record import versions

import consilience as cs
from consilience.api.at_sites import choose_at_sites
from consilience.api.kinds import NETWORKS

HERE = Path(__file__).parent
N_HELD = 400
"""Test inputs that each site holds out for a choice at the sites; the rest scores."""
N_GIVEN = 1000
"""Unlabelled inputs that the caller gives in the rows "with inputs"."""
NAMED = {
    "average": ("average", {}),
    "rebasin": ("rebasin", {}),
    "consensus": ("consensus", {}),
}


class Logits(nn.Module):
    """A network wrapped to return its logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.network(inputs).logits
        return logits


def described(pair: Pair, networks: list[nn.Module]) -> list[cs.Network]:
    """Return the networks with what their sites say of them."""
    return [cs.describe(net, data) for net, data in zip(networks, pair.sites, strict=True)]


def outcome(fusion: Any, pair: Pair, seconds: float) -> dict[str, Any]:
    """Return what a fusion gave."""
    verdict = fusion.verdict
    return {
        "score": score(fusion.model, pair.test),
        "seconds": seconds,
        "chosen": fusion.details.get("chosen"),
        "verdict": {"code": verdict.code, "harmless": verdict.harmless, "text": verdict.text},
        "criterion": dict(verdict.candidates),
        "candidates": {name: score(net, pair.test) for name, net in fusion.candidates.items()},
    }


def run(setting: Setting) -> dict[str, Any]:
    """Return the scores of all fusions of a setting."""
    pair = trained(setting)
    example, record = pair.unlabelled[:2], {"kind": setting.kind, "seed": setting.seed, "common": setting.is_common}
    record["sites"] = [score(net, pair.test) for net in pair.networks]
    record["training seconds"] = pair.seconds
    record["parameters"] = sum(p.numel() for p in pair.networks[0].parameters())
    start = time.process_time()
    sites = described(pair, pair.networks)
    record["describe seconds"] = time.process_time() - start
    for name, models, options in (
        ("described", sites, {}),
        ("with inputs", pair.networks, {"inputs": pair.unlabelled[:N_GIVEN]}),
        ("nothing said", pair.networks, {"example": example}),
    ):
        start = time.process_time()
        fusion = cs.fuse(models, **options)
        record[name] = outcome(fusion, pair, time.process_time() - start)
    for name, (method, options) in NAMED.items():
        start = time.process_time()
        fusion = cs.fuse(pair.networks, method, example=example, **options)
        record[name] = {"score": score(fusion.model, pair.test), "seconds": time.process_time() - start}
    if setting.kind.startswith("vit") and not setting.is_common:
        wrapped = cs.fuse(described(pair, [Logits(net) for net in pair.networks]), steps=0)
        bare = cs.fuse(sites, steps=0)
        pairs = zip(wrapped.model.state_dict().values(), bare.model.state_dict().values(), strict=True)
        record["wrapped is the same"] = all(torch.equal(a, b) for a, b in pairs)
        record["wrapped criterion is the same"] = wrapped.verdict.candidates == bare.verdict.candidates
    return record


def choice_at_sites(setting: Setting) -> dict[str, Any]:
    """Return the scores of the described fusion and of the choice on rows that the sites held out."""
    pair = trained(setting)
    sites = dict(zip("ab", described(pair, pair.networks), strict=True))
    texts = isinstance(pair.test, Tensor)
    held = {
        site: pair.test[rows] if texts else (pair.test[0][rows], pair.test[1][rows])
        for site, rows in (("a", slice(0, N_HELD)), ("b", slice(N_HELD, 2 * N_HELD)))
    }
    rest = pair.test[2 * N_HELD :] if texts else tuple(part[2 * N_HELD :] for part in pair.test)
    fusion = cs.fuse(sites)
    shared = choose_at_sites(NETWORKS, fusion, held)
    apart = cs.federated.exchange("choose", fusion, held)
    record: dict[str, Any] = {"sites": [score(net, rest) for net in pair.networks]}
    for name, one in (("described", fusion), ("shared", shared), ("not shared", apart)):
        record[name] = {
            "score": score(one.model, rest),
            "chosen": one.details["chosen"],
            "harmless": one.verdict.harmless,
        }
    return record


def write(file: Path, paths: Mapping[Setting, Path]) -> None:
    """Write the settings that ran, each over what is recorded of it, with versions of their own."""
    rows = {}
    if file.exists():
        rows = {(row["kind"], row["seed"], row["common"]): row for row in json.loads(file.read_text())["settings"]}
    for setting, path in paths.items():
        key = (setting.kind, setting.seed, setting.is_common)
        if path.exists():
            rows[key] = rows.get(key, {}) | json.loads(path.read_text())
        if (judged := path.with_suffix(".held.json")).exists():
            rows[key]["held out"] = json.loads(judged.read_text())
    packages = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    document = {"versions": versions() | packages, "given inputs": N_GIVEN, "settings": list(rows.values())}
    file.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Run what is missing, or write what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=HALVES, required=True)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("K", "N"), help="every N-th from K on")
    parser.add_argument("--only", default="", help="settings whose names contain this")
    parser.add_argument("--held-out", action="store_true", help="run the choice at the sites alone")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    paths = {setting: CACHE / "results" / f"{setting.name}.json" for setting in settings(arguments.half)}
    if arguments.write:
        write(HERE / f"{arguments.half}.json", paths)
        return
    (first, every), source = arguments.part, versions()["library_source"]
    for setting in [setting for setting in paths if arguments.only in setting.name][first::every]:
        path = paths[setting].with_suffix(".held.json") if arguments.held_out else paths[setting]
        if path.exists():
            continue
        if arguments.held_out:
            record = choice_at_sites(setting) | {"library_source": source}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record))
            sys.stdout.write(f"{setting.name} {record}\n")
            sys.stdout.flush()
            continue
        record = run(setting) | {"library_source": source}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
        shown = {name: round(record[name]["score"], 3) for name in ("described", "with inputs", "nothing said", *NAMED)}
        sys.stdout.write(f"{setting.name} {[round(one, 3) for one in record['sites']]} {shown}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
