"""BASE+ADAPTER is the base that peft makes of an adapter, of every type, and goes into merges as a checkpoint does."""

import json

import pytest
import torch
from safetensors.torch import load_file

import consilience as cs
from consilience.checkpoints.lora.into_base import split_adapters
from consilience.checkpoints.recipe import read_merge_recipe

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]

TOKENS = torch.tensor([[1, 5, 7, 2]])


def llama(seed=0, **config):
    """Return a small Llama."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True}  # fmt: skip
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(sizes | config))).eval()


def gpt2():
    """Return a small GPT-2, which stores its matrices with the inputs first."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=20, eos_token_id=1,
                                     bos_token_id=1, tie_word_embeddings=False)  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def adapted(folder, base, config, seed=1, name="adapter"):
    """Write a base and an adapter with random parameters; return their paths and the logits with the adapter."""
    if not (folder / "base").exists():
        base.save_pretrained(folder / "base")
    model = peft.get_peft_model(base, config).eval()
    draw = torch.Generator().manual_seed(seed)
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            noise = 0.3 * torch.randn(parameter.shape, generator=draw)
            parameter.data = parameter.data + noise if "magnitude" in key else noise + ("ia3" in key)
    model.save_pretrained(folder / name)
    with torch.no_grad():
        logits = model(TOKENS).logits
    return folder / "base", folder / name, logits


