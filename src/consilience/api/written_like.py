"""The public function ``written_like``: what was fused, in the form of a model of another library."""

from __future__ import annotations

from typing import Any

from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.fused_laplace import FusedLaplace
from consilience.estimators.fusion import EstimatorFusion
from consilience.estimators.rebuild import rebuild
from consilience.estimators.statistics import Statistics
from consilience.networks.gaussian.readers import table as bayesian


def written_like(fused: Any, like: Any) -> Any:
    """Return a copy of a model of another library that holds what was fused.

    Parameters
    ----------
    fused : BayesianNetwork, FusedLaplace, Statistics or EstimatorFusion
        A Bayesian network of independent weights; or the product of laplace-torch's approximations of the structure
        "full", as fused files give it.
    like : object
        A model of the same architecture, as one of those that were fused; it is not changed. Of Bayesian networks
        dicts give dicts of any width; other kinds have layers of their own, which are not resized.

    Raises
    ------
    InputError
        When parameters have other names, or `like` is not what was fused.
    UnsupportedError
        When shapes differ from those of the layers, naming them; or `like` is of no known kind.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import as_bayesian_network
    >>> bnn = as_bayesian_network({"weight.mean": np.zeros(2), "weight.std": np.full(2, 0.1)})
    >>> means, log_variances = written_like(bnn, ({"weight": np.zeros(2)}, {"weight": np.zeros(2)}))
    >>> log_variances["weight"].round(3)
    array([-4.605, -4.605])
    """
    if isinstance(fused, EstimatorFusion):
        fused = fused.statistics
    if isinstance(fused, Statistics):
        return adapter_of_kind(fused.kind).written_like(rebuild(fused), like)
    if isinstance(fused, FusedLaplace):
        return adapter_of_kind(fused.kind).written_like(fused, like)
    return bayesian.written_like(fused, like)
