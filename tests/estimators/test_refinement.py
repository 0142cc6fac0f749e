"""Laws of refinement: damped Newton from any start reaches the fit on all rows, and never lowers its log posterior."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

import consilience as cs
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.refinement import CONVERGED
from tests.estimators.test_laplace import MODELS, coefficients, every_model, poisson_rows, sites_of

ROUNDS = 15
IN_STANDARD_ERRORS = 1e-6
ROUNDING = 1e-9


def rows_of(owner, X, y, weights=None):
    parts = [np.flatnonzero(owner == site) for site in np.unique(owner)]
    return {
        f"site {site}": (X[rows], y[rows]) if weights is None else (X[rows], y[rows], weights[rows])
        for site, rows in enumerate(parts)
    }


def errors_in_standard_errors(model, pooled, X, y, weights=None):
    """Return how far coefficients are from those of the fit on all rows, in its standard errors."""
    statistics = cs.describe(pooled, data=(X, y), sample_weight=weights)
    adapter = adapter_of_kind(statistics.kind)
    information, _, _, prior = adapter.natural(statistics)
    covariance = np.linalg.inv(adapter.determined(information + np.diag(prior), statistics))
    deviations = np.sqrt(adapter.dispersion(statistics) * np.diag(covariance))
    gap = adapter.coefficients(cs_statistics(model, statistics, adapter)) - adapter.coefficients(statistics)
    return np.abs(gap) / deviations


def cs_statistics(model, statistics, adapter):
    """Return statistics whose coefficients are those of a model."""
    theta = np.asarray(model.coef_, dtype=float)
    if model.fit_intercept:
        theta = np.hstack([theta, np.reshape(model.intercept_, (*theta.shape[:-1], 1))])
    return adapter.expanded(statistics, theta.ravel(), adapter.natural(statistics)[0])


def refine(fusion, data, rounds=ROUNDS, **options):
    return cs.federated.exchange("refine", fusion, data, rounds=rounds, **options)


@every_model
@pytest.mark.parametrize("start", ["product", "zero", "average"])
def test_refinement_reaches_the_fit_on_all_rows_from_any_start(name, start):
    make, rows = MODELS[name]
    X, y = rows()
    sent, owner = sites_of(make, X, y, 4)
    fusion = cs.fuse(sent)
    adapter = adapter_of_kind(fusion.statistics.kind)
    places = {
        "zero": np.zeros_like(adapter.coefficients(fusion.statistics)),
        "average": np.mean([adapter.coefficients(one) for one in sent.values()], axis=0),
    }
    if start == "product":
        refined = refine(fusion, rows_of(owner, X, y))
        assert np.all(np.diff(refined.history) >= -ROUNDING * np.abs(refined.history[0]))
        assert refined.verdict.code == "iterative"
        assert refined.verdict.harmless is True
        model = refined.model
    else:
        moved = adapter.expanded(fusion.statistics, places[start], adapter.natural(fusion.statistics)[0])
        model = cs.rebuild(refine(moved, rows_of(owner, X, y)))
    assert errors_in_standard_errors(model, make().fit(X, y), X, y).max() < IN_STANDARD_ERRORS


def test_weights_and_sites_that_lack_a_class_are_those_of_all_rows():
    make, rows = MODELS["logistic, three classes"]
    X, y = rows()
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(X))
    owner = np.where(y == 0, 0, np.arange(len(X)) % 3)
    parts = {f"site {k}": np.flatnonzero(owner == k) for k in range(3)}
    sent = {
        name: cs.describe(make().fit(X[r], y[r], weights[r]), (X[r], y[r]), sample_weight=weights[r])
        for name, r in parts.items()
    }
    refined = refine(cs.fuse(sent), {name: (X[r], y[r], weights[r]) for name, r in parts.items()})
    pooled = make().fit(X, y, weights)
    assert errors_in_standard_errors(refined.model, pooled, X, y, weights).max() < IN_STANDARD_ERRORS


def test_the_step_shrinks_quadratically_and_certifies_what_is_left():
    make, rows = MODELS["Poisson"]
    X, y = rows()
    sent, owner = sites_of(make, X, y, 8)
    fusion, pooled = cs.fuse(sent), make().fit(X, y)
    steps, left = [], []
    for rounds in (1, 2, 3):
        refined = refine(fusion, rows_of(owner, X, y), rounds)
        steps.append(refined.details["refinement"]["step"])
        left.append(errors_in_standard_errors(refined.model, pooled, X, y).max())
    assert steps[0] > 10 * steps[1]
    assert np.all(np.array(left) < np.array(steps))
    assert steps[-1] < CONVERGED or left[-1] < 1e-3


CANCER_X, CANCER_Y = load_breast_cancer(return_X_y=True)
CANCER_X = scale(CANCER_X)[:, :10]


def test_separated_sites_are_damped_where_newton_diverges():
    """20 sites of 28 rows, ten columns and next to no penalty: most sites separate the classes."""

    def make():
        return LogisticRegression(C=1e8, tol=1e-12, max_iter=100_000, solver="newton-cg")

    owner = np.random.default_rng(0).permutation(len(CANCER_X)) % 20
    sent = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for site in range(20):
            r = owner == site
            sent[f"site {site}"] = cs.describe(
                make().fit(CANCER_X[r], CANCER_Y[r]), (CANCER_X[r], CANCER_Y[r]), min_count=0
            )
        fusion, pooled = cs.fuse(sent, min_count=0), make().fit(CANCER_X, CANCER_Y)
    assert "separated" in fusion.verdict.text
    assert errors_in_standard_errors(fusion.model, pooled, CANCER_X, CANCER_Y).max() > 5.0
    refined = refine(fusion, rows_of(owner, CANCER_X, CANCER_Y), min_count=0)
    assert errors_in_standard_errors(refined.model, pooled, CANCER_X, CANCER_Y).max() < IN_STANDARD_ERRORS
    assert np.all(np.diff(refined.history) >= -ROUNDING * np.abs(refined.history[0]))


def test_the_covariance_of_a_refined_model_is_that_of_the_fit_on_all_rows_whatever_the_sites_penalties():
    """Full penalties at 20 sites of 28 rows: the product's factors are taken at points that were shrunk."""

    def make():
        return LogisticRegression(C=1.0, tol=1e-12, max_iter=10_000)

    X = CANCER_X[:, [0, 1, 4, 8]]
    owner = np.random.default_rng(0).permutation(len(X)) % 20
    sent = {}
    for site in range(20):
        r = owner == site
        sent[f"site {site}"] = cs.describe(make().fit(X[r], CANCER_Y[r]), (X[r], CANCER_Y[r]), min_count=0)
    fusion = cs.fuse(sent, min_count=0)
    assert "penalties make up" in fusion.verdict.text
    assert "refine" in fusion.verdict.remedy
    refined = refine(fusion, rows_of(owner, X, CANCER_Y), min_count=0)
    pooled = cs.describe(make().fit(X, CANCER_Y), (X, CANCER_Y))
    adapter = adapter_of_kind(pooled.kind)

    def deviations(statistics):
        information, _, _, prior = adapter.natural(statistics)
        return np.sqrt(np.diag(np.linalg.inv(information + np.diag(prior))))

    np.testing.assert_allclose(deviations(refined.statistics), deviations(pooled), rtol=1e-5)
    assert np.any(deviations(fusion.statistics) < 0.9 * deviations(pooled))


