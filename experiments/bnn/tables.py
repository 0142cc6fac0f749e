"""The results of the Bayesian experiment on MNIST as Markdown tables, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from consilience.core.scores import paired_difference

HERE = Path(__file__).parent
FUSED = "KL-fusion, n/J"
"""The fused network that all others are compared with, as it was chosen on validation data."""
PAPER = "KL-fusion, 1"
"""The same matching with outgoing weights as in the paper."""
ENSEMBLE, POOLED = "ensemble", "all data pooled"
MODELS = {
    "naive average": "naive average, unit by unit",
    "W2 alignment": "aligned by W2, averaged",
    "concatenation, n/J": "all units side by side, n/J",
    PAPER: f"**{PAPER}**",
    FUSED: f"**{FUSED}**",
    "KL-fusion, n/J, equal weights": "KL-fusion, n/J, sites of equal weight",
    ENSEMBLE: "ensemble of the sites",
    POOLED: POOLED,
}
SCORES = {"accuracy": (100, 2), "log_likelihood": (1, 3), "entropy": (1, 3), "ece": (100, 2), "auroc": (1, 3)}
"""By score: what it is multiplied by, and its digits."""
PUBLISHED = {
    "sites, mean": ("88.8", "-1.39", "2.10", "150"),
    "sites, lowest to highest": ("82.7 to 91.9", "-1.56 to -1.18", "2.00 to 2.17", ""),
    PAPER: ("95.8", "-0.32", "0.79", "281"),
}
"""Table 2 of the paper: accuracy, log likelihood, entropy, units."""


def _results(kind: str = "adjusted") -> dict[str, Any]:
    """Return everything by seed."""
    found: dict[str, Any] = json.loads((HERE / "table2.json").read_text())[kind]
    return found


def _spread(values: Sequence[float], score: str) -> str:
    """Return mean and standard deviation over seeds."""
    factor, digits = SCORES[score]
    shown = f"{factor * mean(values):.{digits}f}"
    return f"{shown} ± {factor * stdev(values):.{digits}f}" if len(values) > 1 else shown


def _difference(ours: Sequence[float], others: Sequence[float], score: str) -> str:
    """Return a difference paired by seed with its 95 % interval, in bold type where that excludes zero."""
    factor, digits = SCORES[score]
    found = paired_difference(factor * np.array(ours), factor * np.array(others), np.ones(len(ours)))
    low, high = found.interval
    shown = f"{found.mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"**{shown}**" if found.sign else shown


def _text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _of(seeds: Mapping[str, Any], name: str, score: str) -> list[float]:
    """Return a score of a model by seed."""
    return [one["models"][name][score] for one in seeds.values()]


def _sites(seeds: Mapping[str, Any], score: str, of: Callable[[list[float]], float], kind: str = "") -> list[float]:
    """Return a summary of the sites' scores by seed; with a `kind`, of the networks as they are sent."""
    return [of([(site[kind] if kind else site)[score] for site in one["sites"]]) for one in seeds.values()]


def scores_table() -> str:
    """Return scores of all models on the test images, beside the paper's."""
    seeds = _results()
    shown = ("accuracy, %", "log likelihood", "entropy, nats", "ECE, %", "AUROC, fonts", "units")
    columns = ["model", *shown, "published: accuracy, %", "log likelihood", "entropy", "units"]
    rows = []
    for name, kind in (("sites, mean", ""), ("sites, mean, equal shares", "equal shares")):
        cells = [_spread(_sites(seeds, score, mean, kind), score) for score in SCORES]
        rows.append([name, *cells, "150", *PUBLISHED.get(name, [""] * 4)])
    ends = []
    for score in SCORES:
        found = [site[score] for one in seeds.values() for site in one["sites"]]
        factor, digits = SCORES[score]
        ends.append(" to ".join(f"{factor * one:.{digits}f}" for one in (min(found), max(found))))
    name = "sites, lowest to highest"
    rows.insert(1, [name, *ends, "", *PUBLISHED[name]])
    for name, said in MODELS.items():
        cells = [_spread(_of(seeds, name, score), score) for score in SCORES]
        units = [one["models"][name].get("units") or 150 for one in seeds.values()]
        among = "5 x 150" if name == ENSEMBLE else f"{mean(units):.0f}"
        rows.append([said, *cells, among, *PUBLISHED.get(name, [""] * 4)])
    return _text(columns, rows)


