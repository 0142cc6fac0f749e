"""ColumnTransformers whose parts are scalers, columns as they are, and columns left out, rebuilt from moments.

Each part is an affine function of its own columns, so the whole is z = M x + t with one entry in every row of M.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from consilience.checks import Array
from consilience.core.features import Features
from consilience.errors import UnsupportedError
from consilience.estimators.adapters.base import new_estimator
from consilience.estimators.adapters.scalers import set_scaler
from consilience.estimators.hyper_parameters import encoded_parameters
from consilience.families.centred_moments import CentredMoments

KIND = "sklearn.ColumnTransformer"
"""Name of the class in files and messages."""

_WORDS = ("passthrough", "drop")
"""What may stand in the place of a transformer."""


def encoded_transformer(transformer: Any) -> dict[str, Any]:
    """Return the parts of a fitted ColumnTransformer as JSON values, their columns by number."""
    if transformer.transformer_weights is not None:
        raise UnsupportedError("transformer_weights", "are not carried", "leave them out")
    positions = transformer._transformer_to_input_indices  # by name of the part, names of columns resolved
    parts = []
    for name, part, _ in transformer.transformers:
        if isinstance(part, str):
            parts.append({"name": name, "part": part, "columns": list(map(int, positions[name]))})
            continue
        _require_scaler(name, part)
        columns = list(map(int, positions[name]))
        parts.append({"name": name, "part": encoded_parameters(part), "columns": columns})
    if not isinstance(transformer.remainder, str):
        raise UnsupportedError("remainder", "is an estimator, expected 'drop' or 'passthrough'", "name its columns")
    return {
        "parts": parts,
        "remainder": transformer.remainder,
        "verbose_feature_names_out": bool(transformer.verbose_feature_names_out),
    }


def _require_scaler(name: str, part: Any) -> None:
    if type(part).__name__ != "StandardScaler" or not type(part).__module__.startswith("sklearn."):
        text = f"is a {type(part).__name__}, and only StandardScaler, 'passthrough' and 'drop' follow from moments"
        raise UnsupportedError(f"part {name!r}", text, "do the same to the data at all sites before")


def _made(part: Any) -> Any:
    return part if part in _WORDS else new_estimator("sklearn.preprocessing", "StandardScaler", part)


def rebuild_transformer(
    parameters: Mapping[str, Any], columns: CentredMoments, features: Features
) -> tuple[Any, Array, Array]:
    """Return a fitted ColumnTransformer with its map z = M x + t.

    It is made of what ``encoded_transformer`` returned, the moments of the d columns that reach it, and their names.
    """
    from sklearn.compose import ColumnTransformer

    d = columns.n_columns
    transformer = ColumnTransformer(
        [(part["name"], _made(part["part"]), part["columns"]) for part in parameters["parts"]],
        remainder=parameters["remainder"],
        verbose_feature_names_out=parameters["verbose_feature_names_out"],
    )
    # Fitting sets how parts lie beside one another, for which any rows serve; then each scaler gets its moments.
    transformer.fit(np.stack([np.zeros(d), np.ones(d)]))
    names = np.array(features.names, dtype=object) if features.from_columns and features.names is not None else None
    if names is not None:
        transformer.feature_names_in_ = names
    rows, shifts = [], []
    used: set[int] = set()
    for name, part, chosen in transformer.transformers_:
        if name == "remainder" and parameters["remainder"] != "drop":
            chosen = sorted(set(range(d)) - used)
        used |= set(chosen)
        if isinstance(part, str) and part == "drop":
            continue
        scale, mean = np.ones(len(chosen)), np.zeros(len(chosen))
        if hasattr(part, "with_std"):
            set_scaler(part, columns.columns(np.array(chosen, dtype=np.int64)).by_column())
            if names is not None:
                part.feature_names_in_ = names[chosen]
            scale = scale if part.scale_ is None else part.scale_
            mean = part.mean_ if part.with_mean else mean
        rows.append(np.eye(d)[chosen] / scale[:, None])
        shifts.append(-mean / scale)
    return transformer, np.vstack(rows), np.concatenate(shifts)
