"""Consilience: models trained apart, fused into one. No data travels, only parameters."""

from __future__ import annotations

from importlib.metadata import version

from consilience import families, learners
from consilience.api import barrier, check, fisher, fuse, load, permute, plane, repair, save, symmetry
from consilience.errors import ConsilienceError, FileFormatError, InputError, OptionError, UnsupportedError
from consilience.evaluation import Evaluation, evaluate
from consilience.families.posterior import Attached, Features, Posterior
from consilience.matching import Matching
from consilience.methods import (
    AMPS,
    SPAHM,
    Average,
    Concatenate,
    Consensus,
    DirichletProcess,
    FedMA,
    FisherMerging,
    GromovFusion,
    KLFusion,
    KMeans,
    NetworkAverage,
    OTFusion,
    PredictionEnsemble,
    ReBasin,
    SelfSupervisedFisher,
    Status,
    WassersteinFusion,
)
from consilience.models import describe, rebuild
from consilience.models.gathered import UnprovedSymmetryWarning
from consilience.networks.information import FisherInformation
from consilience.networks.network import Network
from consilience.networks.symmetry import Symmetry
from consilience.result import Fusion, NetworkFusion, PosteriorFusion

__version__ = version("consilience")

__all__ = [
    "AMPS",
    "SPAHM",
    "Attached",
    "Average",
    "Concatenate",
    "Consensus",
    "ConsilienceError",
    "DirichletProcess",
    "Evaluation",
    "Features",
    "FedMA",
    "FileFormatError",
    "FisherInformation",
    "FisherMerging",
    "Fusion",
    "GromovFusion",
    "InputError",
    "KLFusion",
    "KMeans",
    "Matching",
    "Network",
    "NetworkAverage",
    "NetworkFusion",
    "OTFusion",
    "OptionError",
    "Posterior",
    "PosteriorFusion",
    "PredictionEnsemble",
    "ReBasin",
    "SelfSupervisedFisher",
    "Status",
    "Symmetry",
    "UnprovedSymmetryWarning",
    "UnsupportedError",
    "WassersteinFusion",
    "__version__",
    "barrier",
    "check",
    "describe",
    "evaluate",
    "families",
    "fisher",
    "fuse",
    "learners",
    "load",
    "permute",
    "plane",
    "rebuild",
    "repair",
    "save",
    "symmetry",
]
