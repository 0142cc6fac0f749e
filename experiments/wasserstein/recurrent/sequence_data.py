"""MNIST as sequences of rows, and SST-2, AG News and DBpedia-14 as sequences of words, for the recurrent networks.

Needs ``mnist.npz``, ``sst2.npz``, ``ag_news.npz``, ``dbpedia14.npz`` and ``glove50_vocab.npz`` in the folder
``CONSILIENCE_DATA``. AG News is 42,906 of its 120,000 training texts with the whole test set, DBpedia-14 is 35,000
training and 5,600 test texts of its 560,000 and 70,000, and SST-2 is tested on its 872 development texts, since its
test labels are not public. A fixed part of the training texts is for validation, whatever the seed of an experiment is.

A text is cut after `LONGEST` words and padded in front, up to the next multiple of `STEP` words, whatever batch it is
in, so that a network says the same of it beside any other texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from image_data import DATA, SPLIT_SEED, ImageData, Images, load_mnist

STEP, VALIDATION_TEXTS = 8, 2_500
LONGEST = {"sst2": 56, "ag_news": 48, "dbpedia14": 48}
UNKNOWN = 1


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts as numbers of words, and their classes.

    Parameters
    ----------
    words
        int64 (n, longest), padded with 0 in front.
    lengths
        int64 (n,): words with padding up to a multiple of `STEP`.
    y
        int64 (n,): classes.
    """

    words: torch.Tensor
    lengths: torch.Tensor
    y: torch.Tensor

    @property
    def x(self) -> torch.Tensor:
        """All texts, padded alike: for examples."""
        return self.words

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.y)

    def at(self, rows: np.ndarray) -> Texts:
        """Return some of the texts."""
        chosen = torch.from_numpy(rows)
        return Texts(self.words[chosen], self.lengths[chosen], self.y[chosen])

    def to(self, device: torch.device) -> Texts:
        """Return the texts on a device."""
        return Texts(self.words.to(device), self.lengths.to(device), self.y.to(device))

    def shuffled(self, batch: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        """Return the rows of batches of texts of one length, in random order."""
        batches = self._split(torch.randperm(len(self), generator=generator), batch)
        return tuple(batches[number] for number in torch.randperm(len(batches), generator=generator).tolist())

    def in_order(self, batch: int) -> tuple[torch.Tensor, ...]:
        """Return the rows of batches of texts of one length, short ones first."""
        return self._split(torch.arange(len(self)), batch)

    def _split(self, order: torch.Tensor, batch: int) -> tuple[torch.Tensor, ...]:
        lengths = self.lengths.cpu()[order]
        return tuple(rows for length in lengths.unique().tolist() for rows in order[lengths == length].split(batch))

    def inputs(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what networks read of texts of one length."""
        chosen = rows.to(self.words.device)
        return self.words[chosen, -int(self.lengths[chosen[0]]) :]


@dataclass(frozen=True, eq=False)
class TextData:
    """Texts to learn from, to choose settings by, and to report."""

    train: Texts
    validation: Texts
    test: Texts


@cache
def load_mnist_rows() -> ImageData:
    """Return MNIST as sequences of 28 rows of 28 pixels (n, 28, 28)."""
    whole = load_mnist()
    parts = (whole.train, whole.validation, whole.test)
    return ImageData(*(Images(part.x.reshape(-1, 28, 28), part.y) for part in parts))


@cache
def load_texts(name: str) -> TextData:
    """Return the texts of ``sst2``, ``ag_news`` or ``dbpedia14``."""
    with np.load(DATA / f"{name}.npz") as stored:
        known = padded(stored, "train", LONGEST[name])
        test = padded(stored, "dev" if name == "sst2" else "test", LONGEST[name])
    order = np.random.default_rng(SPLIT_SEED).permutation(len(known))
    return TextData(known.at(order[:-VALIDATION_TEXTS]), known.at(order[-VALIDATION_TEXTS:]), test)


def padded(stored: np.lib.npyio.NpzFile, part: str, longest: int) -> Texts:
    """Return texts cut after so many words, padded in front."""
    tokens, offsets = stored[f"tokens_{part}"], stored[f"offsets_{part}"]
    lengths = np.minimum(np.diff(offsets), longest)
    words = np.zeros((len(lengths), longest), np.int64)
    column = np.arange(longest) - (longest - lengths)[:, None]
    rows, columns = np.nonzero(column >= 0)
    words[rows, columns] = tokens[offsets[rows] + column[rows, columns]]
    up = np.maximum(-(-lengths // STEP) * STEP, STEP)
    return Texts(torch.from_numpy(words), torch.from_numpy(up), torch.from_numpy(stored[f"y_{part}"].astype(np.int64)))


@cache
def word_vectors() -> torch.Tensor:
    """Return the vectors (words, 50) of GloVe 6B; zeros for padding and words without, the mean for unknown ones."""
    with np.load(DATA / "glove50_vocab.npz") as stored:
        vectors = stored["vectors"].astype(np.float32)
        vectors[UNKNOWN] = stored["mean_vector"]
    return torch.from_numpy(vectors)
