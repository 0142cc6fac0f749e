"""Laws of fusing sparse Gaussian processes; dense formulas and exact processes are the oracles."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
from consilience.posteriors.sparse_gp.adapter import InducingPointAdapter
from consilience.posteriors.sparse_gp.kernels import KERNELS, RBF, make_kernel
from consilience.posteriors.sparse_gp.model import SparseGP
from consilience.posteriors.sparse_gp.product import GPPrior, bayes_product, fused_prior
from tests.copies import COPIES
from tests.posteriors.sparse_gps import (
    CONSTANT,
    KERNEL,
    NEW,
    NOISE,
    assert_same_predictions,
    inputs,
    prior_at,
    relabelled,
    rows,
    site,
    titsias,
)
from tests.tolerances import CLOSE_INDUCING_INPUTS, ROUNDING


def product(models, Z, kernel=KERNEL, weights=None):
    prior = GPPrior(kernel, NOISE, CONSTANT, 1e-6)
    return bayes_product(models, Z, prior, np.ones(len(models)) if weights is None else np.array(weights)).model


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("method", ["average", "spahm"])
def test_with_the_same_inducing_inputs_fusing_is_pooling(name, method):
    kernel, Z = make_kernel(name, 1.5, [1.2, 0.8]), inputs()
    data = [rows(seed) for seed in range(3)]
    known = {"within_variance": (1e-6, 1e-6, 1.0), "between_variance": 1.0, "optimize": False, "shrink": False}
    options = {"spahm": known, "average": {}}
    fusion = cs.fuse([titsias(*one, Z, kernel) for one in data], method, **options[method])
    pooled = titsias(*(np.concatenate(parts) for parts in zip(*data, strict=True)), Z, kernel)
    assert fusion.n_components == len(Z)
    assert_same_predictions(fusion.model, pooled)
    order = np.lexsort(fusion.model.inducing_inputs.T), np.lexsort(Z.T)
    assert_allclose(fusion.model.mean[order[0]], pooled.mean[order[1]], rtol=1e-8)
    covariance = pooled.covariance[np.ix_(order[1], order[1])]
    assert_allclose(fusion.model.covariance[np.ix_(order[0], order[0])], covariance, rtol=1e-6, atol=1e-8)
    assert fusion.model.n_observations == 180


@pytest.mark.parametrize("noise", [NOISE, 1e-5])
def test_inducing_inputs_that_nearly_coincide_do_not_spoil_the_pooled_posterior(noise):
    Z = np.vstack([inputs(), inputs() + 1e-7, inputs() + 1e-4])
    first, second = rows(0, 300), rows(1, 300)
    pooled = titsias_whitened(np.vstack([first[0], second[0]]), np.concatenate([first[1], second[1]]), Z, noise)
    fused = product([titsias_whitened(*one, Z, noise) for one in (first, second)], Z)
    assert_same_predictions(fused, pooled, error=1e-6)


def titsias_whitened(X, y, Z, noise):
    """As ``titsias``, where explicit inverses lose their digits."""
    factor = np.linalg.cholesky(prior_at(KERNEL, Z))
    half = np.linalg.solve(factor, KERNEL.matrix(Z, X))
    inverse = np.linalg.inv(np.eye(len(Z)) + half @ half.T / noise)
    return SparseGP.whitened(
        Z, inverse @ half @ (y - CONSTANT) / noise, inverse, KERNEL, noise=noise, constant=CONSTANT
    )


@COPIES
def test_copies_count_their_data_as_often():
    Z, data = inputs(), rows(0)
    fused = cs.fuse([titsias(*data, Z)] * 3, "kmeans").model
    expected = titsias(*data, Z, noise=NOISE / 3)
    assert_same_predictions(fused, expected)
    assert fused.noise == NOISE


def test_weights_count_data_and_no_weight_counts_none():
    Z = inputs()
    a, b, c = (site(seed, Z) for seed in range(3))
    assert_same_predictions(product([a, b], Z, weights=[2.0, 1.0]), product([a, a, b], Z))
    assert_same_predictions(product([a, b, c], Z, weights=[1.0, 1.0, 0.0]), product([a, b], Z))
    silent = cs.fuse([a, b, replace(c, kernel=RBF(1e3, [50.0, 50.0]))], "kmeans", weights=[1, 1, 0])
    assert silent.model.kernel.same_as(KERNEL)


def test_the_product_is_the_dense_natural_formula():
    """Lam = K^-1 + sum_j (Lam_j - K^-1), with every site's posterior re-expressed by the dense formulas."""
    Z, models = inputs(9, 6), [site(seed, inputs(seed)) for seed in range(3)]
    K = prior_at(KERNEL, Z)
    precision, linear = np.linalg.inv(K), np.zeros(6)
    for gp in models:
        A = KERNEL.matrix(Z, gp.inducing_inputs) @ np.linalg.inv(prior_at(KERNEL, gp.inducing_inputs))
        own = np.linalg.inv(K - A @ (prior_at(KERNEL, gp.inducing_inputs) - gp.covariance) @ A.T)
        precision, linear = precision + own - np.linalg.inv(K), linear + own @ A @ (gp.mean - CONSTANT)
    fused = product(models, Z)
    assert_allclose(fused.mean, CONSTANT + np.linalg.solve(precision, linear), rtol=1e-7)
    assert_allclose(fused.covariance, np.linalg.inv(precision), rtol=1e-6, atol=1e-8)


