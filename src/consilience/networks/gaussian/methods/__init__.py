"""Methods for Bayesian networks: the table of all, and making one by name."""

from __future__ import annotations

from consilience.core.methods import MethodTable
from consilience.networks.gaussian.methods.auto import BayesianAuto
from consilience.networks.gaussian.methods.kl import KLNetworkFusion
from consilience.networks.gaussian.methods.posterior_alignment import PosteriorAlignment
from consilience.networks.method import NetworkMethod
from consilience.networks.methods.baselines import NetworkAverage, NetworkEnsembleMethod

BAYESIAN_METHODS: tuple[type[NetworkMethod], ...] = (
    BayesianAuto,
    KLNetworkFusion,
    PosteriorAlignment,
    NetworkAverage,
    NetworkEnsembleMethod,
)
"""Every method for Bayesian networks, the recommended one first; a new one is one file and one line here."""


make_bayesian_method = MethodTable(BAYESIAN_METHODS, BAYESIAN_METHODS, "Bayesian networks").make
"""Returns the method of a name with options, a method as it is, the recommended one for None; see `MethodTable`."""
