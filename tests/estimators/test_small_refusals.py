"""Small faults that a user meets: one class at a site, the same sums twice, differencing, files, commands."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler

import consilience as cs
from tests.cli.running import command
from tests.estimators.estimators_zoo import class_rows, regression_rows


@pytest.mark.parametrize("make", [LinearDiscriminantAnalysis, RidgeClassifier], ids=lambda one: one.__name__)
def test_a_site_of_one_class_gives_its_sums(make):
    X, y = class_rows(0)
    one = y == "elm"
    parts = [(X[one], y[one]), (X[~one], y[~one])]
    fusion = cs.fuse([cs.describe(make().fit(*part), data=part) for part in parts])
    np.testing.assert_allclose(fusion.model.coef_, make().fit(X, y).coef_, rtol=1e-8)


def test_the_same_sums_twice_are_doubted():
    X, y = class_rows(0)
    statistics = cs.describe(GaussianNB().fit(X, y))
    with pytest.warns(cs.errors.TwiceWarning, match="is the same object as model 0: it counts twice"):
        cs.fuse([statistics, statistics])
    with pytest.warns(cs.errors.TwiceWarning, match="has the same contents as a: it counts twice"):
        cs.fuse({"a": statistics, "b": GaussianNB().fit(X, y)})


def test_a_missing_file_beside_others_is_said_to_be_missing(tmp_path):
    X, y = class_rows(0)
    cs.save(GaussianNB().fit(X, y), tmp_path / "a.safetensors")
    with pytest.raises(cs.errors.InputError, match="No such file"):
        cs.fuse([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    with pytest.raises(cs.errors.InputError, match="No such file"):
        cs.remove(tmp_path / "b.safetensors", tmp_path / "a.safetensors")


def three_sites(folder):
    X, y = regression_rows(0)
    for k in range(3):
        cs.save(Ridge().fit(X[k::3], y[k::3]), folder / f"{k}.safetensors", data=(X[k::3], y[k::3]))
    return X, y, [folder / f"{k}.safetensors" for k in range(3)]


def test_results_of_adding_and_removing_are_not_sent_unless_differencing_is_allowed(tmp_path):
    _, _, files = three_sites(tmp_path)
    cs.remove(cs.fuse(files), files[2]).save(tmp_path / "left.safetensors")
    cs.add(cs.fuse(files[:2]), files[2]).save(tmp_path / "more.safetensors")
    for name, word in (("left", "removed from"), ("more", "added to")):
        with pytest.raises(cs.errors.InputError, match=f"a site was {word} others.*allow_differencing=True"):
            cs.federated.send_folder(tmp_path / f"{name}.safetensors", tmp_path / "round", "a")
    done = command("round", "send", str(tmp_path / "left.safetensors"), "--to", str(tmp_path / "round"), "--site", "a")
    assert done.code == 1
    assert "by subtraction" in done.err
    cs.federated.send_folder(tmp_path / "left.safetensors", tmp_path / "round", "a", allow_differencing=True)
    again = command(
        *("round", "send", str(tmp_path / "more.safetensors"), "--to", str(tmp_path / "round"), "--site", "b"),
        "--allow-differencing",
        "--early",
    )
    assert again.code == 0, again.err


def test_a_refinement_of_a_result_without_a_site_is_not_published_unless_differencing_is_allowed():
    X, y = class_rows(0)
    y = (y == "elm").astype(int)
    sent = [cs.describe(LogisticRegression(tol=1e-8).fit(X[k::3], y[k::3]), (X[k::3], y[k::3])) for k in range(3)]
    left = cs.remove(cs.fuse(sent), sent[0])
    with pytest.raises(cs.errors.InputError, match="by subtraction"):
        cs.federated.request("refine", left)
    assert cs.federated.request("refine", left, allow_differencing=True).kind == "refine"


def test_the_difference_of_two_results_is_the_site_that_went():
    """What the refusal is about: S of the site, from two published fusions."""
    X, y = regression_rows(0)
    parts = [cs.describe(Ridge().fit(X[k::3], y[k::3]), data=(X[k::3], y[k::3])) for k in range(3)]
    before, after = cs.fuse(parts), cs.remove(cs.fuse(parts), parts[2])
    told = before.statistics.rows.remove(after.statistics.rows)
    np.testing.assert_allclose(told.mean, parts[2].rows.mean, rtol=1e-9)


def test_hyper_parameters_are_options_of_a_round(tmp_path):
    X, y, files = three_sites(tmp_path)
    for k, file in enumerate(files):
        cs.federated.send_folder(file, tmp_path / "round", f"s{k}")
    sites = ["s0", "s1", "s2"]
    result = cs.federated.serve_folder(
        tmp_path / "round", tmp_path / "fused.safetensors", sites=sites, deadline=20, poll=0.05, alpha=50.0
    )
    np.testing.assert_allclose(result.fusion.model.coef_, Ridge(alpha=50.0).fit(X, y).coef_, rtol=1e-8)
    with pytest.raises(cs.errors.OptionError, match="has no option alhpa"):
        cs.federated.serve_folder(tmp_path / "other", tmp_path / "no.safetensors", sites=sites, alhpa=50.0)


def test_an_estimator_is_described_by_its_name_on_the_command_line(tmp_path):
    X, y = class_rows(0)
    lines = ["a,b,c,d,tree", *(",".join([*map(repr, row.tolist()), label]) for row, label in zip(X, y, strict=True))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    np.savez(tmp_path / "rows.npz", x=X, y=y)
    for data in ("rows.csv", "rows.npz"):
        out = tmp_path / f"{data}.safetensors"
        done = command(
            "site",
            "describe",
            "GaussianNB",
            "--data",
            str(tmp_path / data),
            "-o",
            str(out),
            "--set",
            "var_smoothing=0.1",
        )
        assert done.code == 0, done.err
        np.testing.assert_allclose(cs.rebuild(cs.load(out)).var_, GaussianNB(var_smoothing=0.1).fit(X, y).var_)
    assert cs.load(tmp_path / "rows.csv.safetensors").features.names == ("a", "b", "c", "d")
    for arguments, text in (
        (["GaussianNB", "--data", str(tmp_path / "rows.npz")], "--output"),
        (["GaussianNB", "--data", str(tmp_path / "rows.npz"), "-o", "x", "--classes", "2"], "is for networks"),
        (["net.safetensors", "--data", str(tmp_path / "rows.npz")], "--module"),
        (["net.safetensors", "--data", str(tmp_path / "rows.npz"), "--set", "a=1"], "--set is for estimators"),
    ):
        done = command("site", "describe", *arguments)
        assert done.code == 2
        assert text in done.err
    (tmp_path / "one.csv").write_text("a,y\n1,u\n2,u\n3,u\n4,u\n5,u\n6,u\n")
    done = command(
        "site", "describe", "LogisticRegression", "--data", str(tmp_path / "one.csv"), "-o", str(tmp_path / "no")
    )
    assert done.code == 1
    assert "cannot be fitted to it" in done.err


def test_a_table_without_the_columns_of_a_request_is_named(tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y = class_rows(0)
    y = (y == "elm").astype(int)
    frame = pandas.DataFrame(X, columns=list("abcd"))
    sent = [cs.describe(LogisticRegression(tol=1e-8).fit(frame[k::2], y[k::2]), (frame[k::2], y[k::2])) for k in (0, 1)]
    message = cs.federated.request("refine", cs.fuse(sent))
    frame.assign(tree=y).to_csv(tmp_path / "rows.csv", index=False)
    assert cs.federated.answer(message, tmp_path / "rows.csv").n_observations == len(X)
    frame.drop(columns="a").assign(tree=y).to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(cs.errors.InputError, match="expected the columns a, b, c, d and one more, the class"):
        cs.federated.answer(message, tmp_path / "less.csv")


def test_a_chart_of_coefficients_is_of_what_has_some():
    rng = np.random.default_rng(0)
    sites = [rng.normal(size=(30, 2)) for _ in range(2)]
    scalers = cs.fuse([StandardScaler().fit(X) for X in sites])
    with pytest.raises(cs.errors.OptionError, match=r"a sklearn\.StandardScaler has no coefficients"):
        scalers.plot("coefficients")
    ridge = cs.fuse([cs.describe(Ridge().fit(X, X.sum(axis=1)), (X, X.sum(axis=1))) for X in sites])
    assert ridge.plot("coefficients") is not None
