"""Scores of predictive probabilities: by hand, against scikit-learn, and against loops."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

import consilience as cs
from consilience.errors import InputError, OptionError
from consilience.networks.gaussian.predictive import MIN_PROBABILITY
from tests.tolerances import ROUNDING


def drawn(n=400, classes=5, seed=0, sharpness=0.6):
    """Probabilities that know something of the labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    concentration = sharpness * np.ones((n, classes))
    concentration[np.arange(n), labels] += 1.0
    gamma = rng.gamma(concentration)
    return gamma / gamma.sum(axis=1, keepdims=True), labels


def test_every_score_of_three_inputs_is_that_of_pencil_and_paper():
    p, y = [[0.5, 0.5, 0.0], [0.1, 0.1, 0.8], [0.0, 1.0, 0.0]], [1, 2, 0]
    found = cs.predictive_scores(p, y, bins=10)
    assert found.predicted.tolist() == [0, 2, 1]  # the first of equals
    assert found.accuracy == pytest.approx(1 / 3)
    second = -(0.2 * np.log(0.1) + 0.8 * np.log(0.8))
    assert found.entropies == pytest.approx([np.log(2), second, 0.0])
    assert found.entropy == pytest.approx((np.log(2) + second) / 3)
    assert found.log_likelihood == pytest.approx((np.log(0.5) + np.log(0.8) + np.log(MIN_PROBABILITY)) / 3)
    assert found.brier == pytest.approx((0.5 + 0.06 + 2.0) / 3)
    assert [(one.low, one.high, one.observations) for one in found.reliability] == [
        (0.4, 0.5, 1),  # a bin holds its right end
        (0.7, 0.8, 1),
        (0.9, 1.0, 1),
    ]
    assert [(one.confidence, one.accuracy) for one in found.reliability] == [(0.5, 0.0), (0.8, 1.0), (1.0, 0.0)]
    assert found.calibration_error == pytest.approx((0.5 + 0.2 + 1.0) / 3)
    assert found.outside is None
    assert found.centred_outside == {}


def test_scores_are_those_of_scikit_learn():
    p, y = drawn()
    found = cs.predictive_scores(p, y)
    assert found.log_likelihood == pytest.approx(-log_loss(y, p, labels=range(5)), rel=ROUNDING)
    assert found.accuracy == accuracy_score(y, p.argmax(axis=1))
    assert found.brier == pytest.approx(np.mean(((p - np.eye(5)[y]) ** 2).sum(axis=1)), rel=ROUNDING)
    assert found.observations == 400


@pytest.mark.parametrize("bins", [1, 3, 15, 40])
def test_calibration_error_is_that_of_a_loop_over_inputs_and_bins(bins):
    p, y = drawn(seed=bins)
    p[:7] = np.eye(5)[y[:7]]  # as sure as can be
    expected, seen = 0.0, 0
    for m in range(bins):
        inside = [i for i in range(len(y)) if m / bins < max(p[i]) <= (m + 1) / bins]
        seen += len(inside)
        if inside:
            right = sum(int(np.argmax(p[i])) == y[i] for i in inside) / len(inside)
            sure = sum(max(p[i]) for i in inside) / len(inside)
            expected += len(inside) / len(y) * abs(right - sure)
    found = cs.predictive_scores(p, y, bins=bins)
    assert seen == len(y) == sum(one.observations for one in found.reliability)
    assert found.calibration_error == pytest.approx(expected, rel=ROUNDING)


def test_probabilities_that_are_frequencies_are_calibrated():
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(4), 100_000)
    y = (rng.random(len(p))[:, None] > p.cumsum(axis=1)).sum(axis=1).clip(max=3)
    found = cs.predictive_scores(p, y)
    assert found.calibration_error < 15 / np.sqrt(len(p))
    assert found.log_likelihood == pytest.approx(-found.entropy, abs=5 / np.sqrt(len(p)))
    sure = cs.predictive_scores(np.eye(4)[p.argmax(axis=1)], y)
    assert sure.calibration_error == pytest.approx(1 - found.accuracy)


