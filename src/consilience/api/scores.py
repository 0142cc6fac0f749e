"""The public functions ``log_density`` and ``topic_coherence``: scores of one model, whatever form it comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consilience.api.kinds import POSTERIORS, kind_of
from consilience.catalogue import suggestion
from consilience.core.inputs import NamedInput, name_inputs
from consilience.core.scores import DENSITIES, ScoreKind
from consilience.errors import OptionError, UnsupportedError
from consilience.posteriors.evaluate import log_density_of, topic_coherence_of
from consilience.posteriors.topics.coherence import N_WORDS

if TYPE_CHECKING:
    from consilience.checks import Array


def log_density(model: Any, X: Any, *, kind: str = "predictive") -> Array:
    """Return the log density of every row of `X` under a model.

    For mixtures the predictive density has the parameters integrated out, a mixture of Student t's; the plug-in density
    takes them at point estimates, a mixture of Gaussians; the bound is what scikit-learn's ``BayesianGaussianMixture``
    calls a score. The first two integrate to one.

    Parameters
    ----------
    model : Fusion, fitted model, Posterior or path
        A mixture, a sparse Gaussian process or a hidden Markov model.
    X : array_like of shape (n, D), table or path
        Rows; as ``evaluate`` takes them.
    kind : {"predictive", "plug-in", "bound"}, optional
        Which density. Default: "predictive".

    Returns
    -------
    ndarray of shape (n,)
        Log densities, in nats.

    Raises
    ------
    InputError
        When the data do not fit the model.
    OptionError
        For a kind of density that such models do not have.
    UnsupportedError
        For models that have none.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.mixture import BayesianGaussianMixture
    >>> rows = np.random.default_rng(0).normal(size=(40, 2))
    >>> model = BayesianGaussianMixture(random_state=0).fit(rows)
    >>> [float(log_density(model, rows, kind=kind).mean().round(2)) for kind in ("predictive", "plug-in", "bound")]
    [-2.75, -2.75, -2.83]
    """
    if kind not in DENSITIES:
        kinds = [one.value for one in DENSITIES]
        raise OptionError(f"kind {kind!r} is not known{suggestion(kind, kinds)}; expected one of: {', '.join(kinds)}")
    return log_density_of(_named(model), X, ScoreKind(kind))


def topic_coherence(model: Any, documents: Any, *, n_words: int = N_WORDS) -> Array:
    """Return how coherent every topic of a model is: the mean NPMI of pairs of its most probable words.

    The normalised pointwise mutual information (Bouma, 2009) is 1 for words that only occur together in documents of
    the reference corpus, 0 for independent ones and -1 for words that never meet. It says whether a topic reads as one,
    not how well the model predicts.

    Parameters
    ----------
    model : Fusion, fitted model, Posterior or path
        A topic model.
    documents : array_like or sparse matrix of shape (n, V), table or path
        Word counts of the reference corpus, in the order of the model's words; not those the model was trained on.
    n_words : int, optional
        Number of each topic's most probable words. Default: 10, as in Lau, Newman and Baldwin (2014).

    Returns
    -------
    ndarray of shape (K,)
        Coherence of every topic, from -1 to 1.

    Raises
    ------
    InputError
        When the documents are not counts of the model's words.
    OptionError
        For fewer than two words, or more than there are.
    UnsupportedError
        For models without topics.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.decomposition import LatentDirichletAllocation
    >>> counts = np.repeat([[3, 2, 0, 0], [0, 0, 2, 3]], 20, axis=0)
    >>> model = LatentDirichletAllocation(2, random_state=0).fit(counts)
    >>> topic_coherence(model, counts, n_words=2)
    array([1., 1.])
    """
    return topic_coherence_of(_named(model), documents, n_words)


def _named(model: Any) -> NamedInput:
    """Return a model of components by a name for messages; refuse networks."""
    (named,) = name_inputs([model])
    if kind_of([named], options={}) is not POSTERIORS or named.is_plain_checkpoint:
        raise UnsupportedError(named.label, "is a network, which gives no density of rows")
    return named
