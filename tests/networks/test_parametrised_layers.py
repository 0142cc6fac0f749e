"""Networks with parametrised layers are fused as the weights that these stand for, and get their parts again."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import consilience as cs
from consilience.errors import InputError, UnsupportedError
from consilience.networks.parametrised_layers import Parametrised, parts_of_module, plain_module
from consilience.networks.report.content import content_of
from consilience.networks.report.page import shown_networks_of_files
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import module_with
from consilience.networks.weight_parts import find_parts, plain_arrays
from tests.copies import COPIES

Parametrise = Callable[[nn.Module], nn.Module]
ROUNDING = 2e-6  # of float32 through a few layers
EXAMPLE = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


def _weight_norm_hook(layer: nn.Module, name: str = "weight", dim: int | None = 0) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.nn.utils.weight_norm(layer, name, dim)


def _pruned(layer: nn.Module) -> nn.Module:
    prune.random_unstructured(layer, "weight", amount=0.4)
    return layer


class Symmetric(nn.Module):
    """A matrix by its upper triangle."""

    def forward(self, upper: torch.Tensor) -> torch.Tensor:
        return upper.triu() + upper.triu(1).mT

    def right_inverse(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix.triu()


class Exponential(nn.Module):
    """Positive weights, without an inverse."""

    def forward(self, logarithm: torch.Tensor) -> torch.Tensor:
        return logarithm.exp()


BY_FORMULA: dict[str, Parametrise] = {
    "weight_norm": parametrizations.weight_norm,
    "weight_norm along axis 1": lambda layer: parametrizations.weight_norm(layer, dim=1),
    "weight_norm of all": lambda layer: parametrizations.weight_norm(layer, dim=None),  # type: ignore[arg-type]
    "weight_norm hook": _weight_norm_hook,
    "weight_norm hook of all": lambda layer: _weight_norm_hook(layer, dim=None),
    "spectral_norm": parametrizations.spectral_norm,
    "spectral_norm hook": torch.nn.utils.spectral_norm,
    "pruned": _pruned,
}
OF_MODULES: dict[str, Parametrise] = {
    **BY_FORMULA,
    "weight_norm of biases": lambda layer: parametrizations.weight_norm(layer, "bias"),
    "spectral_norm of biases": lambda layer: parametrizations.spectral_norm(layer, "bias"),
    "orthogonal": parametrizations.orthogonal,
    "two on one weight": lambda layer: parametrizations.spectral_norm(parametrizations.weight_norm(layer)),
    "of one's own": lambda layer: parametrize.register_parametrization(layer, "weight", Exponential()),
}


def network(parametrise: Parametrise, seed: int) -> nn.Sequential:
    """Return a network of two parametrised layers and a plain one, called so that hooks have computed weights."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        parametrise(nn.Linear(6, 7)), nn.ReLU(), parametrise(nn.Linear(7, 7)), nn.ReLU(), nn.Linear(7, 3)
    )
    for _ in range(6):  # power iterations
        net(EXAMPLE)
    return net.eval()


def distance(net: Any, other: Any, x: torch.Tensor = EXAMPLE) -> float:
    """Return the largest difference of what two networks answer, relative to the largest answer."""
    with torch.no_grad():
        answers, others = (answer[0] if isinstance(answer, tuple) else answer for answer in (net(x), other(x)))
    return float((answers - others).abs().max() / answers.abs().max())


@pytest.mark.parametrize("kind", OF_MODULES)
def test_the_plain_module_is_the_same_function_and_leaves_the_module_as_it_is(kind: str) -> None:
    net = network(OF_MODULES[kind], 0)
    before = {key: values.clone() for key, values in net.state_dict().items()}
    plain = plain_module(net)
    assert not parts_of_module(plain)
    assert set(plain.state_dict()) == {f"{layer}.{name}" for layer in (0, 2, 4) for name in ("weight", "bias")}
    assert distance(net, plain) < ROUNDING
    assert all(torch.equal(before[key], values) for key, values in net.state_dict().items())


