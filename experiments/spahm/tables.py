"""The results of the experiments with points as Markdown tables, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def _read(name: str) -> dict[str, Any]:
    return json.loads((HERE / f"{name}.json").read_text())


def simulation_table() -> str:
    """Return Hausdorff distances over that of the true matching, errors of the number, and errors of the law."""
    names = {
        "SPAHM": "SPAHM",
        "SPAHM, published settings": "published settings",
        "SPAHM of k-means": "SPAHM of k-means",
        "k-means matching": "k-means, G given",
        "pooled k-means": "pooled k-means, G given",
    }
    finding = list(names)[:3]
    lines = [
        f"| noise | J | {' | '.join(names.values())} | G: "
        f"{' | G: '.join(names[name] for name in finding)} | μ₀ | s | s₀ |",
        f"|{' ---: |' * (5 + len(names) + len(finding))}",
    ]
    for point in _read("simulation")["points"]:
        found = point["summary"]
        over = [f"{found[name]['over_floor']['mean']:.3f} ± {found[name]['over_floor']['sd']:.3f}" for name in names]
        wrong = [f"{found[name]['error']['mean']:.1f}" for name in finding]
        law = [f"{100 * found['SPAHM'][key]['mean']:.1f} %" for key in ("mean_error", "within_error", "between_error")]
        lines.append(f"| {point['noise']:g} | {point['sites']} | {' | '.join([*over, *wrong, *law])} |")
    return "\n".join(lines) + "\n"


def temperatures_table() -> str:
    """Return errors and calibration at home and everywhere, with paired changes against the local processes."""
    lines = [
        "| model | points | self | against local | across | against local | log density, across | in 95 %, across |",
        f"| --- |{' ---: |' * 7}",
    ]
    for name, one in _read("temperatures")["summary"].items():
        cells = [f"{one['points']['mean']:,.0f}"]
        for where in ("self", "across"):
            error, change = one[f"rmse_{where}"], one[f"change_{where}_percent"]
            low, high = one[f"change_{where}_interval"]
            against = "" if name == "local, 50 points" else f"{change:+.1f} ± {(high - low) / 2:.1f} %"
            cells += [f"{error['mean']:.3f} ± {error['sd']:.3f}", against]
        cells += [f"{-one['nlpd_across']['mean']:.3f}", f"{100 * one['coverage_across']['mean']:.1f} %"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def motion_capture_table() -> str:
    """Return how labels of all frames agree with the exercises, matched and decoded, paired against KL-fusion."""
    lines = [
        "| labels from | states | Rand | adjusted Rand | against KL-fusion | mutual information | against KL-fusion "
        "| decoded: adjusted Rand | mutual information |",
        f"| --- |{' ---: |' * 8}",
    ]
    for name, one in _read("mocap")["arms"]["main"]["summary"].items():
        cells = [f"{one['states']['mean']:.1f}", f"{one['matched_rand']['mean']:.3f}"]
        for score in ("adjusted_rand", "mutual_information"):
            found = one[f"matched_{score}"]
            low, high = found["interval"]
            against = "" if name == "KL-fusion" else f"{found['minus_reference']:+.3f} ± {(high - low) / 2:.3f}"
            cells += [f"{found['mean']:.3f} ± {found['sd']:.3f}", against]
        for score in ("adjusted_rand", "mutual_information"):
            decoded = one.get(f"decoded_{score}")
            cells.append(f"{decoded['mean']:.3f}" if decoded else "")
        lines.append(f"| {name.replace('told', 'matched')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def gaussian_topics_table() -> str:
    """Return coherence of Gaussian topics, with paired differences to SPAHM's."""
    lines = [
        "| sites | topics from | topics | UCI | against SPAHM | NPMI | seconds |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for arrangement, methods in _read("gaussian_topics")["summary"].items():
        for name, one in methods.items():
            uci = one["uci"]
            low, high = uci.get("interval", (0.0, 0.0))
            against = f"{uci['difference']:+.2f} ± {(high - low) / 2:.2f}" if "difference" in uci else ""
            lines.append(
                f"| {arrangement} | {name} | {one['topics']['mean']:.0f} | {uci['mean']:.2f} ± {uci['sd']:.2f} "
                f"| {against} | {one['npmi']['mean']:.3f} ± {one['npmi']['sd']:.3f} | {one['seconds']:.2f} |"
            )
    return "\n".join(lines) + "\n"


TABLES = {
    "motion-capture": motion_capture_table,
    "gaussian-topics": gaussian_topics_table,
    "spahm-simulation": simulation_table,
    "temperatures": temperatures_table,
}
