"""SPAHM: point components matched under a Beta-Bernoulli process, with their number and their law estimated.

Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, "Statistical Model Aggregation via Parameter Matching", NeurIPS 2019. The
log posterior of the matching, equation (8), with atoms integrated out (``beta_bernoulli``), is raised in turn by sweeps
over the sites, each one assignment problem (9), and by estimates of the law (10) (``atom_law``): algorithm 1. It ends
in a local maximum; the best of several starts is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels, is_count, is_number
from consilience.core.details import Status
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.errors import Problem
from consilience.families import DiagonalGaussian
from consilience.matching.assignment import NO_NEW_GROUPS, Openings
from consilience.matching.beta_bernoulli import AtomLaw, BetaBernoulliPrior, GaussianAtoms
from consilience.matching.groups import GroupSums
from consilience.matching.site_by_site import (
    MIN_RELATIVE_GAIN,
    GroupObjective,
    ascend,
    grow,
    match_confidence,
    scatter,
)
from consilience.posteriors.average import conjugate_groups
from consilience.posteriors.details import PosteriorDetails
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.evidence.diagnostics import first_matching
from consilience.posteriors.evidence.search import is_same_partition
from consilience.posteriors.method import WEIGHS_BY_PRIOR, Assignment, Method, SiteNeed, informed, match_informed
from consilience.posteriors.methods.spahm.atom_law import AtomStatistics, initial_law, point_variances, update_law
from consilience.posteriors.posterior import Attached, Posterior

LAW_TOLERANCE = 1e-6
"""Move of a law, in widths of the data and ratios of variances, below which it is stationary. Chosen by hand."""
MIN_LAW_GAIN = 1e-8
"""Gain of a step of the law, in nats, below which it is stationary."""
MAX_LAW_STEPS = 100
"""Steps of the law between two sweeps: a bound on slow expectation-maximisation. Chosen by hand."""
INITIAL_WITHIN_SCALES = (1.0, 4.0, 1.0, 0.25)
"""Factors of the first variance of copies, start by start: it is a guess that decides the optimum. Chosen by hand; the
first two are unlike, so that both rarely end at one matching that is not the best: 2 of 375 simulated ensembles, by at
most 1.7 nats, where one start alone missed it in 239."""
MAX_DIAGNOSED_ROWS = 2000
"""Components up to which the confidence of matches is computed. Chosen by hand for its cost."""


@dataclass(frozen=True)
class SPAHM(Method):
    """Match points under a Beta-Bernoulli process: equations (8) to (10), algorithm 1.

    Components are matched by the point that stands for each, ``family.points``: the mean of a Gaussian or a
    Normal-Wishart posterior, the square roots of a topic's word probabilities, a point itself. What is matched is then
    averaged in the family of the posteriors, covariances included; points become the mode of the atom's posterior.
    ``fusion.atoms`` holds the posterior of every fused point given the matching, which goes beyond the paper.

    Parameters
    ----------
    likelihood : {"gaussian", "conjugate"}, default "gaussian"
        ``"gaussian"``: points around atoms, variances estimated (section 4.1). ``"conjugate"``: equation (8) for any
        family, with what the posteriors say beyond their prior for the sites' observations and the prior for the base
        law. It takes matched components for one and the same, so it suits sites that differ by chance alone.
    concentration : float, default 1.0
        Of the Beta-Bernoulli process (alpha): the larger, the fewer sites share a component.
    mass : float, default 1.0
        Of the process (gamma0): the larger, the more components. The paper has 1, and 50 for inducing points.
    within_variance, between_variance : float or array_like of shape (D,), optional
        Variances of copies around their component and of components around their mean: a number, or one per dimension
        (D,); where `optimize` is on they are starts. None starts from the data.
    optimize : bool, default True
        Whether mean and variances are estimated, equations (10).
    variances : {"dimension", "scalar"}, default "dimension"
        ``"dimension"`` has two for each dimension, ``"scalar"`` two in all.
    marginal : bool, default True
        Whether components are integrated out; if not (the form for networks, components at their likeliest values),
        variances must be given and not be estimated, which would favour none at all.
    shrink : bool, default True
        Whether fused points are drawn to the overall mean as their posterior is; else they are plain means.
    n_components : {"process", "evidence"}, default "process"
        ``"process"``: the number follows from the Beta-Bernoulli process (the paper). ``"evidence"``: number and first
        matching are those of the greatest evidence, as ``KLFusion`` finds them (docs/concepts/number.md); sweeps then
        open and empty no component. What they leave out stays out.
    max_components : int, optional
        Upper limit of their number under the process; None sets no limit.
    restarts : int, default 5
        Starts at most: sites by decreasing size, then in random orders, and where nothing is estimated also random
        matchings; the highest posterior wins. Where the first two, from unlike variances, agree, there are no more.
    max_iterations : int, default 20
        Rounds over all sites in one start, each followed by an estimate of mean and variances.
    clip : int, optional
        Sharing sites beyond which sharing grows no likelier; None sets no limit, the published code has 10.
    min_matching_count : float, default 1.0
        Local components with fewer effective observations are not matched (label -1), whatever `min_count` of `fuse`
        lets in.
    combine : {"auto", "hierarchical", "product", "barycenter"}, default "auto"
        ``"auto"``: hierarchical where every model states its prior and its counts, else the barycenter
        (docs/concepts/average.md). ``"product"`` takes sites for alike; ``"barycenter"`` is as wide as one site's
        posterior.

    Examples
    --------
    >>> SPAHM(mass=50.0).mass
    50.0
    """

    name: ClassVar[str] = "spahm"
    summary: ClassVar[str] = "match points under a Beta-Bernoulli process; their number and spread are found"
    needs: ClassVar[str] = "posteriors or points of one family; any number of components per site"
    gives: ClassVar[str] = "a posterior of the same family, and a Gaussian posterior of every fused point"
    paper: ClassVar[str] = "yurochkin2019"

    likelihood: Literal["gaussian", "conjugate"] = "gaussian"
    concentration: float = 1.0
    mass: float = 1.0
    within_variance: float | tuple[float, ...] | None = None
    between_variance: float | tuple[float, ...] | None = None
    optimize: bool = True
    variances: Literal["dimension", "scalar"] = "dimension"
    marginal: bool = True
    shrink: bool = True
    n_components: Literal["process", "evidence"] = "process"
    max_components: int | None = None
    restarts: int = 5
    max_iterations: int = 20
    clip: int | None = None
    min_matching_count: float = 1.0

    def __post_init__(self) -> None:
        for option in ("within_variance", "between_variance"):
            variance = getattr(self, option)
            if isinstance(variance, list | np.ndarray) and np.asarray(variance).dtype.kind in "fiu":
                object.__setattr__(self, option, tuple(np.ravel(np.asarray(variance, dtype=np.float64)).tolist()))
        super().__post_init__()

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield from (
            ("likelihood", self.likelihood in ("gaussian", "conjugate"), "'gaussian' or 'conjugate'"),
            ("variances", self.variances in ("dimension", "scalar"), "'dimension' or 'scalar'"),
            ("n_components", self.n_components in ("process", "evidence"), "'process' or 'evidence'"),
            *((option, _positive(getattr(self, option)), "a positive number") for option in ("concentration", "mass")),
        )
        for option in ("within_variance", "between_variance"):
            variance = getattr(self, option)
            values = variance if isinstance(variance, tuple) else (variance,)
            is_valid = variance is None or (len(values) > 0 and all(map(_positive, values)))
            yield (option, is_valid, "a positive number, one per dimension, or None")
        yield from (
            *(
                (option, is_count(getattr(self, option)), "a positive integer")
                for option in ("restarts", "max_iterations")
            ),
        )
        for option in ("max_components", "clip"):
            value = getattr(self, option)
            yield (option, value is None or is_count(value), "a positive integer or None")
        is_free = self.max_components is None or self.n_components == "process"
        yield ("max_components", is_free, "None with `n_components='evidence'`, which sets the number")
        yield ("min_matching_count", is_number(self.min_matching_count), "a number that is not negative")
        are_fixed = self.within_variance is not None and self.between_variance is not None and not self.optimize
        yield ("marginal", self.marginal or are_fixed, "True unless both variances are given and optimize is False")

    @property
    def openings(self) -> Openings:
        """Which new groups a site may open."""
        return Openings(self.max_components)

    def site_needs(self) -> tuple[SiteNeed, ...]:
        """Return that every site must state a proper prior for a conjugate likelihood."""
        if self.likelihood == "conjugate":
            return *super().site_needs(), SiteNeed("prior", "`likelihood='conjugate'`", WEIGHS_BY_PRIOR)
        return super().site_needs()

    def refuse(self, ensemble: Ensemble) -> list[Problem]:
        """Also refuse variances of another dimension, and too low a limit."""
        reasons = super().refuse(ensemble)
        dim = ensemble.family.points(ensemble.natural[:1]).shape[1]
        for option in ("within_variance", "between_variance"):
            value = getattr(self, option)
            if isinstance(value, tuple) and len(value) != dim:
                text = f"{option} has {len(value)} values, but the components' points have {dim} dimensions"
                reasons.append(Problem("", text))
        largest = int(informed(ensemble.voting(), self.min_matching_count)[0].sizes.max())
        if self.max_components is not None and self.max_components < largest:
            text = (
                f"max_components is {self.max_components}, but one model has {largest} components, and no two of one "
                f"model may become the same: give at least {largest}"
            )
            reasons.append(Problem("", text))
        return reasons

    def match(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        """Ascend on the log posterior from several starts and keep the highest; the objective is minus that."""
        match = self._match if self.n_components == "process" else self._match_by_evidence
        return match_informed(
            ensemble, self.min_matching_count, lambda informed_ensemble: match(informed_ensemble, rng, progress)
        )

    def _match_by_evidence(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        """Ascend from the matching of the greatest evidence, its number of components kept."""
        progress(0, 1)
        labels, leaders = first_matching(ensemble)
        objective, update = self._objective(ensemble, labels >= 0)
        run = self._ascend(objective, labels, update, NO_NEW_GROUPS, rng)
        progress(1, 1)
        assignment = self._described(ensemble, run)
        return replace(assignment, labels=assignment.labels[leaders])

    def _match(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        best: _Run | None = None
        first_labels: Labels | None = None
        # Estimates of the law start anew in every start; the table of points is shared.
        objective, improve = self._objective(ensemble)
        for start, generator in enumerate(rng.spawn(self.restarts)):
            progress(start, self.restarts)
            run = self._run(ensemble, self._first(objective, start), improve, start, generator)
            # Of starts that end in one place rounding is not to choose.
            if best is None or run.history[-1] > best.history[-1] + MIN_RELATIVE_GAIN * abs(best.history[-1]):
                best = run
            if start == 0:
                first_labels = run.labels
            is_guess = isinstance(objective, GaussianAtoms) and self.within_variance is None
            if start == 1 and is_guess and first_labels is not None and is_same_partition(first_labels, run.labels):
                break  # whatever the guess: further starts would end there, too
        assert best is not None  # noqa: S101  (restarts is at least 1)
        progress(self.restarts, self.restarts)
        return self._described(ensemble, best)

    def _described(self, ensemble: Ensemble, best: _Run) -> Assignment:
        """Return the end of the best start with its diagnostics and atoms."""
        is_small = len(best.labels) <= MAX_DIAGNOSED_ROWS
        confidence = match_confidence(best.objective, best.labels) if is_small else None
        assignment = Assignment(
            best.labels, -best.history[-1], -np.array(best.history), self._status(best), confidence=confidence
        )
        if not isinstance(best.objective, GaussianAtoms):
            return assignment
        law, centre = best.objective.law, ensemble.family.points(ensemble.natural).mean(axis=0)
        atoms = self.atoms_of(law, best.objective.sums(best.labels), centre)
        details: PosteriorDetails = {}
        if int(best.labels.max()) + 1 < len(best.labels):  # else nothing tells how much copies differ
            details = {
                "within_variance": float(law.within.mean()),
                "between_variance": float(law.between.mean()),
                "atom_variance": float(atoms.parameters()["variance"].mean()),
            }
        averaged = atoms.parameters()["mean"] if self.shrink and not ensemble.family.has_width else None
        return replace(assignment, details=details, averaged=averaged, atoms=atoms)

    def _first(self, objective: GroupObjective, start: int) -> GroupObjective:
        """Return the objective that a start begins with: the variance of copies, where it is a guess, is varied."""
        if not isinstance(objective, GaussianAtoms) or self.within_variance is not None:
            return objective
        scale = INITIAL_WITHIN_SCALES[start % len(INITIAL_WITHIN_SCALES)]
        return replace(objective, law=replace(objective.law, within=scale * objective.law.within))

    def _run(
        self, ensemble: Ensemble, objective: GroupObjective, update: _LawUpdate, start: int, rng: np.random.Generator
    ) -> _Run:
        """Return the run from one initial matching: alternating sweeps over sites and updates of the distribution."""
        openings = self.openings
        if update is _keep_law and start % 3 == 2:  # laws estimated from random matchings make all copies of all
            max_groups = min(2 * int(ensemble.sizes.max()), self.max_components or len(ensemble.natural))
            labels = scatter(ensemble.offsets, int(rng.integers(ensemble.sizes.max(), max_groups + 1)), rng)
        else:
            order = np.argsort(-ensemble.sizes, kind="stable") if start == 0 else rng.permutation(ensemble.n_sites)
            labels = grow(objective, order, openings)
        return self._ascend(objective, labels, update, openings, rng)

    def _ascend(
        self,
        objective: GroupObjective,
        labels: Labels,
        update: _LawUpdate,
        openings: Openings,
        rng: np.random.Generator,
    ) -> _Run:
        """Return the run of alternating sweeps over all sites and updates of the atom distribution.

        Where no group may open, none empties.
        """
        history = [objective.total(labels)]
        may_empty = openings is not NO_NEW_GROUPS
        for _ in range(self.max_iterations):
            previous, objective = objective, update(objective, labels)
            labels, is_stationary = ascend(objective, labels, rng, 1, openings, empties_groups=may_empty)
            history.append(objective.total(labels))
            if is_stationary and objective is previous:
                return _Run(labels, objective, history, converged=True)
        return _Run(labels, objective, history, converged=False)

    def _objective(
        self, ensemble: Ensemble, is_in: NDArray[np.bool_] | None = None
    ) -> tuple[GroupObjective, _LawUpdate]:
        """Return the initial objective and the update of its atom distribution, for all components or for some (L,).

        The update is given a matching of these components.
        """
        sharing = BetaBernoulliPrior(ensemble.n_sites, self.concentration, self.mass, self.clip)
        if self.likelihood == "conjugate":
            return conjugate_groups(ensemble, sharing.log_probability), _keep_law
        points = ensemble.family.points(ensemble.natural)  # (L, D)
        points = points - points.mean(axis=0)  # (L, D); sums of pieces are subtracted, so large means would cancel
        spread = point_variances(points)
        first = initial_law(points, ensemble.offsets, spread)
        within, between = (
            guess if variance is None else np.broadcast_to(np.asarray(variance, dtype=np.float64), spread.shape)
            for variance, guess in ((self.within_variance, first.within), (self.between_variance, first.between))
        )
        atoms = GaussianAtoms(points, ensemble.offsets, AtomLaw(first.mean, within, between), sharing, self.marginal)
        if not self.optimize:
            return atoms, _keep_law
        matched = points if is_in is None else points[is_in]
        squares = (matched**2).sum(axis=0)
        return atoms, partial(_estimate_law, squares=squares, spread=spread, scalar=self.variances == "scalar")

    def atoms_of(self, law: AtomLaw, sums: GroupSums, centre: Array) -> Posterior:
        """Return the posterior of every fused point given the sums of its copies, with the atom distribution attached.

        Both are of points less their `centre` (D,).
        """
        if self.shrink:
            mean, variance = law.atoms(sums)
        else:
            mean, variance = sums.means(), law.within / sums.mass[:, None]
        family = DiagonalGaussian(mean.shape[1])
        facts = {"mean": law.mean + centre, "within_variance": law.within, "between_variance": law.between}
        attached = {name: Attached(values, ("fixed",), "mean") for name, values in facts.items()}
        return Posterior(family, family.to_natural(mean=mean + centre, variance=variance), attached=attached)

    def _status(self, run: _Run) -> Status:
        if not run.converged:
            return Status.MAX_ITERATIONS
        n_groups = int(run.labels.max()) + 1
        if n_groups == self.max_components:
            return Status.AT_CAPACITY
        if isinstance(run.objective, GaussianAtoms) and n_groups < len(run.labels):
            return Status.INDISTINCT if run.objective.law.information < np.log(n_groups) else Status.CONVERGED
        return Status.CONVERGED


_LawUpdate = Callable[[Any, Labels], GroupObjective]


@dataclass(frozen=True, eq=False)
class _Run:
    """One start, finished; `history` holds log posteriors."""

    labels: Labels
    objective: GroupObjective
    history: list[float]
    converged: bool


def _keep_law(objective: GroupObjective, labels: Labels) -> GroupObjective:
    return objective


def _estimate_law(
    atoms: GaussianAtoms, labels: Labels, *, squares: Array, spread: Array, scalar: bool
) -> GaussianAtoms:
    """Return the objective with its atom distribution estimated anew; the same object where that is stationary."""
    copies, law = AtomStatistics(atoms.sums(labels), squares), atoms.law
    for _ in range(MAX_LAW_STEPS):
        before, law = law, update_law(copies, law, spread, scalar=scalar)
        if _is_stationary(copies, before, law, spread):
            break
    return atoms if _is_stationary(copies, atoms.law, law, spread) else replace(atoms, law=law)


def _is_stationary(copies: AtomStatistics, before: AtomLaw, law: AtomLaw, spread: Array) -> bool:
    """Return whether an atom distribution has moved, or has gained, less than the tolerances."""
    gain = float((copies.log_likelihoods(law) - copies.log_likelihoods(before)).sum())
    return gain < MIN_LAW_GAIN or law.distance(before, spread) < LAW_TOLERANCE


def _positive(value: object) -> bool:
    return is_number(value) and float(value) > 0  # type: ignore[arg-type]
