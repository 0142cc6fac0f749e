"""Weights that checkpoints hold in parts are merged as the weights that the parts stand for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrizations, prune

import consilience as cs
from consilience.errors import InputError
from consilience.networks.parametrised_layers import plain_module

Parametrise = Callable[[nn.Module], nn.Module]


def _weight_norm_hook(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.nn.utils.weight_norm(layer, dim=2)  # as the positional convolution of wav2vec2


KINDS: dict[str, Parametrise] = {
    "weight_norm": lambda layer: parametrizations.weight_norm(layer, dim=2),
    "weight_norm hook": _weight_norm_hook,
    "spectral_norm": parametrizations.spectral_norm,
    "spectral_norm hook": torch.nn.utils.spectral_norm,
    "pruned": lambda layer: prune.random_unstructured(layer, "weight", amount=0.4),
}


def network(kind: str, seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a convolution with parts beside a plain layer."""
    torch.manual_seed(seed)
    net = nn.Sequential(KINDS[kind](nn.Conv1d(4, 4, 3)), nn.Flatten(), nn.Linear(12, 2))
    for _ in range(8):  # power iterations
        net(torch.randn(2, 4, 5))
    return net.eval().to(dtype)


def merged(nets: list[nn.Module], folder: Path, **options: object) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """Return the plain weights of the merge of networks, loaded into the first of them, and its notes."""
    paths = [folder / f"{number}.safetensors" for number in range(len(nets))]
    for path, net in zip(paths, nets, strict=True):
        save_file(net.state_dict(), path)
    result = cs.merge(paths, folder / "merged.safetensors", **options)  # type: ignore[arg-type]
    nets[0].load_state_dict(load_file(folder / "merged.safetensors"), strict=True)
    return plain_weights(nets[0]), result.notes


