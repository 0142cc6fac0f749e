"""Fourth moments in a second message: shrinkage is then that of `fit` on the rows of all sites."""

import threading
import warnings

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import consilience as cs
from consilience.errors import InputError, UnsupportedError
from consilience.federated.requests.base import StandingAnswer
from tests.estimators.sites import differences, owners

pytestmark = pytest.mark.covering(2)

EXACT = 1e-10
"""What exact means in the library, relative to the largest entry of an attribute."""


def rows(seed, n=300, d=5):
    """Return rows with heavy tails and scales apart, and their classes."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    X = rng.standard_t(5, size=(n, d)) @ rng.normal(size=(d, d)) * 10.0 ** np.linspace(-1, 2, d) + 3.0
    X[:, 1] += 0.1 * y
    return X, y


DISCRIMINANTS = {
    "lsqr": lambda: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
    "eigen": lambda: LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto"),
    "priors": lambda: LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto", priors=[0.2, 0.3, 0.5]),
}
if "shrinkage" in QuadraticDiscriminantAnalysis().get_params():  # since scikit-learn 1.8
    DISCRIMINANTS["quadratic"] = lambda: QuadraticDiscriminantAnalysis(solver="eigen", shrinkage="auto")

COVARIANCES = {"centred": LedoitWolf, "about zero": lambda: LedoitWolf(assume_centered=True)}

every_discriminant = pytest.mark.parametrize("name", DISCRIMINANTS)
every_covariance = pytest.mark.parametrize("name", COVARIANCES)


def split(seed, n_sites):
    """Return rows with their classes by site; classes live at a few sites each."""
    X, y = rows(seed)
    owner = owners(np.random.default_rng([seed, n_sites]), len(X), n_sites, y)
    return X, y, {f"site {j:03d}": (X[owner == j], y[owner == j]) for j in range(n_sites)}


def fused(make, data, min_count=0):
    """Return the fusion of a model at each site."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of collinear columns at small sites
        said = {
            site: cs.describe(make().fit(*(own if isinstance(own, tuple) else [own])), own, min_count=min_count)
            for site, own in data.items()
        }
        return cs.fuse(said, min_count=min_count)


def fused_of_any(monkeypatch, make, data, X, y):
    """Return the fusion of sites of which some have too few rows or classes for a model of their own."""
    from consilience.estimators import describe as room

    monkeypatch.setattr(room, "_require_same_fit", lambda *_: None)
    whole = make().fit(X, y)
    return cs.fuse({site: cs.describe(whole, own, min_count=0) for site, own in data.items()}, min_count=0)


@pytest.mark.parametrize("n_sites", [2, 30, *(pytest.param(n, marks=pytest.mark.slow) for n in (7, 100))])
@every_discriminant
def test_discriminants_are_those_of_all_rows_whatever_the_split(name, n_sites, monkeypatch):
    for seed in range(3):
        X, y, data = split(seed, n_sites)
        fusion = fused_of_any(monkeypatch, DISCRIMINANTS[name], data, X, y)
        ended = cs.federated.exchange("moments4", fusion, data, min_count=0)
        pooled = DISCRIMINANTS[name]().fit(X, y)
        ignored = ("scalings_",) if name in ("eigen", "priors") else ("rotations_",)  # up to signs
        assert differences(ended.model, pooled, EXACT, ignored) == []
        found, expected = ended.model.decision_function(X), pooled.decision_function(X)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
        assert ended.verdict.code == "exact"
        assert ended.history.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("n_sites", [2, 7, 30, 100])
@every_covariance
def test_covariances_are_those_of_all_rows_whatever_the_split(name, n_sites, monkeypatch):
    for seed in range(3):
        X, _, data = split(seed, n_sites)
        data = {site: own[0] for site, own in data.items()}
        fusion = fused_of_any(monkeypatch, COVARIANCES[name], data, X, None)
        ended = cs.federated.exchange("moments4", fusion, data, min_count=0)
        assert differences(ended.model, COVARIANCES[name]().fit(X), EXACT) == []
        assert ended.verdict.code == "exact"


PIPELINES = {
    "scaled": lambda: make_pipeline(StandardScaler(), DISCRIMINANTS["lsqr"]()),
    "components": lambda: make_pipeline(StandardScaler(), PCA(3, svd_solver="full"), DISCRIMINANTS["eigen"]()),
    "columns apart": lambda: make_pipeline(
        ColumnTransformer([("scaled", StandardScaler(), [3, 0]), ("left out", "drop", [1])], remainder="passthrough"),
        DISCRIMINANTS["lsqr"](),
    ),
    "scaled covariance": lambda: make_pipeline(StandardScaler(with_mean=False), "passthrough", LedoitWolf()),
}