@COPIES
@pytest.mark.parametrize("method", ["average", "rebasin", "consensus", None])
@pytest.mark.parametrize("kind", OF_MODULES)
def test_two_copies_of_a_network_are_fused_into_its_function_with_its_parts(kind: str, method: str | None) -> None:
    net, other = network(OF_MODULES[kind], 0), network(OF_MODULES[kind], 0)
    fused = cs.fuse([net, other], method, example=EXAMPLE[:2]).model
    assert list(fused.state_dict()) == list(net.state_dict())
    assert distance(net, fused) < ROUNDING


@pytest.mark.parametrize("kind", [kind for kind in BY_FORMULA if "spectral" not in kind])
def test_the_average_of_weights_is_fused_exactly(kind: str) -> None:
    nets = [network(BY_FORMULA[kind], seed) for seed in (0, 1)]
    fused = cs.fuse(nets, "average").model
    weights = [plain_module(net)[0].weight.detach() for net in (*nets, fused)]
    mean = (weights[0] + weights[1]) / 2
    assert float((weights[2] - mean).norm() / mean.norm()) < ROUNDING


@pytest.mark.parametrize("kind", ["spectral_norm", "spectral_norm hook"])
def test_a_layer_of_spectral_normalisation_has_norm_one_and_the_result_says_that_it_was_scaled(kind: str) -> None:
    fusion = cs.fuse([network(BY_FORMULA[kind], seed) for seed in (0, 1)], "average")
    weight = plain_module(fusion.model)[0].weight.detach()
    assert float(torch.linalg.matrix_norm(weight, 2)) == pytest.approx(1.0, abs=1e-5)
    assert any(note.startswith("0.weight: spectral_norm scales") for note in fusion.notes)
    assert fusion.verdict.harmless is None


@pytest.mark.parametrize(
    ("orthogonal_map", "trivialised"),
    [("matrix_exp", True), ("cayley", True), ("householder", True), ("householder", False)],
)
@pytest.mark.parametrize("shape", [(5, 4), (5, 5), (4, 5), (9, 3)], ids=str)
def test_an_orthogonal_layer_has_the_nearest_orthogonal_weight(
    shape: tuple[int, int], orthogonal_map: str, trivialised: bool
) -> None:
    torch.manual_seed(0)
    net = parametrizations.orthogonal(
        nn.Linear(*shape), orthogonal_map=orthogonal_map, use_trivialization=trivialised
    ).eval()
    plain = {key: values.detach() for key, values in plain_module(net).state_dict().items()}
    noise = {key: values + 0.1 * torch.randn_like(values) for key, values in plain.items()}
    weight = module_with(net, noise, Symmetry({}, ())).weight
    left, _, right = torch.linalg.svd(noise["weight"], full_matrices=False)
    assert torch.allclose(weight, left @ right, atol=1e-5)
    layers = Parametrised.of_module(net)
    assert layers is not None
    assert layers.stored(noise).changed == ("weight",)


@pytest.mark.parametrize("orthogonal_map", ["matrix_exp", "cayley"])
def test_an_orthogonal_map_that_torch_cannot_invert_becomes_a_plain_weight(orthogonal_map: str) -> None:
    torch.manual_seed(0)
    net = parametrizations.orthogonal(nn.Linear(3, 3), orthogonal_map=orthogonal_map, use_trivialization=False)
    layers = Parametrised.of_module(net)
    assert layers is not None
    stored = layers.stored({"weight": 2.0 * torch.eye(3), "bias": torch.zeros(3)})
    assert stored.dissolved == ("weight",)


def test_a_parametrisation_with_an_inverse_is_kept_where_it_gives_the_weight_back() -> None:
    net = parametrize.register_parametrization(nn.Linear(4, 4), "weight", Symmetric())
    layers = Parametrised.of_module(net)
    assert layers is not None
    symmetric, bias = torch.ones(4, 4), torch.zeros(4)
    kept = layers.stored({"weight": symmetric, "bias": bias})
    assert not kept.dissolved
    assert "parametrizations.weight.original" in kept.arrays
    dissolved = layers.stored({"weight": torch.arange(16.0).reshape(4, 4), "bias": bias})
    assert dissolved.dissolved == ("weight",)
    assert "weight" in dissolved.notes[0]


