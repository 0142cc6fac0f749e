"""The public functions ``describe`` and ``rebuild``: what a site says of a model, and a model of what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from consilience.api.kinds import KINDS, POSTERIORS, load_file, provenance_of
from consilience.core.features import features_of
from consilience.core.provenance import bind_provenance

if TYPE_CHECKING:
    from consilience.draws.draws import Draws
    from consilience.estimators.statistics import Statistics
    from consilience.posteriors.posterior import Posterior
if TYPE_CHECKING:
    from consilience.checkpoints.lora.adapter import LoraAdapter
    from consilience.core.features import Features
    from consilience.draws.draws import Draws
    from consilience.estimators.statistics import Statistics
    from consilience.networks.gaussian.network import BayesianNetwork
    from consilience.networks.network import Network
    from consilience.posteriors.posterior import Posterior


def describe(
    model: Any,
    data: Any = None,
    *,
    n_observations: float | None = None,
    classes: Any = None,
    example: Any = None,
    sample_weight: Any = None,
    features: Features | Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
    min_count: float | None = None,
    withhold_columns: bool | None = None,
    round_counts: float | None = None,
    class_prior: Literal["own", "removed"] | None = None,
    layers: bool | None = None,
    output: str | int | None = None,
    held_out: Any = None,
    share_network: bool | None = None,
) -> Any:
    """Return what a site says of a model: the posterior over its components, or a network with its description.

    Of a statistical model, the posterior over the components: their parameters, which are all that fusing needs. Of a
    regression, a classifier, a covariance or a scaler whose sums add up, its `Statistics`, sums in place of rows.

    Of a network, the network itself with its symmetry and a `Description` of its training data: the number of
    observations, how many there are of each class, mean and covariance of the inputs and of those of each class, mean
    and variance of every channel (but of Bayesian networks). No observation is in it, and what would tell of few is
    left out; ``consilience inspect`` says what it betrays.

    Parameters
    ----------
    model : fitted model, Posterior, Statistics, torch module, Network or BayesianNetwork
        A fitted model of a class that an adapter accepts, a scikit-learn Pipeline of affine scalings and such a model,
        which is described in the units of the data before any scaling, or a Posterior. Or a torch module, a Network
        that was described before, or a BayesianNetwork with its module.
    data : optional
        The data that the model was trained on. Of a statistical model: rows (n, D), a table with named columns (pandas,
        polars, Arrow), or the path of a .csv, .parquet, .npy or .npz file; they are counted, and leave nothing else in
        the posterior. Of an estimator that is fused by its sums: ``(X, y)``, or X where there is no y, or a .npz with x
        and y; X may be a table or the path of a .csv or .parquet file, and y the name of one of its columns; sums are
        taken of them. Of a network:
        ``(X, y)`` with labels (n,) or without, ``X`` (n, ...), the path of a .npz or .npy file, or a loader of batches
        ``(x, y)`` or ``x``, which is read once. Several inputs are a tuple ``((x, z), y)``, or a mapping by the names
        of arguments, such as a tokenizer returns, with labels under "labels". Maps and sequences have a label for each
        pixel or token; of a language model labels are the texts' own next tokens; of several outputs they are
        a tuple, or a mapping by the outputs' names. Default: not counted.
    n_observations : float, optional
        Number of observations it was trained on, for models that do not record it (GaussianMixture, GaussianHMM,
        CategoricalHMM), and networks whose data are not given, or not all of them. Default: what a BayesianNetwork
        knows, or counted in `data`.
    classes : int or sequence of str, optional
        Of a network: the number or the names of its classes, in the order of its outputs. Default: as many as there
        are outputs, "0", "1", ...; none where labels are real numbers.
    example : tensor, tuple of arguments, or dict of keyword arguments, optional
        Of a network: an input to find and prove which axes move together. Default: the first inputs of `data`.
    sample_weight : array_like of shape (n,), optional
        Of a statistical model: weight of every row of `data` in the fit, where the model does not record the number of
        observations, or of which sums are taken. Default: 1.
    features : sequence of str, mapping of str to str or sequence of str, or Features, optional
        Of a statistical model: what the columns mean: their names, their units by name, or `Features`. Default: what
        the model itself records, such as the names of a DataFrame that it was fitted to, or those of a table in `data`.
    min_count : float, optional
        Components of fewer effective observations, and classes of fewer observations, are withheld, and a
        `WithheldWarning` names them; 0 withholds nothing. Default: 5.
    withhold_columns : bool, optional
        Of an estimator that is fused by its sums: whether columns that set fewer than `min_count` rows apart are
        constant in the sums, so that these do not give such rows back; the fused model is then approximate, and says
        so. Default: False, with a `RareColumnWarning` that names them.
    round_counts : float, optional
        Of a topic model: the word counts of its topics are rounded to multiples of this, so that they do not tell in
        how many texts a rare word is. Default: not rounded.
    class_prior : {"own", "removed"}, optional
        Of a network: whether its probabilities contain the frequencies of the site's classes, as those of an ordinary
        loss do, or not, as under a logit-adjusted loss. Default: "own".
    layers : bool, optional
        Of a network: whether its description has the Kronecker factors of its layers too, about twice as many numbers
        as the network has: second moments of what each layer reads, and of the gradients at what it answers, by which
        `kfac` merges. They tell how inputs vary together. Of more than 2,000 observations they are of a sample, drawn
        by the place of an observation in `data`: another order of the rows gives slightly other factors. Default:
        False.
    output : str or int, optional
        Of a network that returns several: the name, or the place in a tuple, of the output that is meant. Default: its
        logits, else its last hidden state, else all that it returns.
    held_out : optional
        Of a network: the rows that ``consilience.hold_out`` kept apart, as `data`. They are not described: that none is
        among the rows of `data` is checked, and a digest of them says later that the site compares networks on these.
        Default: none.
    share_network : bool, optional
        Of a network: whether the other sites may get it, to compare it with fused ones on rows that they held out,
        which is done where all sites say so. Default: False.

    Returns
    -------
    Posterior, Statistics, Network or BayesianNetwork
        The posterior over the L components of the model; its sums; or the network, with its ``.description`` and
        ``.module``.

    Raises
    ------
    UnsupportedError
        When nobody knows the model's class.
    InputError
        When the model is not fitted, or the data do not fit it or contradict what it records, when labels are of no
        class, or everything would be withheld.
    OptionError
        For arguments that mean nothing for such a model.

    Examples
    --------
    >>> from sklearn.cluster import KMeans
    >>> rows = [[0.0], [0.1], [0.2], [0.3], [0.4], [5.0], [5.1], [5.2], [5.3], [5.4]]
    >>> describe(KMeans(n_clusters=2, n_init=1, random_state=0).fit(rows)).counts
    array([5., 5.])

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    >>> X, y = torch.randn(200, 4), torch.arange(200) % 2
    >>> described = describe(net, (X, y), classes=["no", "yes"])
    >>> described.description.class_counts, described.symmetry.groups
    (array([100., 100.]), {'0': 6})
    """
    keywords = {
        "n_observations": n_observations, "classes": classes, "example": example, "sample_weight": sample_weight,
        "features": features_of(features, model, data), "min_count": min_count, "withhold_columns": withhold_columns,
        "round_counts": round_counts, "class_prior": class_prior,
        "layers": layers, "output": output, "held_out": held_out, "share_network": share_network,
    }  # fmt: skip
    stated = {name: value for name, value in keywords.items() if value is not None}
    kind = next((kind for kind in KINDS if kind.recognises([model])[0]), POSTERIORS)
    kind.refuse_foreign(stated)
    described: Posterior | Statistics | Draws | LoraAdapter | Network | BayesianNetwork = kind.describe(
        model, data, **stated
    )
    return bind_provenance(described, provenance_of(kind, model), kind.digest_of)


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
    return bind_provenance(kind.rebuild(posterior, parameters), provenance_of(kind, posterior), kind.digest_of)
