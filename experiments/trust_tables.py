"""Tables of checkpoints, hostile sites, membership, rounds under load, masked sums and mutated files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parent.parent
IN_NATS = ("mixtures", "hidden Markov models")
"""Cases whose error is a difference; that of the others is a ratio."""
SHAPING_FIRST = "mixtures, 2 columns, shaping"
"""The case on whose seeds constants were chosen."""
OF_WHAT = {"one start": "common initialisation", "own starts": "independent initialisations"}
"""What cases are called in tables, where not as in ``benchmarks/hostile_sites.py``."""
FRESH = ", fresh seeds"
"""How the names of cases end whose seeds no rule and no constant saw."""
DEFAULT, TOLD = "robust=True", "f = k"
"""The defence that promises something, and how the names of those end that are told how many sites are hostile."""
MAX_NATS, MAX_OVER_NONE = 0.03, 1.05
"""What it promises: no more held-out nats above clean, nor above no defence under the same attack; and of ratios that
no attack is worse than without a defence by more than a twentieth."""
MAX_OVER_BEST, HARMFUL, BELOW = 1.15, 1.05, 0.98
"""What it promises of ratios: the worst attack over that of the best defence which is told nothing, and less than no
defence wherever the attack costs that so much. Less than a fiftieth below is called no defence."""


def _found(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / f"benchmarks/{name}.json").read_text())
    return document


def merges_table() -> str:
    """Return the time and memory of averaging two checkpoints."""
    found = _found("checkpoints")
    lines = ["| | seconds (turns) | anonymous memory, peak |", "| --- | ---: | ---: |"]
    called = {
        "consilience": "`consilience merge`",
        "mergekit": "mergekit 0.1.5, `linear`",
        "bare": "a stream in one thread, no digests, rounding towards zero",
    }
    for name, text in called.items():
        one = found[name]
        turns = ", ".join(f"{seconds:.1f}" for seconds in one["all_seconds"])
        lines.append(f"| {text} | {one['seconds']:.1f} ({turns}) | {one['peak_gb']:.2f} GB |")
    lines += ["", f"That is {found['times_as_fast_as_mergekit']:.1f} times as fast as mergekit."]
    return "\n".join(lines) + "\n"


def _named(case: str) -> str:
    """Return what a case is called in tables."""
    for name, shown in OF_WHAT.items():
        case = case.replace(name, shown)
    return case


def hostile_table() -> str:
    """Return the worst attack of every defence at each number of hostile sites of ten; ratios are those of means."""
    cases: dict[str, dict[str, Any]] = _found("hostile_sites")["seeds"]
    lines = []
    for case in sorted(cases, key=lambda name: (name != SHAPING_FIRST, list(cases).index(name))):
        seeds = _complete(list(cases[case].values()))
        if not seeds:
            continue
        in_nats, counts = case.startswith(IN_NATS), sorted(seeds[0], key=int)
        unit = "nats above clean" if in_nats else "error over clean"
        if isinstance(seeds[0]["0"]["none"]["clean"], list):
            unit += " / error of means over clean"
        chosen = " (constants were chosen here)" if case == SHAPING_FIRST else ""
        lines.append(f"| {_named(case)}{chosen}: {unit} | seeds | k = {' | '.join(counts)} |")
        lines.append(f"| --- | ---: |{' --- |' * len(counts)}")
        for defence in (name for name in seeds[0]["0"]["none"] if name != "clean"):
            cells = [_worst(seeds, count, defence, in_nats) for count in counts]
            if defence == DEFAULT:
                cells = [
                    f"{cell}, weak" if _is_weak(seeds, count, in_nats) else cell
                    for cell, count in zip(cells, counts, strict=True)
                ]
            lines.append(f"| {defence} | {len(seeds)} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def robust_table() -> str:
    """Return the worst attack on ``robust=True`` of every kind, beside the least error that any rule can promise.

    Of cases with fresh seeds these. What misses a promise has beside it what the plain fusion of the honest sites alone
    costs over no defence: a rule that knows who is hostile does no better than that.
    """
    found = _found("hostile_sites")
    cases: dict[str, dict[str, Any]] = found["seeds"]
    counts = list(found["bounds"]["error"])
    lines = [f"| over clean; over no defence, k = | {' | '.join(counts)} |", f"| --- |{' --- |' * len(counts)}"]
    for case in sorted(name for name in cases if name != SHAPING_FIRST and not name.endswith(FRESH)):
        seeds = _complete(list(cases.get(case + FRESH, {}).values())) or _complete(list(cases[case].values()))
        if not seeds:
            continue
        in_nats = case.startswith(IN_NATS)
        cells = [_promised(seeds, count, in_nats) for count in counts]
        lines.append(f"| {_named(case)}: {'nats' if in_nats else 'error'} | {' | '.join(cells)} |")
    for name, text in (("error", "error of a parameter"), ("squared error", "squared error")):
        bounds = " | ".join(f"{bound:.2f}" for bound in found["bounds"][name].values())
        lines.append(f"| least in the worst case, whatever the rule: {text} over clean | {bounds} |")
    return "\n".join(lines) + "\n"


def _promised(seeds: list[dict[str, Any]], count: str, in_nats: bool) -> str:
    """Return what the worst attack on ``robust=True`` costs over clean, and over no defence with its name."""
    over_none, told = (_costs(seeds, count, name, in_nats, base="plain") for name in (DEFAULT, "clean"))
    attack = max(over_none, key=over_none.__getitem__)
    number = "{:+.3f}" if in_nats else "{:.2f}"
    text = _worst(seeds, count, DEFAULT, in_nats, is_named=False)
    if count != "0":
        text += f"; {number.format(over_none[attack])} {attack}"
    weak = f", **weak** ({number.format(max(told.values()))})" if _is_weak(seeds, count, in_nats) else ""
    return text + weak


def _is_weak(seeds: list[dict[str, Any]], count: str, in_nats: bool) -> bool:
    """Return whether ``robust=True`` misses what it promises at so many hostile sites; see the constants above."""
    plain, default = (_costs(seeds, count, defence, in_nats) for defence in ("plain", DEFAULT))
    worst = max(default.values())
    if count == "0":
        return worst > (MAX_NATS if in_nats else MAX_OVER_NONE)
    if in_nats:
        return worst > MAX_NATS or any(default[attack] > plain[attack] + MAX_NATS for attack in default)
    attacks = list(seeds[0][count])
    if any(default[attack] > MAX_OVER_NONE * plain[attack] for attack in attacks):
        return True
    if any(plain[attack] >= HARMFUL and default[attack] > BELOW * plain[attack] for attack in attacks):
        return True
    blind = [name for name in seeds[0][count][attacks[0]] if name not in ("clean", DEFAULT) and not name.endswith(TOLD)]
    return worst > MAX_OVER_BEST * min(max(_costs(seeds, count, name, in_nats).values()) for name in blind)


def _complete(seeds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the seeds that have every attack and defence which some seed has: others are on their way."""
    cells = [{(k, a, d) for k, attacks in one.items() for a, row in attacks.items() for d in row} for one in seeds]
    everything = set[tuple[str, str, str]]().union(*cells)
    return [one for one, found in zip(seeds, cells, strict=True) if found == everything]


