"""Recipes of mergekit are read as they are: the merge is that of its formulas, tensor by tensor."""

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.checkpoints.mergekit import METHODS
from consilience.checkpoints.methods import TENSOR_METHODS
from consilience.checkpoints.recipe import read_merge_recipe
from tests.checkpoints.some_checkpoints import read, write

LAYERS = 3
SHAPES = {"model.embed_tokens.weight": (10, 4)}
SHAPES |= {f"model.layers.{i}.self_attn.q_proj.weight": (4, 4) for i in range(LAYERS)}
SHAPES |= {f"model.layers.{i}.mlp.up_proj.weight": (6, 4) for i in range(LAYERS)}
SHAPES |= {"model.norm.weight": (4,), "lm_head.weight": (10, 4)}
CLOSE = {"rtol": 0, "atol": 5e-7}  # of float32, entries below 1


def state(seed):
    draw = torch.Generator().manual_seed(seed)
    return {name: 0.1 * torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("base", "one", "two")):
        write(tmp_path / name, state(seed))
    return tmp_path


@pytest.fixture
def run(places):
    """Merge as a recipe of mergekit says; return the tensors in float64 and the recipe's notes in one text."""

    def merge(text, dtype=None):
        (places / "recipe.yaml").write_text(text)
        recipe = read_merge_recipe(places / "recipe.yaml")
        assert {*recipe.model_fields_set} <= {
            "models", "method", "options", "weights", "base", "dtype", "tensors", "slices"
        }  # fmt: skip
        cs.merge(recipe.models, "out", recipe.method, base=recipe.base, weights=recipe.weights,
                 dtype=dtype or recipe.dtype, patterns=recipe.tensors, slices=recipe.slices,
                 overwrite=True, **recipe.options)  # fmt: skip
        return {name: values.double().numpy() for name, values in read("out").items()}, "\n".join(recipe.notes)

    return merge


BASE, ONE, TWO = ({name: values.double().numpy() for name, values in state(seed).items()} for seed in range(3))


def assert_merged(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], **CLOSE, err_msg=name)


def layer_of(name):
    return int(name.split(".")[2]) if ".layers." in name else None


def codes_of_rows(page, table):
    """Return by row what its cells have in backticks, of a table that ``experiments/write_tables.py`` writes."""
    block = re.search(rf"(?s)<!-- table: {table} -->\n(.*?)<!-- end -->", page)[1]
    return [[re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[1:-1]] for row in block.splitlines()[2:]]


def test_the_tables_of_the_page_have_all_methods_and_parameters_that_are_read_and_all_options_here():
    page = (Path(__file__).parents[2] / "docs/coming_from/mergekit.md").read_text()
    rows = codes_of_rows(page, "mergekit-methods")
    assert [name for theirs, *_ in rows for name in theirs] == list(METHODS)
    assert {ours[0] for _, ours, _ in rows[:-1]} | set(rows[-1][1]) == {method.name for method in TENSOR_METHODS}
    translated = {
        (method, parameter[0], *option)
        for parameter, option, _, _, methods in codes_of_rows(page, "mergekit-parameters")
        for method in methods
        if parameter
    }
    assert translated == {
        (method, name, *filter(None, [option]))
        for method, known in METHODS.items()
        for name, option in [
            *([("weight", "weights")] if known.is_weighted else []),
            *((name, option) for name, (option, _) in known.parameters.items()),
        ]
    }
    named = {option for _, options, *_ in codes_of_rows(page, "mergekit-parameters") for option in options}
    named |= {code.split("=")[0] for _, codes, _ in rows for code in codes}
    assert {option.name for method in TENSOR_METHODS for option in fields(method)} <= named


def test_a_linear_recipe(run):
    found, said = run("""
models:
  - model: one
    parameters: {weight: 1.0}
  - model: two
    parameters: {weight: 0.3}
merge_method: linear
dtype: float32
""")
    assert_merged(found, {name: (ONE[name] + 0.3 * TWO[name]) / 1.3 for name in SHAPES})
    assert "dtype is the type of the output" in said


def test_a_linear_sum_with_a_negative_weight(run):
    found, _ = run("""
models: [{model: one, parameters: {weight: 1.0}}, {model: two, parameters: {weight: -0.25}}]
merge_method: linear
parameters: {normalize: false}
""")
    assert_merged(found, {name: ONE[name] - 0.25 * TWO[name] for name in SHAPES})


