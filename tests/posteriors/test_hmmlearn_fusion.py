"""hmmlearn's models fuse to its own M step on all rows, sites of one law to that law, and what none saw is said."""

import numpy as np
import pytest
from hmmlearn.hmm import CategoricalHMM
from hmmlearn.vhmm import VariationalGaussianHMM
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import adjusted_mutual_info_score

import consilience as cs
from consilience.posteriors.adapters.hmmlearn.parameters import expected_visits
from tests.copies import COPIES
from tests.posteriors.hmmlearn_sites import (
    CYCLE,
    HELD,
    LEFT_TO_RIGHT,
    MEANS,
    START,
    STUCK,
    SYMBOLS,
    TRANSITIONS,
    D,
    assert_same_posteriors,
    by_hand,
    categorical_m_step,
    every_type,
    fitted,
    gaussian_m_step,
    lengths,
    only,
    order_of,
    pooled,
    rows_for,
    simulated,
    some_models,
    true_law,
)
from tests.tolerances import CONJUGATE_UPDATE, ROUNDING, STANDARD_ERRORS

pytestmark = pytest.mark.covering(2)


@pytest.mark.parametrize("held", HELD)
@every_type
def test_variational_models_fuse_to_the_m_step_of_all_rows(kind, held):
    sites = [simulated(20 + number, tuple(sorted(states))) for number, states in enumerate(HELD[held])]
    models = [gaussian_m_step(site, order, kind) for site, order in zip(sites, HELD[held], strict=True)]
    fusion = cs.fuse(models, n_components=4, combine="product")
    assert_same_posteriors(fusion.model, gaussian_m_step(pooled(sites), range(4), kind))


@pytest.mark.parametrize("held", HELD)
def test_posteriors_over_symbols_fuse_to_the_m_step_of_all_rows(held):
    sites = [simulated(20 + number, tuple(sorted(states))) for number, states in enumerate(HELD[held])]
    models = [categorical_m_step(site, order) for site, order in zip(sites, HELD[held], strict=True)]
    fusion = cs.fuse(models, n_components=4, combine="product")
    assert_same_posteriors(fusion.model, categorical_m_step(pooled(sites), range(4)))


@every_type
@pytest.mark.parametrize("combine", ["barycenter", "product"])
def test_point_estimates_are_pooled_by_their_counts(kind, combine):
    """Means, mean outer products and rows of transitions, each weighted by how often its site met the state."""
    samples = (500.0, 2000.0)
    models = [by_hand(TRANSITIONS, kind, START), by_hand(TRANSITIONS[::-1, ::-1], kind, START, MEANS[::-1] + 0.5)]
    fusion = cs.fuse(models, n_components=4, combine=combine, n_observations=samples)
    visited = [expected_visits(one.startprob_, one.transmat_, n) for one, n in zip(models, samples, strict=True)]
    other = order_of(models[1], models[0])
    order = order_of(fusion.model, models[0])
    share = np.stack([visited[0], visited[1][other]])
    share /= share.sum(axis=0)
    means = np.stack([models[0].means_, models[1].means_[other]])
    expected = np.einsum("jk,jkd->kd", share, means)
    assert_allclose(fusion.model.means_[order], expected, rtol=ROUNDING)
    for one in models:
        one.n_features = D
    covariances = np.stack([models[0].covars_, models[1].covars_[other]])
    second = np.einsum("jk,jkab->kab", share, covariances + means[..., :, None] * means[..., None, :])
    second -= expected[:, :, None] * expected[:, None, :]
    if kind == "tied":
        counts = visited[0] + visited[1][other]
        second = np.tile(np.einsum("k,kab->ab", counts / counts.sum(), second), (4, 1, 1))
    if kind in ("diag", "spherical"):
        second *= np.eye(D)
    if kind == "spherical":
        second = np.trace(second, axis1=1, axis2=2)[:, None, None] / D * np.eye(D)
    assert_allclose(fusion.model.covars_[order], second, rtol=CONJUGATE_UPDATE, atol=CONJUGATE_UPDATE)
    rows = share[0][:, None] * models[0].transmat_ + share[1][:, None] * models[1].transmat_[np.ix_(other, other)]
    assert_allclose(fusion.model.transmat_[np.ix_(order, order)], rows, rtol=ROUNDING, atol=ROUNDING)
    starts = (models[0].startprob_ + models[1].startprob_[other]) / 2.0
    assert_allclose(fusion.model.startprob_[order], starts, rtol=ROUNDING)


# -- Sites of one law


