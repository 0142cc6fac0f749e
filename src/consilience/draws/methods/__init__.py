"""Methods for posterior draws, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.core.options import make_named_method, refuse_options
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


def make_draws_method(method: Any, options: Mapping[str, Any]) -> DrawsMethod:
    """Return the method of a name with these options, a method object as it is, the default for None.

    Raises
    ------
    OptionError
        For a name, an option or a value that does not exist.
    """
    if isinstance(method, DrawsMethod):
        refuse_options(method, options)
        return method
    return make_named_method(DRAWS_METHODS, DrawsAuto.name if method is None else method, options, " for draws")
