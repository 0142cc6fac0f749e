"""Exact arrival and removal of a site, and inference of linear regression from sums."""

import re

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import CategoricalNB, GaussianNB
from sklearn.preprocessing import MaxAbsScaler

import consilience as cs
from consilience.estimators.inference import linear_inference
from tests.estimators.estimators_zoo import CASES, class_rows, code_rows, regression_rows
from tests.estimators.sites import differences, has_classes, owners, site_statistics, weights_of

pytestmark = pytest.mark.covering(2)

REMOVABLE = [name for name in CASES if not name.startswith(("MinMax", "MaxAbs"))]


@pytest.mark.parametrize("name", REMOVABLE)
def test_adding_gives_what_fusing_all_gives_and_removing_what_fusing_the_others_gives(name, monkeypatch):
    case = CASES[name]
    X, y = case.rows(0)
    weights = weights_of(case, len(X), 0)
    owner = owners(np.random.default_rng(0), len(X), 4, y if has_classes(y) else None)
    owner[:48] = np.arange(48) % 4  # every class at every site, so that every model of the others exists
    sites = site_statistics(monkeypatch, case.fit(X, y, weights), X, y, weights, owner)
    whole, others = cs.fuse(sites, min_count=0), cs.fuse(sites[:3], min_count=0)
    ignored = (*case.ignored, "scalings_", "rotations_", "components_", "loglike_", "scores_", "n_iter_")
    added = cs.add(others, sites[3])
    assert differences(added.model, whole.model, 1e-8, ignored) == []
    removed = cs.remove(whole, sites[3])
    assert differences(removed.model, others.model, 1e-8, ignored) == []
    assert removed.statistics.n_observations == others.statistics.n_observations
    assert differences(cs.remove(added, sites[3]).model, others.model, 1e-8, ignored) == []


def test_removal_works_on_files_and_a_class_that_only_the_site_knew_is_gone(tmp_path):
    X, y = class_rows(0)
    parts = {"a": y != "elm", "b": y == "elm"}
    for name, rows in parts.items():
        cs.save(GaussianNB().fit(X[rows], y[rows]), tmp_path / f"{name}.safetensors")
    cs.fuse([tmp_path / "a.safetensors", tmp_path / "b.safetensors"]).save(tmp_path / "fused.safetensors")
    left = cs.remove(tmp_path / "fused.safetensors", tmp_path / "b.safetensors")
    assert left.model.classes_.tolist() == ["ash", "birch", "cedar"]
    left.save(tmp_path / "left.safetensors")
    again = cs.add(tmp_path / "left.safetensors", tmp_path / "b.safetensors")
    assert again.model.classes_.tolist() == ["ash", "birch", "cedar", "elm"]
    left.report(tmp_path / "page.html")
    assert "3 classes" in again.verdict.text or "exact" in again.verdict.text


def test_what_cannot_be_added_or_removed_is_named():
    X, y = regression_rows(0)
    parts = [cs.describe(LinearRegression().fit(X[j::3], y[j::3]), (X[j::3], y[j::3])) for j in range(3)]
    fusion = cs.fuse(parts[:2])
    with pytest.raises(cs.errors.InputError, match="which is in the fusion already: it would count twice"):
        cs.add(fusion, parts[0])
    with pytest.raises(cs.errors.InputError, match="is none of those that were fused"):
        cs.remove(fusion, parts[2])
    with pytest.raises(cs.errors.InputError, match=r"is a sklearn\.GaussianNB, expected sklearn\.LinearRegression"):
        cs.add(fusion, GaussianNB().fit(*class_rows(0)))
    scalers = [cs.describe(MaxAbsScaler().fit(X[j::2]), min_count=0) for j in range(2)]
    with pytest.raises(cs.errors.UnsupportedError, match="is made of extremes, which cannot be taken out"):
        cs.remove(cs.fuse(scalers, min_count=0), scalers[0])


def test_a_site_is_added_under_its_name_and_a_name_alone_takes_nothing_out():
    X, y = regression_rows(0)
    parts = [cs.describe(LinearRegression().fit(X[j::3], y[j::3]), (X[j::3], y[j::3])) for j in range(3)]
    fusion = cs.fuse({"lund": parts[0], "oslo": parts[1]})
    added = cs.add(fusion, {"riga": parts[2]})
    assert [record["name"] for record in added.record["inputs"]] == ["lund", "oslo", "riga"]
    np.testing.assert_array_equal(added.model.coef_, cs.add(fusion, parts[2]).model.coef_)
    np.testing.assert_array_equal(
        cs.remove(added, {"riga": parts[2]}).model.coef_, cs.remove(added, parts[2]).model.coef_
    )
    with pytest.raises(
        cs.errors.InputError, match="is called oslo, as another site in the fusion is; give it another name"
    ):
        cs.add(fusion, {"oslo": parts[2]})
    with pytest.raises(cs.errors.InputError, match="is a mapping of 2 models, expected one; give one after another"):
        cs.add(fusion, {"riga": parts[2], "kiel": parts[2]})
    with pytest.raises(cs.errors.InputError, match=r"is the name of a site, riga, and .*; give what the site had sent"):
        cs.remove(added, "riga")


