"""Write the tables of README and docs from the results of the experiments: ``python experiments/write_tables.py``.

``--check`` writes nothing and exits 1 when a table is out of date.
"""

import json
import re
import sys
from pathlib import Path
from statistics import mean, stdev

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/demo.md", "docs/adr/0003-the-number-of-components.md")
BLOCK = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def demo_table() -> str:
    """Return the demo's comparison as a Markdown table, sites as their mean and their best."""
    results = json.loads((ROOT / "experiments/demo/results.json").read_text())["results"]
    pooled = results["all data pooled"]["log_likelihood"]
    lines = [
        "| model | log likelihood | gap to pooled | mutual information | components |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    compared = {name: columns for name, columns in results.items() if not name.startswith("site ")}
    for name, columns in sorted(compared.items(), key=lambda item: mean(item[1]["log_likelihood"])):
        fit, information = columns["log_likelihood"], columns["mutual_information"]
        gaps = [own - other for own, other in zip(fit, pooled, strict=True)]
        shown = f"**{name}**" if name.startswith("fused") else name
        lines.append(
            f"| {shown} | {mean(fit):.2f} ± {stdev(fit):.2f} | {mean(gaps):.2f} ± {stdev(gaps):.2f} "
            f"| {mean(information):.3f} ± {stdev(information):.3f} | {mean(columns['components']):.1f} |"
        )
    return "\n".join(lines) + "\n"


def size_table() -> str:
    """Return the error of the number of components by arm, separation and limit."""
    rows = json.loads((ROOT / "experiments/size/results.json").read_text())["results"]
    lines = [
        "| sites hold | separation | limit | mean error of the number | worst | largest site alone errs by |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for arm, separation, limit in dict.fromkeys((r["arm"], r["separation"], r["max_components"]) for r in rows):
        chosen = [r for r in rows if (r["arm"], r["separation"], r["max_components"]) == (arm, separation, limit)]
        errors = [abs(r["found"] - r["true"]) for r in chosen]
        largest = mean(abs(r["largest_site"] - r["true"]) for r in chosen)
        shown = "default" if limit is None else limit
        lines.append(f"| {arm} | {separation} | {shown} | {mean(errors):.2f} | {max(errors)} | {largest:.2f} |")
    return "\n".join(lines) + "\n"


TABLES = {"demo": demo_table, "size": size_table}


def main() -> None:
    """Rewrite every marked block, or check that nothing would change."""
    stale = []
    for page in PAGES:
        path = ROOT / page
        text = path.read_text()
        written = BLOCK.sub(lambda block: block[1] + TABLES[block["name"]]() + block[3], text)
        if written != text:
            stale.append(page)
            if "--check" not in sys.argv:
                path.write_text(written)
    if stale and "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(stale)}; run python experiments/write_tables.py")


if __name__ == "__main__":
    main()
