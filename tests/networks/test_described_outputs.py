"""Descriptions of networks by the form of what they answer and of their labels, and inputs given beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.distillation import distill

pytestmark = pytest.mark.covering(2)


class OneNumber(nn.Module):
    """A network that answers one number for each input, without an axis for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answers: torch.Tensor = self.layers(x)[:, 0]
        return answers


def rows(seed: int) -> torch.Tensor:
    return torch.randn(120, 4, generator=torch.Generator().manual_seed(seed))


def test_one_number_without_an_axis_is_two_classes_where_labels_are_0_and_1() -> None:
    torch.manual_seed(0)
    described = [cs.describe(OneNumber(), (rows(seed), torch.arange(120) % 2)) for seed in range(2)]
    assert described[0].description is not None
    assert described[0].description.classes == ("0", "1")
    assert described[0].description.own_error is not None
    fusion = cs.fuse(described)
    assert fusion.verdict.criterion == "error on inputs drawn from the sites' class moments"


def test_one_number_without_an_axis_predicts_numbers_where_labels_are_real() -> None:
    torch.manual_seed(0)
    described = [cs.describe(OneNumber(), (rows(seed), rows(seed)[:, 0])) for seed in range(2)]
    assert described[0].description is not None
    assert described[0].description.classes is None
    candidates = cs.fuse(described).verdict.candidates
    assert any(name.startswith("distill(") for name in candidates)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_networks_of_16_bits_are_distilled(precision: torch.dtype) -> None:
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(precision)
    targets = torch.eye(3)[rows(0)[:, :3].argmax(dim=1)]
    held = torch.eye(3)[rows(1)[:, :3].argmax(dim=1)]
    result = distill(student, rows(0).to(precision), targets, rows(1).to(precision), held, learning_rate=0.01)
    assert result.best_step > 0
    assert {values.dtype for values in result.module.state_dict().values()} == {precision}
    with torch.no_grad():
        answers = result.module(rows(1).to(precision)).float()
        before = student(rows(1).to(precision)).float()
    losses = [float(nn.functional.cross_entropy(of_network, held)) for of_network in (answers, before)]
    assert losses[0] < 0.7 * losses[1]


def test_several_labels_of_an_observation_are_refused_with_both_ways_out() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(cs.errors.InputError, match=r"one-hot labels\), or `y\.float\(\)` where"):
        cs.describe(net, (rows(0), torch.ones(120, 3, dtype=torch.long)))


def test_a_site_of_undescribed_classes_says_that_none_may_enter() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.warns(cs.errors.WithheldWarning, match="none of 15 observations may enter: they are fewer than 100"):
        cs.describe(net, (rows(0)[:15], torch.arange(15) % 2))


@pytest.mark.parametrize("factor", [255.0, 0.01])
@pytest.mark.parametrize("form", ["tensor", "array", "batches"])
def test_given_inputs_of_another_scale_are_refused(factor: float, form: str) -> None:
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)) for _ in range(2)]
    described = [cs.describe(net, (rows(seed), torch.arange(120) % 3)) for seed, net in enumerate(nets)]
    inputs = factor * rows(5)
    given = {"tensor": inputs, "array": inputs.numpy(), "batches": [inputs[:60], inputs[60:]]}[form]
    with pytest.raises(cs.errors.InputError, match=r"inputs: are .* those that the sites describe"):
        cs.fuse(described, inputs=given)
    assert cs.fuse(described, inputs=rows(5), steps=0).verdict.candidates  # of the scale of the sites


def test_given_inputs_of_another_scale_are_named_by_check(tmp_path: Path) -> None:
    torch.manual_seed(0)
    for seed in range(2):
        net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        cs.save(net, tmp_path / f"{seed}.safetensors", data=(rows(seed), torch.arange(120) % 3))
    (problem,) = cs.check(sorted(tmp_path.glob("?.safetensors")), inputs=255 * rows(5))
    assert problem.subject == "inputs"
