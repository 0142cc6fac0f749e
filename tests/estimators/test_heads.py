"""Laws of heads on shared features: sums of sites give the head of all rows, and nothing else travels."""

import json
import warnings

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import consilience as cs
from consilience.cli.commands import cli
from consilience.errors import InputError, OptionError, UnsupportedError, WithheldWarning
from consilience.estimators.adapters.linear_regression import SingularMomentsWarning
from consilience.estimators.heads import feature_maps
from consilience.estimators.heads.head import KINDS
from tests.cli.running import command

pytestmark = pytest.mark.covering(2)

POOLED = 1e-10
"""What a fused head may differ by from the one of all rows, relative to the largest score."""

D, CLASSES = 6, 4

CLASSIFIERS = [kind for kind, adapter in KINDS.items() if adapter.needs == "classes"]
"""The others are in test_regression_heads.py."""


def rows_of(seed, n=240, classes=CLASSES, shift=3.0):
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.repeat(np.arange(classes), 8), rng.integers(0, classes, n - 8 * classes)])
    mixing = np.eye(D) + 0.3 * rng.normal(size=(classes, D, D))
    X = 1.5 * rng.normal(size=(classes, D))[y] + np.einsum("nij,nj->ni", mixing[y], rng.normal(size=(n, D))) + shift
    order = rng.permutation(n)
    return X[order], y[order]


def ridge_oracle(X, y, Z, ridge=1e-4):
    """Return scores of rows Z by least squares on rows with pseudo-rows for the penalty, columns of unit variance."""
    mean, deviation = X.mean(0), X.std(0)
    deviation = np.where(deviation > 1e-12, deviation, 1.0)
    classes = np.unique(y)
    targets = (y[:, None] == classes).astype(float)
    phi = (X - mean) / deviation
    penalty = np.sqrt(ridge * len(X)) * np.eye(X.shape[1])
    rows, _, _, _ = np.linalg.lstsq(
        np.vstack([phi, penalty]),
        np.vstack([targets - targets.mean(0), np.zeros((X.shape[1], len(classes)))]),
        rcond=None,
    )
    return (Z - mean) / deviation @ rows + targets.mean(0)


ORACLES = {
    "ridge": ridge_oracle,
    "lda": lambda X, y, Z: LinearDiscriminantAnalysis(solver="lsqr").fit(X, y).decision_function(Z),
    "gaussian_nb": lambda X, y, Z: GaussianNB().fit(X, y).predict_log_proba(Z),
    "qda": lambda X, y, Z: QuadraticDiscriminantAnalysis(reg_param=0.05).fit(X, y).predict_log_proba(Z),
}
PARAMETERS = {"lda": {"shrinkage": 0.0}}


def head(kind, **features):
    return cs.learners.Head(kind, **features, **PARAMETERS.get(kind, {}))


def divided(X, y, n_sites, skew, seed):
    """Return heads' data of sites: with a skew of 1 each class lives at a single site."""
    rng = np.random.default_rng(seed)
    home = rng.integers(0, n_sites, CLASSES)
    owner = np.where(rng.random(len(y)) < skew, home[y], rng.integers(0, n_sites, len(y)))
    return [(X[owner == site], y[owner == site]) for site in range(n_sites) if np.any(owner == site)]


