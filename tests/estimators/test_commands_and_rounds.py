"""The commands and rounds on statistics files: fuse, check, inspect, evaluate, report, methods, send and serve."""

import json

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB

import consilience as cs
from tests.cli.running import command
from tests.estimators.estimators_zoo import class_rows, regression_rows


def write_sites(folder, names="abc", seed=0):
    """Write a regression of some rows for each site, and return all rows."""
    X, y = regression_rows(seed)
    for rows, name in zip(np.array_split(np.arange(len(X)), len(names)), names, strict=True):
        cs.save(LinearRegression().fit(X[rows], y[rows]), folder / f"{name}.safetensors", data=(X[rows], y[rows]))
    return X, y


@pytest.fixture
def sites(tmp_path):
    X, y = write_sites(tmp_path)
    np.savez(tmp_path / "held.npz", x=X[:80], y=y[:80])
    return X, y, [str(tmp_path / f"{name}.safetensors") for name in "abc"]


def test_files_are_fused_checked_inspected_evaluated_and_reported(sites, tmp_path):
    X, y, files = sites
    fused, page = tmp_path / "fused.safetensors", tmp_path / "page.html"
    done = command("fuse", *files, "-o", str(fused), "--report", str(page))
    assert done.code == 0, done.err
    assert "exact: this is the LinearRegression that fit gives on the 420 rows of all 3 sites" in done.out
    np.testing.assert_allclose(cs.rebuild(cs.load(fused)).coef_, LinearRegression().fit(X, y).coef_, rtol=1e-10)
    assert "3 models can be fused" in command("check", *files).out
    inspected = command("inspect", str(fused)).out
    assert "sklearn.LinearRegression" in inspected
    assert "What this file tells about people" in inspected
    evaluated = json.loads(
        command("evaluate", str(fused), files[0], "--data", str(tmp_path / "held.npz"), "--json").out
    )
    assert [score["name"] for score in evaluated["scores"]] == ["squared error", "R^2"]
    again = tmp_path / "again.html"
    assert command("report", str(fused), *files, "-o", str(again)).code == 0
    for text in ("How sites differ", "Forest plot", "95 % interval", "The coefficients", "What it tells about people"):
        assert text in again.read_text()
    assert "The coefficients" in page.read_text()
    assert "90 % interval" not in again.read_text()


def test_a_folder_of_statistics_is_summed(tmp_path):
    (tmp_path / "sites").mkdir()
    X, y = write_sites(tmp_path / "sites", "abcdef")
    pooled = LinearRegression().fit(X, y).coef_
    assert cs.check(tmp_path / "sites") == []
    for where in (tmp_path / "sites", str(tmp_path / "sites" / "*.safetensors")):
        np.testing.assert_allclose(cs.fuse(where).model.coef_, pooled, rtol=1e-10)
    done = command("fuse", tmp_path / "sites", "-o", tmp_path / "fused.safetensors")
    assert done.code == 0, done.err
    np.testing.assert_allclose(cs.rebuild(cs.load(tmp_path / "fused.safetensors")).coef_, pooled, rtol=1e-10)
    with pytest.raises(cs.errors.InputError, match=r"no file named|cannot be read"):
        cs.fuse(tmp_path / "nowhere" / "*.safetensors")


def test_a_hyper_parameter_is_set_on_the_command_line_and_another_is_refused(sites, tmp_path):
    *_, files = sites
    done = command("fuse", *files, "-o", str(tmp_path / "out.safetensors"), "--set", "fit_intercept=false", "--quiet")
    assert done.code == 0, done.err
    assert cs.load(tmp_path / "out.safetensors").parameters["fit_intercept"] is False
    wrong = command("fuse", *files, "-o", str(tmp_path / "no.safetensors"), "--set", "alpha=2")
    assert wrong.code != 0
    assert "alpha: is no hyper-parameter of a sklearn.LinearRegression; it has" in wrong.err
    misspelt = command("fuse", *files, "-o", str(tmp_path / "no.safetensors"), "--set", "fit_intercpt=false")
    assert misspelt.code != 0
    assert "did you mean fit_intercept?" in misspelt.err
    for option in (["--method", "kl"], ["--weights", "1,2,3"], ["--target-width", "a=3"]):
        refused = command("fuse", *files, "-o", str(tmp_path / "no.safetensors"), *option)
        assert refused.code != 0
        assert "Traceback" not in refused.err
    assert not (tmp_path / "no.safetensors").exists()


def test_other_files_beside_statistics_are_named(sites, tmp_path):
    *_, files = sites
    from sklearn.cluster import KMeans

    cs.save(KMeans(2, n_init=1, random_state=0).fit(np.arange(20.0)[:, None]), tmp_path / "other.safetensors")
    done = command("check", *files, str(tmp_path / "other.safetensors"))
    assert done.code == 1
    assert "other.safetensors" in done.err
    assert "Traceback" not in done.err


