"""Rows of a site, read where sums are taken of them: finite numbers, with a class or targets and a weight for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import sparse

from consilience.checks import Array
from consilience.core.features import Features
from consilience.core.inspection import MAX_LISTED
from consilience.core.observations import ExpectedColumns, read_observations
from consilience.errors import FileFormatError, InputError, OptionError
from consilience.files.csv import read_csv
from consilience.files.labelled_arrays import read_labelled_arrays
from consilience.files.npy import not_data
from consilience.files.tables import as_named_table, read_named_table

Needs = Literal["classes", "targets", "nothing"]
"""What an estimator is fitted to beside its rows."""


@dataclass(frozen=True, eq=False)
class SiteRows:
    """Checked rows of a site, and what an estimator takes its sums of them by."""

    X: Any  # (n, d), rows in float64, or a CSR array of such
    y: Any = None  # (n,) or (n, q), class or targets of every row
    weights: Array | None = None  # (n,), weight of every row; None counts all alike
    numbers: Any = None  # (n,), the class of every row, by its position among `n_classes`
    n_classes: int = 0  # number of classes
    parameters: Mapping[str, Any] = field(default_factory=dict)  # the estimator's hyper-parameters
    # Whether a step before the estimator mixes columns, so that it needs products although it would not.
    products: bool = False

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def dense(self) -> Array:
        """The rows (n, d), not sparse."""
        return np.asarray(self.X.toarray() if hasattr(self.X, "toarray") else self.X, dtype=np.float64)

    @property
    def weight_of_each(self) -> Array:
        """Weight of every row (n,), 1 where all count alike."""
        return np.ones(self.n) if self.weights is None else self.weights

    @property
    def counts(self) -> Array:
        """Number of rows: of every class (C,), or of all ()."""
        if self.numbers is None:
            return np.array(float(self.n))
        return np.bincount(self.numbers, minlength=self.n_classes).astype(np.float64)

    @property
    def one_target(self) -> Array:
        """The targets (n,), of which there must be one a row."""
        if self.y.ndim != 1:
            raise InputError("y", f"has shape {self.y.shape}, expected one target", code="E-SHAPE")
        targets: Array = self.y
        return targets


def read_rows(
    data: Any,
    sample_weight: Any,
    n_columns: int,
    names: tuple[str, ...] | None,
    needs: Needs,
    *,
    may_be_sparse: bool,
    categories: Sequence[str] = (),
) -> SiteRows:
    """Return rows, checked.

    Data are ``(X, y)``, or X alone where nothing else is needed, or the path of a .npz with x and y, or of a .csv with
    one column beside those of the model. X may be a table with named columns, or the path of a .csv or .parquet file,
    and y the name of one of its columns. Weights (n,) are one for every row. Of a model of `categories` by name, y may
    be these names: its numbers are their places.
    """
    X, y, called = _split(data, needs, names, n_columns)
    if sparse.issparse(X) and may_be_sparse:
        X = sparse.csr_array(X, dtype=np.float64)
        if X.shape[1] != n_columns:
            raise InputError(called, f"has {X.shape[1]} columns, expected {n_columns}", code="E-SHAPE")
        if not np.all(np.isfinite(X.data)):
            raise InputError(called, "has values that are not finite", code="E-NUMBER")
    else:
        X = read_observations(X, None, ExpectedColumns(n_columns, names, False), called).values
    n = int(X.shape[0])
    if needs == "classes":
        y = _column(y)
        if y.shape != (n,):
            text = f"expected one class for each of the {n} rows, found shape {y.shape}"
            raise InputError("y", text, "of one-hot labels give `y.argmax(axis=1)`", "E-SHAPE")
    elif needs == "targets":
        expected = f"one of {', '.join(categories[:MAX_LISTED])}" if categories else "a number"
        y = real_targets(_places(y, categories), n, f"expected {expected} for every row")
    else:
        y = None
    return SiteRows(X, y, _weights(sample_weight, n))


def names_within(data: Any, features: Features) -> tuple[str, ...] | None:
    """Return names of columns by which rows are put in order, None of rows that are in the order of the model.

    A model that was fitted to named columns knows them by name; any other only those of a table that has just these.
    """
    names = features.names
    if features.from_columns:
        return names
    X, target = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    table = read_named_table(Path(X)) if isinstance(X, str | Path) else as_named_table(X)
    if table is None or names is None or len(set(names)) < len(names):
        return None
    # In one file with the columns stands that of the targets, which is any other.
    others = [name for name in table.header if not isinstance(target, str) or name != target]
    is_all = set(names) <= set(others) if isinstance(X, str | Path) else sorted(names) == sorted(others)
    return names if is_all else None


def read_labelled(path: Path, needs: Needs) -> tuple[Any, Any, tuple[str, ...] | None]:
    """Return the rows in a file, their classes or targets, and the names of the columns where it has them.

    A .npz has x and y; the last column of a .csv is the class or the target. With `needs` "nothing" all columns are
    those of rows.
    """
    if path.suffix.lower() not in (".csv", ".npy", ".npz"):
        raise FileFormatError(not_data(path, ".csv, .npz or .npy"))
    if path.suffix.lower() != ".csv":
        X, y, _ = _split(path, needs, None, None)
        return X, y, None
    if needs == "nothing":
        table = read_csv(path)
        width = len(table.rows[0])
        return table.numbers(range(width)), None, table.header
    X, y = _read_table(path, None, None, needs)
    return X, y, tuple(read_csv(path).header or ())[:-1] or None


def _read_table(path: Path, names: tuple[str, ...] | None, n_columns: int | None, needs: Needs) -> tuple[Array, Any]:
    """Return the columns of a CSV that a model names, and its one other column: the classes or the targets."""
    table = read_csv(path, names)
    header = table.header or ()
    inputs = tuple(range(len(header) - 1)) if names is None else tuple(map(header.index, set(names) & set(header)))
    others = [number for number in range(len(header)) if number not in inputs]
    if len(others) != 1 or len(inputs) < (len(names) if names is not None else n_columns or 0):
        wanted = f"the columns {', '.join(names[:8])}" if names is not None else f"{n_columns or 'its'} columns"
        text = (
            f"has the columns {', '.join(header[:8]) or 'without names'}; expected {wanted} and one more, the"
            f" {'class' if needs == 'classes' else 'target'}"
        )
        remedy = f'write such a table, or a .npz with x and y; or name the column: `data=("{path.name}", "outcome")`'
        raise InputError(path, text, remedy, "E-SHAPE")
    ordered = inputs if names is None else tuple(header.index(name) for name in names)
    labels = np.array(table.column(header[others[0]]))
    return table.numbers(ordered), _numbers_or_texts(labels, needs)


def _numbers_or_texts(labels: Any, needs: Needs) -> Any:
    """Return cells as whole numbers, or else numbers, where all are such."""
    for dtype in (np.int64, np.float64) if needs == "classes" else ():
        try:
            return labels.astype(dtype)
        except ValueError:
            continue
    return labels


def _split(data: Any, needs: Needs, names: tuple[str, ...] | None, n_columns: int | None) -> tuple[Any, Any, str]:
    """Return X, y and what to call X."""
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], str):
        return _with_column(*data)
    if isinstance(data, str | Path):
        path = Path(data)
        if path.suffix.lower() == ".csv":
            if needs == "nothing":
                return data, None, str(data)
            return *_read_table(path, names, n_columns, needs), str(data)
        if path.suffix.lower() == ".parquet":
            if needs != "nothing":
                text = "which of its columns is y is not stated"
                raise InputError(path, text, f'give `data=("{path.name}", "outcome")`', "E-NEEDED")
            return data, None, str(data)
        arrays = read_labelled_arrays(path)
        if needs != "nothing" and arrays.labels is None:
            text = "has no array y, which this model is fitted to"
            raise InputError(path, text, "write a .npz with x and y", "E-NEEDED")
        return arrays.inputs, arrays.labels, str(data)
    if isinstance(data, tuple) and len(data) == 2:
        return data[0], data[1], "X"
    if needs != "nothing":
        text = f"expected (X, y), found {type(data).__name__} without y"
        raise InputError("data", text, "give `data=(X, y)`", "E-TYPE")
    return data, None, "data"


def _with_column(data: Any, name: str) -> tuple[Any, Any, str]:
    """Return a table without the column of this name, that column, and what to call the table."""
    called = str(data) if isinstance(data, str | Path) else "X"
    table = read_named_table(Path(data)) if isinstance(data, str | Path) else as_named_table(data)
    if table is None:
        raise InputError(called, f"has no named columns, so none is {name!r}", "give y as an array", "E-NEEDED")
    if table.header.count(name) != 1:
        names = ", ".join(table.header)[:200]
        text = f"has {table.header.count(name)} columns {name!r}, expected one; found {names}"
        raise InputError(called, text, code="E-SHAPE")
    place = table.header.index(name)
    return table.without(place), table.take(place), called


def _column(y: Any) -> Any:
    array = np.asarray(y)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _places(y: Any, categories: Sequence[str]) -> Any:
    """Return texts as places among the names of categories; what are no texts, or no such names, as it is."""
    array = np.asarray(_column(y))
    place_of = {name: place for place, name in enumerate(categories)}
    is_named = array.dtype.kind in "OUS" and all(str(name) in place_of for name in array.tolist())
    return np.array([place_of[str(name)] for name in array.tolist()]) if categories and is_named else y


def real_targets(y: Any, n: int, text: str = "expected a number for every row", remedy: str = "") -> Array:
    """Return targets (n,) or (n, q) in double precision; `text` and `remedy` are said of what are no numbers."""
    try:
        array: Array = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("y", text, remedy, "E-TYPE") from None
    if array.ndim not in (1, 2) or array.shape[0] != n or 0 in array.shape[1:]:
        raise InputError(
            "y", f"expected a number, or a row of them, for each of the {n} rows, found {array.shape}", code="E-SHAPE"
        )
    if not np.all(np.isfinite(array)):
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise InputError("y", f"row {row}, counted from 0, is not finite", code="E-NUMBER")
    return array


def _weights(sample_weight: Any, n: int) -> Array | None:
    if sample_weight is None:
        return None
    try:
        weights: Array = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise OptionError("sample_weight", f"expected {n} numbers, found {sample_weight!r:.80}") from None
    if weights.ndim == 0:
        weights = np.full(n, float(weights))
    expected = f"expected one finite number that is not negative for each of the {n} rows, found"
    if weights.shape != (n,):
        raise OptionError("sample_weight", f"{expected} shape {weights.shape}")
    odd = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(odd):
        raise OptionError("sample_weight", f"{expected} {weights[odd[0]]:g} for row {odd[0]}, counted from 0")
    if not np.any(weights > 0):
        raise OptionError("sample_weight", f"{expected} 0 for all", "leave it out to count rows alike")
    if np.any(weights == 0):
        row = int(np.flatnonzero(weights == 0)[0])
        text = (
            f"is 0 for {int(np.sum(weights == 0))} of the rows, the first of them row {row}, counted from 0: such a row"
            " is one of the rows for some numbers of a model and none for others"
        )
        raise OptionError("sample_weight", text, "leave these rows out of the data, and fit without them")
    return weights
