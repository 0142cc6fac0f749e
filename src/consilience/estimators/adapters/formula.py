"""Reading of the design of a fitted result of statsmodels: outcome, levels, contrasts and constants of a formula.

Formulas of patsy and of formulaic are read, by the attributes of what they leave: neither is imported. Constants are of
three kinds: those that a stateful transform memorises, as `standardize(x)` and `bs(x, df=4)` do; variables of
the caller's, as m in `I(x - m)`; and those that an expression computes from all rows whenever it is evaluated, as
`I(x - x.mean())` does, which show when it is evaluated on half of the rows. Means and deviations are kept as numbers.
All others are kept as digests, since knots and bounds are values of single rows.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from consilience.estimators.design import Design, Factor

DIGITS = 12
"""Significant digits in which constants are compared: one sum over the same rows in another order differs by 1e-15."""

_MAX_DEPTH = 8
"""Depth to which the memory of a transform is read: patsy's and formulaic's have two."""

_ROUNDING = 1e-9
"""Difference of a column evaluated on part of the rows, as a part of its largest value, that is rounding."""


def read_design(model: Any) -> Design:
    """Return what a formula made columns and outcome of, in the ``model`` of a fitted result of statsmodels."""
    data = model.data
    spec = _spec_of(data)
    of_outcome = _spec_of(getattr(data, "orig_endog", None))
    specs = [one for one in (spec, of_outcome) if one is not None]
    frame = getattr(data, "frame", None)
    factors: dict[str, Factor] = {}
    constants: dict[str, dict[str, float | str | None]] = {}
    for one in specs:
        read = _read_formulaic if hasattr(one, "transform_state") else _read_patsy
        its_factors, its_constants = read(one, frame)
        factors |= its_factors
        constants |= its_constants
    outcome = str(getattr(data, "formula", None) or "").partition("~")[0].strip()
    if spec is not None and of_outcome is None and outcome not in constants and not _is_elementwise(outcome):
        constants[outcome] = {"its rows": None}  # as of a result that was pickled, which forgets them
    return Design(_outcome(model, spec is not None), factors, constants)


def _is_elementwise(code: str) -> bool:
    """Return whether all functions that an expression calls work on each row alone: I, Q, and ufuncs of NumPy."""
    called = re.findall(r"([\w.]+)\s*\(", code)
    return all(
        name in ("I", "Q") or isinstance(getattr(np, name.removeprefix("np."), None), np.ufunc) for name in called
    )


def _spec_of(data: Any) -> Any:
    """Return what a formula left of its terms; None without a formula."""
    for name in ("model_spec", "design_info"):
        spec = getattr(data, name, None)
        if hasattr(spec, "factor_infos") or hasattr(spec, "transform_state"):
            return spec
    return None


def _outcome(model: Any, is_formula: bool) -> tuple[str, ...] | None:
    """Return the name of the outcome or of its columns; None where statsmodels made it up."""
    endog = getattr(model.data, "orig_endog", None)
    has_name = getattr(endog, "name", None) is not None or hasattr(endog, "columns")
    if not (is_formula or has_name):
        return None
    names = model.endog_names
    return (names,) if isinstance(names, str) else tuple(map(str, names))


def _read_patsy(spec: Any, frame: Any) -> tuple[dict[str, Factor], dict[str, dict[str, float | str | None]]]:
    """Return factors and constants of a DesignInfo of patsy."""
    matrices: dict[str, list[Any]] = {}
    for codings in spec.term_codings.values():
        for coding in codings:
            for factor, contrast in coding.contrast_matrices.items():
                matrices.setdefault(factor.name(), []).append([contrast.matrix, list(contrast.column_suffixes)])
    factors, constants = {}, {}
    for factor, info in spec.factor_infos.items():
        name = factor.name()
        if info.type == "categorical":
            factors[name] = Factor(tuple(map(str, info.categories)), digest(matrices.get(name, [])) or "")
        found = dict(_memorised(name, info.state.get("transforms", {})))
        found |= _variables(info.state, frame)
        if _depends_on_rows(lambda part, factor=factor, info=info: factor.eval(info.state, part), frame):
            found["its rows"] = None
        if found:
            constants[name] = found
    return factors, constants


def _memorised(code: str, transforms: Mapping[str, Any]) -> Iterator[tuple[str, float | str | None]]:
    """Yield the constants that the stateful transforms of a factor memorised, by the names of these."""
    for number, (key, transform) in enumerate(transforms.items()):
        name = key.split("__")[1] if key.count("__") > 1 else key
        name = name if number == 0 else f"{name} {number + 1}"
        of = "" if number == 0 else f"{name} "
        kind = type(transform).__name__ if type(transform).__module__ == "patsy.state" else ""
        if kind == "Center":
            yield f"{of}mean", _scalar(transform._sum / transform._count)
        elif kind == "Standardize":
            n = transform.current_n
            yield f"{of}mean", _scalar(transform.current_mean)
            yield f"{of}deviation", _scalar(np.sqrt(np.asarray(transform.current_M2, dtype=np.float64) / n))
            if "ddof" in code:  # by which the deviation depends on the number of rows, too
                yield f"{of}rows", _scalar(n)
        else:
            yield name, digest(transform)


def _variables(state: Mapping[str, Any], frame: Any) -> dict[str, float | str | None]:
    """Return digests of the variables of the caller's that a factor of patsy uses, and that are no data."""
    found: dict[str, float | str | None] = {}
    for namespace in getattr(state.get("eval_env"), "_namespaces", ()) if frame is not None else ():
        for name, value in namespace.items():
            if name in frame or not isinstance(value, int | float | str | list | tuple | np.ndarray | np.generic):
                continue
            if np.shape(value)[:1] != (len(frame),):
                found[name] = digest(value)
    return found


