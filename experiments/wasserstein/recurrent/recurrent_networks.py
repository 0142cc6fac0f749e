"""The recurrent networks of the experiments: one layer of 256 units that reads a sequence, and a linear decoder.

The networks are those of section 4.3 of the paper on Wasserstein-barycenter fusion, and GRUs, which the paper has not.
"""

from __future__ import annotations

import torch
from recurrent.sequence_data import word_vectors
from torch import nn

HIDDEN = 256
CELLS: dict[str, type[nn.RNN | nn.LSTM | nn.GRU]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class RowReader(nn.Module):
    """Reads an image (n, 28, 28) row by row, and tells its class from the last state."""

    def __init__(self, cell: str, hidden: int = HIDDEN, classes: int = 10) -> None:
        """Build a network of ``rnn`` (tanh), ``lstm`` or ``gru`` cells."""
        super().__init__()
        self.recurrent = CELLS[cell](28, hidden, batch_first=True)
        self.decoder = nn.Linear(hidden, classes)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes)."""
        states, _ = self.recurrent(rows)
        return self.decoder(states[:, -1])


class TextReader(nn.Module):
    """Reads words (n, length) by frozen vectors, and tells a text's class from the last state."""

    def __init__(self, cell: str, classes: int, hidden: int = HIDDEN) -> None:
        """Build a network of ``rnn`` (tanh), ``lstm`` or ``gru`` cells."""
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(word_vectors(), freeze=True, padding_idx=0)
        self.recurrent = CELLS[cell](self.embedding.embedding_dim, hidden, batch_first=True)
        self.decoder = nn.Linear(hidden, classes)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes)."""
        states, _ = self.recurrent(self.embedding(words))
        return self.decoder(states[:, -1])
