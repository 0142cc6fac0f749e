"""Fusion methods for networks: the table of all methods, and making one by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.core.options import make_named_method, refuse_options
from consilience.errors import OptionError
from consilience.networks.method import NetworkMethod
from consilience.networks.methods.auto import Auto
from consilience.networks.methods.baselines import NetworkAverage, NetworkEnsembleMethod
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
from consilience.posteriors.method import Method

NETWORK_METHODS: tuple[type[NetworkMethod], ...] = (
    Auto,
    Consensus,
    WassersteinFusion,
    GromovFusion,
    OTFusion,
    ReBasin,
    FedMA,
    FisherMerging,
    SelfSupervisedFisher,
    KFAC,
    FedFisher,
    FedLPA,
    Distill,
    NetworkAverage,
    NetworkEnsembleMethod,
)
"""Every method for networks, the recommended one first. A new method is one file and one line here."""


def needs_no_symmetry(method: object) -> bool:
    """Return whether a name is that of a method that runs without a symmetry, with units as they are numbered."""
    return any(kind.name == method and kind.optional_symmetry for kind in NETWORK_METHODS)


def make_network_method(method: str | NetworkMethod | Method | None, options: Mapping[str, Any]) -> NetworkMethod:
    """Return a method for networks by name, with options, or a method object as it is.

    Parameters
    ----------
    method : str, NetworkMethod or Method, optional
        Name of a method or a method with its options. Default: the recommended method.
    options : mapping of str to value
        Options of a method that is named; empty for a method object.

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
        has_network_form = any(kind.name == method.name for kind in NETWORK_METHODS)
        instead = f"method={method.name!r}" if has_network_form else "a method for networks"
        raise OptionError(f"{type(method).__name__} fuses posteriors, not networks; give {instead}")
    return make_named_method(
        NETWORK_METHODS, NETWORK_METHODS[0].name if method is None else method, options, " for networks"
    )


__all__ = [
    "KFAC",
    "NETWORK_METHODS",
    "Auto",
    "Consensus",
    "Distill",
    "FedFisher",
    "FedLPA",
    "FedMA",
    "FisherMerging",
    "GromovFusion",
    "NetworkAverage",
    "NetworkEnsembleMethod",
    "OTFusion",
    "ReBasin",
    "SelfSupervisedFisher",
    "WassersteinFusion",
    "make_network_method",
    "needs_no_symmetry",
]
