"""Covariances, principal components and factor analysis, from the mean and the scatter of all rows."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, pi
from typing import Any, ClassVar

import numpy as np
from scipy import linalg

from consilience.checks import Array, Json
from consilience.core.caller import warn_caller
from consilience.errors import InputError
from consilience.estimators.adapters.base import Mark, RefittedAdapter, SiteSums, whole_moments
from consilience.estimators.adapters.covariance_of_moments import (
    ledoit_wolf_shrinkage,
    oracle_approximating_shrinkage,
    shrunk,
)
from consilience.estimators.site_rows import SiteRows
from consilience.estimators.statistics import FOURTH, ROWS, Statistics
from consilience.families.centred_moments import CentredMoments

_SMALL_VARIANCE = 1e-12
"""Least noise variance of a factor analysis, and what its square roots are raised by: scikit-learn's number."""


class SecondMomentsAdapter(RefittedAdapter):
    """What estimators from the moments of all rows have in common."""

    module: ClassVar[str] = "sklearn.decomposition"

    def sums_of_rows(self, rows: SiteRows) -> SiteSums:
        """Return the moments of all rows."""
        return SiteSums({ROWS: CentredMoments.of_rows(rows.dense)})


def _moments_of(n: float, mean: Array, covariance: Array) -> CentredMoments:
    """Return moments of n rows with a mean and a covariance divided by n."""
    return CentredMoments(np.array(n), np.array(n), np.array(0.0), mean, n * covariance)


def principal_axes(scatter: Array, n: float) -> tuple[Array, Array]:
    """Return eigenvalues (k,) of S, largest first, and their vectors (k, d), k = min(n, d).

    Signs are scikit-learn's: the entry of every vector that is largest by size is positive.
    """
    count = min(int(n), len(scatter))
    values, vectors = linalg.eigh(scatter)
    axes = vectors[:, ::-1].T[:count]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    return np.maximum(values[::-1][:count], 0.0), axes * np.where(largest < 0, -1.0, 1.0)


class PCAAdapter(SecondMomentsAdapter):
    """Principal components; a fitted object with all components keeps the scatter, one with fewer approximates it."""

    kind: ClassVar[str] = "sklearn.PCA"
    compared: ClassVar[tuple[str, ...]] = ("mean_", "explained_variance_")
    loose_solvers: ClassVar[Mapping[str, tuple[str, ...]]] = {"svd_solver": ("randomized",)}

    def sums_of_fitted(self, model: Any, n_observations: float | None) -> SiteSums:
        """Return (n - 1) times the covariance that the object models."""
        n, d = float(self.rows_seen(model)), model.components_.shape[1]
        covariance = np.asarray(model.get_covariance(), dtype=np.float64)
        n_components = int(model.n_components_)
        record = _moments_of(n, np.asarray(model.mean_, dtype=np.float64), covariance * (n - 1) / n)
        if n_components == min(int(n), d):
            return SiteSums({ROWS: record})
        return SiteSums(
            {ROWS: record},
            approximations=(
                f"it keeps {n_components} of {d} components, and of the others their mean variance;"
                " `cs.describe(model, data=X)` gives all of them",
            ),
        )

    def rows_seen(self, model: Any) -> float:
        """Return the number of rows that a model was fitted to."""
        return float(model.n_samples_)

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set mean, components and their variances."""
        record = whole_moments(statistics)
        n, d = float(record.n), record.n_columns
        if n < 2:
            raise InputError("", f"has {n:g} rows in all, expected two or more", code="E-FEW")
        values, axes = principal_axes(record.scatter, n)
        variances = values / (n - 1)
        shares = variances / variances.sum()
        model._fit_svd_solver = "covariance_eigh" if model.svd_solver == "auto" else model.svd_solver
        n_components = _number_of_components(model.n_components, model.svd_solver, variances, shares, int(n))
        model.mean_, model.n_samples_, model.n_components_ = record.mean.copy(), int(n), n_components
        model.noise_variance_ = float(variances[n_components:].mean()) if n_components < min(int(n), d) else 0.0
        model.components_, model.explained_variance_ = axes[:n_components].copy(), variances[:n_components].copy()
        model.explained_variance_ratio_ = shares[:n_components].copy()
        model.singular_values_ = np.sqrt(values[:n_components])


def _number_of_components(wanted: Any, solver: str, variances: Array, shares: Array, n: int) -> int:
    """Return how many components to keep, as ``PCA`` counts them."""
    most = len(variances)
    if wanted is None:
        return most - 1 if solver == "arpack" else most
    if wanted == "mle":
        from sklearn.decomposition._pca import _infer_dimension

        return int(_infer_dimension(variances, n))
    if isinstance(wanted, float) and 0 < wanted < 1:
        return int(np.searchsorted(np.cumsum(shares), wanted, side="right") + 1)
    if not 0 <= wanted <= most:
        raise InputError("n_components", f"is {wanted}, expected at most {most}", code="E-NUMBER")
    return int(wanted)


class IncrementalPCAAdapter(PCAAdapter):
    """Principal components of rows in batches: what it would find in one batch, which truncates nothing."""

    kind: ClassVar[str] = "sklearn.IncrementalPCA"
    mark: ClassVar[Mark] = "iterative"
    compared: ClassVar[tuple[str, ...]] = ("mean_", "var_")

    def rows_seen(self, model: Any) -> float:
        """Return the number of rows that a model was fitted to."""
        return float(model.n_samples_seen_)

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set mean, variances, components and their variances."""
        record = whole_moments(statistics)
        n, d = float(record.n), record.n_columns
        values, axes = principal_axes(record.scatter, n)
        n_components = len(values) if model.n_components is None else int(model.n_components)
        if n_components > len(values):
            raise InputError("n_components", f"is {n_components}, expected at most {len(values)}", code="E-NUMBER")
        variances = values / (n - 1)
        model.batch_size_ = 5 * d if model.batch_size is None else model.batch_size
        model.n_samples_seen_, model.n_components_ = int(n), n_components
        model.mean_, model.var_ = record.mean.copy(), record.variances / n
        model.components_, model.singular_values_ = axes[:n_components].copy(), np.sqrt(values[:n_components])
        model.explained_variance_ = variances[:n_components].copy()
        model.explained_variance_ratio_ = values[:n_components] / values.sum()
        model.noise_variance_ = float(variances[n_components:].mean()) if n_components < len(values) else 0.0


