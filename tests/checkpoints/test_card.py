"""Model cards: what the hub reads, and no longer than a person reads."""

import yaml

import consilience as cs
from consilience.checkpoints.card import MAX_RULES, model_card
from tests.checkpoints.some_checkpoints import read, write
from tests.checkpoints.test_laws import three


def header(path):
    text = path.read_text()
    return yaml.safe_load(text.split("---")[1]), text


def test_the_hub_finds_what_a_merge_was_made_of(tmp_path):
    base, models = three(tmp_path)
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    write(snapshot, read(models[0]))
    done = cs.merge([snapshot, models[1]], tmp_path / "out", "ties", base=base, density=0.5)
    told, text = header(done.output / "README.md")
    assert told["base_model"] == ["org/name", "b", "base"]
    assert (told["library_name"], told["tags"]) == ("transformers", ["merge", "consilience"])
    assert text.count("times as far from the base") == 1
    assert text.index("By the weights, the merge is") < text.index("Weights alone do not say")


def test_rules_of_many_layers_do_not_fill_the_card():
    rules = [{"pattern": f"layers.{number}.*", "weights": [1.0, float(number)]} for number in range(30)]
    record = {
        "recipe": {"method": "average", "tensors": rules},
        "inputs": [{"role": "model", "name": "a", "hub": None, "files": []}],
        "output": {}, "details": {}, "notes": [], "versions": {"consilience": "1", "numpy": "2"},
    }  # fmt: skip
    card = model_card(record)
    assert f"{30 - MAX_RULES} more rules are in merge.json" in card
    assert len(card.splitlines()) < 80
