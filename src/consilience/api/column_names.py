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
    if data is None or (n_columns is None and stated is None) or (stated is not None and stated.categories is not None):
        return stated
    rows, target = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    table = read_named_table(Path(rows)) if isinstance(rows, str | Path) else as_named_table(rows)
    if table is None:
        return stated
    names = tuple(name for name in table.header if not (isinstance(target, str) and name == target))
    if stated is not None:
        return replace(stated, categories=_categories(table, stated.names or ()) or None)
    categories = _categories(table, names) or None
    if hasattr(model, "feature_names_in_"):  # its adapter takes the names
        is_of_model = tuple(map(str, model.feature_names_in_)) == names
        return Features(names=names, categories=categories) if categories and is_of_model else None
    is_named = len(names) == n_columns and len(set(names)) == len(names)
    return Features(names=names, categories=categories) if is_named else None


def _categories(table: NamedTable, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the categories of the named columns that have some."""
    return {name: table.categories[name] for name in names if name in table.categories}
