"""The methods for networks, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.errors import OptionError
from consilience.methods.base import Method
from consilience.methods.consensus import Consensus
from consilience.methods.fedma import FedMA
from consilience.methods.fisher import FisherMerging
from consilience.methods.gromov_wasserstein import GromovFusion
from consilience.methods.network_average import NetworkAverage, NetworkEnsembleMethod
from consilience.methods.network_method import NetworkMethod
from consilience.methods.optimal_transport import OTFusion
from consilience.methods.options import named, refuse_options
from consilience.methods.rebasin import ReBasin
from consilience.methods.self_supervised_fisher import SelfSupervisedFisher
from consilience.methods.wasserstein import WassersteinFusion

NETWORK_METHODS: tuple[type[NetworkMethod], ...] = (
    Consensus,
    WassersteinFusion,
    GromovFusion,
    OTFusion,
    ReBasin,
    FedMA,
    FisherMerging,
    SelfSupervisedFisher,
    NetworkAverage,
    NetworkEnsembleMethod,
)
"""Every method for networks, the recommended one first; a new one is one file and one line here."""


def needs_no_symmetry(method: object) -> bool:
    """Return whether a name is that of a method that takes units as they are numbered where nobody says which move."""
    return any(kind.name == method and kind.optional_symmetry for kind in NETWORK_METHODS)


def make_network_method(method: str | NetworkMethod | Method | None, options: Mapping[str, Any]) -> NetworkMethod:
    """Return the method of a name with these options, or the method itself when no option is given.

    Raises
    ------
    OptionError
        For a name, an option or a value that does not exist, saying which do.

    Examples
    --------
    >>> make_network_method("wb", {"restarts": 2}).restarts
    2
    """
    if isinstance(method, NetworkMethod):
        refuse_options(method, options)
        return method
    if isinstance(method, Method):
        known = any(kind.name == method.name for kind in NETWORK_METHODS)
        instead = f"method={method.name!r}" if known else "a method for networks"
        raise OptionError(f"{type(method).__name__} fuses posteriors, not networks; give {instead}")
    return named(NETWORK_METHODS, NETWORK_METHODS[0].name if method is None else method, options, " for networks")
