"""Consilience: models trained apart, fused into one. No row of data travels, only parameters and sums."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from consilience import engines, families, features, learners
from consilience.api.describe import describe
from consilience.api.evaluate import evaluate
from consilience.api.files import load, save
from consilience.api.fuse import check, fuse
from consilience.api.rebuild import rebuild
from consilience.api.scores import log_density, topic_coherence
from consilience.api.written_like import written_like
from consilience.bayesian.api import predictive_barrier
from consilience.bayesian.fusion import BayesianFusion
from consilience.bayesian.methods.auto import BayesianAuto
from consilience.bayesian.methods.kl import KLNetworkFusion
from consilience.bayesian.methods.posterior_alignment import PosteriorAlignment
from consilience.bayesian.network import BayesianNetwork
from consilience.bayesian.predictive import predictive_scores
from consilience.bayesian.predictive_scores import PredictiveScores
from consilience.bayesian.readers.table import as_bayesian_network
from consilience.catalogue import no_attribute
from consilience.checkpoints.merge import Merge, merge
from consilience.checkpoints.methods.slerp import SLERP
from consilience.checkpoints.methods.task_vectors import DARE, TIES, TaskArithmetic
from consilience.core.fusion import Fusion
from consilience.core.status import Status
from consilience.core.verdict import HarmWarning, Verdict
from consilience.draws.draws import Draws
from consilience.draws.fusion import DrawsFusion
from consilience.draws.methods.auto import DrawsAuto
from consilience.draws.methods.density_product import DensityProduct
from consilience.draws.methods.gaussian import ConsensusMonteCarlo, GaussianProduct
from consilience.draws.methods.hierarchical import HierarchicalDraws
from consilience.draws.methods.wasp import WASP
from consilience.draws.relabel import relabel
from consilience.errors import (
    ConsilienceError,
    FileFormatError,
    InputError,
    OptionError,
    Problem,
    RobustWarning,
    UnsupportedError,
    WithheldWarning,
)
from consilience.estimators.conjugate_regression import MatrixNormalWishart
from consilience.estimators.fusion import EstimatorFusion
from consilience.estimators.meta_analysis.analysis import MetaAnalysis, meta_analysis
from consilience.estimators.removal import add, remove
from consilience.estimators.statistics import Statistics
from consilience.matching import Matching
from consilience.networks.api import barrier, permute, plane, symmetry
from consilience.networks.descriptions.description import Description
from consilience.networks.fisher.api import fisher
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.fusion import NetworkFusion
from consilience.networks.methods.auto import Auto
from consilience.networks.methods.baselines import NetworkAverage
from consilience.networks.methods.consensus import Consensus
from consilience.networks.methods.distill import Distill
from consilience.networks.methods.fedma import FedMA
from consilience.networks.methods.fisher.kronecker import KFAC, FedFisher, FedLPA
from consilience.networks.methods.fisher.merging import FisherMerging
from consilience.networks.methods.fisher.self_supervised import SelfSupervisedFisher
from consilience.networks.methods.gromov_wasserstein.method import GromovFusion
from consilience.networks.methods.optimal_transport import OTFusion
from consilience.networks.methods.rebasin import ReBasin
from consilience.networks.methods.wasserstein import WassersteinFusion
from consilience.networks.network import Network
from consilience.networks.repair_fusion import repair
from consilience.networks.shared_symmetry import UnprovedSymmetryWarning
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.posteriors.adapters.table import register_adapter
from consilience.posteriors.evaluation import Evaluation
from consilience.posteriors.fusion import PosteriorFusion
from consilience.posteriors.methods.amps import AMPS
from consilience.posteriors.methods.average import Average
from consilience.posteriors.methods.concatenate import Concatenate
from consilience.posteriors.methods.dirichlet_process.method import DirichletProcess
from consilience.posteriors.methods.ensemble import PredictionEnsemble
from consilience.posteriors.methods.kl.method import KLFusion
from consilience.posteriors.methods.kmeans import KMeans
from consilience.posteriors.methods.spahm.method import SPAHM
from consilience.posteriors.posterior import Attached, Features, Posterior
from consilience.posteriors.sharded.api import pack, shards
from consilience.posteriors.sharded.shards import Shards

if TYPE_CHECKING:
    from consilience import federated, testing

__version__ = version("consilience")


def __getattr__(name: str) -> Any:
    """Import ``federated`` and ``testing`` where they are used."""
    if name in ("federated", "testing"):
        return import_module(f"{__name__}.{name}")
    raise no_attribute(f"module {__name__!r}", name, known=__all__)


__all__ = [
    "AMPS",
    "DARE",
    "KFAC",
    "SLERP",
    "SPAHM",
    "TIES",
    "WASP",
    "Attached",
    "Auto",
    "Average",
    "BayesianAuto",
    "BayesianFusion",
    "BayesianNetwork",
    "Concatenate",
    "Consensus",
    "ConsensusMonteCarlo",
    "ConsilienceError",
    "DensityProduct",
    "Description",
    "DirichletProcess",
    "Distill",
    "Draws",
    "DrawsAuto",
    "DrawsFusion",
    "EstimatorFusion",
    "Evaluation",
    "Features",
    "FedFisher",
    "FedLPA",
    "FedMA",
    "FileFormatError",
    "FisherInformation",
    "FisherMerging",
    "Fusion",
    "GaussianProduct",
    "GromovFusion",
    "HarmWarning",
    "HierarchicalDraws",
    "InputError",
    "KLFusion",
    "KLNetworkFusion",
    "KMeans",
    "Matching",
    "MatrixNormalWishart",
    "Merge",
    "MetaAnalysis",
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
    "Problem",
    "ReBasin",
    "RobustWarning",
    "SelfSupervisedFisher",
    "Shards",
    "Statistics",
    "Status",
    "Symmetry",
    "TaskArithmetic",
    "UnprovedSymmetryWarning",
    "UnsupportedError",
    "Verdict",
    "WassersteinFusion",
    "WithheldWarning",
    "__version__",
    "add",
    "as_bayesian_network",
    "barrier",
    "check",
    "describe",
    "engines",
    "evaluate",
    "families",
    "features",
    "federated",
    "fisher",
    "fuse",
    "learners",
    "load",
    "log_density",
    "merge",
    "meta_analysis",
    "pack",
    "permute",
    "plane",
    "predictive_barrier",
    "predictive_scores",
    "rebuild",
    "register_adapter",
    "relabel",
    "remove",
    "repair",
    "save",
    "shards",
    "symmetry",
    "testing",
    "topic_coherence",
    "written_like",
]