@pytest.mark.slow
@some_models
@pytest.mark.parametrize("missing", [False, True], ids=["all states", "one state missing"])
def test_sites_of_one_law_fuse_to_it(name, kind, missing):
    held = (1, 2, 3) if missing else (0, 1, 2, 3)
    models = [fitted(name, kind, 0), fitted(name, kind, 1, held)]
    fusion = cs.fuse(models, n_observations=None if name.startswith("Variational") else [600, 600])
    assert fusion.n_components == 4
    model = fusion.model
    truth = MEANS if hasattr(model, "means_") else SYMBOLS
    emitted = model.means_ if hasattr(model, "means_") else model.emissionprob_
    order = np.square(emitted[None] - truth[:, None]).sum(axis=2).argmin(axis=1)
    assert sorted(order) == [0, 1, 2, 3]
    inside = np.zeros((4, 4))
    inside[np.ix_(held, held)] = only(held)[1]
    seen = np.stack(
        [np.bincount(simulated(seed, states)[2], minlength=4) for seed, states in ((0, (0, 1, 2, 3)), (1, held))]
    )
    expected = (seen[0][:, None] * TRANSITIONS + seen[1][:, None] * inside) / seen.sum(axis=0)[:, None]
    error = np.sqrt(np.maximum(expected * (1 - expected), 0.01) / seen.sum(axis=0)[:, None])
    found = model.transmat_[np.ix_(order, order)]
    assert np.all(np.abs(found - expected) <= STANDARD_ERRORS * error)
    assert_allclose(found.sum(axis=1), 1.0, rtol=ROUNDING)
    data, states = rows_for(name, 50), simulated(50)[2]
    found, best = (
        adjusted_mutual_info_score(states, one.predict(data, lengths(data))) for one in (model, true_law(name))
    )
    assert found > 0.95 * best


@pytest.mark.slow
@some_models
def test_the_order_of_states_and_of_sites_changes_nothing(name, kind):
    models = [fitted(name, kind, 0), fitted(name, kind, 1)]
    n_observations = None if name.startswith("Variational") else "equal"
    expected = cs.fuse(models, n_observations=n_observations).model
    shuffled = cs.rebuild(cs.describe(models[1]).take(np.array([2, 0, 3, 1])))
    found = cs.fuse([shuffled, models[0]], n_observations=n_observations).model
    order = order_of(found, expected)
    rows = rows_for(name)
    assert_allclose(found.score(rows), expected.score(rows), rtol=CONJUGATE_UPDATE)
    assert order[expected.predict(rows)].tolist() == found.predict(rows).tolist()
    moved = found.transmat_[np.ix_(order, order)]
    assert_allclose(moved, expected.transmat_, rtol=CONJUGATE_UPDATE, atol=CONJUGATE_UPDATE)
    assert_allclose(found.startprob_[order], expected.startprob_, rtol=CONJUGATE_UPDATE, atol=CONJUGATE_UPDATE)


@COPIES
@some_models
def test_copies_fuse_to_the_model(name, kind):
    model = fitted(name, kind, 0)
    posterior = cs.describe(model)
    n_observations = None if name.startswith("Variational") else "equal"
    fusion = cs.fuse([model, model, model], combine="barycenter", n_observations=n_observations)
    assert fusion.n_components == 4
    order = order_of(fusion.model, model)
    fused, rows = fusion.posterior, rows_for(name)
    assert_allclose(fused.natural[order], posterior.natural, rtol=CONJUGATE_UPDATE, atol=CONJUGATE_UPDATE)
    for key in ("start_counts", "transition_counts"):
        found = fused.attached[key].values
        found = found[order] if found.ndim == 1 else found[np.ix_(order, order)]
        assert_allclose(found, 3.0 * posterior.attached[key].values, rtol=ROUNDING, atol=ROUNDING)
    if not name.startswith("Variational"):  # whose transitions have three times the counts and one prior
        assert_allclose(fusion.model.score(rows), model.score(rows), rtol=CONJUGATE_UPDATE)
        assert order[model.predict(rows)].tolist() == fusion.model.predict(rows).tolist()


def test_a_default_prior_follows_the_number_of_states():
    models = [fitted("VariationalGaussianHMM", "full", 0), fitted("VariationalGaussianHMM", "full", 1, (1, 2, 3))]
    fused = cs.fuse(models, "concatenate").model
    assert_allclose(fused.transmat_prior_, np.full((7, 7), 1 / 7))
    assert_allclose(fused.startprob_prior_, np.full(7, 1 / 7))
    assert (fused.startprob_prior, fused.transmat_prior) == (None, None)


