"""The battery of network fusion: its cells, their data and training, its ensembles and its sums."""

import json
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "experiments"))
from network_battery import baselines, cells, data, default, run, scores, summary, training

import consilience as cs

SMALL = replace(cells.setting_named("tune-04"), name="small", widths=(8,), rows=400)


@pytest.fixture
def cell(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CACHE", tmp_path)
    monkeypatch.setattr(training, "LEAST_STEPS", 20)
    training.train_cell(SMALL, lambda line: None)
    return training.load_cell(SMALL)


def test_cells_are_unique_and_halves_have_the_same_make_up():
    halves = [cells.plan(half) for half in cells.HALVES]
    settings = [setting for half in halves for setting in half]
    assert [len(half) for half in halves] == [26, 26]
    assert len({setting.name for setting in settings}) == len({setting.seed for setting in settings}) == 52
    assert len({cells.digest(cells.settings_of(replace(one, name="", half="", seed=0))) for one in settings}) == 52
    for axis in cells.AXES:
        tune, report = (Counter(getattr(setting, axis) for setting in half) for half in halves)
        assert tune == report, axis


def test_halves_share_no_widths_of_an_architecture():
    tune, report = ({(one.architecture, one.widths) for one in cells.plan(half)} for half in cells.HALVES)
    assert not tune & report


def test_no_row_is_in_both_halves():
    numbers = np.arange(1001)
    tune, report = (data.of_half(numbers, numbers, half)[1] for half in cells.HALVES)
    np.testing.assert_array_equal(np.sort(np.concatenate([tune, report])), numbers)


@pytest.mark.parametrize("skew", ["IID", "0.5", "0.05", "strong and weak"])
def test_every_row_is_at_one_site_and_the_same_in_every_run(skew):
    sizes = data.STRONG_AND_WEAK if skew == "strong and weak" else (1000, 1000, 1000)
    setting = replace(SMALL, skew=skew, sites=3, rows=sum(sizes))
    labels = np.random.default_rng(0).integers(10, size=sum(sizes))
    divided, again = (data.divide(labels, setting, np.random.default_rng(7)) for _ in range(2))
    assert [rows.tolist() for rows in divided] == [rows.tolist() for rows in again]
    np.testing.assert_array_equal(np.sort(np.concatenate(divided)), np.arange(len(labels)))
    assert min(map(len, divided)) >= data.LEAST_ROWS
    if "0" not in skew:
        assert [len(rows) for rows in divided] == list(sizes)


def test_scalings_are_one_picture_in_three_units():
    setting = replace(SMALL, data="mnist", side=4)
    pixels = np.random.default_rng(0).integers(256, size=(5, 8, 8, 1))
    byte, unit, standard = (
        data.scaled(pixels, replace(setting, scaling=scaling)) for scaling in ("byte", "unit", "standard")
    )
    mean, deviation = data.PIXELS[setting.data]
    assert byte.shape == (5, 1, 4, 4)
    np.testing.assert_allclose(byte[0, 0, 1, 2], pixels[0, 2:4, 4:6, 0].mean())
    np.testing.assert_allclose(unit, byte / 255, rtol=1e-6)
    np.testing.assert_allclose(standard * deviation + mean, unit, atol=1e-6)


def test_texts_are_padded_before_and_cut_after():
    tokens = np.array([5, 6, data.VOCABULARY + 3, *range(2, 2 + data.LENGTH + 1)])
    rows = data.padded(tokens, np.array([0, 3, len(tokens)]))
    assert rows[0].tolist() == [0] * (data.LENGTH - 3) + [5, 6, data.UNKNOWN]
    assert rows[1].tolist() == list(range(2, 2 + data.LENGTH))


def test_the_same_seed_trains_the_same_bytes_and_own_starts_differ(cell):
    models = [training.train(SMALL, cell.data, 0) for _ in range(2)]
    for name, values in models[0].state_dict().items():
        np.testing.assert_array_equal(values, models[1].state_dict()[name])
        np.testing.assert_array_equal(values, cell.models[0].state_dict()[name])
    starts = {training.seeds(SMALL, site)[0] for site in range(5)}
    common = {training.seeds(replace(SMALL, start="common"), site)[0] for site in range(5)}
    assert (len(starts), len(common)) == (5, 1)


def test_networks_are_trained_once(cell, monkeypatch):
    monkeypatch.setattr(training, "train", None)
    training.train_cell(SMALL, lambda line: None)
    np.testing.assert_array_equal(
        training.outputs(cell.models[1], cell.data.test[0]), training.load_cell(SMALL).answers[1]
    )


def test_the_stationary_ensemble_is_the_fixed_point_of_its_chain():
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 100, size=(3, 4))
    probabilities = rng.dirichlet(np.ones(4), size=(3, 6))
    found = baselines.stationary(probabilities, counts)
    shares = counts / counts.sum(axis=0)
    for row in range(6):
        chain = sum(np.outer(probabilities[site, row], shares[site]) for site in range(3))
        mixed = (1 - baselines.MIXED) * chain + baselines.MIXED * (counts.sum(axis=0) / counts.sum())[:, None]
        np.testing.assert_allclose(np.linalg.matrix_power(mixed, 200)[:, 0], found[row], atol=1e-12)


