"""The public functions: what ``import consilience`` gives."""

from consilience.api.files import load, save
from consilience.api.fusing import check, fuse
from consilience.api.information import fisher
from consilience.api.landscape import barrier, plane, predictive_barrier, repair
from consilience.api.merging import Merge, merge
from consilience.api.packing import pack, shards
from consilience.api.symmetries import permute, symmetry

__all__ = [
    "Merge",
    "barrier",
    "check",
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
