"""Configurations and tokenizers that no shape tells apart are compared, and both values said."""

import json

import pytest

import consilience as cs
from tests.checkpoints.some_checkpoints import tensors, write

LLAMA = {"model_type": "llama", "hidden_size": 16, "num_attention_heads": 4, "rope_theta": 10000.0,
         "hidden_act": "silu", "rms_norm_eps": 1e-6}  # fmt: skip


def pair(tmp_path, first, second):
    return [write(tmp_path / name, tensors(seed), config) for seed, (name, config) in
            enumerate((("a", first), ("b", second)))]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rope_theta": 500000.0}, r"b: config\.json: rope_theta is 500000\.0, in .*a 10000\.0"),
        ({"model_type": "mistral"}, "model_type is mistral, in .*a llama"),
        ({"hidden_act": "gelu"}, "hidden_act is gelu, in .*a silu"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05, in .*a 1e-06"),
        ({"num_attention_heads": 2}, "num_attention_heads is 2, in .*a 4"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2, in .*a 4"),  # as many as heads where it is not stated
        ({"head_dim": 8}, "head_dim is 8, in .*a 4"),
        ({"attention_bias": True}, "attention_bias is true, in .*a false"),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, r"rope_theta is 1000000\.0, in .*a 1000"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is .*linear.*, in .*a null"),
    ],
)  # fmt: skip
def test_what_shapes_do_not_show_is_refused_with_both_values(tmp_path, changed, message):
    models = pair(tmp_path, LLAMA, LLAMA | changed)
    with pytest.raises(cs.errors.InputError, match=message):
        cs.merge(models, tmp_path / "out")
    field = str(next(iter(changed))).replace("rope_parameters", "rope_theta")
    with pytest.raises(cs.errors.InputError, match=message):
        cs.merge(models, tmp_path / "out", allow_differences=["tokenizer", "vocab_size"])
    named = cs.merge(models, tmp_path / "named", allow_differences=[field, "head_dim", "num_key_value_heads"])
    assert any(field in note for note in named.notes)
    done = cs.merge(models, tmp_path / "out", allow_differences=True)
    assert any(str(next(iter(changed))).replace("rope_parameters", "rope_theta") in note for note in done.notes)


MISTRAL = LLAMA | {"model_type": "mistral"}


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        ({"sliding_window": 4096}, {"sliding_window": None}, "sliding_window is null, in .*a 4096"),
        ({}, {"sliding_window": None}, "sliding_window is null, in .*a 4096"),  # which Mistral has where nobody says
        ({"rms_norm_eps": None}, {"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05, in .*a 1e-06"),
        ({}, {"tie_word_embeddings": True}, "tie_word_embeddings is true, in .*a false"),
    ],
)
def test_what_a_model_type_has_where_nobody_says_counts_as_stated(tmp_path, first, other, message):
    with pytest.raises(cs.errors.InputError, match=message):
        cs.merge(pair(tmp_path, MISTRAL | first, MISTRAL | other), tmp_path / "out")


@pytest.mark.parametrize(
    "changed",
    [
        {"attention_dropout": 0.1, "transformers_version": "5.0", "use_cache": False, "_name_or_path": "x"},
        {"rope_theta": 10000, "rope_scaling": None, "attention_bias": False},
        {"head_dim": 4, "num_key_value_heads": 4},
        {"torch_dtype": "float16"},
        {"tie_word_embeddings": None},
    ],
)
def test_what_means_the_same_or_nothing_is_merged_without_a_word(tmp_path, changed):
    assert not cs.merge(pair(tmp_path, LLAMA, LLAMA | changed), tmp_path / "out").notes


