"""Illustrations of fused models on data: decoded states of sequences, or rows beside the curve of a process.

A hidden Markov model shows the most probable path of states of each sequence, as its adapter decodes it; a sparse
Gaussian process shows the rows themselves. Other models show nothing of data: an `InputError` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.observations import ExpectedColumns, Observations, read_observations
from consilience.errors import InputError, OptionError, Problem
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.adapters.table import adapter_of
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.rebuild import rebuild
from consilience.posteriors.sparse_gp.adapter import InducingPointAdapter

_SUPPORTED_MODELS = (
    "hidden Markov models show the states behind sequences, sparse Gaussian processes rows along with their curve"
)


@dataclass(frozen=True, eq=False)
class DecodedSequence:
    """One sequence and the fused model's most probable path behind it."""

    name: str
    states: Labels  # at every step (T,)
    truth: tuple[str, ...] | None  # label of every step, where given


@dataclass(frozen=True, eq=False)
class Illustration:
    """Decoded `sequences`, or `rows` (n, d + 1) of inputs and targets in units of the data."""

    sequences: tuple[DecodedSequence, ...] = ()
    rows: Array | None = None


def has_states(posterior: Posterior) -> bool:
    """Return whether these are states of a hidden Markov model: transitions between them were counted."""
    axes = {name: attached.axes for name, attached in posterior.attached.items()}
    return axes.get("transition_counts") == ("component", "component") and axes.get("start_counts") == ("component",)


def illustrate(posterior: Posterior, data: Any, truth: Any = None) -> Illustration:
    """Return what `data` show of a fused model, or raise for data that do not fit, and for a truth without data.

    Data are rows (T, D) by name, or one array of them; instead of an array also a table with named columns, or the path
    of a .csv, .npy or .npz file. The rows of one name are one sequence in the order of time; for sparse Gaussian
    processes, whatever their name, inputs with the target in the last column. The truth are labels (T,) by name, or for
    the one array; or the name of the column that has them.

    Examples
    --------
    >>> from consilience.posteriors.describe import describe
    >>> from consilience.posteriors.sparse_gp.kernels import RBF
    >>> from consilience.posteriors.sparse_gp.model import SparseGP
    >>> gp = SparseGP(np.zeros((1, 1)), np.ones(1), np.eye(1), RBF(1.0, [1.0]), noise=0.1)
    >>> illustrate(describe(gp), {"monday": [[0.0, 1.1]], "tuesday": [[0.1, 0.9]]}).rows.tolist()
    [[0.0, 1.1], [0.1, 0.9]]
    """
    if data is None:
        if truth is not None:
            raise OptionError("truth", "is shown with data, expected data too")
        return Illustration()
    adapter = adapter_of(posterior)
    if adapter is not None and has_states(posterior):
        observed = _read_observations(adapter, posterior, data, truth)
        return Illustration(sequences=_decode_sequences(adapter, posterior, observed))
    if isinstance(adapter, InducingPointAdapter):
        if truth is not None:
            raise InputError("truth", "a sparse Gaussian process has no states", "leave it out")
        observed = _read_observations(adapter, posterior, data, None)
        return Illustration(rows=np.concatenate([rows.values for rows in observed.values()]))
    kind = posterior.source.get("kind", f"posterior over {posterior.family.name} components")
    raise InputError("data", f"are not shown in the report of a {kind}; {_SUPPORTED_MODELS}")


def _read_observations(adapter: Adapter, posterior: Posterior, data: Any, truth: Any) -> dict[str, Observations]:
    """Return the rows of every name, all of them checked."""
    data_by_name = data if isinstance(data, Mapping) else {"data": data}
    if not data_by_name:
        raise InputError("data", "expected at least one array of rows, found none", code="E-SHAPE")
    labels = truth if isinstance(truth, Mapping) else dict.fromkeys(data_by_name, truth)
    strangers = [name for name in labels if name not in data_by_name]
    problems = [Problem("truth", f"has labels of {name!r}, but there are no such data") for name in strangers]
    if not isinstance(truth, Mapping | str | Path | None) and len(data_by_name) > 1:
        text = f"expected labels by name, as the data are, found {type(truth).__name__}"
        problems.append(Problem("truth", text, code="E-TYPE"))
    if problems:
        raise InputError(problems)
    n_columns = adapter.n_columns(posterior)
    # Of symbols there is one column, whatever their number: the names are those of the symbols then.
    names = posterior.features.names if n_columns == getattr(posterior.family, "dim", None) else None
    columns = ExpectedColumns(n_columns, names, adapter.takes_counts)
    observations_by_name: dict[str, Observations] = {}
    for name, rows in data_by_name.items():
        called = ("data", "truth") if rows is data else (f"data {name!r}", f"truth of {name!r}")
        try:
            observations_by_name[str(name)] = read_observations(rows, labels.get(name), columns, *called)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return observations_by_name


def _decode_sequences(
    adapter: Adapter, posterior: Posterior, observations_by_name: Mapping[str, Observations]
) -> tuple[DecodedSequence, ...]:
    """Return every sequence with its most probable path of states, which the adapter's scores have as labels."""
    model = rebuild(posterior)
    sequences, problems = [], []
    for name, observed in observations_by_name.items():
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # rows that no state can have emitted are named
                scores = adapter.scores(model, observed.values)
        except InputError as error:
            problems += [problem.about(name) for problem in error.problems]
            continue
        labels = observed.labels
        truth = None if labels is None else tuple(observed.classes[label] for label in labels.tolist())
        sequences.append(DecodedSequence(name, scores.labels, truth))
    if problems:
        raise InputError(problems)
    return tuple(sequences)