def test_a_removal_that_rounding_would_spoil_is_refused():
    X, y = regression_rows(0)
    small = cs.describe(LinearRegression().fit(X[:200], y[:200]), (X[:200], y[:200]))
    large = cs.describe(LinearRegression().fit(1e6 * X[200:], y[200:]), (1e6 * X[200:], y[200:]))
    with pytest.raises(cs.errors.InputError, match="so much larger than what would be left"):
        cs.remove(cs.fuse([small, large]), large)


def test_counts_of_categories_are_stored_without_gaps(tmp_path):
    X, y = code_rows(0)
    X[:, 2] = np.arange(len(X)) % 50  # one column of many categories beside others of few
    sent = cs.describe(CategoricalNB().fit(X, y))
    categories = sent.maxima["categories"].astype(int)
    assert sent.counts["features"].shape == (3, categories.sum())
    assert 4 * categories.max() > 2 * categories.sum()
    cs.save(sent, tmp_path / "flat.safetensors")
    stored, (text,) = load_file(tmp_path / "flat.safetensors"), read_metadata(tmp_path / "flat.safetensors").values()
    for odd in (categories + 0.5, np.append(categories[:-1], 10.0**12)):
        changed = {**stored, "maxima.categories": odd.astype(float)}
        save_file(changed, tmp_path / "odd.safetensors", metadata={"consilience": text})
        with pytest.raises(cs.errors.InputError, match="odd"):
            cs.load(tmp_path / "odd.safetensors")


def read_metadata(path):
    with safe_open(path, "np") as file:
        return file.metadata()


def test_categories_that_only_one_site_saw_are_counted_apart():
    X, y = code_rows(0)
    few = X.max(axis=1) < 5
    models = [CategoricalNB().fit(X[few], y[few]), CategoricalNB().fit(X[~few], y[~few])]
    fused = cs.fuse(models).model
    np.testing.assert_array_equal(fused.n_categories_, CategoricalNB().fit(X, y).n_categories_)
    for ours, its in zip(fused.category_count_, CategoricalNB().fit(X, y).category_count_, strict=True):
        np.testing.assert_array_equal(ours, its)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_standard_errors_are_those_of_the_rows(weighted, fit_intercept):
    X, y = regression_rows(0)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(X)) if weighted else np.ones(len(X))
    sites = []
    for rows in np.array_split(np.arange(len(X)), 6):
        model = LinearRegression(fit_intercept=fit_intercept).fit(X[rows], y[rows], sample_weight=weights[rows])
        sites.append(cs.describe(model, (X[rows], y[rows]), sample_weight=weights[rows] if weighted else None))
    found = linear_inference(cs.fuse(sites).statistics)
    # The textbook, from a QR decomposition of the rows themselves.
    design = np.hstack([X, np.ones((len(X), 1))]) if fit_intercept else X
    Q, R = np.linalg.qr(np.sqrt(weights)[:, None] * design)
    beta = np.linalg.solve(R, Q.T @ (np.sqrt(weights) * y))
    residual = float((weights * (y - design @ beta) ** 2).sum())
    scale = residual / (len(X) - design.shape[1])
    inverse = np.linalg.inv(R)
    errors = np.sqrt(scale * (inverse**2).sum(axis=1))
    np.testing.assert_allclose(found.coefficients, beta[:5], rtol=1e-9)
    np.testing.assert_allclose(found.standard_errors, errors[:5], rtol=1e-9)
    np.testing.assert_allclose(found.scale, scale, rtol=1e-9)
    if fit_intercept:
        np.testing.assert_allclose([found.intercept, found.intercept_error], [beta[5], errors[5]], rtol=1e-8)
    likelihood = -len(X) / 2 * (np.log(2 * np.pi * residual / len(X)) + 1) + 0.5 * np.log(weights).sum()
    np.testing.assert_allclose(found.log_likelihood, likelihood, rtol=1e-10)
    assert found.intervals(0.9).shape == (5, 2)
    with pytest.raises(cs.errors.InputError, match="are of a LinearRegression of one target"):
        linear_inference(cs.describe(GaussianNB().fit(*class_rows(0))))


def test_all_intervals_of_a_page_are_of_one_level(tmp_path):
    fusion = cs.fuse(regressions(4))
    for options, level in (({}, 95), ({"level": 0.8}, 80)):
        fusion.report(tmp_path / "page.html", **options)
        stated = re.findall(r"\b([0-9.]+) % (?:interval|prediction)", (tmp_path / "page.html").read_text())
        assert len(stated) > 3
        assert {float(one) for one in stated} == {level}
    wide, narrow = (linear_inference(fusion.statistics).intervals(level) for level in (0.95, 0.8))
    np.testing.assert_array_equal(linear_inference(fusion.statistics).intervals(), wide)
    assert np.all(np.diff(narrow) < np.diff(wide))
    with pytest.raises(cs.errors.OptionError, match="level: expected a number between 0 and 1, found 95"):
        fusion.report(tmp_path / "page.html", level=95)