def slerp(a, b, t):
    cosine = np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b)
    angle = np.arccos(cosine)
    return (np.sin((1 - t) * angle) * a + np.sin(t * angle) * b) / np.sin(angle)


def test_the_slerp_recipe_of_mergekits_front_page(run):
    """Filters with gradients over a slice of all layers; the base is the end at t = 0 wherever it is listed."""
    found, _ = run(
        """
slices:
  - sources:
      - model: one
        layer_range: [0, 3]
      - model: two
        layer_range: [0, 3]
merge_method: slerp
base_model: two
parameters:
  t:
    - filter: self_attn
      value: [0, 0.5, 0.3, 0.7, 1]
    - filter: mlp
      value: [1, 0.5, 0.7, 0.3, 0]
    - value: 0.5
dtype: bfloat16
""",
        dtype="float32",
    )
    gradient = {"self_attn": [0.0, 0.3, 1.0], "mlp": [1.0, 0.7, 0.0]}

    def t(name):
        return next((values[layer_of(name)] for part, values in gradient.items() if part in name), 0.5)

    assert_merged(found, {name: slerp(TWO[name], ONE[name], t(name)) for name in SHAPES})


def ties(changes, weights, densities):
    trimmed = []
    for change, density in zip(changes, densities, strict=True):
        threshold = np.sort(np.abs(change).ravel())[-max(1, round(density * change.size))]
        trimmed.append(np.where(np.abs(change) >= threshold, change, 0.0))
    sign = np.sign(sum(w * change for w, change in zip(weights, trimmed, strict=True)))
    agree = [change * sign > 0 for change in trimmed]
    total = sum(w * np.where(yes, change, 0.0) for w, change, yes in zip(weights, trimmed, agree, strict=True))
    mass = sum(w * yes for w, yes in zip(weights, agree, strict=True))
    return np.divide(total, mass, out=np.zeros_like(total), where=mass > 0)


def test_the_ties_recipe_of_mergekits_front_page(run):
    """Gradients of densities and weights, filters of weights, the base among the models, int8_mask."""
    found, said = run("""
models:
  - model: base
  - model: one
    parameters:
      density: [1, 0.7, 0.1] # density gradient
      weight: 1.0
  - model: two
    parameters:
      density: 0.33
      weight:
        - filter: mlp
          value: 0.5
        - value: 0
merge_method: ties
base_model: base
parameters:
  normalize: true
  int8_mask: true
""")
    density = {0: 1.0, 1: 0.7, 2: 0.1, None: 1.0}
    expected = {}
    for name in SHAPES:
        changes = [ONE[name] - BASE[name], TWO[name] - BASE[name]]
        weights = [1.0, 0.5 if "mlp" in name else 0.0]
        expected[name] = BASE[name] + ties(changes, weights, [density[layer_of(name)], 0.33])
    assert_merged(found, expected)
    assert "int8_mask changes memory only" in said


def test_task_arithmetic_with_lambda_and_a_negation(run):
    found, _ = run("""
models:
  - {model: one, parameters: {weight: 1.0}}
  - {model: two, parameters: {weight: -0.5}}
merge_method: task_arithmetic
base_model: base
parameters: {lambda: 0.8}
""")
    assert_merged(found, {name: BASE[name] + 0.8 * ((ONE[name] - BASE[name]) - 0.5 * (TWO[name] - BASE[name]))
                          for name in SHAPES})  # fmt: skip


@pytest.mark.parametrize("method", ["dare_linear", "dare_ties"])
def test_dare_of_density_one_is_the_undropped_sum(run, method):
    found, said = run(f"""
models: [{{model: one, parameters: {{weight: 0.4}}}}, {{model: two, parameters: {{weight: 0.0}}}}]
merge_method: {method}
base_model: base
parameters: {{density: 1.0}}
""")
    assert_merged(found, {name: BASE[name] + 0.4 * (ONE[name] - BASE[name]) for name in SHAPES})
    assert "divided by their probability" in said