def test_entropies_by_class_add_up_to_that_of_all():
    p, y = drawn()
    found = cs.predictive_scores(p, y)
    assert [one.label for one in found.class_entropies] == [0, 1, 2, 3, 4]
    assert sum(one.observations * one.mean for one in found.class_entropies) / len(y) == pytest.approx(found.entropy)
    for one in found.class_entropies:
        own = -(p[y == one.label] * np.log(p[y == one.label])).sum(axis=1)
        assert (one.lower, one.median, one.upper) == pytest.approx(tuple(np.quantile(own, [0.25, 0.5, 0.75])))
        assert found.centred_entropies[one.label] == pytest.approx(own.mean() - found.entropy)
    gone = cs.predictive_scores(p[y != 3], y[y != 3])
    assert [one.label for one in gone.class_entropies] == [0, 1, 2, 4]


def test_entropy_tells_what_lies_outside():
    inside, y = drawn(sharpness=0.05)
    outside, other = drawn(150, seed=1, sharpness=5.0)
    found = cs.predictive_scores(inside, y, outside=outside, outside_labels=other)
    entropies = [-(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0)).sum(axis=1) for p in (inside, outside)]
    wins = [(b > a) + 0.5 * (b == a) for a in entropies[0] for b in entropies[1]]
    assert found.outside.auroc == pytest.approx(np.mean(wins), rel=1e-9)
    is_outside = np.repeat([0, 1], [400, 150])
    assert found.outside.auroc == pytest.approx(roc_auc_score(is_outside, np.concatenate(entropies)))
    assert found.outside.auroc > 0.9
    assert found.outside.entropy == pytest.approx(entropies[1].mean())
    assert found.outside.observations == 150
    for label, centred in found.centred_outside.items():
        assert centred == pytest.approx(entropies[1][other == label].mean() - entropies[0].mean())
    same = cs.predictive_scores(inside, y, outside=inside)
    assert same.outside.auroc == pytest.approx(0.5)
    assert same.outside.class_entropies == ()


def test_the_order_of_inputs_changes_nothing():
    p, y = drawn()
    order = np.random.default_rng(2).permutation(len(y))
    one, other = cs.predictive_scores(p, y), cs.predictive_scores(p[order], y[order])
    for name in ("accuracy", "log_likelihood", "entropy", "calibration_error", "brier"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=ROUNDING)


def test_single_precision_is_close_enough_to_one():
    p, y = drawn()
    found = cs.predictive_scores(p.astype(np.float32), y.tolist())
    assert found.entropy == pytest.approx(cs.predictive_scores(p, y).entropy, rel=1e-5)


P = [[0.5, 0.5], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([0.5, 0.5], [0]), r"probabilities: expected an array \(n, classes\), found shape \(2,\)"),
        ((np.zeros((0, 3)), []), r"found shape \(0, 3\)"),
        ((["a", "b"], [0, 1]), r"probabilities: expected numbers \(n, classes\)"),
        (([[0.5, 0.5], [np.nan, 1.0]], [0, 1]), "row 1, counted from 0: has NaN or infinite"),
        (([[0.5, 0.5], [-3.0, 4.0]], [0, 1]), "row 1, counted from 0: is negative, -3; give probabilities, not logits"),
        (([[0.5, 0.6], [1.0, 0.0]], [0, 1]), "row 0, counted from 0: sums to 1.1, expected 1"),
        ((P, [0]), r"labels: expected one for each of 2 rows, found shape \(1,\)"),
        ((P, [0, 2]), "labels: row 1, counted from 0: expected the number of a class, 0 to 1, found 2"),
        ((P, [0, -1]), "found -1"),
        ((P, [0.5, 0]), "row 0, counted from 0: expected the number of a class"),
        ((P, ["a", "b"]), "labels: expected the numbers of classes, from 0"),
    ],
)
def test_what_cannot_be_scored_is_told(arguments, said):
    with pytest.raises(InputError, match=said):
        cs.predictive_scores(*arguments)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"outside": [[1.0, 0.0, 0.0]]}, "outside: has 3 classes, expected 2 as in probabilities"),
        ({"outside": [[1.0, 1.0]]}, "outside: row 0, counted from 0: sums to 2"),
        ({"outside": P, "outside_labels": [0, 7]}, "outside_labels: row 1, counted from 0"),
        ({"outside_labels": [0]}, "outside_labels: are classes of what lies outside"),
    ],
)
def test_what_lies_outside_is_checked_too(options, said):
    with pytest.raises(InputError, match=said):
        cs.predictive_scores(P, [0, 1], **options)


@pytest.mark.parametrize("bins", [0, 2.5, True, "many"])
def test_bins_are_a_positive_whole_number(bins):
    with pytest.raises(OptionError, match="bins: expected a positive whole number"):
        cs.predictive_scores(P, [0, 1], bins=bins)
