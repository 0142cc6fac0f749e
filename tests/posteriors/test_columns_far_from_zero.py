"""Columns far from zero, such as timestamps: models are fused as about zero, and natural parameters that have lost
their widths are refused with a constant to subtract."""

from dataclasses import replace

import numpy as np
import pytest
from hmmlearn import hmm
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.cluster import KMeans
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import consilience as cs
from consilience.files.safetensors_file import SafetensorsFile
from consilience.posteriors.report.content import content_of_files
from tests.cli.running import command

FAR = [(1e4, 1.0), (1e6, 1.0), (1.7e9, 1e4), (1.7e9, 1.0), (-1.7e9, 1e-2), (1e13, 1.0), (1.0, 1e-8), (0.0, 1e-8)]
"""Offsets, and scales of the rows."""
CENTRES = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])


def rows(seed, offset=0.0, scale=1.0):
    own = np.random.default_rng(seed).normal(size=(300, 2)) + np.repeat(CENTRES, 100, axis=0)
    return offset + scale * own


def mixture(seed, offset=0.0, scale=1.0, covariance_type="full"):
    """A mixture with the moments of the planted groups: scikit-learn's own fit loses digits of its own."""
    groups = np.split(rows(seed), 3)
    means = np.stack([group.mean(axis=0) for group in groups])
    full = np.stack([np.cov(group.T, bias=True) for group in groups])
    diagonal = np.diagonal(full, axis1=1, axis2=2)
    covariances = {
        "full": full, "tied": full.mean(axis=0), "diag": diagonal, "spherical": diagonal.mean(axis=1)
    }[covariance_type]  # fmt: skip
    model = GaussianMixture(3, covariance_type=covariance_type)
    model.weights_, model.means_, model.covariances_ = np.full(3, 1 / 3), offset + scale * means, scale**2 * covariances
    model.precisions_cholesky_ = covariances  # what marks it as fitted; not read
    model.n_features_in_ = 2
    return model


def fused(offset=0.0, scale=1.0, covariance_type="full"):
    sites = [mixture(seed, offset, scale, covariance_type) for seed in (0, 1)]
    return cs.fuse(sites, n_observations=[300, 300]).model


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize(("offset", "scale"), FAR)
def test_what_is_fused_is_what_is_fused_about_zero(covariance_type, offset, scale):
    expected, model = fused(covariance_type=covariance_type), fused(offset, scale, covariance_type)
    means, covariances = (model.means_ - offset) / scale, model.covariances_ / scale**2
    order = [int(np.argmin(((means - mean) ** 2).sum(axis=1))) for mean in expected.means_]
    rounding = np.finfo(float).eps * abs(offset) / scale  # of a mean in float64, in deviations
    np.testing.assert_allclose(means[order], expected.means_, atol=1e-6 + 4 * rounding)
    of_groups = covariances if covariance_type == "tied" else covariances[order]
    np.testing.assert_allclose(of_groups, expected.covariances_, atol=1e-6 + 40 * rounding)


@pytest.mark.parametrize("method", ["spahm", "amps", "kmeans", "dp", "average", "concatenate"])
def test_every_method_does_the_same_far_from_zero(method):
    near, far = (
        cs.fuse([mixture(seed, offset) for seed in (0, 1)], method, n_observations=[300, 300], rng=0)
        for offset in (0.0, 1e8)
    )
    np.testing.assert_array_equal(far.matching.labels, near.matching.labels)
    np.testing.assert_allclose(far.model.means_ - 1e8, near.model.means_, atol=1e-6)
    np.testing.assert_allclose(far.model.covariances_, near.model.covariances_, atol=1e-6)


def test_a_pipeline_far_from_zero_is_the_one_about_zero_with_another_mean():
    def fit(seed, offset):
        model = make_pipeline(StandardScaler(), GaussianMixture(3, random_state=0)).fit(rows(seed))
        model[0].mean_ = model[0].mean_ + offset
        return model

    near, far = (
        cs.fuse([fit(seed, offset) for seed in (0, 1)], n_observations=[300, 300]).model for offset in (0, 1e8)
    )
    np.testing.assert_allclose(far[0].mean_ - 1e8, near[0].mean_, atol=1e-6)
    np.testing.assert_allclose(far[1].means_, near[1].means_, atol=1e-6)
    np.testing.assert_allclose(far[1].covariances_, near[1].covariances_, atol=1e-6)