def test_given_priors_are_averaged_and_stay_sticky():
    rows = simulated(0)[0][:400]
    models = [
        VariationalGaussianHMM(
            4, random_state=0, n_iter=5, startprob_prior=first, transmat_prior=change + stay * np.eye(4)
        ).fit(rows)
        for first, change, stay in ((0.2, 0.1, 4.0), (0.4, 0.3, 8.0))
    ]
    fused = cs.fuse(models, n_components=4).model
    assert_allclose(fused.startprob_prior_, 0.3, rtol=ROUNDING)
    assert_allclose(fused.transmat_prior_, 0.2 + 6.0 * np.eye(4), rtol=ROUNDING)
    assert_array_equal(fused.transmat_prior, fused.transmat_prior_)


# -- What no site has seen


def test_a_transition_that_no_site_could_see_has_a_pseudo_count():
    first = by_hand([[0.5, 0.5], [0.5, 0.5]], start=[0.5, 0.5])
    second = by_hand([[0.5, 0.5], [0.5, 0.5]], start=[0.5, 0.5], means=MEANS[1:3])
    model = cs.fuse([first, second], n_components=3, n_observations="equal").model
    a, b, c = order_of(model, by_hand(np.eye(3)))
    assert_allclose(model.transmat_[a, c] * (500.0 + 1 / 3), 1 / 3, rtol=ROUNDING)
    assert_allclose(model.transmat_[c, a], model.transmat_[a, c], rtol=ROUNDING)
    assert_allclose(model.transmat_[b, [a, b, c]], [0.25, 0.5, 0.25], rtol=ROUNDING)


@COPIES
def test_a_transition_that_a_site_could_see_and_has_not_stays_impossible():
    model = cs.fuse([by_hand(LEFT_TO_RIGHT)] * 2, n_components=4, n_observations="equal", min_count=0).model
    order = order_of(model, by_hand(LEFT_TO_RIGHT))
    assert_allclose(model.transmat_[np.ix_(order, order)], LEFT_TO_RIGHT, rtol=ROUNDING)


def test_a_state_that_was_never_left_is_left_for_any_other():
    with pytest.raises(ValueError, match="transmat_ rows must sum to 1"):
        by_hand(STUCK).score(MEANS)
    rebuilt = cs.rebuild(cs.describe(by_hand(STUCK)))
    assert_allclose(rebuilt.transmat_, [STUCK[0], STUCK[1], np.full(3, 1 / 3)], rtol=ROUNDING)
    assert np.isfinite(rebuilt.score(MEANS))


def test_a_state_that_was_never_left_learns_from_another_site_what_follows():
    cycle = np.roll(np.eye(3), 1, axis=1)
    model = cs.fuse([by_hand(STUCK), by_hand(cycle)], n_components=3, n_observations="equal", min_count=0).model
    order = order_of(model, by_hand(STUCK))
    assert_allclose(model.transmat_[order[2], order], [1.0, 0.0, 0.0], atol=ROUNDING)


def test_where_all_that_was_counted_is_left_out_everything_is_alike():
    """A method may leave states out, and what led to them goes too."""
    ends = cs.rebuild(cs.describe(by_hand(LEFT_TO_RIGHT)).take(np.array([1, 2, 3])))
    assert_allclose(ends.startprob_, np.full(3, 1 / 3), rtol=ROUNDING)
    apart = cs.rebuild(cs.describe(by_hand(CYCLE)).take(np.array([0, 2])))
    assert_allclose(apart.transmat_, np.full((2, 2), 0.5), rtol=ROUNDING)


def test_a_state_that_was_never_met_emits_any_symbol():
    model = CategoricalHMM(2)
    model.startprob_, model.transmat_ = np.array([1.0, 0.0]), np.array([[1.0, 0.0], [0.0, 0.0]])
    model.emissionprob_ = np.array([[0.7, 0.3], [0.0, 0.0]])
    rebuilt = cs.rebuild(cs.describe(model))
    assert_allclose(rebuilt.emissionprob_, [[0.7, 0.3], [0.5, 0.5]], rtol=ROUNDING)
    assert_allclose(rebuilt.transmat_, [[1.0, 0.0], [0.5, 0.5]], rtol=ROUNDING)


def test_a_variational_state_without_rows_stays_at_its_prior():
    model = gaussian_m_step(simulated(20, (0, 1, 2)), range(4), "tied")
    posterior = cs.describe(model, min_count=0)
    assert posterior.counts[3] == 0.0
    assert_allclose(posterior.parameters()["mean"][3], [3.0, -1.0], rtol=ROUNDING)
    assert_same_posteriors(cs.rebuild(posterior), model)
