"""A transport of one's own is one class: the library moves, averages, labels and reports with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.core.progress import Progress
from consilience.networks.method import Alignment, NetworkEnsemble
from consilience.networks.network import Network
from consilience.networks.symmetry.transport import Transport, permutation
from consilience.networks.torch_modules import arrays_of_module, module_with
from consilience.testing import check_transport
from tests.networks.own_transports import Merge, Procrustes, Rotation, ZipIt
from tests.tolerances import ROUNDING

INPUTS = torch.randn(200, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def net(seed: int, activation: nn.Module, width: int = 8) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, width), activation, nn.Linear(width, 3)).double()


def with_twins(seed: int) -> nn.Sequential:
    """Return a network every unit of which stands in it twice, sending other weights."""
    module = net(seed, nn.ReLU())
    with torch.no_grad():
        for parameter in (module[0].weight, module[0].bias):
            parameter[4:] = parameter[:4]
    return module


def rotation(width: int = 8) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0]


@pytest.mark.parametrize(
    "transport", [Merge(np.array([0, 2, 2, 0]), 3), Merge(np.array([1, 1]), 2), Rotation(rotation())]
)
def test_they_keep_the_laws(transport: Merge | Rotation) -> None:
    check_transport(transport)


def test_units_merged_within_models_give_the_average_of_the_logits(tmp_path: Path) -> None:
    """Two networks of four different units each fit into one of eight, which no permutation finds."""
    models = [with_twins(0), with_twins(1)]
    fusion = cs.fuse(models, method=ZipIt(), example=INPUTS[:1], inputs=INPUTS)
    expected = sum(model(INPUTS) for model in models) / 2.0
    assert torch.allclose(fusion.model(INPUTS), expected, rtol=0.0, atol=ROUNDING)
    matching = fusion.matching["0"]
    assert sorted(np.bincount(matching.labels).tolist()) == [2] * 8
    assert all(len(set(matching.owner[matching.labels == unit])) == 1 for unit in range(8))
    assert matching.coupling is not None
    assert matching.coupling.shape == (16, 8)
    fusion.save(tmp_path / "fused.safetensors")
    fusion.report(tmp_path / "report.html")


def test_a_rotation_leaves_a_linear_network_its_function() -> None:
    module = net(0, nn.Identity(), width=4)
    symmetry = cs.symmetry(module, INPUTS[:1])
    network = Network(arrays_of_module(module), symmetry, "linear")
    moved = network.with_arrays(network.move({"0": Rotation(rotation(4))}))
    turned = module_with(module, moved.arrays, symmetry)
    assert not torch.allclose(turned[0].weight, module[0].weight)
    assert torch.allclose(turned(INPUTS), module(INPUTS), rtol=0.0, atol=ROUNDING)
    fusion = cs.fuse([module, turned], method=Procrustes(), symmetry=symmetry)
    assert torch.allclose(fusion.model(INPUTS), module(INPUTS), rtol=0.0, atol=ROUNDING)


@dataclass(frozen=True)
class Wrong(Procrustes):
    """Transports that do not fit."""

    fault: str = "none"

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        transports = super().align(ensemble, rng, progress).transports
        return Alignment(
            {
                "too few": transports[:1],
                "no group": ({}, *transports[1:]),
                "width": ({"0": Merge(np.array([0, 1, 2, 2]), 3)}, *transports[1:]),
            }[self.fault]
        )


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("too few", "its alignment has transports of 1 models, expected 2"),
        ("no group", "its alignment has no transport of group 0"),
        ("width", "takes 4 units to 4, expected 4 to 3"),
    ],
)
def test_an_alignment_that_does_not_fit_is_refused(fault: str, text: str) -> None:
    models = [net(seed, nn.Identity(), width=4) for seed in (0, 1)]
    with pytest.raises(cs.errors.InputError, match=f"^procrustes: .*{text}"):
        cs.fuse(models, method=Wrong(fault=fault), example=INPUTS[:1])


class SignedTurn(Transport):
    """A flip of one unit that says of itself that it has signs."""

    receiving = np.diag([-1.0, 1.0, 1.0])
    sending = receiving
    signs = np.array([-1.0, 1.0, 1.0])
    unit_signs = signs


def test_signs_stay_through_a_permutation() -> None:
    check_transport(SignedTurn())
    assert np.array_equal(SignedTurn().then(permutation(np.array([1, 0, 2]))).unsigned.receiving, np.eye(3)[[1, 0, 2]])