def differences_table() -> str:
    """Return paired differences of fused networks from the ensemble and from the network of all data."""
    seeds = _results()
    scores = {"accuracy": "accuracy, points", "log_likelihood": "log likelihood, nats"}
    columns = ["model", *(f"{said}, {than}" for than in ("from ensemble", "from pooled") for said in scores.values())]
    rows = []
    for name, said in MODELS.items():
        if name == POOLED:
            continue
        cells = [
            "" if name == other else _difference(_of(seeds, name, score), _of(seeds, other, score), score)
            for other in (ENSEMBLE, POOLED)
            for score in scores
        ]
        rows.append([said, *cells])
    return _text(columns, rows)


def outside_table() -> str:
    """Return by seed how well entropy tells digits in fonts from MNIST, and whose does it best."""
    seeds = _results()
    names = (FUSED, PAPER, ENSEMBLE, POOLED)
    rows = []
    for seed, one in seeds.items():
        own = [site["auroc"] for site in one["sites"]]
        found = {name: one["models"][name]["auroc"] for name in names}
        sent = [site["equal shares"]["auroc"] for site in one["sites"]]
        above = [f"{sum(found[FUSED] > site for site in sites)} of {len(sites)}" for sites in (own, sent)]
        said = "yes" if found[FUSED] > found[ENSEMBLE] else "no"
        cells = [f"{value:.3f}" for value in found.values()]
        rows.append([seed, f"{min(own):.3f} to {max(own):.3f}", *cells, *above, said])
    averages = [_spread(_of(seeds, name, "auroc"), "auroc") for name in names]
    rows.append(["mean", _spread(_sites(seeds, "auroc", mean), "auroc"), *averages, "", "", ""])
    differences = [_difference(_of(seeds, FUSED, "auroc"), _of(seeds, name, "auroc"), "auroc") for name in names[1:]]
    sites = _difference(_of(seeds, FUSED, "auroc"), _sites(seeds, "auroc", mean), "auroc")
    rows.append(["n/J minus it", sites, "", *differences, "", "", ""])
    columns = ["seed", "sites", *names, "n/J is above: of the sites", "of these with equal shares", "the ensemble"]
    return _text(columns, rows)


def units_table() -> str:
    """Return by seed the validation likelihood of every price, and how many sites the fused units have in common."""
    seeds = _results()
    prices = list(next(iter(seeds.values()))["validation"])
    sites = len(next(iter(seeds.values()))["sites"])
    shared = [f"of {n}" for n in range(2, sites + 1)]
    columns = ["seed", *(f"price {float(price):g}" for price in prices), "chosen", "units", "of 1 site", *shared]
    rows = []
    for seed, one in seeds.items():
        values = [f"{one['validation'][price]:.4f}" for price in prices]
        fused = one["models"][FUSED]
        rows.append([seed, *values, f"{one['price']:g}", str(fused["units"]), *map(str, fused["shared"])])
    return _text(columns, rows)


def adjustment_table() -> str:
    """Return scores with logit adjustment at the sites and without, for the seeds that have both."""
    plain, every = _results("plain"), _results()
    adjusted = {seed: every[seed] for seed in plain}
    columns = [f"model ({len(plain)} seeds)"]
    for said in ("accuracy, %", "log likelihood"):
        columns += [f"{said}: adjusted", "not adjusted", "difference [95 %]"]
    rows = []
    for name, said in {"": "sites, mean", **MODELS}.items():
        if name == POOLED:
            continue
        cells = []
        for score in ("accuracy", "log_likelihood"):
            both = [_of(one, name, score) if name else _sites(one, score, mean) for one in (adjusted, plain)]
            cells += [*(_spread(values, score) for values in both), _difference(*both, score)]
        rows.append([said, *cells])
    return _text(columns, rows)


