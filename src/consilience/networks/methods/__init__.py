"""Fusion methods for networks: the table of all methods, and making one by name."""

from __future__ import annotations

from consilience.core.methods import MethodTable
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


make_network_method = MethodTable(NETWORK_METHODS, NetworkMethod, "networks").make
"""Returns the method of a name with options, a method as it is, the recommended one for None; see `MethodTable`."""
