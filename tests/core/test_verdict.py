"""The verdict of a fusion says how it ended and what to do, for every way to end."""

from dataclasses import replace

import numpy as np
import pytest

import consilience as cs


@pytest.fixture(scope="module")
def fusion():
    family = cs.families.Point(2)
    sites = [cs.Posterior(family, np.array([[0.0, 0.0], [9.0, 9.0]]) + shift) for shift in (0.0, 0.1, 0.2)]
    return cs.fuse(sites, "kmeans", n_components=2)


@pytest.mark.parametrize("status", cs.results.Status, ids=lambda status: status.name)
def test_a_verdict_is_how_the_fusion_ended_and_the_remedy(fusion, status):
    verdict = replace(fusion, status=status).verdict
    ending, _, advice = status.value.partition("; ")
    assert verdict.code == status.name.lower()
    if status is not cs.results.Status.CONVERGED:
        assert verdict.text.endswith(f"; {ending}.")
    assert verdict.text.startswith("Whether the fused model is no worse than the best of the models is not known")
    assert not advice or advice not in verdict.text
    assert (verdict.remedy or "") == (status.remedy or "")
    assert verdict.harmless is None


@pytest.mark.parametrize(
    ("harmless", "remedy", "kind"),
    [
        (True, None, "status"),
        (None, None, "status open"),
        (False, None, "status act"),
        (True, "send more", "status act"),
        (None, "send more", "status act"),
    ],
)
def test_a_verdict_is_green_only_where_harm_is_excluded_and_amber_where_something_is_to_do(harmless, remedy, kind):
    assert cs.Verdict("fine", "a sentence.", harmless, remedy=remedy).paragraph().kind == kind
