"""What the columns of data mean, where a table names them and the model that was fitted to it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from consilience.files.tables import as_named_table, read_named_table
from consilience.posteriors.posterior import Features, as_features


def features_of(features: Any, model: Any, data: Any) -> Features | None:
    """Return what columns mean as it is stated, or by the names that a table of data has; None where neither says it.

    A model that was fitted to an array does not know the names of its columns, while the table beside it does. They are
    taken where it has as many columns as the model.
    """
    stated = as_features(features)
    n_columns = getattr(model, "n_features_in_", None)
    if stated is not None or data is None or n_columns is None or hasattr(model, "feature_names_in_"):
        return stated
    rows, target = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    table = read_named_table(Path(rows)) if isinstance(rows, str | Path) else as_named_table(rows)
    if table is None:
        return None
    names = tuple(name for name in table.header if not (isinstance(target, str) and name == target))
    return Features(names=names) if len(names) == n_columns and len(set(names)) == len(names) else None
