"""What hmmlearn's models say of a sequence, row by row, and which of them are refused."""

from dataclasses import replace

import numpy as np
import pytest
from hmmlearn.hmm import CategoricalHMM, GaussianHMM
from numpy.testing import assert_allclose

import consilience as cs
from tests.posteriors.hmmlearn_sites import (
    CYCLE,
    LEFT_TO_RIGHT,
    MEANS,
    START,
    STUCK,
    TRANSITIONS,
    D,
    V,
    by_hand,
    every_gaussian,
    every_model,
    fitted,
    gaussian_m_step,
    rows_for,
    scores,
    simulated,
    true_law,
)
from tests.tolerances import CONJUGATE_UPDATE, ROUNDING


@every_model
def test_scores_are_what_each_row_adds_to_the_score_of_its_sequence(name, kind):
    model, rows = fitted(name, kind, 0), rows_for(name)[:40]
    expected = np.diff([0.0, *(model.score(rows[: end + 1]) for end in range(len(rows)))])
    found = scores(model, rows)
    assert_allclose(found.values, expected, atol=CONJUGATE_UPDATE)
    assert (found.name, found.unit) == ("log density given the rows before", "nats per row")
    assert found.labels.tolist() == model.decode(rows, algorithm="viterbi")[1].tolist()
    assert found.usage.tolist() == np.bincount(model.predict(rows), minlength=4).tolist()


def test_labels_are_the_most_probable_path_whatever_the_model_decodes_by():
    model, rows = by_hand(TRANSITIONS, start=START, means=MEANS / 8.0), rows_for("GaussianHMM")[:200] / 8.0
    path = model.predict(rows).tolist()
    model.algorithm = "map"
    assert model.predict(rows).tolist() != path
    assert scores(model, rows).labels.tolist() == path


def test_forbidden_transitions_are_scored_however_far_apart_the_states_are():
    model = by_hand(LEFT_TO_RIGHT, means=100.0 * MEANS)
    rows = np.repeat(100.0 * MEANS, 5, axis=0)
    assert_allclose(scores(model, rows).values.sum(), model.score(rows), rtol=ROUNDING)


@every_gaussian
def test_a_model_is_not_better_than_itself_in_whatever_form_it_comes(name, kind, tmp_path):
    model, rows = fitted(name, kind, 0), rows_for(name)[:100]
    cs.save(model, tmp_path / "own.safetensors")
    for form in (model, cs.describe(model), tmp_path / "own.safetensors"):
        evaluation = cs.evaluate(form, model, rows)
        assert evaluation.better is None
        assert np.abs(evaluation.difference.mean) < ROUNDING


def test_an_own_model_is_worse_than_the_fused_one_on_states_it_lacks():
    own, other = fitted("GaussianHMM", "full", 1, (1, 2, 3)), fitted("GaussianHMM", "full", 0)
    rows = simulated(50)[0]
    evaluation = cs.evaluate(cs.fuse([own, other], n_observations="equal"), own, rows)
    assert evaluation.better == "fused"
    assert "nats per row" in str(evaluation)


def test_a_sequence_that_a_model_holds_impossible_is_refused():
    model = true_law("CategoricalHMM")
    model.transmat_ = np.eye(4)
    assert model.score(np.array([[0], [1], [4]])) == -np.inf
    with pytest.raises(cs.errors.InputError, match="row 2 has probability zero"):
        scores(model, [[0.0], [1.0], [4.0]])


@pytest.mark.parametrize("symbol", [V, -1, 0.5])
def test_symbols_that_a_model_does_not_know_are_refused(symbol):
    with pytest.raises(
        cs.errors.InputError, match=rf"row 1, counted from 0: expected a symbol from 0 to 4, found {symbol}"
    ):
        scores(fitted("CategoricalHMM", "", 0), [[0.0], [symbol]])


def test_more_than_one_column_of_symbols_is_refused():
    with pytest.raises(
        cs.errors.InputError, match=r"expected one column of symbols, .* found an array of shape \(2, 2\)"
    ):
        scores(fitted("VariationalCategoricalHMM", "", 0), [[0.0, 1.0], [1.0, 0.0]])


def test_a_model_that_hmmlearn_cannot_score_is_refused_with_the_remedy():
    with pytest.raises(cs.errors.InputError, match=r"row 2 is zero, since that state was never left.*cs\.rebuild"):
        scores(by_hand(STUCK), MEANS)


