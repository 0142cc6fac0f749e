"""Modules of equal shapes that compute other things are refused by what differs."""

import pytest
import torch
from torch import nn

import consilience as cs


def perceptron(activation, width=8):
    return nn.Sequential(nn.Linear(4, width), activation, nn.Linear(width, 2))


class Configured(nn.Sequential):
    """As a model of transformers: with a configuration."""

    def __init__(self, **fields):
        super().__init__(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        self.fields = fields

    @property
    def config(self):
        return type("Config", (), {"to_dict": lambda _: self.fields})()


def normalised(momentum):
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=momentum), nn.ReLU(), nn.Linear(6, 2))


def encoder(heads, **options):
    return nn.TransformerEncoderLayer(8, heads, 12, batch_first=True, **options)


def strided(stride):
    return nn.Sequential(nn.Conv2d(1, 2, 3, stride=stride))


SLOPES = "1 is LeakyReLU (negative_slope=0.2), but LeakyReLU (negative_slope=0.1) in lund"
GELUS = "1 is GELU (approximate='tanh'), but GELU (approximate='none') in lund"
HEADS = "config.json: num_attention_heads is 8, in lund 4"
OTHERS = {
    "1 is GELU (approximate='none'), but ReLU in lund": (perceptron(nn.ReLU()), perceptron(nn.GELU())),
    SLOPES: (perceptron(nn.LeakyReLU(0.1)), perceptron(nn.LeakyReLU(0.2))),
    GELUS: (perceptron(nn.GELU()), perceptron(nn.GELU("tanh"))),
    "self_attn.num_heads is 4, but 2 in lund": (encoder(2), encoder(4)),
    "activation is gelu, but relu in lund": (encoder(2), encoder(2, activation="gelu")),
    "norm_first is True, but False in lund": (encoder(2), encoder(2, norm_first=True)),
    "0.stride is (2, 2), but (1, 1) in lund": (strided(1), strided(2)),
    "config.json: rope_theta is 1000000.0, in lund 10000.0": (Configured(), Configured(rope_theta=1e6)),
    HEADS: (Configured(num_attention_heads=4), Configured(num_attention_heads=8)),
}


@pytest.mark.parametrize("difference", OTHERS)
def test_what_shapes_do_not_show_is_refused_by_name(difference):
    one, other = OTHERS[difference]
    for call in (cs.check, cs.fuse):
        try:
            problems = call({"lund": one, "oslo": other})
        except cs.errors.InputError as error:
            problems = error.problems
        assert str(problems[0]).startswith(f"oslo: {difference}"), problems
        assert problems[0].code == "E-CONFIG"
    assert cs.fuse({"lund": one, "oslo": other}, "ensemble").model is not None  # which may be of any architectures


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (perceptron(nn.ReLU()), perceptron(nn.ReLU(inplace=True))),
        (encoder(2, dropout=0.1), encoder(2, dropout=0.3)),
        (Configured(torch_dtype="float32", use_cache=True), Configured(torch_dtype="float16")),
        (normalised(0.1), normalised(0.5)),
    ],
)
def test_what_changes_no_answer_may_differ(one, other):
    problems = cs.check([one, other], "average")
    assert problems == []


def test_networks_of_other_widths_are_of_one_architecture():
    models = [perceptron(nn.ReLU(), width) for width in (8, 12)]
    assert cs.check(models, "consensus", example=torch.zeros(2, 4)) == []
    for model, width in zip(models, (8, 12), strict=True):
        model.config = type(
            "Config", (), {"to_dict": lambda _, d=width: {"hidden_size": d, "num_attention_heads": 4}}
        )()
    assert cs.check(models, "consensus", example=torch.zeros(2, 4)) == []