def test_factors_of_other_kernels_and_constants_are_taken_at_the_sites_own_inducing_inputs():
    """Brute force: the joint normal of values at Z and Z_j under the fused prior, times the factor, marginalised."""
    shared, own = RBF(1.2, [1.0, 1.0]), RBF(1.5, [1.4, 0.8])
    Z, gp = inputs(9, 6), site(0, inputs(), kernel=own, constant=0.2)
    precision = np.linalg.inv(gp.covariance) - np.linalg.inv(prior_at(own, gp.inducing_inputs))
    linear = np.linalg.solve(gp.covariance, gp.mean - 0.2) + precision @ np.full(
        9, 0.2
    )  # of values, not of differences
    both = np.vstack([Z, gp.inducing_inputs])
    joint = np.linalg.inv(prior_at(shared, both))
    natural = joint @ np.full(15, CONSTANT)
    joint[6:, 6:] += precision
    natural[6:] += linear
    covariance = np.linalg.inv(joint)
    fused = product([gp], Z, shared)
    assert_allclose(fused.mean, (covariance @ natural)[:6], rtol=1e-6)
    assert_allclose(fused.covariance, covariance[:6, :6], rtol=1e-5, atol=1e-8)


def test_numbering_and_order_of_arrival_change_nothing():
    models = [site(seed, inputs(seed)) for seed in range(3)]
    orders = [np.random.default_rng(seed).permutation(9) for seed in range(3)]
    expected = cs.fuse(models, "kmeans", n_components=12)
    others = [relabelled(gp, order) for gp, order in zip(models, orders, strict=True)]
    found = cs.fuse([others[2], others[0], others[1]], "kmeans", n_components=12)
    assert found.posterior.natural.tobytes() == expected.posterior.natural.tobytes()
    for name, attached in expected.posterior.attached.items():
        assert found.posterior.attached[name].values.tobytes() == attached.values.tobytes(), name


def test_disjoint_regions_keep_each_what_its_site_knows():
    near = titsias(*rows(0), inputs())
    X, y = rows(1, low=(28.0, -2.0), high=(32.0, 2.0))
    far = titsias(X, y, inputs() + np.array([30.0, 0.0]))
    fusion = cs.fuse([near, far], "concatenate")
    assert fusion.n_components == 18
    assert_same_predictions(fusion.model, near)
    assert_same_predictions(fusion.model, far, X=X)


def test_the_product_is_no_surer_than_all_data_and_the_naive_product_is():
    """Without the prior divided out J - 1 times it counts J times: far from the data that alone narrows predictions."""
    data, Z = [rows(seed, 20) for seed in range(4)], inputs(0, 12)
    X, y = (np.concatenate(parts) for parts in zip(*data, strict=True))
    fused = product([titsias(*one, inputs(seed)) for seed, one in enumerate(data)], Z)
    exact = KERNEL.matrix(X) + NOISE * np.eye(len(y))
    new = rows(9)[0]
    cross = KERNEL.matrix(X, new)
    pooled = KERNEL.variance - np.einsum("nm,nm->m", cross, np.linalg.solve(exact, cross))
    assert np.all(fused.predict(new)[1] >= pooled - CLOSE_INDUCING_INPUTS)
    lam = sum(np.linalg.inv(titsias(*one, Z).covariance) for one in data)
    naive = replace(fused, covariance=np.linalg.inv(lam))
    right = product([titsias(*one, Z) for one in data], Z)
    outside = NEW + np.array([3.5, 0.0])
    assert np.all(naive.predict(outside)[1] < right.predict(outside)[1])


def test_an_inducing_input_given_twice_is_as_good_as_once():
    a, b = site(0, inputs()), site(1, inputs())
    fusion = cs.fuse([a, b], "concatenate")  # every inducing input is there twice
    assert fusion.n_components == 18
    assert_same_predictions(fusion.model, product([a, b], inputs()), error=1e-4)  # each copy has a jitter of its own


