"""Rounds in trouble end with the bytes of the undisturbed round, at the server and at all sites.

All kinds of messages over all transports are in benchmarks/round_chaos.py; here is one of each way to take part.
"""

import pytest

from tests.end_to_end import chaos

WAYS = ["em", "rounds", "masked sum"]
"""Models and requests, several rounds of models, and sums under masks."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the digest of the undisturbed model, by kind."""
    known = {}

    def of(kind):
        if kind not in known:
            outcome, known[kind] = chaos.run(kind, "folder", tmp_path_factory.mktemp("calm") / "round")
            assert outcome.lost is None, outcome
        return known[kind]

    return of


def ends_well(kind, transport, undisturbed, home):
    """Play a case in trouble."""
    outcome, model = chaos.run(kind, transport, home / "round", chaos.Trouble.over(transport, 0))
    assert outcome.lost is None, outcome
    assert outcome.events["kill site"] >= 1, outcome
    assert model == undisturbed(kind), outcome


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["folder", "bucket"])
@pytest.mark.parametrize("kind", WAYS)
def test_a_round_in_trouble_has_the_bytes_of_the_undisturbed_one(kind, transport, undisturbed, tmp_path):
    ends_well(kind, transport, undisturbed, tmp_path)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("kind", WAYS)
def test_a_round_over_flower_in_trouble_has_the_bytes_of_the_undisturbed_one(kind, undisturbed, tmp_path):
    ends_well(kind, "flower", undisturbed, tmp_path)
