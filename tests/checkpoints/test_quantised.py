"""Quantised checkpoints are refused by their method wherever their tensors are packed; dequantised ones are merged."""

import json

import pytest
import torch
from safetensors.torch import save_file

import consilience as cs
from tests.checkpoints.some_adapters import factors, write_adapter
from tests.checkpoints.some_checkpoints import read, same_bits, tensors, write

GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4}}


def packed(seed):
    draw = torch.Generator().manual_seed(seed)
    ints = torch.randint(0, 100, (2, 4), generator=draw, dtype=torch.int32)
    return {"l.qweight": ints, "l.qzeros": ints[:1].clone(), "l.scales": torch.rand(1, 4, generator=draw).half()}


def pair(tmp_path, make=packed, config=None):
    return [write(tmp_path / name, make(seed), config) for seed, name in enumerate("ab")]


@pytest.mark.parametrize("config", [None, GPTQ])
@pytest.mark.parametrize("method", ["average", "ties", "slerp"])
def test_a_merge_refuses_packed_weights_by_their_method(tmp_path, config, method):
    base = {"base": write(tmp_path / "base", packed(7))} if method == "ties" else {}
    with pytest.raises(
        cs.errors.InputError, match=r"a: is quantised by (AWQ or GPTQ|gptq) .*; dequantise it first"
    ) as refused:
        cs.merge(pair(tmp_path, config=config), tmp_path / "out", method, **base)
    assert len(refused.value.problems) == 2 + len(base)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("act", [cs.fuse, cs.check], ids=["fuse", "check"])
@pytest.mark.parametrize("where", ["files", "state dicts"])
def test_fuse_and_check_refuse_packed_weights(tmp_path, act, where):
    files = [folder / "model.safetensors" for folder in pair(tmp_path, config=GPTQ)]
    models = files if where == "files" else [packed(0), packed(1)]
    found = "gptq" if where == "files" else "AWQ or GPTQ"
    try:
        problems = act(models, "average")
    except cs.errors.InputError as error:
        problems = error.problems
    assert all(f"is quantised by {found} (l.qweight)" in problem for problem in problems)
    assert len(problems) == 2


def test_single_files_are_refused_by_the_configuration_beside_them(tmp_path):
    files = [folder / "model.safetensors" for folder in pair(tmp_path, config=GPTQ)]
    with pytest.raises(cs.errors.InputError, match="is quantised by gptq"):
        cs.merge(files, tmp_path / "out.safetensors")


def test_a_quantised_model_beside_a_whole_one_is_one_line(tmp_path):
    models = [write(tmp_path / "a", tensors(0)), write(tmp_path / "b", packed(1), GPTQ)]
    with pytest.raises(cs.errors.InputError, match="b: is quantised by gptq") as refused:
        cs.merge(models, tmp_path / "out")
    assert len(refused.value.problems) == 1


def test_a_recipe_of_mergekit_is_refused_alike(tmp_path):
    from consilience.checkpoints.recipe import read_merge_recipe

    pair(tmp_path)
    recipe = tmp_path / "recipe.yaml"
    models = "models: [{model: a, parameters: {weight: 1}}, {model: b, parameters: {weight: 1}}]"
    recipe.write_text(f"{models}\nmerge_method: linear\n")
    read = read_merge_recipe(recipe)
    with pytest.raises(cs.errors.InputError, match="is quantised by AWQ or GPTQ"):
        cs.merge(read.models, tmp_path / "out", read.method)


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_floats_that_only_the_configuration_calls_quantised_are_merged_and_the_output_does_not(tmp_path, dtype):
    models = pair(tmp_path, tensors, {"text_config": GPTQ, **GPTQ})
    (models[0] / "quantize_config.json").write_text('{"bits": 4}')
    done = cs.merge(models, tmp_path / "out", dtype=dtype)
    plain = cs.merge(pair(tmp_path / "plain", tensors), tmp_path / "out2", dtype=dtype)
    assert same_bits(read(done.output), read(plain.output))
    assert "quantization_config" not in (done.output / "config.json").read_text()
    assert not (done.output / "quantize_config.json").exists()
    assert sum("its configuration says that it is quantised by gptq" in note for note in done.notes) == 2


def test_adapters_of_a_quantised_base_are_merged(tmp_path):
    models = [write_adapter(tmp_path / name, factors(seed)) for seed, name in enumerate("ab")]
    for model in models:  # as trainers save it beside the adapter
        (model / "config.json").write_text(json.dumps({"model_type": "llama", **GPTQ}))
    assert cs.merge(models, tmp_path / "out").digests


@pytest.mark.parametrize("act", ["merge", "fuse"])
def test_the_state_of_an_optimiser_in_safetensors_is_refused(tmp_path, act):
    paths = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for seed, path in enumerate(paths):
        save_file({f"state.0.{part}": torch.full((3,), float(seed)) for part in ("exp_avg", "exp_avg_sq")}, path)
    call = (lambda: cs.merge(paths, tmp_path / "out")) if act == "merge" else (lambda: cs.fuse(paths, "average"))
    with pytest.raises(cs.errors.InputError, match=r"a\.safetensors: has the state of an optimiser"):
        call()