def test_versions_of_transformers_that_spell_positions_differently_agree(tmp_path):
    newer = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    newer |= {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
    assert not cs.merge(pair(tmp_path, LLAMA, newer), tmp_path / "out").notes
    left_out = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    with pytest.raises(cs.errors.InputError, match=r"rope_theta is 500000\.0, in .*a 10000\.0"):
        cs.merge(pair(tmp_path / "two", left_out, LLAMA | {"rope_theta": 5e5}), tmp_path / "out2")


def test_parts_of_a_model_are_compared_too(tmp_path):
    models = pair(tmp_path, {"text_config": LLAMA}, {"text_config": LLAMA | {"hidden_act": "relu"}})
    with pytest.raises(cs.errors.InputError, match=r"text_config\.hidden_act is relu, in .*a silu"):
        cs.merge(models, tmp_path / "out")


def test_fields_that_nobody_knows_and_tokens_are_noted(tmp_path):
    done = cs.merge(pair(tmp_path, LLAMA, LLAMA | {"mystery": 3, "eos_token_id": 7}), tmp_path / "out")
    assert any("mystery is 3, in" in note and "not stated; the first model's is taken" in note for note in done.notes)
    assert any("eos_token_id is 7" in note for note in done.notes)


def test_the_base_is_compared_too(tmp_path):
    models = pair(tmp_path, LLAMA, LLAMA)
    base = write(tmp_path / "base", tensors(5), LLAMA | {"rope_theta": 7.0})
    with pytest.raises(cs.errors.InputError, match=r"base: config\.json: rope_theta is 7\.0"):
        cs.merge(models, tmp_path / "out", "ties", base=base)


def tokenizer(**changed):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    added = [{"id": 3, "content": "<s>", "special": True}]
    return {"model": model | changed.pop("model", {}), "normalizer": None, "pre_tokenizer": None,
            "added_tokens": added} | changed  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": {"vocab": {"a": 1, "b": 0, "ab": 2}}}, r"gives 2 tokens other numbers \('a' 1 instead of 0, "),
        ({"model": {"vocab": {"a": 0, "b": 1, "ba": 2}}}, "lacks 1 tokens and has 1 more"),
        ({"model": {"merges": ["b a"]}}, "has another merges"),
        ({"normalizer": {"type": "NFKC"}}, "has another normalizer"),
        ({"added_tokens": [{"id": 3, "content": "<s>", "special": False}]}, "has another added_tokens"),
    ],
)
def test_tokenizers_are_compared_by_what_they_do(tmp_path, changed, message):
    models = pair(tmp_path, LLAMA, LLAMA)
    for model, content in zip(models, (tokenizer(), tokenizer(**changed)), strict=True):
        (model / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(cs.errors.InputError, match=f"b: its tokenizer {message}.*, unlike that of .*a"):
        cs.merge(models, tmp_path / "out")
    assert any("its tokenizer" in note for note in cs.merge(models, tmp_path / "out", allow_differences=True).notes)


def test_tokenizers_that_only_look_different_are_the_same(tmp_path):
    models = pair(tmp_path, LLAMA, LLAMA)
    (models[0] / "tokenizer.json").write_text(json.dumps(tokenizer(), indent=4))
    (models[1] / "tokenizer.json").write_text(json.dumps(tokenizer(model={"merges": [["a", "b"]]}, version="2")))
    assert not cs.merge(models, tmp_path / "out").notes


@pytest.mark.parametrize(("name", "first", "second"), [
    ("vocab.json", '{"a": 0}', '{"a": 1}'), ("vocab.txt", "a\nb", "b\na"), ("tokenizer.model", "x", "y"),
])  # fmt: skip
def test_older_files_of_tokenizers_are_compared(tmp_path, name, first, second):
    models = pair(tmp_path, LLAMA, LLAMA)
    for model, text in zip(models, (first, second), strict=True):
        (model / "tokenizer.json").unlink()
        (model / name).write_text(text)
    with pytest.raises(cs.errors.InputError, match="its tokenizer"):
        cs.merge(models, tmp_path / "out")


def test_a_broken_tokenizer_is_named(tmp_path):
    models = pair(tmp_path, LLAMA, LLAMA)
    (models[1] / "tokenizer.json").write_text("{nope")
    with pytest.raises(cs.errors.InputError, match=r"b.tokenizer\.json"):
        cs.merge(models, tmp_path / "out")
