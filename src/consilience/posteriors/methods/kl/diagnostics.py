"""Matching by evidence, and the diagnostics of a matching: confidence, heterogeneity, outliers.

The number of components is selected by evidence (``choose_number``); local fits gone wrong are then left out
(``outliers.find_blends``) and the selection is refined without them. The confidence of a match is
1 / (1 + exp(-lambda)), with lambda the log odds of the matching against its site's best matching without that match.
It is computed given all other matches, so it knows nothing of fits that went wrong before any matching.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.matching.site_by_site import match_probabilities
from consilience.posteriors.ensemble import Ensemble, StackLike
from consilience.posteriors.method import Assignment, expand_assignment
from consilience.posteriors.methods.kl.choose_number import SelectedNumber, refine_until_stationary, select_n_components
from consilience.posteriors.methods.kl.evidence import Evidence
from consilience.posteriors.methods.kl.heterogeneity import (
    discount_by_heterogeneity,
    estimate_heterogeneity,
    likelihood_stack,
)
from consilience.posteriors.methods.kl.outliers import describe_outliers, find_blends, find_far_sites

MAX_DIAGNOSED_ROWS = 5000
"""Components up to which confidence and heterogeneity are computed. Chosen by hand for its cost."""


def match_by_evidence(
    ensemble: Ensemble, limit: int, restarts: int, rng: np.random.Generator, progress: Progress
) -> Assignment:
    """Return the matching of the greatest evidence, with local fits gone wrong left out (label -1).

    Parameters
    ----------
    ensemble : Ensemble
        The models, L components in all.
    limit : int
        Largest number of components.
    restarts : int
        Fresh starts for the first matching.
    rng, progress
        As for any method.

    Returns
    -------
    Assignment
        Labels, minus the log evidence as objective, confidence, and as details the path over numbers of components,
        the heterogeneity and the outliers. ``AT_CAPACITY`` where the limit was the best number.
    """
    stack, rows = likelihood_stack(ensemble)
    # Components that cannot be judged by their data were left out, so there may be fewer than the limit.
    limit = min(limit, len(rows))
    selected = select_n_components(stack, limit, rng, restarts, progress)
    return settle_number(stack, rows, ensemble.names, selected, limit, rng, len(ensemble.natural))


def settle_number(
    stack: StackLike,
    rows: Labels,
    names: Sequence[str],
    selected: SelectedNumber,
    limit: int,
    rng: np.random.Generator,
    n_rows: int,
) -> Assignment:
    """Return the matching of a selected number after local fits gone wrong were left out, with its diagnostics.

    Parameters
    ----------
    stack : StackLike
        What the sites' data say (L', P), in memory or in shards.
    rows : Labels of shape (L',)
        Which of all components these are.
    names : sequence of str of length J
        Names of the sites.
    selected : SelectedNumber
        The matching of the greatest evidence.
    limit : int
        Largest number of components.
    rng : Generator
        Draws seeds and orders.
    n_rows : int
        Number L of all components.
    """
    details: dict[str, Any] = {}
    if len(rows) < n_rows:
        details["left_out"] = n_rows - len(rows)
    blend_rows = find_blends(stack, selected.evidence, selected.heterogeneity, selected.labels)
    blend_sites = stack.owner[blend_rows]
    # The number is selected again without the fits gone wrong, from the matching that is left.
    if blend_rows.size:
        others = np.delete(np.arange(len(rows)), blend_rows)
        stack, rows = stack.take(others), rows[others]
        labels = np.unique(selected.labels[others], return_inverse=True)[1]
        selected = refine_until_stationary(stack, replace(selected, labels=labels, converged=False), limit, rng)
    details["path"] = [{"n_components": g, "criterion": -value} for g, value in sorted(selected.path.items())]
    confidence, diagnostics = _diagnostics(
        names, stack, selected.evidence, selected.heterogeneity, selected.labels, blend_sites
    )
    status = Status.CONVERGED if selected.converged else Status.MAX_ITERATIONS
    if selected.converged and int(selected.labels.max()) + 1 == limit < len(rows):
        status = Status.AT_CAPACITY
    assignment = Assignment(
        selected.labels,
        -selected.history[-1],
        -np.array(selected.history),
        status,
        confidence=confidence,
        details=details | diagnostics,
    )
    return expand_assignment(assignment, rows, n_rows)


def diagnose(ensemble: Ensemble, labels: Labels) -> tuple[Array | None, dict[str, Any]]:
    """Return the confidence of each match (L,) of any method's matching, and its other diagnostics.

    Ensembles of more than 5,000 components have none: None and an empty dictionary.
    """
    if len(labels) > MAX_DIAGNOSED_ROWS:
        return None, {}
    return diagnose_stack(*likelihood_stack(ensemble), ensemble.names, labels)


def diagnose_stack(
    stack: StackLike, rows: Labels, names: Sequence[str], labels: Labels
) -> tuple[Array | None, dict[str, Any]]:
    """Return what ``diagnose`` does; `stack` holds some `rows` (L',) of all components, in memory or in shards."""
    stack_labels = np.unique(labels[rows], return_inverse=True)[1]  # (L',): of the components that are judged
    heterogeneity = estimate_heterogeneity(stack, stack_labels)
    evidence = discount_by_heterogeneity(stack, heterogeneity)
    confidence, diagnostics = _diagnostics(
        names, stack, evidence, heterogeneity, stack_labels, np.zeros(0, dtype=np.int64)
    )
    return expand_assignment(Assignment(stack_labels, confidence=confidence), rows, len(labels)).confidence, diagnostics


def _diagnostics(
    names: Sequence[str],
    stack: StackLike,
    evidence: Evidence,
    heterogeneity: Array,
    labels: Labels,
    blend_sites: Labels,
) -> tuple[Array | None, dict[str, Any]]:
    """Return the confidence of each match (L',) and, as JSON values, heterogeneity (B,) and outliers."""
    outliers = describe_outliers(tuple(names), blend_sites, find_far_sites(stack, labels))
    diagnostics: dict[str, Any] = {
        "heterogeneity": dict(zip(stack.family.part_names, heterogeneity.tolist(), strict=True)),
    }
    if outliers:
        diagnostics["outliers"] = outliers
    confidence = match_probabilities(evidence.groups, labels) if len(labels) <= MAX_DIAGNOSED_ROWS else None
    return confidence, diagnostics
