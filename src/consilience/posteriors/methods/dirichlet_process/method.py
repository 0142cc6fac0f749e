"""Dirichlet-process baselines: clustering of all components, whichever model they are of, with their number unknown.

Either a variational mixture of Gaussians over the points that stand for the components, or its hard limit
DP-means, sum_l w_l KL(theta_g(l) || theta_l) + penalty (G - 1), in the geometry of the family (``dp_means``).

scikit-learn's mixture with stick-breaking weights fits the first by variational inference (Blei and Jordan 2006); here
are its base law and how the settings are chosen. In the units of the points' own spread, the mean of a cluster is drawn
around zero with variance about 1, and its points around it with a variance of about `share`: with mean precision
``share`` and D degrees of freedom at ``share`` each. (With scikit-learn's own mean precision of 1 clusters lie no
farther apart than the points of one, or pay for it.) Share and concentration are those of the greatest lower bound.
What scikit-learn leaves out of its bound, since it is constant in one fit, differs between settings and is added: T
sticks with priors B(1, a) = 1 / a, and T base laws.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from consilience.checks import Array, Labels, is_count, is_number
from consilience.core.details import Status
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.families import Direction
from consilience.posteriors.details import PosteriorDetails
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.evidence.diagnostics import count_violations, number_by_evidence
from consilience.posteriors.method import Assignment, Method, match_informed
from consilience.posteriors.methods.dirichlet_process.dp_means import best_penalty, fit_dp_means, refine_clusters
from consilience.posteriors.methods.kl.problem import KLFit, KLProblem, best_clusters

CovarianceType = Literal["diag", "spherical"]

INITIALISATIONS = ("k-means++", "random_from_data", "random")
"""scikit-learn's ways to start, used in turn."""
SPREAD_ROUNDING = 1e-12
"""Spread, in units of the points, below which a coordinate counts as constant."""
OUTLIER_DISTANCE_RATIO = 10.0
"""Distance, in median distances, beyond which a point does not set the scale. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class MixtureSetting:
    """Hyper-parameters of one mixture."""

    truncation: int  # number T of sticks, at most that of the points
    covariance_type: CovarianceType  # shape of the clusters' covariances
    concentration: float  # a, of the Dirichlet process: the larger, the more clusters
    share: float = 1.0  # variance of points around their cluster's mean, in that of all


@dataclass(frozen=True, eq=False)
class MixtureFit:
    """A fitted mixture: clusters of the points and the lower bound of its log evidence."""

    setting: MixtureSetting  # what was fitted
    labels: Labels  # cluster of each point (N,), consecutive from 0; clusters that no point is surest of are dropped
    confidence: Array  # probability of that cluster (N,)
    # Lower bound of the log evidence after each iteration, in nats, up to what is the same for every setting.
    bounds: Array
    converged: bool  # whether the last iteration changed it by less than 1e-3

    @property
    def n_clusters(self) -> int:
        """Number of clusters that points are in."""
        return int(self.labels.max()) + 1


def standardised(points: Array, covariance_type: CovarianceType) -> Array:
    """Return points (N, D') less their median, in units of their spread; (N, 0) where they are all the same.

    Diagonal covariances do not mind the units of coordinates, so each is divided by its own standard deviation.
    Spherical ones do: all are divided by one number, the root mean of their variances. Points more than ten times as
    far from the median as is typical have no say in that, or one fit gone wrong would make all others look alike.
    Coordinates that are all the same are left out. Spherical covariances do not mind rotations either: more coordinates
    than points are replaced by as many as there are points, between which all distances are the same.
    """
    offsets = points - np.median(points, axis=0)
    varying = offsets.std(axis=0) > SPREAD_ROUNDING * np.abs(points).max(axis=0)
    offsets = offsets[:, varying]
    if not offsets.shape[1]:
        return offsets
    if covariance_type == "spherical" and offsets.shape[1] > len(offsets):
        directions, lengths, _ = np.linalg.svd(offsets, full_matrices=False)
        offsets = (directions * lengths)[:, lengths > SPREAD_ROUNDING * lengths[0]]
    spread_of_all = _spread(offsets, covariance_type)
    distances = np.linalg.norm(offsets / spread_of_all, axis=1)  # from the median, in spreads (N,)
    is_near = distances <= OUTLIER_DISTANCE_RATIO * np.median(distances)
    spread_of_near = _spread(offsets[is_near], covariance_type)
    return offsets / np.where(spread_of_near > SPREAD_ROUNDING * spread_of_all, spread_of_near, spread_of_all)


def _spread(offsets: Array, covariance_type: CovarianceType) -> Array:
    """Return the standard deviation of every coordinate (D,), or the root mean of the variances (1,)."""
    variances = offsets.var(axis=0)
    return np.sqrt(variances if covariance_type == "diag" else variances.mean(keepdims=True))


def fit_mixture(points: Array, setting: MixtureSetting, restarts: int, max_iterations: int, seed: int) -> MixtureFit:
    """Return the fit of greatest lower bound of `restarts` starts: k-means++ seeds, other points, and chance in turn.

    Points (N, D) are ``standardised``, at least two and not all the same.
    """
    counts = {start: len(range(index, restarts, len(INITIALISATIONS))) for index, start in enumerate(INITIALISATIONS)}
    models = [_fitted(points, setting, start, count, max_iterations, seed) for start, count in counts.items() if count]
    model = max(models, key=lambda fitted: float(fitted.lower_bound_))
    # The terms of the bound that scikit-learn drops: log a per stick, and the base law's normaliser per cluster.
    responsibilities = model.predict_proba(points)
    labels = np.unique(responsibilities.argmax(axis=1), return_inverse=True)[1].astype(np.int64)
    dim = points.shape[1]
    constants = np.log(setting.concentration) + 0.5 * dim * (1 + dim) * np.log(setting.share)
    bounds = np.asarray(getattr(model, "lower_bounds_", [model.lower_bound_]))  # scikit-learn of old keeps the last
    return MixtureFit(
        setting, labels, responsibilities.max(axis=1), bounds + setting.truncation * constants, bool(model.converged_)
    )


def _fitted(points: Array, setting: MixtureSetting, start: str, count: int, max_iterations: int, seed: int) -> Any:
    """Return scikit-learn's mixture of greatest lower bound of `count` starts of a kind."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import BayesianGaussianMixture

    dim, share = points.shape[1], setting.share
    model = BayesianGaussianMixture(
        n_components=setting.truncation,
        covariance_type=setting.covariance_type,
        weight_concentration_prior_type="dirichlet_process",
        weight_concentration_prior=setting.concentration,
        mean_prior=np.zeros(dim),
        mean_precision_prior=share,
        degrees_of_freedom_prior=dim,
        covariance_prior=dim * share if setting.covariance_type == "spherical" else np.full(dim, dim * share),
        n_init=count,
        init_params=start,
        max_iter=max_iterations,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what it says is the status of the fusion
        return model.fit(points)


FIRST_CONCENTRATION = 0.1
"""Concentration at which the share is chosen. The grid 0.01, 0.1, 1 was chosen by hand; the paper states none."""
OTHER_CONCENTRATIONS = (0.01, 1.0)
"""Concentrations that are then tried at the share of the greatest lower bound."""
SHARE_GRID = (1.0, 0.7, 0.5, 0.35, 0.25, 0.1, 0.05, 0.025, 0.01)
"""Within-cluster variances that are tried, in that of all points. Chosen by hand; the lower bound decides."""
TRUNCATION_RATIO, TRUNCATION_EXTRA = 2, 10
"""Default truncation 2 max L_j + 10. Chosen by hand; the truncation of Claici et al. 2020 is not stated."""
REFINE_EVERY_START_ROWS = 64
"""Components up to which every start of DP-means is refined, not the best alone. Chosen by hand for its cost."""
REFINE_BEST_ROWS = 512
"""Components up to which the best start is refined, and every other start grown. Chosen by hand for its cost."""


@dataclass(frozen=True)
class DirichletProcess(Method):
    """Cluster all local components under a Dirichlet process, their number not known.

    As ``KMeans`` does, it may put two components of one model into one cluster, which KL-fusion never does; the number
    of such pairs is reported as ``violations``.

    Parameters
    ----------
    assignment : {"variational", "means"}, default "variational"
        ``"variational"``: a Dirichlet-process mixture of Gaussians over the points that stand for the components (the
        baseline of Claici et al. 2020), in which weights of sites have no say. ``"means"``: DP-means, the hard limit,
        by divergences of the family: the objective of KL-fusion with a price ``penalty`` for each cluster, and without
        the rule that no two components of one model may meet.
    covariance_type : {"spherical", "diag"}, default "spherical"
        Of the mixture's clusters: ``"spherical"``, or ``"diag"`` for points whose coordinates differ in their units.
    n_components : {"process", "evidence"}, default "process"
        ``"process"``: the number follows from the process. ``"evidence"``: it is that of the greatest evidence, as
        ``KLFusion`` finds it (docs/concepts/number.md): the truncation of the mixture, which may use fewer, or the
        number of clusters of the hard limit, which then has no penalty.
    concentration : float, optional
        Of the Dirichlet process; None takes that of 0.01, 0.1 and 1 with the greatest lower bound.
    max_components : int, optional
        Truncation of the mixture, and the largest number that a penalty is tried for; None takes 2 max L_j + 10.
    penalty : float, optional
        Price of a cluster in DP-means, in standard deviations of cross-site divergences, as ``regularization`` of
        ``KLFusion``. None takes the one whose clusters have the greatest silhouette.
    direction : {"forward", "reverse"}, default "forward"
        ``"forward"``: KL(fused || local); ``"reverse"``: KL(local || fused). Divergence and average go together; in the
        mixture it is the average alone.
    restarts : int, default 8
        Starts from other seeds or orders; the lowest objective wins.
    max_iterations : int, default 1000
        Steps at most in one start.
    min_matching_count : float, default 1.0
        Local components with fewer effective observations are not matched (label -1), whatever `min_count` of `fuse`
        lets in.
    combine : {"auto", "hierarchical", "product", "barycenter"}, default "auto"
        How the members of a cluster are averaged in the end: docs/concepts/average.md. Those of one site count as one
        copy.

    Examples
    --------
    >>> DirichletProcess(assignment="means", penalty=0.3).penalty
    0.3
    """

    name: ClassVar[str] = "dp"
    summary: ClassVar[str] = "cluster all components by a Dirichlet process, whoever they come from (a baseline)"
    needs: ClassVar[str] = "posteriors of one exponential family; any number of components per site"
    gives: ClassVar[str] = "a posterior of the same family"
    paper: ClassVar[str] = "blei2006"

    assignment: Literal["variational", "means"] = "variational"
    covariance_type: CovarianceType = "spherical"
    n_components: Literal["process", "evidence"] = "process"
    concentration: float | None = None
    max_components: int | None = None
    penalty: float | None = None
    direction: Direction = "forward"
    restarts: int = 8
    max_iterations: int = 1000
    min_matching_count: float = 1.0

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield from (
            *(
                (option, is_count(getattr(self, option)), "a positive integer")
                for option in ("restarts", "max_iterations")
            ),
        )
        limit = self.max_components
        yield from (
            ("max_components", limit is None or is_count(limit), "a positive integer or None"),
            ("min_matching_count", is_number(self.min_matching_count), "a number that is not negative"),
            ("direction", self.direction in ("forward", "reverse"), "'forward' or 'reverse'"),
            ("assignment", self.assignment in ("variational", "means"), "'variational' or 'means'"),
            ("covariance_type", self.covariance_type in ("diag", "spherical"), "'diag' or 'spherical'"),
            ("n_components", self.n_components in ("process", "evidence"), "'process' or 'evidence'"),
        )
        if self.n_components == "evidence":
            for option in ("max_components", "penalty"):
                yield (
                    option,
                    getattr(self, option) is None,
                    "None with `n_components='evidence'`, which sets the number",
                )
        alpha, price, is_dp_means = self.concentration, self.penalty, self.assignment == "means"
        yield from (
            ("concentration", alpha is None or (is_number(alpha) and alpha > 0), "a positive number or None"),
            ("penalty", price is None or is_number(price), "a number that is not negative, or None"),
            ("concentration", alpha is None or not is_dp_means, "None with `assignment='means'`, which has a penalty"),
            (
                "penalty",
                price is None or is_dp_means,
                "None with `assignment='variational'`, which has a concentration",
            ),
        )

    @property
    def average_direction(self) -> Direction:
        """The direction of the objective is the direction of the average."""
        return self.direction

    def match(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        """Fit from several starts and keep the best."""
        match = self._fit_dp_means if self.assignment == "means" else self._fit_mixtures
        return match_informed(
            ensemble, self.min_matching_count, lambda informed_ensemble: match(informed_ensemble, rng, progress)
        )

    def _limit(self, ensemble: Ensemble) -> int:
        if self.n_components == "evidence":
            return number_by_evidence(ensemble)
        return self.max_components or TRUNCATION_RATIO * int(ensemble.sizes.max()) + TRUNCATION_EXTRA

    def _fit_mixtures(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        points = standardised(ensemble.family.points(ensemble.natural), self.covariance_type)
        if not points.shape[1]:
            return _one_cluster(ensemble)
        n_distinct = len(np.unique(points, axis=0))
        first_setting = MixtureSetting(
            truncation=min(self._limit(ensemble), n_distinct),
            covariance_type=self.covariance_type,
            concentration=FIRST_CONCENTRATION if self.concentration is None else float(self.concentration),
        )
        n_fits = len(SHARE_GRID) + (len(OTHER_CONCENTRATIONS) if self.concentration is None else 0)
        fits: list[MixtureFit] = []

        def fit(setting: MixtureSetting) -> MixtureFit:
            progress(len(fits), n_fits)
            fits.append(fit_mixture(points, setting, self.restarts, self.max_iterations, int(rng.integers(2**32))))
            return fits[-1]

        best = max([fit(replace(first_setting, share=share)) for share in SHARE_GRID], key=_bound)
        if self.concentration is None:
            best = max([best, *(fit(replace(best.setting, concentration=a)) for a in OTHER_CONCENTRATIONS)], key=_bound)
        progress(n_fits, n_fits)
        is_truncated = self.n_components == "process" and first_setting.truncation < n_distinct
        is_full = is_truncated and best.n_clusters == first_setting.truncation
        status_if_converged = Status.AT_CAPACITY if is_full else Status.CONVERGED
        status = status_if_converged if best.converged else Status.MAX_ITERATIONS
        details: PosteriorDetails = {
            "violations": count_violations(ensemble, best.labels),
            "concentration": best.setting.concentration,
            "share": best.setting.share,
        }
        history = -best.bounds
        return Assignment(best.labels, float(history[-1]), history, status, confidence=best.confidence, details=details)

    def _fit_dp_means(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        if not np.any(ensemble.natural != ensemble.natural[0]):
            return _one_cluster(ensemble)
        problem = KLProblem.of(ensemble, self.direction)
        if self.n_components == "evidence":
            return self._fit_k_means(problem, ensemble, rng, progress)
        if self.penalty is None:
            penalty = best_penalty(problem, self._limit(ensemble), rng, self.max_iterations)
        else:
            penalty = self.penalty * problem.spread
        is_small = len(ensemble.natural) <= REFINE_BEST_ROWS
        best: KLFit | None = None
        for start, generator in enumerate(rng.spawn(self.restarts)):
            progress(start, self.restarts)
            fit = fit_dp_means(problem, penalty, generator, self.max_iterations, grown=is_small and start % 2 == 1)
            if len(fit.labels) <= REFINE_EVERY_START_ROWS:
                fit = refine_clusters(problem, fit, penalty, generator)
            if best is None or fit.objective < best.objective:
                best = fit
        assert best is not None  # noqa: S101  (restarts is at least 1)
        if is_small and len(best.labels) > REFINE_EVERY_START_ROWS:
            best = refine_clusters(problem, best, penalty, rng)
        progress(self.restarts, self.restarts)
        status = Status.CONVERGED if best.converged else Status.MAX_ITERATIONS
        details: PosteriorDetails = {
            "violations": count_violations(ensemble, best.labels),
            "penalty": penalty,
            "spread": problem.spread,
        }
        return Assignment(best.labels, best.objective, np.array(best.history), status, details=details)

    def _fit_k_means(
        self, problem: KLProblem, ensemble: Ensemble, rng: np.random.Generator, progress: Progress
    ) -> Assignment:
        """Return DP-means with a given number of clusters in place of their price: Bregman hard clustering."""
        n_clusters = min(self._limit(ensemble), len(ensemble.natural))
        fit = best_clusters(problem, n_clusters, rng, self.restarts, self.max_iterations, progress)
        status = Status.CONVERGED if fit.converged else Status.MAX_ITERATIONS
        details: PosteriorDetails = {"violations": count_violations(ensemble, fit.labels)}
        return Assignment(fit.labels, fit.objective, np.array(fit.history), status, details=details)


def _bound(fit: MixtureFit) -> float:
    """Return the final lower bound of the log evidence."""
    return float(fit.bounds[-1])


def _one_cluster(ensemble: Ensemble) -> Assignment:
    """Return the assignment of components that are all the same."""
    labels = np.zeros(len(ensemble.natural), dtype=np.int64)
    return Assignment(labels, 0.0, np.zeros(1), details={"violations": count_violations(ensemble, labels)})
