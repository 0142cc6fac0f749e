"""Language models as they come, with objects for outputs and casts inside, are traced, proved and fused."""

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.symmetry.transport import move, permutation
from consilience.networks.tracing.proof import prove
from consilience.networks.tracing.trace import answer_of
from tests.copies import COPIES
from tests.networks.language_models import LanguageModel, Output, RMSNorm

IDS = {"input_ids": torch.arange(10).reshape(2, 5)}
LAYERS = 2


@pytest.fixture(scope="module")
def traced():
    return cs.symmetry(LanguageModel(), IDS)


def test_the_residual_stream_is_found_and_proved_in_float64(traced):
    stream = {str(place) for place in traced.places("embed_tokens")}
    readers = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "gate_proj", "up_proj")
    expected = {"embed_tokens.weight axis 1", "norm.weight axis 0", "lm_head.weight axis 1"}
    for layer in range(LAYERS):
        expected |= {f"layers.{layer}.{name}.weight axis 1" for name in readers}
        expected |= {f"layers.{layer}.{name}.weight axis 0" for name in ("self_attn.o_proj", "down_proj")}
        expected |= {f"layers.{layer}.{name}.weight axis 0" for name in ("input_layernorm", "post_attention_layernorm")}
    assert stream == expected
    assert traced.groups["embed_tokens"] == 8
    assert traced.proved
    assert traced.proof.deviation < 1e-12  # the casts to float32 would leave 1e-7


def test_heads_and_units_are_found_though_the_cache_has_them_too(traced):
    sizes = sorted(traced.groups.values())
    assert sizes.count(12) == LAYERS  # gated units
    assert sizes.count(2) == LAYERS  # heads


def test_a_model_is_left_as_it_was(traced):
    model = LanguageModel()
    cs.symmetry(model, IDS)
    assert "forward" not in vars(model)
    assert isinstance(model(**IDS), Output)
    assert model(**IDS).logits.dtype == torch.float32


@COPIES
def test_a_renumbered_copy_is_recovered(traced):
    model, renumbered = LanguageModel(seed=1), LanguageModel(seed=1)
    rng = np.random.default_rng(0)
    moves = {name: permutation(rng.permutation(size)) for name, size in traced.groups.items()
             if traced.by_name[name].parent is None}  # fmt: skip
    state = {name: move(array, traced.layouts[name], moves, traced.groups) if name in traced.layouts else array
             for name, array in model.state_dict().items()}  # fmt: skip
    renumbered.load_state_dict(state)
    with torch.no_grad():
        answers = model(**IDS).logits
        assert torch.allclose(renumbered(**IDS).logits, answers, atol=1e-5)
        fused = cs.fuse([model, renumbered], "rebasin", symmetry=traced, module=LanguageModel()).model
        assert torch.allclose(fused(**IDS).logits, answers, atol=1e-5)


def test_a_wrong_symmetry_of_such_a_model_is_still_refused(traced):
    class Skewed(LanguageModel):
        def forward(self, input_ids):
            output = super().forward(input_ids)
            return Output(output.logits + output.encoder_last_hidden_state[..., :1])  # the first unit is special

    with pytest.raises(cs.errors.InputError, match="group embed_tokens"):
        prove(Skewed(), traced, IDS)


def test_a_cast_hides_no_small_difference():
    """A float32 norm would be accepted or refused by its rounding alone; in float64 both are told apart."""

    class Net(nn.Module):
        def __init__(self, share):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.norm, self.last = nn.Linear(4, 6), RMSNorm(6), nn.Linear(6, 3)
            self.share = share

        def forward(self, inputs):
            units = self.norm(self.first(inputs))
            answers = self.last(units)
            return answers + self.share * units[:, :1] if self.share else answers

    inputs = torch.randn(5, 4)
    exact = cs.symmetry(Net(0.0), inputs)
    assert exact.groups == {"first": 6}
    with pytest.raises(cs.errors.InputError, match="group first"):
        prove(Net(1e-6), exact, inputs)


@pytest.mark.parametrize(
    ("output", "names"),
    [
        ({"logits": torch.ones(2), "past_key_values": ((torch.ones(1),),)}, {"logits"}),
        ({"start_logits": torch.ones(2), "end_logits": torch.ones(2), "x": 1}, {"start_logits", "end_logits"}),
        ({"last_hidden_state": torch.ones(2), "pooler_output": torch.ones(2)}, {"last_hidden_state"}),
        ({"mean": torch.ones(2), "states": [torch.ones(1)]}, {"mean", "states"}),
        (Output(torch.ones(2), object()), {"logits"}),
    ],
)  # fmt: skip
def test_what_a_model_answers(output, names):
    assert set(answer_of(output)) == names


def test_tensors_and_tuples_are_answers_themselves():
    values = (torch.ones(2), torch.zeros(1))
    assert answer_of(values) is values
    assert answer_of(values[0]) is values[0]