# -- Bad input


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("means_", np.full((4, D), np.nan), r"means_: expected finite numbers, found nan at \[0, 0\]; fit again"),
        ("means_", MEANS[:3], r"means_: expected an array of shape \(4, 2\), found \(3, 2\)"),
        ("means_", 1.0, r"means_: expected an array of shape \(4, 1\), found \(\)"),
        ("covariance_type", "round", "covariance_type: expected one of full, tied, diag, spherical, found 'round'"),
        ("covars_", np.full((4, D), np.inf), r"covars_: expected finite numbers, found inf at"),
        ("startprob_", np.array([0.5, 0.5, 0.5, 0.5]), "startprob_: expected a sum of 1, found 2"),
        ("startprob_", np.zeros(4), "startprob_: expected a sum of 1, found 0"),
        ("startprob_", np.ones(3) / 3, r"startprob_: expected an array of shape \(4,\), found \(3,\)"),
        ("transmat_", 0.9 * TRANSITIONS, r"transmat_: expected row 0 to sum to 1, found 0\.9"),
        ("transmat_", TRANSITIONS - 0.1 + 0.4 * np.eye(4), r"transmat_: expected probabilities, found -0\.1"),
        ("transmat_", np.full((4, 4), np.nan), "transmat_: expected finite numbers, found nan"),
    ],
)
def test_impossible_parameters_are_named(attribute, value, message):
    model = by_hand(TRANSITIONS)
    setattr(model, attribute, value)
    with pytest.raises(cs.errors.InputError, match=message):
        cs.describe(model)


@pytest.mark.parametrize("attribute", ["startprob_", "transmat_", "means_", "_covars_"])
def test_a_model_that_lacks_a_parameter_is_not_fitted(attribute):
    model = by_hand(TRANSITIONS)
    delattr(model, attribute)
    with pytest.raises(
        cs.errors.InputError, match=r"^this GaussianHMM is not fitted yet; call fit first \[E-UNFITTED\]$"
    ):
        cs.describe(model)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("startprob_posterior_", np.full(4, 0.1), r"startprob_posterior_: is 0\.3 below its prior"),
        ("startprob_prior_", np.array([0.4, 0.4, 0.4, 0.1]), "startprob_prior_: differs between states"),
        (
            "transmat_prior_",
            0.01 + 0.1 * np.array(LEFT_TO_RIGHT),
            "diagonal of transmat_prior_: differs between states",
        ),
        ("transmat_prior_", 0.1 + 0.1 * CYCLE, "transmat_prior_ off its diagonal: differs between states"),
        ("transmat_prior_", np.zeros((4, 4)), "transmat_prior_: expected positive values, found 0"),
        ("means_prior_", MEANS, "means_prior_: differs between states"),
        ("beta_prior_", np.arange(1.0, 5.0), "beta_prior_: differs between states"),
        ("dof_posterior_", np.full(4, -1.0), "dof_posterior_: expected positive values, found -1"),
        ("dof_posterior_", np.full(4, 0.5), "component 0 has 0.5 degrees of freedom"),
        (
            "scale_posterior_",
            -np.tile(np.eye(D), (4, 1, 1)),
            "component 0 has a scale matrix that is not positive definite",
        ),
        ("scale_posterior_", np.full((4, D, D), np.nan), r"scale_posterior_: expected finite numbers"),
    ],
)
def test_impossible_posteriors_are_named(attribute, value, message):
    model = gaussian_m_step(simulated(20), range(4), "full")
    setattr(model, attribute, value)
    with pytest.raises(cs.errors.InputError, match=message):
        cs.describe(model)


def test_models_of_other_dimensions_states_or_priors_are_told_apart():
    def message(*models):
        return "\n".join(problem for problem in cs.check(models) if "how many observations" not in problem)

    one = by_hand(TRANSITIONS)
    wider = GaussianHMM(1)
    wider.startprob_, wider.transmat_, wider.means_ = np.ones(1), np.ones((1, 1)), np.zeros((1, 3))
    wider.covars_ = np.ones((1, 3))
    assert message(one, wider) == "model 1: has 3 columns, expected 2 as in model 0 [E-MISMATCH]"
    assert message(one, by_hand(TRANSITIONS, "full")) == (
        "model 1: has covariance_type 'full', expected 'diag' as in model 0 [E-MISMATCH]"
    )
    symbols = fitted("CategoricalHMM", "", 0)
    fewer = CategoricalHMM(1)
    fewer.startprob_, fewer.transmat_, fewer.emissionprob_ = np.ones(1), np.ones((1, 1)), np.array([[0.5, 0.5]])
    assert message(symbols, fewer) == "model 1: has symbols 2, expected 5 as in model 0 [E-MISMATCH]"
    sticky = gaussian_m_step(simulated(20), range(4), "full")
    assert message(fitted("VariationalGaussianHMM", "full", 0), sticky) == (
        "model 1: has startprob_prior 'given', expected 'default' as in model 0 [E-MISMATCH]\n"
        "model 1: has transmat_prior 'given', expected 'default' as in model 0 [E-MISMATCH]"
    )


def test_a_posterior_without_prior_cannot_become_a_variational_model():
    for name, kind in (("VariationalGaussianHMM", "full"), ("VariationalCategoricalHMM", "")):
        with pytest.raises(cs.errors.InputError, match="lacks 'prior', which rebuilding needs"):
            cs.rebuild(replace(cs.describe(fitted(name, kind, 0)), prior=None))
