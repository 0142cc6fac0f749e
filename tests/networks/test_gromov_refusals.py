"""What Gromov-Wasserstein-barycenter fusion refuses, and how it says so."""

import re

import pytest
from safetensors.torch import save_file

import consilience as cs
from tests.networks.gromov_nets import (
    net,
    sequences,
    symmetry_of,
)

ANOTHER = {
    "another cell": ("lstm", lambda: net("gru"), r"model 1: rnn is GRU.*, but LSTM.* in model 0"),
    "another activation": ("rnn", lambda: net("relu rnn"), r"model 1: .*relu.*, but .*tanh.* in model 0"),
    "fewer layers": ("gru, stacked", lambda: net("gru, stacked", num_layers=1), r"rnn\.weight_ih_l1.* are missing"),
    "more layers": ("rnn", lambda: net("rnn", num_layers=2), r"rnn\.weight_ih_l1.* are not in the symmetry; fuse"),
    "both directions": ("rnn", lambda: net("rnn, both ways"), r"rnn is RNN \(tanh, both ways.*, but RNN \(tanh"),
    "other inputs": ("lstm", lambda: net("lstm", features=4), r"rnn\.weight_ih_l0 has shape \(20, 4\).*\(20, 3\)"),
    "other classes": ("gru", lambda: net("gru", classes=4), r"out\.weight has shape \(4, 5\).*should have \(3, 5\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", ANOTHER)
def test_networks_of_another_kind_are_refused_with_what_differs(case):
    name, other, message = ANOTHER[case]
    given = {"method": "gwb", "example": sequences(name)}
    with pytest.raises(cs.errors.InputError, match=message) as raised:
        cs.fuse([net(name), other()], **given)
    assert cs.check([net(name), other()], **given) == list(raised.value.problems)


BROKEN = {
    "a missing gate tensor": (lambda s: s.pop("rnn.weight_hh_l0"), r"array rnn\.weight_hh_l0 is missing"),
    "a gate too few": (
        lambda s: s.update({"rnn.weight_hh_l0": s["rnn.weight_hh_l0"][:15].clone()}),
        r"array rnn\.weight_hh_l0 has shape \(15, 5\); .* should have \(20, 5\)",
    ),
    "weights that are not numbers": (
        lambda s: s["rnn.weight_hh_l0"].fill_(float("nan")),
        r"array rnn\.weight_hh_l0 has NaN or infinite values",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_files_of_broken_networks_are_refused_with_the_array_at_fault(case, tmp_path):
    change, message = BROKEN[case]
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    state = dict(net("lstm", 1).state_dict())
    save_file(net("lstm").state_dict(), paths[0])
    change(state)
    save_file(state, paths[1])
    given = {"method": "gwb", "module": net("lstm"), "example": sequences("lstm")}
    with pytest.raises(cs.errors.InputError, match=message) as raised:
        cs.fuse(paths, **given)
    assert "b.safetensors" in str(raised.value)
    assert cs.check(paths, **given) == list(raised.value.problems)


BAD_OPTIONS = [
    *({"mode": bad} for bad in ("best", None, 3)),
    *({"alpha": bad} for bad in ("1", -1.0, float("nan"), float("inf"), True)),
    *({"starts": bad} for bad in ((), [], ("inputs",), 3, None, ("input", 2))),
    *({"sent": bad} for bad in ("yes", 1, None)),
    *({"signs": bad} for bad in ("no", 0)),
    *({"mode": mode, "signs": True} for mode in ("paper", "mirror")),
    *({"mode": mode, "epsilon": 0.01} for mode in ("exact", "mirror")),
    {"mode": "paper", "epsilon": -0.1},
    {"cost": "activations"},
    {"gamma": 3},
    {"max_iterations": 0},
    {"restarts": 1.5},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
def test_options_that_mean_nothing_are_refused_by_name(options):
    models = [net("rnn", seed) for seed in range(2)]
    for ask in (cs.fuse, cs.check):
        with pytest.raises(cs.errors.OptionError) as raised:
            ask(models, method="gwb", example=sequences("rnn"), symmetry=symmetry_of("rnn"), **options)
        assert re.search("|".join(options), str(raised.value))
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_widths": {"rnn.l0": 0}}, {"target_widths": {"no such group": 3}}, {"target": 3}, {"reference": 2},
        {"reference": "first"}, {"weights": [1.0, 1.0, 1.0]},
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_the_models_is_refused_by_fuse_and_by_check(wrong):
    models = [net("rnn", seed) for seed in range(2)]
    given = {"method": "gwb", "symmetry": symmetry_of("rnn"), **wrong}
    with pytest.raises((cs.errors.InputError, cs.errors.OptionError), match=next(iter(wrong))):
        cs.fuse(models, **given)
    problems = cs.check(models, **given)
    assert len(problems) == 1
    assert next(iter(wrong)) in problems[0]