@pytest.mark.parametrize("n_sites", [2, 11])
@pytest.mark.parametrize("name", PIPELINES)
def test_at_the_end_of_a_pipeline_they_are_of_what_its_steps_make(name, n_sites, monkeypatch, tmp_path):
    X, y, data = split(1, n_sites)
    y = None if name == "scaled covariance" else y
    data = data if y is not None else {site: own[0] for site, own in data.items()}
    fusion = fused_of_any(monkeypatch, PIPELINES[name], data, X, y)
    assert fusion.verdict.code == "approximate"
    ended = cs.federated.exchange("moments4", fusion, data, min_count=0)
    pooled = PIPELINES[name]().fit(X, y)
    assert ended.verdict.code == "exact"
    ours, its = ended.model[-1], pooled[-1]
    if y is None:
        assert differences(ours, its, EXACT) == []
    else:
        expected = pooled.decision_function(X)
        np.testing.assert_allclose(
            ended.model.decision_function(X), expected, rtol=0, atol=1e-9 * np.abs(expected).max()
        )
        np.testing.assert_array_equal(ended.model.predict(X), pooled.predict(X))
    ended.save(tmp_path / "fused.safetensors")
    again = cs.rebuild(cs.load(tmp_path / "fused.safetensors"))
    assert differences(again[-1], ours, 0.0) == []


def test_a_site_with_a_pipeline_of_other_rows_is_noticed_and_its_own_described():
    X, y = rows(0)
    pipeline = PIPELINES["components"]().fit(X, y)
    assert cs.describe(pipeline, (X, y)).n_observations == len(X)
    with pytest.raises(InputError, match="is not the model that the sums of these data give"):
        cs.describe(pipeline, (X[:150], y[:150]))


def test_requests_of_steps_that_do_not_fit_their_frames_are_refused():
    from dataclasses import replace

    from consilience.federated.requests.base import Content

    X, y = rows(0)
    pieces = {site: (X[j::2], y[j::2]) for j, site in enumerate("ab")}
    first = cs.federated.request("moments4", fused(PIPELINES["components"], pieces))
    arrays = dict(first.content.arrays)
    for name, values, message in (
        ("matrix", arrays["matrix"][:2], "matrix has shape"),
        ("matrix", np.zeros((3, 0)), "no columns"),
        ("shift", np.full(3, np.nan), "NaN"),
    ):
        changed = replace(first, content=Content(first.content.fields, {**arrays, name: values}))
        with pytest.raises(InputError, match=message):
            cs.federated.answer(changed, pieces["a"])


def test_one_column_and_constant_columns_shrink_as_in_fit():
    X, y = rows(0)
    for columns in (X[:, :1], np.column_stack([X[:, :2], np.full(len(X), 7.0)])):
        data = {"a": (columns[::2], y[::2]), "b": (columns[1::2], y[1::2])}
        plain = {site: own[0] for site, own in data.items()}
        covariance = cs.federated.exchange("moments4", fused(LedoitWolf, plain), plain).model
        assert differences(covariance, LedoitWolf().fit(columns), EXACT) == []
        ended = cs.federated.exchange("moments4", fused(DISCRIMINANTS["lsqr"], data), data).model
        pooled = DISCRIMINANTS["lsqr"]().fit(columns, y)
        np.testing.assert_allclose(ended.covariance_, pooled.covariance_, rtol=0, atol=1e-10 * pooled.covariance_.max())


def test_the_first_message_alone_has_the_shrinkage_of_oas_and_a_verdict_that_names_the_second():
    from sklearn.covariance import OAS

    X, _, _ = split(0, 2)
    fusion = fused(LedoitWolf, {"a": X[::2], "b": X[1::2]})
    np.testing.assert_allclose(fusion.model.covariance_, OAS().fit(X).covariance_, rtol=1e-10)
    assert type(fusion.model) is LedoitWolf
    assert fusion.verdict.code == "approximate"
    assert "OAS" in fusion.verdict.text
    assert "--then moments4" in fusion.verdict.remedy


