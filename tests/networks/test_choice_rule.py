"""Laws of the choice among candidates: the least loss, a site's own kept within one standard error, harm by two."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import consilience as cs
from consilience.networks.choice.candidate import Candidate, Effort
from consilience.networks.choice.choose import CandidateFacts, CandidateScores
from consilience.networks.choice.criterion import Disagreement, ErrorOnLabels, SquaredError, SquaredGap
from consilience.networks.choice.verdict import Choice
from tests.networks.described_nets import perceptron, rows


def scores(losses, n_sites=1, mean_gap=0.0, **stated):
    """Return scores of candidates, the first of sites; each list of what is `stated` has one entry a candidate."""
    losses = np.asarray(losses, dtype=float)
    facts = [
        CandidateFacts(is_site=number < n_sites, **{name: values[number] for name, values in stated.items()})
        for number in range(len(losses))
    ]
    return CandidateScores(losses, losses.copy(), facts, mean_gap)


def wrong_less(site, share):
    """Return the losses of a network that errs on a share fewer of the inputs that a site's own errs on."""
    better, wrong = site.copy(), np.flatnonzero(site)
    better[wrong[: round(share * len(wrong))]] = 0.0
    return better


SITE = (np.random.default_rng(3).random(4000) < 0.2).astype(float)


@pytest.mark.parametrize("seed", range(40))
def test_the_choice_is_never_scored_worse_than_a_site(seed):
    rng = np.random.default_rng(seed)
    n_candidates, n_sites = rng.integers(2, 9), rng.integers(1, 3)
    rates = rng.uniform(0.2, 0.3, n_candidates)
    of_all = scores(rng.random((n_candidates, 60)) < rates[:, None], n_sites)
    assert of_all.means[of_all.choose()] <= of_all.means[:n_sites].min()


def test_a_site_is_kept_unless_another_is_better_by_one_standard_error():
    rng = np.random.default_rng(0)
    site, level, better = (rng.random(1000) < rate for rate in (0.3, 0.295, 0.25))
    assert scores([site, level]).choose() == 0
    assert scores([site, better]).choose() == 1
    assert scores([site, level, better]).choose() == 2


def test_of_sites_that_drawn_inputs_cannot_tell_apart_that_of_the_most_observations_is_taken():
    rng = np.random.default_rng(0)
    sites = [rng.permutation(1000) < wrong for wrong in (140, 100)]
    assert scores(sites, 2, size=[5.0, 5.0], mean_gap=0.05).choose() == 1
    assert scores(sites, 2, size=[6.0, 5.0], mean_gap=0.05).choose() == 0
    assert scores(sites, 2, size=[6.0, 5.0]).choose() == 1  # told apart


@pytest.mark.parametrize(
    ("sizes", "mean_gap", "own_errors", "taken"),
    [
        pytest.param([5.0, 5.0], 0.05, [(0.05, 0.003), (0.07, 0.003)], 0, id="less by two standard errors"),
        pytest.param([5.0, 5.0], 0.05, [(0.05, 0.01), (0.07, 0.01)], 1, id="not by two"),
        pytest.param([5.0, 5.0], 0.05, [(0.07, 0.003), (0.05, 0.003)], 1, id="the other way"),
        pytest.param([5.0, 6.0], 0.05, [(0.05, 0.003), (0.07, 0.003)], 1, id="of more observations"),
        pytest.param([5.0, 5.0], 0.0, [(0.05, 0.003), (0.07, 0.003)], 1, id="told apart"),
    ],
)
def test_of_sites_that_drawn_inputs_cannot_tell_apart_their_own_errors_decide(sizes, mean_gap, own_errors, taken):
    rng = np.random.default_rng(0)
    sites = [rng.permutation(1000) < wrong for wrong in (140, 100)]
    assert scores(sites, 2, size=sizes, mean_gap=mean_gap, own_error=own_errors).choose() == taken


def test_the_least_loss_is_taken_and_ties_are_broken_by_the_second():
    rng = np.random.default_rng(0)
    site, good, best = (rng.random(1000) < rate for rate in (0.3, 0.1, 0.095))
    assert scores([site, good, best]).choose() == 2
    losses = np.zeros((3, 50))
    ties = np.stack([np.full(50, 2.0), np.full(50, 1.0), np.full(50, 3.0)])
    assert CandidateScores(losses, ties, [CandidateFacts()] * 3).choose() == 1


def test_better_is_who_is_better_than_every_site_by_two_standard_errors():
    rng = np.random.default_rng(1)
    good = (rng.random(2000) < 0.05).astype(float)
    near = good.copy()
    near[np.flatnonzero(good == 0)[0]] = 1.0
    poor = (rng.random(2000) < 0.3).astype(float)
    assert scores([poor, poor, good], n_sites=2).is_better(2)
    assert not scores([poor, near, good], n_sites=2).is_better(2)  # one site cannot be told from the choice
    assert scores([good, poor], n_sites=2).is_better(0)  # a site itself, the others clearly worse


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
    assert SquaredError(outputs, scale=2.0).losses(outputs + 1).tolist() == [1.0, 1.0, 1.0]


