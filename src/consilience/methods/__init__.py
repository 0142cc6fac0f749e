"""Fusion methods: match and average, composed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.methods.amps import AMPS
from consilience.methods.average import Average
from consilience.methods.base import Assignment, Method, Outcome, Progress, Status
from consilience.methods.bayesian_methods import BAYESIAN_METHODS, make_bayesian_method
from consilience.methods.clustering import KMeans
from consilience.methods.concatenate import Concatenate
from consilience.methods.consensus import Consensus
from consilience.methods.dirichlet_process import DirichletProcess
from consilience.methods.ensemble import PredictionEnsemble
from consilience.methods.fedma import FedMA
from consilience.methods.fisher import FisherMerging
from consilience.methods.gromov_wasserstein import GromovFusion
from consilience.methods.kl import KLFusion
from consilience.methods.kl_networks import KLNetworkFusion
from consilience.methods.network_average import NetworkAverage, NetworkEnsembleMethod
from consilience.methods.network_method import NetworkMethod
from consilience.methods.network_methods import NETWORK_METHODS, make_network_method, needs_no_symmetry
from consilience.methods.optimal_transport import OTFusion
from consilience.methods.options import named, refuse_options
from consilience.methods.posterior_alignment import PosteriorAlignment
from consilience.methods.rebasin import ReBasin
from consilience.methods.self_supervised_fisher import SelfSupervisedFisher
from consilience.methods.spahm import SPAHM
from consilience.methods.wasserstein import WassersteinFusion

METHODS: tuple[type[Method], ...] = (
    KLFusion,
    SPAHM,
    AMPS,
    KMeans,
    DirichletProcess,
    Average,
    Concatenate,
    PredictionEnsemble,
)
"""Every method, recommended ones first; a new one is one file and one line here."""


def make_method(method: str | Method, options: Mapping[str, Any]) -> Method:
    """Return the method of a name with these options, or the method itself when no option is given.

    Raises
    ------
    OptionError
        For a name, an option or a value that does not exist, saying which do.

    Examples
    --------
    >>> make_method("kl", {"restarts": 2}).restarts
    2
    """
    if isinstance(method, Method):
        refuse_options(method, options)
        return method
    return named(METHODS, method, options)


__all__ = [
    "AMPS",
    "BAYESIAN_METHODS",
    "METHODS",
    "NETWORK_METHODS",
    "SPAHM",
    "Assignment",
    "Average",
    "Concatenate",
    "Consensus",
    "DirichletProcess",
    "FedMA",
    "FisherMerging",
    "GromovFusion",
    "KLFusion",
    "KLNetworkFusion",
    "KMeans",
    "Method",
    "NetworkAverage",
    "NetworkEnsembleMethod",
    "NetworkMethod",
    "OTFusion",
    "Outcome",
    "PosteriorAlignment",
    "PredictionEnsemble",
    "Progress",
    "ReBasin",
    "SelfSupervisedFisher",
    "Status",
    "WassersteinFusion",
    "make_bayesian_method",
    "make_method",
    "make_network_method",
    "needs_no_symmetry",
]
