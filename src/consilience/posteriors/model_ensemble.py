"""Ensembles of models that predict together: mixtures of the members' predictive densities.

    p(y | x) = sum_j w_j p_j(y | x),    sum_j w_j = 1

The method ``ensemble`` gives them. A mixture of mixtures is a mixture, whose components are those of all members.
Regressions are averaged as densities too, and reported by mean and variance. Where answers of members have no common
meaning (topics, centres, states, each model with its own) there is nothing to average, and the ensemble has no such
method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, softmax

from consilience.checks import Array, Labels, as_weights
from consilience.core.scores import Scores
from consilience.drawing.display import Displayed, names_in_line
from consilience.errors import InputError, UnsupportedError
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.adapters.sklearn.mixture import BayesianGaussianMixtureAdapter, GaussianMixtureAdapter
from consilience.posteriors.mixture_density import MixtureDensity
from consilience.posteriors.sparse_gp.model import SparseGP

_MIXTURE_ADAPTERS: tuple[Adapter, ...] = (BayesianGaussianMixtureAdapter(), GaussianMixtureAdapter())
"""Adapters of the models whose densities are mixtures."""


@dataclass(frozen=True, eq=False, repr=False)
class ModelEnsemble(Displayed):
    """Models side by side; subclasses say how they predict together.

    Raises
    ------
    InputError
        For no member.
    OptionError
        For weights that are not one finite non-negative number per member.
    """

    members: tuple[Any, ...]  # the models, all of one kind; those of no weight are left out
    weights: Array  # (J,), weight w_j of each member, scaled to sum to one

    def __post_init__(self) -> None:
        if not len(self.members):
            raise InputError("", "an ensemble needs at least one member", code="E-NEEDED")
        unscaled = as_weights(self.weights, len(self.members), "weights of the members")
        weighted = np.flatnonzero(unscaled > 0)
        weights = unscaled[weighted] / unscaled.sum()
        weights.setflags(write=False)
        object.__setattr__(self, "members", tuple(self.members[j] for j in weighted))
        object.__setattr__(self, "weights", weights)

    def _headline(self) -> str:
        return f"{len(self.members):,} members of class {type(self.members[0]).__name__} side by side"

    def _facts(self) -> dict[str, object | None]:
        return {"weights": names_in_line([f"{weight:.3g}" for weight in self.weights.tolist()])}

    def _where_else(self, name: str) -> str:
        member = self.members[0]
        if not hasattr(member, name):
            return super()._where_else(name)
        reason = f"what {name!r} of one {type(member).__name__} says and what another's says have no common meaning"
        return f"{reason}: ask the members, or use method 'concatenate'"

    def log_mean(self, logarithms: Sequence[Array]) -> Array:
        """Return log sum_j w_j p_j (n,) from the logarithms (n,) of the members' densities."""
        return logsumexp(np.stack(logarithms), axis=0, b=self.weights[:, None])


