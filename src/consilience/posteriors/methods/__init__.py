"""Fusion methods for posteriors: the table of all of them, and making one by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.core.options import make_named_method, refuse_options
from consilience.posteriors.method import Method
from consilience.posteriors.methods.amps import AMPS
from consilience.posteriors.methods.average import Average
from consilience.posteriors.methods.concatenate import Concatenate
from consilience.posteriors.methods.dirichlet_process.method import DirichletProcess
from consilience.posteriors.methods.ensemble import PredictionEnsemble
from consilience.posteriors.methods.kl.method import KLFusion
from consilience.posteriors.methods.kmeans import KMeans
from consilience.posteriors.methods.spahm.method import SPAHM

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
        refuse_options(method, options)
        return method
    return make_named_method(METHODS, method, options)


__all__ = [
    "AMPS",
    "METHODS",
    "SPAHM",
    "Average",
    "Concatenate",
    "DirichletProcess",
    "KLFusion",
    "KMeans",
    "PredictionEnsemble",
    "make_method",
]
