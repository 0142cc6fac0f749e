"""What counts of classes decide: shares, the stationary ensemble, coverage, skew, logit adjustment."""

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.networks.classes.logit_adjustment import log_class_counts, restore_prior
from consilience.networks.classes.shares import (
    class_coverage,
    class_shares,
    class_skew,
    classes_of_one_site,
    pooled_class_distribution,
    unseen_classes,
)
from consilience.networks.classes.stationary import is_reducible, site_posterior, stationary_posterior
from tests.tolerances import ROUNDING

SKEWED = np.array([[40.0, 3, 0, 0], [5, 60, 12, 0], [0, 1, 30, 2]])
SITE_ANSWERS = [(3, 5), (8, 3), (2, 2), (12, 12), (4, 40)]
"""Sites and classes: more of either, so that the chain over sites and that over classes are both solved."""


def label_shift(n_sites, n_classes, seed, *, n_inputs=50):
    """Return counts (J, C), exact posteriors of the sites (J, n, C), and the pooled posterior (n, C)."""
    rng = np.random.default_rng(seed)
    likelihoods = rng.dirichlet(np.full(n_inputs, 0.3), size=n_classes)  # (C, n): of each class over inputs
    counts = rng.integers(1, 50, (n_sites, n_classes)) * (rng.random((n_sites, n_classes)) < 0.5)
    counts[0] += 1
    posteriors = np.empty((n_sites, n_inputs, n_classes))
    for site in range(n_sites):
        for x in range(n_inputs):
            joint = [counts[site, c] * likelihoods[c, x] for c in range(n_classes)]
            # A site without observations may answer anything.
            posteriors[site, x] = np.array(joint) / sum(joint) if sum(joint) else 1 / n_classes
    pooled = np.array([[counts[:, c].sum() * likelihoods[c, x] for c in range(n_classes)] for x in range(n_inputs)])
    return counts, posteriors, pooled / pooled.sum(axis=1, keepdims=True)


def stationary(posteriors, counts, mixing=None):
    """Return the stationary posterior (n, C) of sites' posteriors (J, n, C)."""
    shares, prior = class_shares(counts), pooled_class_distribution(counts)
    tensors = (torch.as_tensor(values) for values in (posteriors, shares, prior))
    return stationary_posterior(*tensors, mixing).numpy()


def random_posteriors(n_sites, n, n_classes, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(n_classes, 0.3), size=(n_sites, n))


# -- Shares.


@pytest.mark.parametrize("seed", range(5))
def test_shares_of_sites_sum_to_one_in_every_class(seed):
    counts = np.random.default_rng(seed).integers(0, 3, (4, 9))
    counts[0, 0] += 1
    shares = class_shares(counts)
    np.testing.assert_allclose(shares.sum(axis=0), 1.0, rtol=ROUNDING)
    seen = counts.any(axis=0)
    assert not shares[:, seen][counts[:, seen] == 0].any()


def test_equal_class_distributions_give_every_site_its_share_of_the_observations():
    counts = np.outer([1, 3, 6], [10, 20, 30])
    np.testing.assert_allclose(class_shares(counts), np.repeat([[0.1], [0.3], [0.6]], 3, axis=1), rtol=ROUNDING)
    assert class_skew(counts) == pytest.approx(0.0, abs=ROUNDING)


def test_a_class_that_nobody_holds_is_shared_by_observations_and_named():
    counts = [[30, 0, 0], [10, 5, 0]]
    assert unseen_classes(counts) == [2]
    assert classes_of_one_site(counts) == [1]
    np.testing.assert_allclose(class_shares(counts)[:, 2], [2 / 3, 1 / 3])
    np.testing.assert_allclose(class_shares(counts, [100, 300])[:, 2], [0.25, 0.75])


def test_the_pooled_distribution_is_that_of_all_observations():
    np.testing.assert_allclose(pooled_class_distribution(SKEWED), SKEWED.sum(0) / SKEWED.sum())


def test_skew_is_the_mean_total_variation_distance_to_the_pooled_distribution():
    pooled = SKEWED.sum(0) / SKEWED.sum()
    distances = [0.5 * np.abs(row / row.sum() - pooled).sum() for row in SKEWED]
    assert class_skew(SKEWED) == pytest.approx(np.average(distances, weights=SKEWED.sum(1)), rel=ROUNDING)
    assert class_skew(np.eye(5) * 20) == pytest.approx(0.8, rel=ROUNDING)