def test_a_site_that_is_missing_stands_by_its_expansion_and_the_verdict_says_so():
    make, rows = MODELS["Poisson"]
    X, y = rows()
    sent, owner = sites_of(make, X, y, 3)
    fusion, data = cs.fuse(sent), rows_of(owner, X, y)
    message, done, standing = cs.federated.request("refine", fusion, rounds=5), [], {}
    while message is not None:
        present = list(data) if message.number == 1 else list(data)[:2]
        answers = {site: cs.federated.answer(message, data[site]) for site in present}
        done.append(cs.federated.reduce(message, answers, standing))
        message, standing = done[-1].next_request, done[-1].reduction.standing
    refined = cs.federated.finish(fusion, done)
    assert dict(done[-1].reduction.carried) == {"site 2": "sent no answer in time"}
    assert refined.verdict.harmless is None
    assert "1 site stands by the expansion of an earlier answer" in refined.verdict.text
    pooled = make().fit(X, y)
    near, far = (errors_in_standard_errors(model, pooled, X, y).max() for model in (refined.model, fusion.model))
    assert near < far / 10


def test_a_site_that_never_answered_is_named_as_missing():
    make, rows = MODELS["Poisson"]
    X, y = rows()
    sent, owner = sites_of(make, X, y, 3)
    data = rows_of(owner, X, y)
    data.pop("site 1")
    refined = refine(cs.fuse(sent), data)
    assert "1 of 3 sites answered no request" in refined.verdict.text
    others = owner != 1
    pooled = make().fit(X[others], y[others])
    assert errors_in_standard_errors(refined.model, pooled, X[others], y[others]).max() < IN_STANDARD_ERRORS


def test_a_stranger_in_the_place_of_a_site_is_no_fit_on_all_rows():
    make, rows = MODELS["Poisson"]
    X, y = rows()
    sent, owner = sites_of(make, X, y, 4)
    data = rows_of(owner, X, y)
    three = cs.fuse({name: sent[name] for name in list(sent)[:3]})
    few = (data["site 3"][0][:40], data["site 3"][1][:40])
    refined = refine(three, {"site 0": data["site 0"], "site 1": data["site 1"], "site 3": few})
    assert refined.verdict.harmless is None
    assert "answers are of 240 rows, and the models were of 300" in refined.verdict.text


