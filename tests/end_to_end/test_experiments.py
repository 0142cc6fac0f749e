"""The pure parts of the experiments: scores, summaries, targets and figures, on numbers made up here."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "experiments"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "experiments/kl_fusion"))
import compare
import figure
import record
import summary
import topics
from simulate import ARMS, NOISES, SEPARATIONS, Setting


def scores(components, distance):
    return {"components": components, "hausdorff": distance, "seconds": 1.0, "rand": 1.0, "left_out": 0}


def row(seed, components, distance):
    methods = {name: {"scores": scores(5, 1.0), "library_source": "state"} for name in compare.METHODS}
    methods["auto"]["scores"] = scores(components, distance)
    methods["pooled"]["scores"] = None
    methods["largest site"]["scores"] = {"components": 4, "hausdorff": None, "seconds": None}
    return {"seed": seed, "true": 5, "locals": 100, "methods": methods}


def test_hausdorff_sees_what_either_set_lacks():
    points = np.array([[0.0, 0.0], [3.0, 4.0]])
    assert compare.hausdorff(points, points[::-1]) == 0.0
    assert compare.hausdorff(points, points[:1]) == compare.hausdorff(points[:1], points) == 5.0


def test_scores_leave_out_what_was_left_out():
    found = compare.Found(np.eye(2), 2, np.array([1, 1, 0, -1]))
    result = compare.scores(found, np.eye(2), np.array([0, 0, 1, 1]))
    assert result == {"components": 2, "hausdorff": 0.0, "seconds": None, "rand": 1.0, "left_out": 1}


def test_targets_are_judged_by_means_and_by_part_of_the_seeds():
    setting = Setting(separation=0.5, most=ARMS[0])
    everything, seen, unseen = summary.PARTS
    rows = [row(seed, 5, 1.0) for seed in summary.PARTS[seen]] + [row(seed, 6, 1.2) for seed in summary.PARTS[unseen]]
    found = {one["seeds"]: one for one in summary.targets([summary.point(setting, rows)])}
    judged = {part: (one["hausdorff_met"], one["error_met"]) for part, one in found.items()}
    assert judged == {everything: (False, False), seen: (True, True), unseen: (False, False)}
    assert found[unseen]["hausdorff_over_floor"] == pytest.approx(1.2)


def test_a_method_that_was_not_run_has_no_summary():
    rows = [row(0, 5, 1.0)]
    assert summary.summary(rows, "pooled") == {}
    assert summary.against(rows, "pooled") == {}


def test_work_is_done_once_and_again_only_when_asked(tmp_path):
    done = []

    def work(name):
        done.append(name)
        return {"times": len(done)}

    path = tmp_path / "results/one.json"
    record.remembered(path, ["a", "b"], set(), "first", work)
    record.remembered(path, ["a", "b", "c"], {"b"}, "second", work)
    assert done == ["a", "b", "b", "c"]
    stored = json.loads(path.read_text())["methods"]
    assert {name: one["library_source"] for name, one in stored.items()} == {"a": "first", "b": "second", "c": "second"}


def test_results_are_json_with_lists_on_one_line():
    text = record.as_text({"a": [1.23456789, 2.0, None], "b": {"c": []}})
    assert json.loads(text) == {"a": [1.23457, 2.0, None], "b": {"c": []}}
    assert '"a": [ 1.23457, 2.0, null ]' in text


@pytest.mark.slow
def test_figures_are_drawn_and_are_the_same_bytes_again(tmp_path):
    settings = {Setting(s, 0.5, most) for s in SEPARATIONS for most in ARMS}
    settings |= {Setting(0.5, sigma, most) for sigma in NOISES for most in ARMS}
    points = [summary.point(one, [row(0, 5, 1.0)]) for one in sorted(settings, key=lambda one: one.name)]
    columns = {name: {"log_likelihood": [-7.0, -7.1], "seconds": [1.0, 2.0]} for name in ("parametric", "auto")}
    for name in ("a", "b"):
        figure.draw(points, tmp_path / f"{name}.svg")
        figure.draw_topics(columns, tmp_path / f"{name}-topics.svg")
        figure.draw_topics_time(
            {**columns, "pooled": {**columns["auto"], "seconds": [None]}}, tmp_path / f"{name}-time.svg"
        )
    for ending in (".svg", "-topics.svg", "-time.svg"):
        assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()


def test_every_newsgroup_has_a_site():
    assert topics.site_of("comp.graphics") == "comp"
    assert [topics.site_of(name) for name in ("alt.atheism", "misc.forsale", "soc.religion.christian")] == ["other"] * 3


def test_topics_are_compared_by_seed():
    columns = {"log_likelihood": [-7.0, -7.2], "topics": [10, 12], "seconds": [None, None]}
    found = topics.summary(columns, [-7.1, -7.3])
    assert found["difference"] == pytest.approx(0.1)
    assert found["topics"] == 11
    assert found["seconds"] is None