def test_what_may_not_be_returned_is_compared_only():
    rng = np.random.default_rng(2)
    site, wide = ((rng.random(2000) < rate).astype(float) for rate in (0.1, 0.3))
    both = scores([site, wide], is_eligible=[False, True])
    assert both.choose() == 1
    assert both.is_harmful(1)
    assert not both.is_better(1)
    level = scores([wrong_less(wide, 1 / 600), wide], is_eligible=[False, True])
    assert not level.is_harmful(1)
    assert not level.is_better(1)


def test_of_sites_that_cannot_be_told_apart_that_of_the_most_is_taken():
    rng = np.random.default_rng(2)
    near = [rng.random(400) < 0.2, rng.random(400) < 0.21]
    assert scores(near, n_sites=2, size=[1.0, 2.0]).choose() == 1
    far = [rng.random(4000) < 0.2, rng.random(4000) < 0.25]
    assert scores(far, n_sites=2, size=[1.0, 2.0]).choose() == 0
    assert scores(far, n_sites=2, size=[1.0, 2.0], mean_gap=0.1).choose() == 1


def test_what_is_gained_must_not_be_small_beside_what_drawn_inputs_get_wrong():
    of_both = [SITE, wrong_less(SITE, 1 / 5)]  # 0.04 less
    assert scores(of_both, mean_gap=0.07).choose() == 1
    assert scores(of_both, mean_gap=0.09).choose() == 0
    assert replace(scores(of_both, mean_gap=0.09), are_alike=False).choose() == 1  # where no site is safe to keep


def test_nothing_is_known_within_what_drawn_inputs_cannot_tell():
    rng = np.random.default_rng(2)
    both = [rng.random(4000) < 0.20, rng.random(4000) < 0.25]
    assert scores(both, n_sites=2).is_harmful(1)
    assert scores(both, n_sites=2).is_better(0)
    unlike = scores(both, n_sites=2, mean_gap=0.1)
    assert not unlike.is_harmful(1)
    assert not unlike.is_better(0)


def test_every_candidate_has_its_own_margin():
    losses = [SITE, wrong_less(SITE, 1 / 6), wrong_less(SITE, 1 / 5)]

    def chosen(*margins):
        return scores(losses, margin=[0.0, *margins]).choose()

    assert chosen(0.0, 0.0) == 2
    assert chosen(0.0, 0.25) == 1  # the next best counts
    assert chosen(0.25, 0.25) == 0


@pytest.mark.parametrize(("margin", "mean_gap", "is_better"), [(0.1, 0, True), (0.25, 0, False), (0, 0.05, False)])
def test_what_needs_a_margin_needs_it_to_be_known_as_better(margin, mean_gap, is_better):
    of_both = scores([SITE, wrong_less(SITE, 1 / 5)], margin=[0.0, margin], mean_gap=mean_gap)
    assert of_both.is_better(1) is is_better


@pytest.mark.parametrize(
    ("counts", "shape", "is_near"),
    [((150, 120, 90), (2, 3), True), ((10, 120, 300), (2, 3), False), ((150, 120, 90), (6,), False)],
    ids=["alike", "skewed", "rows of numbers"],
)
def test_images_of_alike_sites_are_fitted_half_of_the_way_from_one_of_them_alone(counts, shape, is_near):
    def described(site, *counts):
        inputs, labels = rows(site, *counts)
        return cs.describe(nn.Sequential(nn.Flatten(), perceptron(site)), (inputs.reshape(-1, *shape), labels))

    candidates = cs.fuse([described(0), described(1, counts)]).candidates
    assert any(name.startswith("refit") for name in candidates) is not is_near
    assert any(name.startswith("distill(refit") for name in candidates) is not is_near
    assert any(name.startswith("distill(site:") for name in candidates) or not is_near


def test_errors_are_of_the_paired_difference_from_the_best_site():
    losses = (np.random.default_rng(0).random((4, 500)) < [[0.3], [0.2], [0.1], [0.25]]).astype(float)
    names = ("site:a", "site:b", "refit", "matched")
    candidates = tuple(Candidate(name, Effort.SITE, None, None) for name in names)
    errors = Choice(candidates, 2, scores=scores(losses, n_sites=2)).errors
    assert set(errors) == {"site:a", "refit", "matched"}  # the best site is what the others are compared with
    for number, name in ((0, "site:a"), (2, "refit"), (3, "matched")):
        difference = losses[number] - losses[1]
        assert errors[name] == pytest.approx(difference.std(ddof=1) / 500**0.5, rel=1e-5)
    assert Choice(candidates, 2, scores=scores(losses, n_sites=0)).errors == {}
    assert Choice(candidates, 2).errors == {}
