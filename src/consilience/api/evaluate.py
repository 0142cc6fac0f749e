"""The public function ``evaluate``: a fused model against a site's own, on the site's data, at the site."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from consilience.api.kinds import NETWORKS, POSTERIORS, kind_of, list_models
from consilience.core.inputs import name_inputs
from consilience.errors import InputError

if TYPE_CHECKING:
    from consilience.core.evaluation import Evaluation

_ROLES = ("the fused model", "your own model")


def evaluate(fused: Any, own: Any, data: Any, labels: Any = None, *, module: Any = None) -> Evaluation:
    """Compare a fused model with a site's own on the site's data, before adopting it. Nothing leaves the site.

    Both models score every observation, and the differences are paired, by the first score. Every score says its kind
    (``ScoreKind``). Mixtures: log predictive density with the parameters integrated out, nats per row; then at point
    estimates; then scikit-learn's variational bound. KMeans: squared distance to the nearest centre. Topic models: log
    likelihood of a held-out tenth of every document's tokens given the others, nats per token, with its perplexity; the
    split is fixed; and the coherence of topics (NPMI) by these documents. With `labels`, also the adjusted mutual
    information between classes and components.

    A fused topic model may have words that the site has not; it is asked how well it predicts words that both know. An
    ensemble's score is that of the mean of what its models predict, so there is one where scores are log densities.

    Networks that classify: accuracy, and cross-entropy in nats; the paired difference is that of the accuracy. For
    Bayesian ones also the entropy of the predictive probabilities, means over samples of the weights, and the expected
    calibration error; their cross-entropy is minus the log likelihood of these probabilities. Language models, without
    labels: the same of the next tokens, text by text; `data` are token ids (n, T), or a mapping of them and their mask.

    Estimators that are fused by their sums: accuracy and cross-entropy, squared error and R^2, or the log-likelihood of
    rows, whichever their class has; `data` may be ``(X, y)``, or `labels` are y. Approximations of laplace-torch: the
    log density of what they predict, with the weights integrated out; one of the two must have its network.

    Posterior draws: distances from reference draws of the posterior of all data, where somebody has such, or log
    predictive densities of held-out rows, where `data` is a function of a dictionary of arrays (T, ...) that returns
    log-likelihoods (T, n).

    Use data that neither model was trained on: scores on a model's own training data favour that model.

    Parameters
    ----------
    fused
        The fused model: a Fusion, a fitted model, a Posterior, a torch module, a Network, or the path of a file.
    own
        The site's own model, of the same kind and with the same columns: the same choices.
    data
        Rows (n, D); for topic models counts (n, V) of the words of the site's own model, dense or sparse; or a table
        with named columns (pandas, polars, Arrow); or the path of a .csv, .parquet, .npy or .npz file. Named columns
        are matched by name when the models know names; others are ignored. For networks what they take (n, ...), also
        as array x of a .npz.
    labels
        The class of every row (n,), where known; or the name of a column of `data`; or the path of a file with one
        class a line. Networks need numbers of classes from 0, also as array y of the .npz.
    module
        For networks that are files: a torch module of the architecture, or a function that makes one.

    Returns
    -------
    Evaluation

    Raises
    ------
    InputError
        When the models cannot be compared or the data do not fit them, naming what is at fault.
    UnsupportedError
        For models that no adapter knows.

    Examples
    --------
    >>> import numpy as np
    >>> import consilience as cs
    >>> from sklearn.cluster import KMeans
    >>> rows = np.random.default_rng(0).normal(size=(300, 2)) + np.repeat([[0, 0], [9, 0], [0, 9]], 100, axis=0)
    >>> own = KMeans(2, n_init=1, random_state=0).fit(rows[:200:2])
    >>> other = KMeans(2, n_init=1, random_state=0).fit(rows[100::2])
    >>> evaluation = evaluate(cs.fuse([own, other], n_components=3), own, rows[1::2])
    >>> evaluation.better, evaluation.usage.fused
    ('fused', array([50, 50, 50]))
    """
    for role, one in zip(_ROLES, (fused, own), strict=True):
        _require_one_model(role, one)
    fused, own = (list_models({"": one})[""] for one in (fused, own))  # chains in a CSV file are read
    both = tuple(
        one if one.file is not None else replace(one, name=role, label=role)
        for one, role in zip(name_inputs([fused, own]), _ROLES, strict=True)
    )
    kind = kind_of(both, options={} if module is None else {"module": module})
    if kind is POSTERIORS and all(one.is_plain_checkpoint for one in both):
        kind = NETWORKS
    return kind.evaluate(both[0], both[1], data, labels, module)


def _require_one_model(role: str, model: Any) -> None:
    """Raise for several models where one is expected; arrays by name are chains, and are read as such."""
    if not isinstance(model, dict | list | tuple) or not model:
        return
    models = list(model.values() if isinstance(model, dict) else model)
    if any(hasattr(one, "__array__") or isinstance(one, list | int | float) for one in models):
        return
    first = repr(next(iter(model)))[:40] if isinstance(model, dict) else "0"
    text = f"expected one model, found a {type(model).__name__} of {len(models)}"
    raise InputError(role, text, f"compare with one at a time, such as models[{first}]", "E-COUNT")
