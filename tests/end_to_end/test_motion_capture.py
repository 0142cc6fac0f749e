"""The pure parts of the motion-capture experiment: measures, labels through a matching, summaries; made-up numbers."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "experiments/spahm"))
import mocap


def test_measures_are_those_of_partitions():
    truth = np.repeat([0, 1, 2], [5, 3, 2])
    perfect = {"rand": 1.0, "adjusted_rand": 1.0, "mutual_information": 1.0, "hamming": 0.0}
    assert mocap.measures(5 - truth, truth) == pytest.approx(perfect)
    found = mocap.measures(np.array([7, 7, 7, 7, 9, 9, 9, 9, 7, 7]), truth)
    assert found["hamming"] == pytest.approx(1.0 - (4 + 3) / 10)  # two states stand for two exercises at most
    pairs = [(i, j) for i in range(10) for j in range(i)]
    labels = np.array([7, 7, 7, 7, 9, 9, 9, 9, 7, 7])
    agree = np.mean([(truth[i] == truth[j]) == (labels[i] == labels[j]) for i, j in pairs])
    assert found["rand"] == pytest.approx(agree)


def trial():
    fits = [
        SimpleNamespace(labels=np.array([0, 1, 1]), model=SimpleNamespace(n_states=2)),
        SimpleNamespace(labels=np.array([1, 0]), model=SimpleNamespace(n_states=2)),
    ]
    return mocap.Trial((fits[0], fits[1]), None, SimpleNamespace(exercises=np.array([3, 4, 4, 4, 5])), 0)


def test_states_of_subjects_are_apart_until_they_are_matched():
    assert trial().states().tolist() == [0, 1, 1, 3, 2]
    assert trial().through(np.array([0, 1, 2, 1])).tolist() == [0, 1, 1, 1, 2]


def test_states_that_are_left_out_stay_by_themselves():
    assert trial().through(np.array([0, -1, -1, 0])).tolist() == [0, 1, 1, 0, 2]


def test_the_ceiling_gives_every_state_its_most_frequent_exercise():
    found = mocap.score(mocap.TOLD, trial())
    assert found["matched"]["adjusted_rand"] == 1.0
    assert found["states"] == 3


def test_methods_are_compared_by_seed():
    rows = [{"states": 3, "matched": dict.fromkeys(mocap.MEASURES, value), "decoded": None} for value in (0.4, 0.5)]
    better = [{**row, "matched": {name: value + 0.1 for name, value in row["matched"].items()}} for row in rows]
    found = mocap.summary(better, rows)
    assert found["matched_rand"]["mean"] == pytest.approx(0.55)
    assert found["matched_rand"]["minus_reference"] == pytest.approx(0.1)
    assert found["matched_rand"]["interval"] == pytest.approx([0.1, 0.1])
    assert not any(name.startswith("decoded") for name in found)
