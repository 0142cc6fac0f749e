"""Checkpoints of different vocabularies: rows of embeddings and heads are found by their tokens."""

import json

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.checkpoints.recipe import read_merge_recipe
from tests.checkpoints.some_checkpoints import read, write

WORDS = ["[UNK]", "the", "cat", "sat"]


def tokenizer(words, added=(), merges=None):
    """Return a tokenizer.json of words, and of tokens that were added behind them."""
    kind = {"type": "WordLevel", "unk_token": "[UNK]"} if merges is None else {"type": "BPE", "merges": merges}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "decoder": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "model": {**kind, "vocab": {word: number for number, word in enumerate(words)}},
        "added_tokens": [
            {"id": len(words) + place, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for place, token in enumerate(added)
        ],
    }  # fmt: skip


def model(folder, words, added=(), rows=None, seed=0, **config):
    """Write a model whose tables have rows of their own for each token, and its tokenizer; return its embedding."""
    draw = torch.Generator().manual_seed(seed)
    rows = rows or len(words) + len(added)
    state = {name: torch.randn((rows, 3), generator=draw) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    state["model.norm.weight"] = torch.randn(3, generator=draw)
    write(folder, state, {"vocab_size": rows, "eos_token_id": len(words) if added else 0} | config)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(words, added)))
    numbers = {token: number for number, token in enumerate([*words, *added])}
    return state["model.embed_tokens.weight"].double().numpy(), numbers


def embedding(done):
    return read(done.output)["model.embed_tokens.weight"].double().numpy()


@pytest.fixture
def two(tmp_path):
    """One model with an added token more, and one with its words in another order and one more of them."""
    one = model(tmp_path / "one", WORDS, ["<end>", "<tool>"], seed=1)
    other = model(tmp_path / "other", ["[UNK]", "cat", "the", "sat", "mat"], ["<end>"], seed=2)
    return [tmp_path / "one", tmp_path / "other"], [one, other]


def test_the_union_has_every_token_with_the_mean_of_the_models_that_have_it(tmp_path, two):
    paths, known = two
    done = cs.merge(paths, tmp_path / "out", weights=[3, 1], vocabulary="union")
    document = json.loads((done.output / "tokenizer.json").read_text())
    numbers = document["model"]["vocab"] | {one["content"]: one["id"] for one in document["added_tokens"]}
    assert list(numbers) == [*WORDS, "mat", "<end>", "<tool>"]
    assert list(numbers.values()) == list(range(7))
    found = embedding(done)
    for token, row in numbers.items():
        rows = [(w, table[of[token]]) for w, (table, of) in zip((3, 1), known, strict=True) if token in of]
        expected = sum(w * values for w, values in rows) / sum(w for w, _ in rows)
        np.testing.assert_allclose(found[row], expected, atol=1e-6)
    config = json.loads((done.output / "config.json").read_text())
    assert (config["vocab_size"], config["eos_token_id"]) == (7, 5)
    assert any("7 tokens, 5 of them in all of 2 checkpoints, 2 in one alone" in note for note in done.notes)


def test_the_written_tokenizer_gives_the_rows_that_the_tables_have(tmp_path, two):
    tokenizers = pytest.importorskip("tokenizers")
    done = cs.merge(two[0], tmp_path / "out", vocabulary="union")
    made = tokenizers.Tokenizer.from_file(str(done.output / "tokenizer.json"))
    assert made.get_vocab_size() == len(embedding(done)) == 7
    assert made.encode("the mat<tool> sat <end>").ids == [1, 4, 6, 3, 5]


def test_tokens_of_one_model_keep_its_numbers(tmp_path, two):
    paths, known = two
    done = cs.merge(paths, tmp_path / "out", vocabulary=1)
    (first, of_first), (other, of_other) = known
    found = embedding(done)
    assert len(found) == 6
    assert (done.output / "tokenizer.json").read_bytes() == (paths[1] / "tokenizer.json").read_bytes()
    np.testing.assert_allclose(found[of_other["cat"]], (first[of_first["cat"]] + other[of_other["cat"]]) / 2, atol=1e-6)
    np.testing.assert_array_equal(found[of_other["mat"]], other[of_other["mat"]])


def test_a_token_that_one_fine_tune_added_counts_for_it_alone(tmp_path):
    base, of_base = model(tmp_path / "base", WORDS, seed=0)
    one, _ = model(tmp_path / "one", WORDS, seed=1)
    other, of_other = model(tmp_path / "other", WORDS, ["<tool>"], seed=2)
    done = cs.merge(
        [tmp_path / "one", tmp_path / "other"], tmp_path / "out", "task_arithmetic", base=tmp_path / "base",
        vocabulary="union",
    )  # fmt: skip
    found = embedding(done)
    row = of_base["cat"]
    np.testing.assert_allclose(found[row], one[row] + other[row] - base[row], atol=1e-6)
    np.testing.assert_allclose(found[4], other[of_other["<tool>"]], atol=1e-6)


