"""Columns far from zero, such as timestamps: fused to the stated digits, or refused with a constant to subtract."""

import numpy as np
import pandas as pd
import pytest
from hmmlearn import hmm
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.cluster import KMeans
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import consilience as cs
from consilience.families.linalg import MAX_WIDTH_ERROR
from tests.cli.running import command

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
@pytest.mark.parametrize(("offset", "scale"), [(1e4, 1.0), (1e6, 1.0), (1.7e9, 1e4), (1.0, 1e-5), (0.0, 1e-8)])
def test_what_is_fused_is_what_is_fused_about_zero(covariance_type, offset, scale):
    expected, model = fused(covariance_type=covariance_type), fused(offset, scale, covariance_type)
    means, covariances = (model.means_ - offset) / scale, model.covariances_ / scale**2
    order = [int(np.argmin(((means - mean) ** 2).sum(axis=1))) for mean in expected.means_]
    width_error = 4 * np.finfo(float).eps * (offset / scale) ** 2 + 1e-9
    assert width_error < 4 * MAX_WIDTH_ERROR
    np.testing.assert_allclose(means[order], expected.means_, atol=1e-6)
    of_groups = covariances if covariance_type == "tied" else covariances[order]
    np.testing.assert_allclose(of_groups, expected.covariances_, atol=4 * width_error)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize(("offset", "scale"), [(1e7, 1.0), (1e8, 1.0), (1.7e9, 1.0), (-1.7e9, 1e-2), (1.0, 1e-8)])
def test_what_is_lost_is_refused_with_a_constant_that_helps(covariance_type, offset, scale):
    with pytest.raises(cs.errors.InputError) as caught:
        fused(offset, scale, covariance_type)
    problems = caught.value.problems
    assert len(problems) == 2  # one line a site
    for problem in problems:
        assert "so far from zero in column 0" in problem
        assert "the same at all sites" in problem.remedy
    constant = float(str(problems[0]).split("a constant such as ")[1].split()[0])
    fused(offset - constant, scale, covariance_type)  # followed literally


def test_the_column_that_is_far_is_named_alone(tmp_path):
    table = pd.DataFrame(rows(0), columns=["dose", "time"])
    table["time"] += 1.7e9
    model = GaussianMixture(3, random_state=0).fit(table)
    with pytest.raises(cs.errors.InputError, match=r"in column 'time' \(about 17\d{8}\) that float64") as caught:
        cs.save(model, tmp_path / "lund.safetensors", n_observations=300)
    assert "dose" not in str(caught.value)
    table["time"] -= 1.7e9
    cs.save(GaussianMixture(3, random_state=0).fit(table), tmp_path / "lund.safetensors", n_observations=300)


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


@pytest.mark.parametrize(
    "fit",
    [
        lambda x: BayesianGaussianMixture(n_components=3, random_state=0).fit(x),
        lambda x: make_pipeline(StandardScaler(), GaussianMixture(3, random_state=0)).fit(x),
        lambda x: hmm.GaussianHMM(3, "full", random_state=0, n_iter=5).fit(x),
    ],
    ids=["variational", "pipeline", "hmm"],
)
def test_every_model_with_widths_says_it(fit):
    with pytest.raises(
        cs.errors.InputError, match=r"^components? [\d, ]+ lies? so far from zero in column 0 \(about 30000"
    ):
        cs.describe(fit(rows(0, 3e7)), min_count=0)


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