@pytest.mark.parametrize("kind", CLASSIFIERS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), n_sites=st.integers(1, 40), skew=st.sampled_from([0.0, 0.7, 1.0]))
def test_the_fused_head_is_that_of_all_rows_for_every_division(kind, seed, n_sites, skew):
    X, y = rows_of(seed)
    heads = [head(kind).fit(*part, classes=CLASSES, min_count=0) for part in divided(X, y, n_sites, skew, seed)]
    fused = cs.rebuild(cs.fuse(heads, min_count=0).statistics) if len(heads) > 1 else heads[0].model
    whole = head(kind).fit(X, y, min_count=0).model
    found, expected = fused.decision_function(X), whole.decision_function(X)
    assert np.abs(found - expected).max() <= POOLED * np.abs(expected).max(), (seed, n_sites, skew)
    if kind in ORACLES:
        oracle = ORACLES[kind](X, y, X)
        np.testing.assert_allclose(found, oracle, rtol=0.0, atol=1e-8 * np.abs(oracle).max())


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_thousand_sites_of_one_class_each_are_one_site(kind):
    X, y = rows_of(1, n=4000)
    order = np.argsort(y, kind="stable")
    heads = [head(kind).fit(X[r], y[r], classes=CLASSES, min_count=0) for r in np.array_split(order, 1000)]
    assert (
        sum(len(one.statistics.classes) == 1 or np.count_nonzero(one.statistics.row_counts) == 1 for one in heads) > 990
    )
    fused = cs.fuse(heads, min_count=0).model
    expected = head(kind).fit(X, y, min_count=0).model.decision_function(X)
    assert np.abs(fused.decision_function(X) - expected).max() <= POOLED * np.abs(expected).max()


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_site_is_added_and_removed_exactly(kind):
    X, y = rows_of(2)
    parts = divided(X, y, 4, 0.7, 0)
    heads = [head(kind).fit(*part, classes=CLASSES, min_count=0) for part in parts]
    whole, others = cs.fuse(heads, min_count=0), cs.fuse(heads[1:], min_count=0)
    left = cs.remove(whole, heads[0])
    scale = np.abs(others.model.decision_function(X)).max()
    assert np.abs(left.model.decision_function(X) - others.model.decision_function(X)).max() < 1e-9 * scale
    again = cs.add(left, heads[0])
    assert np.abs(again.model.decision_function(X) - whole.model.decision_function(X)).max() < 1e-9 * scale
    with pytest.raises(InputError, match="in the fusion already"):
        cs.add(whole, heads[0])


def test_evidence_is_the_density_of_students_t_and_the_ridge_maximises_it():
    X, y = rows_of(3, n=60)
    model = cs.learners.Head("bayesian").fit(X, y, min_count=0).model
    n = len(X)
    phi = (X - X.mean(0)) / X.std(0)
    contrast = np.linalg.svd(np.ones((1, n)))[2][1:]  # rows orthogonal to the constant: the flat prior of the intercept

    def evidence(ridge):
        total = 0.0
        for label in range(CLASSES):
            indicator = contrast @ (y == label).astype(float)
            shape = (y == label).var() * (np.eye(n - 1) + contrast @ phi @ phi.T @ contrast.T / (ridge * n))
            total += stats.multivariate_t.logpdf(indicator, np.zeros(n - 1), shape, df=1)
        return total

    assert evidence(model.ridge_) == pytest.approx(model.log_evidence_, rel=1e-9)
    assert model.log_evidence_ >= max(evidence(ridge) for ridge in np.geomspace(1e-7, 1.0, 22)) - 1e-6
    np.testing.assert_allclose(model.decision_function(X), ridge_oracle(X, y, X, model.ridge_), rtol=0, atol=1e-9)
    narrow, wide = model.interval(X[:3], 0.5), model.interval(X[:3], 0.95)
    assert np.all(wide[..., 0] < narrow[..., 0])
    far = X[:1] + 100.0
    assert np.all(model.deviations(far) > model.deviations(X[:1]))


