"""Pipelines of affine scalings: told in the data's own units, fused, and given back, with exact predictions."""

import numpy as np
import pytest
from hmmlearn.hmm import GaussianHMM
from hmmlearn.vhmm import VariationalGaussianHMM
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA, LatentDirichletAllocation
from sklearn.dummy import DummyRegressor
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)

import consilience as cs
from consilience.posteriors.scaling import AffineMap, scaling_of
from tests.copies import COPIES
from tests.families.zoo import ZOO

pytestmark = pytest.mark.covering(2)

PREDICTIONS = 1e-10
"""Posterior probabilities of raw rows by two routes: scaled and told back, each rounded."""

RNG = np.random.default_rng(0)
MIXING = np.array([[3.0, 0.4, 0.0], [0.0, 0.02, 0.5], [1.0, 0.0, 40.0]])
"""Columns of very different units, with correlations."""
CENTRES = ([0, 0, 0], [7, 0, 0], [0, 7, 3])
ROWS = np.concatenate([RNG.normal(size=(70, 3)) + centre for centre in CENTRES]) @ MIXING.T + [5.0, -2.0, 100.0]
HALVES = (ROWS[::2], ROWS[1::2] * [1.0, 1.0, 1.1])
DIAGONAL = {
    "standard": StandardScaler, "min-max": MinMaxScaler, "max-abs": MaxAbsScaler, "robust": RobustScaler,
    "centred": lambda: StandardScaler(with_std=False), "scaled": lambda: StandardScaler(with_mean=False),
    "identity": FunctionTransformer,
}  # fmt: skip
MIXED = {**DIAGONAL, "pca": lambda: PCA(), "whitened": lambda: PCA(whiten=True)}


def mixture(kind="full", start=0):
    """Return a Bayesian mixture that is not fitted."""
    return BayesianGaussianMixture(n_components=3, covariance_type=kind, random_state=start, max_iter=500)