def test_coverage_grows_with_a_sites_counts():
    coverage = class_coverage([[300, 300], [300, 0], [3, 3]])
    assert coverage[0] > coverage[1] > coverage[2]
    np.testing.assert_allclose(coverage[0], 300 / 330, rtol=ROUNDING)


@pytest.mark.parametrize(
    "counts", [[[1, 2], [3]], [1, 2], [[-1, 2]], [[np.nan, 1]], [[0, 0]], "many", np.zeros((0, 3))], ids=str
)
def test_what_are_no_counts_is_refused(counts):
    with pytest.raises(cs.errors.InputError, match="class_counts"):
        class_shares(counts)


@pytest.mark.parametrize("observations", [[1.0], [-1.0, 2.0], [np.nan, 1.0], [0.0, 0.0]], ids=str)
def test_observations_that_are_not_one_number_for_each_site_are_refused(observations):
    with pytest.raises(cs.errors.InputError, match="observations"):
        class_shares([[1, 2], [3, 4]], observations)


# -- The stationary ensemble.


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n_sites", "n_classes"), SITE_ANSWERS)
def test_under_label_shift_exact_posteriors_give_the_pooled_posterior(n_sites, n_classes, seed):
    counts, posteriors, pooled = label_shift(n_sites, n_classes, seed)
    np.testing.assert_allclose(stationary(posteriors, counts), pooled, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("n_sites", "n_classes"), SITE_ANSWERS)
def test_the_stationary_posterior_solves_its_equation_and_sums_to_one(n_sites, n_classes):
    counts = np.random.default_rng(1).integers(1, 30, (n_sites, n_classes))
    posteriors = random_posteriors(n_sites, 20, n_classes)
    q = stationary(posteriors, counts)
    shares = counts / counts.sum(axis=0)
    chains = np.stack([sum(np.outer(p[x], w) for p, w in zip(posteriors, shares, strict=True)) for x in range(20)])
    np.testing.assert_allclose(chains.sum(axis=1), 1.0, rtol=ROUNDING)  # stochastic columns
    np.testing.assert_allclose(np.einsum("ncd,nd->nc", chains, q), q, rtol=0, atol=1e-13)
    np.testing.assert_allclose(q.sum(axis=1), 1.0, rtol=ROUNDING)
    assert (q >= 0).all()


