"""Adapters averaged factor by factor, whose base takes what that leaves out: base' + adapter' = base + mean(B A)."""

import json

import pytest
import torch
from safetensors.torch import load_file

import consilience as cs
from tests.checkpoints.some_adapters import CONFIG, PREFIX, SIZES, changes, factors, write_adapter
from tests.checkpoints.some_checkpoints import write
from tests.checkpoints.test_lora_files import UNET, changes_of_kohya, expected, kohya, mean

EXACT = 1e-6  # float32, rounded once


def base(folder, dtype=torch.float32, sizes=SIZES):
    draw = torch.Generator().manual_seed(9)
    state = {f"{module}.weight": torch.randn(size, generator=draw).to(dtype) for module, size in sizes.items()}
    return write(folder, state | {"model.norm.weight": torch.ones(8, dtype=dtype)})


def made_of(start, adapter, before):
    """Return what a base and an adapter together add to another base, by module, in float64."""
    stored, first = load_file(start / "model.safetensors"), load_file(before / "model.safetensors")
    added = changes(adapter)
    return {
        module: stored[f"{module}.weight"].double() - first[f"{module}.weight"].double() + added[module]
        for module in added
    }


@pytest.mark.parametrize("weights", [None, [1.0, 3.0], [1.0, 0.0]])
def test_the_changed_base_with_the_adapter_is_the_base_with_the_mean_of_the_products(tmp_path, weights):
    models = [write_adapter(tmp_path / name, factors(seed), lora_alpha=8 - 3 * seed) for seed, name in enumerate("ab")]
    start = base(tmp_path / "base")
    done = cs.merge(models, tmp_path / "out", base=start, weights=weights, residual_into_base=True)
    shares = [weight / sum(weights or [1, 1]) for weight in weights or [1, 1]]
    a, b = map(changes, models)
    found = made_of(done.output / "base", done.output / "adapter", start)
    for module in SIZES:
        wanted = shares[0] * a[module] + shares[1] * b[module]
        assert (found[module] - wanted).norm() <= EXACT * wanted.norm()
    untouched = load_file(done.output / "base" / "model.safetensors")["model.norm.weight"]
    assert torch.equal(untouched, torch.ones(8))


def test_the_adapter_is_the_mean_of_the_factors_with_its_rank_and_scale(tmp_path):
    models = [write_adapter(tmp_path / name, factors(seed)) for seed, name in enumerate("ab")]
    done = cs.merge(models, tmp_path / "out", base=base(tmp_path / "base"), residual_into_base=True)
    stored = load_file(done.output / "adapter" / "adapter_model.safetensors")
    for name, one in factors(0).items():
        torch.testing.assert_close(stored[name], (one + factors(1)[name]) / 2)
    config = json.loads((done.output / "adapter" / "adapter_config.json").read_text())
    assert config == {**CONFIG, "base_model_name_or_path": "out/base", "revision": None}
    assert done.digests.keys() == {"adapter/adapter_model.safetensors", "base/model.safetensors"}
    # The control: without its base the adapter is far from the mean.
    for module, change in changes(done.output / "adapter").items():
        wanted = (changes(models[0])[module] + changes(models[1])[module]) / 2
        missing = float((change - wanted).norm() / wanted.norm())
        assert missing > 0.3
        assert done.provenance["details"]["adapters"]["residual"][module] == pytest.approx(missing, rel=0.06)


def test_rounding_of_a_base_in_sixteen_bits_is_stated(tmp_path):
    models = [write_adapter(tmp_path / name, factors(seed)) for seed, name in enumerate("ab")]
    start = base(tmp_path / "base", torch.bfloat16)
    done = cs.merge(models, tmp_path / "out", base=start, residual_into_base=True, overwrite=True)
    wanted = {module: (changes(models[0])[module] + changes(models[1])[module]) / 2 for module in SIZES}
    found = made_of(done.output / "base", done.output / "adapter", start)
    stated = done.provenance["details"]["base"]["rounding"]
    for module, change in wanted.items():
        assert stated[module] == pytest.approx(float((found[module] - change).norm() / change.norm()), rel=0.06)
    assert any("rounding the base changes the mean of the products by" in note for note in done.notes)
    wide = cs.merge(models, tmp_path / "out", base=start, residual_into_base=True, dtype="float32", overwrite=True)
    assert wide.provenance["details"]["base"]["error"] < EXACT


def test_a_single_adapter_leaves_the_base_as_it_is(tmp_path):
    model, start = write_adapter(tmp_path / "a", factors(0)), base(tmp_path / "base")
    done = cs.merge([model], tmp_path / "out", base=start, residual_into_base=True)
    before, after = (load_file(folder / "model.safetensors") for folder in (start, done.output / "base"))
    for name, values in before.items():
        torch.testing.assert_close(after[name], values, atol=1e-6, rtol=0)