def test_what_cannot_be_refined_is_said():
    from sklearn.linear_model import LinearRegression

    X, y = poisson_rows()
    exact = cs.fuse([cs.describe(LinearRegression().fit(X[k::2], y[k::2]), (X[k::2], y[k::2])) for k in range(2)])
    with pytest.raises(cs.errors.UnsupportedError, match="nothing to refine"):
        cs.federated.request("refine", exact)
    with pytest.raises(cs.errors.UnsupportedError, match="no such request of it"):
        cs.federated.request("refine", object())


def test_rows_that_do_not_fit_a_request_are_named():
    make, rows = MODELS["logistic, C=1"]
    X, y = rows()
    sent, _ = sites_of(make, X, y, 2)
    message = cs.federated.request("refine", cs.fuse(sent))
    with pytest.raises(cs.errors.InputError, match="has the class 7, which the model does not know"):
        cs.federated.answer(message, (X[:50], np.full(50, 7)))
    keep = np.concatenate([np.flatnonzero(y == 0)[:3], np.flatnonzero(y == 1)[:40]])
    with pytest.raises(cs.errors.InputError, match="3 rows of class 0"):
        cs.federated.answer(message, (X[keep], y[keep]))
    with pytest.raises(cs.errors.InputError, match="expected 4"):
        cs.federated.answer(message, (X[:, :3], y))
    with pytest.raises(cs.errors.InputError, match="without y"):
        cs.federated.answer(message, X)


def test_a_refined_model_is_saved_with_its_verdict_and_reported(tmp_path):
    make, rows = MODELS["Poisson"]
    X, y = rows()
    sent, owner = sites_of(make, X, y, 3)
    refined = refine(cs.fuse(sent), rows_of(owner, X, y))
    refined.save(tmp_path / "refined.safetensors")
    refined.report(tmp_path / "page.html")
    assert "iterative: this is the PoissonRegressor" in (tmp_path / "page.html").read_text()
    np.testing.assert_allclose(
        coefficients(cs.rebuild(cs.load(tmp_path / "refined.safetensors"))), coefficients(refined.model), rtol=1e-12
    )


def test_a_site_can_be_added_to_a_refined_model_and_none_removed():
    make, rows = MODELS["Poisson"]
    X, y = rows()
    sent, owner = sites_of(make, X, y, 4)
    data = rows_of(owner, X, y)
    three = {name: sent[name] for name in list(sent)[:3]}
    refined = refine(cs.fuse(three), {name: data[name] for name in three})
    added = cs.add(refined, sent["site 3"])
    pooled = make().fit(X, y)
    assert errors_in_standard_errors(added.model, pooled, X, y).max() < 1.0
    again = refine(added, data, allow_differencing=True)
    assert errors_in_standard_errors(again.model, pooled, X, y).max() < IN_STANDARD_ERRORS
    with pytest.raises(cs.errors.UnsupportedError, match="was refined"):
        cs.remove(refined, sent["site 0"])


def test_a_round_of_models_and_refinements_in_a_folder_is_that_in_memory(tmp_path):
    import threading

    make, rows = MODELS["logistic, C=1"]
    X, y = rows()
    sent, owner = sites_of(make, X, y, 2)
    data, place, threads = rows_of(owner, X, y), tmp_path / "round", []
    for number, (name, statistics) in enumerate(sent.items()):
        cs.save(statistics, tmp_path / f"{number}.safetensors")
        cs.federated.send_folder(tmp_path / f"{number}.safetensors", place, f"s{number}")
        np.savez(tmp_path / f"{number}.npz", x=data[name][0], y=data[name][1])
        threads.append(
            threading.Thread(
                target=cs.federated.answer_folder,
                args=(place, f"s{number}", tmp_path / f"{number}.npz"),
                kwargs={"follow": True, "timeout": 60},
                daemon=True,
            )
        )
        threads[-1].start()
    result = cs.federated.serve_folder(
        place, tmp_path / "fused.safetensors", sites=["s0", "s1"], then="refine:12", deadline=60, poll=0.05
    )
    for thread in threads:
        thread.join(60)
    assert len(result.reports) < 10  # it ends where a step is as good as none
    assert result.fusion.verdict.code == "iterative"
    fused = cs.rebuild(cs.load(tmp_path / "fused.safetensors"))
    assert errors_in_standard_errors(fused, make().fit(X, y), X, y).max() < IN_STANDARD_ERRORS