def test_rows_of_thin_classes_are_in_no_sum():
    X, y = rows_of(4)
    few = np.concatenate([np.flatnonzero(y != 0), np.flatnonzero(y == 0)[:3]])
    with pytest.warns(WithheldWarning, match="class 0: has 3 rows, fewer than 5"):
        withheld = cs.learners.Head().fit(X[few], y[few], classes=CLASSES)
    without = cs.learners.Head().fit(X[y != 0], y[y != 0], classes=CLASSES)
    assert withheld.statistics.n_withheld == 1
    assert dict(withheld.statistics.tensors()).keys() == dict(without.statistics.tensors()).keys()
    for (_, found), (_, expected) in zip(withheld.statistics.tensors(), without.statistics.tensors(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    kept = cs.learners.Head().fit(X[few], y[few], classes=CLASSES, min_count=0)
    with pytest.raises(InputError, match="needs all of its classes"):
        cs.fuse([kept, without])
    naive = cs.learners.Head("gaussian_nb").fit(X[few], y[few], classes=CLASSES, min_count=0)
    cs.fuse([naive, cs.learners.Head("gaussian_nb").fit(X, y)])  # moments of classes are apart, so one can be left out


def test_sums_that_are_singular_give_the_rows_of_least_norm_with_a_warning():
    X, y = rows_of(5)
    doubled = np.hstack([X, X[:, :2]])
    with pytest.warns(SingularMomentsWarning, match="rank 6"):
        model = cs.learners.Head(ridge=0.0).fit(doubled, y).model
    assert np.mean(model.predict(doubled) == y) > 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(cs.learners.Head().fit(doubled, y).model.coef_).all()  # the default ridge needs none


# -- features


def module(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(D, 5), torch.nn.Tanh(), torch.nn.Dropout(0.5)).eval()


def test_a_module_and_its_head_come_back_as_a_module():
    X, y = rows_of(6)
    frozen = module()
    heads = [
        cs.learners.Head("lda", features=frozen).fit(X[r], y[r], classes=CLASSES)
        for r in (slice(0, 120), slice(120, None))
    ]
    model = cs.fuse(heads).model
    joined = model.module()
    assert not joined.training
    logits = joined(torch.tensor(X, dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(logits, model.decision_function(X), rtol=1e-3, atol=1e-3)
    assert np.array_equal(model.classes_[logits.argmax(1)], model.predict(X))
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)


def test_modules_in_training_mode_or_with_other_weights_are_refused():
    X, y = rows_of(6)
    with pytest.raises(InputError, match=r"in training mode \(itself, 0, 1\).*module.eval\(\)"):
        cs.learners.Head(features=module().train())
    frozen = module()
    fitted = cs.learners.Head(features=frozen).fit(X, y)
    other = cs.learners.Head(features=module(1)).fit(X, y)
    with pytest.raises(InputError, match="took sums of other features than"):
        cs.fuse({"lund": fitted, "oslo": other})
    with torch.no_grad():
        frozen[0].weight += 1.0
    with pytest.raises(InputError, match="has other weights than when the head was made"):
        fitted.predict(X)
    frozen = module()
    unfrozen = cs.learners.Head(features=frozen).fit(X, y)
    frozen.train()
    with pytest.raises(InputError, match="training mode"):
        unfrozen.predict(X)


def test_a_file_of_a_modules_head_asks_for_the_module_and_compares_its_digest(tmp_path, monkeypatch):
    X, y = rows_of(7)
    path = tmp_path / "head.safetensors"
    cs.save(cs.learners.Head(features=module()).fit(X, y), path)
    expected = cs.learners.Head(features=module()).fit(X, y).predict(X)
    monkeypatch.setattr(feature_maps, "_SEEN", {})  # as in another process
    model = cs.rebuild(cs.load(path))
    with pytest.raises(InputError, match=r"are of Sequential, which no file holds.*with_features\(module\)"):
        model.predict(X)
    with pytest.raises(InputError, match="have the digest"):
        model.with_features(module(3))
    assert np.array_equal(model.with_features(module()).predict(X), expected)


def test_random_features_are_made_again_from_their_recipe(tmp_path, monkeypatch):
    X, y = rows_of(7)
    kernel = cs.features.random_fourier(D, count=40, length=4.0, seed=3)
    fitted = cs.learners.Head(features=kernel).fit(X, y)
    cs.save(fitted, tmp_path / "head.safetensors")
    monkeypatch.setattr(feature_maps, "_SEEN", {})
    model = cs.rebuild(cs.load(tmp_path / "head.safetensors"))
    np.testing.assert_allclose(model.decision_function(X), fitted.model.decision_function(X), rtol=1e-12)
    record = json.loads(fitted.statistics.parameters["features"])
    record["recipe"]["seed"] = 4
    monkeypatch.setattr(feature_maps, "_SEEN", {})
    with pytest.raises(InputError, match="come out as"):
        feature_maps.map_of_record(json.dumps(record), {"random_fourier": cs.features.random_fourier})


def test_a_transformer_is_known_by_its_class_and_what_it_was_fitted_to():
    X, y = rows_of(8)
    pipeline = make_pipeline(StandardScaler()).fit(X)
    again = make_pipeline(StandardScaler()).fit(X)
    assert cs.features.frozen(pipeline).digest == cs.features.frozen(again).digest
    assert (
        cs.features.frozen(make_pipeline(StandardScaler()).fit(X[:100])).digest != cs.features.frozen(pipeline).digest
    )
    fitted = cs.learners.Head(features=pipeline).fit(X, y)
    pipeline.fit(2.0 * X)
    with pytest.raises(InputError, match="was fitted anew"):
        fitted.predict(X)
    with pytest.raises(InputError, match=r"has no digest that sites could compare.*cs\.features\.frozen"):
        cs.learners.Head(features=lambda X: X)
    halves = cs.features.frozen(lambda X: np.asarray(X) / 2, digest="halves")
    assert cs.learners.Head(features=halves).fit(X, y).statistics.n_columns == D
    with pytest.raises(InputError, match="expected a module, a transformer or a function"):
        cs.learners.Head(features=3)


def test_random_fourier_features_are_a_gaussian_kernel():
    X, _ = rows_of(9)
    features = cs.features.random_fourier(D, count=20_000, length=5.0)(X[:20])
    distances = ((X[:20, None] - X[None, :20]) ** 2).sum(-1)
    np.testing.assert_allclose(features @ features.T, np.exp(-distances / 50.0), atol=0.05)


def test_random_convolutions_are_the_recipes_formula():
    from scipy.signal import correlate2d

    features = cs.features.random_convolutions(shape=(2, 14, 13), count=180, seed=5)
    image = np.random.default_rng(0).random((2, 14, 13))
    found = features(image[None])[0]
    x = image / features.scale
    position = 0
    for side, filters in zip((4, 6, 9), features._filters, strict=True):
        box = np.ones((side, side))
        size = 2 * side * side
        mean = sum(correlate2d(channel, box, "valid") for channel in x) / size
        square = sum(correlate2d(channel**2, box, "valid") for channel in x) / size
        for number in range(filters.shape[1]):
            kernel = filters[:, number].reshape(2, side, side)
            response = sum(correlate2d(x[c], kernel[c], "valid") for c in range(2))
            response = response / np.sqrt(square - mean**2 + 0.01)
            for sign in (0, 1):
                rectified = np.maximum((1 - 2 * sign) * response - 0.3, 0.0)
                for cell in range(9):
                    rows, columns = (
                        slice(i * n // 3, -(-(i + 1) * n // 3))
                        for i, n in zip(divmod(cell, 3), rectified.shape, strict=True)
                    )
                    index = position + number * 18 + sign * 9 + cell
                    assert found[index] == pytest.approx(rectified[rows, columns].mean(), abs=2e-5)
        position += 18 * filters.shape[1]
    assert position == 180


def test_random_convolutions_need_no_data_and_take_images_in_bytes_or_in_unit_range():
    first, again = (cs.features.random_convolutions(count=180, seed=1) for _ in range(2))
    assert first.digest == again.digest
    assert cs.features.random_convolutions(count=180, seed=2).digest != first.digest
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28)).astype(np.uint8)
    np.testing.assert_allclose(first(images), first(images[:, None] / 255.0), atol=1e-6)
    for inputs, text in (
        (images[:, :20], r"images of shape \(1, 20, 28\), expected \(1, 28, 28\)"),
        (images.astype(float), "beyond"),
        (np.zeros((2, 28, 28, 1)), r"channels first"),
        (np.full((1, 1, 28, 28), np.nan), "NaN"),
    ):
        with pytest.raises(InputError, match=text):
            first(inputs)
    for bad in ({"count": 100}, {"shape": (1, 8, 8)}, {"seed": -1}, {"stride": 0}, {"scale": 0.0}, {"shape": 28}):
        with pytest.raises(OptionError):
            cs.features.random_convolutions(**bad)


# -- choosing the ridge


def test_error_curves_of_sites_add_up_to_that_of_all_held_out_rows():
    X, y = rows_of(10, n=400)
    kernel = cs.features.random_fourier(D, count=60, length=3.0)
    parts = np.array_split(np.arange(400), 4)
    heads = [
        cs.learners.Head(features=kernel).fit(X[p], y[p], classes=CLASSES, held_out=0.25, min_count=0) for p in parts
    ]
    fusion = cs.fuse(heads, min_count=0)
    curves = [one.error_curve(fusion) for one in heads]
    held = [np.random.default_rng(0).random(len(p)) < 0.25 for p in parts]
    rows = np.concatenate([p[h] for p, h in zip(parts, held, strict=True)])
    assert fusion.statistics.n_observations == 400 - len(rows)
    total = np.sum([curve.n_errors for curve in curves], axis=0)
    for ridge, errors in zip(curves[0].ridges, total, strict=True):
        model = cs.rebuild(fusion.statistics, ridge=ridge)
        assert abs(int(np.sum(model.predict(X[rows]) != y[rows])) - errors) <= 1  # ties within rounding
    chosen = cs.learners.choose_ridge(curves)
    assert total[curves[0].ridges.index(chosen)] == total.min()
    with pytest.raises(InputError, match="no rows held out"):
        cs.learners.Head(features=kernel).fit(X, y).error_curve(fusion)
    with pytest.raises(InputError, match="expected one for each site"):
        cs.learners.choose_ridge([])


# -- alignment of sites


def shifted_sites(seed, skew):
    """Return rows of three sites under affine shifts, with shares of classes that differ by `skew`."""
    rng = np.random.default_rng(seed)
    means = 3.0 * rng.normal(size=(CLASSES, D))
    sites, maps = {}, {}
    for number in range(3):
        shares = rng.dirichlet(np.full(CLASSES, skew)) * 0.9 + 0.1 / CLASSES
        y = rng.choice(CLASSES, 400, p=shares / shares.sum())
        matrix, shift = np.eye(D) + 0.2 * rng.normal(size=(D, D)), 4.0 * rng.normal(size=D)
        maps[f"site {number}"] = matrix, shift
        sites[f"site {number}"] = (means[y] + rng.normal(size=(400, D))) @ matrix.T + shift, y
    return means, sites, maps


@pytest.mark.parametrize("skew", [100.0, 0.5])
def test_alignment_by_classes_undoes_affine_shifts_whatever_the_shares_of_classes(skew):
    plain, aligned_scores = [], []
    for seed in range(3):
        means, sites, maps = shifted_sites(seed, skew)
        heads = {
            name: cs.learners.Head("lda").fit(X, y, classes=CLASSES, min_count=0) for name, (X, y) in sites.items()
        }
        aligned, fused = cs.learners.align(heads, min_count=0), cs.fuse(heads, min_count=0).model
        rng = np.random.default_rng(9)
        y = np.repeat(np.arange(CLASSES), 100)  # every class alike
        for name, (matrix, shift) in maps.items():
            X = (means[y] + rng.normal(size=(len(y), D))) @ matrix.T + shift
            plain.append(np.mean(fused.predict(X) == y))
            aligned_scores.append(np.mean(aligned.model(name).predict(X) == y))
    assert np.mean(aligned_scores) > np.mean(plain) + 0.02
    assert np.mean(aligned_scores) > 0.9


def test_alignment_of_sites_alike_changes_nothing_and_names_sites_that_share_no_class():
    X, y = rows_of(11)
    heads = {name: cs.learners.Head("lda").fit(X, y, classes=CLASSES) for name in ("a", "b")}
    heads["b"].statistics = cs.learners.Head("lda").fit(X[::-1].copy(), y[::-1].copy(), classes=CLASSES).statistics
    problems_of_copies = cs.learners.align(heads)
    for matrix, shift in problems_of_copies.maps.values():
        np.testing.assert_allclose(matrix, np.eye(D), atol=1e-6)
        np.testing.assert_allclose(shift, 0.0, atol=1e-6)
    apart = {
        "first": cs.learners.Head("lda").fit(X[y < 2], y[y < 2], classes=CLASSES),
        "second": cs.learners.Head("lda").fit(X[y >= 2], y[y >= 2], classes=CLASSES),
    }
    assert cs.learners.align(apart).unshifted == ("first", "second")
    with pytest.raises(InputError, match="was not aligned"):
        cs.learners.align(apart).model("third")
    with pytest.raises(InputError, match="no ridge or lda heads"):
        cs.learners.align({name: cs.learners.Head("qda").fit(X[r], y[r]) for name, r in (("a", y < 2), ("b", y >= 2))})


# -- what is refused


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda X, y: cs.learners.Head("svm"), OptionError, "there is no head 'svm'; there are ridge, lda"),
        (
            lambda X, y: cs.learners.Head("lda", ridge=1.0),
            OptionError,
            "is no hyper-parameter of a lda head; it has shrinkage",
        ),
        (lambda X, y: cs.learners.Head(ridge=-1.0), OptionError, "expected a number that is not negative"),
        (lambda X, y: cs.learners.Head().fit(X, y[:-1]), InputError, "expected one class for each of the 240 rows"),
        (
            lambda X, y: cs.learners.Head().fit(X, y, classes=3),
            InputError,
            "has the class 3, which the model does not know",
        ),
        (lambda X, y: cs.learners.Head().fit(X, y, classes="abc"), OptionError, "number of classes or their labels"),
        (
            lambda X, y: cs.learners.Head().fit(np.where(X[7, 2] == X, np.nan, X), y),
            InputError,
            r"X: has features that are NaN or infinite \(1 of 240 rows; the first is row 7, feature 2, counted from"
            r" 0\); leave these rows out",
        ),
        (
            lambda X, y: cs.learners.Head().fit(X[:, 0], y),
            InputError,
            "expected a row of features for each input.*; give rows",
        ),
        (lambda X, y: cs.learners.Head().fit(X[:0], y[:0]), InputError, "has no rows"),
        (lambda X, y: cs.learners.Head().fit(X, y, held_out=1.0), OptionError, "from 0 to below 1"),
        (
            lambda X, y: cs.learners.Head().fit(X[:4], y[:4]),
            InputError,
            "has no class of 5 rows or more: nothing may leave; `min_count=0",
        ),
        (lambda X, y: cs.fuse([cs.learners.Head(), cs.learners.Head()]), InputError, "is not fitted yet"),
        (lambda X, y: cs.learners.Head().model, InputError, "not fitted yet"),
        (lambda X, y: cs.fuse([cs.learners.Head().fit(X, y).model] * 2), InputError, "has no sums"),
        (lambda X, y: cs.learners.Head("qda").fit(X, y).model.module(), UnsupportedError, "is not linear"),
        (lambda X, y: cs.learners.Head().fit(X, y).model.module(), UnsupportedError, "is no torch module here"),
        (
            lambda X, y: cs.fuse([cs.learners.Head().fit(X, y), cs.learners.Head("lda").fit(X, y)]),
            InputError,
            "expected consilience.RidgeHead",
        ),
        (
            lambda X, y: cs.fuse([cs.learners.Head().fit(X, y), cs.learners.Head().fit(X, y.astype(str))]),
            InputError,
            "names its classes by texts",
        ),
        (
            lambda X, y: cs.learners.Head().fit(X, y, noise=cs.learners.GaussianMechanism(1.0)),
            OptionError,
            "of all sites are needed with noise",
        ),
        (
            lambda X, y: cs.learners.Head("qda").fit(X, y, classes=4, noise=cs.learners.GaussianMechanism(1.0)),
            OptionError,
            "is for ridge, lda and bayesian",
        ),
    ],
)
def test_bad_input_gets_one_line(make, error, text):
    with pytest.raises(error, match=text):
        make(*rows_of(0))