def test_slices_have_gradients_of_their_own(run):
    found, _ = run("""
slices:
  - sources: [{model: one, layer_range: [0, 2]}, {model: two, layer_range: [0, 2]}]
    parameters: {t: [0.2, 0.6]}
  - sources: [{model: one, layer_range: [2, 3]}, {model: two, layer_range: [2, 3]}]
    parameters: {t: [0.0, 0.9]}
merge_method: slerp
base_model: one
""")
    place = {0: 0.2, 1: 0.6, 2: 0.9}  # a slice of one layer takes the last entry, what is outside the first
    outside = {"model.embed_tokens.weight": 0.2, "model.norm.weight": 0.0, "lm_head.weight": 0.0}  # of the last slice
    at = {name: outside.get(name, place.get(layer_of(name))) for name in SHAPES}
    assert_merged(found, {name: slerp(ONE[name], TWO[name], at[name]) for name in SHAPES})


def stacked(*layers):
    """Return what layers (state, number) make one behind another, the embedding of the first, the rest of the last."""
    first, last = layers[0][0], layers[-1][0]
    made = {"model.embed_tokens.weight": first["model.embed_tokens.weight"]}
    for number, (of, own) in enumerate(layers):
        for name in SHAPES:
            if layer_of(name) == own:
                made[name.replace(f".{own}.", f".{number}.")] = of[name]
    return made | {name: last[name] for name in ("model.norm.weight", "lm_head.weight")}


def test_layers_are_stacked_left_out_and_repeated(run, places):
    (places / "one" / "config.json").write_text('{"num_hidden_layers": 3, "layer_types": ["a", "b", "c"]}')
    (places / "two" / "config.json").write_text('{"num_hidden_layers": 3, "layer_types": ["d", "e", "f"]}')
    found, _ = run("""
slices:
  - sources: [{model: one, layer_range: [0, 2]}]
  - sources: [{model: two, layer_range: [1, 3]}]
  - sources: [{model: two, layer_range: [2, 3], parameters: {scale: 2.0}}]
merge_method: passthrough
""")
    expected = stacked((ONE, 0), (ONE, 1), (TWO, 1), (TWO, 2), (TWO, 2))
    last = ("model.layers.4.", "model.norm", "lm_head")
    assert_merged(found, {name: (2.0 if name.startswith(last) else 1.0) * one for name, one in expected.items()})
    config = json.loads((places / "out" / "config.json").read_text())
    assert config == {"num_hidden_layers": 5, "layer_types": ["a", "b", "e", "f", "f"]}


def test_different_layers_of_models_are_averaged(run):
    found, _ = run("""
slices:
  - sources: [{model: one, layer_range: [0, 2]}, {model: two, layer_range: [1, 3]}]
merge_method: linear
parameters: {weight: 1}
""")
    a, b = stacked((ONE, 0), (ONE, 1)), stacked((TWO, 1), (TWO, 2))
    assert_merged(found, {name: (a[name] + b[name]) / 2 for name in a})


def test_slices_may_have_different_numbers_of_models(run):
    """As in frankenmerges: some layers of one model, others the mean of two; weights are of each slice's own."""
    found, _ = run("""
slices:
  - sources: [{model: one, layer_range: [0, 1], parameters: {weight: 0.5}}]
  - sources:
      - {model: two, layer_range: [0, 2], parameters: {weight: 3}}
      - {model: one, layer_range: [1, 3], parameters: {weight: 1}}
  - sources: [{model: two, layer_range: [2, 3], parameters: {weight: 1}}]
merge_method: linear
""")
    a, b = stacked((ONE, 0), (TWO, 0), (TWO, 1), (TWO, 2)), stacked((ONE, 0), (ONE, 1), (ONE, 2), (TWO, 2))
    expected = {name: (3 * a[name] + b[name]) / 4 if layer_of(name) in (1, 2) else a[name] for name in a}
    assert_merged(found, expected)


def test_a_change_of_one_model_stands_behind_the_changes_of_two(run):
    found, _ = run("""
slices:
  - sources: [{model: base, layer_range: [0, 2]}, {model: one, layer_range: [0, 2]}, {model: two, layer_range: [0, 2]}]
  - base_model: base
    sources: [{model: two, layer_range: [2, 3]}]
merge_method: task_arithmetic
base_model: base
parameters: {weight: 0.5}
""")
    both = {name: BASE[name] + 0.5 * (ONE[name] + TWO[name] - 2 * BASE[name]) for name in SHAPES}
    alone = {name: BASE[name] + 0.5 * (TWO[name] - BASE[name]) for name in SHAPES}
    last = ("model.layers.2.", "model.norm", "lm_head")
    assert_merged(found, {name: (alone if name.startswith(last) else both)[name] for name in SHAPES})


