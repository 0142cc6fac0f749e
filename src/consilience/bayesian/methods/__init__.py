"""Methods for Bayesian networks: the table of all, and making one by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.bayesian.methods.auto import BayesianAuto
from consilience.bayesian.methods.kl import KLNetworkFusion
from consilience.bayesian.methods.posterior_alignment import PosteriorAlignment
from consilience.core.options import make_named_method, refuse_options
from consilience.errors import OptionError
from consilience.networks.method import NetworkMethod
from consilience.networks.methods.baselines import NetworkAverage, NetworkEnsembleMethod
from consilience.posteriors.method import Method
from consilience.posteriors.methods.kl.method import KLFusion

BAYESIAN_METHODS: tuple[type[NetworkMethod], ...] = (
    BayesianAuto,
    KLNetworkFusion,
    PosteriorAlignment,
    NetworkAverage,
    NetworkEnsembleMethod,
)
"""Every method for Bayesian networks, the recommended one first; a new one is one file and one line here."""


def make_bayesian_method(method: str | NetworkMethod | Method | None, options: Mapping[str, Any]) -> NetworkMethod:
    """Return the method of a name with these options, or the method itself when no option is given.

    Raises
    ------
    OptionError
        For a name, an option or a value that does not exist, saying which do.

    Examples
    --------
    >>> make_bayesian_method("w2", {"metric": "kl"}).metric
    'kl'
    """
    if isinstance(method, KLFusion):
        refuse_options(method, options)
        return KLNetworkFusion.of(method)
    if isinstance(method, BAYESIAN_METHODS):
        refuse_options(method, options)
        return method
    if isinstance(method, (Method, NetworkMethod)):
        names = ", ".join(repr(known_method.name) for known_method in BAYESIAN_METHODS)
        raise OptionError(f"{type(method).__name__} does not fuse Bayesian networks; give one of {names}")
    return make_named_method(
        BAYESIAN_METHODS, BAYESIAN_METHODS[0].name if method is None else method, options, " for Bayesian networks"
    )


__all__ = [
    "BAYESIAN_METHODS",
    "BayesianAuto",
    "KLNetworkFusion",
    "NetworkAverage",
    "NetworkEnsembleMethod",
    "PosteriorAlignment",
    "make_bayesian_method",
]
