"""Laws of regression heads: sums of sites give the ridge or Bayesian regression of all rows on shared features."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import consilience as cs
from consilience.cli.commands import cli
from consilience.errors import InputError, OptionError
from consilience.estimators.adapters.linear_regression import SingularMomentsWarning

pytestmark = pytest.mark.covering(2)

POOLED = 1e-10
"""What a fused head may differ by from the one of all rows, relative to the largest prediction."""

KINDS = ("ridge_regression", "bayesian_regression")
D = 5


def rows_of(seed, n=200, q=None, shift=4.0):
    """Return inputs (n, 5) and targets (n,) or (n, q) of a smooth function, in units of their own."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)) + shift
    scale = 10.0 ** rng.integers(-3, 4, size=q or 1)
    y = (np.sin(X @ rng.normal(size=(D, q or 1)) / 2) + 0.1 * rng.normal(size=(n, q or 1)) + 7.0) * scale
    return X, y if q else y[:, 0]


def ridge_oracle(X, y, Z, ridge=1e-4):
    """Return predictions at Z by least squares on rows with pseudo-rows for the penalty, columns of unit variance."""
    mean, deviation = X.mean(0), X.std(0)
    targets = y.reshape(len(y), -1)
    penalty = np.sqrt(ridge * len(X)) * np.eye(X.shape[1])
    rows, _, _, _ = np.linalg.lstsq(
        np.vstack([(X - mean) / deviation, penalty]),
        np.vstack([targets - targets.mean(0), np.zeros((X.shape[1], targets.shape[1]))]),
        rcond=None,
    )
    return ((Z - mean) / deviation @ rows + targets.mean(0)).reshape(len(Z), *y.shape[1:])


def divided(X, y, n_sites, skew, seed):
    """Return rows of sites: with a skew of 1 each site has an interval of the targets."""
    rng = np.random.default_rng(seed)
    first = y if y.ndim == 1 else y[:, 0]
    by_target = np.argsort(np.argsort(first)) * n_sites // len(first)
    owner = np.where(rng.random(len(first)) < skew, by_target, rng.integers(0, n_sites, len(first)))
    return [(X[owner == site], y[owner == site]) for site in range(n_sites) if np.any(owner == site)]


@pytest.mark.filterwarnings("ignore::consilience.errors.UnitsWarning")  # sites may have targets of one size alone
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_sites=st.integers(2, 40),
    skew=st.sampled_from([0.0, 0.7, 1.0]),
    q=st.sampled_from([None, 1, 3]),
)
def test_the_fused_head_is_that_of_all_rows_for_every_division(kind, seed, n_sites, skew, q):
    X, y = rows_of(seed, q=q)
    parts = divided(X, y, n_sites, skew, seed)
    fused = cs.fuse([cs.learners.Head(kind).fit(*part, min_count=0) for part in parts], min_count=0).model
    whole = cs.learners.Head(kind).fit(X, y, min_count=0).model
    found, expected = fused.predict(X), whole.predict(X)
    assert found.shape == y.shape
    assert np.all(np.abs(found - expected).max(0) <= POOLED * np.abs(expected).max(0)), (seed, n_sites, skew, q)
    ridge = 1e-4 if kind == "ridge_regression" else whole.ridge_
    np.testing.assert_allclose(found, ridge_oracle(X, y, X, ridge), rtol=1e-8)
    if kind == "bayesian_regression":
        assert fused.ridge_ == whole.ridge_
        np.testing.assert_allclose(fused.deviations(X), whole.deviations(X), rtol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_sites_are_one_site(kind):
    X, y = rows_of(1, n=4000, q=2)
    order = np.argsort(y[:, 0])
    heads = [cs.learners.Head(kind).fit(X[r], y[r], min_count=0) for r in np.array_split(order, 1000)]
    fusion = cs.fuse(heads, min_count=0)
    expected = cs.learners.Head(kind).fit(X, y).predict(X)
    assert np.abs(fusion.model.predict(X) - expected).max() <= POOLED * np.abs(expected).max()
    assert fusion.verdict.harmless is True
    assert "on the 4,000 rows of all 1,000 sites" in fusion.verdict.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_is_added_and_removed_exactly(kind):
    X, y = rows_of(2)
    heads = [cs.learners.Head(kind).fit(*part) for part in divided(X, y, 4, 0.7, 0)]
    whole, others = cs.fuse(heads), cs.fuse(heads[1:])
    left = cs.remove(whole, heads[0])
    scale = np.abs(y).max()
    assert np.abs(left.model.predict(X) - others.model.predict(X)).max() < 1e-9 * scale
    again = cs.add(left, heads[0])
    assert np.abs(again.model.predict(X) - whole.model.predict(X)).max() < 1e-9 * scale
    with pytest.raises(InputError, match="in the fusion already"):
        cs.add(whole, heads[0])


def test_units_of_the_targets_change_nothing_but_units():
    X, y = rows_of(3, q=2)
    factors = np.array([1e-6, 1e5])
    for kind in KINDS:
        plain, scaled = (cs.learners.Head(kind).fit(X, values).model for values in (y, y * factors))
        np.testing.assert_allclose(scaled.predict(X), plain.predict(X) * factors, rtol=1e-9)
        if kind == "bayesian_regression":
            assert scaled.ridge_ == plain.ridge_
            np.testing.assert_allclose(scaled.interval(X), plain.interval(X) * factors[:, None], rtol=1e-9)


def test_evidence_is_the_density_of_students_t_and_intervals_cover():
    X, y = rows_of(4, n=60)
    model = cs.learners.Head("bayesian_regression").fit(X, y).model
    n = len(X)
    phi = (X - X.mean(0)) / X.std(0)
    contrast = np.linalg.svd(np.ones((1, n)))[2][1:]  # rows orthogonal to the constant: the flat prior of the intercept

    def evidence(ridge):
        shape = y.var() * (np.eye(n - 1) + contrast @ phi @ phi.T @ contrast.T / (ridge * n))
        return stats.multivariate_t.logpdf(contrast @ y, np.zeros(n - 1), shape, df=1)

    assert evidence(model.ridge_) == pytest.approx(model.log_evidence_, rel=1e-9)
    assert model.log_evidence_ >= max(evidence(ridge) for ridge in np.geomspace(1e-7, 1.0, 22)) - 1e-6
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(4000, 3))
    t = Z @ [1.0, -2.0, 0.5] + rng.normal(size=4000)
    fitted = cs.learners.Head("bayesian_regression").fit(Z[:1000], t[:1000]).model
    low, high = fitted.interval(Z[1000:], 0.9).T
    assert np.mean((low < t[1000:]) & (t[1000:] < high)) == pytest.approx(0.9, abs=0.03)


