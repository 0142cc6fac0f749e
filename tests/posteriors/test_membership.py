"""Membership inference by likelihood ratio: what the attack reaches on a fused mixture and a fused network, bounded.

``benchmarks/membership.py`` has the figures of docs/evidence/security_tests.md, of other data and seeds; no code is
shared.
"""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture

import consilience as cs

SEEDS = range(100, 104)
"""Means over them are compared with bounds, none of which is nearer than two of their standard errors."""


def auc(members, fresh):
    """Return how often a member scores higher than a fresh row: the Mann-Whitney statistic, ties by half."""
    return float(np.mean(members[:, None] > fresh) + 0.5 * np.mean(members[:, None] == fresh))


def found_at_one_percent(members, fresh):
    """Return the share of members above the score that one in a hundred fresh rows exceeds."""
    return float(np.mean(members > np.sort(fresh)[-1 - len(fresh) // 100]))


def population(rng, count):
    """Return rows of two groups, one in twenty-five of them anywhere."""
    rows = 5.0 * rng.integers(2, size=(count, 1)) + rng.normal(size=(count, 3))
    return np.where(rng.random((count, 1)) < 0.04, 8.0 * rng.normal(size=(count, 3)), rows)


def log_density(posterior, rows):
    means, covariances = posterior.family.plug_in(posterior.natural)
    terms = [
        np.log(share) + multivariate_normal(mean, covariance).logpdf(rows)
        for share, mean, covariance in zip(posterior.shares, means, covariances, strict=True)
    ]
    return np.logaddexp.reduce(terms, axis=0)


def attack_on_mixtures(seed):
    """Return (AUC, members found) of one site's file and of the fused one, without and with disclosure control."""
    rng = np.random.default_rng(seed)
    parts, fresh, others = [population(rng, 80) for _ in range(4)], population(rng, 320), population(rng, 320)
    fits = [GaussianMixture(10, random_state=0, reg_covar=1e-3).fit(part) for part in (*parts, others)]
    results = []
    for min_count in (0, 5):
        sites = [cs.describe(fit, n_observations=80, min_count=min_count) for fit in fits[:-1]]
        fused = cs.fuse(sites, "kl", min_count=min_count).posterior
        for posterior, rows in ((sites[0], parts[0]), (fused, np.concatenate(parts))):
            scores = [log_density(posterior, chosen) - fits[-1].score_samples(chosen) for chosen in (rows, fresh)]
            results.append((auc(*scores), found_at_one_percent(*scores)))
    return results


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::consilience.errors.WithheldWarning")  # to withhold is what is tested
def test_the_attack_finds_members_of_a_site_and_disclosure_control_and_fusion_take_that_away():
    own, fused, own_controlled, fused_controlled = np.mean([attack_on_mixtures(seed) for seed in SEEDS], axis=0)
    assert own[0] > 0.78, "the attack must be one, or the bounds below say nothing"
    assert own_controlled[0] < own[0] - 0.05
    assert fused[0] < own[0] - 0.15
    assert fused_controlled[0] < 0.6
    assert fused_controlled[1] < 0.04 < own[1]


def attack_on_networks(seed):
    """Return the AUC of one site's network and of the average of five, where two classes overlap."""
    rng = np.random.default_rng(seed)

    def rows(count):
        labels = rng.integers(2, size=count)
        inputs = rng.normal(size=(count, 20)) + 0.4 * labels[:, None]
        return torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)

    def network():
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    def trained(part):
        net = network()
        optimiser = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(150):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(part[0]), part[1]).backward()
            optimiser.step()
        return net

    def gain(net, part):
        with torch.no_grad():
            losses = [
                torch.nn.functional.cross_entropy(one(part[0]), part[1], reduction="none") for one in (net, other)
            ]
        return (losses[1] - losses[0]).numpy()

    parts, fresh, other = [rows(40) for _ in range(5)], rows(400), trained(rows(200))
    nets = [trained(part) for part in parts]
    average = cs.fuse(nets, "average", n_observations=[40] * 5).model
    members = tuple(torch.cat(values) for values in zip(*parts, strict=True))
    return auc(gain(nets[0], parts[0]), gain(nets[0], fresh)), auc(gain(average, members), gain(average, fresh))


@pytest.mark.slow
def test_an_average_of_networks_tells_less_of_members_than_one_network_does():
    own, average = np.mean([attack_on_networks(seed) for seed in SEEDS], axis=0)
    assert own > 0.63, "the attack must be one, or the bounds below say nothing"
    assert average < own - 0.05
    assert average < 0.58
