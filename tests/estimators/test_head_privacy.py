"""Laws of the analytic Gaussian mechanism on the sums of heads."""

import numpy as np
import pytest
from scipy.stats import norm

import consilience as cs
from consilience.errors import InputError, OptionError
from consilience.estimators.heads.model import clip_norms
from consilience.estimators.heads.privacy import SENSITIVITY, gaussian_delta, gaussian_scale
from consilience.estimators.statistics import NOISE, ROWS, SUMS, TOTAL

pytestmark = pytest.mark.covering(2)

# Balle and Wang (2018), recomputed in exact arithmetic of the two normal probabilities: s / D at delta = 1e-5.
SCALES = {0.1: 30.75, 0.5: 7.032, 1.0: 3.731, 2.0: 1.994, 8.0: 0.60023}


def unit_rows(seed, n=1500, d=12, classes=4):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    X = 1.5 * rng.normal(size=(classes, d))[y] + rng.normal(size=(n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_the_scale_is_a_root_of_delta_and_falls_in_epsilon_and_in_delta(epsilon, delta):
    scale = gaussian_scale(epsilon, delta, 2.0)
    assert gaussian_delta(scale, epsilon, 2.0) == pytest.approx(delta, rel=1e-9)
    assert gaussian_scale(1.1 * epsilon, delta, 2.0) < scale
    assert gaussian_scale(epsilon, 1.1 * delta, 2.0) < scale
    direct = norm.cdf(1 / scale - epsilon * scale / 2) - np.exp(epsilon) * norm.cdf(-1 / scale - epsilon * scale / 2)
    assert direct == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize("epsilon", SCALES)
def test_scales_are_the_published_ones(epsilon):
    assert gaussian_scale(epsilon, 1e-5) == pytest.approx(SCALES[epsilon], rel=2e-4)


def test_no_row_changes_what_is_sent_by_more_than_the_sensitivity():
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(500):
        row = clip_norms(rng.normal(size=(1, 5)) * rng.uniform(0.1, 30), 2.0)[0]
        products = np.outer(row, row)
        # The message is N, B and the products on and above the diagonal, those above it scaled by sqrt 2.
        upper = np.sqrt(2.0) * products[np.triu_indices(5, 1)]
        largest = max(largest, np.linalg.norm(np.concatenate([[1.0], row, np.diagonal(products), upper])))
    assert largest <= SENSITIVITY + 1e-12
    assert largest > 0.999 * SENSITIVITY


def test_noise_has_the_stated_deviations():
    noise = cs.learners.GaussianMechanism(epsilon=1.0, delta=1e-5)
    rng = np.random.default_rng(1)
    counts, sums, products = noise.disturb(np.full(50, 1e6), np.zeros((50, 60)), np.zeros((60, 60)), rng)
    assert np.std(counts - 1e6) == pytest.approx(noise.scale, rel=0.35)
    assert np.std(sums) == pytest.approx(noise.scale, rel=0.05)
    assert np.array_equal(products, products.T)
    assert np.std(np.diagonal(products)) == pytest.approx(noise.scale, rel=0.3)
    assert np.std(products[np.triu_indices(60, 1)]) == pytest.approx(noise.scale / np.sqrt(2), rel=0.06)


def test_noisy_sums_of_sites_add_up_as_raw_sums():
    noise = cs.learners.GaussianMechanism(epsilon=3.0)
    heads = [
        cs.learners.Head().fit(*unit_rows(seed), classes=4, noise=noise, rng=seed, min_count=0) for seed in range(3)
    ]
    fused = cs.fuse(heads, min_count=0).statistics
    sites = [one.statistics for one in heads]
    np.testing.assert_allclose(fused.counts[ROWS], sum(site.counts[ROWS] for site in sites))
    np.testing.assert_allclose(fused.counts[SUMS], sum(site.counts[SUMS] for site in sites), atol=1e-9)
    np.testing.assert_allclose(
        fused.moments[TOTAL].raw_scatter(), sum(site.moments[TOTAL].raw_scatter() for site in sites), atol=1e-8
    )
    assert float(fused.counts[NOISE]) == pytest.approx(3 * noise.scale**2)


@pytest.mark.parametrize("kind", ["ridge", "lda", "bayesian"])
def test_accuracy_grows_with_epsilon_to_that_without_noise(kind):
    X, y = unit_rows(5, n=6000)
    plain = np.mean(cs.learners.Head(kind).fit(X, y).predict(X) == y)
    scores = []
    for epsilon in (0.05, 50.0):
        noise = cs.learners.GaussianMechanism(epsilon=epsilon)
        fitted = [cs.learners.Head(kind).fit(X, y, classes=4, noise=noise, rng=seed, min_count=0) for seed in range(3)]
        scores.append(np.mean([one.predict(X) == y for one in fitted]))
    assert scores[0] < scores[1]
    assert scores[1] > plain - 0.02


def test_prediction_clips_as_the_sums_were_and_the_verdict_tells_of_noise(tmp_path):
    X, y = unit_rows(6)
    noise = cs.learners.GaussianMechanism(epsilon=8.0, norm_bound=2.0)
    heads = {
        name: cs.learners.Head().fit(3 * X, y, classes=4, noise=noise, rng=seed) for seed, name in enumerate(("a", "b"))
    }
    fusion = cs.fuse(heads)
    assert fusion.verdict.code == "private"
    assert fusion.verdict.harmless is None
    assert "(8, 1e-05) differential privacy of each row" in fusion.verdict.text
    np.testing.assert_allclose(
        fusion.model.decision_function(3 * X), fusion.model.decision_function(300 * X), atol=1e-12
    )
    fusion.save(tmp_path / "fused.safetensors")
    assert cs.load(tmp_path / "fused.safetensors").digest == fusion.statistics.digest
    other = cs.learners.Head().fit(X, y, classes=4, noise=cs.learners.GaussianMechanism(epsilon=8.0), rng=1)
    with pytest.raises(InputError, match=r"took sums with norm_bound 1\.0, expected 2\.0"):
        cs.fuse({"a": heads["a"], "b": other})
    with pytest.raises(InputError, match="has noise"):
        cs.learners.align(heads)
    fusion.report(tmp_path / "page.html")
    assert "differential privacy" in (tmp_path / "page.html").read_text()


def test_two_fits_with_noise_differ_unless_somebody_gives_a_seed():
    X, y = unit_rows(7)
    noise = cs.learners.GaussianMechanism(epsilon=5.0)

    def fitted(**seed):
        return cs.learners.Head().fit(X, y, classes=4, noise=noise, **seed).statistics.digest

    assert fitted() != fitted()
    assert fitted(rng=3) == fitted(rng=3)


@pytest.mark.parametrize("bad", [{"epsilon": 0.0}, {"epsilon": 1.0, "delta": 1.0}, {"epsilon": 1.0, "norm_bound": 0.0}])
def test_numbers_out_of_range_are_refused(bad):
    with pytest.raises(OptionError):
        cs.learners.GaussianMechanism(**bad)


def test_noise_larger_than_every_class_is_refused():
    X, y = unit_rows(8, n=8)
    refused = 0
    for seed in range(20):
        try:
            cs.learners.Head().fit(X, y, classes=4, noise=cs.learners.GaussianMechanism(0.01), rng=seed, min_count=1e6)
        except InputError as error:
            refused += "noise" in str(error)
    assert refused == 20
