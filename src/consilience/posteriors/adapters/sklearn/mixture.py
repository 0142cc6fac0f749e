"""scikit-learn's GaussianMixture and BayesianGaussianMixture, in and out.

Maximum-likelihood components are posteriors under a flat prior, variational ones conjugate posteriors of means and
precisions. With kappa = ``mean_precision_`` and nu = ``degrees_of_freedom_``, scikit-learn's ``covariances_`` is
W^-1 / nu of a Normal-Wishart (or b / a of Normal-Gammas), and ``precisions_`` nu W.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array
from consilience.core.features import sklearn_features
from consilience.core.scores import ScoreKind, Scores, row_scores, without_feature_names
from consilience.errors import InputError
from consilience.families.linalg import variances_of
from consilience.posteriors.adapters.base import ASSUMED_SAMPLES, Adapter, set_sklearn_features
from consilience.posteriors.adapters.sklearn.covariance_types import (
    ConjugateParameters,
    about_origin,
    attached_origin,
    covariances_of_components,
    family_of,
    flat_dof,
    from_natural,
    in_units_of_data,
    kept_covariances,
    per_row,
    posterior_and_prior,
    precision_factors,
    pulls_of_prior,
    to_natural,
    with_shared_factor,
)
from consilience.posteriors.mixture_density import MixtureDensity
from consilience.posteriors.origin import origin_of
from consilience.posteriors.posterior import ORIGIN, Attached, Posterior


class MixtureAdapter(Adapter):
    """scikit-learn's mixtures of Gaussians."""

    library: ClassVar[str] = "sklearn"
    follows_units: ClassVar[bool] = True
    counts_are_rows: ClassVar[bool] = True
    score: ClassVar[tuple[str, ScoreKind]]
    """What a row scores."""

    def scores(self, model: Any, data: Any) -> Scores:
        """Return the log density of every row as scikit-learn has it.

        Of Bayesian mixtures that is by expected logarithms of weights and precisions: a lower bound of the log
        predictive density, and looser the fewer observations a component has.
        """
        (bare, data), (name, kind) = _about_its_means(without_feature_names(model), data), self.score
        values, labels = bare.score_samples(data), bare.predict(data)
        return row_scores(name, "nats per row", values, labels, len(model.means_), larger_is_better=True, kind=kind)


def _about_its_means(model: Any, data: Any) -> tuple[Any, Any]:
    """Return a mixture and rows (n, D) about its means where these are far from zero: scikit-learn expands squares."""
    covariances = covariances_of_components(model.covariances_, str(model.covariance_type), len(model.means_))
    origin = origin_of(np.asarray(model.means_), variances_of(covariances), np.asarray(model.weights_))
    if not origin:
        return model, data
    moved = copy(model)
    moved.means_ = model.means_ - origin[ORIGIN].values
    return moved, np.asarray(data) - origin[ORIGIN].values