def test_files_of_kohya_have_a_residual_too(tmp_path):
    ranks = (2, 2, 2, 2)
    files = [kohya(tmp_path / f"{n}.safetensors", n, alpha=3.0 - n, text=False, ranks=ranks) for n in range(2)]
    start = base(tmp_path / "base", sizes=UNET)
    done = cs.merge(files, tmp_path / "out", base=start, residual_into_base=True)
    added = changes_of_kohya(done.output / "adapter" / "pytorch_lora_weights.safetensors")
    before, after = (load_file(folder / "model.safetensors") for folder in (start, done.output / "base"))
    wanted = mean([expected(n, 3.0 - n, text=False, ranks=ranks) for n in range(2)])
    for module in UNET:
        key = "unet", module.replace(".", "_")
        found = after[f"{module}.weight"].double() - before[f"{module}.weight"].double() + added[key]
        torch.testing.assert_close(found, wanted[key], atol=2e-6, rtol=1e-5)
    both = [kohya(tmp_path / f"t{n}.safetensors", n, ranks=ranks) for n in range(2)]
    with pytest.raises(cs.errors.InputError, match=r"changes lora_te_text_model.* does not have"):
        cs.merge(both, tmp_path / "out2", base=start, residual_into_base=True)


def test_a_dry_run_has_the_bytes_of_both_folders(tmp_path):
    models = [write_adapter(tmp_path / name, factors(seed)) for seed, name in enumerate("ab")]
    options = {"base": base(tmp_path / "base"), "residual_into_base": True}
    planned = cs.merge(models, tmp_path / "out", dry_run=True, **options)
    assert not planned.output.exists()
    done = cs.merge(models, tmp_path / "out", **options)
    for merge in (planned, done):
        sizes = {shard.name: shard.nbytes for shard in merge.plan.shards}
        assert sizes == {name: (done.output / name).stat().st_size for name in done.digests}


@pytest.mark.parametrize(
    ("first", "options", "error", "message"),
    [
        ({}, {"base": None}, cs.errors.InputError, "base: is not given, and the residual goes into it"),
        ({}, {"rank": 2}, cs.errors.OptionError, "keeps the rank of the adapters"),
        ({}, {"method": "ties"}, cs.errors.OptionError, "is of means factor by factor, found the method 'ties'"),
        ({"ranks": {"model.layers.0.q_proj": 2}}, {}, cs.errors.InputError, "layers.0.q_proj has rank 4, in .*a 2"),
        ({"modules": list(SIZES)[:2]}, {}, cs.errors.InputError, "layers.1.q_proj is not a module of both this and"),
    ],
)
def test_what_has_no_mean_of_factors_is_refused(tmp_path, first, options, error, message):
    ranks = {"rank_pattern": dict(first.get("ranks", {}))}
    models = [write_adapter(tmp_path / "a", factors(0, **first), **ranks), write_adapter(tmp_path / "b", factors(1))]
    with pytest.raises(error, match=message):
        cs.merge(models, tmp_path / "out", **{"base": base(tmp_path / "base"), "residual_into_base": True, **options})
    assert not (tmp_path / "out").exists()


def test_whole_models_have_no_residual(tmp_path):
    models = [base(tmp_path / name) for name in "ab"]
    with pytest.raises(cs.errors.OptionError, match="is of adapters, and these are whole models"):
        cs.merge(models, tmp_path / "out", residual_into_base=True)


def test_a_tied_head_is_refused(tmp_path):
    embed = {f"{PREFIX}model.embed_tokens.lora_embedding_A": torch.ones(2, 10),
             f"{PREFIX}model.embed_tokens.lora_embedding_B": torch.ones(8, 2)}  # fmt: skip
    models = [write_adapter(tmp_path / name, embed, r=2, target_modules=["embed_tokens"]) for name in "ab"]
    start = write(tmp_path / "base", {"model.embed_tokens.weight": torch.ones(10, 8)})
    (start / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    with pytest.raises(cs.errors.InputError, match="ties to its other end"):
        cs.merge(models, tmp_path / "out", base=start, residual_into_base=True)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["llama", "embedding", "gpt2"])
def test_peft_loads_both_and_answers_as_the_base_with_the_mean(tmp_path, kind):
    peft = pytest.importorskip("peft")
    from tests.checkpoints.test_lora_into_base import TOKENS, adapted, gpt2, llama, transformers

    def start():
        return gpt2() if kind == "gpt2" else llama()

    def config():
        targets = {"llama": ["q_proj", "up_proj"], "embedding": ["embed_tokens", "q_proj"], "gpt2": ["c_attn"]}[kind]
        return peft.LoraConfig(r=2, lora_alpha=3, target_modules=targets, fan_in_fan_out=kind == "gpt2")

    before, one, _ = adapted(tmp_path, start(), config(), 1, "one")
    _, two, _ = adapted(tmp_path, start(), config(), 2, "two")
    done = cs.merge([one, two], tmp_path / "out", base=before, residual_into_base=True)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(done.output / "base")
    exact = cs.merge([one, two], tmp_path / "exact")
    plain = transformers.AutoModelForCausalLM.from_pretrained(before)
    with torch.no_grad():
        found = peft.PeftModel.from_pretrained(loaded, done.output / "adapter").eval()(TOKENS).logits
        wanted = peft.PeftModel.from_pretrained(plain, exact.output).eval()(TOKENS).logits
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)
    into = cs.merge([f"{done.output / 'base'}+{done.output / 'adapter'}"], tmp_path / "whole")
    with torch.no_grad():
        whole = transformers.AutoModelForCausalLM.from_pretrained(into.output).eval()(TOKENS).logits
    torch.testing.assert_close(whole, wanted, atol=2e-5, rtol=2e-5)