def test_a_site_that_does_not_answer_leaves_a_verdict_and_one_that_answers_late_or_before_counts():
    X, y, _ = split(0, 2)
    data = {site: (X[j::3], y[j::3]) for j, site in enumerate("abc")}
    make = DISCRIMINANTS["eigen"]
    fusion = fused(make, data)
    first = cs.federated.request("moments4", fusion, rounds=2)
    answers = {site: cs.federated.answer(first, own) for site, own in data.items()}
    early = cs.federated.reduce(first, {site: answers[site] for site in "ab"})
    without = cs.federated.finish(fusion, [early])
    assert without.verdict.code == "approximate"
    assert f"fourth moments of {len(data['a'][0]) + len(data['b'][0])} rows" in without.verdict.text
    again = cs.federated.answer(early.next_request, data["a"])
    late = {"c": StandingAnswer(first, answers["c"])}
    ended = cs.federated.reduce(early.next_request, {"a": again}, early.reduction.standing, late)
    assert set(ended.reduction.carried) == {"b", "c"}
    assert "came late" in ended.reduction.carried["c"]
    model = cs.federated.finish(fusion, [early, ended])
    assert model.verdict.code == "exact"
    assert differences(model.model, make().fit(X, y), EXACT, ("scalings_",)) == []


def test_a_class_of_which_no_site_told_has_the_shrinkage_of_oas_and_is_named():
    X, y, _ = split(0, 2)
    order = np.argsort(y, kind="stable")
    data = {"a": (X[order][:-100:2], y[order][:-100:2]), "b": (X[order][1::2], y[order][1::2])}
    fusion = fused(DISCRIMINANTS["lsqr"], data)
    few = data["a"][1] < 2
    ended = cs.federated.exchange("moments4", fusion, {"a": (data["a"][0][few], data["a"][1][few])})
    assert "of class 2 no site stated them" in ended.verdict.text
    assert np.isfinite(ended.model.coef_).all()


def test_thin_classes_are_withheld_from_both_messages_alike():
    X, y, _ = split(0, 2)
    keep = np.concatenate([np.flatnonzero((y != 2) & (np.arange(len(y)) % 2 == 0)), np.flatnonzero(y == 2)[:3]])
    data = {"a": (X[keep], y[keep]), "b": (X[1::2], y[1::2])}
    with pytest.warns(cs.errors.WithheldWarning, match="class 2"):
        said = {site: cs.describe(DISCRIMINANTS["eigen"]().fit(*own), own) for site, own in data.items()}
    fusion = cs.fuse(said)
    first = cs.federated.request("moments4", fusion)
    answer = cs.federated.answer(first, data["a"])
    assert answer.content.arrays["rows"][2] == 0
    assert answer.content.fields["withheld"] == 1
    ended = cs.federated.exchange("moments4", fusion, data)
    kept = y[keep] != 2
    left = np.vstack([X[keep][kept], X[1::2]]), np.concatenate([y[keep][kept], y[1::2]])
    assert differences(ended.model, DISCRIMINANTS["eigen"]().fit(*left), EXACT, ("scalings_",)) == []
    assert ended.verdict.code == "exact"
    with pytest.raises(InputError, match="fewer do not leave"):
        cs.federated.answer(first, (X[:4], y[:4]))


def test_a_class_that_no_first_message_had_is_left_out_of_the_answer():
    X, y, _ = split(0, 2)
    X, y = X[y < 2], y[y < 2]
    data = {site: (X[j::2], y[j::2]) for j, site in enumerate("ab")}
    first = cs.federated.request("moments4", fused(DISCRIMINANTS["lsqr"], data))
    own = cs.federated.answer(first, data["a"])
    more = np.vstack([data["a"][0], X[:7]]), np.append(data["a"][1], np.full(7, 9))
    other = cs.federated.answer(first, more)
    np.testing.assert_array_equal(own.content.arrays["fourth"], other.content.arrays["fourth"])
    assert other.content.fields["withheld"] == 1


def test_a_table_names_classes_as_texts():
    X, y, _ = split(0, 2)
    data = {site: (X[j::2], y[j::2]) for j, site in enumerate("ab")}
    first = cs.federated.request("moments4", fused(DISCRIMINANTS["lsqr"], data))
    x, labels = data["a"]
    own, as_texts = (cs.federated.answer(first, (x, one)) for one in (labels, labels.astype(str)))
    np.testing.assert_array_equal(own.content.arrays["fourth"], as_texts.content.arrays["fourth"])