def test_a_slice_of_one_model_has_no_arc(places):
    (places / "recipe.yaml").write_text(
        "merge_method: slerp\nbase_model: one\nparameters: {t: 0.5}\nslices:\n"
        "- sources: [{model: one, layer_range: [0, 1]}, {model: two, layer_range: [0, 1]}]\n"
        "- sources: [{model: one, layer_range: [1, 3]}]\n"
    )
    with pytest.raises(cs.errors.FileFormatError, match="method slerp takes two models, found 1"):
        read_merge_recipe(places / "recipe.yaml")


def test_a_model_that_is_named_twice_counts_twice(run):
    found, _ = run("""
models:
  - {model: one, parameters: {weight: 1}}
  - {model: two, parameters: {weight: 1}}
  - {model: one, parameters: {weight: 2}}
merge_method: linear
""")
    assert_merged(found, {name: (3 * ONE[name] + TWO[name]) / 4 for name in SHAPES})


@pytest.mark.parametrize(
    ("text", "method", "options", "base"),
    [
        ("merge_method: della_linear\nbase_model: base\n"
         "parameters: {weight: 1, density: 0.6, epsilon: 0.1, lambda: -1}",
         "della", {"combine": "linear", "normalize": False, "density": 0.6, "epsilon": 0.1, "scaling": -1.0}, True),
        ("merge_method: breadcrumbs_ties\nbase_model: base\nparameters: {weight: 1, density: 0.9, gamma: 0.05}",
         "breadcrumbs", {"combine": "ties", "density": 0.9, "gamma": 0.05}, True),
        ("merge_method: breadcrumbs\nbase_model: base\nparameters: {weight: 1}", "breadcrumbs",
         {"density": 1.0, "gamma": 0.0}, True),
        ("merge_method: nuslerp\nparameters: {weight: 1, nuslerp_flatten: false, nuslerp_row_wise: true}", "nuslerp",
         {"axis": "columns"}, False),
        ("merge_method: nuslerp\nbase_model: base\nparameters: {weight: 1, nuslerp_flatten: false}", "nuslerp",
         {"axis": "rows"}, True),
        ("merge_method: multislerp\nbase_model: base\nparameters: {weight: 1}", "multislerp",
         {"normalize": True}, True),
        ("merge_method: model_stock\nbase_model: base\nparameters: {filter_wise: true}", "model_stock",
         {"axis": "rows"}, True),
        ("merge_method: sce\nbase_model: base\nparameters: {select_topk: 0.3}", "sce", {"select": 0.3}, True),
        ("merge_method: ramplus_tl\nbase_model: base", "ram", {"boost": 0.1, "limit": 0.2, "epsilon": 1e-5}, True),
        ("merge_method: karcher\nparameters: {max_iter: 5}", "karcher", {"max_iterations": 5}, False),
        ("merge_method: dare_ties\nbase_model: base\nparameters: {weight: -0.5, density: 0.5, rescale: false}", "dare",
         {"combine": "ties", "rescale": False}, True),
    ],
)  # fmt: skip
def test_every_method_is_read_as_ours(run, places, text, method, options, base):
    run(f"models: [{{model: one}}, {{model: two}}]\n{text}")
    recipe = read_merge_recipe(places / "recipe.yaml")
    assert recipe.method == method
    assert options.items() <= recipe.options.items()
    assert (recipe.base is not None) == base


def test_one_model_beside_its_base(run):
    for text in (
        "merge_method: nearswap\nbase_model: base\nparameters: {t: 0.01}",
        "merge_method: arcee_fusion\nbase_model: base",
    ):
        found, _ = run(f"models: [{{model: one}}]\n{text}")
        assert found.keys() == SHAPES.keys()


def test_a_base_is_one_of_the_models_of_a_karcher_mean(run, places):
    run("models: [{model: one}, {model: two}]\nmerge_method: karcher\nbase_model: base")
    models = read_merge_recipe(places / "recipe.yaml").models
    assert [model.rpartition("/")[2] for model in models] == ["base", "one", "two"]


def test_weights_that_are_all_zero_leave_the_base(run):
    found, _ = run("""
models: [{model: one, parameters: {weight: [{filter: mlp, value: 1.0}, {value: 0.0}]}}]
merge_method: ties
base_model: base
""")
    assert_merged(found, {name: ONE[name] if "mlp" in name else BASE[name] for name in SHAPES})