def test_one_of_two_parametrisations_is_removed_where_it_has_no_inverse() -> None:
    nets = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        layer = parametrizations.weight_norm(nn.Linear(6, 3))
        nets.append(parametrize.register_parametrization(layer, "bias", Exponential()))
    fused = cs.fuse(nets, "average").model
    assert {key for key in fused.state_dict() if "weight" in key} == {
        key for key in nets[0].state_dict() if "weight" in key
    }
    assert torch.allclose(fused.bias, (nets[0].bias + nets[1].bias) / 2)
    assert "parametrizations.bias.original" in nets[0].state_dict()
    assert nets[0].bias.shape == (3,)


def test_masks_that_agree_stay_and_others_are_joined() -> None:
    nets = [network(_pruned, seed) for seed in (0, 0, 1)]
    with torch.no_grad():
        nets[1][0].weight_orig.mul_(2.0)
    alike = cs.fuse(nets[:2], "average")
    assert torch.equal(alike.model[0].weight_mask, nets[0][0].weight_mask)
    assert not alike.notes
    joined = cs.fuse(nets[1:], "average")
    assert torch.equal(
        joined.model[0].weight_mask.bool(), nets[0][0].weight_mask.bool() | nets[2][0].weight_mask.bool()
    )
    assert any("mask" in note for note in joined.notes)


