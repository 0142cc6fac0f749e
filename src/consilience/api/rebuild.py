"""The public function ``rebuild``: a fitted model of what a site sent, or of what all sites sent together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

from consilience.api.kinds import load_file
from consilience.core.fusion import Fusion
from consilience.draws.containers import to_container
from consilience.draws.draws import Draws
from consilience.errors import OptionError, UnsupportedError
from consilience.estimators import rebuild as estimators
from consilience.estimators.statistics import Statistics
from consilience.posteriors import rebuild as posteriors
from consilience.posteriors.posterior import Posterior


@overload
def rebuild(posterior: Posterior) -> Any: ...
@overload
def rebuild(posterior: Draws) -> Any: ...
@overload
def rebuild(posterior: Statistics | str | Path, **parameters: Any) -> Any: ...
def rebuild(posterior: Posterior | Statistics | Draws | str | Path, **parameters: Any) -> Any:
    """Return a fitted model with the components of a posterior, or the estimator that statistics give.

    A posterior that came from no library's model is returned as it is. Draws are given back in the container that they
    came in.

    Parameters
    ----------
    posterior : Posterior, Statistics, Draws, str or Path
        What ``describe`` or ``load`` returned, or what was fused; or the path of its file.
    **parameters
        Of statistics: hyper-parameters in place of those that the sites used, such as ``alpha=0.5``.

    Raises
    ------
    UnsupportedError
        When this version has no adapter for such a model, and for what is neither a Posterior nor Statistics.
    InputError
        When the posterior is not one of such a model, or the sums do not determine the estimator.
    OptionError
        For a hyper-parameter that the estimator does not have, and any of a posterior.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> rows = [[0.0], [0.1], [0.2], [0.3], [0.4], [5.0], [5.1], [5.2], [5.3], [5.4]]
    >>> model = GaussianNB().fit(rows, ["low"] * 5 + ["high"] * 5)
    >>> from consilience import describe
    >>> rebuild(describe(model)).predict([[0.1], [5.1]]).tolist()
    ['low', 'high']
    """
    if isinstance(posterior, str | Path):
        posterior = load_file(posterior)
    if isinstance(posterior, Statistics):
        return estimators.rebuild(posterior, parameters)
    if parameters:
        raise OptionError(", ".join(parameters), "is for statistics of estimators; a posterior says all itself")
    if isinstance(posterior, Draws):
        return to_container(posterior)
    if not isinstance(posterior, Posterior):
        name = type(posterior).__name__
        remedy = {
            "Network": "load its arrays into a module of its architecture (load_state_dict)",
            "BayesianNetwork": "give it a module: network.with_module(module)",
        }.get(
            name, "take fusion.model" if isinstance(posterior, Fusion) else "describe it first (consilience.describe)"
        )
        raise UnsupportedError(
            f"a {name}", "is no Posterior and no Statistics, which rebuild takes", remedy, "E-REBUILD"
        )
    return posteriors.rebuild(posterior)
