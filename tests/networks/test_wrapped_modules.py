"""Networks that were wrapped for training (spread, compiled, averaged) are fused as the networks that they hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

import consilience as cs
from consilience.networks.entry_names import renamed_like
from consilience.networks.torch_modules import unwrapped

WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "spread": nn.DataParallel,
    "compiled": lambda net: torch.compile(net, backend="eager"),  # type: ignore[return-value]
    "averaged": AveragedModel,
    "spread and compiled": lambda net: torch.compile(nn.DataParallel(net), backend="eager"),  # type: ignore[return-value]
}


def make_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def rows(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(120, 4, generator=generator), torch.arange(120) % 3


def networks() -> list[nn.Sequential]:
    torch.manual_seed(0)
    return [make_net() for _ in range(2)]


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapped_network_is_described_and_fused_as_what_it_wraps(kind: str) -> None:
    nets = networks()
    wrapped = [WRAPPERS[kind](nets[0]).eval(), nets[1].eval()]  # a site may wrap, another not
    said = [cs.describe(net, rows(seed)) for seed, net in enumerate(wrapped)]
    plain = [cs.describe(unwrapped(net), rows(seed)) for seed, net in enumerate(wrapped)]
    assert said[0].description is not None
    assert plain[0].description is not None
    assert said[0].description.digest == plain[0].description.digest
    fused = cs.fuse(said, method="rebasin").model
    expected = cs.fuse(plain, method="rebasin").model
    assert type(fused) is nn.Sequential
    assert all(torch.equal(a, b) for a, b in zip(fused.parameters(), expected.parameters(), strict=True))


@pytest.mark.parametrize("kind", WRAPPERS)
def test_files_of_wrapped_networks_are_read_under_the_names_of_the_module(kind: str, tmp_path: Path) -> None:
    nets = networks()
    for number, net in enumerate(nets):
        save_file(WRAPPERS[kind](net).state_dict(), tmp_path / f"wrapped-{number}.safetensors")
        save_file(net.state_dict(), tmp_path / f"plain-{number}.safetensors")
    example = torch.zeros(2, 4)
    fused = [
        cs.fuse([tmp_path / f"{form}-{n}.safetensors" for n in range(2)], "rebasin", module=make_net, example=example)
        for form in ("wrapped", "plain")
    ]
    assert fused[0].network.arrays.keys() == nets[0].state_dict().keys()
    assert all(
        torch.equal(fused[0].model.state_dict()[key], values) for key, values in fused[1].model.state_dict().items()
    )


def test_saved_networks_have_their_own_names(tmp_path: Path) -> None:
    net = networks()[0]
    cs.save(nn.DataParallel(net), tmp_path / "site.safetensors", data=rows(0))
    assert load_file(tmp_path / "site.safetensors").keys() == net.state_dict().keys()


def test_a_network_whose_own_names_begin_so_keeps_them() -> None:
    arrays = {"module.weight": torch.zeros(2), "module.bias": torch.zeros(2)}
    assert renamed_like(arrays, arrays, "a").keys() == arrays.keys()
    assert renamed_like(arrays, {"weight"}, "a").keys() == arrays.keys()  # not all would be known


def test_a_module_of_other_names_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for number, net in enumerate(networks()):
        save_file(net.state_dict(), tmp_path / f"{number}.safetensors")
    other = nn.Sequential(nn.Identity(), nn.Linear(4, 3))
    files = [tmp_path / f"{number}.safetensors" for number in range(2)]
    with pytest.raises(
        cs.errors.InputError, match=r"has no array of Sequential: its own are 0\.bias, 0\.weight, "
    ) as caught:
        cs.evaluate(*files, torch.zeros(3, 4), [0, 1, 2], module=other)
    assert len(caught.value.problems) == 1
    with pytest.raises(cs.errors.InputError, match="not the models' network in other widths") as caught:
        cs.fuse(files, "ot", module=make_net, example=torch.zeros(2, 4), target=other)
    assert len(caught.value.problems) == 1