def test_features_are_those_of_other_heads_and_a_module_comes_back():
    X, y = rows_of(5, q=2)
    kernel = cs.features.random_fourier(D, count=200, length=4.0)
    parts = divided(X, y, 3, 0.5, 0)
    fusion = cs.fuse([cs.learners.Head("ridge_regression", features=kernel).fit(*part) for part in parts])
    np.testing.assert_allclose(fusion.model.predict(X), ridge_oracle(kernel(X), y, kernel(X)), rtol=1e-5)
    assert repr(fusion.model) == "RidgeRegressionHead(200 features of 200 random Fourier features, 2 targets)"
    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Linear(D, 16), torch.nn.Tanh()).double().eval()
    heads = [cs.learners.Head("bayesian_regression", features=body).fit(*part) for part in parts]
    model = cs.fuse(heads).model
    with torch.no_grad():
        np.testing.assert_allclose(
            model.module()(torch.from_numpy(X)).numpy(), model.predict(X), rtol=1e-5
        )  # of float32


def test_error_curves_of_sites_add_up_to_that_of_all_held_out_rows():
    X, y = rows_of(6, n=400, q=2)
    kernel = cs.features.random_fourier(D, count=60, length=3.0)
    heads = [
        cs.learners.Head("ridge_regression", features=kernel).fit(X[part], y[part], held_out=0.25)
        for part in np.array_split(np.arange(400), 4)
    ]
    fusion = cs.fuse(heads)
    curves = [head.error_curve(fusion) for head in heads]
    held = [np.concatenate(parts) for parts in zip(*(head._held_out for head in heads), strict=True)]
    fitted = cs.fuse(heads).statistics.rows
    variances = np.diagonal(fitted.scatter)[60:] / float(fitted.n)
    for place, ridge in ((0, curves[0].ridges[0]), (6, curves[0].ridges[6])):
        predicted = cs.fuse(heads, ridge=ridge).model.on_features().predict(held[0])
        expected = (((predicted - held[1]) ** 2) / variances).sum()
        assert sum(curve.n_errors[place] for curve in curves) == pytest.approx(expected, rel=1e-6)
    assert cs.learners.choose_ridge(curves) in curves[0].ridges
    classifier = cs.learners.Head(features=kernel).fit(X, (y[:, 0] > np.median(y[:, 0])).astype(int), held_out=0.2)
    with pytest.raises(InputError, match=r"is of consilience\.RidgeRegressionHead"):
        classifier.error_curve(fusion)


