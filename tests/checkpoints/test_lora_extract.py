"""An adapter that is extracted from a fine-tune is the nearest of its rank, and peft makes the fine-tune of it."""

import json

import pytest
import torch
from safetensors.torch import load_file

import consilience as cs
from tests.checkpoints.some_adapters import changes
from tests.checkpoints.some_checkpoints import write

SIZES = {"model.layers.0.q_proj.weight": (12, 8), "model.layers.0.up_proj.weight": (20, 8)}


def states(rank=None, seed=0):
    """Return a base and a fine-tune, whose changes are of a rank."""
    draw = torch.Generator().manual_seed(seed)
    base = {name: torch.randn(size, generator=draw) for name, size in SIZES.items()}
    base |= {"model.norm.weight": torch.ones(8), "model.embed_tokens.weight": torch.randn(10, 8, generator=draw)}
    tuned = dict(base)
    for name, (outputs, inputs) in SIZES.items():
        change = torch.randn(outputs, inputs, generator=draw, dtype=torch.float64)
        if rank is not None:
            left, values, right = torch.linalg.svd(change, full_matrices=False)
            change = (left[:, :rank] * values[:rank]) @ right[:rank]
        tuned[name] = (base[name].double() + 0.1 * change).float()
    return base, tuned


def test_what_was_added_to_the_base_is_extracted_again(tmp_path):
    base, tuned = states(rank=3)
    paths = [write(tmp_path / name, state) for name, state in (("base", base), ("tuned", tuned))]
    done = cs.extract_adapter(paths[1], paths[0], tmp_path / "adapter", rank=3)
    assert done.error < 1e-5
    assert not done.notes
    again = load_file(cs.merge([f"{paths[0]}+{done.output}"], tmp_path / "again").output / "model.safetensors")
    for name, values in tuned.items():
        torch.testing.assert_close(again[name], values, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rank", [1, 4, 100])
def test_a_rank_keeps_the_leading_singular_values(tmp_path, rank):
    base, tuned = states()
    paths = [write(tmp_path / name, state) for name, state in (("base", base), ("tuned", tuned))]
    done = cs.extract_adapter(paths[1], paths[0], tmp_path / "adapter", rank=rank)
    found = changes(done.output)
    assert json.loads((done.output / "adapter_config.json").read_text())["r"] == min(rank, 8)
    for name in SIZES:
        exact, module = tuned[name].double() - base[name].double(), name.removesuffix(".weight")
        tail = float(torch.linalg.svdvals(exact)[rank:].norm() / exact.norm())
        assert float((found[module] - exact).norm() / exact.norm()) == pytest.approx(tail, abs=1e-6)
        assert done.errors[module] == pytest.approx(tail, rel=0.06, abs=1e-6)


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_share_of_energy_decides_the_rank_of_every_module(tmp_path, share):
    base, tuned = states()
    paths = [write(tmp_path / name, state) for name, state in (("base", base), ("tuned", tuned))]
    done = cs.extract_adapter(paths[1], paths[0], tmp_path / "adapter", rank=share)
    found = changes(done.output)
    for name in SIZES:
        module = name.removesuffix(".weight")
        energies = torch.linalg.svdvals(tuned[name].double() - base[name].double()).square()
        rank = int(torch.linalg.matrix_rank(found[module], rtol=1e-5))
        assert energies[:rank].sum() >= share * energies.sum() > energies[: rank - 1].sum()
        assert done.errors[module] ** 2 <= (1 - share) * 1.1
    with pytest.raises(cs.errors.OptionError, match=r"rank: expected a positive integer, or a share .* found 1\.5"):
        cs.extract_adapter(paths[1], paths[0], tmp_path / "other", rank=1.5)


def test_what_has_no_factors_is_saved_whole_or_told(tmp_path):
    base, tuned = states()
    tuned["model.norm.weight"] = torch.full((8,), 1.5)
    paths = [write(tmp_path / name, state) for name, state in (("base", base), ("tuned", tuned))]
    done = cs.extract_adapter(paths[1], paths[0], tmp_path / "saved", rank=8)
    config = json.loads((done.output / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["model.norm"]
    again = load_file(cs.merge([f"{paths[0]}+{done.output}"], tmp_path / "again").output / "model.safetensors")
    torch.testing.assert_close(again["model.norm.weight"], tuned["model.norm.weight"])
    dropped = cs.extract_adapter(paths[1], paths[0], tmp_path / "dropped", rest="drop")
    assert dropped.notes == ("model.norm.weight changed by 5.0e-01 of its size, which the adapter does not have",)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rank": 0}, "rank: expected a positive"), ({"rest": "keep"}, "rest: expected"), ({"dtype": "int8"}, "dtype")],
)
def test_options_that_are_none_are_refused(tmp_path, options, message):
    with pytest.raises(cs.errors.OptionError, match=message):
        cs.extract_adapter(tmp_path / "a", tmp_path / "b", tmp_path / "c", **options)


def test_models_that_do_not_differ_or_do_not_fit_are_refused(tmp_path):
    base, tuned = states()
    paths = [write(tmp_path / name, state) for name, state in (("base", base), ("tuned", tuned))]
    with pytest.raises(cs.errors.InputError, match="changes no linear map"):
        cs.extract_adapter(paths[0], paths[0], tmp_path / "out")
    other = write(tmp_path / "other", base | {"model.norm.weight": torch.ones(9)})
    with pytest.raises(cs.errors.InputError, match=r"model\.norm\.weight has shape"):
        cs.extract_adapter(paths[1], other, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_peft_makes_the_fine_tune_of_it(tmp_path, kind):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "llama":
        config = transformers.LlamaConfig(
            vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, attention_bias=True,
        )  # fmt: skip
        make = transformers.LlamaForCausalLM
    else:
        config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=20, eos_token_id=1,
                                         bos_token_id=1)  # fmt: skip
        make = transformers.GPT2LMHeadModel
    model = make(config).eval()
    model.save_pretrained(tmp_path / "base")
    for name, parameter in model.named_parameters():
        if "embed" not in name and "wte" not in name and "wpe" not in name and "lm_head" not in name:
            parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "tuned")
    tokens = torch.tensor([[1, 5, 7, 2]])
    expected = model(tokens).logits.detach()
    done = cs.extract_adapter(tmp_path / "tuned", tmp_path / "base", tmp_path / "adapter", rank=64)
    loaded = peft.PeftModel.from_pretrained(
        make.from_pretrained(tmp_path / "base", dtype=torch.float32), done.output
    ).eval()
    torch.testing.assert_close(loaded(tokens).logits.detach(), expected, atol=2e-5, rtol=2e-5)
