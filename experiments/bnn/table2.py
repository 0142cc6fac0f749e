"""Table 2 and Figure 5 of Claici et al. 2020: one Bayesian network from five sites' on MNIST, and what it is unsure of.

    python experiments/bnn/table2.py SEED...     after ``sites.py``; writes ``table2.json`` with what is there

Settings were chosen on the sites' own validation data: those of the local networks in ``sites.py``, the price of a unit
here, by the likelihood that the fused network gives to the validation data of the sites, each of which computes its
own sum. While this was developed, early versions were scored on the test data of the first seed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from sites import CACHE, DATA, mnist, pooled, selected, sites, with_shares

import consilience as cs
from consilience.checks import Array, Labels

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from record import as_text, versions

HERE = Path(__file__).parent
SAMPLES = 50
MOST_UNITS = 390
PRICES = (0.0, 0.1, 0.2, 0.4)
EXAMPLE = torch.zeros(2, 784)


def scores(model: Any, inside: tuple[Array, Labels], outside: tuple[Array, Labels]) -> dict[str, Any]:
    """Return what a model is worth on test images, and how unsure it is of digits in fonts."""
    found = cs.predictive_scores(
        model.predict(inside[0], samples=SAMPLES, rng=1),
        inside[1],
        outside=model.predict(outside[0], samples=SAMPLES, rng=2),
        outside_labels=outside[1],
    )
    return {
        "accuracy": found.accuracy,
        "log_likelihood": found.log_likelihood,
        "entropy": found.entropy,
        "ece": found.calibration_error,
        "auroc": found.outside.auroc,
        "entropy_by_digit": list(found.centred_entropies.values()),
        "outside_by_digit": list(found.centred_outside.values()),
    }


def validation(model: Any, x: Array, y: Labels, rows: list[Labels]) -> float:
    """Return the mean log likelihood of the sites' validation data."""
    held = np.concatenate(rows)
    p = model.predict(x[held], samples=30, rng=3)
    return float(np.log(np.maximum(p[np.arange(len(held)), y[held]], 1e-12)).mean())


def run(seed: int, *, plain: bool) -> dict[str, Any]:
    """Return everything about one seed."""
    x, y, x_test, y_test = mnist()
    fonts = np.load(DATA / "font_digits.npz")
    inside = (x_test, y_test)
    outside = (fonts["x"].reshape(len(fonts["x"]), -1).astype(np.float32) / 255, fonts["y"].astype(np.int64))
    told = sites(seed, adjusted=not plain)
    bnns = [bnn for bnn, *_ in told]
    rows = [train for _, _, train, _ in told]
    held = [one for *_, one in told]
    counts = [len(one) for one in rows]
    found: dict[str, Any] = {"sites": [], "observations": counts}
    for bnn, own in zip(bnns, rows, strict=True):
        alone = bnn if plain else with_shares(bnn, y[own])
        found["sites"].append({**scores(alone, inside, outside), "classes": np.bincount(y[own], minlength=10).tolist()})
        if not plain:
            found["sites"][-1]["equal shares"] = scores(bnn, inside, outside)
    prices = {}
    for price in PRICES:
        fusion = cs.fuse(
            bnns, weights=counts, example=EXAMPLE, regularization=price, max_units=MOST_UNITS, outgoing="share"
        )
        prices[price] = validation(fusion.model, x, y, held)
    best = max(prices, key=prices.__getitem__)
    found["validation"] = {str(price): value for price, value in prices.items()}
    found["price"] = best
    kl = {"weights": counts, "example": EXAMPLE, "regularization": best, "max_units": MOST_UNITS}
    ways: dict[str, dict[str, Any]] = {
        "KL-fusion, n/J": {**kl, "outgoing": "share"},
        "KL-fusion, 1": {**kl, "outgoing": "sum"},
        "KL-fusion, n/J, equal weights": {**kl, "outgoing": "share", "weights": [1.0] * len(counts)},
        "concatenation, n/J": {**kl, "outgoing": "share", "regularization": 0.0, "max_units": None},
        "W2 alignment": {"method": "w2", "weights": counts, "example": EXAMPLE},
        "naive average": {"method": "average", "weights": counts},
        "ensemble": {"method": "ensemble", "weights": counts, "example": EXAMPLE},
    }
    found["models"] = {}
    for name, options in ways.items():
        start = time.perf_counter()
        fusion = cs.fuse(bnns, **options)
        seconds = time.perf_counter() - start
        own = {**scores(fusion.model, inside, outside), "seconds": seconds}
        if not fusion.keeps_models:
            own["units"] = fusion.n_components
            own["shared"] = fusion.details.get("groups", {}).get("0", {}).get("shared")
        found["models"][name] = own
        sys.stdout.write(f"{seed} {name}: {own['accuracy']:.4f} {own['log_likelihood']:.4f} {own['auroc']:.4f}\n")
    if not plain:
        found["models"]["all data pooled"] = scores(pooled(seed)[0], inside, outside)
    found["mean site accuracy"] = mean(site["accuracy"] for site in found["sites"])
    sys.stdout.write(f"{seed} sites: {found['mean site accuracy']:.4f}, price {best}\n")
    return found


def main() -> None:
    """Run what is asked for and not there, and write all that is."""
    torch.set_num_threads(1)
    store = CACHE / "table2"
    store.mkdir(parents=True, exist_ok=True)
    for argument in sys.argv[1:]:
        kind, seed = argument.split(":") if ":" in argument else ("adjusted", argument)
        path = store / f"{kind}-{seed}.json"
        if not path.exists():
            path.write_text(json.dumps({**run(int(seed), plain=kind == "plain"), "versions": versions()}))
    result: dict[str, Any] = {
        "settings": {
            "site": {**selected(), "prior": "regularised horseshoe", "hidden": 150},
            "selection": json.loads((CACHE / "selection.json").read_text()),
            "most_units": MOST_UNITS,
            "prices": list(PRICES),
            "samples": SAMPLES,
            "weights": "observations",
        },
        "versions": versions(),
    }
    for kind in ("adjusted", "plain"):
        result[kind] = {p.stem.split("-")[1]: json.loads(p.read_text()) for p in sorted(store.glob(f"{kind}-*.json"))}
    (HERE / "table2.json").write_text(as_text(result))


if __name__ == "__main__":
    main()