def _read_formulaic(spec: Any, frame: Any) -> tuple[dict[str, Factor], dict[str, dict[str, float | str | None]]]:
    """Return factors and constants of a ModelSpec of formulaic."""
    factors, constants = {}, {}
    for name, (_, state) in spec.encoder_state.items():
        if "categories" in state:
            contrasts = state.get("contrasts")
            matrix = None if contrasts is None else np.asarray(contrasts.get_coding_matrix(), dtype=np.float64)
            factors[name] = Factor(tuple(map(str, state["categories"])), digest(matrix) or "")
    for name, state in spec.transform_state.items():
        if set(state) == {"ddof", "center", "scale"}:
            known = {"mean": state["center"], "deviation": state["scale"]}
            constants[name] = {key: _scalar(value) for key, value in known.items() if value is not None}
        elif state:
            constants[name] = {name.partition("(")[0]: digest(state)}

    def columns(part: Any) -> Any:
        return np.asarray(spec.get_model_matrix(part, na_action="ignore"), dtype=np.float64)

    for position in _row_dependent_columns(columns, frame):
        constants[spec.column_names[position]] = {"its rows": None}
    return factors, constants


def _scalar(value: Any) -> float | str | None:
    """Return a single number in `DIGITS` digits, or the digest of several."""
    values = np.asarray(value, dtype=np.float64)
    return float(f"{values.item():.{DIGITS}g}") if values.size == 1 else digest(values)


def digest(value: Any) -> str | None:
    """Return a digest of numbers, texts and what is made of these; None of what has functions or the like in it."""
    try:
        text = json.dumps(_canonical(value, 0))
    except (TypeError, ValueError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _canonical(value: Any, depth: int) -> Any:
    """Return a value as JSON values, numbers in `DIGITS` digits."""
    if depth > _MAX_DEPTH:
        raise TypeError
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float | np.number):
        return f"{float(value):.{DIGITS}g}"
    if isinstance(value, Mapping):
        return {
            str(key): _canonical(one, depth + 1) for key, one in sorted(value.items(), key=lambda item: str(item[0]))
        }
    if isinstance(value, list | tuple | np.ndarray | np.generic):
        entries = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        return [_canonical(one, depth + 1) for one in entries] if isinstance(entries, list | tuple) else str(entries)
    if callable(value) or not hasattr(value, "__dict__"):
        raise TypeError
    memory = {key: one for key, one in vars(value).items() if key != "_tmp"}
    return [type(value).__name__, _canonical(memory, depth + 1)]


def _halves(frame: Any) -> list[Any]:
    """Return the two halves of a table; none of what is no table, or of a single row."""
    if not hasattr(frame, "iloc") or len(frame) < 2:
        return []
    return [frame.iloc[: len(frame) // 2], frame.iloc[len(frame) // 2 :]]


def _depends_on_rows(evaluate: Any, frame: Any) -> bool:
    """Return whether an expression has other values in a row when other rows are left out."""
    if not (halves := _halves(frame)):
        return False
    try:
        whole = _values(evaluate, frame)
    except Exception:  # (formulas run code of their user's, which may raise anything)
        return False
    try:
        parts = [_values(evaluate, half) for half in halves]
    except Exception:  # (as above: what can be evaluated on all rows alone, as intervals of pd.cut)
        return len(whole) == len(frame)
    if [len(part) for part in parts] != [len(half) for half in halves]:  # data that are no columns of the table
        return False
    return bool(np.any(_differs(whole, np.concatenate(parts))))


def _row_dependent_columns(columns: Any, frame: Any) -> list[int]:
    """Return the columns that have other values in a row when other rows are left out, by their numbers."""
    try:
        whole, parts = columns(frame), [columns(half) for half in _halves(frame)]
        if not parts or whole.shape != (sum(map(len, parts)), parts[0].shape[1]):
            return []
        found: list[int] = np.flatnonzero(_differs(whole, np.concatenate(parts))).tolist()
    except Exception:  # (as above; functions of the caller's are not known here)
        return []
    return found


def _values(evaluate: Any, part: Any) -> np.ndarray:
    """Return the values of an expression (n, k): numbers, or texts of what is none."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = evaluate(part)
    if type(found).__name__ == "_CategoricalBox":  # of patsy's C()
        found = found.data
    values = np.asarray(found)
    if values.dtype.kind not in "biuf":
        values = np.array([str(one) for one in values.ravel().tolist()]).reshape(values.shape)
    return values.reshape(len(values), -1) if values.ndim else values.reshape(1, 1)


def _differs(whole: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Return which columns (k,) of two tables (n, k) differ by more than rounding."""
    if whole.shape != parts.shape or whole.dtype.kind not in "biuf" or parts.dtype.kind not in "biuf":
        return (
            np.atleast_1d(np.any(whole.astype(str) != parts.astype(str))) if whole.shape == parts.shape else np.ones(1)
        )
    one, other = whole.astype(np.float64), parts.astype(np.float64)
    largest = np.max(np.abs(one), axis=0, initial=0.0, where=np.isfinite(one))
    is_near = (np.abs(one - other) <= _ROUNDING * largest) | (one == other) | (np.isnan(one) & np.isnan(other))
    return np.asarray(~is_near.all(axis=0))
