"""What public functions return, and where each is defined; `lazy_loader` reads this file when a name is first used."""

from .checkpoints.lora.fusion import AdapterFusion as AdapterFusion
from .checkpoints.merge import Merge as Merge
from .core.details import Status as Status
from .draws.details import DrawsDetails as DrawsDetails
from .draws.fusion import DrawsFusion as DrawsFusion
from .estimators.details import EstimatorDetails as EstimatorDetails
from .estimators.fusion import EstimatorFusion as EstimatorFusion
from .estimators.meta_analysis.analysis import MetaAnalysis as MetaAnalysis
from .matching import Matching as Matching
from .networks.details import NetworkDetails as NetworkDetails
from .networks.fisher.information import FisherInformation as FisherInformation
from .networks.fusion import NetworkFusion as NetworkFusion
from .networks.gaussian.fusion import BayesianFusion as BayesianFusion
from .networks.gaussian.predictive import PredictiveScores as PredictiveScores
from .posteriors.details import PosteriorDetails as PosteriorDetails
from .posteriors.fusion import PosteriorFusion as PosteriorFusion
from .posteriors.sharded.shards import Shards as Shards
