"""The table of golden fusions that every module of cases writes into."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tests.golden.canonical import FILE, file_digest

CASES: dict[str, Callable[[Any], dict[str, Any]]] = {}
"""A function of an empty folder for each case, by name; what it returns is recorded."""


def case(name):
    """Add a function to the table."""

    def add(function):
        if name in CASES:
            raise ValueError(f"two golden cases are called {name!r}")
        CASES[name] = function
        return function

    return add


def cases(pattern, parameters):
    """Add a function for each of several parameters, which it takes after the folder; ``{}`` is a parameter's name."""

    def add(function):
        for name, parameter in parameters.items():
            case(pattern.format(name))(lambda folder, chosen=parameter: function(folder, chosen))
        return function

    return add


def saved(fusion, folder, name="fused"):
    """Return a fusion beside the digest of the file that it saves, so that both are recorded."""
    path = folder / f"{name}.safetensors"
    fusion.save(path)
    return {name: fusion, f"{name} saved{FILE}": file_digest(path)}


def landscape(name):
    """Return a public name of barriers and moments, which is no attribute of ``consilience``."""
    for place in ("consilience.networks.landscape", "consilience.networks.repair"):
        if find_spec(place) is not None and hasattr(module := import_module(place), name):
            return getattr(module, name)
    raise ImportError(f"no module of barriers and moments has {name}; say here where they are")