class TruncatedSVDAdapter(SecondMomentsAdapter):
    """Truncated singular value decomposition: eigenvectors of moments about zero, S + n m m^T."""

    kind: ClassVar[str] = "sklearn.TruncatedSVD"
    lacks: ClassVar[str | None] = "the directions that it cut off"
    compared: ClassVar[tuple[str, ...]] = ("singular_values_",)
    loose_solvers: ClassVar[Mapping[str, tuple[str, ...]]] = {"algorithm": ("randomized",)}

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set components, their variances and singular values."""
        record = whole_moments(statistics)
        n = float(record.n)
        values, axes = principal_axes(record.raw_scatter(), n)
        n_components = int(model.n_components)
        if n_components > len(values):
            raise InputError("n_components", f"is {n_components}, expected at most {len(values)}", code="E-NUMBER")
        model.components_ = axes[:n_components].copy()
        model.explained_variance_ = np.einsum("kd,de,ke->k", model.components_, record.scatter / n, model.components_)
        model.explained_variance_ratio_ = model.explained_variance_ / float(record.variances.sum() / n)
        model.singular_values_ = np.sqrt(values[:n_components])


class FactorAnalysisAdapter(SecondMomentsAdapter):
    """Factor analysis by the iteration of Barber (2012), algorithm 21.1, on the covariance in place of rows.

    It is what ``svd_method="lapack"`` iterates; the default, "randomized", stops earlier, with other noise variances.
    """

    kind: ClassVar[str] = "sklearn.FactorAnalysis"
    mark: ClassVar[Mark] = "iterative"
    lacks: ClassVar[str | None] = "the covariances that its factors do not explain"
    compared: ClassVar[tuple[str, ...]] = ("mean_",)

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Iterate on loadings and noise variances until the log-likelihood gains less than ``tol``."""
        record = whole_moments(statistics)
        n, d = float(record.n), record.n_columns
        count = d if model.n_components is None else int(model.n_components)
        covariance = record.scatter / n
        variances = np.diagonal(covariance)
        noise = np.ones(d) if model.noise_variance_init is None else np.array(model.noise_variance_init, np.float64)
        if len(noise) != d:
            raise InputError("noise_variance_init", f"has {len(noise)} values, expected {d}", code="E-SHAPE")
        constant = d * log(2.0 * pi) + count
        likelihoods: list[float] = []
        previous = -np.inf
        for iteration in range(1, model.max_iter + 1):
            model.n_iter_ = iteration
            deviations = np.sqrt(noise) + _SMALL_VARIANCE
            values, vectors = linalg.eigh(covariance / np.outer(deviations, deviations))
            values, axes = np.maximum(values[::-1], 0.0), vectors[:, ::-1].T
            top = values[: min(count, int(n))]
            loadings = np.sqrt(np.maximum(top - 1.0, 0.0))[:, None] * axes[: len(top)] * deviations  # (k, d)
            unexplained = float(values[len(top) :].sum())
            likelihood = constant + float(np.sum(np.log(top))) + unexplained + float(np.sum(np.log(noise)))
            likelihood *= -n / 2.0
            likelihoods.append(likelihood)
            if likelihood - previous < model.tol:
                break
            previous = likelihood
            noise = np.maximum(variances - np.sum(loadings**2, axis=0), _SMALL_VARIANCE)
        else:
            from sklearn.exceptions import ConvergenceWarning

            warn_caller("FactorAnalysis did not converge; give a larger max_iter [W-CONVERGED]", ConvergenceWarning)
        model.mean_, model.noise_variance_ = record.mean.copy(), noise
        model.components_ = loadings
        if model.rotation is not None:
            model.components_ = model._rotate(loadings)
        model.loglike_ = likelihoods


