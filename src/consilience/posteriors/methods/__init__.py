"""Fusion methods for posteriors: the table of all of them, and making one by name."""

from __future__ import annotations

from consilience.core.methods import MethodTable
from consilience.posteriors.method import Method
from consilience.posteriors.methods.amps import AMPS
from consilience.posteriors.methods.average import Average
from consilience.posteriors.methods.concatenate import Concatenate, PredictionEnsemble
from consilience.posteriors.methods.dirichlet_process.method import DirichletProcess
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


make_method = MethodTable(METHODS, Method, "posteriors").make
"""Returns the method of a name with options, or a method as it is; see `MethodTable.make`."""

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
