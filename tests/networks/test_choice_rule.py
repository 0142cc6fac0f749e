"""Laws of the choice among candidates: never worse than a site, least effort among equals, harm excluded by two s.e."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.networks.choice import compare
from consilience.networks.choice.candidate import Candidate, Effort
from consilience.networks.choice.choose import (
    MARGIN,
    MARGIN_OF_ALIKE,
    MARGIN_OF_HALFWAY,
    MARGIN_OF_IMAGES,
    CandidateScores,
)
from consilience.networks.choice.criterion import Disagreement, ErrorOnLabels, SquaredGap
from consilience.networks.choice.inputs import ChoiceInputs
from consilience.networks.choice.rows import Rows
from tests.networks.described_nets import perceptron, rows


def scores(losses, efforts=None, n_sites=1):
    losses = np.asarray(losses, dtype=float)
    efforts = list(range(len(losses))) if efforts is None else efforts
    return CandidateScores(losses, losses.copy(), efforts, [number < n_sites for number in range(len(losses))])


@pytest.mark.parametrize("seed", range(40))
def test_the_choice_is_never_scored_worse_than_a_site(seed):
    rng = np.random.default_rng(seed)
    n_candidates, n_sites = rng.integers(2, 9), rng.integers(1, 3)
    rates = rng.uniform(0.2, 0.3, n_candidates)
    of_all = scores(rng.random((n_candidates, 60)) < rates[:, None], rng.integers(0, 8, n_candidates), n_sites)
    assert of_all.means[of_all.choose()] <= of_all.means[:n_sites].min()


def test_of_candidates_that_cannot_be_told_apart_the_one_of_least_effort_is_taken():
    rng = np.random.default_rng(0)
    site = (rng.random(1000) < 0.3).astype(float)
    average = (rng.random(1000) < 0.1).astype(float)
    distilled = average.copy()
    distilled[np.flatnonzero(average)[0]] = 0.0  # better by one input of a thousand
    assert scores([site, average, distilled]).choose() == 1
    distilled[:] = rng.random(1000) < 0.02
    assert scores([site, average, distilled]).choose() == 2


def test_ties_are_broken_by_the_second_loss():
    losses = np.zeros((3, 50))
    ties = np.stack([np.full(50, 2.0), np.full(50, 1.0), np.full(50, 3.0)])
    assert CandidateScores(losses, ties, [1, 1, 1], [False, False, False]).choose() == 1


def test_harm_is_excluded_where_every_site_is_worse_by_two_standard_errors():
    rng = np.random.default_rng(1)
    good = (rng.random(2000) < 0.05).astype(float)
    near = good.copy()
    near[np.flatnonzero(good == 0)[0]] = 1.0
    poor = (rng.random(2000) < 0.3).astype(float)
    assert scores([poor, poor, good], n_sites=2).is_harmless(2)
    assert not scores([poor, near, good], n_sites=2).is_harmless(2)  # one site cannot be told from the choice
    assert scores([good, poor], n_sites=2).is_harmless(0)  # a site itself, the others clearly worse


def test_criteria_are_errors_disagreements_and_squared_gaps():
    outputs = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 1.0]])
    assert ErrorOnLabels(np.array([0, 0, 1])).losses(outputs).tolist() == [0.0, 1.0, 1.0]
    own = Disagreement(np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True))
    assert own.losses(outputs).sum() == 0
    assert own.ties(outputs) == pytest.approx(np.zeros(3), abs=1e-9)
    assert own.ties(-outputs).min() > 0
    gap = SquaredGap(outputs)
    assert gap.losses(outputs).sum() == 0
    assert gap.losses(outputs + 1).sum() == pytest.approx(3 * 2 / outputs.var(axis=0).sum())


def test_what_may_not_be_returned_is_compared_only():
    rng = np.random.default_rng(2)
    site, wide = ((rng.random(2000) < rate).astype(float) for rate in (0.1, 0.3))
    both = CandidateScores(np.stack([site, wide]), np.stack([site, wide]), [0, 1], [True, False], None, [False, True])
    assert both.choose() == 1
    assert both.is_harmful(1)
    assert not both.is_harmless(1)
    near = wide.copy()
    near[np.flatnonzero(wide)[0]] = 0.0
    level = CandidateScores(np.stack([near, wide]), np.stack([near, wide]), [0, 1], [True, False], None, [False, True])
    assert not level.is_harmful(1)
    assert not level.is_harmless(1)


def test_a_site_is_not_harmed_by_what_drawn_inputs_cannot_tell():
    rng = np.random.default_rng(2)
    losses = np.stack([rng.random(4000) < 0.20, rng.random(4000) < 0.25]).astype(float)

    def scores(*gaps):
        mean_gap = sum(gaps) / len(gaps)
        return CandidateScores(
            losses, losses, [0, 0], [True, True], gaps=list(gaps), sizes=[1.0, 2.0], mean_gap=mean_gap
        )

    assert scores(0.0, 0.0).choose() == 0
    assert scores(0.0, 0.0).is_harmful(1)
    assert scores(0.1, 0.1).choose() == 1  # the larger, of two that cannot be told apart
    assert not scores(0.1, 0.1).is_harmful(1)
    assert not scores(0.1, 0.1).is_harmless(1)


def test_every_candidate_has_its_own_margin():
    rng = np.random.default_rng(3)
    site = (rng.random(4000) < 0.2).astype(float)
    fitted, average = site.copy(), site.copy()
    wrong = np.flatnonzero(site)
    fitted[wrong[: len(wrong) // 5]] = 0.0  # a fifth less
    average[wrong[: len(wrong) // 6]] = 0.0
    losses = np.stack([site, average, fitted])

    def chosen(*margins):
        return CandidateScores(losses, losses, [0, 1, 5], [True, False, False], [0.0, *margins]).choose()

    assert chosen(0.0, 0.0) == 2
    assert chosen(0.0, 0.25) == 1  # the next best counts
    assert chosen(0.25, 0.25) == 0


def test_where_sites_are_alike_what_was_fitted_must_gain_all_that_drawn_inputs_cannot_tell():
    rng = np.random.default_rng(3)
    site = (rng.random(4000) < 0.2).astype(float)
    fitted, average, ensemble = site.copy(), site.copy(), site.copy()
    wrong = np.flatnonzero(site)
    fitted[wrong[: 3 * len(wrong) // 5]] = 0.0  # some 0.12 fewer
    average[wrong[: 2 * len(wrong) // 5]] = 0.0  # some 0.08 fewer
    ensemble[wrong[: len(wrong) // 10]] = 0.0  # some 0.02 fewer
    losses = np.stack([site, average, fitted])

    def chosen(gap, is_alike, ensemble=None):
        gaps, is_fitted = [gap] * 3, [False, False, True]
        of_all = CandidateScores(
            losses, losses, [0, 1, 5], [True, False, False], gaps=gaps, mean_gap=gap, is_fitted=is_fitted
        )
        return replace(of_all, is_alike=is_alike, ensemble=ensemble).choose()

    assert chosen(0.14, False) == 2
    assert chosen(0.14, True) == 1  # the next best counts
    assert chosen(0.18, True) == 0
    assert chosen(0.18, True, fitted) == 2  # the ensemble waives it
    assert chosen(0.18, False, ensemble) == 2
    assert chosen(0.18, True, ensemble) == 0  # it must gain a quarter itself


def test_no_ensemble_waives_the_margin_of_statistics_that_were_learned_from_draws():
    rng = np.random.default_rng(3)
    site = (rng.random(4000) < 0.2).astype(float)
    fitted, ensemble = site.copy(), np.zeros(4000)
    wrong = np.flatnonzero(site)
    fitted[wrong[: 2 * len(wrong) // 5]] = 0.0  # two fifths less
    losses = np.stack([site, fitted])
    of_all = CandidateScores(
        losses, losses, [0, 8], [True, False], [0.0, 0.5], is_fitted=[False, True], ensemble=ensemble
    )
    assert of_all.choose() == 1
    assert replace(of_all, is_waivable=[True, False]).choose() == 0
    assert not of_all.is_harmless(1)  # which no ensemble waives, either way


@pytest.mark.parametrize(
    ("counts", "is_alike", "margin"),
    [((150, 120, 90), True, MARGIN_OF_ALIKE), ((30, 120, 210), False, MARGIN)],
    ids=["alike", "skewed"],
)
def test_more_is_asked_of_what_was_fitted_where_sites_have_their_classes_alike(counts, is_alike, margin, monkeypatch):
    choices, choose = [], compare.CandidateComparison.choose

    def recorded(comparison):
        choices.append(choose(comparison))
        return choices[-1]

    monkeypatch.setattr(compare.CandidateComparison, "choose", recorded)
    sites = [cs.describe(perceptron(0), rows(0)), cs.describe(perceptron(1), rows(1, counts))]
    cs.fuse(sites)
    scores = choices[-1].scores
    assert scores.is_alike is is_alike
    asked = set(zip(scores.is_fitted, scores.margins, strict=True))
    assert asked == {(True, margin), (False, MARGIN)}


@pytest.mark.parametrize(
    ("source", "is_halfway", "margin"),
    [
        ("matched", True, MARGIN_OF_HALFWAY),
        ("matched", False, MARGIN_OF_IMAGES),
        ("drawn", True, MARGIN_OF_IMAGES),
    ],
)
def test_half_of_the_way_from_a_site_less_is_asked_on_matched_images(source, is_halfway, margin):
    rows = Rows(torch.zeros(2, 3))
    inputs = ChoiceInputs(rows, rows, rows, source=source, fitted_margin=MARGIN_OF_IMAGES)
    candidate = Candidate("distill(site:lund)", Effort.DISTILLED, None, None, is_halfway=is_halfway)
    assert inputs.margin_of(candidate) == margin


def test_only_what_was_fitted_needs_its_margin_for_harm_to_be_excluded():
    rng = np.random.default_rng(3)
    site = (rng.random(4000) < 0.2).astype(float)
    better = site.copy()
    wrong = np.flatnonzero(site)
    better[wrong[: len(wrong) // 5]] = 0.0  # a fifth less
    losses = np.stack([site, better])

    def harmless(margin, is_fitted, mean_gap=0.0):
        of_both = CandidateScores(losses, losses, [0, 5], [True, False], [0.0, margin], mean_gap=mean_gap)
        return replace(of_both, is_fitted=[False, is_fitted]).is_harmless(1)

    assert harmless(0.1, True)
    assert not harmless(0.25, True)
    assert harmless(0.25, False)
    assert harmless(0.25, False, mean_gap=0.02)
    assert not harmless(0.25, False, mean_gap=0.05)


def test_what_a_small_site_learned_by_heart_leaves_the_large_one_known_to_be_better():
    rng = np.random.default_rng(4)
    losses = np.stack([rng.random(4000) < 0.15, rng.random(4000) < 0.30]).astype(float)
    of_both = CandidateScores(
        losses, losses, [0, 0], [True, True], gaps=[0.03, 0.3], sizes=[8000.0, 300.0], mean_gap=0.04
    )
    assert of_both.choose() == 0
    assert of_both.is_harmless(0)
    assert of_both.is_harmful(1)


def test_a_fitted_candidate_needs_no_margin_where_the_ensemble_is_better_too():
    rng = np.random.default_rng(5)
    site = (rng.random(4000) < 0.2).astype(float)
    fitted = site.copy()
    fitted[np.flatnonzero(site)[:80]] = 0.0  # a tenth less
    ensemble = site.copy()
    ensemble[np.flatnonzero(site)[40:100]] = 0.0
    losses = np.stack([site, fitted])

    def chosen(of_ensemble, *, is_fitted=True):
        of_both = CandidateScores(losses, losses, [0, 6], [True, False], [0.0, 0.25], ensemble=of_ensemble)
        return replace(of_both, is_fitted=[False, is_fitted]).choose()

    assert chosen(None) == 0
    assert chosen(site) == 0  # an ensemble no better than the site
    assert chosen(ensemble) == 1
    assert chosen(ensemble, is_fitted=False) == 0


@pytest.mark.parametrize(("is_alike", "refitted", "taken"), [(False, 1.1, 2), (True, 1.1, 0), (True, 1.0, 2)])
def test_of_alike_sites_the_ensemble_waives_nothing_where_all_that_is_fused_was_behind_before_distillation(
    is_alike, refitted, taken
):
    n = 4000
    site, fused, distilled, ensemble = (
        (np.arange(n) < share * 0.2 * n).astype(float) for share in (1.0, refitted, 0.85, 0.8)
    )
    losses = np.stack([site, fused, distilled])
    efforts = [Effort.SITE, Effort.REFITTED, Effort.DISTILLED]
    scores = CandidateScores(losses, losses, efforts, [True, False, False], [0.0, 0.25, 0.25], is_alike=is_alike)
    of_all = replace(scores, is_fitted=[False, True, True], ensemble=ensemble)
    assert of_all.choose() == taken
    assert replace(of_all, is_eligible=[True, False, True], is_alike=True).choose() == 0  # what may not be taken
    assert replace(of_all, ensemble=None).choose() == 0