CONFIGS = {
    "lora": lambda: peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"]),
    "rslora, patterns": lambda: peft.LoraConfig(
        r=2,
        use_rslora=True,
        target_modules=["q_proj", "up_proj"],
        rank_pattern={"up_proj": 4},
        alpha_pattern={"q_proj": 3},
    ),
    "dora": lambda: peft.LoraConfig(r=2, use_dora=True, target_modules=["q_proj", "down_proj"]),
    "embedding": lambda: peft.LoraConfig(r=2, target_modules=["embed_tokens", "q_proj"]),
    "modules to save": lambda: peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head", "norm"]),
    "biases": lambda: peft.LoraConfig(r=2, target_modules=["q_proj"], bias="lora_only"),
    "bias of B": lambda: peft.LoraConfig(r=2, target_modules=["q_proj"], lora_bias=True),
    "tokens beside": lambda: peft.LoraConfig(
        r=2, target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [1, 5]}
    ),
    "loha": lambda: peft.LoHaConfig(r=2, alpha=3, target_modules=["q_proj", "up_proj"]),
    "lokr": lambda: peft.LoKrConfig(r=2, alpha=3, target_modules=["q_proj", "up_proj"], decompose_both=True),
    "lokr, full": lambda: peft.LoKrConfig(r=8, target_modules=["q_proj"]),
    "ia3": lambda: peft.IA3Config(target_modules=["q_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "vera": lambda: peft.VeraConfig(r=2, target_modules=["q_proj", "o_proj"]),
    "tokens": lambda: peft.TrainableTokensConfig(target_modules=["embed_tokens"], token_indices=[2, 5]),
    "norms": lambda: peft.LNTuningConfig(target_modules=["input_layernorm"]),
}


def logits_of(output, kind=transformers.AutoModelForCausalLM):
    """Return the logits of a merged checkpoint, in float32."""
    with torch.no_grad():
        return kind.from_pretrained(output, dtype=torch.float32).eval()(TOKENS).logits


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_adapter_goes_into_its_base_as_peft_merges_it(tmp_path, kind):
    base, adapter, expected = adapted(tmp_path, llama(), CONFIGS[kind]())
    plain = logits_of(base)
    assert (expected - plain).abs().max() > 1e-3
    done = cs.merge([f"{base}+{adapter}"], tmp_path / "out")
    torch.testing.assert_close(logits_of(done.output), expected, atol=2e-5, rtol=2e-5)
    names = [entry["name"] for entry in done.provenance["inputs"]]
    assert names == ["base+adapter"]


def test_matrices_with_inputs_first_are_turned(tmp_path):
    config = peft.LoraConfig(r=2, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    base, adapter, expected = adapted(tmp_path, gpt2(), config)
    done = cs.merge([f"{base}+{adapter}"], tmp_path / "out")
    torch.testing.assert_close(logits_of(done.output), expected, atol=2e-5, rtol=2e-5)


def test_models_with_adapters_are_merged_as_the_checkpoints_that_they_are(tmp_path):
    base, one, _ = adapted(tmp_path, llama(), CONFIGS["lora"](), 1, "one")
    _, other, _ = adapted(tmp_path, llama(), CONFIGS["dora"](), 2, "other")
    whole = [
        cs.merge([f"{base}+{path}"], tmp_path / f"{path.name} whole", dtype="float64").output for path in (one, other)
    ]
    options = {"method": "ties", "density": 0.3, "dtype": "float32"}
    done = cs.merge([f"{base}+{one}", f"{base}+{other}"], tmp_path / "out", base=base, **options)
    again = cs.merge(whole, tmp_path / "again", base=base, **options)
    first, second = (load_file(path.output / "model.safetensors") for path in (done, again))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_recipe_of_mergekit_names_adapters(tmp_path):
    _, _, expected = adapted(tmp_path, llama(), CONFIGS["lora"]())
    for model in ("base+adapter", "{model: base, lora: adapter}"):
        (tmp_path / "r.yaml").write_text(f"merge_method: passthrough\nmodels: [{{model: {model}}}]\n")
        recipe = read_merge_recipe(tmp_path / "r.yaml")
        done = cs.merge(recipe.models, tmp_path / "out", recipe.method, patterns=recipe.tensors, overwrite=True)
        torch.testing.assert_close(logits_of(done.output), expected, atol=2e-5, rtol=2e-5)


def test_a_path_with_a_plus_in_its_name_is_a_path(tmp_path):
    base, adapter, _ = adapted(tmp_path, llama(), CONFIGS["lora"]())
    base = base.rename(tmp_path / "c++ base")
    adapter = adapter.rename(tmp_path / "a+b")
    assert split_adapters(tmp_path / "c++ base") == (base, [])
    found = split_adapters(type(base)(f"{base}+{adapter}+{adapter}"))
    assert found == (base, [adapter, adapter])


@pytest.mark.parametrize(
    ("config", "message"),
    [(lambda: peft.OFTConfig(oft_block_size=4, target_modules=["q_proj"]), "is of type OFT; understood are LORA"),
     (lambda: peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"), "adds inputs and changes no"),
     (lambda: peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights="pissa"), "changed the base too")],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_name(tmp_path, config, message):
    llama().save_pretrained(tmp_path / "base")
    peft.get_peft_model(llama(), config()).save_pretrained(tmp_path / "adapter")
    with pytest.raises(cs.errors.InputError, match=message):
        cs.merge([f"{tmp_path / 'base'}+{tmp_path / 'adapter'}"], tmp_path / "out")


def test_an_adapter_of_another_base_is_refused(tmp_path):
    _, adapter, _ = adapted(tmp_path, llama(), CONFIGS["lora"]())
    for number, (config, message) in enumerate(
        [({"num_hidden_layers": 1}, "which .* does not have"), ({"hidden_size": 32}, "is for shape"),
         ({"tie_word_embeddings": True}, "ties to its other end")]
    ):  # fmt: skip
        other = tmp_path / f"other {number}"
        llama(**config).save_pretrained(other)
        path = adapter
        if "ties" in message:
            _, path, _ = adapted(tmp_path, llama(), CONFIGS["embedding"](), name="of embedding")
        with pytest.raises(cs.errors.InputError, match=message):
            cs.merge([f"{other}+{path}"], tmp_path / "out")


def test_rank_and_arrays_that_differ_are_refused(tmp_path):
    base, adapter, _ = adapted(tmp_path, llama(), CONFIGS["lora"]())
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"r": 3}))
    with pytest.raises(cs.errors.InputError, match="expected rank 3"):
        cs.merge([f"{base}+{adapter}"], tmp_path / "out")