def regressions(count):
    """Return what sites send of a regression of some rows each."""
    X, y = regression_rows(0)
    parts = [slice(j, None, count) for j in range(count)]
    return [cs.describe(LinearRegression().fit(X[rows], y[rows]), (X[rows], y[rows])) for rows in parts]


def test_sites_that_were_added_are_told_apart():
    sites = regressions(4)
    fusion = cs.fuse(sites[:2])
    for site in sites[2:]:
        fusion = cs.add(fusion, site)
    left = cs.remove(fusion, sites[2])
    assert len(left.provenance["inputs"]) == 3
    assert differences(left.model, cs.fuse([*sites[:2], sites[3]]).model, 1e-9) == []
    with pytest.raises(cs.errors.InputError, match="is none of those that were fused"):
        cs.remove(left, sites[2])
    with pytest.raises(cs.errors.InputError, match="would count twice"):
        cs.add(left, sites[3])  # it is still there
    assert len(cs.remove(left, sites[3]).provenance["inputs"]) == 2
    assert cs.add(left, sites[2]).statistics.n_observations == 420


def test_a_fusion_that_is_added_brings_its_sites():
    sites = regressions(5)
    fusion = cs.add(cs.fuse(sites[:2]), cs.fuse(sites[2:4]))
    with pytest.raises(cs.errors.InputError, match="would count twice"):
        cs.add(fusion, sites[3])
    with pytest.raises(cs.errors.InputError, match="which is in the fusion already: it would count twice"):
        cs.add(fusion, cs.fuse(sites[3:]))
    left = cs.remove(fusion, sites[3])
    assert differences(left.model, cs.fuse(sites[:3]).model, 1e-9) == []
    with pytest.raises(cs.errors.InputError, match="is none of those that were fused"):
        cs.remove(left, cs.fuse(sites[2:4]))
    assert cs.add(left, sites[3]).statistics.n_observations == fusion.statistics.n_observations


def test_what_a_site_withheld_is_said_wherever_its_sums_go(tmp_path):
    X, y = class_rows(0)
    keep = np.concatenate([np.flatnonzero(y != "ash"), np.flatnonzero(y == "ash")[:3]])
    whole, thin = GaussianNB().fit(X, y), GaussianNB().fit(X[keep], y[keep])
    with pytest.warns(cs.errors.WithheldWarning):
        cs.save(thin, tmp_path / "thin.safetensors")
    cs.save(whole, tmp_path / "whole.safetensors")
    assert cs.load(tmp_path / "thin.safetensors").n_withheld == 1
    assert b"ash" not in (tmp_path / "thin.safetensors").read_bytes()
    fusion = cs.fuse([tmp_path / "thin.safetensors", tmp_path / "whole.safetensors"])
    other = GaussianNB().fit(X[::2], y[::2])
    with pytest.warns(cs.errors.WithheldWarning, match="the model class ash: has 3 rows|the model: class ash"):
        added = cs.add(cs.fuse([whole, other]), cs.describe(thin, min_count=0))
    for found in (fusion, added, cs.add(fusion, other), cs.remove(added, other)):
        assert found.verdict.harmless is None
        assert "without 1 class of too few rows" in found.verdict.text
        assert "min_count=0" in found.verdict.remedy
    assert cs.remove(added, cs.describe(thin, min_count=0)).verdict.harmless is True
    fusion.save(tmp_path / "fused.safetensors")
    assert cs.load(tmp_path / "fused.safetensors").n_withheld == 1


def test_one_site_given_twice_is_noticed_whatever_it_withholds():
    X, y = regression_rows(0)
    model = LinearRegression().fit(X, y)
    strict, loose = (cs.describe(model, (X, y), min_count=least) for least in (5, 0))
    assert strict.digest == loose.digest
    fusion = cs.fuse([strict, *regressions(2)])
    with pytest.raises(cs.errors.InputError, match="would count twice"):
        cs.add(fusion, loose)


@pytest.mark.parametrize("seed", range(5))
def test_inference_of_targets_without_noise_has_no_error(seed):
    """What is left is rounding, of either sign."""
    rng = np.random.default_rng(seed)
    sites = []
    for _ in range(2):
        X = rng.normal(size=(40, 3))
        rows = X, X @ [1.0, 2.0, 3.0] + 4.0
        sites.append(cs.describe(LinearRegression().fit(*rows), rows))
    found = linear_inference(cs.fuse(sites).statistics)
    np.testing.assert_allclose(found.coefficients, [1.0, 2.0, 3.0], rtol=1e-9)
    assert (found.standard_errors < 1e-6).all()
    assert found.log_likelihood > 1e3