def _costs(
    seeds: list[dict[str, Any]], count: str, defence: str, in_nats: bool, error: int = 0, base: str = "clean"
) -> dict[str, float]:
    """Return by attack what a defence costs over another; infinity where it failed. Of two errors, the one asked for.

    Seeds in which every cell of a defence is None, which has no such number of sites, give an empty dictionary.
    """
    costs = dict[str, float]()
    for attack in seeds[0][count]:
        values, cleans = ([one[count][attack][name] for one in seeds] for name in (defence, base))
        if any(value is None for value in values):
            continue
        if "failed" in values:
            costs[attack] = math.inf
            continue
        if isinstance(cleans[0], list):
            values, cleans = [value[error] for value in values], [clean[error] for clean in cleans]
        total, clean_total = sum(values), sum(cleans)
        costs[attack] = (total - clean_total) / len(seeds) if in_nats else total / clean_total
    return costs


def _worst(seeds: list[dict[str, Any]], count: str, defence: str, in_nats: bool, *, is_named: bool = True) -> str:
    """Return what the worst attack costs, and its name; of two errors, the second with its own worst attack."""
    costs = _costs(seeds, count, defence, in_nats)
    if not costs:
        return ""
    attack = max(costs, key=costs.__getitem__)
    if math.isinf(costs[attack]):
        return f"fails: {attack}"
    text = f"{costs[attack]:+.3f}" if in_nats else f"{costs[attack]:.2f}"
    if isinstance(seeds[0][count][attack]["clean"], list):
        text += f" / {max(_costs(seeds, count, defence, False, 1).values()):.2f}"
    return f"{text} {attack}" if is_named and count != "0" else text


