"""KL-fusion: components matched by Kullback-Leibler divergence and averaged, their number known or not.

Claici, Yurochkin, Ghosh, Solomon, "Model Fusion with Kullback-Leibler Divergence", ICML 2020. With theta_g for G fused
and theta_l for L local components,

    min over theta, P of sum_{l, g} P_lg KL(theta_g || theta_l) + lambda sum_g ||P_g||_2,

every local component in one group, no two of one site in the same: equation (9). With lambda = 0 and G given it is (6),
with as many components at every site (3). ``problem`` solves it for binary P, and this file for relaxed P, from several
starts. By default no lambda is chosen: ``evidence.selection`` selects G, and who is who, by evidence.

**Relaxed KL-fusion from one start**: the matching P >= 0 as in the paper, rounded to a binary one at the end.

Claici et al. 2020 relax the binary matching of (9) to P >= 0 with rows that sum to 1 and, within a site, columns that
sum to at most 1. For fixed averages that is convex; ``group_sparse.solve_relaxed`` solves it to a certified gap.
Averages are closed given a plan, eta_bar_g = sum_l w_l P_lg eta_l / sum_l w_l P_lg, equation (4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from consilience.checks import Array, Labels, is_count, is_number
from consilience.core.details import Status
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.errors import Problem
from consilience.families import Direction
from consilience.families.evidence import EvidenceFamily
from consilience.matching.assignment import assign_blocks
from consilience.matching.group_sparse import solve_relaxed
from consilience.matching.groups import plan_sums
from consilience.posteriors.details import PosteriorDetails
from consilience.posteriors.ensemble import Ensemble, Stack
from consilience.posteriors.evidence.diagnostics import (
    count_violations,
    diagnose,
    match_by_evidence,
    match_of_size,
    match_topics,
    widths_agree,
)
from consilience.posteriors.evidence.linkage import Reduction
from consilience.posteriors.evidence.search import MAX_AGGLOMERATED_ROWS, steady_order
from consilience.posteriors.evidence.selection import N_ERRORS, in_order
from consilience.posteriors.evidence.topic_number import TopicNumber
from consilience.posteriors.evidence.virtual_loss import VirtualLoss, mean_and_error, virtual_loss_of
from consilience.posteriors.method import Assignment, Method, informed, match_informed
from consilience.posteriors.methods.kl.divergences import DivergenceName, Geometry, KLGeometry, make_geometry, refusals
from consilience.posteriors.methods.kl.problem import (
    KLFit,
    KLProblem,
    best_clusters,
    compact,
    dissolve,
    fit_binary,
    objective,
    refine,
)

REFINE_BEST_ROWS = 512
"""Components up to which the best start is refined site by site. Chosen by hand for its cost."""
N_CLUSTER_STARTS = 8
"""Starts of k-means where its matching is compared, as many as ``method="kmeans"`` makes."""
MAX_CLUSTERED_ROWS = 5000
"""Components up to which it is compared. Chosen by hand for its cost."""
MIN_REDUCED_LOSS = 0.05
"""Nats per observation that a matching must lose for Runnalls' reduction to be looked at: what matters in a verdict."""
MIN_CLUSTER_GAIN = 0.001
"""Nats per observation that k-means' matching must lose less, beside two standard errors: less may be rounding."""
SITE_SIZE_RATIO = 3
"""Groups that a start under a price has, in sizes of the largest site; the price leaves as many as pay."""


