"""Models of several towers are merged module by module: slices, models and parameters of each."""

import json

import pytest
import torch

import consilience as cs
from consilience.checkpoints.recipe import read_merge_recipe
from tests.checkpoints.some_checkpoints import read, write

IMAGES, TEXTS = "vision_tower.vision_model.encoder.layers", "language_model.model.layers"
SEEING = {"language_model.model.embed_tokens.weight": (10, 4), "language_model.model.norm.weight": (4,)}
SEEING |= {f"{TEXTS}.{i}.mlp.weight": (4, 4) for i in range(3)} | {"language_model.lm_head.weight": (10, 4)}
SEEING |= {"vision_tower.vision_model.embeddings.patch_embedding.weight": (4, 3)}
SEEING |= {f"{IMAGES}.{i}.mlp.weight": (3, 3) for i in range(2)} | {"multi_modal_projector.linear_1.weight": (4, 3)}
CONFIG = {"text_config": {"num_hidden_layers": 3}, "vision_config": {"num_hidden_layers": 2, "depth": 2}}
HALVES = {"shared.weight": (10, 4), "lm_head.weight": (10, 4)}
HALVES |= {f"encoder.block.{i}.layer.0.weight": (4, 4) for i in range(2)}
HALVES |= {f"decoder.block.{i}.layer.0.weight": (4, 4) for i in range(3)}
OF_HALVES = {"num_layers": 2, "num_decoder_layers": 3}


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("base", "one", "two")):
        draw = torch.Generator().manual_seed(seed)
        state = {key: torch.randn(shape, generator=draw) for key, shape in SEEING.items()}
        write(tmp_path / name, state, CONFIG)
        halves = {key: torch.randn(shape, generator=draw) for key, shape in HALVES.items()}
        write(tmp_path / f"halves-{name}", halves, OF_HALVES)
    return tmp_path


def merge(places, text):
    """Merge as a recipe says; return the tensors and the configuration."""
    (places / "recipe.yaml").write_text(text)
    recipe = read_merge_recipe(places / "recipe.yaml")
    done = cs.merge(recipe.models, "out", recipe.method, base=recipe.base, weights=recipe.weights,
                    patterns=recipe.tensors, slices=recipe.slices, **recipe.options)  # fmt: skip
    config = json.loads((done.output / "config.json").read_text())
    return read("out"), {key: config[key] for key in config if "layers" in key or "_config" in key}, done.notes


def states(*names):
    return [read(name) for name in names]


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=0)


def test_every_module_has_models_of_its_own(places):
    found, config, _ = merge(
        places,
        """
merge_method: linear
parameters: {weight: 1}
modules:
  text_decoder:
    models: [{model: one}, {model: two, parameters: {weight: [1, 3]}}]
  multi_modal_projector:
    models: [two]
  vision_tower:
    parameters: {weight: 2, normalize: false}
    models: [{model: two}]
""",
    )
    one, two = states("one", "two")
    last = {f"{TEXTS}.1.mlp.weight": 2, f"{TEXTS}.2.mlp.weight": 3}  # elsewhere the first entry of the gradient
    expected = {}
    for name, values in two.items():
        if name.startswith("language_model."):
            weight = last.get(name, 1)
            expected[name] = (one[name] + weight * values) / (1 + weight)
        else:
            expected[name] = 2 * values if name.startswith("vision_tower.") else values
    assert_equal(found, expected)
    assert config == CONFIG


def test_the_layers_of_one_tower_are_stacked_and_its_configuration_counts_them(places):
    found, config, _ = merge(
        places,
        """
merge_method: passthrough
modules:
  text_decoder:
    slices:
      - sources: [{model: one, layer_range: [0, 3]}]
      - sources: [{model: two, layer_range: [1, 3]}]
  multi_modal_projector:
    models: [{model: one}]
  vision_tower:
    slices: [{sources: [{model: two, layer_range: [0, 1]}]}]
""",
    )
    one, two = states("one", "two")
    assert torch.equal(found[f"{TEXTS}.4.mlp.weight"], two[f"{TEXTS}.2.mlp.weight"])
    assert torch.equal(
        found["language_model.model.embed_tokens.weight"], one["language_model.model.embed_tokens.weight"]
    )
    assert torch.equal(found["language_model.lm_head.weight"], two["language_model.lm_head.weight"])
    assert torch.equal(found["multi_modal_projector.linear_1.weight"], one["multi_modal_projector.linear_1.weight"])
    assert f"{IMAGES}.1.mlp.weight" not in found
    assert config == {"text_config": {"num_hidden_layers": 5}, "vision_config": {"num_hidden_layers": 1, "depth": 1}}


