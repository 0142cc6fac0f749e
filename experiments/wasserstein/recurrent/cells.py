"""The networks of the recurrent experiments, in the order in which tables and figures show them, and their names."""

from __future__ import annotations

DATA = {"mnist": "MNIST", "ag_news": "AG News", "dbpedia": "DBpedia", "sst2": "SST-2"}
CELLS = {"rnn": "RNN", "lstm": "LSTM", "gru": "GRU"}
KINDS = tuple(f"{data}_{cell}" for cell in CELLS for data in DATA)
PUBLISHED_KINDS = tuple(kind for kind in KINDS if not kind.endswith("gru"))


def data_and_cell(kind: str) -> tuple[str, str]:
    """Return how the data and the cells of a kind of network are called."""
    data, _, cell = kind.rpartition("_")
    return DATA[data], CELLS[cell]


def title_of(kind: str) -> str:
    """Return what to call a kind of network."""
    return "{1}, {0}".format(*data_and_cell(kind))