@pytest.mark.parametrize("name", ["gaussian", "normal-wishart", "diagonal-gaussian", "normal-gamma"])
def test_a_family_follows_by_means_and_covariances(name):
    """The oracle maps plug-in moments; two maps after another are their product; the identity changes nothing."""
    family = ZOO[name].family
    eta, rng = ZOO[name].draw(np.random.default_rng(0), 5), np.random.default_rng(1)
    matrix = np.diag(rng.uniform(0.5, 2.0, family.dim))
    if name in ("gaussian", "normal-wishart"):
        matrix = matrix + 0.3 * rng.normal(size=matrix.shape)
    shift = rng.normal(size=family.dim)
    means, covariances = family.plug_in(eta)
    image = family.affine_image(eta, matrix, shift)
    assert not family.check(image)
    found_means, found = family.plug_in(image)
    assert_allclose(found_means, means @ matrix.T + shift, rtol=1e-9, atol=1e-9)
    expected = covariances * np.diag(matrix) ** 2 if covariances.ndim == 2 else matrix @ covariances @ matrix.T
    assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    back = np.linalg.inv(matrix)
    back = np.diag(np.diag(back)) if covariances.ndim == 2 else back
    assert_allclose(family.affine_image(image, back, -back @ shift), eta, rtol=1e-8, atol=1e-8)
    assert_allclose(family.affine_image(eta, np.eye(family.dim), np.zeros(family.dim)), eta, rtol=1e-12, atol=1e-12)
    # Divergences between laws do not depend on the units.
    assert_allclose(family.kl(image, image), family.kl(eta, eta), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", ["spherical-gaussian", "spherical-normal-gamma"])
def test_spherical_families_follow_rotations_and_one_scale_only(name):
    family, eta = ZOO[name].family, ZOO[name].draw(np.random.default_rng(0), 5)
    matrix = 2.5 * stats.special_ortho_group.rvs(family.dim, random_state=3) if family.dim > 1 else np.eye(1) * 2.5
    shift = np.arange(family.dim) + 1.0
    means, variances = family.plug_in(eta)
    found_means, found = family.plug_in(family.affine_image(eta, matrix, shift))
    assert_allclose(found_means, means @ matrix.T + shift, rtol=1e-9, atol=1e-9)
    assert_allclose(found, variances * 6.25, rtol=1e-9)
    with pytest.raises(cs.errors.UnsupportedError, match="scales columns by different numbers"):
        family.affine_image(eta, np.diag(np.arange(family.dim) + 1.0), shift)


def test_families_without_data_in_units_do_not_follow():
    with pytest.raises(cs.errors.UnsupportedError, match="do not follow an affine map"):
        cs.families.Dirichlet(3).affine_image(np.ones((1, 3)), np.eye(3), np.zeros(3))


@pytest.mark.parametrize("step", MIXED)
def test_a_scaling_is_the_map_of_its_step(step):
    pipeline = make_pipeline(MIXED[step](), mixture()).fit(ROWS)
    scaling = scaling_of(pipeline)
    expected = pipeline[:-1].transform(ROWS)
    assert_allclose(ROWS @ scaling.matrix.T + scaling.shift, expected, rtol=1e-9, atol=1e-9)
    back = scaling.inverse()
    assert_allclose(expected @ back.matrix.T + back.shift, ROWS, rtol=1e-8, atol=1e-8)


def test_steps_follow_one_another_and_passthrough_does_nothing():
    steps = [
        ("a", StandardScaler()),
        ("b", "passthrough"),
        ("c", PCA(whiten=True)),
        ("d", MinMaxScaler()),
        ("m", mixture()),
    ]
    pipeline = Pipeline(steps).fit(ROWS)
    scaling = scaling_of(pipeline)
    assert_allclose(ROWS @ scaling.matrix.T + scaling.shift, pipeline[:-1].transform(ROWS), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("step", MIXED)
@pytest.mark.parametrize("kind", ["full", "tied"])
def test_describing_a_pipeline_is_the_image_of_describing_its_model(step, kind):
    """Also in what it predicts: the raw mixture and the Pipeline give every row the same probabilities."""
    pipeline = make_pipeline(MIXED[step](), mixture(kind)).fit(ROWS)
    described, inner = cs.describe(pipeline), cs.describe(pipeline[-1])
    to_raw = scaling_of(pipeline).inverse()
    means, widths = inner.family.plug_in(inner.natural)
    found_means, found = described.family.plug_in(described.natural)
    assert_allclose(found_means, means @ to_raw.matrix.T + to_raw.shift, rtol=1e-9)
    assert_allclose(found, to_raw.matrix @ widths @ to_raw.matrix.T, rtol=1e-7, atol=1e-9 * np.abs(found).max())
    assert described.counts.tolist() == inner.counts.tolist()
    assert_allclose(cs.rebuild(described).predict_proba(ROWS), pipeline.predict_proba(ROWS), atol=PREDICTIONS)


@pytest.mark.parametrize("step", DIAGONAL)
@pytest.mark.parametrize("model", [lambda: mixture("diag"), lambda: GaussianMixture(3, covariance_type="diag")],
                         ids=["bayesian", "likelihood"])  # fmt: skip
def test_diagonal_covariances_follow_scales_of_columns(step, model):
    pipeline = make_pipeline(DIAGONAL[step](), model()).fit(ROWS)
    rebuilt = cs.rebuild(cs.describe(pipeline, ROWS))
    assert isinstance(rebuilt, Pipeline)
    assert_allclose(rebuilt.predict_proba(ROWS), pipeline.predict_proba(ROWS), atol=PREDICTIONS)


@COPIES
def test_the_density_of_raw_rows_has_the_determinant_in_it():
    """The oracle is SciPy: mixtures of normal densities in raw units."""
    pipeline = make_pipeline(StandardScaler(), GaussianMixture(3, random_state=0)).fit(ROWS)
    described = cs.describe(pipeline, ROWS)
    means, covariances = described.family.plug_in(described.natural)
    gmm, scaler = pipeline[-1], pipeline[0]
    raw_means = scaler.mean_ + scaler.scale_ * gmm.means_
    raw_covariances = scaler.scale_[:, None] * gmm.covariances_ * scaler.scale_
    densities = [stats.multivariate_normal(m, s).pdf(ROWS) for m, s in zip(raw_means, raw_covariances, strict=True)]
    expected = np.log(gmm.weights_ @ densities)
    assert_allclose(expected, gmm.score_samples(scaler.transform(ROWS)) - np.log(scaler.scale_).sum(), rtol=1e-9)
    evaluation = cs.evaluate(cs.fuse([pipeline, pipeline], n_observations=[210, 210]), pipeline, ROWS)
    assert_allclose(evaluation.scores[0].own, expected.mean(), rtol=1e-9)
    assert_allclose(evaluation.scores[0].fused, expected.mean(), rtol=1e-6)
    assert len(means) == len(covariances) == 3


@pytest.mark.parametrize("combine", ["barycenter", "product"])
def test_fusing_pipelines_is_fusing_what_they_say_of_raw_data(combine, tmp_path):
    """From objects and from files; what comes out predicts of raw rows what the mixture in raw units does."""
    sites = {name: make_pipeline(scaler, mixture()).fit(rows) for name, scaler, rows in
             zip(("lund", "oslo"), (StandardScaler(), MinMaxScaler()), HALVES, strict=True)}  # fmt: skip
    fusion = cs.fuse(sites, n_components=3, combine=combine)
    described = {name: cs.describe(site) for name, site in sites.items()}
    again = cs.fuse(described, n_components=3, combine=combine)
    assert again.posterior.natural.tobytes() == fusion.posterior.natural.tobytes()
    for name, site in sites.items():
        cs.save(site, tmp_path / f"{name}.safetensors")
    files = cs.fuse(sorted(tmp_path.glob("*.safetensors")), n_components=3, combine=combine)
    assert files.posterior.natural.tobytes() == fusion.posterior.natural.tobytes()
    assert isinstance(files.model, Pipeline)
    raw = {name: cs.Posterior(**{key: getattr(posterior, key) for key in
           ("family", "natural", "prior", "counts", "weights", "attached")},
           source={key: value for key, value in posterior.source.items() if key != "pipeline"})
           for name, posterior in described.items()}  # fmt: skip
    in_raw_units = cs.fuse(raw, n_components=3, combine=combine).model
    assert isinstance(in_raw_units, BayesianGaussianMixture)
    assert_allclose(fusion.model.predict_proba(ROWS), in_raw_units.predict_proba(ROWS), atol=PREDICTIONS)
    assert "different priors" in fusion.details["average"]["priors"]


def test_a_pipeline_goes_with_a_model_of_raw_data():
    sites = {"lund": make_pipeline(StandardScaler(), mixture()).fit(HALVES[0]), "oslo": mixture().fit(HALVES[1])}
    assert cs.check(sites) == []
    assert isinstance(cs.fuse(sites).model, BayesianGaussianMixture)


@pytest.mark.parametrize("kind", ["full", "tied", "diag"])
@pytest.mark.parametrize("model", [GaussianHMM, VariationalGaussianHMM])
def test_emissions_of_hidden_markov_models_follow(model, kind):
    pipeline = Pipeline(
        [("scale", StandardScaler()), ("hmm", model(3, covariance_type=kind, random_state=0, n_iter=20))]
    )
    pipeline.fit(ROWS)
    posterior = cs.describe(pipeline, n_observations=len(ROWS), min_count=0)
    rebuilt = cs.rebuild(posterior)
    assert rebuilt.predict(ROWS).tolist() == pipeline.predict(ROWS).tolist()
    scaler, own_scaler = rebuilt[0], pipeline[0]
    density = rebuilt.score(ROWS) - len(ROWS) * np.log(scaler.scale_).sum()
    assert_allclose(density, pipeline.score(ROWS) - len(ROWS) * np.log(own_scaler.scale_).sum(), rtol=1e-6)


def test_clusters_follow_one_scale_of_all_columns():
    rows = np.concatenate([RNG.normal(size=(50, 2)) + centre for centre in ([0, 0], [9, 0])])
    one_scale = StandardScaler().fit(rows)
    one_scale.scale_[:], one_scale.var_[:] = 3.0, 9.0
    pipeline = Pipeline(
        [("scale", one_scale), ("kmeans", KMeans(2, n_init=1, random_state=0).fit(one_scale.transform(rows)))]
    )
    posterior = cs.describe(pipeline)
    assert_allclose(posterior.attached["inertia"].values, 9.0 * pipeline[-1].inertia_, rtol=1e-12)
    assert cs.rebuild(posterior).predict(rows).tolist() == pipeline.predict(rows).tolist()
    with pytest.raises(cs.errors.UnsupportedError, match="steps 'standardscaler': scales columns by different numbers"):
        cs.describe(make_pipeline(StandardScaler(), KMeans(2, n_init=1)).fit(rows * [1.0, 7.0]))


def test_names_of_columns_are_those_of_the_pipeline():
    pipeline = make_pipeline(StandardScaler(), mixture()).fit(ROWS)
    pipeline[0].feature_names_in_ = np.array(["x", "y", "z"], dtype=object)
    posterior = cs.describe(pipeline)
    assert posterior.features.names == ("x", "y", "z")
    assert cs.rebuild(posterior)[0].feature_names_in_.tolist() == ["x", "y", "z"]


@pytest.mark.parametrize(("steps", "message"), [
    ([PowerTransformer()], "step 'powertransformer': is a PowerTransformer, and only affine scalings can be undone"),
    ([PCA(2)], "step 'pca': makes 2 columns of 3"),
    ([MinMaxScaler(clip=True)], "step 'minmaxscaler': clips"),
    ([FunctionTransformer(np.exp)], "step 'functiontransformer': applies a function"),
], ids=lambda value: type(value[0]).__name__ if isinstance(value, list) else "")  # fmt: skip
def test_what_cannot_be_undone_is_refused_by_the_name_of_the_step(steps, message):
    rows = np.clip(ROWS, -50, 50) if isinstance(steps[0], FunctionTransformer) else ROWS
    pipeline = make_pipeline(*steps, mixture()).fit(rows)
    with pytest.raises((cs.errors.InputError, cs.errors.UnsupportedError), match=message):
        cs.describe(pipeline)
    problems = cs.check({"lund": pipeline, "oslo": pipeline})
    assert {problem.subject for problem in problems} == {"lund", "oslo"}


@pytest.mark.parametrize("scaler", [StandardScaler, MinMaxScaler])
def test_a_column_that_does_not_vary_is_refused(scaler):
    rows = np.column_stack([ROWS[:, :2], np.full(len(ROWS), 4.0)])
    pipeline = make_pipeline(scaler(), mixture()).fit(rows)
    with pytest.raises(
        cs.errors.InputError, match=r"step '.*scaler': column 2, counted from 0, has .* 0: it does not vary"
    ):
        cs.describe(pipeline)


def test_diagonal_covariances_refuse_a_rotation():
    pipeline = make_pipeline(PCA(), mixture("diag")).fit(ROWS)
    with pytest.raises(
        cs.errors.UnsupportedError, match=r"steps 'pca': mixes columns, .*; fit with `covariance_type='full'"
    ):
        cs.describe(pipeline)


def test_spherical_covariances_refuse_scales_that_differ():
    pipeline = make_pipeline(StandardScaler(), mixture("spherical")).fit(ROWS)
    with pytest.raises(cs.errors.UnsupportedError, match="fit with `covariance_type='diag'"):
        cs.describe(pipeline)


def test_models_of_other_data_and_steps_that_are_not_fitted_are_refused():
    topics = make_pipeline(FunctionTransformer(), LatentDirichletAllocation(2)).fit(RNG.poisson(2.0, size=(20, 5)))
    with pytest.raises(cs.errors.UnsupportedError, match="only models of Gaussian data"):
        cs.describe(topics)
    with pytest.raises(cs.errors.UnsupportedError, match="no adapter for sklearn"):
        cs.describe(make_pipeline(StandardScaler(), DummyRegressor()).fit(ROWS, ROWS[:, 0]))
    unfitted = Pipeline([("scale", StandardScaler()), ("mixture", mixture().fit(ROWS))])
    with pytest.raises(cs.errors.InputError, match="step 'scale': this StandardScaler is not fitted yet"):
        cs.describe(unfitted)


def test_maps_are_composed_in_the_order_of_steps():
    first = AffineMap(np.diag([2.0, 3.0]), np.array([1.0, 0.0]))
    second = AffineMap(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.0, 5.0]))
    x = np.array([1.0, 2.0])
    both = first.then(second)
    assert_allclose(both.matrix @ x + both.shift, second.matrix @ (first.matrix @ x + first.shift) + second.shift)