# -- files and commands


def test_heads_are_fused_checked_inspected_evaluated_and_reported_by_the_command(tmp_path):
    X, y = rows_of(12)
    kernel = cs.features.random_fourier(D, count=30, length=4.0)
    files = []
    for number, part in enumerate(divided(X, y, 3, 0.5, 1)):
        files.append(str(tmp_path / f"site-{number}.safetensors"))
        cs.save(cs.learners.Head(features=kernel).fit(*part, classes=CLASSES, min_count=0), files[-1], min_count=0)
    fused, page = str(tmp_path / "fused.safetensors"), tmp_path / "page.html"
    done = command("fuse", *files, "-o", fused, "--report", str(page), "--set", "min_count=0", "--set", "ridge=0.001")
    assert done.code == 0, done.err
    assert "exact: this is the RidgeHead that fit gives on the 240 rows of all 3 sites" in done.out
    assert cs.load(fused).parameters["ridge"] == 0.001
    assert "3 models can be fused" in command("check", *files, "--set", "min_count=0").out
    inspected = command("inspect", fused).out
    for text in (
        "30 random Fourier features (random_fourier, digest",
        "sums by class",
        "What this file tells about people",
    ):
        assert text in inspected
    assert "Behind it are about 240 observations." in " ".join(inspected.split())
    np.savez(tmp_path / "held.npz", x=X, y=y)
    evaluated = json.loads(command("evaluate", fused, files[0], "--data", str(tmp_path / "held.npz"), "--json").out)
    assert [score["name"] for score in evaluated["scores"]] == ["accuracy"]
    expected = 100.0 * np.mean(cs.rebuild(cs.load(fused)).predict(X) == y)
    assert evaluated["scores"][0]["fused"] == pytest.approx(expected)
    assert "Who knows which class" in page.read_text()
    assert command("report", fused, *files, "-o", str(tmp_path / "again.html")).code == 0
    listed = command("methods").out
    for name in ("RidgeHead", "LDAHead", "QDAHead", "GaussianNBHead", "BayesianHead"):
        assert name in listed


