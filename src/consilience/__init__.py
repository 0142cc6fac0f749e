"""Consilience: models trained apart, fused into one. No data travels, only parameters."""

from __future__ import annotations

from importlib.metadata import version

from consilience import families, learners
from consilience.api import (
    barrier,
    check,
    fisher,
    fuse,
    load,
    permute,
    plane,
    predictive_barrier,
    repair,
    save,
    symmetry,
)
from consilience.errors import ConsilienceError, FileFormatError, InputError, OptionError, UnsupportedError
from consilience.evaluation import Evaluation, PredictiveScores, evaluate, predictive_scores
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
    KLNetworkFusion,
    KMeans,
    NetworkAverage,
    OTFusion,
    PosteriorAlignment,
    PredictionEnsemble,
    ReBasin,
    SelfSupervisedFisher,
    Status,
    WassersteinFusion,
)
from consilience.models import describe, rebuild
from consilience.models.bayesian_adapters import as_bayesian_network, written_like
from consilience.models.bayesian_network import BayesianNetwork
from consilience.models.gathered import UnprovedSymmetryWarning
from consilience.networks.information import FisherInformation
from consilience.networks.network import Network
from consilience.networks.symmetry import Symmetry
from consilience.result import BayesianFusion, Fusion, NetworkFusion, PosteriorFusion

__version__ = version("consilience")

__all__ = [
    "AMPS",
    "SPAHM",
    "Attached",
    "Average",
    "BayesianFusion",
    "BayesianNetwork",
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
    "KLNetworkFusion",
    "KMeans",
    "Matching",
    "Network",
    "NetworkAverage",
    "NetworkFusion",
    "OTFusion",
    "OptionError",
    "Posterior",
    "PosteriorAlignment",
    "PosteriorFusion",
    "PredictionEnsemble",
    "PredictiveScores",
    "ReBasin",
    "SelfSupervisedFisher",
    "Status",
    "Symmetry",
    "UnprovedSymmetryWarning",
    "UnsupportedError",
    "WassersteinFusion",
    "__version__",
    "as_bayesian_network",
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
    "predictive_barrier",
    "predictive_scores",
    "rebuild",
    "repair",
    "save",
    "symmetry",
    "written_like",
]
