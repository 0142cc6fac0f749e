"""What data given beside a fused model show of it: the states behind sequences, or rows to hold against a curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError, OptionError
from consilience.posteriors.adapters import adapter_of, rebuild
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.observations import ExpectedColumns, Observations, read_observations
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.sparse_gp.adapter import InducingPointAdapter

_WHICH = "hidden Markov models show the states behind sequences, sparse Gaussian processes rows beside their curve"


@dataclass(frozen=True, eq=False)
class Decoded:
    """One sequence and the fused model's most probable path behind it.

    Parameters
    ----------
    name
        What it is called.
    states
        State at every step (T,).
    truth
        The known label of every step (T,), where given.
    """

    name: str
    states: Labels
    truth: tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class Illustration:
    """Decoded `sequences`, or `rows` (n, d + 1) of inputs and targets in units of the data."""

    sequences: tuple[Decoded, ...] = ()
    rows: Array | None = None


def has_states(posterior: Posterior) -> bool:
    """Return whether these are states of a hidden Markov model: transitions between them were counted."""
    axes = {name: attached.axes for name, attached in posterior.attached.items()}
    return axes.get("transition_counts") == ("component", "component") and axes.get("start_counts") == ("component",)


def illustrate(posterior: Posterior, data: Any, truth: Any = None) -> Illustration:
    """Return what `data` show of a fused model.

    Parameters
    ----------
    posterior
        The fused model.
    data
        Rows (T, D) by name, or one array of them; instead of an array also a table with named columns, or the path of a
        .csv, .npy or .npz file. The rows of one name are one sequence in the order of time; for sparse Gaussian
        processes, whatever their name, inputs with the target in the last column.
    truth
        Known labels (T,) by name, or for the one array; or the name of the column that has them.

    Raises
    ------
    InputError
        For data that do not fit, or models that show nothing of data.
    OptionError
        For a truth without data.

    Examples
    --------
    >>> from consilience.posteriors.adapters import describe
    >>> from consilience.posteriors.sparse_gp.kernels import RBF
    >>> from consilience.posteriors.sparse_gp.model import SparseGP
    >>> gp = SparseGP(np.zeros((1, 1)), np.ones(1), np.eye(1), RBF(1.0, [1.0]), noise=0.1)
    >>> illustrate(describe(gp), {"monday": [[0.0, 1.1]], "tuesday": [[0.1, 0.9]]}).rows.tolist()
    [[0.0, 1.1], [0.1, 0.9]]
    """
    if data is None:
        if truth is not None:
            raise OptionError("truth: is shown beside data, expected data too")
        return Illustration()
    adapter = adapter_of(posterior)
    if adapter is not None and has_states(posterior):
        return Illustration(sequences=_decoded(adapter, posterior, _read(adapter, posterior, data, truth)))
    if isinstance(adapter, InducingPointAdapter):
        if truth is not None:
            raise InputError("truth: a sparse Gaussian process has no states; leave it out")
        return Illustration(rows=np.concatenate([one.values for one in _read(adapter, posterior, data, None).values()]))
    kind = posterior.source.get("kind", f"posterior over {posterior.family.name} components")
    raise InputError(f"data: nothing is shown of them beside a {kind}; {_WHICH}")


def _read(adapter: Adapter, posterior: Posterior, data: Any, truth: Any) -> dict[str, Observations]:
    """Return the rows of every name, all of them checked."""
    given = data if isinstance(data, Mapping) else {"data": data}
    if not given:
        raise InputError("data: expected at least one array of rows, found none")
    labels = truth if isinstance(truth, Mapping) else dict.fromkeys(given, truth)
    problems = [f"truth: has labels of {name!r}, but there are no such data" for name in labels if name not in given]
    if not isinstance(truth, Mapping | str | Path | None) and len(given) > 1:
        problems.append(f"truth: expected labels by name, as the data are, found {type(truth).__name__}")
    if problems:
        raise InputError(problems)
    count = adapter.n_columns(posterior)
    names = posterior.features.names if count == getattr(posterior.family, "dim", None) else None
    columns = ExpectedColumns(count, names, adapter.takes_counts)
    found: dict[str, Observations] = {}
    for name, rows in given.items():
        called = "data" if rows is data else f"data {name!r}"
        what = "truth" if rows is data else f"truth of {name!r}"
        try:
            found[str(name)] = read_observations(rows, labels.get(name), columns, called, what)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return found


def _decoded(adapter: Adapter, posterior: Posterior, given: Mapping[str, Observations]) -> tuple[Decoded, ...]:
    """Return every sequence with its most probable path, as the adapter's scores tell it."""
    model = rebuild(posterior)
    found, problems = [], []
    for name, one in given.items():
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # rows that no state can have emitted are named
                scores = adapter.scores(model, one.values)
        except InputError as error:
            problems += [f"{name}: {problem}" for problem in error.problems]
            continue
        truth = None if one.labels is None else tuple(one.classes[label] for label in one.labels.tolist())
        found.append(Decoded(name, scores.labels, truth))
    if problems:
        raise InputError(problems)
    return tuple(found)
