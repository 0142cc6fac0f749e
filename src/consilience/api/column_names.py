"""What the columns of data mean, where a table names them and the model that was fitted to it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from consilience.core.features import Features, as_features
from consilience.files.tables import NamedTable, as_named_table, read_named_table


def features_of(features: Any, model: Any, data: Any) -> Features | None:
    """Return what columns mean as it is stated, or by the names that a table of data has; None where neither says it.

    Categories of columns are taken from a table that has them, also where the model knows the names. A model that was
    fitted to an array does not know the names of its columns, while the table beside it does. They are
    taken where it has as many columns as the model.
    """
    stated = as_features(features)
    n_columns = getattr(model, "n_features_in_", None)
    is_known = n_columns is None if stated is None else stated.categories is not None
    rows, target = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    table = None if is_known else _table(rows)
    if table is None:
        return stated
    if stated is not None:
        return replace(stated, categories=_categories(table, stated.names or ()))
    names = tuple(name for name in table.header if not (isinstance(target, str) and name == target))
    found = Features(names=names, categories=_categories(table, names))
    known = getattr(model, "feature_names_in_", None)  # its adapter takes the names
    if known is not None:
        return found if found.categories and tuple(map(str, known)) == names else None
    return found if len(set(names)) == len(names) == n_columns else None


def _table(rows: Any) -> NamedTable | None:
    """Return rows, or those in a file, as a table; None where their columns have no names, and for no rows."""
    return read_named_table(Path(rows)) if isinstance(rows, str | Path) else as_named_table(rows)


def _categories(table: NamedTable, names: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    """Return the categories of the named columns that have some; None where none has."""
    return {name: table.categories[name] for name in names if name in table.categories} or None
