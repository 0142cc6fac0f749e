"""Consilience: models trained apart, fused into one. No data travels, only parameters."""

from __future__ import annotations

from importlib.metadata import version

from consilience import families, learners
from consilience.api import check, fuse, load, save
from consilience.errors import ConsilienceError, FileFormatError, InputError, OptionError, UnsupportedError
from consilience.evaluation import Evaluation, evaluate
from consilience.families.posterior import Attached, Features, Posterior
from consilience.matching import Matching
from consilience.methods import (
    AMPS,
    SPAHM,
    Average,
    Concatenate,
    DirichletProcess,
    KLFusion,
    KMeans,
    PredictionEnsemble,
    Status,
)
from consilience.models import describe, rebuild
from consilience.result import Fusion

__version__ = version("consilience")

__all__ = [
    "AMPS",
    "SPAHM",
    "Attached",
    "Average",
    "Concatenate",
    "ConsilienceError",
    "DirichletProcess",
    "Evaluation",
    "Features",
    "FileFormatError",
    "Fusion",
    "InputError",
    "KLFusion",
    "KMeans",
    "Matching",
    "OptionError",
    "Posterior",
    "PredictionEnsemble",
    "Status",
    "UnsupportedError",
    "__version__",
    "check",
    "describe",
    "evaluate",
    "families",
    "fuse",
    "learners",
    "load",
    "rebuild",
    "save",
]
