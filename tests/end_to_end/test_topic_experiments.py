"""The pure parts of the experiments on topics in a space of embeddings, on articles made up here."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "experiments/spahm"))
import gaussian_topics

REFERENCE = [["a", "b", "c"], ["a", "b"], ["c", "d"], ["a", "d"]]


def test_words_are_those_of_subject_and_body():
    text = "From: me@x.org\nSubject: Re: Orbits of Comets\nLines: 2\n\nMail you@y.org: comets, ORBITS, un-known x2y\n"
    known = frozenset(["orbits", "comets", "you", "org", "from", "mail"])
    assert gaussian_topics.words_of(text, known) == ["orbits", "comets", "mail", "comets", "orbits"]


def test_coherence_is_mutual_information_of_words_that_share_a_window():
    """All articles are shorter than a window, so each is one; counted by hand."""
    found = gaussian_topics.coherences([["a", "b"], ["a", "c"]], REFERENCE)
    together, single = np.array([2 / 4, 1 / 4]), np.array([3 / 4 * 2 / 4, 3 / 4 * 2 / 4])
    information = np.log(together / single)
    assert found["uci"] == pytest.approx(information, abs=1e-9)
    assert found["npmi"] == pytest.approx(information / -np.log(together), abs=1e-9)


def test_methods_are_compared_by_seed():
    rows = [
        {
            "SPAHM": {"topics": 10, "uci": -1.0 - seed, "npmi": 0.1, "distance": 2.0, "seconds": 1.0},
            "KL-fusion": {"topics": 12, "uci": -0.5 - seed, "npmi": 0.2, "distance": 1.0, "seconds": 3.0},
        }
        for seed in range(3)
    ]
    found = gaussian_topics.summary(rows, "KL-fusion")
    assert found["topics"] == {"mean": 12.0, "sd": 0.0}
    assert found["uci"]["difference"] == pytest.approx(0.5)
    assert found["uci"]["interval"] == pytest.approx([0.5, 0.5])
    assert found["seconds"] == 3.0
    assert "difference" not in gaussian_topics.summary(rows, "SPAHM")["uci"]
