"""Write the tables of README and docs from the results of experiments and benchmarks: ``experiments/write_tables.py``.

Numbers in the text too, where a comment behind them has the address of a cell (``table_cells.py``). ``--check`` writes
nothing and exits 1 when a table or a number is out of date. Names of pages limit it to these.
"""

import json
import re
import sys
from functools import cache, partial
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from agreement.tables import TABLES as AGREEMENT
from average.tables import TABLES as AVERAGE
from battery.tables import TABLES as BATTERY
from bnn.alignment_tables import TABLES as POSTERIORS
from bnn.tables import TABLES as BNN
from draws.tables import TABLES as DRAWS
from exact.tables import TABLES as EXACT
from federated.tables import TABLES as FEDERATED
from fisher.tables import TABLES as FISHER
from house_tables import HOUSE
from kl_fusion.tables import TABLES as KL_FUSION
from mergekit_tables import TABLES as MERGEKIT
from merging.tables import TABLES as MERGING
from network_battery.at_sites_tables import TABLES as AT_SITES
from network_battery.kronecker_tables import TABLES as KRONECKER
from network_battery.seeds_tables import TABLES as SEEDS
from network_battery.summary_tables import TABLES as SUMMARIES
from network_battery.tables import TABLES as NETWORK_BATTERY
from one_shot.heads_tables import TABLES as ONE_SHOT_HEADS
from one_shot.networks_tables import TABLES as ONE_SHOT_NETWORKS
from published_code_tables import published_code_table
from scale_tables import SCALE
from scores.tables import TABLES as SCORES
from spahm.tables import TABLES as POINTS
from synthetic_inputs.tables import TABLES as SYNTHETIC_INPUTS
from table_cells import with_numbers
from transformers_tables import TABLES as TRANSFORMERS
from trust_tables import TRUST
from wasserstein.recurrent.tables_recurrent import TABLES as RECURRENT
from wasserstein.tables import TABLES as NETWORKS

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "docs/index.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("[!_]*/*.md")),
)
BLOCK = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def demo_table() -> str:
    """Return the demo's comparison as a Markdown table, the default first, sites as their best and their mean."""
    record = json.loads((ROOT / "experiments/demo/results.json").read_text())
    lines = [
        "| model | log predictive density | fused is ahead by | mutual information | components |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    compared = {name: columns for name, columns in record["results"].items() if not name.startswith("site ")}
    for name, columns in compared.items():
        density, information = columns["log_density"], columns["mutual_information"]
        ahead = ""
        if name in record["fused_minus"]:
            difference = record["fused_minus"][name]
            ahead = f"{difference['mean']:+.2f} ± {(difference['interval'][1] - difference['interval'][0]) / 2:.2f}"
        lines.append(
            f"| {name if ahead else f'**{name}**'} | {mean(density):.2f} ± {stdev(density):.2f} | {ahead} "
            f"| {mean(information):.3f} ± {stdev(information):.3f} | {mean(columns['components']):.1f} |"
        )
    return "\n".join(lines) + "\n"


def first_contact_table() -> str:
    """Return the seconds from a clone to a fused file, by walk, with the number of commands that were typed."""
    found = json.loads((ROOT / "benchmarks/first_contact.json").read_text())
    lines = [
        "| from a clone to a fused file of your own | commands | seconds in all | installing | at the sites | fusing |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, walk in found["walks"].items():
        install, (script, check, fuse, *_) = found["install"][walk["extra"]], walk["seconds"].values()
        extra = "" if walk["extra"] == "no extra" else f", with `.{walk['extra']}`"
        before = sum(install.values())
        seconds = " | ".join(f"{one:.0f}" for one in (before + script + check + fuse, before, script, check + fuse))
        lines.append(f"| {name}{extra} | {len(install) + 3} | {seconds} |")
    return "\n".join(lines) + "\n"


def states_table() -> str:
    """Return by folder how many files of results name the state of the library's source that wrote them, and states."""
    lines = ["| results | files | that name a state of the library | states |", "| --- | ---: | ---: | ---: |"]
    paths = sorted(path for folder in ("experiments", "benchmarks") for path in (ROOT / folder).glob("[!.]*/**/*.json"))
    paths += sorted((ROOT / "benchmarks").glob("*.json"))
    for folder in dict.fromkeys(path.parent for path in paths):
        named = [found for path in paths if path.parent == folder for found in [_states(json.loads(path.read_text()))]]
        n_states = len(set[str]().union(*named)) or ""
        name = f"`{folder.relative_to(ROOT)}`"
        lines.append(f"| {name} | {len(named)} | {sum(map(bool, named))} | {n_states} |")
    return "\n".join(lines) + "\n"


def _states(found: Any) -> set[str]:
    """Return the digests of the library's source that results name."""
    if isinstance(found, list):
        return set[str]().union(*map(_states, found))
    if not isinstance(found, dict):
        return set()
    own = {found["library_source"]} if isinstance(found.get("library_source"), str) else set[str]()
    return own.union(*map(_states, found.values()))


def short_demo_table() -> str:
    """Return the demo's comparison of four: the best site, averages, the fused model, all data."""
    results = json.loads((ROOT / "experiments/demo/results.json").read_text())["results"]
    lines = [
        "| model | log predictive density of a digit, nats | mutual information with the true digits |",
        "| --- | ---: | ---: |",
    ]
    for name in ("sites, best", "naive average", "fused", "all data pooled"):
        density, information = results[name]["log_density"], results[name]["mutual_information"]
        numbers = [f"{mean(density):.2f} ± {stdev(density):.2f}", f"{mean(information):.3f} ± {stdev(information):.3f}"]
        emphasis = "**" if name == "fused" else ""
        lines.append("| " + " | ".join(f"{emphasis}{text}{emphasis}" for text in (name, *numbers)) + " |")
    return "\n".join(lines) + "\n"


def _benchmark(part: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks/kl_fusion.json").read_text())[part]


def speed_table() -> str:
    """Return times and objectives beside those of the direct implementation, a column of seeds each."""
    rows = _benchmark("simulation")["results"]
    lines = [
        "| run | target | times as fast as direct, written out | as direct, compiled | objective, % | components |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in ("direct, written out", "direct"):
        seconds = ", ".join(f"{row['medians'][name]:.2f} s" for row in rows)
        groups = ", ".join(str(row["groups"]["direct"]) for row in rows)
        lines.append(f"| {name if ',' in name else 'direct, compiled'} | | ({seconds}) | | | {groups} |")
    for name, target in (
        ("integral", 200),
        ("relaxed", 20),
        ("default, at most 10", 15),
        ("default", 15),
        ("KL-k-means, told", ""),
    ):
        other = "direct, relaxed" if name == "relaxed" else "direct, rounded"
        both = [[row[f"{of}, written out"][name] for of in ("ratios", "ratios of minima")] for row in rows]
        plain = ", ".join(f"{of_medians:.3g} ({of_minima:.3g})" for of_medians, of_minima in both)
        ratios = ", ".join(f"{row['ratios'][name]:.2g}" for row in rows)
        excess = ", ".join(f"{100 * (row['objective'][name] / row['objective'][other] - 1):+.2f}" for row in rows)
        groups = ", ".join(str(row["groups"][name]) for row in rows)
        shown = name.replace("told", "G given")
        lines.append(f"| {shown} | {target} | {plain} | {ratios} | {excess} | {groups} |")
    over = ", ".join(f"{row['default over KL-k-means, told']:.1f}" for row in rows)
    lines.append(f"| time of default over KL-k-means, G given | 12 | {over} | | | |")
    return "\n".join(lines) + "\n"


def iteration_table() -> str:
    """Return the time of one iteration by phase, and over its bare operations."""
    lines = [
        "| centres, price | costs | assignment | average | over bare operations |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, found in _benchmark("iteration")["results"].items():
        phases = (f"{1000 * found['medians'][phase]:.0f} ms" for phase in ("costs", "assignment", "average"))
        lines.append(f"| {name} | {' | '.join(phases)} | {found['ratio']:.1f} |")
    return "\n".join(lines) + "\n"


def scaling_table() -> str:
    """Return the time of five iterations by number of sites, without and with a price."""
    results = _benchmark("linear")["results"]
    lines = [
        "| sites | making the posteriors | no price | priced | spread, once | priced with spread |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in results["rows"]:
        times = [median(row["seconds"][name]) for name in ("no price", "priced")]
        times = [f"{time:.2f} s" for time in (*times, row["spread"], times[1] + row["spread"])]
        lines.append(f"| {row['sites']:,} | {row['making_posteriors']:.2f} s | {' | '.join(times)} |")
    slopes = results["slopes"]
    shown = (f"{slopes[name]:.2f}" for name in ("no price", "priced", "spread", "priced, with spread"))
    lines.append(f"| *slope* | | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def memory_table() -> str:
    """Return memory and processor time of whole fusions of the most sites."""
    lines = ["| fusion | peak memory over stacked input | processor time |", "| --- | ---: | ---: |"]
    for name, found in _benchmark("memory")["results"].items():
        if "gave_up_after" in found:
            lines.append(f"| `{name}` | | given up after {found['gave_up_after']} s |")
        else:
            lines.append(f"| `{name}` | {found['resident_multiple']:.1f} | {found['cpu_seconds']:.0f} s |")
    return "\n".join(lines) + "\n"


def topics_table() -> str:
    """Return the time of a default fusion of full-size topic models."""
    found = _benchmark("topics")["results"]
    time = f"{found['median']:.1f} s" if found["median"] else f"given up after {found.get('gave_up_after')} s"
    shown = "" if found["found"] is None else found["found"]
    return f"| default fusion of topics | topics found |\n| ---: | ---: |\n| {time} | {shown} |\n"


def spahm_speed_table() -> str:
    """Return times of SPAHM beside those of the direct implementation, a column of seeds each."""
    rows = json.loads((ROOT / "benchmarks/spahm.json").read_text())["direct"]["results"]
    lines = [
        "| run | seconds | times as fast | log posterior beyond direct's | components |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in ("direct", "one start", "default"):
        seconds = ", ".join(f"{row['medians'][name]:.3f}" for row in rows)
        both = [[row[of][name] for of in ("ratios", "ratios of minima")] for row in rows if name != "direct"]
        ratios = ", ".join(f"{of_medians:.1f} ({of_minima:.1f})" for of_medians, of_minima in both)
        beyond = ", ".join(f"{row['log_posterior'][name] - row['log_posterior']['direct']:+.4f}" for row in rows)
        groups = ", ".join(str(row["groups"][name]) for row in rows)
        lines.append(f"| {name} | {seconds} | {ratios} | {beyond if ratios else ''} | {groups} |")
    return "\n".join(lines) + "\n"


def spahm_scaling_table() -> str:
    """Return the time of one start by number of sites."""
    found = json.loads((ROOT / "benchmarks/spahm.json").read_text())["linear"]["results"]
    lines = ["| sites | local points | seconds | rounds | seconds a round |", "| ---: | ---: | ---: | ---: | ---: |"]
    for row in found["rows"]:
        time = median(row["seconds"])
        lines.append(
            f"| {row['sites']:,} | {row['local']:,} | {time:.2f} | {row['rounds']} | {time / row['rounds']:.3f} |"
        )
    return "\n".join(lines) + f"\n| *slope* | | | | {found['slope']:.2f} |\n"


def states_speed_table() -> str:
    """Return the time of a pass of the sticky HDP-HMM beside hmmlearn's variational one."""
    document = json.loads((ROOT / "benchmarks/hidden_markov.json").read_text())
    lines = [
        "| data | steps | D | K | ms a pass | over hmmlearn, log | over hmmlearn, scaling |",
        "| --- |" + " ---: |" * 6,
    ]
    for name, found in document["results"].items():
        size, ratio = document["settings"]["sizes"][name], found["ratio_to_hmmlearn"]
        lines.append(
            f"| {name} | {sum(size['lengths']):,} | {size['dim']} | {size['states']} "
            f"| {1000 * found['seconds_of_a_pass']['own']:.0f} | {ratio['log']:.2f} | {ratio['scaling']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def networks_speed_table() -> str:
    """Return times of network fusion over those of the direct implementations, memory, and tracing."""
    found = json.loads((ROOT / "benchmarks/networks.json").read_text())
    transport, matching = found["transport"]["results"], found["matching"]["results"]
    wide, tracing = found["matching"]["wide"], found["tracing"]

    def over(rows: list[dict[str, Any]], one: str, other: str) -> str:
        return ", ".join(f"{row['medians'][one] / row['medians'][other]:.2f}" for row in rows)

    wide_transport = found["transport"]["wide"]

    def over_iid(method: str, part: str = "skewed") -> str:
        return over([row for row in found[part]["results"] if row["method"] == method], "skewed", "iid")

    def passes(method: str, sites: str) -> str:
        rows = [row for row in found["skewed_images"]["results"] if row["method"] == method]
        return ", ".join(str(row["passes"][sites]) for row in rows)

    refit = found["refit"]["results"]

    gaps = ", ".join(f"{100 * (row['rebasin'] / row['direct'] - 1):+.3f} %" for row in matching)
    models = found["models"]["results"]
    memory = found["memory"]["results"]
    lines = [
        "| what | measured | target |",
        "| --- | ---: | ---: |",
        f"| OT of an MLPNet pair, over direct | {over(transport, 'ot', 'direct')} | 1 |",
        f"| OT of a pair of width 1024, over direct | {wide_transport['ot'] / wide_transport['direct']:.2f} | 1 |",
        f"| WB of the pair to convergence, over OT | {over(transport, 'wb', 'ot')} | 10 |",
        f"| weight matching 784-512-512-512-10, over direct | {over(matching, 'rebasin', 'direct')} | 0.5 |",
        f"| its squared distance, beyond direct's | {gaps} | 0 |",
        *(
            f"| {name} of sites with skewed classes, over those with all | {over_iid(name)} | 2 |"
            for name in ("rebasin", "consensus")
        ),
        *(
            f"| {name} of Fashion-MNIST sites at Dirichlet 0.05, over IID | {over_iid(name, 'skewed_images')} | 2 |"
            for name in ("rebasin", "consensus", "ot")
        ),
        *(
            f"| passes of {name} there, and of IID ones | {passes(name, 'skewed')}; {passes(name, 'iid')} | |"
            for name in ("rebasin", "consensus")
        ),
        *(
            f"| {what}, {refit['models']} ResNets, over an epoch on {refit['replaced']:,} images: time, memory |"
            f" {refit['over_epoch'][part]['seconds']:.2f}, {refit['over_epoch'][part]['bytes']:.2f} | |"
            for part, what in (("images", "matched images"), ("refit", "refit on them"))
        ),
        f"| width 2048, over its products and assignments |"
        f" {wide['seconds'] / (wide['products'] + wide['assignments']):.2f} | 1.5 |",
        f"| ResNet18 ({tracing['parameters'] / 1e6:.1f} million): tracing, proof |"
        f" {tracing['trace']:.1f} s, {tracing['prove']:.1f} s | 3 s |",
        *(
            f"| {name}, 32 models over 8 | {models['32'][name] / models['8'][name]:.1f} | 4 (linear) |"
            for name in ("ot", "wb", "rebasin")
        ),
        *(
            f"| peak memory beyond the models, {name} ResNet18s | {row['rise_over_models']:.1f} times them | 3 |"
            for name, row in memory.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def recurrent_speed_table() -> str:
    """Return times of Gromov fusion over its bare products and assignments, memory, and growth with width."""
    found = json.loads((ROOT / "benchmarks/recurrent.json").read_text())
    pairs, memory, scaling = found["pair"]["results"], found["memory"]["results"], found["scaling"]
    lines = ["| what | measured | target |", "| --- | ---: | ---: |"]
    for name in memory:
        rows = [row for row in pairs if row["method"] == name]
        ratios = ", ".join(f"{row['ratio']:.1f}" for row in rows)
        taken = median(row["seconds"]["fusion"] for row in rows)
        pair = f"a pair of LSTMs of {found['pair']['hidden']}, {name}, over bare ({taken:.1f} s)"
        lines.append(f"| {pair} | {ratios} | 3 |")
    lines += [f"| peak memory beyond the models, {name}, matrices | {size:.1f} | 10 |" for name, size in memory.items()]
    sizes = [row["hidden"] for row in scaling["results"]]
    lines.append(f"| power of the width, {sizes[0]} to {sizes[-1]}, of a step | {scaling['slope']:.2f} | 3 (cubic) |")
    return "\n".join(lines) + "\n"


def fisher_speed_table() -> str:
    """Return times of Fisher information and of merging by it, over what they are compared with, and memory."""
    found = json.loads((ROOT / "benchmarks/fisher.json").read_text())
    lines = ["| what | measured | target |", "| --- | ---: | ---: |"]
    rows = found["information"]["results"]
    ratios = ", ".join(f"{row['times_as_fast']:.1f}" for row in rows)
    taken = median(row["seconds"]["library"] for row in rows)
    lines.append(f"| exact diagonal, times as fast as a loop of backward passes ({taken:.1f} s) | {ratios} | 5 |")
    for shrinkage in (0.9, 0.0):
        rows = [row for row in found["masked"]["results"] if row["shrinkage"] == shrinkage]
        for how, said in (("as low", "as low a loss"), ("to 1e-8", "the minimum")):
            ratios = ", ".join(f"{row['times_as_fast'][how]:.0f}" for row in rows)
            steps = ", ".join(str(row["iterations"][how]) for row in rows)
            what = f"SSF to {said}, shrinkage {shrinkage:g} ({steps} steps), times as fast as 5,000 of descent"
            lines.append(f"| {what} | {ratios} | 50 |")
    for shrinkage in (0.0, 0.9):
        rows = [row for row in found["low_rank"]["results"] if row["shrinkage"] == shrinkage]
        ratios = ", ".join(f"{row['ratio']:.1f}" for row in rows)
        taken = median(row["seconds"]["merge"] for row in rows)
        lines.append(f"| low-rank merge, shrinkage {shrinkage:g}, over bare products ({taken:.0f} s) | {ratios} | 5 |")
    peak = max(row["peak_gib"] for row in found["low_rank"]["results"])
    lines.append(f"| low-rank merge, peak memory of the process, GiB | {peak:.1f} | 4 |")
    return "\n".join(lines) + "\n"


def per_sample_gradients_table() -> str:
    """Return the time of torch.func and of single backward passes over that of closed forms, a number for each seed."""
    found = json.loads((ROOT / "benchmarks/fisher.json").read_text())["gradients"]["results"]
    lines = [
        "| network | parameters | torch.func over closed forms | one by one over closed forms | over torch.func |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in dict.fromkeys(row["network"] for row in found):
        rows = [row for row in found if row["network"] == name]
        cells = []
        for slow, fast in (
            ("VECTORISED", "CLOSED_FORMS"),
            ("ONE_BY_ONE", "CLOSED_FORMS"),
            ("ONE_BY_ONE", "VECTORISED"),
        ):
            pairs = [row["seconds"] for row in rows if slow in row["seconds"] and fast in row["seconds"]]
            ratios = [pair[slow] / pair[fast] for pair in pairs]
            cells.append(", ".join(f"{ratio:.0f}" if ratio > 10 else f"{ratio:.1f}" for ratio in ratios))
        lines.append(f"| {name} | {rows[0]['parameters']:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def float_types_table() -> str:
    """Return how fast narrow floats are encoded and decoded, and the time of a bare cast over that."""
    found = json.loads((ROOT / "benchmarks/float_types.json").read_text())["types"]
    lines = [
        "| type, from and to | encoding, million a second | cast over it | decoding, million a second | cast over it |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in found["results"]:
        cells = (
            f"{found['values'] / row['seconds'][way] / 1e6:,.0f} | {row['cast_over_library'][way]:.2f}"
            for way in ("encode", "decode")
        )
        lines.append(f"| {row['type']}, {row['wide']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def mutation_table(result: str) -> str:
    """Return how many faults in each room its tests missed, those of its users too, and all tests now."""
    found = json.loads((ROOT / f"benchmarks/{result}.json").read_text())["summary"]
    lines = [
        "| package | faults | missed at first by its tests | by its users' tests too | now "
        "| equivalent | choice | open |",
        "| --- |" + " ---: |" * 7,
    ]
    counts = ("judged", "survived_own_tests", "survived_callers_too", "survived_now", "equivalent", "choice", "open")
    lines += [f"| {name} | {' | '.join(str(room[count]) for count in counts)} |" for name, room in found.items()]
    return "\n".join(lines) + "\n"


def mutation_sample_table() -> str:
    """Return how many faults of a sample over all files were noticed, by seed and tests."""
    found = json.loads((ROOT / "benchmarks/mutation_sample.json").read_text())
    lines = [
        "| seed | tests | faults | noticed | no fault at all | share | without these |",
        "| --- | --- |" + " ---: |" * 5,
    ]
    lines += [
        f"| {seed} | {tests} | {row['judged']} | {row['killed']} | {row['harmless']} |"
        f" {100 * row['share']:.0f} % | {100 * row['share_without_harmless']:.0f} % |"
        for seed, sample in found.items()
        for tests, row in sample["summary"].items()
    ]
    return "\n".join(lines) + "\n"


TABLES = {
    "demo": demo_table,
    "demo-short": short_demo_table,
    "first-contact": first_contact_table,
    "states": states_table,
    "speed": speed_table,
    "iteration": iteration_table,
    "scaling": scaling_table,
    "memory": memory_table,
    "topics": topics_table,
    "spahm-speed": spahm_speed_table,
    "spahm-scaling": spahm_scaling_table,
    "states-speed": states_speed_table,
    **KL_FUSION,
    **AGREEMENT,
    **AVERAGE,
    **BATTERY,
    **POINTS,
    **NETWORKS,
    **KRONECKER,
    **NETWORK_BATTERY,
    **AT_SITES,
    **SEEDS,
    **SUMMARIES,
    **ONE_SHOT_HEADS,
    **ONE_SHOT_NETWORKS,
    **RECURRENT,
    **TRANSFORMERS,
    **MERGING,
    **MERGEKIT,
    **FISHER,
    **BNN,
    **POSTERIORS,
    **EXACT,
    **FEDERATED,
    **SCALE,
    **TRUST,
    **HOUSE,
    **SCORES,
    **DRAWS,
    **SYNTHETIC_INPUTS,
    "networks-speed": networks_speed_table,
    "recurrent-speed": recurrent_speed_table,
    "fisher-speed": fisher_speed_table,
    "per-sample-gradients": per_sample_gradients_table,
    "float-types": float_types_table,
    "mutation": partial(mutation_table, "mutation"),
    "mutation-second": partial(mutation_table, "mutation_second"),
    "mutation-sample": mutation_sample_table,
}
TABLES["published-code"] = partial(published_code_table, TABLES)
TABLES = {name: cache(table) for name, table in TABLES.items()}  # a table is read again for every number of it


MAX_COLUMNS = 8
"""Columns of a table that a page shows as it is; wider ones are opened by the reader. Chosen by hand for a screen."""


def folded(text: str) -> str:
    """Return tables with those of too many columns folded."""

    def fold(table: re.Match[str]) -> str:
        columns = table[0].split("\n", 1)[0].replace("\\|", "").count("|") - 1
        if columns <= MAX_COLUMNS:
            return table[0]
        return f"<details><summary>Show the table of {columns} columns</summary>\n\n{table[0]}\n</details>\n"

    return re.sub(r"(?m)(?:^\|.*\n)+", fold, text)


def up_to_date(text: str, page: str) -> str:
    """Return a page with its tables, and the numbers in its text, as the results have them."""
    text = BLOCK.sub(lambda block: block[1] + folded(TABLES[block["name"]]()) + block[3], text)
    return with_numbers(text, page, TABLES)


def main() -> None:
    """Rewrite every marked block and number, or check that nothing would change."""
    stale = []
    for page in [name for name in sys.argv[1:] if name != "--check"] or PAGES:
        path = ROOT / page
        text = path.read_text()
        try:
            written = up_to_date(text, page)
        except LookupError as error:
            sys.exit(str(error))
        if written != text:
            stale.append(page)
            if "--check" not in sys.argv:
                path.write_text(written)
    if stale and "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(stale)}; run python experiments/write_tables.py")


if __name__ == "__main__":
    main()