def test_a_saved_result_keeps_its_shrinkage_and_loses_it_where_it_is_fused_on(tmp_path):
    X, y, _ = split(0, 2)
    data = {site: (X[j::3], y[j::3]) for j, site in enumerate("abc")}
    make = DISCRIMINANTS["eigen"]
    fusion = fused(make, data)
    ended = cs.federated.exchange("moments4", fusion, data)
    ended.save(tmp_path / "fused.safetensors")
    loaded = cs.load(tmp_path / "fused.safetensors")
    statistics = getattr(loaded, "statistics", loaded)
    np.testing.assert_array_equal(cs.rebuild(statistics).coef_, ended.model.coef_)
    on = cs.fuse([statistics, cs.describe(make().fit(X + 1.0, y), (X + 1.0, y))])
    assert "fourth" not in on.statistics.counts
    assert on.verdict.code == "approximate"
    left = cs.remove(ended, cs.describe(make().fit(*data["c"]), data["c"]))
    assert "fourth" not in left.statistics.counts
    kept = fused(make, {site: data[site] for site in "ab"}).model.coef_
    np.testing.assert_allclose(left.model.coef_, kept, rtol=1e-7, atol=1e-9 * np.abs(kept).max())


def test_a_round_in_a_folder_is_that_in_memory(tmp_path):
    X, y = rows(0)
    place, threads = tmp_path / "round", []
    for j, site in enumerate("ab"):
        own = X[j::2], y[j::2]
        cs.save(DISCRIMINANTS["lsqr"]().fit(*own), tmp_path / f"{site}.safetensors", data=own)
        cs.federated.send_folder(tmp_path / f"{site}.safetensors", place, site)
        np.savez(tmp_path / f"{site}.npz", x=own[0], y=own[1])
        threads.append(
            threading.Thread(
                target=cs.federated.answer_folder,
                args=(place, site, tmp_path / f"{site}.npz"),
                kwargs={"timeout": 60},
                daemon=True,
            )
        )
        threads[-1].start()
    result = cs.federated.serve_folder(
        place, tmp_path / "fused.safetensors", sites=["a", "b"], then="moments4", deadline=60, poll=0.05
    )
    for thread in threads:
        thread.join(60)
    assert result.fusion.verdict.code == "exact"
    found = cs.rebuild(cs.load(tmp_path / "fused.safetensors"))
    assert differences(found, DISCRIMINANTS["lsqr"]().fit(X, y), EXACT) == []
    result.fusion.report(tmp_path / "page.html")
    assert "exact: this is the LinearDiscriminantAnalysis" in (tmp_path / "page.html").read_text()


def test_a_model_of_other_rows_is_noticed():
    X, y = rows(0)
    with pytest.raises(InputError, match="is not the model that the sums of these data give"):
        cs.describe(DISCRIMINANTS["lsqr"]().fit(X, y), (X[:150], y[:150]))


def test_what_there_is_no_such_request_of_is_named():
    X, y = rows(0)
    with pytest.raises(UnsupportedError, match=r"sklearn\.Ridge .*needs no fourth moments.*LedoitWolf"):
        cs.federated.request("moments4", cs.describe(Ridge().fit(X, y), (X, y)))
    with pytest.raises(UnsupportedError, match="there is no such request"):
        cs.federated.request("moments4", object())


def test_answers_that_no_rows_have_are_refused():
    from dataclasses import replace

    from consilience.federated.requests.base import Content

    X, y = rows(0)
    data = {site: (X[j::2], y[j::2]) for j, site in enumerate("ab")}
    first = cs.federated.request("moments4", fused(DISCRIMINANTS["lsqr"], data))
    answer = cs.federated.answer(first, data["a"])
    arrays = dict(answer.content.arrays)
    few = arrays["rows"].copy()
    few[0] += few[1] - 1
    few[1] = 1
    empty = arrays["rows"].copy()
    empty[0] += empty[1]
    empty[1] = 0
    for name, values, message in (
        ("fourth", -arrays["fourth"], "negative"),
        ("fourth", np.full(4, np.nan), "NaN"),
        ("fourth", arrays["fourth"][:2], "has shape"),
        ("rows", arrays["rows"] + 0.5, "no counts of rows"),
        ("rows", arrays["rows"] + 1.0, "it states"),
        ("rows", few, "rows, and the site withholds fewer than 5"),
        ("rows", empty, "of a class without rows"),
    ):
        changed = replace(answer, content=Content(answer.content.fields, {**arrays, name: values}))
        with pytest.raises(InputError, match=message):
            cs.federated.reduce(first, {"a": changed})
