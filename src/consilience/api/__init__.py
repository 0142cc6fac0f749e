"""The public functions: what ``import consilience`` gives."""

from consilience.api.files import load, save
from consilience.api.fusing import check, fuse
from consilience.api.information import fisher
from consilience.api.landscape import barrier, plane, predictive_barrier, repair
from consilience.api.symmetries import permute, symmetry

__all__ = [
    "barrier",
    "check",
    "fisher",
    "fuse",
    "load",
    "permute",
    "plane",
    "predictive_barrier",
    "repair",
    "save",
    "symmetry",
]