def time_table() -> str:
    """Return the time of KL-fusion of networks beside that of a direct implementation."""
    path = Path(__file__).parents[2] / "benchmarks/kl_networks.json"
    rows = json.loads(path.read_text())["networks"]["results"]
    shown = ("seconds", "direct", "ratio", "published", "ratio_published", "units", "sweeps")
    columns = ["seed", "seconds", "direct, as many sweeps", "ratio", "direct, ten iterations", "ratio", *shown[-2:]]
    cells = [
        [str(one["seed"]), *(f"{one[key]:.2f}" if key == "seconds" else f"{one[key]:.0f}" for key in shown)]
        for one in rows
    ]
    return _text(columns, cells)


DEFAULT_ROWS = {
    "best site": "the best site's",
    "kl": "`kl`, the default without descriptions",
    "kl, outgoing sum": '`kl`, `outgoing="sum"`, as in the paper',
    "w2": "`w2`",
    "side_by_side": "`side_by_side`",
    "class_heads(kl)": "`class_heads(kl)`",
    "class_heads(side_by_side)": "`class_heads(side_by_side)`",
    "chosen": "**chosen**",
    "ensemble": "`fusion.ensemble`",
}
DIGITS = {"accuracy": (100, 1), "log_likelihood": (1, 2), "sevens": (100, 0)}
"""By score on digits: what it is multiplied by, and its digits."""


def default_table(which: str, scores: Sequence[str]) -> str:
    """Return scores of candidates, of what the default chose and of the ensemble on held-out digits, by adjustment."""
    stored = json.loads((HERE / "default.json").read_text())
    kinds = {"adjusted": "adjusted", "plain": "not adjusted"}
    names = {"accuracy": "accuracy, %", "log_likelihood": "log likelihood", "sevens": "sevens, %"}
    columns = ["network", *(f"{shown}: {names[score]}" for shown in kinds.values() for score in scores)]
    rows = []
    for name, shown in DEFAULT_ROWS.items():
        cells = []
        for kind in kinds:
            models = [one["models"] for one in stored[f"{which}, {kind}"]["runs"]]
            for score in scores:
                factor, digits = DIGITS[score]
                values = [factor * one[name][score] for one in models]
                cells.append(f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}")
        rows.append([shown, *cells])
    return _text(columns, rows)


def sampling_table() -> str:
    """Return the errors of predictions by few samples of the weights, in the mean over sites, by seed."""
    stored = json.loads((HERE / "default.json").read_text())
    few = stored["settings"]["samples of sampling errors"]
    runs = [one for kind, of_kind in stored.items() if kind != "settings" for one in of_kind["runs"]]
    rows = []
    for kind in ("independent", "in pairs"):
        errors = [[100 * error for error in one["sampling errors"][kind]] for one in runs]
        rows.append([kind, *(f"{mean(values):.2f} ± {stdev(values):.2f}" for values in zip(*errors, strict=True))])
    return _text(["samples", *map(str, few)], rows)


TABLES = {
    "bnn-time": time_table,
    "bnn-scores": scores_table,
    "bnn-differences": differences_table,
    "bnn-outside": outside_table,
    "bnn-units": units_table,
    "bnn-adjustment": adjustment_table,
    "bnn-default-three": partial(default_table, "three", ("accuracy", "log_likelihood", "sevens")),
    "bnn-default-five": partial(default_table, "five", ("accuracy", "log_likelihood")),
    "bnn-sampling": sampling_table,
}