def test_an_encoder_is_kept_and_its_decoder_merged(places):
    found, config, _ = merge(
        places,
        """
merge_method: task_arithmetic
base_model: halves-base
parameters: {weight: 1}
modules:
  encoder: {models: [{model: halves-one}]}
  decoder:
    slices: [{sources: [{model: halves-one, layer_range: [0, 2]}, {model: halves-two, layer_range: [0, 2]}]}]
  shared: {models: [{model: halves-two}]}
""",
    )
    base, one, two = states("halves-base", "halves-one", "halves-two")
    kept = {name for name in base if not name.startswith("decoder.block.2")}
    of = {"encoder": one, "shared": two, "lm_head": two}
    expected = {
        name: of[name.split(".")[0]][name] if name.split(".")[0] in of else one[name] + two[name] - base[name]
        for name in kept
    }
    assert_equal(found, expected)
    assert config == {"num_layers": 2, "num_decoder_layers": 2}


def test_modules_may_be_named_by_their_layers(places):
    found, _, notes = merge(
        places,
        f"""
merge_method: linear
parameters: {{weight: 1}}
modules:
  {TEXTS}: {{models: [one, two]}}
  {IMAGES}: {{models: [one]}}
  default: {{models: [two]}}
""",
    )
    one, two = states("one", "two")
    assert_equal(found, {
        name: (one[name] + two[name]) / 2 if name.startswith(TEXTS) else (one if name.startswith(IMAGES) else two)[name]
        for name in one
    })  # fmt: skip
    assert not [note for note in notes if "config.json" in note]


def test_a_module_of_all_is_the_model(places):
    whole, *_ = merge(places, "merge_method: linear\nparameters: {weight: 1}\nmodels: [{model: one}, {model: two}]")
    named = "{models: [{model: one}, {model: two}]}"
    text = "\n".join(f"  {one}: {named}" for one in ("text_decoder", "vision_tower", "multi_modal_projector"))
    (places / "recipe.yaml").write_text(f"merge_method: linear\nparameters: {{weight: 1}}\nmodules:\n{text}\n")
    recipe = read_merge_recipe(places / "recipe.yaml")
    assert not recipe.slices
    cs.merge(recipe.models, "again", recipe.method, weights=recipe.weights, **recipe.options)
    assert (places / "again" / "model.safetensors").read_bytes() == (places / "out" / "model.safetensors").read_bytes()
    assert whole.keys() == SEEING.keys()


def test_slices_by_module_are_arguments_too(places):
    slices = {"text_decoder": [[(0, 0, 1)], [(0, 1, 3), (1, 1, 3)]], "vision_tower": [[(1, 0, 2)]]}
    done = cs.merge(["one", "two"], "out", weights=[3, 1], slices=slices | {"multi_modal_projector": [[(0, 0, 0)]]})
    one, two = states("one", "two")
    found = read(done.output)
    name = f"{TEXTS}.2.mlp.weight"
    torch.testing.assert_close(found[name], (3 * one[name] + two[name]) / 4)
    assert torch.equal(found[f"{TEXTS}.0.mlp.weight"], one[f"{TEXTS}.0.mlp.weight"])
    assert torch.equal(found[f"{IMAGES}.0.mlp.weight"], two[f"{IMAGES}.0.mlp.weight"])
    assert json.loads((done.output / "merge.json").read_text())["recipe"]["slices"]["vision_tower"] == [[[1, 0, 2]]]


ALL = {"text_decoder": [[(0, 0, 3)]], "vision_tower": [[(0, 0, 2)]], "multi_modal_projector": [[(0, 0, 0)]]}


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        (ALL | {"audio_tower": [[(0, 0, 1)]]}, "has no module audio_tower; its modules are text_decoder, "
         "multi_modal_projector, vision_tower or default, language_model"),
        ({"text_decoder": ALL["text_decoder"]}, "has a module multi_modal_projector of 1 tensors, of which no"),
        (ALL | {"text_decoder": [[(0, 0, 4)]]}, "has 3 layers, and a slice takes 0 to 4"),
        (ALL | {"text_decoder": [[(0, 1, 1)]]}, "has 3 layers, and a slice takes 1 to 1"),
        (ALL | {"text_decoder": 3}, "slices of text_decoder: expected a list of slices, found 3"),
        ([[(0, 0, 2)]], "has layers in 2 places .* give slices by module"),
    ],
)  # fmt: skip
def test_modules_that_do_not_fit_are_refused(places, slices, message):
    with pytest.raises(cs.errors.ConsilienceError, match=message):
        cs.merge(["one"], "out", "passthrough", slices=slices)


def test_recipes_of_this_library_have_slices_too(places):
    (places / "recipe.yaml").write_text(
        "models: [one, two]\nmethod: passthrough\nslices:\n  text_decoder: [[[0, 0, 1]], [[1, 1, 3]]]\n"
        "  vision_tower: [[[1, 0, 2]]]\n  multi_modal_projector: [[[0, 0, 0]]]\n"
    )
    recipe = read_merge_recipe(places / "recipe.yaml")
    done = cs.merge(recipe.models, "out", recipe.method, slices=recipe.slices)
    assert torch.equal(read(done.output)[f"{TEXTS}.1.mlp.weight"], read("two")[f"{TEXTS}.1.mlp.weight"])
    (places / "recipe.yaml").write_text("models: [one]\nmethod: passthrough\nslices: [[[0, 0, 2]]]\n")
    assert read_merge_recipe(places / "recipe.yaml").slices == [[[0, 0, 2]]]