@dataclass(frozen=True)
class KLFusion(Method):
    """Fuse components under equation (9), or (6) and (3) when their number is given.

    Parameters
    ----------
    n_components : int, optional
        Number G of fused components, at least that of the largest site; None finds it.
    regularization : float or "auto", default "auto"
        A number is the paper's way, equation (9): it multiplies the standard deviation of cross-site divergences to
        give lambda, the price of a component (the paper uses 0.1), or with `n_components` equation (6), which has no
        price. ``"auto"`` takes the matching of the greatest evidence instead, with components discounted by how much
        copies differ between sites (docs/concepts/number.md), also where `n_components` says how many there are. The
        objective is minus that log evidence then, unless the solution of (6) for that number, or k-means' or Runnalls'
        (2007) of as many, loses less and is kept: then it is the sum of divergences. ``details["kmeans_gain"]`` and
        ``["runnalls_gain"]`` say by how many nats per observation these lose less; ``details["number"]["linked"]``,
        where evidence would have merged what links between sites keep apart, and the objective is the virtual loss.
        Topics have the smallest number that loses at most 0.02 nats a word, on virtual documents, more than the best
        one; ``details["number"]["topics_at_loss"]`` has that for other losses, and the objective is the loss.
    max_components : int, optional
        Upper limit of G when it is to be found. Default: none under ``"auto"``; under a price, three times the largest
        site.
    assignment : {"integral", "relaxed"}, default "integral"
        ``"integral"`` keeps the matching binary; ``"relaxed"`` solves the convex relaxation of each matching step to a
        certified gap, as the paper does, and rounds at the end. They differ only under a numeric `regularization`.
    direction : {"forward", "reverse"}, default "forward"
        ``"forward"``: KL(fused || local), means of natural parameters (the paper). ``"reverse"``: KL(local || fused),
        means of mean parameters.
    divergence : {"kl", "renyi", "hellinger", "wasserstein"}, default "kl"
        ``"kl"``, or what replaces it in matching and averaging alike: ``"renyi"`` of an `order`, ``"hellinger"`` (its
        squared distance, which is bounded: no outlier dominates), ``"wasserstein"`` (squared, for Gaussian components).
        The number of components is found as for ``"kl"``.
    order : float, default 0.5
        Order of the Renyi divergence, between 0 and 1; it tends to KL(fused || local) at 1.
    restarts : int, default 5
        Starts from other seeds, spread out by k-means++ and uniform in turn; the lowest objective wins.
    max_iterations : int, default 100
        Matching and averaging steps at most in one start.
    tolerance : float, default 1e-06
        Relative decrease of the objective below which a start has converged.
    gap : float, default 0.0001
        Certified relative gap of a relaxed matching step.
    min_matching_count : float, default 1.0
        Local components with fewer effective observations are not matched (label -1), whatever `min_count` of `fuse`
        lets in; they say little but the prior. With
        ``regularization="auto"`` so are those that cannot be judged by their data, and fits gone wrong, unless they are
        put where they fit.
    exclusive : bool, default False
        Whether components that the search under ``"auto"`` leaves out, blends and second copies of others, stay out
        (label -1). Else each is put into the group that explains it best, even beside another component of its site, if
        less is lost so by the virtual loss, and the matching of k-means, which knows no sites, is taken where it loses
        less (docs/concepts/number.md). With `robust`, and in chains, they stay out and no two of a site are matched.
    combine : {"auto", "hierarchical", "product", "barycenter"}, default "auto"
        ``"auto"``: hierarchical where every model states its prior and its counts, else the barycenter
        (docs/concepts/average.md). ``"product"`` takes sites for alike; ``"barycenter"`` is the paper's.

    Examples
    --------
    >>> KLFusion(regularization=0.3).regularization
    0.3
    """

    name: ClassVar[str] = "kl"
    summary: ClassVar[str] = "match components by KL divergence, average them; their number is found"
    needs: ClassVar[str] = "posteriors of one exponential family; any number of components per site"
    gives: ClassVar[str] = "a posterior of the same family"
    paper: ClassVar[str] = "claici2020"
    takes_labels: ClassVar[bool] = True
    matching_options: ClassVar[tuple[str, ...]] = (
        "n_components", "max_components", "regularization", "assignment", "min_matching_count", "exclusive"
    )  # fmt: skip

    n_components: int | None = None
    regularization: float | Literal["auto"] = "auto"
    max_components: int | None = None
    assignment: Literal["integral", "relaxed"] = "integral"
    direction: Direction = "forward"
    divergence: DivergenceName = "kl"
    order: float = 0.5
    restarts: int = 5
    max_iterations: int = 100
    tolerance: float = 1e-6
    gap: float = 1e-4
    min_matching_count: float = 1.0
    exclusive: bool = False

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        numbers = {option: getattr(self, option) for option in ("n_components", "max_components")}
        regularization, names, is_kl = self.regularization, get_args(DivergenceName), self.divergence == "kl"
        is_auto = isinstance(regularization, str) and regularization == "auto"
        yield from (
            *((option, n is None or is_count(n), "a positive integer or None") for option, n in numbers.items()),
            *((name, is_count(getattr(self, name)), "a positive integer") for name in ("restarts", "max_iterations")),
            *(
                (option, is_number(getattr(self, option)), "a number that is not negative")
                for option in ("tolerance", "gap", "min_matching_count")
            ),
            ("regularization", is_auto or is_number(regularization), "'auto' or a number that is not negative"),
            ("exclusive", isinstance(self.exclusive, bool), "True or False"),
            ("assignment", self.assignment in ("integral", "relaxed"), "'integral' or 'relaxed'"),
            ("direction", self.direction in ("forward", "reverse"), "'forward' or 'reverse'"),
            ("divergence", self.divergence in names, f"one of {', '.join(map(repr, names))}"),
            ("order", is_number(self.order) and 0 < self.order < 1, "a number between 0 and 1"),
            ("direction", is_kl or self.direction == "forward", "'forward' with a divergence that is not 'kl'"),
            ("assignment", is_kl or self.assignment == "integral", "'integral' with a divergence that is not 'kl'"),
        )

    @property
    def average_direction(self) -> Direction:
        """The direction of the objective is the direction of the average."""
        return self.direction

    @property
    def own_average(self) -> str:
        """Divergences other than Kullback-Leibler's have averages of their own."""
        if self.divergence != "kl":
            return f"`divergence={self.divergence!r}` has an average of its own"
        return super().own_average

    @property
    def finds_number(self) -> bool:
        """Whether no number was given."""
        return self.n_components is None

    def refuse(self, ensemble: Ensemble) -> list[Problem]:
        """Also refuse a number of components below that of the largest model."""
        reasons = super().refuse(ensemble) + refusals(self.divergence, ensemble.family)
        ensemble = informed(ensemble.voting(), self.min_matching_count)[0]
        largest = int(ensemble.sizes.max())
        for option in ("n_components", "max_components"):
            value = getattr(self, option)
            if value is not None and value < largest:
                name = ensemble.names[int(ensemble.sizes.argmax())]
                text = (
                    f"{option} is {value}, but {name} has {largest} components, and no two of one model may become "
                    f"the same: give at least {largest}"
                )
                reasons.append(Problem("", text))
        in_all = len(ensemble.owner)
        if self.n_components is not None and self.n_components > in_all:
            text = (
                f"n_components is {self.n_components}, but there are {in_all} components in all: give at most {in_all}"
            )
            reasons.append(Problem("", text))
        return reasons

    @property
    def _is_conjugate(self) -> bool:
        """Whether matchings by evidence are those of this divergence; the direction only says what is averaged."""
        return self.divergence == "kl"

    def _is_exclusive(self, ensemble: Ensemble) -> bool:
        """Whether what the search leaves out stays out: what looks like a fit gone wrong may be a lie, too.

        States of a chain stay apart, for their transitions would be added up.
        """
        return self.exclusive or self.is_robust or ensemble.is_chain

    def match(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        """Descend on the objective from several starts and keep the lowest."""
        return match_informed(
            ensemble, self.min_matching_count, lambda informed_ensemble: self._match(informed_ensemble, rng, progress)
        )

    def _match(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        if (of_topics := self._match_topics(ensemble)) is not None:
            return of_topics
        problem = KLProblem(ensemble, self.geometry(ensemble))
        details: PosteriorDetails = {}
        strength = 0.0
        if self.regularization == "auto" and self.n_components is None:
            selected = match_by_evidence(ensemble, self.max_components, exclusive=self._is_exclusive(ensemble))
            if self._is_conjugate:
                return self._unless_clusters_lose_less(ensemble, selected)
            # Other divergences have no evidence: they take the number that was selected under the conjugate one.
            count = max(int(selected.labels.max()) + 1, int(ensemble.sizes.max()))
            details |= _number_of(selected)
        elif self.n_components is not None:
            count = min(self.n_components, len(ensemble.natural))
        else:
            assert self.regularization != "auto"  # noqa: S101  (narrows the type)
            count, strength = self._limit(ensemble), self.regularization * problem.spread
            details |= {"regularization": float(self.regularization), "spread": problem.spread}
        best = self._best_fit(problem, count, strength, rng, progress)
        if best.gap is not None:  # of relaxed fits, which alone have a certificate
            details["certified_gap"] = best.gap
        is_auto = self.n_components is not None and self.regularization == "auto" and self._is_conjugate
        if is_auto:
            by_evidence = match_of_size(ensemble, count, best.labels, exclusive=self._is_exclusive(ensemble))
            if by_evidence is not None:
                return self._unless_clusters_lose_less(ensemble, by_evidence)
        confidence, diagnostics = diagnose(ensemble, best.labels)
        by_divergence = Assignment(
            best.labels,
            best.objective,
            np.array(best.history),
            self._status(best, ensemble),
            best.plan,
            confidence,
            {**details, **diagnostics},
        )
        return self._unless_clusters_lose_less(ensemble, by_divergence) if is_auto else by_divergence

    def _match_topics(self, ensemble: Ensemble) -> Assignment | None:
        """Return the matching of topics in the number that was given; None for what are none, or without such one."""
        if self.n_components is None or self.regularization != "auto" or not self._is_conjugate:
            return None
        topics = TopicNumber.of(ensemble, keeps_apart=self._is_exclusive(ensemble))
        if topics is None or topics.fewest > self.n_components:
            return None
        return match_topics(ensemble, topics, self.n_components)

    def _best_fit(
        self, problem: KLProblem, count: int, strength: float, rng: np.random.Generator, progress: Progress
    ) -> KLFit:
        """Return the best fit of all starts, refined where it is small enough and no plan."""
        best: KLFit | None = None
        for start, generator in enumerate(rng.spawn(self.restarts)):
            progress(start, self.restarts)
            fit = self._start(problem, count, strength, generator, spread_out=start % 2 == 0)
            if best is None or fit.objective < best.objective:
                best = fit
        assert best is not None  # noqa: S101  (restarts is at least 1)
        # Refinement follows every choice with its average, which alternation does not; plans are not binary.
        if best.plan is None and len(problem.ensemble.natural) <= REFINE_BEST_ROWS:
            best = refine(problem, best, strength, rng)
        progress(self.restarts, self.restarts)
        return best

    def _unless_clusters_lose_less(self, ensemble: Ensemble, selected: Assignment) -> Assignment:
        """Return a matching, or k-means' or Runnalls' of as many groups where its virtual loss is clearly less.

        Where local fits split or blend components, both put two of one site together from the start, which no search
        under the rule of one per site can. Seeds of k-means are drawn from the components in an order that tiny changes
        do not change.
        """
        family, is_small = ensemble.family, len(ensemble.natural) <= MAX_CLUSTERED_ROWS
        if not family.describes_data or not is_small or self._is_exclusive(ensemble):
            return selected
        loss = virtual_loss_of(ensemble)
        assert loss is not None  # noqa: S101  (families that describe data have densities; narrows the type)
        assert isinstance(family, EvidenceFamily)  # noqa: S101  (families that describe data are; narrows the type)
        n_groups = int(selected.labels.max()) + 1
        order = steady_order(ensemble.natural, ensemble.owner)
        stack = in_order(Stack(family, ensemble.natural, ensemble.offsets, ensemble.row_weights), order)
        problem, rng = KLProblem.of(stack, self.direction), np.random.default_rng(0)
        fit = best_clusters(problem, n_groups, rng, N_CLUSTER_STARTS, self.max_iterations)
        candidates = {"kmeans_gain": fit.labels[np.argsort(order)]} if fit.n_groups == n_groups else {}
        # Where evidence has found the number, copies as wide as each other are displaced ones. No more can be gained
        # than is lost.
        is_one_width = self.n_components is None and widths_agree(selected.details.get("heterogeneity", {}).values())
        is_reducible = len(order) <= MAX_AGGLOMERATED_ROWS and not is_one_width
        is_reducible = is_reducible and loss(selected.labels)[0] > MIN_REDUCED_LOSS
        reduced = self._reduced(loss, selected.labels, ensemble.owner) if is_reducible else None
        if reduced is not None:
            candidates["runnalls_gain"] = reduced
        # Paired on the same virtual draws, so the error is that of the difference.
        gains = {name: mean_and_error(loss.differences(selected.labels, one)) for name, one in candidates.items()}
        name = max(gains, key=lambda one: gains[one][0], default="")
        if not name or gains[name][0] <= max(MIN_CLUSTER_GAIN, N_ERRORS * gains[name][1]):
            return selected
        labels = candidates[name]
        confidence, diagnostics = diagnose(ensemble, labels)
        details = _number_of(selected)
        if n_violations := count_violations(ensemble, labels):
            details["violations"] = n_violations
        value = objective(problem, problem.barycenters(labels[order], n_groups), labels[order], 0.0)
        gain: PosteriorDetails = (
            {"kmeans_gain": gains[name][0]} if name == "kmeans_gain" else {"runnalls_gain": gains[name][0]}
        )
        return Assignment(
            labels,
            value,
            np.array([value]),
            selected.status,
            confidence=confidence,
            details={**details, **diagnostics, **gain},
        )

    def _reduced(self, loss: VirtualLoss, labels: Labels, owner: Labels) -> Labels | None:
        """Return Runnalls' reduction to as many groups as a matching (L,) has; None without such a one.

        Where the number was not given, groups of one site stay: what reduction would gain by merging them and splitting
        others is a question of the number, which evidence has answered.
        """
        n_groups, is_free = int(labels.max()) + 1, np.ones(len(labels), dtype=np.bool_)
        if self.n_components is None:
            if labels.min() < 0:  # evidence has left some out
                return None
            sites = np.zeros((n_groups, int(owner.max()) + 1), dtype=np.bool_)
            sites[labels, owner] = True
            is_free = sites.sum(axis=1)[labels] > 1
        alone, apart = np.unique(labels[~is_free], return_inverse=True)
        reduced = Reduction(loss, np.flatnonzero(is_free)).labels(n_groups - len(alone))
        if reduced is None or np.any(reduced[is_free] < 0):
            return None
        reduced[~is_free] = n_groups - len(alone) + apart
        return reduced

    def geometry(self, ensemble: Ensemble) -> Geometry:
        """Return the divergence between fused and local components, with its average."""
        return make_geometry(self.divergence, self.order, self.direction, ensemble.family, ensemble.natural)

    def average(self, ensemble: Ensemble, labels: Labels, n_groups: int) -> Array:
        """Return the averages (G, P) that belong to the divergence."""
        return self.geometry(ensemble).averages(labels, ensemble.row_weights, n_groups)

    def _limit(self, ensemble: Ensemble) -> int:
        """Return the largest number of fused components that is tried."""
        n_rows = len(ensemble.natural)
        largest_site = int(ensemble.sizes.max())
        return min(n_rows, SITE_SIZE_RATIO * largest_site if self.max_components is None else self.max_components)

    def _start(
        self, problem: KLProblem, count: int, strength: float, rng: np.random.Generator, *, spread_out: bool = True
    ) -> KLFit:
        """Return the fit from one initialisation: seeds drawn by k-means++ or, where not `spread_out`, uniformly."""
        seeds = problem.seeds(count, rng, spread_out=spread_out)
        if self.assignment == "relaxed" and strength > 0:
            return fit_relaxed(problem, seeds, strength, rng, self.max_iterations, self.tolerance, self.gap)
        return fit_binary(problem, seeds, strength, rng, self.max_iterations, self.tolerance)

    def _status(self, fit: KLFit, ensemble: Ensemble) -> Status:
        if not fit.converged:
            return Status.MAX_ITERATIONS
        limit, has_limit = self._limit(ensemble), self.max_components is not None or self.regularization != "auto"
        if self.n_components is None and has_limit and fit.n_groups == limit < len(ensemble.natural):
            return Status.AT_CAPACITY
        return Status.CONVERGED


MAX_ADMM_STEPS = 2000
"""Steps of one relaxed matching: a bound, for 100 to 300 usually reach a relative gap of 1e-5."""
MIN_ACTIVE_MASS = 0.999
"""Total mass from which a column counts as a component: that of the published code of Claici et al. 2020."""


def fit_relaxed(
    problem: KLProblem,
    centres: Array,
    strength: float,
    rng: np.random.Generator,
    max_iterations: int,
    tolerance: float,
    gap: float,
) -> KLFit:
    """Descend on (9) with P relaxed to P >= 0, each matching solved to a certified relative gap; then round.

    Columns with total mass below 0.999 are dropped, the largest are put back while a site has more components than are
    left. Rounding takes the assignment nearest the plan and improves it as a binary matching, since a plan that is
    split evenly over two equal columns has no nearest one; where that needs fewer columns, the descent goes on with
    these. The matching and its barycenters are rounded; objective, history (of the last descent), gap and plan are
    those of the relaxed problem. Arguments are as in ``fit_binary``.
    """
    largest_site = int(problem.ensemble.sizes.max())
    while True:
        plan, centres, values, converged, certified_gap = _alternate_relaxed(
            problem, centres, strength, max_iterations, tolerance, gap
        )
        mass = plan.sum(axis=0)  # (G,)
        active = mass >= MIN_ACTIVE_MASS
        if active.sum() < largest_site:
            active[np.argsort(-mass, kind="stable")[:largest_site]] = True
        if not np.all(active):
            # The mass on dropped columns would be lost, so the descent goes on with the others (ours, not the paper's).
            centres = centres[active]
            continue
        nearest_labels = assign_blocks(-plan, problem.ensemble.offsets)
        labels, averages = compact(problem, nearest_labels)
        value = objective(problem, averages, labels, strength)
        binary = KLFit(labels, averages, value, (value,), True)
        binary = dissolve(problem, refine(problem, binary, strength, rng), strength, rng, max_iterations, tolerance)
        labels, averages = compact(problem, binary.labels)
        if len(averages) == plan.shape[1]:
            return KLFit(labels, averages, values[-1], values, converged, certified_gap, plan)
        centres = averages


def _alternate_relaxed(
    problem: KLProblem, centres: Array, strength: float, max_iterations: int, tolerance: float, gap: float
) -> tuple[Array, Array, tuple[float, ...], bool, float]:
    """Return plan (L, G), centres (G, P), history, whether it converged, and the certified gap of the plan."""
    geometry, weights = problem.geometry, problem.ensemble.row_weights
    assert isinstance(geometry, KLGeometry)  # noqa: S101  (the options allow no other)
    values: list[float] = []
    costs, plan, warm_start, certified_gap, lowest = problem.costs(centres), None, None, np.inf, np.inf
    for _ in range(max_iterations):
        solution = solve_relaxed(costs, problem.ensemble.offsets, strength, gap, MAX_ADMM_STEPS, warm_start)
        new_centres = geometry.centres(plan_sums(geometry.averaged, solution.plan, weights), centres)
        new_costs = problem.costs(new_centres)
        value = float(np.sum(new_costs * solution.plan) + strength * np.linalg.norm(solution.plan, axis=0).sum())
        # The matching is solved to a gap only, so a rise below it can happen; such a step is rejected.
        if plan is not None and value > lowest:
            return plan, centres, tuple(values), True, certified_gap
        certified_gap = solution.gap
        is_small_gain = lowest - value <= tolerance * abs(value)
        plan, centres, costs, warm_start, lowest = solution.plan, new_centres, new_costs, solution.state, value
        values.append(value)
        if is_small_gain:
            return plan, centres, tuple(values), True, certified_gap
    assert plan is not None  # noqa: S101  (max_iterations is at least 1)
    return plan, centres, tuple(values), False, certified_gap


def _number_of(selected: Assignment) -> PosteriorDetails:
    """Return what the details of a matching by evidence say of the number of components."""
    details: PosteriorDetails = {}
    if "path" in selected.details:
        details["path"] = selected.details["path"]
    if "number" in selected.details:
        details["number"] = selected.details["number"]
    return details
