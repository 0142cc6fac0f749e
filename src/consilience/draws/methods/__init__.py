"""Methods for posterior draws, by name."""

from __future__ import annotations

from consilience.core.methods import MethodTable
from consilience.draws.methods.auto import DrawsAuto
from consilience.draws.methods.base import DrawsMethod
from consilience.draws.methods.density_product import DensityProduct
from consilience.draws.methods.gaussian import ConsensusMonteCarlo, GaussianProduct
from consilience.draws.methods.hierarchical import HierarchicalDraws
from consilience.draws.methods.wasp import WASP

DRAWS_METHODS: tuple[type[DrawsMethod], ...] = (
    DrawsAuto,
    ConsensusMonteCarlo,
    GaussianProduct,
    DensityProduct,
    WASP,
    HierarchicalDraws,
)
"""Every method for posterior draws; a new one is one file and one line here."""


make_draws_method = MethodTable(DRAWS_METHODS, DrawsMethod, "draws").make
"""Returns the method of a name with options, a method as it is, the default for None; see `MethodTable.make`."""
