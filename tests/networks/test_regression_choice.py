"""The default of networks that predict numbers: the ensemble by densities of inputs, and the choice by it."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import nn

import consilience as cs
from consilience.networks.choice.sites import Sites
from consilience.networks.choice.teacher import VARIANCE_SHARE, Teacher, site_posterior
from consilience.networks.descriptions.description import Moments

CENTRES = {"lund": (-2.0, 0.0), "oslo": (2.0, 0.0), "turku": (0.0, 2.5)}
"""Where each site's inputs are; what follows from them is the same everywhere."""


def target_of(x):
    return torch.sin(1.5 * x[:, :1]) + 0.5 * x[:, 1:].square()


def rows_of(centre, n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.tensor(centre) + 0.8 * torch.randn(n, 2, generator=generator)
    return x, target_of(x) + 0.1 * torch.randn(n, 1, generator=generator)


def train(x, y, start):
    with torch.random.fork_rng():
        torch.manual_seed(start)
        net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(300):
            optimizer.zero_grad()
            (net(x) - y).square().mean().backward()
            optimizer.step()
    return net.eval()


def explained(model, x):
    """Return R^2 on inputs."""
    target = target_of(x)
    with torch.no_grad():
        return 1.0 - float((model(x) - target).square().mean() / target.var())


@pytest.fixture(scope="module", params=["one start", pytest.param("starts of their own", marks=pytest.mark.slow)])
def described(request):
    sites = {}
    for number, (name, centre) in enumerate(CENTRES.items()):
        x, y = rows_of(centre, 400, number)
        net = train(x, y, number if request.param == "starts of their own" else 0)
        sites[name] = cs.describe(net, (x, y))
    return sites


@pytest.fixture(scope="module")
def fusion(described):
    return cs.fuse(described)


@pytest.fixture(scope="module")
def population():
    return torch.cat([rows_of(centre, 400, 10 + number)[0] for number, centre in enumerate(CENTRES.values())])


def test_where_regions_differ_the_chosen_network_is_better_than_every_site(fusion, described, population):
    best_site = max(explained(site.module, population) for site in described.values())
    assert explained(fusion.model, population) > best_site + 0.1


def test_the_verdict_of_a_regression_names_the_criterion_and_proves_nothing(fusion):
    verdict = fusion.verdict
    assert (verdict.code, verdict.harmless) == ("chosen", None)
    assert verdict.criterion.startswith("squared distance")
    assert verdict.candidates[fusion.details["chosen"]] == min(verdict.candidates.values())
    assert "not known" in verdict.text


def test_scores_rank_the_candidates_of_a_regression(fusion, population):
    scores = fusion.verdict.candidates
    by_score = sorted(fusion.candidates, key=scores.__getitem__)
    by_truth = sorted(fusion.candidates, key=lambda name: -explained(fusion.candidates[name], population))
    places = [by_truth.index(name) for name in by_score]
    assert np.corrcoef(places, range(len(places)))[0, 1] > 0.7


def test_the_teacher_asks_the_site_whose_inputs_these_are(described, population):
    sites = Sites(tuple(described), np.full(3, 1 / 3), tuple(one.description for one in described.values()))
    with torch.no_grad():
        outputs = np.stack([one.module(population).double().numpy() for one in described.values()])
    target = target_of(population).numpy()
    teacher = Teacher(sites, classifies=False)
    local, everywhere = (np.mean((teacher.answers(outputs, inputs) - target) ** 2) for inputs in (population, None))
    assert local < 0.5 * everywhere
    np.testing.assert_allclose(teacher.answers(outputs), outputs.mean(axis=0))


@pytest.mark.parametrize("d", [1, 3, 45])
def test_the_posterior_of_a_site_is_that_of_its_gaussian(d):
    rng = np.random.default_rng(d)
    sites = [
        Moments(n, rng.normal(size=d), rng.normal(size=(min(d, 2), d)), rng.uniform(0.1, 1.0, d)) for n in (50, 200)
    ]
    weights, x = np.array([0.2, 0.8]), rng.normal(size=(30, d))
    shares = [0.2, 0.8]
    mean = sum(share * site.mean for share, site in zip(shares, sites, strict=True))
    variance = sum(
        share * (np.diag(site.covariance) + (site.mean - mean) ** 2) for share, site in zip(shares, sites, strict=True)
    )
    densities = np.stack(
        [multivariate_normal(s.mean, s.covariance + VARIANCE_SHARE * np.diag(variance)).logpdf(x) for s in sites]
    )
    unscaled = weights[:, None] * np.exp((densities - densities.max(axis=0)) / max(1.0, d / 20))
    np.testing.assert_allclose(site_posterior(sites, weights, x), unscaled / unscaled.sum(axis=0), atol=1e-9)


def test_where_all_sites_describe_the_same_inputs_the_posterior_is_the_weights():
    said = Moments(100, np.array([1.0, 0.0]), np.zeros((0, 2)), np.array([1.0, 0.0]))  # a column that does not vary
    found = site_posterior([said, said], np.array([0.3, 0.7]), np.array([[0.0, 0.0], [9.0, 0.0]]))
    np.testing.assert_allclose(found, [[0.3, 0.3], [0.7, 0.7]])


def described_by(**n_rows):
    """Return described networks of sites of so many rows."""
    sites = {}
    for number, (name, n) in enumerate(n_rows.items()):
        x, y = rows_of(CENTRES[name], n, number)
        with pytest.warns(cs.errors.WithheldWarning, match="fewer than 100"):
            sites[name] = cs.describe(train(x, y, 0), (x, y))
    return sites


@pytest.fixture(scope="module")
def small_sites():
    return described_by(lund=60, oslo=40, turku=50)


def test_sites_of_few_rows_are_fused_into_a_network_better_than_each(small_sites, population):
    fusion = cs.fuse(small_sites)
    best_site = max(explained(site.module, population) for site in small_sites.values())
    assert explained(fusion.model, population) > best_site + 0.1
    assert "lund, oslo, turku: inputs are drawn as fewer than 100 observations say" in fusion.verdict.text
    assert "rows that none was trained on" in fusion.verdict.remedy


def test_the_inputs_of_the_smallest_site_may_be_missing(small_sites, population):
    sites = small_sites | described_by(oslo=12)
    fusion = cs.fuse(sites)
    assert fusion.verdict.code == "chosen"
    assert "oslo: inputs are not described, and none were drawn" in fusion.verdict.text
    assert explained(fusion.model, population) > min(explained(site.module, population) for site in sites.values())


def test_sites_too_small_to_describe_their_inputs_are_told_so():
    verdict = cs.fuse(described_by(lund=15, oslo=18, turku=12)).verdict
    assert (verdict.code, verdict.harmless) == ("no_inputs", None)
    assert verdict.text.startswith("No site has enough observations to describe its inputs by")
    assert "fusion.ensemble" in verdict.remedy
