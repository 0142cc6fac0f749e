"""SGDClassifier as the linear model of its loss: near logistic regression of all rows with precision alpha n."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.preprocessing import scale

import consilience as cs

X, Y = load_breast_cancer(return_X_y=True)
X = scale(X)[:, :8]


def site(start, count, **options):
    rows = slice(start, None, count)
    model = SGDClassifier(**{"loss": "log_loss", "alpha": 0.01, "random_state": 0, **options}).fit(X[rows], Y[rows])
    return cs.describe(model, data=(X[rows], Y[rows]))


@pytest.mark.parametrize("options", [{}, {"alpha": 0.1}, {"fit_intercept": False}])
def test_it_is_near_the_optimum_of_all_rows(options):
    fusion = cs.fuse([site(start, 3, **options) for start in range(3)])
    parameters = {"alpha": 0.01, "fit_intercept": True, **options}
    whole = LogisticRegression(
        C=1.0 / (parameters["alpha"] * len(X)), fit_intercept=parameters["fit_intercept"], tol=1e-10, max_iter=10_000
    ).fit(X, Y)
    assert isinstance(fusion.model, SGDClassifier)
    assert fusion.verdict.code == "approximate"
    np.testing.assert_allclose(fusion.model.coef_, whole.coef_, atol=0.05 * np.abs(whole.coef_).max())
    np.testing.assert_allclose(fusion.model.predict_proba(X), whole.predict_proba(X), atol=0.03)


def test_sites_that_started_otherwise_send_the_same():
    first, second = site(0, 3), site(0, 3, random_state=5)
    for name, values in first.counts.items():
        np.testing.assert_array_equal(values, second.counts[name])


@pytest.mark.parametrize(
    ("options", "text"),
    [({"loss": "hinge"}, "loss: is 'hinge'"), ({"penalty": "l1"}, "penalty: is no normal prior")],
)
def test_what_is_no_likelihood_with_a_normal_prior_is_refused(options, text):
    with pytest.raises(cs.errors.InputError, match=text):
        site(0, 3, **options)


def test_more_than_two_classes_are_refused():
    rows, classes = load_wine(return_X_y=True)
    model = SGDClassifier(loss="log_loss", random_state=0).fit(scale(rows), classes)
    with pytest.raises(cs.errors.InputError, match="has 3 classes, and is one model for each"):
        cs.describe(model, data=(scale(rows), classes))
