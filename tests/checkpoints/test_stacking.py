"""Layers of several checkpoints stand behind one another only where they are of one architecture."""

import json

import pytest
import torch

import consilience as cs
from consilience.checkpoints.recipe import read_merge_recipe
from tests.checkpoints.some_checkpoints import read, write

STACK = [[(0, 0, 1)], [(1, 1, 2)]]


def model(folder, seed=0, width=4, layers=2, tower="model.layers", extra=(), **config):
    """Write a model of some layers."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {"model.embed_tokens.weight": (10, width), "model.norm.weight": (width,)}
    shapes |= {f"{tower}.{i}.mlp.weight": (width, width) for i in range(layers)} | dict(extra)
    state = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    return write(folder, state, {"num_hidden_layers": layers, "vocab_size": 10} | config)


def test_layers_are_stacked_and_the_configuration_counts_them(tmp_path):
    paths = [model(tmp_path / "a", 0), model(tmp_path / "b", 1, layers=3)]
    done = cs.merge(paths, tmp_path / "out", "passthrough", slices=[[(0, 0, 2)], [(1, 1, 3)]])
    found, b = read(done.output), read(paths[1])
    assert torch.equal(found["model.layers.3.mlp.weight"], b["model.layers.2.mlp.weight"])
    assert json.loads((done.output / "config.json").read_text())["num_hidden_layers"] == 4


def test_a_text_model_inside_a_configuration_is_counted(tmp_path):
    inner = {"text_config": {"num_hidden_layers": 2, "layer_types": ["full", "sliding"]}}
    path = model(tmp_path / "a", **inner)
    done = cs.merge([path], tmp_path / "out", "passthrough", slices=[[(0, 0, 2)], [(0, 0, 1)]])
    config = json.loads((done.output / "config.json").read_text())["text_config"]
    assert config == {"num_hidden_layers": 3, "layer_types": ["full", "sliding", "full"]}


@pytest.mark.parametrize(
    ("other", "message"),
    [({"width": 6}, "has shape .*, in .*a"), ({"rope_theta": 5e5}, "rope_theta"),
     ({"hidden_act": "gelu"}, "hidden_act"),
     ({"extra": {"lm_head.weight": (10, 4)}}, "lm_head.weight: in one of it and .*a alone")],
)  # fmt: skip
def test_layers_of_other_models_are_refused(tmp_path, other, message):
    paths = [model(tmp_path / "a", rope_theta=1e4, hidden_act="silu"), tmp_path / "b"]
    model(paths[1], 1, **({"rope_theta": 1e4, "hidden_act": "silu"} | other))
    with pytest.raises(cs.errors.InputError, match=message):
        cs.merge(paths, tmp_path / "out", "passthrough", slices=STACK)


def test_slices_of_two_towers_are_refused(tmp_path):
    vision = {f"vision.encoder.layers.{i}.weight": (3, 3) for i in range(5)}
    path = model(tmp_path / "a", extra=vision)
    with pytest.raises(cs.errors.InputError, match="has layers in 2 places"):
        cs.merge([path, path], tmp_path / "out", "passthrough", slices=STACK)


def test_a_gradient_goes_over_each_tower(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vision = {f"vision.encoder.layers.{i}.weight": (3, 3) for i in range(5)}
    paths = [model(tmp_path / name, seed, extra=vision) for seed, name in enumerate("ab")]
    (tmp_path / "r.yaml").write_text(
        "merge_method: linear\nmodels:\n"
        "- {model: a, parameters: {weight: [0, 1]}}\n- {model: b, parameters: {weight: [1, 0]}}\n"
    )
    recipe = read_merge_recipe(tmp_path / "r.yaml")
    done = cs.merge(
        recipe.models, "out", recipe.method, weights=recipe.weights, patterns=recipe.tensors, **recipe.options
    )
    found, a, b = (read(path) for path in (done.output, *paths))
    assert torch.equal(found["model.layers.1.mlp.weight"], a["model.layers.1.mlp.weight"])
    assert torch.equal(found["vision.encoder.layers.4.weight"], a["vision.encoder.layers.4.weight"])
    torch.testing.assert_close(
        found["vision.encoder.layers.2.weight"],
        (a["vision.encoder.layers.2.weight"] + b["vision.encoder.layers.2.weight"]) / 2,
    )


def test_folders_and_missing_configurations_are_noted(tmp_path):
    paths = [model(tmp_path / name, seed) for seed, name in enumerate("ab")]
    (paths[0] / "1_Pooling").mkdir()
    (paths[1] / "config.json").unlink()
    notes = " ".join(cs.merge(paths, tmp_path / "out").notes)
    assert "1_Pooling/" in notes
    assert "b: no config.json" in notes