def test_heads_on_a_module_are_evaluated_with_it(tmp_path):
    X, y = rows_of(13)
    heads = [
        cs.learners.Head("lda", features=module()).fit(X[r], y[r], classes=CLASSES)
        for r in (slice(0, 120), slice(120, None))
    ]
    fusion = cs.fuse(heads)
    found = cs.evaluate(fusion, heads[0], (X, y))
    assert {score.name for score in found.scores} == {"accuracy", "cross-entropy"}
    fusion.save(tmp_path / "fused.safetensors")
    cs.save(heads[0], tmp_path / "site.safetensors")
    again = cs.evaluate(tmp_path / "fused.safetensors", tmp_path / "site.safetensors", (X, y), module=module())
    assert again.scores[0].fused == found.scores[0].fused


def test_sums_travel_over_a_folder(tmp_path):
    import threading

    X, y = rows_of(14)
    parts = divided(X, y, 2, 0.3, 2)
    for number, part in enumerate(parts):
        cs.save(cs.learners.Head("lda").fit(*part, classes=CLASSES), tmp_path / f"{number}.safetensors")
        cs.federated.send_folder(tmp_path / f"{number}.safetensors", tmp_path / "round", f"site{number}")
    output = tmp_path / "fused.safetensors"
    server = threading.Thread(
        target=cs.federated.serve_folder,
        args=(tmp_path / "round", output),
        kwargs={"sites": ["site0", "site1"], "deadline": 60, "poll": 0.05},
        daemon=True,
    )
    server.start()
    server.join(60)
    expected = cs.learners.Head("lda").fit(X, y).model
    np.testing.assert_allclose(cs.rebuild(cs.load(output)).coef_, expected.coef_, rtol=1e-8)


