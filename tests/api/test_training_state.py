"""Checkpoint dictionaries and optimisers are named by every function that takes models, with what to hand in."""

from pathlib import Path

import pytest
import torch

import consilience as cs

NET = torch.nn.Sequential(torch.nn.Linear(3, 2))
ADAM = torch.optim.Adam(NET.parameters())
OBJECTS = {
    "Lightning's": ({"epoch": 1, "state_dict": NET.state_dict()}, r"hand in checkpoint\['state_dict'\]"),
    "a loop's": ({"opt": ADAM.state_dict(), "model_state_dict": NET.state_dict()}, r"checkpoint\['model_state_dict'\]"),
    "a key of one's own": ({"optim_state": NET.state_dict(), "weights": NET.state_dict()}, r"checkpoint\['weights'\]"),
    "an optimiser's state": (ADAM.state_dict(), "is the state of an optimiser, not of a model; hand in the module"),
    "an optimiser": (ADAM, r"is an optimiser \(Adam\), not a model; hand in the module"),
}
ACTS = {
    "fuse": lambda model: cs.fuse([model, model]),
    "fuse by average": lambda model: cs.fuse([model, model], "average"),
    "check": lambda model: raised(cs.check([model, model], "average")),
    "describe": cs.describe,
    "save": lambda model: cs.save(model, "a.safetensors"),
    "a network beside": lambda model: cs.fuse([NET, model], "average"),
}


def raised(problems):
    raise cs.errors.InputError(problems)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("name", OBJECTS)
def test_what_training_keeps_beside_the_weights_is_named(name, act):
    model, message = OBJECTS[name]
    with pytest.raises(cs.ConsilienceError, match=message):
        ACTS[act](model)


def test_a_path_is_no_model_to_describe(tmp_path):
    torch.save(NET.state_dict(), tmp_path / "a.pt")
    cs.save(NET, tmp_path / "b.safetensors")
    for path, message in ((tmp_path / "a.pt", r"torch\.load\('a\.pt', weights_only=True\)`, then `consilience\.save"),
                          (str(tmp_path / "b.safetensors"), r"is the path of a file .*; load it: `consilience\.load"),
                          (Path("nowhere.safetensors"), "nowhere.safetensors: cannot be read")):  # fmt: skip
        with pytest.raises(cs.errors.UnsupportedError, match=message):
            cs.describe(path)