@dataclass(frozen=True, eq=False, repr=False)
class MixtureEnsemble(ModelEnsemble):
    """scikit-learn's mixtures, as the mixture of them: component k of member j weighs w_j times what it does there.

    Components are numbered through, member by member.

    Examples
    --------
    >>> from sklearn.mixture import GaussianMixture
    >>> a, b = (GaussianMixture(random_state=0).fit([[m - 1.0], [m + 1.0]]) for m in (0.0, 10.0))
    >>> both = MixtureEnsemble((a, b), [3.0, 1.0])
    >>> both.predict([[0.0], [10.0]]), both.predict_proba([[5.0]]).round(2)
    (array([0, 1]), array([[0.75, 0.25]]))
    """

    def score_samples(self, X: Any) -> Array:
        """Return the log density of every row of `X` (n,), in nats."""
        return self.log_mean([member.score_samples(X) for member in self.members])

    def score(self, X: Any) -> float:
        """Return the mean log density of the rows of `X`, in nats."""
        return float(self.score_samples(X).mean())

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of every component of every member (n, L_1 + .. + L_J), rows summing to one."""
        log_densities = np.stack([member.score_samples(X) for member in self.members])  # (J, n)
        # p(component k of member j | x) = p(member j | x) p_j(k | x)
        member_probabilities = softmax(log_densities + np.log(self.weights)[:, None], axis=0)  # (J, n)
        columns = [
            probability[:, None] * member.predict_proba(X)
            for probability, member in zip(member_probabilities, self.members, strict=True)
        ]
        return np.concatenate(columns, axis=1)

    def predict(self, X: Any) -> Labels:
        """Return the component of the greatest probability of every row of `X` (n,)."""
        return self.predict_proba(X).argmax(axis=1)


@dataclass(frozen=True, eq=False, repr=False)
class RegressionEnsemble(ModelEnsemble):
    """Sparse Gaussian processes, as the mixture of what they predict.

    Examples
    --------
    >>> from consilience.posteriors.sparse_gp.kernels import RBF
    >>> a, b = (SparseGP([[0.0]], [m], [[0.1]], RBF(1.0, [1.0]), noise=0.01) for m in (0.0, 2.0))
    >>> mean, variance = RegressionEnsemble((a, b), [1.0, 1.0]).predict([[0.0]])
    >>> mean.round(3), variance.round(3)
    (array([1.]), array([1.1]))
    """

    def predict(self, X: ArrayLike, *, noise: bool = False) -> tuple[Array, Array]:
        """Return mean and variance of the function, or with `noise` of an observation, at every row of `X` (n, d).

        The variance is the mean of the members' variances plus the variance of their means.
        """
        predictions = [member.predict(X, noise=noise) for member in self.members]
        means, variances = (np.stack(rows) for rows in zip(*predictions, strict=True))  # (J, n) each
        mean: Array = self.weights @ means
        variance: Array = self.weights @ (variances + np.square(means - mean))
        return mean, variance

    def log_density(self, X: ArrayLike, y: ArrayLike) -> Array:
        """Return the log density of every observation given its inputs, noise included (n,), in nats."""
        return self.log_mean([member.log_density(X, y) for member in self.members])


def ensemble_of(members: Sequence[Any], weights: ArrayLike) -> ModelEnsemble:
    """Return the weighted ensemble of models of one kind, of the class that averages what predictions can be."""
    ensemble_class: type[ModelEnsemble] = ModelEnsemble
    if all(any(adapter.accepts(member) for adapter in _MIXTURE_ADAPTERS) for member in members):
        ensemble_class = MixtureEnsemble
    elif all(isinstance(member, SparseGP) for member in members):
        ensemble_class = RegressionEnsemble
    return ensemble_class(tuple(members), np.asarray(weights))


def mixture_values(
    ensemble: ModelEnsemble, adapter: Adapter, log_density: Callable[[MixtureDensity], Array]
) -> Array | None:
    """Return the log of the members' mean density at every row (n,); None for members that are no mixtures."""
    mixtures = [adapter.mixture(adapter.describe(member, None)) for member in ensemble.members]
    log_terms = [log_density(mixture) for mixture in mixtures if mixture is not None]
    return ensemble.log_mean(log_terms) if log_terms else None


def ensemble_scores(ensemble: ModelEnsemble, adapter: Adapter, data: Any) -> Scores:
    """Return the log of the members' mean density at every observation of what ``adapter.scores`` takes.

    The component of an observation is that of the member that explains it best; components are numbered through.
    Members whose scores are not log densities are refused.
    """
    member_scores = [adapter.scores(member, data) for member in ensemble.members]
    first = member_scores[0]
    if not first.unit.startswith("nats"):
        raise UnsupportedError(
            f"an ensemble of {adapter.class_name} has no score: a {first.name} is no density, so there is no mean of"
            " members' predictions; evaluate what method 'concatenate' gives"
        )
    # A document's score is the mean over its held-out tokens: times their number it is the log density to average.
    n_units = np.where(first.weights > 0, first.weights, 1.0)  # (n,)
    log_terms = np.stack([scores.values * n_units for scores in member_scores])  # log p_j (J, n)
    log_terms = log_terms + np.log(ensemble.weights)[:, None]  # log w_j p_j
    sizes = [len(scores.usage) for scores in member_scores]
    best_member, first_component = log_terms.argmax(axis=0), np.cumsum([0, *sizes[:-1]])  # (n,), (J,)
    member_labels = np.stack([scores.labels for scores in member_scores])[best_member, np.arange(len(best_member))]
    labels = np.where(member_labels >= 0, member_labels + first_component[best_member], -1)
    usage = np.bincount(labels[labels >= 0], minlength=sum(sizes))
    if first.usage_unit != first.observations:  # tokens: every member explains all of them, by its weight
        weighted_usage = [weight * scores.usage for weight, scores in zip(ensemble.weights, member_scores, strict=True)]
        usage = np.rint(np.concatenate(weighted_usage)).astype(np.int64)
    return replace(first, values=logsumexp(log_terms, axis=0) / n_units, labels=labels, usage=usage)
