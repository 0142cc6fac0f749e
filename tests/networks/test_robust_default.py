"""Laws of ``robust=True`` for networks: whole networks are left out, and the rest have a geometric median."""

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.errors import InputError


def network(seed, change=0.0, noise=0.05):
    """Return a network near a common start, all its weights changed."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator) + change
    return module


def flat(module):
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in module.parameters()])


def fuse(modules, method="average"):
    return cs.fuse(modules, method=method, example=torch.zeros(1, 4), robust=True)


@pytest.mark.parametrize("method", ["average", "rebasin", "consensus"])
@pytest.mark.parametrize("change", [0.5, 100.0, -1e6])
@pytest.mark.parametrize("count", [1, 3])
def test_hostile_networks_are_left_out(method, change, count):
    honest = [network(seed) for seed in range(10 - count)]
    fusion = fuse([*honest, *(network(50 + seed, change) for seed in range(count))], method)
    hostile = {f"model {site}" for site in range(10 - count, 10)}
    assert hostile <= {record["model"] for record in fusion.details["robust"]["left_out"]}
    if method == "average":
        rows = np.stack([flat(module) for module in honest])
        radius = np.linalg.norm(rows - rows.mean(axis=0), axis=1).max()
        assert np.linalg.norm(flat(fusion.model) - rows.mean(axis=0)) < radius


def test_copies_of_a_hostile_network_are_left_out():
    torch_copies = [network(50, 0.1, noise=0.0) for _ in range(3)]
    for site, module in enumerate(torch_copies):
        with torch.no_grad():
            module[0].bias += 1e-6 * site  # so that digests differ
    fusion = fuse([*(network(seed) for seed in range(7)), *torch_copies])
    steps = {record["model"]: record["step"] for record in fusion.details["robust"]["left_out"]}
    assert {steps.get(f"model {site}") for site in (7, 8, 9)} == {"copy of another"}


def test_equal_networks_are_a_fixed_point():
    modules = [network(0) for _ in range(4)]
    fusion = fuse(modules)
    assert fusion.details["robust"]["left_out"] == []
    np.testing.assert_allclose(flat(fusion.model), flat(modules[0]), rtol=1e-6)


@pytest.mark.parametrize("robust", [True, "trim", "median"])
def test_fisher_merging_is_refused_by_a_sentence(robust):
    """Whoever claims more information counts more, and no average of weights bounds that."""
    modules = [network(seed) for seed in range(4)]
    batches = [(torch.randn(120, 4, generator=torch.Generator().manual_seed(0)), torch.arange(120) % 3)]
    information = [cs.fisher(module, batches, kind="diagonal", likelihood="categorical") for module in modules]
    with pytest.raises(InputError, match="is for methods that average aligned weights"):
        cs.fuse(modules, method="fisher", fishers=information, robust=robust)


def test_colluding_networks_with_noise_of_their_own_are_left_out():
    modules = [network(seed) for seed in range(7)] + [network(20 + seed, -0.06, 0.04) for seed in range(3)]
    fusion = fuse(modules)
    assert {(one["model"], one["step"]) for one in fusion.details["robust"]["left_out"]} == {
        (f"model {number}", "collusion") for number in (7, 8, 9)
    }
