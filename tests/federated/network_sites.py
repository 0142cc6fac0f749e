"""Sites of networks for requests: small classifiers from starts of their own, and the rows of each."""

from functools import cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import consilience as cs

CENTRES = np.array([[0.0, 0.0, 0.0], [4.0, 0.0, 1.0], [0.0, 4.0, -1.0]])


def rows(seed, count=240, weights=(1, 1, 1)):
    """Return inputs (n, 3) and classes, with shares of classes."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, count, p=np.array(weights) / sum(weights))
    return (CENTRES[y] + rng.normal(size=(count, 3))).astype(np.float32), y


def make():
    """Return an untrained network."""
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def trained(seed, x, y):
    """Return a trained network in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = make()
    optimiser = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(60):
        optimiser.zero_grad()
        functional.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimiser.step()
    return network.eval()


SITES = {"a": rows(0, 250, (8, 1, 1)), "b": rows(1, 230, (1, 8, 1)), "c": rows(2, 210, (1, 1, 8))}


@cache
def fused():
    """Return the matched average of the sites' networks."""
    models = {site: trained(number, *data) for number, (site, data) in enumerate(SITES.items())}
    return cs.fuse(models, method="consensus", example=torch.zeros(1, 3))


def own(site):
    """Return the trained network of a site."""
    return fused().module_of(fused().inputs[list(SITES).index(site)].as_sent)


def networks():
    """Return a fusion of networks, and the rows of its sites."""
    return fused(), SITES
