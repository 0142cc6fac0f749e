"""What is known about a matching: its evidence, how sure each match is, and what does not belong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.matching.site_by_site import match_probabilities
from consilience.posteriors.ensemble import Ensemble, Stack
from consilience.posteriors.method import Assignment, expand_assignment
from consilience.posteriors.methods.kl.choose_number import refine_until_stationary, select_n_components
from consilience.posteriors.methods.kl.evidence import Evidence
from consilience.posteriors.methods.kl.heterogeneity import calibrated, heterogeneity, likelihood_stack
from consilience.posteriors.methods.kl.outliers import describe_outliers, find_blends, find_far_sites

_JUDGED_ROWS = 5000


def match_by_evidence(
    ensemble: Ensemble, limit: int, restarts: int, rng: np.random.Generator, progress: Progress
) -> Assignment:
    """Return the matching of the greatest evidence, with what did not belong left out.

    Parameters
    ----------
    ensemble
        The models.
    limit
        Largest number of components.
    restarts
        Fresh starts for the first matching.
    rng, progress
        As for any method.
    """
    stack, rows = likelihood_stack(ensemble)
    limit = min(limit, len(rows))
    details: dict[str, Any] = {}
    if len(rows) < len(ensemble.natural):
        details["left_out"] = len(ensemble.natural) - len(rows)
    found = select_n_components(stack, limit, rng, restarts, progress)
    odd = find_blends(stack, found.evidence, found.heterogeneity, found.labels)
    blended = stack.owner[odd]
    if odd.size:
        kept = np.delete(np.arange(len(rows)), odd)
        stack, rows = stack.take(kept), rows[kept]
        labels = np.unique(found.labels[kept], return_inverse=True)[1]
        found = refine_until_stationary(stack, replace(found, labels=labels, converged=False), limit, rng)
    details["path"] = [{"n_components": g, "criterion": -value} for g, value in sorted(found.path.items())]
    confidence, judged = _judgement(ensemble, stack, found.evidence, found.heterogeneity, found.labels, blended)
    status = Status.CONVERGED if found.converged else Status.MAX_ITERATIONS
    if found.converged and int(found.labels.max()) + 1 == limit < len(rows):
        status = Status.AT_CAPACITY
    matched = Assignment(
        found.labels,
        -found.history[-1],
        -np.array(found.history),
        status,
        confidence=confidence,
        details=details | judged,
    )
    return expand_assignment(matched, rows, len(ensemble.natural))


def diagnose(ensemble: Ensemble, labels: Labels) -> tuple[Array | None, dict[str, Any]]:
    """Return the confidence of each match (L,) of a matching found in any way, and what else is known about it.

    Ensembles of more than 5,000 components are not judged.
    """
    if len(labels) > _JUDGED_ROWS:
        return None, {}
    stack, rows = likelihood_stack(ensemble)
    own = np.unique(labels[rows], return_inverse=True)[1]
    amount = heterogeneity(stack, own)
    evidence = calibrated(stack, amount)
    confidence, judged = _judgement(ensemble, stack, evidence, amount, own, np.zeros(0, dtype=np.int64))
    return expand_assignment(Assignment(own, confidence=confidence), rows, len(labels)).confidence, judged


def _judgement(
    ensemble: Ensemble, stack: Stack, evidence: Evidence, amount: Array, labels: Labels, blended: Labels
) -> tuple[Array | None, dict[str, Any]]:
    outliers = describe_outliers(ensemble.names, blended, find_far_sites(stack, labels))
    judged: dict[str, Any] = {
        "heterogeneity": dict(zip(stack.family.part_names, amount.tolist(), strict=True)),
    }
    if outliers:
        judged["outliers"] = outliers
    sure = match_probabilities(evidence.groups, labels) if len(labels) <= _JUDGED_ROWS else None
    return sure, judged
