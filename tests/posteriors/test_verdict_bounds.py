"""What the verdict of mixtures says of real rows, against the rows that benchmarks held out."""

import json
from pathlib import Path

import pytest

from consilience.posteriors.verdict import held_out_bound

BATTERY = Path(__file__).parents[2] / "experiments" / "battery"


@pytest.mark.parametrize("half", ["tune", "second"])
def test_held_out_rows_seldom_lose_more_than_is_said(half):
    rows = [row for row in json.loads((BATTERY / f"verdicts-{half}.json").read_text())["rows"] if row["loss"]]
    assert len(rows) > 200
    within = sum(row["true_loss"] <= held_out_bound(row["loss"]) for row in rows)
    assert within >= 0.95 * len(rows)


def test_nor_those_of_real_sets_that_shaped_nothing():
    cells = [row["methods"] for row in json.loads((BATTERY / "sets.json").read_text())["cells"]]
    fused = [one["default"].get("fused", one["default"]) for one in cells]
    losses = [
        one["concatenation"]["log_likelihood"] - of["log_likelihood"] for one, of in zip(cells, fused, strict=True)
    ]
    within = sum(loss <= held_out_bound(of["virtual_loss"]) for loss, of in zip(losses, fused, strict=True))
    assert len(cells) == 70
    assert within >= 0.95 * len(cells)