def test_variational_mixtures_keep_their_prior_far_from_zero():
    def fit(seed, offset):
        model = BayesianGaussianMixture(n_components=3, random_state=0).fit(rows(seed))
        model.means_, model.mean_prior_ = model.means_ + offset, model.mean_prior_ + offset
        return model

    near, far = (cs.fuse([fit(seed, offset) for seed in (0, 1)]).model for offset in (0, 1e8))
    np.testing.assert_allclose(far.means_ - 1e8, near.means_, atol=1e-6)
    np.testing.assert_allclose(far.mean_prior_ - 1e8, near.mean_prior_, atol=1e-6)
    np.testing.assert_allclose(far.covariances_, near.covariances_, rtol=1e-6)
    np.testing.assert_allclose(far.weights_, near.weights_, rtol=1e-6)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_states_of_chains_too(covariance_type):
    def fit(seed, offset):
        model = hmm.GaussianHMM(3, covariance_type, random_state=0, n_iter=5, tol=np.inf).fit(rows(seed))
        model.means_ = model.means_ + offset
        return model

    near, far = (
        cs.fuse([fit(seed, offset) for seed in (0, 1)], n_observations=[300, 300]).model for offset in (0, 1e8)
    )
    np.testing.assert_allclose(far.means_ - 1e8, near.means_, atol=1e-6)
    np.testing.assert_allclose(far.covars_, near.covars_, rtol=1e-6)
    np.testing.assert_allclose(far.transmat_, near.transmat_, rtol=1e-6)


@pytest.mark.parametrize("covariance_type", ["full", "diag"])
@pytest.mark.parametrize("robust", [False, True])
def test_what_is_told_of_a_fusion_far_from_zero_is_told_in_its_columns(covariance_type, robust, tmp_path):
    near, far = (
        cs.fuse(
            [mixture(seed, offset, 1.0, covariance_type) for seed in (0, 1, 2)], n_observations=[300] * 3, robust=robust
        )
        for offset in (0.0, 1e8)
    )
    far.save(tmp_path / "far.safetensors")
    again = cs.load(tmp_path / "far.safetensors")
    assert again.digest == far.posterior.digest
    np.testing.assert_allclose(again.parameters()["mean"] - 1e8, near.posterior.parameters()["mean"], atol=1e-6)
    expected, told = (fusion.posterior.to_columns() for fusion in (near, far))
    for name, values in told.items():
        np.testing.assert_allclose(np.array(values) - (1e8 if "mean" in name else 0), expected[name], atol=1e-5)
    if not robust:
        for interval, of_near in zip(far.intervals().rows, near.intervals().rows, strict=True):
            np.testing.assert_allclose(
                [interval.mean - 1e8, interval.low - 1e8, interval.high - 1e8],
                [of_near.mean, of_near.low, of_near.high],
                atol=1e-5,
            )
    scores = [cs.evaluate(fusion, fusion.model, rows(9, offset)).scores for fusion, offset in ((near, 0.0), (far, 1e8))]
    for score, of_near in zip(scores[1], scores[0], strict=True):
        assert score.fused == pytest.approx(of_near.fused, abs=1e-5)


def test_one_hostile_origin_moves_nobody():
    honest = [cs.describe(mixture(seed), n_observations=300) for seed in range(4)]
    hostile = cs.describe(mixture(5, 1e12), n_observations=300)
    with pytest.raises(cs.errors.InputError) as caught:
        cs.fuse([*honest, hostile])
    assert {str(problem).split(":")[0] for problem in caught.value.problems} == {"model 4"}


@pytest.mark.parametrize("offset", [1e5, 1e8, -1e12])
def test_robust_fusion_leaves_out_what_is_too_far_to_calculate_with(offset):
    honest, hostile = [mixture(seed) for seed in range(4)], mixture(5, offset)
    fusion = cs.fuse([*honest, hostile], n_observations=[300] * 5, robust=True)
    assert "model 4" in {record["model"] for record in fusion.details["robust"]["left_out"]}
    assert len(fusion.inputs) == 5
    assert np.abs(fusion.model.means_).max() < 10.0


def test_posteriors_about_an_origin_are_not_packed(tmp_path):
    for seed in (0, 1):
        cs.save(mixture(seed, 1e8), tmp_path / f"site-{seed}.safetensors", n_observations=300)
    result = command("pack", tmp_path, "-o", tmp_path / "packed.safetensors")
    assert result.code == 1
    assert "subtract a constant from its columns" in result.err


