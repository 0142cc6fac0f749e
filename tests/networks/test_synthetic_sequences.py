"""Laws of sequences of numbers and of words that are made up for recurrent networks."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from consilience.errors import UnsupportedError
from consilience.networks.repair.synthetic_inputs import synthetic_inputs
from tests.networks.recurrent_nets import Reader, Texts, inputs_for, randomised
from tests.tolerances import STANDARD_ERRORS

FLOAT64 = 1e-9
UNEVEN = np.array([0.3, 0.7])


@pytest.mark.parametrize("form", ["lstm", "stacked gru both ways", "stacked rnn along the second axis"])
def test_made_up_steps_vary_where_all_gates_look_and_do_not_depend_on_each_other(form):
    net_a, net_b = (randomised(Reader(form), seed) for seed in (0, 1))
    is_batch_first = net_a.recurrent.batch_first
    synthetic = synthetic_inputs([net_a, net_b], UNEVEN, inputs_for(net_a, 2, 6), 4000, rng=1)
    assert synthetic.shape == ((4000, 6, 5) if is_batch_first else (6, 4000, 5))
    assert_allclose(synthetic.std(), 1.0, rtol=FLOAT64)
    rows = [
        torch.cat([values for name, values in net.recurrent.named_parameters() if "weight_ih_l0" in name])
        .detach()
        .numpy()
        for net in (net_a, net_b)
    ]
    covariance = 0.3 * rows[0].T @ rows[0] + 0.7 * rows[1].T @ rows[1]
    covariance /= np.trace(covariance) / 5
    steps = (synthetic.transpose(0, 1) if is_batch_first else synthetic).numpy()
    deviation = STANDARD_ERRORS * np.sqrt(2 / 24_000) * np.abs(covariance).max()
    assert_allclose(np.cov(steps.reshape(-1, 5).T), covariance, atol=deviation)
    assert_allclose(steps[0].T @ steps[1] / 4000, 0.0, atol=STANDARD_ERRORS * np.abs(covariance).max() / np.sqrt(4000))


def test_made_up_words_are_uniform_over_the_words_that_all_networks_know_but_padding():
    nets = [Texts(12), Texts(9)]
    example = torch.zeros(3, 7, dtype=torch.int32)
    synthetic = synthetic_inputs(nets, None, example, 5000, rng=1)
    assert synthetic.shape == (5000, 7)
    assert synthetic.dtype == torch.int32
    counts = np.bincount(synthetic.flatten(), minlength=9)
    assert counts[0] == 0
    assert len(counts) == 9
    assert_allclose(counts[1:] / 35_000, 1 / 8, atol=STANDARD_ERRORS * np.sqrt(1 / 8 * 7 / 8 / 35_000))
    assert torch.equal(synthetic, synthetic_inputs(nets, None, example, 5000, rng=1))


def test_embeddings_of_places_and_segments_are_not_taken_for_those_of_words():
    class Placed(nn.Module):
        def __init__(self):
            super().__init__()
            self.segments, self.places = nn.Embedding(2, 5), nn.Embedding(4, 5)
            self.words, self.decoder = nn.Embedding(9, 5), nn.Linear(5, 3)

        def forward(self, words):
            places = torch.arange(words.shape[1]).expand(words.shape)
            return self.decoder(self.segments(torch.zeros_like(words)) + self.places(places) + self.words(words))

    for length in (1, 2, 3, 4):
        synthetic = synthetic_inputs([Placed()], None, torch.zeros(1, length, dtype=torch.int64), 500)
        assert synthetic.max() == 8


def test_networks_that_take_only_so_many_inputs_are_refused():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.GRU(5, 6, batch_first=True)

        def forward(self, x):
            return self.recurrent(x, torch.zeros(1, 8, 6))[0]

    with pytest.raises(UnsupportedError, match="on batches of another size"):
        synthetic_inputs([Fixed()], None, torch.randn(8, 3, 5), 10)


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_words_are_made_up_along_the_axis_that_the_network_has_them_along(length):
    along_second, turned = Texts(), Texts(batch_first=False, turned=True)
    along_first = Texts(batch_first=False)
    for net in (along_second, turned):
        assert synthetic_inputs([net], None, torch.zeros(2, length, dtype=torch.int64), 40).shape == (40, length)
    example = torch.zeros(7, length, dtype=torch.int64)
    assert synthetic_inputs([along_first], None, example, 40).shape == (7, 40)


def test_networks_that_read_numbers_through_no_known_layer_are_refused():
    class Counted(nn.Module):
        def forward(self, words):
            return nn.functional.one_hot(words, 9).sum(dim=1)

    for net, example in (
        (Counted(), torch.zeros(1, 3, dtype=torch.int64)),
        (nn.Sequential(nn.LayerNorm(4), nn.LSTM(4, 2)), torch.randn(1, 3, 4)),
        (nn.Sequential(nn.BatchNorm1d(3), nn.LSTM(4, 2, batch_first=True)), torch.randn(1, 3, 4)),
    ):
        with pytest.raises(UnsupportedError, match="start with a linear layer"):
            synthetic_inputs([net], None, example, 10)
