"""The battery for the number of components: its cells, its baselines and its scores."""

import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

sys.path.append(str(Path(__file__).resolve().parents[2] / "experiments"))
from battery import cells, local_fits, real
from battery.baselines import SlopeRule, kmeans, runnalls
from battery.metrics import GaussianMixture, bench, calibration, matching_scores
from battery.perturb import partition, variants
from battery.summary import share_of_best, summary

SMALL = cells.Setting(
    "small", "tune", "any", 3, 6, 4, (2, 3), 3, 6.0, 0.0, False, "equal", "random", "exact", "agreed"
)  # fmt: skip


@pytest.fixture
def cell(tmp_path, monkeypatch):
    monkeypatch.setattr(local_fits, "CACHE", tmp_path)
    return local_fits.load(SMALL)


def test_each_half_has_thirty_six_simulated_and_ten_real_cells_of_its_own():
    halves = [local_fits.plan(half) for half in cells.HALVES]
    assert [len(half) for half in halves] == [46, 46, 46]
    assert len({local_fits.digest(replace(one, name="", half="")) for half in halves for one in half}) == 138
    assert not set(real.TUNE) & set(real.REPORT)
    assert halves == [local_fits.plan(half) for half in cells.HALVES]


@pytest.mark.parametrize("sharing", ["random", "popular", "identical", "disjoint"])
def test_components_that_occur_are_consecutive(sharing):
    data = cells.simulate(replace(SMALL, sharing=sharing))
    held = [np.unique(labels) for labels in data.labels]
    everything = np.unique(np.concatenate(held))
    np.testing.assert_array_equal(everything, np.arange(len(everything)))
    assert (sum(map(len, held)) == len(everything)) == (sharing == "disjoint")


def test_the_bayes_error_falls_with_separation():
    near, far = (cells.simulate(replace(SMALL, separation=separation)).bayes_error for separation in (1.0, 8.0))
    assert far < 1e-3 < 0.1 < near


def test_true_local_labels_give_a_conjugate_posterior(cell):
    posterior, prior = cell.posteriors[0].natural, cell.posteriors[0].prior
    data = cells.simulate(SMALL)
    rows = data.rows[0][data.labels[0] == cell.truth[0]]
    n, dim = rows.shape
    statistics = np.concatenate([rows.sum(axis=0), [-0.5 * n], (-0.5 * rows.T @ rows).ravel(), [0.5 * n]])
    assert len(statistics) == dim + 2 + dim**2
    np.testing.assert_allclose(posterior[0] - prior, statistics, rtol=1e-9, atol=1e-9)


def test_fits_are_made_once(cell, monkeypatch):
    monkeypatch.setattr(local_fits, "_fit", None)
    np.testing.assert_array_equal(local_fits.load(SMALL).truth, cell.truth)


@pytest.mark.parametrize("count", [2, 4, 7])
def test_runnalls_merges_the_pairs_that_a_plain_loop_merges(cell, count):
    local = bench(cell).local
    labels = np.arange(len(local.weights))
    while len(np.unique(labels)) > count:
        bounds = {}
        for pair in combinations(np.unique(labels).tolist(), 2):
            parts = [local.merged(np.where(np.isin(labels, groups), 0, -1)) for groups in (pair, pair[:1], pair[1:])]
            shares = [local.weights[np.isin(labels, groups)].sum() for groups in (pair, pair[:1], pair[1:])]
            terms = [
                share * np.linalg.slogdet(part.covariances[0])[1] for share, part in zip(shares, parts, strict=True)
            ]
            bounds[pair] = terms[0] - terms[1] - terms[2]
        first, second = min(bounds, key=bounds.__getitem__)
        labels[labels == second] = first
    assert adjusted_rand_score(labels, runnalls(cell, count)) == 1.0


