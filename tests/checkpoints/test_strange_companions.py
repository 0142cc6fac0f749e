"""Files beside the weights of strangers: tokenizers by their schema, patterns of ranks, factors of odd shapes."""

import itertools
import json
import re
import time

import pytest
import torch

import consilience as cs
from consilience.checkpoints.lora.config import module_rank, pattern_problems
from consilience.errors import InputError
from tests.checkpoints.some_adapters import factors, write_adapter
from tests.fuzz.formats import TOKENIZER, write_honest

MODEL = TOKENIZER["model"]
TOKENIZERS = {
    "vocabulary a number": TOKENIZER | {"model": {"vocab": 3}},
    "vocabulary of texts": TOKENIZER | {"model": MODEL | {"vocab": {"a": "0"}}},
    "negative number": TOKENIZER | {"model": MODEL | {"vocab": {"a": -1}}},
    "huge number": TOKENIZER | {"model": MODEL | {"vocab": {"a": 2**70}}},
    "scores without tokens": TOKENIZER | {"model": {"type": "Unigram", "vocab": [["a"], ["b", 1.0]]}},
    "merges of three": TOKENIZER | {"model": MODEL | {"merges": [["a", "b", "c"]]}},
    "model a list": TOKENIZER | {"model": []},
    "added token without content": TOKENIZER | {"added_tokens": [{"id": 4}]},
    "added token a list": TOKENIZER | {"added_tokens": [{"id": [4], "content": "x"}]},
}


@pytest.mark.parametrize("vocabulary", [None, "union"])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_are_held_against_their_schema(tmp_path, name, vocabulary):
    write_honest("tokenizer", tmp_path)
    (tmp_path / "b" / "tokenizer.json").write_text(json.dumps(TOKENIZERS[name]))
    with pytest.raises(InputError, match=r"tokenizer\.json: its content is not valid at (model|added_tokens)"):
        cs.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", vocabulary=vocabulary)


def test_scored_tokens_and_merges_as_pairs_are_read(tmp_path):
    write_honest("tokenizer", tmp_path)
    for name in ("a", "b"):
        document = TOKENIZER | {"model": {"type": "Unigram", "vocab": [["a", 0], ["b", -1.5]], "merges": [["a", "b"]]}}
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(document))
    assert cs.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", dry_run=True).plan.tensors == 3


MODULES = (
    "model.layers.0.q_proj", "layers.1.q_proj", "q_proj", "encoder.layer", "layer", "model.layers.11.k_proj", "aq_proj",
)  # fmt: skip
KEYS = (
    "q_proj", "layers.0.q_proj", "^model.layers.0.q_proj", ".*q_proj", r"layers\.1\.q_proj", "layer",
    r"layers\.\d.q_proj", "[aq]_proj", "q_proj|layer", "model.*proj", "^q_proj$", ".*.q_proj", "^layer|k_proj",
)  # fmt: skip


def by_regular_expressions(patterns, module):
    """Return the rank as peft finds it."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), 99)


@pytest.mark.parametrize("module", MODULES)
def test_patterns_of_ranks_match_as_in_peft(module):
    for keys in itertools.permutations(KEYS, 2):
        patterns = {key: number + 1 for number, key in enumerate(keys)}
        assert pattern_problems(patterns) == ""
        found = module_rank({"r": 99, "rank_pattern": patterns}, module)
        assert found == by_regular_expressions(patterns, module), patterns


@pytest.mark.parametrize("key", ["(a+)+" * 12, "(.*)*x", "(a|a)*b", "a{1,99}", "q_proj" + "x.*" * 90, "+"])
def test_expressions_that_may_not_end_are_refused_by_name(tmp_path, key):
    models = [
        write_adapter(tmp_path / "a", factors(0)),
        write_adapter(tmp_path / "b", factors(1), rank_pattern={key: 4}),
    ]
    with pytest.raises(InputError, match=r"its rank_pattern has the key .*, expected a name of modules"):
        cs.merge(models, tmp_path / "out")


def test_matching_takes_no_more_than_the_length_of_both():
    patterns = {".*a" * 60 + "x": 1}
    start = time.process_time()
    assert module_rank({"r": 9, "rank_pattern": patterns}, "a" * 20_000) == 9
    assert time.process_time() - start < 5.0


@pytest.mark.parametrize("part", ["A", "B"])
@pytest.mark.parametrize("shape", [(4, 3, 2), (4,), (), (0, 4), (2, 2, 2, 2, 2)])
def test_factors_of_other_shapes_are_refused(tmp_path, part, shape):
    tensors = factors(1)
    name = next(name for name in tensors if f"lora_{part}" in name)
    tensors[name] = torch.zeros(shape)
    models = [write_adapter(tmp_path / "a", factors(0)), write_adapter(tmp_path / "b", tensors)]
    with pytest.raises(InputError):
        cs.merge(models, tmp_path / "out")
    assert cs.check(models)
