"""What fusing recurrent networks says of itself: limits that were reached, what was left alone, any order of models."""

import pytest
import torch
from torch import nn

import consilience as cs
from consilience.core.details import Status


class Reader(nn.Module):
    def __init__(self, seed, hidden=6):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first = nn.LSTM(3, hidden, batch_first=True)
            self.decoder = nn.Linear(hidden, 4)

    def forward(self, x):
        states, _ = self.first(x)
        return self.decoder(states[:, -1])


class Tied(nn.Module):
    def __init__(self, seed):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.words = nn.Embedding(9, 5)
            self.rnn = nn.GRU(5, 5, batch_first=True)
            self.back = nn.Linear(5, 5)
            self.out = nn.Linear(5, 9)
            self.out.weight = self.words.weight

    def forward(self, words):
        states, _ = self.rnn(self.words(words))
        return self.out(self.back(states[:, -1]))


class OwnCell(nn.Module):
    """Its input and its states are read by one array."""

    def __init__(self, seed):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.cell, self.out = nn.Linear(3 + 5, 5), nn.Linear(5, 2)

    def forward(self, x):
        state = x.new_zeros(len(x), 5)
        for step in range(3):
            state = torch.tanh(self.cell(torch.cat([x[:, step], state], dim=1)))
        return self.out(state)


X = torch.linspace(-1, 1, 2 * 4 * 3).reshape(2, 4, 3)


def test_a_refitted_network_does_not_depend_on_the_order_of_the_models():
    models = [Reader(seed) for seed in range(3)]
    first, *others = (
        cs.fuse([models[i] for i in order], example=X).model.state_dict() for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0])
    )
    assert all(torch.equal(first[key], other[key]) for other in others for key in first)


def test_an_iteration_that_its_limit_ends_says_so():
    models = [Reader(seed) for seed in range(2)]
    short = cs.fuse(models, "gwb", example=X, max_iterations=1)
    assert short.status is Status.MAX_ITERATIONS
    assert cs.fuse(models, "gwb", example=X).status is Status.CONVERGED
    assert cs.fuse(models, "wb", example=X, max_iterations=1).status is Status.MAX_ITERATIONS


@pytest.mark.parametrize("method", ["gwb", "wb", "consensus"])
def test_units_that_a_tied_array_makes_and_reads_keep_their_number(method):
    models, example = [Tied(seed) for seed in range(2)], torch.arange(6).reshape(2, 3)
    options = {"example": example, "target_widths": {"words": 10}}
    with pytest.raises(cs.errors.InputError, match=r"model 0: group words has 5 units .* 10; .*tied weights") as raised:
        cs.fuse(models, method, **options)
    assert cs.check(models, method, **options) == list(raised.value.problems)
    assert cs.fuse(models, method, example=example).matching["rnn.l0"].n_components == 5


def test_arrays_of_both_input_and_states_are_named_as_not_looked_at():
    fusion = cs.fuse([OwnCell(seed) for seed in range(2)], "gwb", example=X)
    assert fusion.details["not_matched_by"] == ["cell.weight"]
    assert "not_matched_by" not in cs.fuse([Reader(seed) for seed in range(2)], "gwb", example=X).details


def test_a_refit_names_the_layers_that_it_left_alone():
    fusion = cs.fuse([OwnCell(seed) for seed in range(2)], "consensus", example=X, inputs=torch.randn(40, 4, 3))
    assert fusion.details["refit"] == "layers fitted on inputs, but where the average stays: cell is called 3 times"


def test_values_that_are_no_numbers_are_told_before_anything_is_proved():
    broken = Reader(1)
    with torch.no_grad():
        broken.first.weight_hh_l0[0, 0] = torch.nan
    with pytest.raises(cs.errors.InputError, match=r"model 1: array first\.weight_hh_l0 has NaN or infinite values"):
        cs.fuse([Reader(0), broken], "gwb", example=X)


def test_none_can_be_set_from_the_command_line(tmp_path):
    from click.testing import CliRunner

    from consilience.cli.commands import cli

    symmetry = cs.symmetry(Reader(0), X)
    files = [str(tmp_path / f"{seed}.safetensors") for seed in range(2)]
    for seed, file in enumerate(files):
        cs.save(Reader(seed), file, symmetry=symmetry)
    out = str(tmp_path / "fused.safetensors")
    arguments = ["--method", "gwb", "--set", "alpha=None", "--set", "starts=input,uniform"]
    done = CliRunner().invoke(cli, ["fuse", *files, "-o", out, *arguments])
    assert done.exit_code == 0, done.output