def test_baselines_find_separated_components(cell):
    for labels in (kmeans(cell, cell.n_true), runnalls(cell, cell.n_true)):
        assert adjusted_rand_score(cell.truth, labels) == 1.0
    slope = SlopeRule(cell).labels()
    sizes = np.cumsum([one.n_components for one in cell.posteriors])[:-1]
    assert all(len(np.unique(own)) == len(own) for own in np.split(slope, sizes))  # one component of a site per group


def test_merging_keeps_moments(cell):
    local = bench(cell).local
    merged = local.merged(np.zeros(len(local.weights), dtype=int))
    second = local.covariances + local.means[:, :, None] * local.means[:, None, :]
    np.testing.assert_allclose(merged.means[0], local.weights @ local.means)
    expected = np.einsum("n,nij->ij", local.weights, second) - np.outer(merged.means[0], merged.means[0])
    np.testing.assert_allclose(merged.covariances[0], expected, atol=1e-9)


def test_the_concatenation_loses_nothing_and_one_component_much(cell):
    on = bench(cell)
    side_by_side = matching_scores(on, np.arange(len(cell.truth)), None)
    one = matching_scores(on, np.zeros(len(cell.truth), dtype=int), None)
    assert abs(side_by_side["virtual_loss"]) < 1e-9 < 0.5 < one["virtual_loss"]
    assert one["collapsed"]
    assert one["log_likelihood"] < side_by_side["log_likelihood"]


def test_leaving_out_wins_nothing(cell):
    labels = np.where(np.arange(len(cell.truth)) < 3, cell.truth, -1)
    scores = matching_scores(bench(cell), labels, None)
    assert scores["ari_of_matched"] == 1.0
    assert scores["ari"] < 0.5
    assert scores["left_out"] == len(cell.truth) - 3


def test_log_densities_are_those_of_gaussians():
    mixture = GaussianMixture(np.array([0.25, 0.75]), np.array([[0.0], [2.0]]), np.array([[[1.0]], [[4.0]]]))
    expected = np.log(0.25 * np.exp(-0.5) + 0.75 * np.exp(-0.125) / 2.0) - 0.5 * np.log(2.0 * np.pi)
    assert mixture.log_density(np.array([[1.0]]))[0] == pytest.approx(expected)


def test_matches_are_right_with_at_least_half_of_the_others():
    labels, truth = np.array([0, 0, 0, 1, -1]), np.array([7, 7, 8, 8, 8])
    bins = np.array(calibration(labels, truth, np.full(5, 0.6))["bins"])
    np.testing.assert_allclose(bins.sum(axis=0), [3, 1.8, 2])  # the third is wrong; nobody is alone, or left out


def test_partitions_are_compared_up_to_names():
    np.testing.assert_array_equal(partition(np.array([5, -1, 2, 5])), partition(np.array([0, -1, 9, 0])))
    assert not np.array_equal(partition(np.array([0, 0, 1])), partition(np.array([0, 1, 1])))


def test_variants_say_where_their_rows_come_from(cell):
    natural = np.concatenate([one.natural for one in cell.posteriors])
    for name, posteriors, rows in variants(cell, np.random.default_rng(0)):
        moved = np.concatenate([one.natural for one in posteriors])
        np.testing.assert_allclose(moved, natural[rows], rtol=1e-10, err_msg=name)


def test_a_summary_tells_what_is_missing():
    done = {"error": -3, "collapsed": True, "log_likelihood": -5.0, "ami": 0.5, "virtual_loss": 0.1, "ari": 0.4}
    done |= {"ari_of_matched": 0.5, "left_out": 2}
    best = done | {"ari": 0.8, "log_likelihood": -4.0}
    rows = [
        {"methods": {"default": done, "told": best, "true matching": best}},
        {"methods": {"default": {"gave_up": 60}, "told": best, "true matching": best}},
    ]
    found = summary(rows, "default")
    assert (found["cells"], found["missing"], found["collapses"], found["worst_error"]) == (1, 1, 1, -3)
    assert found["share_of_best"] == share_of_best(rows[0], "default") == 0.5
    assert found["over_true"] == -1.0