def test_files_check_inspect_evaluate_report_and_rounds_take_them(tmp_path):
    X, y = rows_of(7, q=2)
    kernel = cs.features.random_fourier(D, count=80, length=3.0)
    files = []
    for site, part in zip("abc", divided(X, y, 3, 0.0, 0), strict=True):
        files.append(tmp_path / f"{site}.safetensors")
        cs.save(cs.learners.Head("ridge_regression", features=kernel).fit(*part), files[-1])
        cs.federated.send_folder(files[-1], tmp_path / "round", site)
    assert cs.check(files) == []
    fusion = cs.fuse(files)
    np.testing.assert_allclose(fusion.model.predict(X), ridge_oracle(kernel(X), y, kernel(X)), rtol=1e-6)
    fusion.save(tmp_path / "fused.safetensors")
    np.savez(tmp_path / "held.npz", x=X[:60], y=y[:60])
    compared = cs.evaluate(tmp_path / "fused.safetensors", files[0], data=(X[:60], y[:60]))
    assert [score.name for score in compared.scores] == ["squared error", "R^2"]
    assert compared.scores[1].fused > 0.9
    again = cs.evaluate(fusion, cs.load(files[0]), data=tmp_path / "held.npz")
    assert again.scores[0].fused == pytest.approx(compared.scores[0].fused)
    fusion.report(tmp_path / "page.html")
    assert "RidgeRegressionHead" in (tmp_path / "page.html").read_text()
    shown = CliRunner().invoke(cli, ["inspect", str(files[0])])
    assert "RidgeRegressionHead" in shown.output
    result = cs.federated.serve_folder(
        tmp_path / "round", tmp_path / "out.safetensors", sites=list("abc"), deadline=30, poll=0.05
    )
    np.testing.assert_allclose(result.fusion.model.predict(X), fusion.model.predict(X), rtol=1e-9)


def test_the_command_takes_sums_of_real_targets(tmp_path):
    X, y = rows_of(8)
    np.savez(tmp_path / "a.npz", x=X, y=y)
    out = tmp_path / "a.safetensors"
    options = ["--data", str(tmp_path / "a.npz"), "-o", str(out)]
    done = CliRunner().invoke(cli, ["site", "head", "bayesian_regression", *options, "--fourier", "50"])
    assert done.exit_code == 0, done.output
    assert cs.load(out).target_shape == ()
    options = [*options[:3], str(tmp_path / "b.safetensors")]
    refused = CliRunner().invoke(cli, ["site", "head", "ridge_regression", *options, "--classes", "3"])
    assert "a ridge_regression head has none" in str(refused.exception)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda X, y: cs.learners.Head("ridge_regression").fit(X, y[:-1]), InputError, "for each of the 200 rows"),
        (lambda X, y: cs.learners.Head("ridge_regression").fit(X, y[:, None, None]), InputError, "expected a number"),
        (lambda X, y: cs.learners.Head("ridge_regression").fit(X, y.astype(str) + "x"), InputError, "found texts"),
        (
            lambda X, y: cs.learners.Head("ridge_regression").fit(X, np.where(y == y[3], np.nan, y)),
            InputError,
            "row 3, counted from 0, is not finite",
        ),
        (lambda X, y: cs.learners.Head("ridge_regression").fit(X[:3], y[:3]), InputError, "has 3 rows, fewer than 5"),
        (lambda X, y: cs.learners.Head("ridge_regression").fit(X, y, classes=3), OptionError, "has none; leave it out"),
        (lambda X, y: cs.learners.Head("ridge_regression", shrinkage=0.1), OptionError, "is no hyper-parameter"),
        (
            lambda X, y: cs.learners.Head("ridge_regression").fit(
                X, y, noise=cs.learners.GaussianMechanism(1.0, 1e-5, 1.0)
            ),
            OptionError,
            "its targets have no bound",
        ),
        (lambda X, y: cs.learners.Head("ridge").fit(X, y[:, None] * [1.0, 2.0]), InputError, "ridge_regression"),
    ],
)
def test_bad_targets_are_refused_with_the_way_out(make, error, text):
    X, y = rows_of(9)
    with pytest.raises(error, match=text):
        make(X, y)


def test_real_targets_in_a_classifier_name_the_regression():
    X, y = rows_of(9)
    with pytest.raises(InputError, match=r"has no class of 5 rows or more.*ridge_regression"):
        cs.learners.Head().fit(X, y)


def test_sites_of_other_targets_or_kinds_are_refused_by_name():
    X, y = rows_of(10)
    one = cs.learners.Head("ridge_regression").fit(X, y)
    two = cs.learners.Head("ridge_regression").fit(X, np.stack([y, y], 1))
    with pytest.raises(InputError, match="oslo"):
        cs.fuse({"lund": one, "oslo": two})
    other = cs.learners.Head("bayesian_regression").fit(X, y)
    with pytest.raises(InputError, match="oslo"):
        cs.fuse({"lund": one, "oslo": other})
    classes = cs.learners.Head("ridge").fit(X, (y > np.median(y)).astype(int))
    with pytest.raises(InputError):
        cs.fuse({"lund": one, "oslo": classes})


def test_singular_sums_and_constant_targets():
    X, y = rows_of(11)
    doubled = np.hstack([X, X[:, :2]])
    with pytest.warns(SingularMomentsWarning, match="rank 5"):
        model = cs.learners.Head("ridge_regression", ridge=0.0).fit(doubled, y).model
    assert np.isfinite(model.predict(doubled)).all()
    for constant in (0.0, 3.5):
        for kind in KINDS:
            fitted = cs.learners.Head(kind).fit(X, np.full(len(X), constant))
            np.testing.assert_allclose(fitted.predict(X), constant, atol=1e-9)
