"""Relabelling: draws of mixtures whose components switch between draws, chains and sites."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import consilience as cs
from consilience.draws.relabel import _close_share, _descend, component_features, relabel_sites

MEANS = np.array([-2.0, -0.5, 1.0, 3.0])
NAMES = ("mu", "sigma", "w")


def mixture(seed=0, *, chains=2, length=500, spread=0.15, prior=0.5, switch="draws", means=MEANS, **told):
    """Draws of a mixture, their labels switched, and the order of each draw (C, T, K)."""
    rng = np.random.default_rng(seed)
    k = len(means)
    values = {
        "mu": means + spread * rng.normal(size=(chains, length, k)),
        "sigma": np.exp(-0.5 + 0.1 * rng.normal(size=(chains, length, k))),
        "w": rng.dirichlet(30.0 + 10.0 * np.arange(k), size=(chains, length)),
    }
    order = np.tile(np.arange(k), (chains, length, 1))
    if switch == "draws":
        order = rng.permuted(order, axis=2)
    elif switch == "chains":
        order = np.tile(rng.permuted(np.tile(np.arange(k), (chains, 1)), axis=1)[:, None], (1, length, 1))
    values = {name: np.take_along_axis(own, order, axis=2) for name, own in values.items()}
    constraints = {"sigma": "positive", "w": "simplex"}
    return cs.Draws(values, prior=prior, constraints=constraints, exchangeable=NAMES, **told), order


@pytest.mark.parametrize("switch", ["draws", "chains", "never"])
def test_components_are_numbered_alike_in_all_draws(switch):
    draws, order = mixture(switch=switch)
    relabelled, found = cs.relabel(draws, details=True)
    new = np.take_along_axis(order, np.argsort(found.labels, axis=2), axis=2)  # true component of each new number
    assert np.all(new == new[0, 0])
    np.testing.assert_allclose(np.sort(relabelled.variables["mu"].mean(axis=(0, 1))), MEANS, atol=0.05)
    assert found.close_share == 0.0
    for name in NAMES:  # nothing but the order of components changes
        np.testing.assert_array_equal(np.sort(relabelled.variables[name]), np.sort(draws.variables[name]))


def test_variables_by_component_are_known_by_the_name_of_their_axis():
    draws = mixture()[0]
    values = {"mu": draws.variables["mu"], "beta": draws.variables["mu"] + 0.0}
    named = cs.Draws(values, dims={"mu": ("component",), "beta": ("school",)})
    relabelled = cs.relabel(named)
    assert np.all(relabelled.variables["mu"].std(axis=(0, 1)) < 0.2)
    np.testing.assert_array_equal(relabelled.variables["beta"], values["beta"])


def test_sites_are_numbered_alike():
    sites = [mixture(seed)[0] for seed in range(3)]
    relabelled = cs.relabel(sites)
    means = [site.variables["mu"].mean(axis=(0, 1)) for site in relabelled]
    np.testing.assert_allclose(means[1:], [means[0]] * 2, atol=0.1)


def test_the_objective_never_rises():
    rng = np.random.default_rng(0)
    features = component_features(mixture(spread=0.8)[0], NAMES).reshape(-1, 4, 6)
    history = _descend(features, rng.permuted(np.tile(np.arange(4), (len(features), 1)), axis=1))[3]
    assert len(history) > 2
    assert np.all(np.diff(history) <= 1e-9 * np.abs(history[0]))


def test_draws_whose_second_best_labels_are_nearly_as_good_are_counted():
    """Against the best and the second-best of all permutations."""
    from itertools import permutations

    features = component_features(mixture(spread=0.9, length=60)[0], NAMES).reshape(-1, 4, 6)
    _, centres, deviations, _ = _descend(features, np.tile(np.arange(4), (len(features), 1)))
    orders = np.array(list(permutations(range(4))))
    costs = 0.5 * np.sum(((features[:, :, None] - centres) / deviations) ** 2, axis=3)  # (N, K, K)
    totals = np.sort(costs[:, np.arange(4), orders].sum(axis=2), axis=1)  # (N, K!)
    share = np.mean(totals[:, 1] - totals[:, 0] < 1.0)
    assert 0 < share < 1
    assert _close_share(features, centres, deviations) == share
    for row, cost in zip(totals, costs, strict=True):
        assert np.isclose(row[0], cost[linear_sum_assignment(cost)].sum())


def test_mixtures_whose_labels_switch_are_fused_when_they_say_so():
    sites = [mixture(seed)[0] for seed in range(2)]
    fusion = cs.fuse({"lund": sites[0], "oslo": sites[1]})
    fused = np.sort(fusion.draws.variables["mu"].mean(axis=(0, 1)))
    np.testing.assert_allclose(fused, MEANS, atol=0.05)
    assert np.all(fusion.draws.variables["mu"].std(axis=(0, 1)) < 0.13)
    np.testing.assert_allclose(fusion.draws.variables["w"].sum(axis=-1), 1.0)
    assert fusion.n_components == 4
    assert fusion.matching.labels.shape == (8,)
    assert fusion.details["relabelling"]["lund"]["switched"] > 0.5
    plain = [cs.Draws(dict(site.variables), prior=0.5, constraints=site.constraints) for site in sites]
    with pytest.raises(cs.errors.InputError, match=r"two modes that are apart.*exchangeable"):
        cs.fuse(plain, "gaussian_product")


def test_what_cannot_be_relabelled_is_refused():
    draws = mixture()[0]
    with pytest.raises(cs.errors.OptionError, match="names no variables by component"):
        cs.relabel(dict(draws.variables))
    with pytest.raises(cs.errors.InputError, match="names nu, which is no variable"):
        cs.relabel(dict(draws.variables), ["nu"])
    with pytest.raises(cs.errors.InputError, match=r"have 3 components in mu, sigma, w, expected 4"):
        cs.relabel([draws, mixture(means=MEANS[:3])[0]])
    with pytest.raises(cs.errors.InputError, match="is ordered, so that its components cannot be switched"):
        cs.relabel({"mu": np.sort(draws.variables["mu"], axis=2)}, ["mu"], constraints={"mu": "ordered"})
    assert len(relabel_sites([draws])[0]) == 1
