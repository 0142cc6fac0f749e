"""Rows that a site holds out of training and of its description, and whether they were kept apart.

Rows are told apart by a hash of their numbers and their label. Hashes stay at the site; one digest of all held-out rows
may leave it, which says nothing of a single row and is the same where the same rows answer later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from consilience.checks import is_count, is_number
from consilience.errors import InputError, OptionError
from consilience.files.labelled_arrays import read_labelled_arrays

MIN_HELD_OUT = 50
"""Held-out rows of a site below which its losses say too little: the standard error of an error of 20 % is then 6
points. Chosen by hand, as a statistical minimum."""
MAX_HELD_OUT = 500
"""Held-out rows of a site by default, at most: a standard error of 2 points at 20 %."""
SHARE = 0.1
"""Share of a site's rows that are held out by default."""
MAX_TRAINED_ON = 0.05
"""Share of held-out rows that may be among the rows that were trained on, beyond what rows of the site are alike
anyway. Chosen by hand: a split leaves none, and forgetting to split leaves all."""


class HeldOut(NamedTuple):
    """A site's rows in two parts, each as they were given: X, or (X, y)."""

    train: Any  # the rows to train on and to describe
    held_out: Any  # the rows to compare networks on


def hold_out(
    X: Any, y: Any = None, *, share: float = SHARE, max_rows: int = MAX_HELD_OUT, rng: int | np.random.Generator = 0
) -> HeldOut:
    """Split a site's rows before it trains: what it trains on and describes, and what models are compared on.

    Parameters
    ----------
    X : array, tensor, sparse matrix, table, sequence, or mapping of arrays
        The rows of the site; a mapping has the arguments of a network by name.
    y : array_like, optional
        Label or target of every row. Default: none.
    share : float, optional
        Share of the rows that are held out. Default: 0.1.
    max_rows : int, optional
        Rows that are held out at most; at least 50 are. Default: 500.
    rng : int or Generator, optional
        Draws which. Default: 0.

    Returns
    -------
    HeldOut
        ``train`` and ``held_out``, each X or (X, y).

    Raises
    ------
    InputError
        For fewer rows than twice the 50 that a comparison needs.

    Examples
    --------
    >>> train, held_out = hold_out(np.arange(300).reshape(150, 2), np.arange(150) % 3)
    >>> len(train[0]), len(held_out[1])
    (100, 50)
    """
    if not is_number(share) or not 0 < share < 1:
        raise OptionError("share", f"expected a number between 0 and 1, found {share!r}")
    if not is_count(max_rows) or max_rows < MIN_HELD_OUT:
        raise OptionError("max_rows", f"expected {MIN_HELD_OUT} rows or more, found {max_rows!r}")
    n = _n_rows(X)
    if y is not None and len(y) != n:
        raise InputError("y", f"has {len(y)} labels, and X has {n} rows", "give a label for each", "E-SHAPE")
    if n < 2 * MIN_HELD_OUT:
        text = f"has {n} rows, of which {MIN_HELD_OUT} cannot be held out"
        raise InputError("X", text, "train on all of them, and take no part in the choice", "E-FEW")
    n_held = int(min(max_rows, max(MIN_HELD_OUT, round(share * n))))
    order = np.random.default_rng(rng).permutation(n)
    held, train = np.sort(order[:n_held]), np.sort(order[n_held:])
    parts = (_rows_of(X, rows) if y is None else (_rows_of(X, rows), _rows_of(y, rows)) for rows in (train, held))
    return HeldOut(*parts)


def _n_rows(values: Any) -> int:
    """Return how many rows there are."""
    if isinstance(values, Mapping):
        lengths = {len(one) for one in values.values()}
        if len(lengths) != 1:
            found = ", ".join(map(str, sorted(lengths))) or "none"
            raise InputError("X", f"has arguments of {found} rows", "give every argument a row for each", "E-SHAPE")
        return int(next(iter(lengths)))
    return int(values.shape[0]) if hasattr(values, "shape") else len(values)


def _rows_of(values: Any, rows: Any) -> Any:
    """Return some rows of an array, a table or a sequence, in its own type."""
    if isinstance(values, Mapping):
        return type(values)({name: _rows_of(one, rows) for name, one in values.items()})  # type: ignore[call-arg]
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    if hasattr(values, "shape"):
        return values[rows]
    return type(values)(values[int(row)] for row in rows)


def digest_of_rows(data: Any) -> str | None:
    """Return a digest of rows with their labels, whatever their order and the precision that holds them.

    `data` are X, (X, y), a mapping of arguments with labels, or the path of a file; None for batches, which are read
    once.
    """
    if (hashes := _row_hashes(data)) is None:
        return None
    total = sha256()
    for one in sorted(hashes):
        total.update(one)
    return total.hexdigest()


def _row_hashes(data: Any) -> list[bytes] | None:
    """Return a hash of every row with its label; None for batches."""
    if isinstance(data, str | Path):
        if Path(data).suffix.lower() not in (".npz", ".npy"):
            return None
        arrays = read_labelled_arrays(Path(data))
        data = arrays.inputs if arrays.labels is None else (arrays.inputs, arrays.labels)
    parts = list(data) if isinstance(data, tuple) else [data]
    columns = [array for part in parts for array in _arrays_of(part)]
    if not columns or not all(hasattr(one, "__array__") or hasattr(one, "toarray") for one in columns):
        return None
    rows = [_as_rows(one) for one in columns]
    return [sha256(b"\0".join(of_array[row] for of_array in rows)).digest() for row in range(len(rows[0]))]


def _arrays_of(part: Any) -> list[Any]:
    """Return the arrays of inputs or labels, those of several by name in the order of the names."""
    if isinstance(part, Mapping):
        return [part[name] for name in sorted(part, key=str)]
    return list(part) if isinstance(part, tuple) else [part]


def _as_rows(values: Any) -> list[bytes]:
    """Return the bytes of every row: of numbers those in single precision, which all files keep."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    array = np.asarray(values.toarray() if hasattr(values, "toarray") else values)
    if array.dtype.kind in "biuf":
        rows = np.ascontiguousarray(array.reshape(len(array), -1), dtype=np.float32) + np.float32(0.0)  # no -0
        return [row.tobytes() for row in rows]
    return [repr(row).encode() for row in array.tolist()]


def refuse_trained_on(trained: Any, held_out: Any, name: str = "held_out") -> None:
    """Raise InputError for held-out rows that are among those that were trained on, as `digest_of_rows` reads both.

    Raises OptionError where one of them is batches.
    """
    hashes_of_training, hashes = _row_hashes(trained), _row_hashes(held_out)
    if hashes is None or hashes_of_training is None:
        which = name if hashes is None else "data"
        text = f"are compared with {'data' if hashes is None else name} row by row, and batches are read once"
        raise OptionError(which, text, "give (X, y)")
    of_training = Counter(hashes_of_training)
    n_alike = sum(count for count in of_training.values() if count > 1)
    usual = n_alike / max(1, sum(of_training.values()))
    found = sum(one in of_training for one in hashes) / max(1, len(hashes))
    if found > usual + MAX_TRAINED_ON:
        text = f"{found:.0%} of its rows are among those that the model was trained on"
        raise InputError(name, text, "split before training: `consilience.hold_out(X, y)`", "E-TWICE")