def test_label_shift_makes_the_stationary_ensemble_the_pooled_posterior():
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 1000, size=(4, 5))
    densities = rng.random((7, 5))  # p(x | c), the same at all sites
    joint = densities * (counts / counts.sum(axis=1, keepdims=True))[:, None]
    pooled = densities * counts.sum(axis=0)
    found = baselines.stationary(joint / joint.sum(axis=2, keepdims=True), counts)
    # The share of the prior in the chain keeps it this far from exact.
    np.testing.assert_allclose(found, pooled / pooled.sum(axis=1, keepdims=True), atol=20 * baselines.MIXED)


@pytest.mark.parametrize("combine", [baselines.stationary, baselines.class_weighted])
def test_classes_in_equal_proportions_make_every_ensemble_the_mean_by_n(combine):
    counts = np.outer([1, 2, 5], [10, 20, 30, 40])
    probabilities = np.random.default_rng(0).dirichlet(np.ones(4), size=(3, 6))
    expected = baselines.mean_by_n(probabilities, counts)
    np.testing.assert_allclose(combine(probabilities, counts), expected, atol=2 * baselines.MIXED)


def test_a_class_that_no_site_has_counts_as_observations():
    shares = baselines.class_shares(np.array([[3, 0, 0], [1, 4, 0]]))
    np.testing.assert_allclose(shares, [[0.75, 0.0, 0.375], [0.25, 1.0, 0.625]])


def test_harm_is_a_whole_interval_below_the_best_site(cell):
    best = scores.best_site(cell)
    right, chance = cell.answers[best], -cell.answers[best]
    same, worse = scores.scores(cell, right), scores.scores(cell, chance)
    assert same["over_best_site"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert not scores.is_harm(same)
    assert scores.is_harm(worse)
    assert same["accuracy"] == max(scores.site_accuracies(cell))


def result(accuracy, low, high, text, candidates):
    verdict = {"code": "chosen", "text": text}
    interval = {"mean": (low + high) / 2, "low": low, "high": high}
    told = {name: {"score": score, "accuracy": true} for name, (score, true) in candidates.items()}
    return {"accuracy": accuracy, "over_best_site": interval, "seconds": 1.0, "verdict": verdict, "candidates": told}


def test_a_summary_tells_harm_regret_and_whether_the_criterion_ranks():
    good = {"a": (0.1, 0.9), "b": (0.2, 0.8), "c": (0.3, 0.7)}
    bad = {"a": (0.3, 0.9), "b": (0.2, 0.8), "c": (0.1, 0.7)}
    said = "On synthetic inputs it is better than every site's own network."
    rows = [
        {"sites": [0.8, 0.6], "methods": {"default, with": result(0.9, 0.05, 0.15, said, good)}},
        {"sites": [0.8, 0.6], "methods": {"default, with": result(0.7, -0.15, -0.05, "", bad)}},
        {"sites": [0.8, 0.6], "methods": {"default, with": {"gave_up": 900}}},
    ]
    sums, choice = summary.summary(rows, "default, with"), summary.choice_summary(rows, "with")
    assert (sums["cells"], sums["missing"], sums["harms"], sums["gains"]) == (2, 1, 1, 1)
    assert [summary.rank_correlation(row["methods"]["default, with"]) for row in rows[:2]] == pytest.approx([1, -1])
    assert choice["never_worse"] == choice["near"] == 0.5
    assert choice["worst_regret"] == pytest.approx(0.2)
    assert choice["better"] == {"yes": {"cells": 1, "harms": 0}, "no": {"cells": 1, "harms": 1}}


def test_a_run_remembers_what_it_has_scored(cell, monkeypatch, tmp_path):
    names = ["average by n", "default before", "stationary ensemble", "Bayesian, share, by n", "default, none"]
    run.run(SMALL, names, set(), 60, "some source", tmp_path)
    monkeypatch.setattr(run, "score", None)
    run.run(SMALL, names, set(names), 60, "some source", tmp_path)
    row = json.loads(json.dumps(run.row_of(SMALL, tmp_path)))
    assert list(row["methods"]) == [name for name in names if "Bayesian" not in name]  # which does not apply
    assert all(summary.has_scores(result) for result in row["methods"].values())
    assert row["sites"] == scores.site_accuracies(cell)
    assert "stationary ensemble" in summary.text([row])


def test_candidates_are_modules_or_make_them():
    module = torch.nn.Linear(2, 2)
    fusion = SimpleNamespace(candidates={"average": module, "refit": lambda: module})
    assert default.candidate_modules(fusion) == {"average": module, "refit": module}
    assert default.candidate_modules(SimpleNamespace()) == {}


def test_counts_alone_are_a_description_without_the_rest():
    @dataclass(frozen=True)
    class Described:
        description: cs.Description

    counts = {"classes": ("a", "b"), "class_counts": np.array([5.0, 3.0])}
    full = Described(cs.Description("abc", 8, (2,), class_features=np.zeros((2, 4)), **counts))
    alone = default.counts_alone(full).description
    assert (alone.digest, alone.n_observations, alone.classes) == ("abc", 8, ("a", "b"))
    assert alone.class_counts.tolist() == [5, 3]
    assert alone.class_features is None
    assert alone.input_shape is None
