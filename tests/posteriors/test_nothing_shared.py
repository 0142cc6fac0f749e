"""Laws of ensembles without structure: sites that share nothing, and sites whose components do not separate."""

import numpy as np
import pytest
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import consilience as cs
from consilience.posteriors.evidence import selection
from consilience.posteriors.evidence.search import is_same_partition
from consilience.posteriors.evidence.selection import N_ERRORS, nearness_score
from consilience.posteriors.evidence.virtual_loss import VirtualLoss
from tests.posteriors import planted

pytestmark = pytest.mark.covering(2)

N = 150


def unrelated_sites(seed, n_sites, per_site, dim, spread):
    """Sites of components that are all drawn from one normal law; none is of two sites."""
    rng, family = np.random.default_rng([seed, 77]), planted.family_named("normal-wishart", dim)
    centres = spread * rng.normal(size=(n_sites, per_site, dim))
    return [planted.conjugate_site(family, [centre + rng.normal(size=(N, dim)) for centre in own]) for own in centres]


def places(seed, n_sites, per_site, dim, noise):
    """A loss of copies of `per_site` places that differ by `noise` widths (None: places of their own), and owners."""
    rng, shape = np.random.default_rng([seed, 78]), (n_sites, per_site, dim)
    shared = np.broadcast_to(4.0 * rng.normal(size=(per_site, dim)), shape)
    means = 4.0 * rng.normal(size=shape) if noise is None else shared + noise * rng.normal(size=shape)
    n_rows = n_sites * per_site
    loss = VirtualLoss(means.reshape(n_rows, dim), np.ones((n_rows, dim)), np.ones(n_rows))
    return loss, np.repeat(np.arange(n_sites), per_site)


# -- Sites that share nothing.


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n_sites", "per_site", "dim", "spread"), [(5, 3, 8, 3.0), (6, 2, 5, 3.0), (5, 2, 6, 4.0)])
def test_sites_that_share_nothing_keep_all(seed, n_sites, per_site, dim, spread):
    """Places far apart by chance are far apart; chance groups of them would lose nats."""
    fusion = cs.fuse(unrelated_sites(seed, n_sites, per_site, dim, spread))
    assert n_sites * per_site - 1 <= fusion.n_components <= n_sites * per_site
    assert fusion.verdict.loss < 0.1
    assert fusion.verdict.code == "nothing_shared"


def test_some_chance_groups_would_have_been_made():
    """What the number of components was before chance was asked for; or this file tests nothing."""
    assert any(
        cs.fuse(unrelated_sites(seed, 5, 3, 8, 3.0)).details["number"].get("shares_nothing") for seed in range(3)
    )


@pytest.mark.parametrize("seed", range(2))
def test_sites_that_share_nothing_give_one_answer(seed):
    sites = unrelated_sites(seed, 5, 3, 8, 3.0)
    moved = planted.moved_by_rounding(sites, seed)
    here, there = cs.fuse(sites), cs.fuse(moved)
    assert is_same_partition(here.matching.labels, there.matching.labels)
    assert cs.fuse(sites[::-1]).n_components == here.n_components


def test_of_more_components_than_are_searched_nothing_is_kept_apart(monkeypatch):
    """The matching without heterogeneity has about as many groups as components: its cost is the square of them."""
    monkeypatch.setattr(selection, "MAX_SEARCHED_ROWS", 14)
    fusion = cs.fuse(unrelated_sites(0, 5, 3, 8, 3.0))
    assert "shares_nothing" not in fusion.details["number"]
    assert fusion.verdict.loss > 0.1  # and the verdict says so


@pytest.mark.parametrize("dim", [2, 3, 8])
def test_the_score_of_sites_that_share_nothing_is_about_zero(dim):
    scores = [nearness_score(*places(seed, 5, 3, dim, None)) for seed in range(40)]
    assert abs(np.mean(scores)) < 1.0
    assert sum(score < -N_ERRORS for score in scores) <= 4


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("n_sites", "dim"), [(4, 2), (4, 8), (200, 4)])
def test_copies_are_nearer_than_chance(n_sites, dim, noise):
    for seed in range(3):
        assert nearness_score(*places(seed, n_sites, 5, dim, noise)) < -N_ERRORS


def test_the_score_depends_on_no_linear_map_that_keeps_the_metric():
    loss, owner = places(0, 5, 3, 4, 1.0)
    scale = np.array([1e-3, 1.0, 7.0, 1e4])
    scaled = VirtualLoss(loss.means * scale + 5.0, loss.covariances * scale**2, loss.weights)
    full = VirtualLoss(loss.means, loss.covariances[:, :, None] * np.eye(4), loss.weights)
    for other in (scaled, full):
        assert nearness_score(other, owner) == pytest.approx(nearness_score(loss, owner), rel=1e-6)


@pytest.mark.parametrize(("n_sites", "per_site", "dim"), [(5, 3, 1), (5, 1, 4)])
def test_turns_say_nothing_of_one_dimension_or_of_single_components(n_sites, per_site, dim):
    assert nearness_score(*places(0, n_sites, per_site, dim, 0.1)) is None


# -- Components that do not separate.


def fits(seed, apart, n_components=3, dim=2, n=120, n_sites=8):
    """Fits of too many components to two groups so far apart."""
    rng, models = np.random.default_rng([seed, 79]), []
    for site in range(n_sites):
        centres = np.zeros((n, dim))
        centres[: n // 2, 0] = apart
        kind = (GaussianMixture, BayesianGaussianMixture)[seed % 2]
        model = kind(n_components, random_state=site) if kind is GaussianMixture else kind(n_components=n_components)
        models.append(model.set_params(random_state=site, max_iter=300).fit(centres + rng.normal(size=(n, dim))))
    return models, [n] * n_sites


@pytest.mark.parametrize("seed", range(4))
def test_components_of_one_mode_become_one_and_the_verdict_says_why(seed):
    models, n = fits(seed, apart=0.0)
    fusion = cs.fuse(models, n_observations=n)
    assert fusion.n_components == 1
    assert fusion.verdict.loss < 0.1
    if fusion.details["number"].get("nothing_separates"):
        assert fusion.verdict.code == "nothing_separates"
        assert "lie so close together" in fusion.verdict.text


def test_not_all_fits_of_one_mode_are_found_by_pairs():
    numbers = [cs.fuse(fits(seed, apart=0.0)[0], n_observations=[120] * 8).details["number"] for seed in range(4)]
    assert any(number.get("nothing_separates") for number in numbers)


@pytest.mark.parametrize("seed", range(4))
def test_two_modes_stay_two(seed):
    models, n = fits(seed, apart=5.0, n_components=2)
    fusion = cs.fuse(models, n_observations=n)
    assert fusion.n_components == 2
    assert "nothing_separates" not in fusion.details["number"]


def test_whole_sites_are_not_taken_where_they_lose():
    """A ring of rows has one place and one mode of a Gaussian, and no Gaussian describes it."""
    rng, models = np.random.default_rng(5), []
    for site in range(6):
        angles = rng.uniform(0, 2 * np.pi, 400)
        rows = 6.0 * np.stack([np.cos(angles), np.sin(angles)], axis=1) + 0.5 * rng.normal(size=(400, 2))
        models.append(GaussianMixture(6, random_state=site).fit(rows))
    assert cs.fuse(models, n_observations=[400] * 6).n_components > 3


def test_states_that_must_stay_apart_do():
    models, n = fits(0, apart=0.0)
    assert "nothing_separates" not in cs.fuse(models, "kl", exclusive=True, n_observations=n).details["number"]