def test_models_are_found_beside_the_recipe_here_and_in_the_hubs_cache(places, monkeypatch):
    snapshot = places / "cache" / "models--org--name" / "snapshots" / "abc"
    write(snapshot, state(5))
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(places / "cache"))
    (places / "recipes").mkdir()
    write(places / "recipes" / "near", state(6))
    recipe = places / "recipes" / "recipe.yaml"
    models = "[{model: near}, {model: one}, {model: org/name}, {model: {path: org/name, revision: abc}}]"
    recipe.write_text(f"merge_method: linear\nparameters: {{weight: 1}}\nmodels: {models}\n")
    found = read_merge_recipe(recipe).models
    assert found[0].endswith("recipes/near")
    assert found[1] == "one"
    assert found[2:] == [str(snapshot)] * 2


HEAD = "models: [{model: one, parameters: {weight: 1}}, {model: two, parameters: {weight: 1}}]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "merge_method: mean", "method 'mean' does not exist; there are linear"),
        (HEAD, "has mergekit's form and no merge_method"),
        (HEAD + "merge_method: ties", "method ties needs a base_model"),
        (HEAD + "merge_method: slerp\nparameters: {t: 0.5}", "method slerp needs a base_model"),
        (HEAD + "merge_method: linear\nmodules: {}", "needs models, slices or modules, one of them"),
        ("merge_method: linear\nmodules: {}", "modules must be a mapping"),
        ("merge_method: linear\nmodules: {default: {}}", "module default needs models or slices, one of them"),
        ("merge_method: linear\nmodules: {default: {models: [one], merge_method: ties}}",
         "module default has merge_method, which is not understood"),
        ("merge_method: linear\nslices: [{sources: [{model: one, layer_range: [0, 3]}], residual_weight: 1}]",
         "a slice has residual_weight"),
        ("merge_method: ties\nbase_model: base\nparameters: {weight: 1}\nslices: [{sources: [{model: base, "
         "layer_range: [0, 2]}, {model: one, layer_range: [1, 3]}]}]",
         r"layers \(0, 2\) of the base and \(1, 3\) of a change"),
        ("merge_method: ties\nparameters: {weight: 1}\nslices: [{base_model: base, sources: [{model: one, layer_range: "
         "[0, 2]}]}, {base_model: two, sources: [{model: one, layer_range: [2, 3]}]}]", "different base models"),
        (HEAD + "merge_method: linear\nparameters: {wieght: 1}",
         r"'linear' has no parameter wieght, did you mean weight\?; it has weight"),
        (HEAD + "merge_method: linear\nslices: []", "needs models, slices or modules, one of them"),
        ("models: [{model: one}]\nmerge_method: linear", "nothing says the weight of .* of one"),
        ("models: [{model: one, parameters: {weight: much}}]\nmerge_method: linear", "weight must be a number"),
        ("models: [{model: one, lora: x}]\nmerge_method: linear", "a model has lora"),
        ("models: [{model: one+adapter}]\nmerge_method: linear", "adapter is no folder next to it"),
        ("models: [{model: nowhere/at-all}]\nmerge_method: linear", "nor in the hub's cache; fetch it: hf download"),
        ("models: [{name: one}]\nmerge_method: linear", "a model must be named as model: PATH"),
        ("models: []\nmerge_method: linear", "models must be a list"),
        ("base_model: one\ngate_mode: hidden\nexperts: []", "has gate_mode, a key of mergekit-moe"),
        ("merge_method: linear\nparameters: {weight: 1}\nslices: [{sources: [{model: one, layer_range: [0, 4]}]}]",
         "takes layers 0 to 4 of one, which has 3"),
        ("merge_method: linear\nparameters: {weight: 1}\nslices: [{sources: [{model: one, layer_range: [0, 2]}, "
         "{model: two, layer_range: [1, 2]}]}]", "unequal numbers of layers"),
        ("merge_method: passthrough\nslices: [{sources: [{model: one}]}]", "a source needs layer_range"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_named(places, text, message):
    recipe = places / "recipe.yaml"
    recipe.write_text(text)
    with pytest.raises(cs.errors.FileFormatError, match=message):
        read_merge_recipe(recipe)


def test_ours_and_theirs_are_told_apart(places):
    recipe = places / "recipe.yaml"
    recipe.write_text("models: [one, two]\nmethod: slerp\n")
    assert read_merge_recipe(recipe).method == "slerp"
    assert not read_merge_recipe(recipe).notes
