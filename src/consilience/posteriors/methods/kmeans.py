"""K-means baseline: Bregman hard clustering of all components by KL divergence, whichever model they are of.

Algorithm 1 of Banerjee et al. 2005: min over centres and labels of sum_l w_l KL(c_label(l) || theta_l), by nearest
centres and barycenters in turn from several k-means++ seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from consilience.checks import is_count, is_number
from consilience.core.details import Status
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.families import Direction
from consilience.posteriors.details import PosteriorDetails
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.evidence.diagnostics import count_violations, number_by_evidence
from consilience.posteriors.method import Assignment, Method, match_informed
from consilience.posteriors.methods.kl.problem import KLProblem, best_clusters


@dataclass(frozen=True)
class KMeans(Method):
    """Bregman hard clustering (Banerjee et al. 2005, algorithm 1) of all local components.

    It may put two components of one model into one cluster, which KL-fusion never does; the number of such pairs is
    reported as ``violations``.

    Parameters
    ----------
    n_components : int, optional
        Number of clusters; None takes the number of the greatest evidence, as ``KLFusion`` finds it.
    direction : {"forward", "reverse"}, default "forward"
        ``"forward"``: KL(fused || local); ``"reverse"``: KL(local || fused). Divergence and average go together.
    restarts : int, default 8
        Starts from other seeds; the lowest objective wins.
    max_iterations : int, default 100
        Steps at most in one start.
    min_matching_count : float, default 1.0
        Local components with fewer effective observations are not matched (label -1), whatever `min_count` of `fuse`
        lets in.
    combine : {"auto", "hierarchical", "product", "barycenter"}, default "auto"
        How the members of a cluster are averaged in the end: docs/concepts/average.md. Those of one site count as one
        copy.
    """

    name: ClassVar[str] = "kmeans"
    summary: ClassVar[str] = "cluster all components by KL divergence, whoever they come from (a baseline)"
    needs: ClassVar[str] = "posteriors of one exponential family; any number of components per site"
    gives: ClassVar[str] = "a posterior of the same family"
    paper: ClassVar[str] = "banerjee2005"

    n_components: int | None = None
    direction: Direction = "forward"
    restarts: int = 8
    max_iterations: int = 100
    min_matching_count: float = 1.0

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        for option in ("n_components", "restarts", "max_iterations"):
            value = getattr(self, option)
            is_default = option == "n_components" and value is None
            yield (option, is_default or is_count(value), "a positive integer")
        yield from (
            ("min_matching_count", is_number(self.min_matching_count), "a number that is not negative"),
            ("direction", self.direction in ("forward", "reverse"), "'forward' or 'reverse'"),
        )

    @property
    def average_direction(self) -> Direction:
        """The direction of the objective is the direction of the average."""
        return self.direction

    @property
    def finds_number(self) -> bool:
        """Whether no number was given."""
        return self.n_components is None

    def match(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        """Alternate nearest centres and barycenters from several starts and keep the lowest objective."""
        return match_informed(
            ensemble, self.min_matching_count, lambda informed_ensemble: self._match(informed_ensemble, rng, progress)
        )

    def _match(self, ensemble: Ensemble, rng: np.random.Generator, progress: Progress) -> Assignment:
        problem = KLProblem.of(ensemble, self.direction)
        n_clusters = min(self.n_components or number_by_evidence(ensemble), len(ensemble.natural))
        best = best_clusters(problem, n_clusters, rng, self.restarts, self.max_iterations, progress)
        status = Status.CONVERGED if best.converged else Status.MAX_ITERATIONS
        details: PosteriorDetails = {"violations": count_violations(ensemble, best.labels)}
        return Assignment(best.labels, best.objective, np.array(best.history), status, details=details)