@pytest.mark.parametrize("mixing", [None, 1e-3, 0.5])
def test_equal_answers_are_the_stationary_answer(mixing):
    answer = random_posteriors(1, 30, 4)
    q = stationary(np.repeat(answer, 3, axis=0), SKEWED, mixing)
    np.testing.assert_allclose(q, answer[0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("mixing", [None, 1e-3])
@pytest.mark.parametrize(("n_sites", "n_classes"), SITE_ANSWERS)
def test_equal_class_distributions_give_the_mean_by_observations(n_sites, n_classes, mixing):
    sizes = np.arange(1.0, n_sites + 1)
    posteriors = random_posteriors(n_sites, 20, n_classes)
    q = stationary(posteriors, np.outer(sizes, np.arange(1, n_classes + 1)), mixing)
    np.testing.assert_allclose(q, np.einsum("j,jnc->nc", sizes / sizes.sum(), posteriors), rtol=0, atol=1e-13)


def test_dividing_by_a_sites_frequencies_and_weighing_by_class_is_the_mean_by_observations():
    posteriors = random_posteriors(3, 20, 4)
    counts = SKEWED + 1
    site = counts / counts.sum(axis=1, keepdims=True)  # (J, C)
    pooled = counts.sum(axis=0) / counts.sum()
    divided = np.einsum("jc,jnc->nc", class_shares(counts) / site * pooled, posteriors)
    by_observations = np.einsum("j,jnc->nc", counts.sum(axis=1) / counts.sum(), posteriors)
    np.testing.assert_allclose(divided, by_observations, rtol=1e-12)


@pytest.mark.parametrize(("n_sites", "n_classes"), [(3, 5), (8, 3)])
def test_the_order_of_sites_changes_nothing(n_sites, n_classes):
    counts, posteriors, _ = label_shift(n_sites, n_classes, 0)
    order = np.random.default_rng(0).permutation(n_sites)
    np.testing.assert_allclose(
        stationary(posteriors[order], counts[order]), stationary(posteriors, counts), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("n_sites", [2, 3, 5])
def test_disjoint_classes_are_decided_by_the_mixing_alone(n_sites):
    counts = np.kron(np.eye(n_sites), [[20, 10]])  # (J, 2 J): every class at one site
    assert is_reducible(torch.as_tensor(class_shares(counts)))
    certain = np.where(counts > 0, 1.0, 0.0) / 2  # every site is sure that it is one of its own
    q = stationary(np.repeat(certain[:, None], 3, axis=1), counts)
    np.testing.assert_allclose(q, 0.5 / n_sites, rtol=1e-12)  # every site alike, as many as it has observations


def test_a_class_at_one_site_beside_others_does_not_make_a_chain_reducible():
    assert not is_reducible(torch.as_tensor(class_shares(SKEWED)))
    assert not is_reducible(torch.as_tensor(class_shares([[5, 5, 0], [0, 5, 5]])))
    assert is_reducible(torch.as_tensor(class_shares([[5, 5, 0], [0, 0, 5]])))


def test_answers_of_zero_that_leave_no_way_out_are_mixed():
    counts = [[10, 10], [10, 10], [10, 0]]
    answers = np.array([[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 0.0]]])
    q = stationary(answers, counts)
    assert np.isfinite(q).all()
    np.testing.assert_allclose(q.sum(axis=1), 1.0, rtol=ROUNDING)


def test_nearly_reducible_chains_keep_their_relative_accuracy():
    small = 1e-200
    answers = np.array([[[1 - small, small]], [[3 * small, 1 - 3 * small]]])
    q = stationary(answers, [[10, 10], [10, 10]])
    # By hand: K = 1/2 everywhere, so that both sites count alike.
    np.testing.assert_allclose(q, [[0.5, 0.5]], rtol=1e-12)
    counts = [[20, 0], [0, 20]]
    shares = torch.as_tensor(class_shares(counts))
    sites = site_posterior(torch.as_tensor(answers), shares, torch.tensor([0.5, 0.5]), 0.0)
    np.testing.assert_allclose(sites.numpy(), [[0.75, 0.25]], rtol=1e-12)  # s_1 * small = s_2 * 3 small, exchanged


def test_what_it_takes_is_bounded_for_many_classes():
    counts = np.random.default_rng(0).integers(1, 30, (3, 1000))
    posteriors = random_posteriors(3, 4000, 1000)
    q = stationary(posteriors, counts)
    np.testing.assert_allclose(q[:10], stationary(posteriors[:, :10], counts), rtol=1e-12)
    np.testing.assert_allclose(q[-10:], stationary(posteriors[:, -10:], counts), rtol=1e-12)


def test_shapes_that_do_not_fit_are_refused():
    answers, shares, prior = torch.ones(2, 5, 3) / 3, torch.ones(2, 3) / 2, torch.ones(3) / 3
    with pytest.raises(cs.errors.InputError, match="sites, n, classes"):
        stationary_posterior(answers[0], shares, prior)
    with pytest.raises(cs.errors.InputError, match="shares, prior"):
        stationary_posterior(answers, shares[:, :2], prior)


# -- Logit adjustment.


def test_the_adjusted_loss_is_the_cross_entropy_of_logits_with_the_frequencies():
    rng = np.random.default_rng(0)
    logits, labels, counts = rng.normal(size=(50, 4)), rng.integers(0, 4, 50), [40, 3, 0, 7]
    adjusted = logits + np.log(np.array(counts) + 0.1)
    expected = np.mean(np.log(np.exp(adjusted).sum(1)) - adjusted[np.arange(50), labels])
    loss = cs.learners.logit_adjusted_loss(torch.as_tensor(logits), torch.as_tensor(labels), counts)
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_equal_counts_adjust_nothing():
    logits, labels = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
    loss = cs.learners.logit_adjusted_loss(logits, labels, [7, 7, 7])
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, labels))


def test_removing_and_restoring_frequencies_cancel():
    logits = torch.randn(6, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts = [40, 3, 0, 7]
    torch.testing.assert_close(restore_prior(cs.learners.remove_prior(logits, counts), counts), logits)
    removed = cs.learners.remove_prior(torch.as_tensor(log_class_counts(counts)), counts)
    torch.testing.assert_close(removed, torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("counts", [[1, 2], [[1, 2, 3]], [-1, 2, 3], [0, 0, 0], [1, 2, np.nan], "abc", None], ids=str)
def test_counts_that_do_not_fit_logits_are_refused(counts):
    with pytest.raises(cs.errors.InputError, match="class_counts"):
        cs.learners.remove_prior(torch.zeros(2, 3), counts)