class GaussianMixtureAdapter(MixtureAdapter):
    """Maximum-likelihood mixtures, as the posterior that their counts give under a flat prior.

    A component with weight w, of n observations in all, stands for n_k = n w with its mean and covariance S. Under a
    flat prior (all natural parameters zero) the posterior of that component has exactly their sufficient statistics as
    natural parameters: kappa = n_k and W^-1 = n_k S. Fused means and covariances are then those of the pooled
    responsibilities, between-site scatter included, whichever way they are combined. scikit-learn does not record n,
    which is therefore asked for. Less than one observation counts as one.
    """

    kind: ClassVar[str] = "sklearn.GaussianMixture"
    class_name: ClassVar[str] = "GaussianMixture"
    score: ClassVar[tuple[str, ScoreKind]] = ("log plug-in density", ScoreKind.PLUG_IN)
    records_n_observations: ClassVar[bool] = False

    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return the posterior of counts ``n_observations * weights_`` under a flat prior."""
        self.require_fitted(model, "means_")
        covariance_type = str(model.covariance_type)
        n_components, dim = model.means_.shape
        family = family_of(covariance_type, dim)
        counts = self._component_counts(model.weights_, n_observations)  # n_k (K,)
        covariances = covariances_of_components(model.covariances_, covariance_type, n_components)
        dof, spread = counts + flat_dof(covariance_type, dim), per_row(counts, covariances)  # W^-1 = n_k S
        fitted = ConjugateParameters(model.means_, counts, dof, spread)
        attached = attached_origin(fitted, counts)
        return Posterior(
            family,
            to_natural(family, about_origin(fitted, attached)),
            prior=np.zeros(family.size),
            counts=counts,
            weights=model.weights_,
            attached=attached,
            features=sklearn_features(model),
            source={
                "kind": self.kind,
                "covariance_type": covariance_type,
                "samples": "assumed" if n_observations is None else "given",
            },
        )

    @staticmethod
    def _component_counts(weights: Array, n_observations: float | None) -> Array:
        """Return the observations behind each component (K,), one at least."""
        n_rows = ASSUMED_SAMPLES if n_observations is None else n_observations
        return np.asarray(np.maximum(n_rows * weights, 1.0))

    def recount(self, posterior: Posterior, n_observations: float | None) -> Posterior:
        """Return the posterior of another number of observations: its natural parameters are counts times moments."""
        if posterior.counts is None or posterior.weights is None:
            text = "states no counts or no weights, so its observations cannot be counted anew"
            raise InputError("", text, code="E-NEEDED")
        counts = self._component_counts(posterior.weights, n_observations)
        natural = posterior.natural * (counts / posterior.counts)[:, None]  # the prior is flat: zeros
        source = {**posterior.source, "samples": "assumed" if n_observations is None else "given"}
        return replace(posterior, natural=natural, counts=counts, source=source)

    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted GaussianMixture."""
        from sklearn.mixture import GaussianMixture

        covariance_type = posterior.source["covariance_type"]
        self.require_family(posterior, type(family_of(covariance_type, 1)))
        fitted = in_units_of_data(posterior)
        model = GaussianMixture(n_components=posterior.n_components, covariance_type=covariance_type)
        counts = fitted.kappa if posterior.counts is None else posterior.counts
        covariances = kept_covariances(fitted, counts, covariance_type)
        model.means_, model.covariances_ = fitted.mean, covariances
        model.precisions_cholesky_, model.precisions_ = precision_factors(covariances, covariance_type)
        model.weights_ = counts / counts.sum()
        model.converged_, model.n_iter_ = True, 0
        set_sklearn_features(model, posterior, fitted.mean.shape[1])
        return model

    def mixture(self, posterior: Posterior) -> MixtureDensity:
        """Return the densities of the mixture; plug-in covariances are of maximum likelihood, as the model has them.

        The predictive density is that of the flat prior: a Student t with n_k + 1 degrees of freedom and scale S for
        ``full`` and ``diag``. It needs the number of observations, which a model alone does not record.
        """
        covariance_type, fitted = posterior.source["covariance_type"], from_natural(posterior.family, posterior.natural)
        counts = fitted.kappa if posterior.counts is None else posterior.counts
        covariances = kept_covariances(fitted, counts, covariance_type)
        if covariance_type == "tied":
            fitted, covariances = with_shared_factor(fitted), np.broadcast_to(covariances, fitted.spread.shape)
        if covariance_type == "spherical":
            covariances = np.broadcast_to(covariances[:, None], fitted.mean.shape)
        natural, knows_counts = to_natural(posterior.family, fitted), posterior.source.get("samples") != "assumed"
        return MixtureDensity(posterior.family, natural, counts, covariances, knows_counts, posterior.origin)