def test_a_site_takes_its_sums_by_the_command(tmp_path, monkeypatch):
    def run(*arguments):
        return CliRunner().invoke(cli, [str(one) for one in arguments], standalone_mode=False)

    rng = np.random.default_rng(0)
    files = []
    for site in range(2):
        y = np.repeat(np.arange(3), 30)
        x = (40 * y[:, None, None] + rng.integers(0, 60, (90, 14, 14))).astype(np.uint8)
        np.savez(tmp_path / f"{site}.npz", x=x, y=y)
        files.append(tmp_path / f"{site}.safetensors")
        options = ["--classes", "3", "--convolutions", "36"]
        done = run("site", "head", "ridge", "--data", tmp_path / f"{site}.npz", "-o", files[-1], *options)
        assert done.exception is None, done.exception
        assert "Head('ridge', 36 random convolutions, 90 rows)" in done.output
    assert cs.fuse(files).model.predict(x).shape == (90,)
    rows, out = tmp_path / "rows.npz", tmp_path / "site.safetensors"
    np.savez(rows, x=rng.normal(size=(90, D)), y=y)
    noise = ["--classes", "3", "--epsilon", "9", "--norm-bound", "9"]
    monkeypatch.chdir(tmp_path)  # where files of ours are replaced without a word
    for arguments in (["--fourier", "20", "--length", "2"], [], noise):
        done = run("site", "head", "lda", "--data", rows, "-o", out, "--quiet", *arguments)
        assert done.exception is None, done.exception
        assert done.output == ""
    table, of_table = tmp_path / "rows.csv", tmp_path / "table.safetensors"
    with np.load(rows) as arrays:
        cells = np.column_stack([arrays["x"], arrays["y"]])
    np.savetxt(table, cells, delimiter=",", header=",".join([*"abcdef"[:D], "species"]), comments="", fmt="%.17g")
    for kind in ("ridge", "ridge_regression"):
        for source, target in ((rows, out), (table, of_table)):
            assert run("site", "head", kind, "--data", source, "-o", target, "--quiet").exception is None
        assert cs.load(out).digest == cs.load(of_table).digest
    (tmp_path / "bodies.py").write_text("import torch\n\ndef make():\n    return torch.nn.Linear(6, 4)\n")
    monkeypatch.chdir(tmp_path)
    assert run("site", "head", "qda", "--data", rows, "-o", out, "--module", "bodies:make").exception is None
    assert "Linear (module, digest" in run("inspect", out).output
    for arguments, text in (
        (["--delta", "0.1"], "are for --epsilon, which is missing"),
        (["--fourier", "9", "--convolutions", "18"], "give one"),
        (["--length", "2"], "--length: means nothing for these features"),
        (["--fourier", "9", "--scale", "2"], "--scale: means nothing"),
        (["--convolutions", "18"], "expected (channels, height, width)"),
        (["--epsilon", "1"], "of all sites are needed with noise"),
    ):
        assert text in str(run("site", "head", "ridge", "--data", rows, "-o", out, *arguments).exception)