def test_one_inducing_input_is_enough():
    a, b = site(0, inputs(0, 1)), site(1, inputs(1, 1))
    for fusion in (cs.fuse([a, b], "average"), cs.fuse([a, b], "concatenate"), cs.fuse([a, b], "kl", n_components=1)):
        assert np.all(np.isfinite(fusion.model.predict(NEW)))


def test_planted_inducing_inputs_are_found_again_by_spahm():
    planted, rng = np.array([[x, y] for x in (-1.5, 0.0, 1.5) for y in (-1.5, 0.0, 1.5)]), np.random.default_rng(0)
    models = [site(seed, planted + 0.02 * rng.normal(size=planted.shape)) for seed in range(4)]
    fusion = cs.fuse(models, "spahm", mass=9.0)
    assert fusion.n_components == 9
    for number in range(4):
        assert sorted(fusion.matching.of_site(number)) == list(range(9))
    found = fusion.model.inducing_inputs
    assert np.linalg.norm(found[:, None] - planted, axis=2).min(axis=1).max() < 0.05
    data = [rows(seed) for seed in range(4)]
    pooled = titsias(*(np.concatenate(parts) for parts in zip(*data, strict=True)), found)
    assert_same_predictions(fusion.model, pooled, error=0.1)  # the jitter of inducing inputs loses a little


def test_spahm_is_what_is_recommended():
    assert cs.fuse([site(0, inputs()), site(1, inputs())]).provenance["method"] == "spahm"


def test_a_fusion_and_its_file_are_the_same_model_and_can_be_fused_again(tmp_path):
    fusion = cs.fuse([site(0, inputs()), site(1, inputs(1))], "kmeans", n_components=10)
    fusion.save(tmp_path / "fused.safetensors")
    model = cs.rebuild(cs.load(tmp_path / "fused.safetensors"))
    assert_same_predictions(model, fusion.model, error=ROUNDING)
    assert np.array_equal(fusion.posterior.natural[:, -1], model.mean)
    again = cs.fuse([model, site(2, inputs(2))], "concatenate")
    assert again.model.n_observations == 180


def test_a_described_process_is_rebuilt_to_the_last_bit(tmp_path):
    gp = site(0, inputs(), shift=np.array([1.0, 2.0, 3.0]), scale=np.array([2.0, 2.0, 5.0]))
    cs.save(gp, tmp_path / "site.safetensors", features=cs.Features(names=("a", "b", "target")))
    found = cs.rebuild(cs.load(tmp_path / "site.safetensors"))
    for name in ("inducing_inputs", "mean", "covariance", "shift", "scale"):
        assert getattr(found, name).tobytes() == getattr(gp, name).tobytes(), name
    assert found.kernel.same_as(gp.kernel)
    assert (found.noise, found.constant, found.n_observations, found.jitter) == (NOISE, CONSTANT, 60.0, 1e-6)


def test_numbers_of_observations_can_be_told_and_weigh_the_kernel_parameters():
    a, b = site(0, inputs()), replace(site(1, inputs()), kernel=RBF(3.0, [1.2, 0.8]))
    fused = cs.fuse([replace(a, n_observations=0), replace(b, n_observations=0)], "average", n_observations=[300, 100])
    assert_allclose(fused.model.kernel.variance, 1.5**0.75 * 3.0**0.25, rtol=ROUNDING)
    assert fused.model.n_observations == 400
    unknown = cs.fuse([replace(a, n_observations=0), b], "average").model
    assert_allclose(unknown.kernel.variance, np.sqrt(1.5 * 3.0), rtol=ROUNDING)
    assert unknown.n_observations == 0


def test_noise_that_a_site_does_not_know_has_no_part():
    a, b = site(0, inputs()), site(1, inputs())
    assert fused_prior([a, replace(b, noise=0.0)], np.ones(2), ("a", "b")).noise == NOISE
    assert fused_prior([replace(a, noise=0.0), replace(b, noise=0.0)], np.ones(2), ("a", "b")).noise == 0.0


# -- What a fusion says: a fused process follows from all sites together, whichever of them have an inducing input.


