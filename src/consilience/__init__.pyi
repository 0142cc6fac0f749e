"""The public names, and where each is defined; `lazy_loader` reads this file when a name is first used."""

from . import (
    engines as engines,
)
from . import (
    errors as errors,
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
    methods as methods,
)
from . import (
    results as results,
)
from . import (
    testing as testing,
)
from .api.describe import describe as describe
from .api.describe import rebuild as rebuild
from .api.evaluate import evaluate as evaluate
from .api.files import load as load
from .api.files import save as save
from .api.fuse import check as check
from .api.fuse import fuse as fuse
from .api.scores import log_density as log_density
from .api.scores import topic_coherence as topic_coherence
from .api.written_like import written_like as written_like
from .checkpoints.lora.adapter import LoraAdapter as LoraAdapter
from .checkpoints.lora.extract import extract_adapter as extract_adapter
from .checkpoints.merge import merge as merge
from .checkpoints.sweep import sweep as sweep
from .core.evaluation import Evaluation as Evaluation
from .core.features import Features as Features
from .core.fusion import Fusion as Fusion
from .core.held_out import hold_out as hold_out
from .core.verdict import Verdict as Verdict
from .draws.draws import Draws as Draws
from .draws.relabel import relabel as relabel
from .errors import (
    ConsilienceError as ConsilienceError,
)
from .errors import (
    Problem as Problem,
)
from .estimators.conjugate_regression import MatrixNormalWishart as MatrixNormalWishart
from .estimators.meta_analysis.analysis import meta_analysis as meta_analysis
from .estimators.removal import add as add
from .estimators.removal import remove as remove
from .estimators.statistics import Statistics as Statistics
from .networks.api import barrier as barrier
from .networks.api import permute as permute
from .networks.api import plane as plane
from .networks.api import symmetry as symmetry
from .networks.descriptions.description import Description as Description
from .networks.fisher.api import fisher as fisher
from .networks.gaussian.api import predictive_barrier as predictive_barrier
from .networks.gaussian.network import BayesianNetwork as BayesianNetwork
from .networks.gaussian.predictive import predictive_scores as predictive_scores
from .networks.gaussian.readers.table import as_bayesian_network as as_bayesian_network
from .networks.network import Network as Network
from .networks.repair_fusion import repair as repair
from .networks.symmetry.symmetry import Symmetry as Symmetry
from .posteriors.adapters.table import register_adapter as register_adapter
from .posteriors.posterior import Attached as Attached
from .posteriors.posterior import Posterior as Posterior
from .posteriors.sharded.packing import pack as pack
from .posteriors.sharded.shards import shards as shards

__version__: str
