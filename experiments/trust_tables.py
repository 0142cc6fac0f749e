"""Tables of checkpoints, hostile sites, membership, rounds under load, masked sums and mutated files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).parent.parent
IN_NATS = ("mixtures", "hidden Markov models")
"""Cases whose error is a difference; that of the others is a ratio."""
SHAPING_FIRST = "mixtures, 2 columns, shaping"
"""The case on whose seeds constants were chosen."""
OF_WHAT = {"one start": "common initialisation", "own starts": "independent initialisations"}
"""What cases are called in tables, where not as in ``benchmarks/hostile_sites.py``."""
FRESH = ", fresh seeds"
"""How the names of cases end on whose seeds little was chosen; ``benchmarks/hostile_sites.py`` says what."""
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


Cells = dict[str, dict[str, list[dict[str, Any]]]]
"""By number of hostile sites and attack what every seed found."""


def hostile_table() -> str:
    """Return the worst attack of every defence at each number of hostile sites of ten; ratios are those of means."""
    cases: dict[str, dict[str, Any]] = _found("hostile_sites")["seeds"]
    lines = []
    for case in sorted(cases, key=lambda name: (name != SHAPING_FIRST, list(cases).index(name))):
        cells = _cells(cases[case])
        if not cells:
            continue
        in_nats, counts, first = case.startswith(IN_NATS), sorted(cells, key=int), cells["0"]["none"]
        unit = "nats above clean" if in_nats else "error over clean"
        if isinstance(first[0]["clean"], list):
            unit += " / error of means over clean"
        chosen = " (constants were chosen here)" if case == SHAPING_FIRST else ""
        lines.append(f"| {_named(case)}{chosen}: {unit} | seeds | k = {' | '.join(counts)} |")
        lines.append(f"| --- | ---: |{' --- |' * len(counts)}")
        for defence in (name for name in first[0] if name != "clean"):
            texts = [_worst(cells, count, defence, in_nats) for count in counts]
            if defence == DEFAULT:
                texts = [
                    f"{text}, weak" if _is_weak(cells, count, in_nats) else text
                    for text, count in zip(texts, counts, strict=True)
                ]
            lines.append(f"| {defence} | {len(first)} | {' | '.join(texts)} |")
        lines.append("")
    return "\n".join(lines)


def robust_table() -> str:
    """Return the worst attack on ``robust=True`` of every kind, beside the least error that any rule can promise.

    Of cases with fresh seeds these, and of entries that were run on more seeds, these. What misses a promise has beside
    it what the plain fusion of the honest sites alone costs over no defence: a rule that knows who is hostile does no
    better than that.
    """
    found = _found("hostile_sites")
    cases: dict[str, dict[str, Any]] = found["seeds"]
    counts = list(found["bounds"]["error"])
    lines = [f"| over clean; over no defence, k = | {' | '.join(counts)} |", f"| --- |{' --- |' * len(counts)}"]
    for case in sorted(name for name in cases if name != SHAPING_FIRST and not name.endswith(FRESH)):
        cells = _cells(cases.get(case + FRESH, {}), found.get("more", {}).get(case + FRESH, {})) or _cells(cases[case])
        if not cells:
            continue
        in_nats = case.startswith(IN_NATS)
        texts = [_promised(cells, count, in_nats) for count in counts]
        lines.append(f"| {_named(case)}: {'nats' if in_nats else 'error'} | {' | '.join(texts)} |")
    for name, text in (("error", "error of a parameter"), ("squared error", "squared error")):
        bounds = " | ".join(f"{bound:.2f}" for bound in found["bounds"][name].values())
        lines.append(f"| least in the worst case, whatever the rule: {text} over clean | {bounds} |")
    return "\n".join(lines) + "\n"


def more_seeds_table() -> str:
    """Return what entries that miss a promise on the fresh seeds cost over no defence on more seeds."""
    found = _found("hostile_sites")
    lines = [
        "| robust=True over no defence | k | attack | fresh seeds | more seeds | standard error | honest alone |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for case, seeds in found.get("more", {}).items():
        in_nats, before, cells = case.startswith(IN_NATS), _cells(found["seeds"][case]), _cells(seeds)
        number = "{:+.3f}" if in_nats else "{:.2f}"
        for count, attacks in cells.items():
            first = _costs(before, count, DEFAULT, in_nats, base="plain")
            later, told = (_costs(cells, count, name, in_nats, base="plain") for name in (DEFAULT, "clean"))
            for attack, of_seeds in attacks.items():
                numbers = (first[attack], later[attack], _standard_error(of_seeds, in_nats), told[attack])
                texts = [number.format(one) for one in numbers]
                texts[2] = texts[2].lstrip("+")
                lines.append(f"| {_named(case.removesuffix(FRESH))} | {count} | {attack} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def worst_attack(case: str, seeds: dict[str, Any], count: str) -> str:
    """Return the attack under which ``robust=True`` costs most at so many hostile sites."""
    costs = _costs(_cells(seeds), count, DEFAULT, case.startswith(IN_NATS))
    return max(costs, key=costs.__getitem__)


def further_costs(case: str, seeds: dict[str, Any], defence: str, base: str) -> dict[str, dict[str, Any]]:
    """Return by number of hostile sites the attack that costs most of those run, what it costs, and how surely."""
    cells, in_nats, found = _cells(seeds), case.startswith(IN_NATS), {}
    for count, attacks in cells.items():
        costs = _costs(cells, count, defence, in_nats, base=base)
        attack = max(costs, key=costs.__getitem__)
        error = _standard_error(attacks[attack], in_nats, defence, base)
        found[count] = {"attack": attack, "cost": costs[attack], "standard_error": error, "of_attacks": len(costs)}
    return found


def _standard_error(
    of_seeds: list[dict[str, Any]], in_nats: bool, defence: str = DEFAULT, base: str = "plain"
) -> float:
    """Return the standard error of what a defence costs over another, of a ratio that of its numerator."""
    pairs = [
        [one[name][0] if isinstance(one[name], list) else one[name] for name in (defence, base)] for one in of_seeds
    ]
    ratio = 1.0 if in_nats else sum(robust for robust, _ in pairs) / sum(plain for _, plain in pairs)
    error = stdev(robust - ratio * plain for robust, plain in pairs) / len(pairs) ** 0.5
    return error if in_nats else error / mean(plain for _, plain in pairs)


def missed(case: str, seeds: dict[str, Any]) -> dict[str, list[str]]:
    """Return by number of hostile sites the attacks under which ``robust=True`` costs more than no defence may."""
    cells, in_nats = _cells(seeds), case.startswith(IN_NATS)
    found = {count: [attack for attack in cells[count] if _is_missed(cells, count, attack, in_nats)] for count in cells}
    return {count: attacks for count, attacks in found.items() if attacks and count != "0"}


def _is_missed(cells: Cells, count: str, attack: str, in_nats: bool) -> bool:
    plain, default = (_costs(cells, count, defence, in_nats)[attack] for defence in ("plain", DEFAULT))
    if in_nats:
        return default > MAX_NATS or default > plain + MAX_NATS
    return default > MAX_OVER_NONE * plain


def _promised(cells: Cells, count: str, in_nats: bool) -> str:
    """Return what the worst attack on ``robust=True`` costs over clean, and over no defence with its name."""
    over_none, told = (_costs(cells, count, name, in_nats, base="plain") for name in (DEFAULT, "clean"))
    attack = max(over_none, key=over_none.__getitem__)
    number = "{:+.3f}" if in_nats else "{:.2f}"
    text = _worst(cells, count, DEFAULT, in_nats, is_named=False)
    if count != "0":
        text += f"; {number.format(over_none[attack])} {attack}"
    weak = f", **weak** ({number.format(max(told.values()))})" if _is_weak(cells, count, in_nats) else ""
    return text + weak


def _is_weak(cells: Cells, count: str, in_nats: bool) -> bool:
    """Return whether ``robust=True`` misses what it promises at so many hostile sites; see the constants above."""
    plain, default = (_costs(cells, count, defence, in_nats) for defence in ("plain", DEFAULT))
    worst = max(default.values())
    if count == "0":
        return worst > (MAX_NATS if in_nats else MAX_OVER_NONE)
    if any(_is_missed(cells, count, attack, in_nats) for attack in default):
        return True
    if in_nats:
        return False
    if any(plain[attack] >= HARMFUL and default[attack] > BELOW * plain[attack] for attack in default):
        return True
    of_seed = next(iter(cells[count].values()))[0]
    blind = [name for name in of_seed if name not in ("clean", DEFAULT) and not name.endswith(TOLD)]
    return worst > MAX_OVER_BEST * min(max(_costs(cells, count, name, in_nats).values()) for name in blind)


def _cells(seeds: dict[str, Any], more: dict[str, Any] | None = None) -> Cells:
    """Return what the seeds found that have every attack and defence which some seed has: others are on their way.

    Where an entry was run on `more` seeds, it is these.
    """
    keys = [
        {(k, a, d) for k, attacks in one.items() for a, row in attacks.items() for d in row} for one in seeds.values()
    ]
    everything = set[tuple[str, str, str]]().union(*keys)
    complete = [one for one, found in zip(seeds.values(), keys, strict=True) if found == everything]
    if not complete:
        return {}
    cells = {
        count: {attack: [one[count][attack] for one in complete] for attack in row}
        for count, row in complete[0].items()
    }
    for count, row in _cells(more).items() if more else ():
        cells[count].update(row)
    return cells


def _costs(
    cells: Cells, count: str, defence: str, in_nats: bool, error: int = 0, base: str = "clean"
) -> dict[str, float]:
    """Return by attack what a defence costs over another; infinity where it failed. Of two errors, the one asked for.

    Seeds in which every cell of a defence is None, which has no such number of sites, give an empty dictionary.
    """
    costs = dict[str, float]()
    for attack, of_seeds in cells[count].items():
        values, cleans = ([one[name] for one in of_seeds] for name in (defence, base))
        if any(value is None for value in values):
            continue
        if "failed" in values:
            costs[attack] = math.inf
            continue
        if isinstance(cleans[0], list):
            values, cleans = [value[error] for value in values], [clean[error] for clean in cleans]
        total, clean_total = sum(values), sum(cleans)
        costs[attack] = (total - clean_total) / len(of_seeds) if in_nats else total / clean_total
    return costs


def _worst(cells: Cells, count: str, defence: str, in_nats: bool, *, is_named: bool = True) -> str:
    """Return what the worst attack costs, and its name; of two errors, the second with its own worst attack."""
    costs = _costs(cells, count, defence, in_nats)
    if not costs:
        return ""
    attack = max(costs, key=costs.__getitem__)
    if math.isinf(costs[attack]):
        return f"fails: {attack}"
    text = f"{costs[attack]:+.3f}" if in_nats else f"{costs[attack]:.2f}"
    if isinstance(cells[count][attack][0]["clean"], list):
        text += f" / {max(_costs(cells, count, defence, False, 1).values()):.2f}"
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
    "robust-more-seeds": more_seeds_table,
    "membership": membership_table,
    "load": load_table,
    "fuzzing": fuzzing_table,
    "masked-sums": masked_sums_table,
    "claims": claims_table,
}