@pytest.mark.parametrize("method", ["spahm", "kl", "kmeans", "dp", "concatenate"])
def test_details_are_those_of_matched_components_but_for_a_minority(method, monkeypatch):
    sites = [site(seed, inputs() + 0.01 * seed) for seed in range(3)] + [site(3, inputs(5))]
    options = {"n_components": 12} if method in ("kl", "kmeans") else {}
    fusion = cs.fuse(sites, method, rng=0, **options)
    monkeypatch.setattr(InducingPointAdapter, "recombines", False)
    matched = cs.fuse(sites, method, rng=0, **options)
    assert ("minority" in matched.details) == (method in ("spahm", "kl", "kmeans"))
    assert matched.details["average"]["name"] == "barycenter"
    average = fusion.details["average"]
    assert average["name"] == "product"
    assert "from all sites' models together" in average["reason"]
    expected = {name: value for name, value in matched.details.items() if name != "minority"} | {"average": average}
    assert fusion.details == expected
    result = {name: value for name, value in matched.provenance["result"].items() if name != "minority"}
    assert fusion.provenance["result"] == result | {"average": average}


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"minority": "drop"}, "minority='drop'"),
        ({"robust": "trim"}, "robust='trim'"),
        ({"robust": "median"}, "robust="),
    ],
)
def test_components_of_a_process_have_no_minority_to_drop_and_no_copies_to_trim(option, text):
    sites = [site(seed, inputs()) for seed in range(3)]
    (problem,) = cs.check(sites, "kmeans", n_components=9, **option)
    assert problem.startswith(text)
    assert problem.text.endswith("follows from all sites' models together, not from copies of components")
    assert problem.remedy == "leave it out"
    with pytest.raises(cs.errors.InputError, match="follows from all sites' models together"):
        cs.fuse(sites, "kmeans", n_components=9, **option)


# -- What cannot be fused.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel": RBF(1e3, [1.2, 0.8])}, r"model 1: has variance 1e\+03, more than a factor of 7.4 from the mean"),
        ({"kernel": RBF(1.5, [1.2, 900.0])}, "model 0: has length-scale 1 0.8, more than a factor of 7.4"),
        ({"noise": 1e3}, r"model 1: has noise 1e\+03, more than a factor .* agree on kernel parameters and noise"),
    ],
)
def test_kernels_that_differ_beyond_reason_are_refused(changes, message):
    with pytest.raises(cs.errors.InputError, match=message):
        cs.fuse([site(0, inputs()), replace(site(1, inputs()), **changes)], "concatenate")


def test_what_must_agree_is_checked_beforehand():
    gp = site(0, inputs())
    other_kernel = titsias(*rows(1), inputs(), make_kernel("matern32", 1.5, [1.2, 0.8]))
    assert cs.check([gp, other_kernel], "concatenate") == [
        "model 1: has kernel 'matern32', expected 'rbf' as in model 0 [E-MISMATCH]"
    ]
    scaled, otherwise = (replace(gp, scale=np.array([2.0, 2.0, scale])) for scale in (3.0, 4.0))
    (problem,) = cs.check([scaled, otherwise], "concatenate")
    assert problem.startswith("model 1: was trained on columns scaled by other numbers")
    X, y = rows(0)
    narrow = titsias(X[:, :1], y, inputs()[:, :1], RBF(1.5, [1.2]))
    assert any("expected Point(dim=3)" in problem for problem in cs.check([gp, narrow], "concatenate"))
    with pytest.raises(cs.errors.InputError, match="model 1: is standardised by other constants than model 0"):
        cs.fuse([gp, scaled], "concatenate")  # one of them states no scaling, which `check` takes for unknown


@COPIES
def test_a_site_wider_than_its_prior_says_nothing_there_and_is_told_of():
    Z = inputs(0, 3)
    wide = SparseGP(Z, np.full(3, CONSTANT), 2.0 * prior_at(KERNEL, Z), KERNEL, noise=NOISE, constant=CONSTANT)
    with pytest.warns(UserWarning, match="in 6 directions a site's posterior is wider than its prior"):
        fused = cs.fuse([wide, wide], "average").model
    assert_allclose(fused.covariance, prior_at(KERNEL, fused.inducing_inputs), rtol=1e-8)


@pytest.mark.parametrize("samples", [0, -3, float("nan")])
def test_impossible_numbers_of_samples_are_refused(samples):
    with pytest.raises(cs.errors.InputError, match="n_observations: expected a positive number"):
        cs.describe(site(0, inputs()), n_observations=samples)


def test_posteriors_of_another_family_or_without_their_arrays_are_refused():
    posterior = cs.describe(site(0, inputs()))
    with pytest.raises(cs.errors.InputError, match="lacks 'variance', which rebuilding needs"):
        cs.rebuild(replace(posterior, attached={}))
    family = cs.families.Gamma()
    other = cs.Posterior(family, family.to_natural(shape=[2.0], rate=[1.0]), source=posterior.source)
    with pytest.raises(cs.errors.InputError, match="has point components, found Gamma"):
        cs.rebuild(other)