class CovarianceAdapter(SecondMomentsAdapter):
    """What covariances have in common: a function of S / n and of n."""

    module: ClassVar[str] = "sklearn.covariance"
    compared: ClassVar[tuple[str, ...]] = ("location_", "covariance_")

    def covariance(self, model: Any, empirical: Array, n: float, fourth: float) -> Array:
        """Return the covariance that the class makes of the empirical one; `fourth` is 0 before a second message."""
        return empirical

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set location, covariance and precision."""
        record = whole_moments(statistics)
        n = float(record.n)
        model.location_ = np.zeros(record.n_columns) if model.assume_centered else record.mean.copy()
        empirical = (record.raw_scatter() if model.assume_centered else record.scatter) / n
        fourth = float(statistics.counts.get(FOURTH, 0.0))
        model._set_covariance(self.covariance(model, empirical, n, fourth))


class EmpiricalCovarianceAdapter(CovarianceAdapter):
    """The maximum likelihood covariance, S / n; a fitted object lacks n alone."""

    kind: ClassVar[str] = "sklearn.EmpiricalCovariance"
    lacks: ClassVar[str | None] = "the number of rows (`n_observations=`)"

    def sums_of_fitted(self, model: Any, n_observations: float | None) -> SiteSums:
        """Return n times the covariance, where n is given."""
        if n_observations is None:
            return super().sums_of_fitted(model, n_observations)
        location, covariance = (np.array(values, np.float64) for values in (model.location_, model.covariance_))
        return SiteSums({ROWS: _moments_of(float(n_observations), location, covariance)})


class ShrunkCovarianceAdapter(CovarianceAdapter):
    """The empirical covariance, shrunk by a given number towards a multiple of the identity."""

    kind: ClassVar[str] = "sklearn.ShrunkCovariance"
    lacks: ClassVar[str | None] = "the number of rows and the covariance before shrinkage"

    def covariance(self, model: Any, empirical: Array, n: float, fourth: float) -> Array:
        """Return (1 - s) C + s tr(C)/d I."""
        return shrunk(empirical, float(model.shrinkage))


class OASAdapter(CovarianceAdapter):
    """Oracle approximating shrinkage: a function of the covariance and the number of rows."""

    kind: ClassVar[str] = "sklearn.OAS"
    lacks: ClassVar[str | None] = "the number of rows and the covariance before shrinkage"

    def covariance(self, model: Any, empirical: Array, n: float, fourth: float) -> Array:
        """Return the shrunk covariance, and set its shrinkage."""
        model.shrinkage_ = oracle_approximating_shrinkage(empirical, n)
        return shrunk(empirical, model.shrinkage_)


class LedoitWolfAdapter(CovarianceAdapter):
    """Shrinkage by fourth moments, which a second message tells; before it, OAS's stands in its place."""

    kind: ClassVar[str] = "sklearn.LedoitWolf"
    mark: ClassVar[Mark] = "approximate"
    lacks: ClassVar[str | None] = "the number of rows and the covariance before shrinkage"

    def needs_fourth_moments(self, parameters: Mapping[str, Json]) -> bool:
        """Return that it does."""
        return True

    def covariance(self, model: Any, empirical: Array, n: float, fourth: float) -> Array:
        """Return the shrunk covariance, and set its shrinkage."""
        model.shrinkage_ = (
            ledoit_wolf_shrinkage(empirical, n, fourth) if fourth else oracle_approximating_shrinkage(empirical, n)
        )
        return shrunk(empirical, model.shrinkage_)