def membership_table() -> str:
    """Return what membership inference reaches on each file, means over seeds with the least and greatest."""
    files: dict[str, dict[str, dict[str, float]]] = _found("membership")["files"]
    lines = ["| attacked | area under the ROC curve | members found at 1 % false alarms |", "| --- | ---: | ---: |"]
    for name, seeds in files.items():
        cells = []
        for key in ("auc", "tpr"):
            values = [found[key] for found in seeds.values()]
            cells.append(f"{sum(values) / len(values):.3f} ({min(values):.2f} to {max(values):.2f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    n_seeds = len(next(iter(files.values())))
    lines += ["", f"Means of {n_seeds} seeds, with the least and the greatest; guessing reaches 0.500 and 0.010."]
    return "\n".join(lines) + "\n"


def load_table() -> str:
    """Return what rounds of a hundred sites cost a server."""
    kinds: dict[str, dict[str, Any]] = _found("round_load")["kinds"]
    lines = [
        "| a hundred sites send | each | processor seconds | rounds an hour | peak memory |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, found in kinds.items():
        seconds = [one["processor_seconds"] for one in found["rounds"]]
        peak = max(one["peak_bytes"] for one in found["rounds"]) / 2**20
        middle = sorted(seconds)[len(seconds) // 2]
        size = f"{found['bytes'] / 2**20:.2f} MiB" if found["sites"] else ""
        per_hour = f"{3600 / middle:,.0f}" if found["sites"] else ""
        lines.append(f"| {name} | {size} | {middle:.1f} | {per_hour} | {peak:,.0f} MiB |")
    return "\n".join(lines) + "\n"


def fuzzing_table() -> str:
    """Return what came of changed files, by format."""
    found = _found("fuzzing")
    heaviest = found["heaviest_of_allowed"]
    lines = [
        "| format | mutants | read | refused | crashed | hung | over budget | slowest |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {name} | {row['mutants']:,} | {row['read']:,} | {row['refused']:,} | {row['crashed']} | {row['hung']} "
            f"| {row['over']} | {row['slowest']:.1f} s |"
            for name, row in (*found["by_format"].items(), (f"all {found['formats']}", found))
        ),
        "",
        f"Of files made to be heavy, resident memory grew by at most {heaviest} of what is allowed.",
    ]
    return "\n".join(lines) + "\n"


def masked_sums_table() -> str:
    """Return bytes and seconds of masked sums beside those of plain ones."""
    lines = [
        "| sites (T) | numbers | leave | a site sends | receives | plain | seconds of a site | of the server | plain |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for cell in _found("masked_sums")["cells"]:
        sizes = " | ".join(f"{cell[name] / 1000:,.0f} kB" for name in ("bytes_sent", "bytes_received", "bytes_plain"))
        seconds = " | ".join(
            f"{cell[name]:.2g}" if name in cell else "not run"
            for name in ("seconds_site", "seconds_server", "seconds_plain")
        )
        measured = f", {cell['measured_sites']} of them measured" if "measured_sites" in cell else ""
        left = f"{cell['sites']:,}{measured} ({cell['threshold']}) | {cell['numbers']:,} | {cell['gone']}"
        lines.append(f"| {left} | {sizes} | {seconds} |")
    return "\n".join(lines) + "\n"


def claims_table() -> str:
    """Return the error of averages by the bound of a claim, on the half that set nothing."""
    rows = _found("claims")["report"]
    bounds = ("1", "2", "3", "5", "inf")
    lines = [
        f"| sites | {' | '.join('none' if bound == 'inf' else f'{bound} times' for bound in bounds)} |",
        f"| --- | {' | '.join(['---:'] * len(bounds))} |",
    ]
    settings = {
        "honest, of one size": ("alike", "0 liars x1"),
        "honest, sizes differ tenfold": ("tenfold", "0 liars x1"),
        "one liar, claims 100 times its rows": ("alike", "1 liars x100"),
        "the same, sizes differ tenfold": ("tenfold", "1 liars x100"),
        "two liars": ("alike", "2 liars x100"),
        "two liars that claim their own rows": ("alike", "2 liars x1"),
    }
    for name, (sizes, case) in settings.items():
        errors = [
            mean(row["errors"][f"{case}, bound {bound}"] for row in rows if row["sizes"] == sizes) for bound in bounds
        ]
        lines.append(f"| {name} | {' | '.join(f'{100 * error:.1f}' for error in errors)} |")
    return "\n".join(lines) + "\n"


def chaos_table() -> str:
    """Return how many rounds in trouble ended with the bytes of the undisturbed one."""
    kinds: dict[str, dict[str, Any]] = _found("round_chaos")["kinds"]
    transports = ("folder", "bucket", "flower")
    lines = [
        "| what travels | folder | bucket | Flower | kills | full disks | clocks put on | rounds lost |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, found in kinds.items():
        runs = [one for transport in transports for one in found[transport]]
        same = [f"{sum(one['is_same'] for one in found[by])} of {len(found[by])}" for by in transports]
        kills, disks, clocks = (
            sum(one["events"].get(event, 0) for one in runs for event in events)
            for events in (("kill server", "kill site"), ("full disk",), ("clock",))
        )
        lost = sum(not one["is_same"] for one in runs)
        lines.append(f"| {name} | {' | '.join(same)} | {kills} | {disks} | {clocks} | {lost} |")
    return "\n".join(lines) + "\n"


TRUST: dict[str, Callable[[], str]] = {
    "chaos": chaos_table,
    "merges": merges_table,
    "hostile": hostile_table,
    "robust": robust_table,
    "membership": membership_table,
    "load": load_table,
    "fuzzing": fuzzing_table,
    "masked-sums": masked_sums_table,
    "claims": claims_table,
}