LAYERS: dict[str, tuple[Callable[[], nn.Module], str, torch.Tensor]] = {
    "convolution": (lambda: nn.Conv2d(3, 4, 3), "weight", torch.randn(2, 3, 6, 6)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(4, 4, 3), "weight", torch.randn(2, 4, 6, 6)),
    "recurrent": (lambda: nn.LSTM(5, 4), "weight_hh_l0", torch.randn(2, 3, 5)),
    "embedding": (lambda: nn.Embedding(9, 4), "weight", torch.arange(9)[None]),
}
OF_LAYERS: dict[str, Callable[[nn.Module, str], nn.Module]] = {
    "weight_norm": parametrizations.weight_norm,
    "weight_norm hook": _weight_norm_hook,
    "spectral_norm": parametrizations.spectral_norm,
    "spectral_norm hook": torch.nn.utils.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


@COPIES
@pytest.mark.parametrize("kind", OF_LAYERS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_every_type_are_the_same_function_as_plain_ones_and_as_copies(layer: str, kind: str) -> None:
    make, name, x = LAYERS[layer]
    torch.manual_seed(0)
    net = OF_LAYERS[kind](make(), name)
    net(x)  # so that hooks have computed their weights
    net.eval()
    assert distance(net, plain_module(net), x) < ROUNDING
    assert (
        distance(net, cs.fuse([net, copy_by_state(net, OF_LAYERS[kind](make(), name))], "average").model, x) < ROUNDING
    )


def copy_by_state(net: nn.Module, fresh: nn.Module) -> nn.Module:
    """Return a fresh module with the state of another."""
    fresh.load_state_dict(net.state_dict())
    return fresh.eval()


def test_precision_and_frozen_parts_are_kept() -> None:
    nets = [network(parametrizations.weight_norm, seed).to(torch.bfloat16) for seed in (0, 1)]
    nets[0][0].parametrizations.weight.requires_grad_(False)
    fused = cs.fuse(nets, "average").model
    parts = dict(fused.named_parameters())
    assert {values.dtype for values in parts.values()} == {torch.bfloat16}
    assert {name for name, values in parts.items() if not values.requires_grad} == {
        f"0.parametrizations.weight.original{number}" for number in (0, 1)
    }


def test_a_network_without_its_parametrisation_is_fused_with_one_that_has_it() -> None:
    nets = [network(parametrizations.weight_norm, seed) for seed in (0, 1)]
    mixed = cs.fuse([nets[0], plain_module(nets[1])], "average").model
    assert distance(cs.fuse(nets, "average").model, mixed) < ROUNDING


def test_parts_are_resized_with_their_layer() -> None:
    nets = [network(parametrizations.weight_norm, seed) for seed in (0, 1)]
    fused = cs.fuse(nets, "ot", example=EXAMPLE, target_widths={"0": 5}).model
    assert fused[0].parametrizations.weight.original0.shape == (5, 1)
    assert fused[0].out_features == 5
    assert fused(EXAMPLE).shape == (8, 3)


@pytest.mark.parametrize("kind", BY_FORMULA)
def test_state_dicts_and_files_are_fused_as_their_modules_and_load_into_them(kind: str, tmp_path: Path) -> None:
    nets = [network(BY_FORMULA[kind], seed) for seed in (0, 1)]
    of_modules = cs.fuse(nets, "average").model
    states = [net.state_dict() for net in nets]
    paths = [tmp_path / f"{number}.safetensors" for number in (0, 1)]
    for path, state in zip(paths, states, strict=True):
        save_file(state, path)
    from_files = cs.fuse(paths, "average")
    from_files.save(tmp_path / "fused.safetensors")
    for state in (cs.fuse(states, "average").model, load_file(tmp_path / "fused.safetensors")):
        net = copy.deepcopy(of_modules)
        net.load_state_dict(state, strict=True)
        assert distance(of_modules, net) < 1e-5


@pytest.mark.parametrize("kind", ["weight_norm hook", "spectral_norm", "pruned"])
def test_described_files_of_parametrised_networks_are_fused_and_load_into_the_module(kind: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(400, 6, generator=generator), torch.randint(0, 3, (400,), generator=generator)
    paths = [tmp_path / f"{number}.safetensors" for number in (0, 1)]
    for seed, path in enumerate(paths):
        cs.save(network(BY_FORMULA[kind], seed), path, data=(x, y), classes=3, min_count=0)
    assert cs.load(paths[0]).units == {"0": 7, "2": 7}
    fusion = cs.fuse(paths, module=network(BY_FORMULA[kind], 2))
    fusion.save(tmp_path / "fused.safetensors")
    net = network(BY_FORMULA[kind], 3)
    net.load_state_dict(load_file(tmp_path / "fused.safetensors"), strict=True)
    assert distance(fusion.model, net) < ROUNDING
    content = content_of(shown_networks_of_files(tmp_path / "fused.safetensors", paths))
    assert [site.parameters for site in content.sites] == [6 * 7 + 7 + 7 * 7 + 7 + 7 * 3 + 3] * 2
    assert content.network_findings.is_proved


def test_a_saved_network_is_written_with_its_parts_again(tmp_path: Path) -> None:
    net = network(_weight_norm_hook, 0)
    cs.save(net, tmp_path / "a.safetensors", symmetry=cs.symmetry(net, EXAMPLE))
    cs.save(cs.load(tmp_path / "a.safetensors"), tmp_path / "b.safetensors")
    first, second = (load_file(tmp_path / f"{name}.safetensors") for name in "ab")
    assert all(torch.equal(first[key], values) for key, values in net.state_dict().items())
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert set(first) == set(second)


def test_parts_of_parts_are_combined_in_turn() -> None:
    layer = _weight_norm_hook(nn.Linear(4, 3))
    prune.random_unstructured(layer, "weight_v", amount=0.5)
    layer(torch.zeros(1, 4))
    plain, parts = plain_arrays(layer.state_dict(), "layer")
    assert [of_weight.name for of_weight in parts] == ["weight_v", "weight"]
    assert torch.allclose(plain["weight"], layer.weight.detach(), atol=1e-6)
    stored = Parametrised(parts, layer.state_dict()).stored(plain)
    assert set(stored.arrays) == set(layer.state_dict())


@pytest.mark.parametrize("how", ["state dict", "file"])
def test_parts_that_names_do_not_explain_are_refused_without_a_module_and_fused_with_one(
    how: str, tmp_path: Path
) -> None:
    nets = [network(parametrizations.orthogonal, seed) for seed in (0, 1)]
    models: list[Any] = [{key: values.contiguous() for key, values in net.state_dict().items()} for net in nets]
    if how == "file":
        for number, state in enumerate(models):
            save_file(state, tmp_path / f"{number}.safetensors")
            models[number] = tmp_path / f"{number}.safetensors"
    with pytest.raises(InputError, match=r"0\.weight is parametrised.*module=.*remove_parametrizations"):
        cs.fuse(models, "average")
    fused = cs.fuse(models, "average", module=network(parametrizations.orthogonal, 2)).model
    assert distance(cs.fuse(nets, "average").model, fused) < 1e-5


@COPIES
def test_arrays_that_only_look_like_parts_are_left_alone_in_modules_and_where_shapes_do_not_fit() -> None:
    class Gates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w_g, self.w_v = nn.Parameter(torch.ones(3, 1)), nn.Parameter(torch.full((3, 2), 2.0))

    assert set(cs.fuse([Gates(), Gates()], "average").model.state_dict()) == {"w_g", "w_v"}
    assert not find_parts({"w_g": (3, 3), "w_v": (3, 3)})
    assert not find_parts({"w_g": (3,), "w_v": (3,)})


def test_units_of_parametrised_networks_are_permuted() -> None:
    net = network(parametrizations.weight_norm, 0)
    symmetry = cs.symmetry(net, EXAMPLE)
    permuted = cs.permute(net, symmetry, {"0": [6, 5, 4, 3, 2, 1, 0]})
    assert list(permuted.state_dict()) == list(net.state_dict())
    assert distance(net, permuted) < ROUNDING


@COPIES
def test_fisher_information_is_of_weights_and_merges_parametrised_networks() -> None:
    nets = [network(parametrizations.weight_norm, seed) for seed in (0, 0)]
    information = [cs.fisher(net, EXAMPLE, minimum=1) for net in nets]
    assert "0.weight" in information[0].residual
    assert distance(nets[0], cs.fuse(nets, "fisher", fishers=information).model) < ROUNDING


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm hook", "orthogonal"])
@pytest.mark.parametrize("place", ["models", "module"])
def test_scripted_modules_with_parts_are_refused(kind: str, place: str) -> None:
    nets = [network(OF_MODULES[kind], seed) for seed in (0, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing
        scripted = [torch.jit.trace(net, EXAMPLE, check_trace=False) for net in nets]
    models = scripted if place == "models" else [net.state_dict() for net in nets]
    with pytest.raises(UnsupportedError, match=r"how 0\.weight, 2\.weight is computed.*that it was scripted from"):
        cs.fuse(models, "average", module=scripted[0] if place == "module" else None)
    answers = cs.fuse(scripted, "ensemble").model(EXAMPLE)  # in which every module computes its own weights
    assert torch.allclose(answers, cs.fuse(nets, "ensemble").model(EXAMPLE), atol=1e-6)


@pytest.mark.parametrize("kind", ["weight_norm", "weight_norm hook", "pruned"])
@pytest.mark.parametrize("place", ["in front", "in the middle"])
def test_wrappers_in_names_change_nothing_in_any_order(kind: str, place: str) -> None:
    nets = [network(BY_FORMULA[kind], seed) for seed in (0, 1)]
    first, second = (net.state_dict() for net in nets)
    wrapped = {
        f"module.{key}" if place == "in front" else key.replace("0.", "0._orig_mod.", 1) if key[0] == "0" else key: part
        for key, part in first.items()
    }
    expected = cs.fuse([first, second], "average").model
    for models in ([wrapped, second], [second, wrapped]):
        fused = cs.fuse(models, "average").model
        assert set(fused) == set(expected)
        assert all(torch.equal(fused[key], expected[key]) for key in expected)


@pytest.mark.parametrize("position", [0, 1])
def test_a_module_among_the_inputs_explains_the_parts_of_state_dicts(position: int) -> None:
    nets = [network(parametrizations.orthogonal, seed) for seed in (0, 1)]
    models: list[Any] = [net if number == position else net.state_dict() for number, net in enumerate(nets)]
    assert distance(cs.fuse(nets, "average").model, cs.fuse(models, "average").model) < 1e-5


def test_the_note_of_complex_masks_has_real_shares() -> None:
    layer = {"w_orig": torch.ones(2, 2, dtype=torch.complex64), "w_mask": torch.eye(2, dtype=torch.complex64)}
    parts = find_parts({key: tuple(values.shape) for key, values in layer.items()})[0]
    split = parts.split(torch.ones(2, 2, dtype=torch.complex64), [layer])
    assert split.note.endswith("1 of the entries are kept, of theirs 0.5")


def test_a_fusion_is_saved_as_by_its_own_method(tmp_path: Path) -> None:
    fusion = cs.fuse([network(parametrizations.weight_norm, seed) for seed in (0, 1)], "average")
    cs.save(fusion, tmp_path / "a.safetensors")
    fusion.save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