def test_methods_say_which_estimators_need_none():
    done = command("methods", "--kind", "estimators").out
    assert "\n  GaussianNB: exact\n" in done
    assert "needs the fitted object" in done.partition("\n  GaussianNB:")[2].splitlines()[1]
    assert (
        "needs `cs.describe(model, data=(X, y))` at the site"
        in done.partition("\n  LinearRegression:")[2].splitlines()[1]
    )
    assert "\n  BayesianRidge: iterative\n" in done
    assert "by sums of      LinearRegression" in command("methods").out


def test_a_round_sums_what_sites_send(tmp_path):
    X, y = write_sites(tmp_path)
    folder = tmp_path / "round"
    for name in "abc":
        cs.federated.send_folder(tmp_path / f"{name}.safetensors", folder, name)
    cs.federated.serve_folder(folder, tmp_path / "fused.safetensors", sites=["a", "b", "c"], deadline=5.0, poll=0.05)
    np.testing.assert_allclose(
        cs.rebuild(cs.load(tmp_path / "fused.safetensors")).coef_, LinearRegression().fit(X, y).coef_, rtol=1e-10
    )


def test_a_round_leaves_out_who_sends_another_estimator(tmp_path):
    write_sites(tmp_path)
    X, y = class_rows(0)
    cs.save(GaussianNB().fit(X, y), tmp_path / "d.safetensors")
    folder = tmp_path / "round"
    for name in "abcd":
        cs.federated.send_folder(tmp_path / f"{name}.safetensors", folder, name)
    report = cs.federated.serve_folder(
        folder, tmp_path / "fused.safetensors", sites=["a", "b", "c", "d"], deadline=1.0, poll=0.05
    ).report
    (rejected,) = report.left_out
    assert rejected.site == "d"
    assert "its estimator is not that of 3 of 4 contributions" in str(rejected.reasons)


def test_a_round_leaves_out_a_site_whose_columns_mean_something_else(tmp_path):
    smf, pandas = pytest.importorskip("statsmodels.formula.api"), pytest.importorskip("pandas")
    folder = tmp_path / "round"
    for number, name in enumerate("abcd"):
        x = np.tile(np.arange(6.0), 5) + (name == "d")
        table = pandas.DataFrame({"x": x, "y": np.random.default_rng(number).normal(size=30)})
        cs.save(smf.ols("y ~ center(x)", table).fit(), tmp_path / f"{name}.safetensors")
        cs.federated.send_folder(tmp_path / f"{name}.safetensors", folder, name)
    report = cs.federated.serve_folder(
        folder, tmp_path / "fused.safetensors", sites=["a", "b", "c", "d"], deadline=1.0, poll=0.05
    ).report
    (rejected,) = report.left_out
    assert rejected.site == "d"
    assert "its constants of transforms is not that of 3 of 4 contributions" in str(rejected.reasons)


def test_a_site_sends_no_small_class(tmp_path):
    X, y = class_rows(0)
    keep = np.concatenate([np.flatnonzero(y != "ash"), np.flatnonzero(y == "ash")[:3]])
    cs.save(GaussianNB().fit(X[keep], y[keep]), tmp_path / "a.safetensors", min_count=0)
    assert "ash" in cs.load(tmp_path / "a.safetensors").classes.names
    sent = cs.federated.send_folder(tmp_path / "a.safetensors", tmp_path / "round", "a")
    assert "class ash has 3 rows, fewer than 5" in str(sent.warnings)


def test_a_site_sends_no_unweighted_moments_beside_weighted_ones(tmp_path):
    X, y = class_rows(0)
    weights = np.where(np.arange(len(X)) == 7, 3.0, 1.0)
    model = GaussianNB().fit(X, y, sample_weight=weights)
    cs.save(model, tmp_path / "a.safetensors", data=(X, y), sample_weight=weights, min_count=0)
    assert "unweighted" in cs.load(tmp_path / "a.safetensors").moments
    sent = cs.federated.send_folder(tmp_path / "a.safetensors", tmp_path / "round", "a")
    assert "the moments of rows without their weights stay here" in str(sent.warnings)
    there = b"".join(path.read_bytes() for path in (tmp_path / "round").rglob("*") if path.is_file())
    assert b"moments.rows.mean" in there
    assert b"moments.unweighted" not in there


def test_numbers_where_classes_are_needed_are_named_without_their_values(tmp_path):
    rows = np.random.default_rng(0).normal(size=(40, 3))
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="a,b,c", comments="")
    done = command("site", "describe", "GaussianNB", "--data", tmp_path / "rows.csv", "-o", tmp_path / "nb.safetensors")
    assert done.code == 1
    (complaint,) = done.complaints()
    assert "needs classes" in complaint
    assert "array" not in complaint