def test_a_file_of_a_program_that_does_not_check_says_the_same(tmp_path):
    paths = [tmp_path / f"{name}.safetensors" for name in ("lund", "oslo")]
    for seed, path in enumerate(paths):
        cs.save(mixture(seed), path, n_observations=300)
    with safe_open(paths[1], "numpy") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    natural = tensors["natural"] = tensors["natural"].copy()
    natural[:, 0] += 1.7e9 * -2.0 * natural[:, 2]  # kappa m
    natural[:, 3] += -0.5 * 1.7e9**2 * -2.0 * natural[:, 2]  # of -(W^-1 + kappa m m^T) / 2
    save_file(tensors, paths[1], metadata)
    for name in ("check", "fuse"):
        result = command(name, *paths, *(["-o", tmp_path / "fused.safetensors"] if name == "fuse" else []))
        assert result.code == 1
        assert "oslo.safetensors: components 0, 1, 2 lie so far from zero in column 0 (about 1700000000)" in result.err


def test_centres_alone_have_no_width_to_lose():
    sites = [KMeans(3, n_init=1, init=1.7e9 + CENTRES).fit(rows(seed, 1.7e9)) for seed in (0, 1)]
    about_zero = [KMeans(3, n_init=1, init=CENTRES).fit(rows(seed)) for seed in (0, 1)]
    centres, expected = (np.sort(cs.fuse(own).model.cluster_centers_, axis=0) for own in (sites, about_zero))
    np.testing.assert_allclose(centres - 1.7e9, expected, atol=1e-5)


@pytest.mark.parametrize("spoilt", [{"inverse_scale": [[[1.0, 2.0], [2.0, 1.0]]]}, {"inverse_scale": [-np.eye(2)]}])
def test_what_is_no_covariance_near_zero_is_not_called_far(spoilt):
    family = cs.families.NormalWishart(2)
    natural = family.to_natural(mean=[[1.0, 2.0]], kappa=[3.0], dof=[5.0], **spoilt)
    with pytest.raises(cs.errors.InputError, match=r"^component 0 has a scale matrix that is not positive definite"):
        cs.Posterior(family, natural)


def test_of_a_product_of_columns_the_one_that_is_far_is_named():
    column = cs.families.NormalGamma(1)
    family = cs.families.Product({"dose": column, "time": column})
    parts = {
        name: {"mean": [[mean]], "kappa": [9.0], "shape": [4.0], "rate": [[2.0]]}
        for name, mean in (("dose", 1.0), ("time", 1e9))
    }
    with pytest.raises(
        cs.errors.InputError, match=r"^component 0 lies so far from zero in column 1 \(about 1000000000\)"
    ):
        cs.Posterior(family, family.to_natural(**parts))


def test_reports_draw_sites_of_other_origins_where_they_are(tmp_path):
    """Each file has the origin of its own model."""
    paths = []
    for seed in range(3):
        paths.append(tmp_path / f"site-{seed}.safetensors")
        cs.save(mixture(seed, 1e8 + 50.0 * seed), paths[-1], n_observations=300)
    fusion = cs.fuse(paths)
    fusion.save(tmp_path / "fused.safetensors")
    content = content_of_files(
        SafetensorsFile(tmp_path / "fused.safetensors"), [SafetensorsFile(path) for path in paths]
    )
    places = np.sort([ellipse.centre[0] for ellipse in content.plane.local]) - 1e8
    expected = np.sort(np.concatenate([mixture(seed, 50.0 * seed).means_[:, 0] for seed in range(3)]))
    np.testing.assert_allclose(places, expected, atol=1e-5)


@pytest.mark.parametrize("place", [1e150, 1e300, -1e307])
def test_an_origin_at_the_edge_of_what_a_float_holds_is_named(place):
    honest = [cs.describe(mixture(seed, 1e8), n_observations=300) for seed in range(3)]
    far = replace(honest[0], attached={"origin": replace(honest[0].attached["origin"], values=np.full(2, place))})
    with pytest.raises(cs.errors.InputError) as caught:
        cs.fuse([*honest, far])
    assert {str(problem).split(":")[0] for problem in caught.value.problems} == {"model 3"}


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((2, 2)), np.array(1.0)])
def test_an_origin_is_one_number_a_column(values):
    one = cs.describe(mixture(0, 1e8), n_observations=300)
    axes = ("fixed",) * values.ndim
    with pytest.raises(cs.errors.InputError, match=r"attached array 'origin' has shape .*one number a column"):
        replace(one, attached={"origin": replace(one.attached["origin"], values=values, axes=axes)})
