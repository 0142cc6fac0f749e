"""The methods for Bayesian networks, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.errors import OptionError
from consilience.methods.base import Method
from consilience.methods.kl import KLFusion
from consilience.methods.kl_networks import KLNetworkFusion
from consilience.methods.network_average import NetworkAverage, NetworkEnsembleMethod
from consilience.methods.network_method import NetworkMethod
from consilience.methods.options import named, refuse_options
from consilience.methods.posterior_alignment import PosteriorAlignment

BAYESIAN_METHODS: tuple[type[NetworkMethod], ...] = (
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
        known = ", ".join(repr(kind.name) for kind in BAYESIAN_METHODS)
        raise OptionError(f"{type(method).__name__} does not fuse Bayesian networks; give one of {known}")
    return named(
        BAYESIAN_METHODS, BAYESIAN_METHODS[0].name if method is None else method, options, " for Bayesian networks"
    )
