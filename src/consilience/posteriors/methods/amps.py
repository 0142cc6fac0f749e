"""AMPS: approximate merging of posteriors with symmetry. Components are aligned so that the Bayes product is largest.

Campbell, How, "Approximate Decentralized Bayesian Inference", UAI 2014. Sites share a prior and a model that does not
change when its components are permuted. Each keeps one mode of K! equal ones, so the exact product of what they mean is
a mixture over alignments, of which AMPS keeps the heaviest. The weight of an alignment is, up to a constant,

    J = sum_k A(lambda0 + sum_i (lambda_{i, pi_i(k)} - lambda0)),

A the log normaliser of a component and lambda0 its prior: the marginal likelihood of all data given who is who. (The
objective follows from the paper's premises; its own text was not at hand.) It is raised site by site, exactly given
the others, from several starts, and by exchanges between two sites; it ends in a local maximum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from scipy.special import gammaln

from consilience.checks import Array, Labels, is_count, is_number
from consilience.core.details import Status
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.errors import Problem
from consilience.matching.agglomeration import ValuedObjective, improve_by_exchange
from consilience.matching.assignment import NO_NEW_GROUPS, Openings
from consilience.matching.conjugate_groups import ConjugateGroups
from consilience.matching.groups import GroupSums
from consilience.matching.site_by_site import ValuedGroups, ascend, grow, match_confidence, scatter
from consilience.posteriors.average import Combine, conjugate_groups
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.evidence.diagnostics import first_matching
from consilience.posteriors.method import WEIGHS_BY_PRIOR, Assignment, Method, SiteNeed

MAX_DIAGNOSED_ROWS = 500
"""Components up to which the confidence of matches is computed. Chosen by hand for its cost."""


@dataclass(frozen=True)
class AMPS(Method):
    """Align components so that the product of the posteriors is largest, and multiply, the prior counted once.

    Exact for two models. For more, sites are aligned one by one, exactly given the others, from several starts, and
    pairs of sites exchange two components where that helps.

    Parameters
    ----------
    growth : bool, default False
        Whether components may be unlike all others: the number of components is then found under a Dirichlet process,
        in the manner of the streaming version of Campbell, Straub, Fisher and How (2015). Needs counts of
        observations, as mixtures have; by counts of tokens, topics that are unlike are merged too easily. Without it
        every model has the same number, and component k of one is a component of each of the others.
    n_components : {"process", "evidence"}, default "process"
        With `growth`: ``"process"`` finds the number under the Dirichlet process; ``"evidence"`` takes number and first
        matching of the greatest evidence, as ``KLFusion`` finds them (docs/concepts/number.md), and sites then move
        without opening or emptying a component. What it leaves out stays out.
    concentration : float, default 1.0
        Of the Dirichlet process: the larger, the more components.
    revisit : bool, default True
        Whether sites are aligned again once all are there; False leaves the streaming version alone, which takes each
        site once, in the order of contents.
    restarts : int, default 10
        Starts: sites one after another in random orders, and random matchings; the largest product wins.
    max_iterations : int, default 100
        Rounds over all sites in one start.
    combine : {"auto", "hierarchical", "product", "barycenter"}, default "product"
        ``"product"``: Bayes' rule, the paper's. ``"hierarchical"`` discounts copies by how much sites differ,
        ``"barycenter"`` keeps the width of one site's posterior.

    Examples
    --------
    >>> AMPS(restarts=3).combine
    'product'
    """

    name: ClassVar[str] = "amps"
    summary: ClassVar[str] = "align components for the largest Bayes product, and multiply with the prior removed"
    needs: ClassVar[str] = "posteriors of one exponential family with their priors; of equal size unless `growth=True`"
    gives: ClassVar[str] = "a posterior of the same family, given all sites' data"
    paper: ClassVar[str] = "campbell2014"

    growth: bool = False
    n_components: Literal["process", "evidence"] = "process"
    concentration: float = 1.0
    revisit: bool = True
    restarts: int = 10
    max_iterations: int = 100
    combine: Combine = field(default="product", kw_only=True)

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield from (
            *(
                (option, is_count(getattr(self, option)), "a positive integer")
                for option in ("restarts", "max_iterations")
            ),
            ("n_components", self.n_components in ("process", "evidence"), "'process' or 'evidence'"),
            ("n_components", self.growth or self.n_components == "process", "'process' unless `growth=True`"),
            ("concentration", is_number(self.concentration) and self.concentration > 0, "a positive number"),
        )

    @property
    def matches_parts(self) -> bool:
        """Whether sizes may differ."""
        return self.growth

    @property
    def needs_equal_sizes(self) -> bool:
        """Whether all models must have as many components."""
        return not self.growth

    def site_needs(self) -> tuple[SiteNeed, ...]:
        """Return that every site must state its prior, and with `growth` a proper one and counts."""
        if self.growth:
            return SiteNeed("prior", "`growth=True`", WEIGHS_BY_PRIOR), SiteNeed("counts", "`growth=True`")
        return (SiteNeed("prior", "amps"),)

    def refuse(self, ensemble: Ensemble) -> list[Problem]:
        """Also refuse models of different sizes, unless `growth` says otherwise."""
        if not ensemble.family.has_width:
            text = f"amps multiplies posteriors, and {ensemble.family.name}s have no width"
            return [Problem("", text, "use 'spahm' or 'kl'")]
        reasons = super().refuse(ensemble)
        sizes = ensemble.voting().sizes
        if not self.growth and len(set(sizes.tolist())) > 1:
            text = f"amps needs models of equal size, found {sizes.tolist()} components"
            reasons.append(Problem("", text, "use `growth=True`, or method 'kl'"))
        return reasons

    def match(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        """Ascend on the log weight of the alignment from several starts; the objective is minus that."""
        if self.n_components == "evidence":
            return self._match_by_evidence(ensemble, rng, progress)
        objective, openings = self._objective(ensemble)
        # Two sites are one assignment problem, which the first start solves exactly.
        restarts = self.restarts if self.revisit and ensemble.n_sites > 2 else 1
        best, converged, history = np.zeros(0, dtype=np.int64), True, [-np.inf]
        for start, generator in enumerate(rng.spawn(restarts)):
            progress(start, restarts)
            # Random matchings reach optima that orders of sites do not lead to, and the other way round.
            if start % 2 == 0:
                order = np.arange(ensemble.n_sites) if start == 0 else generator.permutation(ensemble.n_sites)
                labels = grow(objective, order, openings)
            else:
                labels = scatter(ensemble.offsets, int(ensemble.sizes.max()) * (2 if self.growth else 1), generator)
            labels, is_stationary, values = self._ascend_until_stationary(objective, labels, openings, generator)
            if values[-1] > history[-1]:
                best, converged, history = labels, is_stationary, values
        progress(restarts, restarts)
        while self.revisit and converged and (swapped_labels := improve_by_exchange(objective, best)) is not None:
            best, converged, values = self._ascend_until_stationary(objective, swapped_labels, openings, rng)
            history += values
        return Assignment(
            best,
            -history[-1],
            -np.array(history),
            Status.CONVERGED if converged else Status.MAX_ITERATIONS,
            confidence=match_confidence(objective, best) if len(best) <= MAX_DIAGNOSED_ROWS else None,
        )

    def _match_by_evidence(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        """Ascend from the matching of the greatest evidence, its number of components kept."""
        progress(0, 1)
        objective, (labels, leaders) = self._objective(ensemble)[0], first_matching(ensemble)
        labels, converged, values = self._ascend_until_stationary(objective, labels, NO_NEW_GROUPS, rng)
        progress(1, 1)
        return Assignment(
            labels[leaders],
            -values[-1],
            -np.array(values),
            Status.CONVERGED if converged else Status.MAX_ITERATIONS,
            confidence=match_confidence(objective, labels) if len(labels) <= MAX_DIAGNOSED_ROWS else None,
        )

    def _ascend_until_stationary(
        self, objective: ValuedObjective, labels: Labels, openings: Openings, rng: np.random.Generator
    ) -> tuple[Labels, bool, list[float]]:
        """Return labels after rounds over all sites, whether the last round changed none, and the values on the way."""
        values, is_stationary = [objective.total(labels)], not self.revisit
        for _ in range(self.max_iterations):
            if is_stationary:
                break
            may_empty = openings is not NO_NEW_GROUPS
            labels, is_stationary = ascend(objective, labels, rng, 1, openings, empties_groups=may_empty)
            values.append(objective.total(labels))
        return labels, is_stationary, values

    def _objective(self, ensemble: Ensemble) -> tuple[ValuedObjective, Openings]:
        """Return what is raised, and how many components there may be."""
        groups = conjugate_groups(ensemble, np.zeros(ensemble.n_sites + 1))
        counts = ensemble.column("counts")
        if self.growth and counts is not None:
            return DirichletProcessGroups(groups, counts, self.concentration), Openings()
        return groups, Openings(max_groups=int(ensemble.sizes[0]))


@dataclass(frozen=True, eq=False)
class DirichletProcessGroups(ValuedGroups):
    """Log marginal likelihoods of groups under a Dirichlet process: a ``GroupObjective``.

    A group with N observations is worth A(lambda0 + sum e) - A(lambda0) + log(concentration) (1 - p0) + log Gamma(N),
    p0 being the probability that nobody observed it, at most exp(-N) for N expected observations. Below one observation
    Gamma is that of one, as there is one at least if there is any. (Campbell, Straub, Fisher and How 2015, for
    streams.)
    """

    groups: ConjugateGroups  # what the members say, without a level
    counts: Array  # expected observations of each local component (L,)
    concentration: float  # of the Dirichlet process

    @cached_property
    def pieces(self) -> Array:
        """What each component adds, with its observations (L, P + 1)."""
        return np.concatenate([self.groups.pieces, self.counts[:, None]], axis=1)

    @property
    def offsets(self) -> Labels:
        """Where each site starts, and the end (J + 1,)."""
        return self.groups.offsets

    def value(self, groups: GroupSums) -> Array:
        """Return what groups are worth (n,)."""
        count = groups.sums[:, -1]  # expected observations of each group (n,)
        # 1 - p0 with p0 = exp(-N): log(concentration) is paid as far as the component was observed at all.
        level = -np.expm1(-count) * np.log(self.concentration) + gammaln(np.maximum(count, 1.0))
        return self.groups.value(GroupSums(groups.sums[:, :-1], groups.mass)) + level
