"""The public functions: what ``import consilience`` gives."""

from consilience.api.describe import describe
from consilience.api.files import load, save
from consilience.api.fuse import check, fuse
from consilience.bayesian.api import predictive_barrier
from consilience.checkpoints.merge import Merge, merge
from consilience.networks.api import barrier, permute, plane, symmetry
from consilience.networks.fisher.api import fisher
from consilience.networks.repair_fusion import repair
from consilience.posteriors.sharded.api import pack, shards

__all__ = [
    "Merge",
    "barrier",
    "check",
    "describe",
    "fisher",
    "fuse",
    "load",
    "merge",
    "pack",
    "permute",
    "plane",
    "predictive_barrier",
    "repair",
    "save",
    "shards",
    "symmetry",
]