class BayesianGaussianMixtureAdapter(MixtureAdapter):
    """Variational mixtures: the posterior is what scikit-learn fitted, hyper-parameters included.

    scikit-learn writes nu W^-1 for W^-1 / nu: ``covariances_`` times ``degrees_of_freedom_`` is the inverse scale
    matrix. Counts are those of the weight posterior. Fused weights follow from summed counts and the mean prior.
    """

    kind: ClassVar[str] = "sklearn.BayesianGaussianMixture"
    class_name: ClassVar[str] = "BayesianGaussianMixture"
    score: ClassVar[tuple[str, ScoreKind]] = ("variational bound of the log density", ScoreKind.BOUND)

    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return the posterior; `n_observations` is not needed, the model records its counts."""
        self.require_fitted(model, "mean_precision_")
        covariance_type, weight_prior = str(model.covariance_type), str(model.weight_concentration_prior_type)
        n, dim = model.means_.shape
        family = family_of(covariance_type, dim)
        dof = np.broadcast_to(np.asarray(model.degrees_of_freedom_, dtype=np.float64), (n,))
        spread = per_row(dof, covariances_of_components(model.covariances_, covariance_type, n))  # W^-1, or 2 b
        if covariance_type == "tied":
            spread = spread + self._prior_mean_pull(model)
        prior = ConjugateParameters(
            np.asarray(model.mean_prior_, dtype=np.float64)[None],
            np.array([model.mean_precision_prior_], dtype=np.float64),
            np.array([model.degrees_of_freedom_prior_], dtype=np.float64),
            np.asarray(model.covariance_prior_, dtype=np.float64)[None],
        )
        fitted = ConjugateParameters(model.means_, model.mean_precision_, dof, spread)
        counts = self._counts(model, weight_prior)
        origin = attached_origin(fitted, counts)
        natural, prior_natural = posterior_and_prior(family, fitted, prior, origin)
        concentration = Attached(np.array(model.weight_concentration_prior_), (), "mean")
        return Posterior(
            family,
            natural,
            prior=prior_natural,
            counts=counts,
            weights=model.weights_,
            attached={"weight_concentration_prior": concentration, **origin},
            features=sklearn_features(model),
            source={
                "kind": self.kind,
                "covariance_type": covariance_type,
                "weight_concentration_prior_type": weight_prior,
            },
        )

    @staticmethod
    def _prior_mean_pull(model: Any) -> Array:
        """Return what the prior mean adds to each component's inverse scale, less its mean over components (K, D, D).

        It is kappa_0 kappa_k / n_k (m_k - m_0)(m_k - m_0)^T. scikit-learn adds the mean of these to the factor that a
        tied model shares. With its own part in each component, their mean is the same, and a product of posteriors is a
        sum of scatter matrices, which cannot leave the domain (docs/adr/0002).
        """
        kappa, prior_kappa = np.asarray(model.mean_precision_), float(model.mean_precision_prior_)
        pulls = pulls_of_prior(prior_kappa, kappa, kappa - prior_kappa, np.asarray(model.means_) - model.mean_prior_)
        return np.asarray(pulls - pulls.mean(axis=0))

    @staticmethod
    def _counts(model: Any, weight_prior: str) -> Array:
        """Return the observations (K,) behind each component: the weight posterior less its prior."""
        if weight_prior == "dirichlet_process":
            counts = model.weight_concentration_[0] - 1.0
        else:
            counts = model.weight_concentration_ - model.weight_concentration_prior_
        return np.maximum(counts, 0.0)

    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted BayesianGaussianMixture."""
        from sklearn.mixture import BayesianGaussianMixture

        covariance_type = posterior.source["covariance_type"]
        weight_prior = posterior.source["weight_concentration_prior_type"]
        self.require_family(posterior, type(family_of(covariance_type, 1)))
        fitted = in_units_of_data(posterior)
        options: dict[str, Any] = {}
        concentration = float(posterior.attached["weight_concentration_prior"].values)
        if posterior.prior is not None:
            prior = in_units_of_data(posterior, posterior.prior[None])
            prior_spread = prior.spread[0]
            options = {
                "mean_prior": prior.mean[0],
                "mean_precision_prior": float(prior.kappa[0]),
                "degrees_of_freedom_prior": float(prior.dof[0]),
                "covariance_prior": float(prior_spread) if covariance_type == "spherical" else prior_spread,
            }
        model = BayesianGaussianMixture(
            n_components=posterior.n_components,
            covariance_type=covariance_type,
            weight_concentration_prior_type=weight_prior,
            weight_concentration_prior=concentration,
            **options,
        )
        # What fitting would have taken from these options; tied components then share one factor, which is a mean.
        for name, value in {"weight_concentration_prior": concentration, **options}.items():
            setattr(model, f"{name}_", value)
        dof, spread = fitted.dof, fitted.spread
        if covariance_type == "tied":
            shared = with_shared_factor(fitted)
            dof, spread = shared.dof[:1].reshape(()), shared.spread[0]
            covariances = spread / dof
        else:
            covariances = spread / dof.reshape(-1, *[1] * (spread.ndim - 1))
        model.means_, model.mean_precision_, model.degrees_of_freedom_ = fitted.mean, fitted.kappa, dof
        model.covariances_ = covariances
        model.precisions_cholesky_, model.precisions_ = precision_factors(covariances, covariance_type)
        model.weight_concentration_, model.weights_ = self._weights(posterior)
        model.converged_, model.n_iter_ = True, 0
        set_sklearn_features(model, posterior, fitted.mean.shape[1])
        return model

    def mixture(self, posterior: Posterior) -> MixtureDensity:
        """Return the densities of the mixture, with weights at their posterior means."""
        natural = posterior.natural
        if posterior.source["covariance_type"] == "tied":
            natural = to_natural(posterior.family, with_shared_factor(from_natural(posterior.family, natural)))
        return MixtureDensity(posterior.family, natural, self._weights(posterior)[1], origin=posterior.origin)

    @staticmethod
    def _weights(posterior: Posterior) -> tuple[Any, Array]:
        """Return the weight posterior, as scikit-learn keeps it, and its mean (K,), from counts and prior."""
        concentration = float(posterior.attached["weight_concentration_prior"].values)
        counts = posterior.counts
        if counts is None:
            counts = from_natural(posterior.family, posterior.natural).kappa
        if posterior.source["weight_concentration_prior_type"] == "dirichlet_process":
            # Stick breaking: v_k ~ Beta(1 + n_k, concentration + sum_{l > k} n_l), w_k = v_k prod_{l < k} (1 - v_l).
            later_counts = np.append(np.cumsum(counts[::-1])[-2::-1], 0.0)  # sum_{l > k} n_l
            a, b = 1.0 + counts, concentration + later_counts
            remaining_stick = np.append(1.0, np.cumprod(b / (a + b))[:-1])
            weights = a / (a + b) * remaining_stick
            return (a, b), weights / weights.sum()
        concentrations = concentration + counts
        return concentrations, concentrations / concentrations.sum()
