"""Diagnostics against ArviZ; separate modes and overlap against cases that are known."""

import warnings

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

import consilience as cs
from consilience.draws.diagnostics import bulk_ess, distant_chains, overlap, rank_rhat, separate_modes
from consilience.draws.evaluate import wasserstein_distances
from tests.tolerances import ROUNDING


@pytest.fixture(scope="module")
def arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return pytest.importorskip("arviz")


def chains(n_chains, length, seed=0):
    """Autoregressive columns with coefficients 0, 0.8, -0.4, 0.97, heavy tails, and one chain that is elsewhere."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(n_chains, length, 6))
    draws, coefficients = np.zeros_like(noise), np.array([0, 0.8, -0.4, 0.97, 0, 0])
    for t in range(1, length):
        draws[:, t] = coefficients * draws[:, t - 1] + noise[:, t]
    draws[:, :, 4] = noise[:, :, 4] / np.abs(noise[:, :, 5])
    draws[0, :, 5] += 0.5
    return draws


@pytest.mark.parametrize(("n_chains", "length"), [(4, 500), (2, 301), (3, 1000), (8, 100)])
def test_rhat_and_effective_sizes_are_those_of_arviz(arviz, n_chains, length):
    draws = chains(n_chains, length)
    rhat = [float(arviz.rhat(draws[:, :, column])) for column in range(6)]
    ess = [float(arviz.ess(draws[:, :, column], method="bulk")) for column in range(6)]
    np.testing.assert_allclose(rank_rhat(draws), rhat, rtol=ROUNDING * 100)
    np.testing.assert_allclose(bulk_ess(draws), ess, rtol=1e-9)


def test_what_does_not_vary_has_no_effective_size():
    draws = np.random.default_rng(0).normal(size=(2, 200, 2))
    draws[:, :, 1] = 3.0
    assert np.isnan(bulk_ess(draws)[1])
    assert np.isfinite(bulk_ess(draws)[0])


def test_skewed_laws_have_one_mode_and_mixtures_two():
    rng = np.random.default_rng(0)
    n = 4000
    columns = {
        "gaussian": rng.normal(size=n),
        "exponential": rng.exponential(size=n),
        "lognormal": np.exp(rng.normal(size=n)),
        "funnel": rng.normal(size=n) * np.exp(1.5 * rng.normal(size=n)),
        "uniform": rng.random(n),
        "shoulder": np.where(rng.random(n) < 0.5, rng.normal(size=n), 2.5 + rng.normal(size=n)),
        "two modes": np.where(rng.random(n) < 0.3, rng.normal(size=n), 4.5 + rng.normal(size=n)),
    }
    found = separate_modes(np.stack(list(columns.values()), axis=1)[None])
    assert [list(columns)[place] for place in found] == ["two modes"]


def test_chains_in_two_places_are_two_modes():
    draws = np.random.default_rng(0).normal(size=(2, 300, 2))
    draws[1, :, 1] += 3.0
    assert separate_modes(draws).tolist() == [1]


def test_the_overlap_is_the_integral_of_the_root_of_both_densities():
    means, variances = np.array([[0.0, 0.0], [1.0, 3.0]]), np.array([[1.0, 1.0], [2.0, 0.5]])
    found = overlap(means, np.stack([np.diag(row) for row in variances]))
    grid = np.linspace(-20, 20, 40001)
    densities = [
        np.exp(-0.5 * (grid - m[1]) ** 2 / v[1]) / np.sqrt(2 * np.pi * v[1])
        for m, v in zip(means, variances, strict=True)
    ]
    np.testing.assert_allclose(found.coefficient, np.sqrt(densities[0] * densities[1]).sum() * 1e-3, rtol=1e-9)
    assert (found.coordinate, found.sites, found.degrees_of_freedom) == (1, (0, 1), 2)
    np.testing.assert_allclose(found.q, 1 / 3 + 9 / 1.5, rtol=1e-12)  # two sites: sum of d^2 / (v + w)


def test_the_distance_is_scipys():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3000, 1)), rng.gamma(2.0, size=(2500, 1))
    np.testing.assert_allclose(
        wasserstein_distances(a, b)[0] * b.std(), wasserstein_distance(a[:, 0], b[:, 0]), rtol=0.01
    )


def test_chains_that_diverge_or_do_not_mix_are_refused_by_name():
    rng = np.random.default_rng(0)
    good = cs.Draws({"beta": rng.normal(size=(4, 300))}, prior=0.5)
    shifted = np.array(good.variables["beta"])
    shifted[2] += 1.2
    diverging = np.zeros((4, 300), dtype=bool)
    diverging[3, :30] = True
    lund = cs.Draws({"beta": rng.normal(size=(4, 300))}, prior=0.5)
    cases = {
        r"oslo: chain 2: did not mix with the others: R-hat is above 1.05 for beta 1\.\d\d": cs.Draws(
            {"beta": shifted}, prior=0.5
        ),
        r"oslo: chain 3: diverged in 10\.0 % of its draws, more than 1 %": cs.Draws(
            {"beta": good.variables["beta"]}, prior=0.5, diverging=diverging
        ),
    }
    for message, draws in cases.items():
        with pytest.raises(cs.errors.InputError, match=message):
            cs.fuse({"lund": lund, "oslo": draws})
        assert cs.fuse({"lund": lund, "oslo": draws}, "gaussian_product", allow_divergent=True).draws.n_draws == 1200


def chains_about(means, length=400, scale=1.0, seed=0):
    return np.array(means, dtype=float)[:, None, :] + scale * np.random.default_rng(seed).normal(
        size=(len(means), length, len(means[0]))
    )


@pytest.mark.parametrize(
    ("means", "columns", "expected"),
    [
        ([[0, 0], [0, 5], [0, 0], [0, 0]], [0, 1], [1]),
        ([[0, 0], [0, -5], [0, 0], [0, 0]], [0, 1], [1]),
        ([[0, 0], [0, 5], [0, 0], [0, 0]], [0], []),
        ([[0, 0], [5, 0], [0, 0], [0, -5]], [0, 1], [1, 3]),
        ([[0, 0], [0.8, 0], [0, 0], [0, 0]], [0, 1], []),
        ([[0, 0], [1.2, 0], [0, 0], [0, 0]], [0, 1], [1]),
        ([[0, 0], [5, 0]], [0], [0, 1]),
    ],
)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_distant_chains_are_those_a_standard_deviation_from_the_median_chain(means, columns, expected, scale):
    draws = chains_about(scale * np.array(means), scale=scale)
    assert distant_chains(draws, columns) == expected


def test_of_chains_that_stand_still_in_a_column_none_divides_by_zero():
    draws = chains_about([[0.0, 0.0], [0.0, 3.0], [0.0, 0.0]], scale=0.0)
    assert distant_chains(draws, [0, 1]) == [1]


@pytest.mark.parametrize("odd", [0, 2, 3])
def test_the_chain_that_lies_elsewhere_is_the_one_that_is_named(odd):
    means = np.zeros((4, 2))
    means[odd, 1] = 5.0
    sites = {
        "lund": cs.Draws({"x": chains_about(means)}, prior=0.5),
        "oslo": cs.Draws({"x": chains_about(np.zeros((4, 2)), seed=1)}, prior=0.5),
    }
    with pytest.raises(
        cs.errors.InputError, match=rf"^lund: chain {odd}: did not mix with the others: R-hat .* for x\[1\]"
    ):
        cs.fuse(sites)


def test_whether_a_column_has_two_modes_does_not_depend_on_those_beside_it():
    rng = np.random.default_rng(0)
    low = rng.random((1, 500, 12)) < rng.uniform(0.1, 0.9, 12)
    draws = rng.normal(size=low.shape) + np.where(low, rng.uniform(0.0, 6.0, 12), 0.0)
    alone = [place for place in range(12) if len(separate_modes(draws[:, :, place : place + 1]))]
    assert separate_modes(draws).tolist() == alone
    assert 0 < len(alone) < 12