def test_rules_say_where_the_row_of_a_token_comes_from(tmp_path, two):
    paths, known = two
    rules = {
        "<tool>": "zero",
        "mat": {"from": 0, "token": "cat"},
        "sat": {"from": 1, "force": True},
    }
    found = embedding(cs.merge(paths, tmp_path / "out", vocabulary={"source": "union", "tokens": rules}))
    (first, of_first), (other, of_other) = known
    np.testing.assert_allclose(found[6], first[of_first["<tool>"]] / 2, atol=1e-6)  # the mean of its row and zeros
    np.testing.assert_allclose(found[4], (first[of_first["cat"]] + other[of_other["mat"]]) / 2, atol=1e-6)
    np.testing.assert_array_equal(found[3], other[of_other["sat"]])


def test_rows_are_padded_to_a_multiple_and_padding_rows_are_no_tokens(tmp_path, two):
    paths, _ = two
    model(tmp_path / "padded", WORDS, ["<end>", "<tool>"], rows=8, seed=1)
    union = {"source": "union", "multiple_of": 4}
    assert len(embedding(cs.merge([tmp_path / "padded", *paths], tmp_path / "out", vocabulary=union))) == 8
    same = cs.merge([tmp_path / "padded", paths[0]], tmp_path / "same", vocabulary=1)
    assert len(embedding(same)) == 6


def test_models_of_one_tokenizer_are_merged_as_ever(tmp_path):
    for seed, name in enumerate("ab"):
        model(tmp_path / name, WORDS, ["<end>"], seed=seed)
    paths = [tmp_path / "a", tmp_path / "b"]
    plain = cs.merge(paths, tmp_path / "plain")
    union = cs.merge(paths, tmp_path / "union", vocabulary="union")
    np.testing.assert_array_equal(embedding(plain), embedding(union))


@pytest.mark.parametrize(
    ("key", "rows"),
    [("tokenizer_source: union", 7), ("tokenizer_source: base", 6), ("tokenizer: {source: other}", 6),
     ("tokenizer: {source: union, pad_to_multiple_of: 8}", 8)],
)  # fmt: skip
def test_recipes_of_mergekit_say_which_tokens(tmp_path, two, key, rows):
    (tmp_path / "recipe.yaml").write_text(
        f"merge_method: linear\nbase_model: one\n{key}\nparameters: {{weight: 1}}\n"
        "models: [{model: one}, {model: other}]\n"
    )
    recipe = read_merge_recipe(tmp_path / "recipe.yaml")
    done = cs.merge(recipe.models, tmp_path / "out", recipe.method, base=recipe.base, weights=recipe.weights,
                    vocabulary=recipe.vocabulary, patterns=recipe.tensors, **recipe.options)  # fmt: skip
    assert len(embedding(done)) == rows


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [("best", "expected 'base', 'union' or the number"), (2, "found 2"), ({"sauce": 1}, "has no 'sauce'"),
     ({"multiple_of": 0}, "multiple_of"), ({"tokens": {"cat": 5}}, "token 'cat'"),
     ({"tokens": {"dog": 1}}, "no token 'dog'"),
     ({"tokens": {"cat": {"from": 1, "token": "dog"}}}, "no token 'dog' in"),
     ({"tokens": {"cat": "base"}}, "there is none")],
)  # fmt: skip
def test_vocabularies_that_are_none_are_refused(tmp_path, two, vocabulary, message):
    with pytest.raises(cs.errors.ConsilienceError, match=message):
        cs.merge(two[0], tmp_path / "out", vocabulary=vocabulary)


def test_tokenizers_that_cut_otherwise_have_no_union(tmp_path, two):
    paths, _ = two
    (paths[1] / "tokenizer.json").write_text(json.dumps(tokenizer(WORDS, ["<end>", "<tool>"], merges=["t h"])))
    with pytest.raises(cs.errors.InputError, match=r"other: cuts texts otherwise than .*one .*type of model"):
        cs.merge(paths, tmp_path / "out", vocabulary="union")
    (paths[1] / "tokenizer.json").unlink()
    with pytest.raises(cs.errors.InputError, match="other: has no tokenizer"):
        cs.merge(paths, tmp_path / "out", vocabulary="union")
