"""The contract of ``consilience demo``, on few digits: what it says, in which order, and what it writes."""

import contextlib
import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
from consilience.cli import demo
from consilience.core.scores import paired_difference
from tests.cli.running import command

N_DIGITS = 700
"""Digits that are left of 1,797."""


@pytest.fixture(scope="module", autouse=True)
def few_digits():
    values, classes, names = demo._load_features()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(demo, "_load_features", lambda: (values[:N_DIGITS], classes[:N_DIGITS], names))
        patched.setattr(demo, "HELD_OUT", 150)
        patched.setattr(demo, "INITIALISATIONS", 1)
        yield


@pytest.fixture(scope="module", params=[1, 2], ids=["one seed", "two seeds"])
def run_of_demo(request, tmp_path_factory):
    """The number of seeds, the folder in which the demo ran, and what it said."""
    folder = tmp_path_factory.mktemp("demo")
    options = () if request.param == 1 else ("--seeds", str(request.param))
    with contextlib.chdir(folder):
        done = command("demo", "out", *options)
    assert (done.code, done.err) == (0, "")
    return request.param, folder, done.out


@pytest.fixture
def out(run_of_demo):
    """The folder that the demo wrote."""
    return run_of_demo[1] / "out"


@pytest.fixture
def ran(run_of_demo, out):
    """The number of seeds, what was said, and the record."""
    return run_of_demo[0], run_of_demo[2], json.loads((out / "demo.json").read_text())


def rows_said(text):
    """The names of the table's rows, from its head to its remark."""
    lines = text.splitlines()
    head = next(number for number, line in enumerate(lines) if line.strip().startswith("log density"))
    end = next(number for number, line in enumerate(lines) if line.startswith("(log density"))
    return [re.split(r"  +", line)[0] for line in lines[head + 1 : end]], lines[head + 1 : end]


def test_it_says_what_it_does_then_the_verdict_then_the_table_with_the_default_first(ran):
    seeds, said, record = ran
    lines = said.splitlines()
    assert lines[0].startswith("5 sites train on handwritten digits")
    count = "1 seed" if seeds == 1 else f"{seeds} seeds"
    assert re.fullmatch(rf"{count}: about \d+ s of processor time, estimated from a matrix product here\.", lines[1])
    assert lines[3] == f"verdict, from the files alone: {record['verdicts'][0]}"
    names, _ = rows_said(said)
    assert names[0] == "fused"
    assert names == [name for name in record["results"] if not name.startswith("site ")]
    assert said.index("verdict,") < said.index("log density")
    assert len(record["verdicts"]) == seeds


def test_the_numbers_said_drawn_and_recorded_are_the_same(ran, out):
    _, said, record = ran
    picture = ElementTree.parse(out / "demo.svg").getroot()  # noqa: S314  (made just before)
    words = [element.text for element in picture.findall("{*}text")]
    names, lines = rows_said(said)
    assert [word for word in words if word in names] == names  # the same rows in the same order
    for name, line in zip(names, lines, strict=True):
        row = record["results"][name]
        for column, digits in (("log_density", 2), ("mutual_information", 3)):
            number = f"{np.mean(row[column]):.{digits}f}"
            assert number in line
            assert number in words
        if name != "fused":
            difference = record["fused_minus"][name]
            low, high = difference["interval"]
            assert f"{difference['mean']:+.2f} ± {(high - low) / 2:.2f}" in line


def test_differences_are_paired_by_digit_and_with_more_seeds_by_seed(ran):
    seeds, _, record = ran
    results, differences = record["results"], record["fused_minus"]
    for name, difference in differences.items():
        fused, other = (np.array(results[row]["log_density"]) for row in ("fused", name))
        assert_allclose(difference["mean"], (fused - other).mean(), rtol=1e-9)
        assert difference["n"] == (150 if seeds == 1 else seeds)
        if seeds > 1:
            expected = paired_difference(fused, other, np.ones(seeds))
            assert_allclose(difference["interval"], expected.interval, rtol=1e-9)


def test_the_words_under_the_table_follow_from_the_intervals(ran):
    _, said, record = ran
    texts = {"fused is ahead of: ": 1, "fused is behind: ": -1, "fused is not distinguished from: ": 0}
    told = {}
    for line in said.splitlines():
        for text, sign in texts.items():
            if line.startswith(text):
                told |= dict.fromkeys(line.removeprefix(text).split("; "), sign)
    signs = {
        name: int(np.sign(difference["interval"][0]) + np.sign(difference["interval"][1])) // 2
        for name, difference in record["fused_minus"].items()
    }
    assert told == signs


def test_it_writes_the_files_it_names_and_the_fused_one_is_scored(ran, out):
    seeds, said, record = ran
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    of_seeds = {f"seed-{seed}/{name}.safetensors" for seed in range(seeds) for name in ("fused", "site-1", "site-5")}
    assert {"demo.json", "demo.svg", "report.html"} | of_seeds <= written
    assert all(name in said for name in ("demo.json", "demo.svg", "report.html"))
    values, classes, _ = demo._load_features()
    for seed in range(seeds):
        held_out = values[demo._split_rows(classes, np.random.default_rng(seed))[1]]
        found = cs.log_density(out / f"seed-{seed}" / "fused.safetensors", held_out).mean()
        assert_allclose(found, record["results"]["fused"]["log_density"][seed], rtol=1e-9)


def test_the_estimate_is_in_proportion_to_the_machine_and_grows_with_the_seeds(monkeypatch):
    clock = iter(np.arange(1000.0))
    monkeypatch.setattr(demo.time, "process_time", lambda: next(clock))
    slow = demo.estimated_seconds(1)
    assert demo.estimated_seconds(3) - slow == 2 * demo._PRODUCTS_PER_SEED * 1.0
    fast_clock = iter(np.arange(1000.0) / 100)
    monkeypatch.setattr(demo.time, "process_time", lambda: next(fast_clock))
    assert_allclose(demo.estimated_seconds(1), slow / 100)


def test_quiet_says_nothing(tmp_path):
    done = command("demo", tmp_path / "out", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
