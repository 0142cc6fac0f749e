"""Recurrent networks of all forms for the tests of stepping through them and of refitting them."""

from copy import deepcopy

import pytest
import torch
from torch import nn

FORMS = {
    "rnn": (nn.RNN, {}),
    "relu rnn both ways without bias": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True, "bias": False}),
    "stacked rnn along the second axis": (nn.RNN, {"num_layers": 3, "batch_first": True}),
    "lstm": (nn.LSTM, {}),
    "stacked lstm both ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "dropout": 0.5}),
    "projected stacked lstm both ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 3}),
    "projected lstm without bias": (nn.LSTM, {"proj_size": 4, "bias": False, "batch_first": True}),
    "gru": (nn.GRU, {}),
    "stacked gru both ways": (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "gru without bias": (nn.GRU, {"bias": False}),
}
every_form = pytest.mark.parametrize("form", FORMS)


class Reader(nn.Module):
    """A recurrent layer and a decoder of its states, of all steps or of the last."""

    def __init__(self, form, last=False):
        super().__init__()
        kind, options = FORMS[form]
        self.recurrent = kind(5, 6, **options)
        self.last = last
        ways = 2 if self.recurrent.bidirectional else 1
        self.decoder = nn.Linear((self.recurrent.proj_size or 6) * ways, 3)

    def forward(self, x):
        states, _ = self.recurrent(x)
        return self.decoder(states.select(1 if self.recurrent.batch_first else 0, -1) if self.last else states)


def randomised(module, seed, near=None, scale=0.4):
    """The module in float64, every number random: about zero, or about those of another."""
    generator = torch.Generator().manual_seed(seed)
    module = (module if near is None else deepcopy(near)).double().eval()
    with torch.no_grad():
        for values in module.parameters():
            noise = scale * torch.randn(values.shape, generator=generator, dtype=torch.float64)
            values.copy_(noise if near is None else values + noise)
    return module


def inputs_for(net, count=80, steps=7, seed=9):
    shape = (count, steps, 5) if net.recurrent.batch_first else (steps, count, 5)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def outputs(net, inputs):
    with torch.no_grad():
        return net(inputs)


def error(net, inputs, targets):
    return float((outputs(net, inputs) - targets).square().mean())


class Texts(nn.Module):
    """Reads words (n, length), or (length, n) where the recurrent layer goes along the first axis."""

    def __init__(self, words=12, kind=nn.LSTM, batch_first=True, turned=False):
        super().__init__()
        self.embedding = nn.Embedding(words, 5, padding_idx=0)
        self.recurrent, self.decoder = kind(5, 6, batch_first=batch_first), nn.Linear(6, 3)
        self.turned = turned

    def forward(self, words):
        embedded = self.embedding(words.T if self.turned else words)
        states, _ = self.recurrent(embedded)
        return self.decoder(states[:, -1] if self.recurrent.batch_first else states[-1])


class Bridged(nn.Module):
    """The last states of one layer are the first of another, which is called by keywords."""

    def __init__(self):
        super().__init__()
        self.encoder, self.bridge = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 6)
        self.recurrent, self.decoder = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        _, (hidden, _) = self.encoder(x)
        first = self.bridge(hidden)
        states, _ = self.recurrent(input=x, hx=(first, torch.ones_like(first)))
        return self.decoder(states)


class Last(nn.Module):
    """Of what a recurrent layer answers, the output of the last step."""

    def forward(self, answered):
        states, _ = answered
        return states[:, -1]


class Odd(nn.Module):
    """Cells in a loop, a layer called twice, packed sequences, one sequence, and one that is not called."""

    def __init__(self):
        super().__init__()
        self.cell, self.once, self.twice = nn.LSTMCell(5, 5), nn.GRUCell(5, 5), nn.RNN(5, 5, batch_first=True)
        self.packed, self.single, self.unused = (nn.GRU(5, 5, batch_first=True) for _ in range(3))
        self.decoder = nn.Linear(5, 2)

    def forward(self, x):
        state = None
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        x = self.twice(self.twice(x)[0])[0]
        lengths = torch.full((len(x),), x.shape[1])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        x, _ = nn.utils.rnn.pad_packed_sequence(self.packed(packed)[0], batch_first=True)
        return self.decoder(x[:, -1] + self.once(state[0]) + self.single(x[0])[0][-1])