def plain_weights(net: nn.Module) -> dict[str, torch.Tensor]:
    """Return the arrays of a network without parts."""
    return {key: values.double() for key, values in plain_module(net).state_dict().items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_merge_is_the_mean_of_weights(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    nets = [network(kind, seed, dtype) for seed in (0, 1)]
    first, second = map(plain_weights, nets)
    weights, notes = merged(nets, tmp_path)
    assert any("0.weight: merged as the weight" in note for note in notes)
    for key, values in weights.items():
        mean = (first[key] + second[key]) / 2
        if key == "0.weight" and "spectral" in kind:
            mean /= torch.linalg.matrix_norm(mean.flatten(1), 2)
            assert any("spectral_norm scales" in note for note in notes)
        rounding = 1e-6 if dtype == torch.float32 else 1e-2
        assert float((values - mean).norm() / mean.norm()) < rounding, key


@pytest.mark.parametrize("kind", KINDS)
def test_two_copies_are_merged_into_themselves(kind: str, tmp_path: Path) -> None:
    nets = [network(kind, 0), network(kind, 0)]
    before = {key: values.clone() for key, values in nets[1].state_dict().items()}
    merged(nets, tmp_path)
    assert all(torch.equal(before[key], values) for key, values in nets[0].state_dict().items())


@pytest.mark.parametrize("method", ["task_arithmetic", "ties", "dare"])
def test_methods_of_a_base_see_changes_of_the_weight(method: str, tmp_path: Path) -> None:
    base = network("weight_norm", 0)
    save_file(base.state_dict(), tmp_path / "base.safetensors")
    expected = plain_weights(base)
    weights, _ = merged(
        [network("weight_norm", 0), network("weight_norm", 0)],
        tmp_path,
        method=method,
        base=tmp_path / "base.safetensors",
    )
    assert all(torch.allclose(weights[key], expected[key], atol=1e-6) for key in expected)


def test_parts_of_a_copied_weight_come_from_one_model(tmp_path: Path) -> None:
    nets = [network("weight_norm", seed) for seed in (0, 1)]
    expected = plain_weights(nets[1])["0.weight"]
    rule = {"pattern": "0.weight", "method": "copy", "from": 1}
    weights, _ = merged(nets, tmp_path, patterns=[rule])
    assert torch.equal(weights["0.weight"], expected)


def test_a_pattern_of_one_part_of_a_weight_is_refused(tmp_path: Path) -> None:
    nets = [network("weight_norm", seed) for seed in (0, 1)]
    with pytest.raises(InputError, match=r"parts of 0\.weight .* are one weight; match its name, 0\.weight"):
        merged(nets, tmp_path, patterns=[{"pattern": "*original0", "method": "copy"}])


@pytest.mark.parametrize("name", ["0.parametrizations.weight.original1", "0.weight"])
def test_information_of_a_weight_in_parts_is_refused(name: str, tmp_path: Path) -> None:
    nets = [network("weight_norm", seed) for seed in (0, 1)]
    save_file({name: torch.ones(4, 4, 3), "2.bias": torch.ones(2)}, tmp_path / "fisher.safetensors")
    fishers = [tmp_path / "fisher.safetensors"] * 2
    with pytest.raises(InputError, match=r"a merge cannot use information of 0\.weight, which is held in parts"):
        merged(nets, tmp_path, method="fisher", fishers=fishers)


@pytest.mark.parametrize("kind", ["weight_norm", "pruned"])
def test_complex_parts_are_refused(kind: str, tmp_path: Path) -> None:
    values = torch.ones(3, 2, dtype=torch.complex64)
    state = {"l.weight_g": torch.ones(3, 1), "l.weight_v": values}
    if kind == "pruned":
        state = {"l.weight_orig": values, "l.weight_mask": torch.ones(3, 2)}
    for name in "ab":
        save_file(state, tmp_path / f"{name}.safetensors")
    with pytest.raises(InputError, match=r"a\.safetensors: l\.weight is held in parts of .*C64.*; remove it first"):
        cs.merge([tmp_path / "a.safetensors", tmp_path / "b.safetensors"], tmp_path / "merged.safetensors")


def test_a_prefix_of_one_file_is_left_out_where_a_symmetry_names_the_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.ReLU(), nn.Linear(5, 2)).eval()
    save_file(net.state_dict(), tmp_path / "a.safetensors")
    save_file({f"module.{key}": values for key, values in net.state_dict().items()}, tmp_path / "b.safetensors")
    paths = [tmp_path / "b.safetensors", tmp_path / "a.safetensors"]
    symmetry = cs.symmetry(net, torch.randn(2, 4))
    result = cs.merge(paths, tmp_path / "merged.safetensors", symmetry=symmetry)
    assert any("names without the prefix 'module.'" in note for note in result.notes)
    net.load_state_dict(load_file(tmp_path / "merged.safetensors"), strict=True)


def test_units_are_matched_by_the_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.ReLU(), nn.Linear(5, 2)).eval()
    example = torch.randn(2, 4)
    permuted = cs.permute(net, cs.symmetry(net, example), {"0": [4, 3, 2, 1, 0]})
    expected = plain_weights(net)
    weights, _ = merged([net, permuted], tmp_path, module=net, example=example)
    assert all(torch.allclose(weights[key], expected[key], atol=1e-6) for key in expected)


@pytest.mark.parametrize("kind", ["orthogonal", "pruned parts of weight_norm"])
def test_parts_that_cannot_be_merged_are_refused(kind: str, tmp_path: Path) -> None:
    layer: nn.Module = nn.Linear(4, 4)
    if kind == "orthogonal":
        layer = parametrizations.orthogonal(layer)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            layer = torch.nn.utils.weight_norm(layer)
        prune.random_unstructured(layer, "weight_v", amount=0.5)
    for name in "ab":
        save_file(
            {key: values.contiguous() for key, values in layer.state_dict().items()}, tmp_path / f"{name}.safetensors"
        )
    with pytest.raises(InputError, match=r"a\.safetensors: weight is parametrised .*; remove it first"):
        cs.merge([tmp_path / "a.safetensors", tmp_path / "b.safetensors"], tmp_path / "merged.safetensors")
