"""The public function ``rebuild``: a fitted model of what a site sent, or of what all sites sent together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from consilience.api.kinds import KINDS, POSTERIORS, load_file

if TYPE_CHECKING:
    from consilience.draws.draws import Draws
    from consilience.estimators.statistics import Statistics
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
    kind = next((kind for kind in KINDS if kind.recognises([posterior])[0]), POSTERIORS)
    return kind.rebuild(posterior, parameters)
