"""Hyper-parameters of estimators as JSON values, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from importlib import import_module
from numbers import Integral, Real
from typing import Any

import numpy as np

from consilience.checks import Json
from consilience.errors import InputError, UnsupportedError

COVARIANCE_ESTIMATORS = ("OAS", "EmpiricalCovariance", "ShrunkCovariance")
"""Estimators that may stand inside a hyper-parameter: covariances that are functions of second moments."""

PRIORS = ("priors", "class_prior")
"""Hyper-parameters with a value for every class, in the order of the classes."""


def encoded_parameters(model: Any) -> dict[str, Json]:
    """Return the hyper-parameters of an estimator as JSON values."""
    return {name: encode(name, value) for name, value in sorted(model.get_params(deep=False).items())}


def names_of_table(classes: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the names of all hyper-parameters of some classes of scikit-learn, given by module and name."""
    return frozenset(
        name
        for module, class_name in classes
        if module.startswith("sklearn.")
        for name in getattr(import_module(module), class_name)._get_param_names()
    )


def encode(name: str, value: Any) -> Any:
    """Return the value of a hyper-parameter as JSON values."""
    if value is None or isinstance(value, bool | np.bool_ | str):
        return bool(value) if isinstance(value, np.bool_) else value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, np.ndarray | list | tuple):
        return _encode_entries(name, value)
    if isinstance(value, Mapping):
        return {"mapping": [[encode(name, key), encode(name, one)] for key, one in value.items()]}
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None  # nothing that is rebuilt from sums is random
    kind = type(value).__name__
    if kind in COVARIANCE_ESTIMATORS and type(value).__module__.startswith("sklearn."):
        return {"estimator": kind, "parameters": encoded_parameters(value)}
    text = f"is a {kind}, which is no function of sums, or which no file can hold"
    raise UnsupportedError(name, text, "fit with another value")


def _encode_entries(name: str, value: Any) -> Any:
    entries = [encode(name, one) for one in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, list) or name in PRIORS:
        return entries
    return {"array" if isinstance(value, np.ndarray) else "tuple": entries}  # of which scikit-learn tells lists


def decode(value: Any) -> Any:
    """Return the value of a hyper-parameter that ``encode`` made."""
    if isinstance(value, list):
        return [decode(one) for one in value]
    if isinstance(value, Mapping):
        if "float" in value:
            return float(value["float"])
        if "array" in value:
            return np.array(decode(value["array"]))
        if "tuple" in value:
            return tuple(decode(value["tuple"]))
        if "mapping" in value:
            return {decode(key): decode(one) for key, one in value["mapping"]}
        if value.get("estimator") in COVARIANCE_ESTIMATORS:
            from sklearn import covariance  # here, so that fusing starts without it

            made = getattr(covariance, value["estimator"])
            return made(**{name: decode(one) for name, one in value["parameters"].items()})
        raise InputError("parameters", f"expected a hyper-parameter, found {str(value)[:80]}", code="E-TYPE")
    return value
