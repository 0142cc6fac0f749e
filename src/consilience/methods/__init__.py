"""Fusion methods: match and average, composed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from consilience.errors import OptionError
from consilience.methods.amps import AMPS
from consilience.methods.average import Average
from consilience.methods.base import Assignment, Method, Outcome, Progress, Status
from consilience.methods.clustering import KMeans
from consilience.methods.concatenate import Concatenate
from consilience.methods.dirichlet_process import DirichletProcess
from consilience.methods.ensemble import PredictionEnsemble
from consilience.methods.kl import KLFusion
from consilience.methods.spahm import SPAHM

METHODS: tuple[type[Method], ...] = (
    KLFusion,
    SPAHM,
    AMPS,
    KMeans,
    DirichletProcess,
    Average,
    Concatenate,
    PredictionEnsemble,
)
"""Every method, recommended ones first; a new one is one file and one line here."""


def make_method(method: str | Method, options: Mapping[str, Any]) -> Method:
    """Return the method of a name with these options, or the method itself when no option is given.

    Raises
    ------
    OptionError
        For a name, an option or a value that does not exist, saying which do.

    Examples
    --------
    >>> make_method("kl", {"restarts": 2}).restarts
    2
    """
    if isinstance(method, Method):
        if options:
            raise OptionError(f"options {sorted(options)} belong inside {type(method).__name__}(...)")
        return method
    kinds = {kind.name: kind for kind in METHODS}
    if not any(method == name for name in kinds):
        raise OptionError(f"method {method!r} does not exist; there are {', '.join(kinds)}")
    kind = kinds[method]
    known = [option.name for option in fields(kind)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise OptionError(f"method {method!r} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    return kind(**options)


__all__ = [
    "AMPS",
    "METHODS",
    "SPAHM",
    "Assignment",
    "Average",
    "Concatenate",
    "DirichletProcess",
    "KLFusion",
    "KMeans",
    "Method",
    "Outcome",
    "PredictionEnsemble",
    "Progress",
    "Status",
    "make_method",
]
