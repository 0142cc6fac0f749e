"""The public names, and where each is defined; `lazy_loader` reads this file when a name is first used."""

from . import (
    engines as engines,
)
from . import (
    families as families,
)
from . import (
    features as features,
)
from . import (
    federated as federated,
)
from . import (
    learners as learners,
)
from . import (
    testing as testing,
)
from .api.describe import describe as describe
from .api.evaluate import evaluate as evaluate
from .api.files import load as load
from .api.files import save as save
from .api.fuse import check as check
from .api.fuse import fuse as fuse
from .api.rebuild import rebuild as rebuild
from .api.scores import log_density as log_density
from .api.scores import topic_coherence as topic_coherence
from .api.written_like import written_like as written_like
from .bayesian.api import predictive_barrier as predictive_barrier
from .bayesian.fusion import BayesianFusion as BayesianFusion
from .bayesian.methods.auto import BayesianAuto as BayesianAuto
from .bayesian.methods.kl import KLNetworkFusion as KLNetworkFusion
from .bayesian.methods.posterior_alignment import PosteriorAlignment as PosteriorAlignment
from .bayesian.network import BayesianNetwork as BayesianNetwork
from .bayesian.predictive import predictive_scores as predictive_scores
from .bayesian.predictive_scores import PredictiveScores as PredictiveScores
from .bayesian.readers.table import as_bayesian_network as as_bayesian_network
from .checkpoints.merge import Merge as Merge
from .checkpoints.merge import merge as merge
from .checkpoints.methods.slerp import SLERP as SLERP
from .checkpoints.methods.task_vectors import DARE as DARE
from .checkpoints.methods.task_vectors import TIES as TIES
from .checkpoints.methods.task_vectors import TaskArithmetic as TaskArithmetic
from .core.evaluation import Evaluation as Evaluation
from .core.features import Features as Features
from .core.fusion import Fusion as Fusion
from .core.status import Status as Status
from .core.verdict import Verdict as Verdict
from .draws.draws import Draws as Draws
from .draws.fusion import DrawsFusion as DrawsFusion
from .draws.methods.auto import DrawsAuto as DrawsAuto
from .draws.methods.density_product import DensityProduct as DensityProduct
from .draws.methods.gaussian import ConsensusMonteCarlo as ConsensusMonteCarlo
from .draws.methods.gaussian import GaussianProduct as GaussianProduct
from .draws.methods.hierarchical import HierarchicalDraws as HierarchicalDraws
from .draws.methods.wasp import WASP as WASP
from .draws.relabel import relabel as relabel
from .errors import (
    ConsilienceError as ConsilienceError,
)
from .errors import (
    FileFormatError as FileFormatError,
)
from .errors import (
    HarmWarning as HarmWarning,
)
from .errors import (
    InputError as InputError,
)
from .errors import (
    OptionError as OptionError,
)
from .errors import (
    Problem as Problem,
)
from .errors import (
    RobustWarning as RobustWarning,
)
from .errors import (
    UnprovedSymmetryWarning as UnprovedSymmetryWarning,
)
from .errors import (
    UnsupportedError as UnsupportedError,
)
from .errors import (
    WithheldWarning as WithheldWarning,
)
from .estimators.conjugate_regression import MatrixNormalWishart as MatrixNormalWishart
from .estimators.fusion import EstimatorFusion as EstimatorFusion
from .estimators.meta_analysis.analysis import MetaAnalysis as MetaAnalysis
from .estimators.meta_analysis.analysis import meta_analysis as meta_analysis
from .estimators.removal import add as add
from .estimators.removal import remove as remove
from .estimators.statistics import Statistics as Statistics
from .matching import Matching as Matching
from .networks.api import barrier as barrier
from .networks.api import permute as permute
from .networks.api import plane as plane
from .networks.api import symmetry as symmetry
from .networks.descriptions.description import Description as Description
from .networks.fisher.api import fisher as fisher
from .networks.fisher.information import FisherInformation as FisherInformation
from .networks.fusion import NetworkFusion as NetworkFusion
from .networks.methods.auto import Auto as Auto
from .networks.methods.baselines import NetworkAverage as NetworkAverage
from .networks.methods.consensus import Consensus as Consensus
from .networks.methods.distill import Distill as Distill
from .networks.methods.fedma import FedMA as FedMA
from .networks.methods.fisher.kronecker import KFAC as KFAC
from .networks.methods.fisher.kronecker import FedFisher as FedFisher
from .networks.methods.fisher.kronecker import FedLPA as FedLPA
from .networks.methods.fisher.merging import FisherMerging as FisherMerging
from .networks.methods.fisher.self_supervised import SelfSupervisedFisher as SelfSupervisedFisher
from .networks.methods.gromov_wasserstein.method import GromovFusion as GromovFusion
from .networks.methods.optimal_transport import OTFusion as OTFusion
from .networks.methods.rebasin import ReBasin as ReBasin
from .networks.methods.wasserstein import WassersteinFusion as WassersteinFusion
from .networks.network import Network as Network
from .networks.repair_fusion import repair as repair
from .networks.symmetry.symmetry import Symmetry as Symmetry
from .posteriors.adapters.table import register_adapter as register_adapter
from .posteriors.fusion import PosteriorFusion as PosteriorFusion
from .posteriors.methods.amps import AMPS as AMPS
from .posteriors.methods.average import Average as Average
from .posteriors.methods.concatenate import Concatenate as Concatenate
from .posteriors.methods.dirichlet_process.method import DirichletProcess as DirichletProcess
from .posteriors.methods.ensemble import PredictionEnsemble as PredictionEnsemble
from .posteriors.methods.kl.method import KLFusion as KLFusion
from .posteriors.methods.kmeans import KMeans as KMeans
from .posteriors.methods.spahm.method import SPAHM as SPAHM
from .posteriors.posterior import Attached as Attached
from .posteriors.posterior import Posterior as Posterior
from .posteriors.sharded.api import pack as pack
from .posteriors.sharded.api import shards as shards
from .posteriors.sharded.shards import Shards as Shards

__version__: str
