"""Small networks whose outputs are no row for each input, or that take several inputs, and their data."""

import numpy as np
import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.nn import functional

VOCABULARY, LENGTH = 20, 8


class Causal(nn.Module):
    """A language model of one block: every token is told those before it."""

    def __init__(self, seed=0, *, causal=True, padding=None):
        super().__init__()
        torch.manual_seed(seed)
        self.tokens = nn.Embedding(VOCABULARY, 16, padding_idx=padding)
        self.places = nn.Parameter(torch.randn(LENGTH, 16) / 4)
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.head, self.causal = nn.Linear(16, VOCABULARY), causal

    def forward(self, input_ids, attention_mask=None):
        x = self.tokens(input_ids) + self.places[: input_ids.shape[1]]
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 4
        hidden = torch.zeros_like(scores, dtype=torch.bool)
        if self.causal:
            hidden = torch.ones_like(hidden).triu(1)
        if attention_mask is not None:
            hidden = hidden | (attention_mask[:, None, :] == 0)
        x = x + self.out(scores.masked_fill(hidden, -1e9).softmax(-1) @ self.value(x))
        return self.head(self.norm(x + self.down(functional.gelu(self.up(x)))))


class Maps(nn.Module):
    """A small U-Net: (n, 1, 8, 8) -> (n, k, 8, 8)."""

    def __init__(self, seed=0, k=3):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.down = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1, stride=2)
        self.up, self.last = nn.ConvTranspose2d(8, 6, 2, stride=2), nn.Conv2d(12, k, 1)

    def forward(self, x):
        first = self.first(x).relu()
        return self.last(torch.cat([first, self.up(self.down(first).relu()).relu()], dim=1))


class Heads(nn.Module):
    """Three classes and one number."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(13, 16), nn.ReLU())
        self.classes, self.number = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x):
        features = self.body(x)
        return {"classes": self.classes(features), "number": self.number(features)[:, 0]}


class Pair(nn.Module):
    """Two inputs, by position or by name."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.one, self.two, self.last = nn.Linear(6, 12), nn.Linear(7, 12), nn.Linear(12, 3)

    def forward(self, x, z):
        return self.last((self.one(x) + self.two(z)).relu())


class Tabular(nn.Module):
    """A column of ids among the inputs, as tables have them."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.layers = nn.Embedding(7, 4), nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.layers(torch.cat([self.embedding(x[:, 0].long()), x[:, 1:]], dim=1))


def texts(n, seed):
    """Return texts (n, LENGTH) of a Markov chain."""
    rng = np.random.default_rng(seed)
    chain = np.random.default_rng(0).dirichlet(np.full(VOCABULARY, 0.1), size=VOCABULARY).cumsum(axis=1)
    tokens = np.zeros((n, LENGTH), dtype=np.int64)
    tokens[:, 0] = rng.integers(0, VOCABULARY, n)
    for place in range(1, LENGTH):
        later = (chain[tokens[:, place - 1]] < rng.random((n, 1))).sum(axis=1)
        tokens[:, place] = np.minimum(later, VOCABULARY - 1)
    return torch.tensor(tokens)


def pictures():
    """Return noisy images (n, 1, 8, 8) and the class of every pixel (n, 8, 8)."""
    images = torch.tensor(load_digits().images / 16, dtype=torch.float32)[::3]
    noise = 0.2 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return (images + noise)[:, None], (images > 0.25).long() + (images > 0.7).long()


def wines():
    """Return standardised rows (n, 13) in random order, and classes (n,)."""
    wine = load_wine()
    order = np.random.default_rng(0).permutation(len(wine.data))
    rows = (wine.data - wine.data.mean(axis=0)) / wine.data.std(axis=0)
    return torch.tensor(rows[order], dtype=torch.float32), torch.tensor(wine.target[order])


def table(n, seed):
    """Return rows (n, 4), the first column an id of seven, and classes (n,)."""
    rng = np.random.default_rng(seed)
    ids, rows = rng.integers(0, 7, n), rng.normal(size=(n, 3))
    labels = rows[:, 0] + np.sin(2.0 * ids) + rows[:, 1] * (ids > 3) > 0
    return torch.tensor(np.column_stack([ids, rows]), dtype=torch.float32), torch.tensor(labels.astype(np.int64))


def next_token_loss(net, tokens):
    """Return the mean loss of the next tokens."""
    with torch.no_grad():
        return float(functional.cross_entropy(net(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))


def trained(net, loss, n, steps=150, rate=1e-2):
    """Return a network after steps on batches of n observations, whose loss is `loss(net, rows)`."""
    optimizer, rng = torch.optim.Adam(net.parameters(), lr=rate), np.random.default_rng(0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(net, torch.as_tensor(rng.choice(n, 32))).backward()
        optimizer.step()
    return net.eval()


def language_model(seed, tokens):
    """Return a language model that was trained on texts."""

    def loss(net, rows):
        return functional.cross_entropy(net(tokens[rows])[:, :-1].flatten(0, 1), tokens[rows, 1:].flatten())

    return trained(Causal(seed), loss, len(tokens))
