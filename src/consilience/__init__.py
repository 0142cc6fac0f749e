"""Consilience: models trained apart, fused into one. No data travels, only parameters."""

from __future__ import annotations

from importlib.metadata import version

from consilience import engines, families, federated, learners
from consilience.api import (
    Merge,
    barrier,
    check,
    fisher,
    fuse,
    load,
    merge,
    pack,
    permute,
    plane,
    predictive_barrier,
    repair,
    save,
    shards,
    symmetry,
)
from consilience.errors import ConsilienceError, FileFormatError, InputError, OptionError, UnsupportedError
from consilience.evaluation import Evaluation, PredictiveScores, evaluate, predictive_scores
from consilience.families.posterior import Attached, Features, Posterior
from consilience.io.shards import Shards
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
from consilience.methods.spherical import SLERP
from consilience.methods.task_vectors import DARE, TIES, TaskArithmetic
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
    "DARE",
    "SLERP",
    "SPAHM",
    "TIES",
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
    "Merge",
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
    "Shards",
    "Status",
    "Symmetry",
    "TaskArithmetic",
    "UnprovedSymmetryWarning",
    "UnsupportedError",
    "WassersteinFusion",
    "__version__",
    "as_bayesian_network",
    "barrier",
    "check",
    "describe",
    "engines",
    "evaluate",
    "families",
    "federated",
    "fisher",
    "fuse",
    "learners",
    "load",
    "merge",
    "pack",
    "permute",
    "plane",
    "predictive_barrier",
    "predictive_scores",
    "rebuild",
    "repair",
    "save",
    "shards",
    "symmetry",
    "written_like",
]
