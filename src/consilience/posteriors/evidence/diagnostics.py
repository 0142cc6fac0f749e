"""Matching by evidence, and the diagnostics of any matching: confidence, heterogeneity, outliers.

The evidence of a matching is that of ``random_effects``; ``selection`` says which matching is the best. The confidence
of a match is that of ``site_by_site.match_confidence`` under this evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from consilience.checks import Array, Labels
from consilience.core.status import Status
from consilience.matching.groups import consecutive, group_sums
from consilience.matching.site_by_site import match_confidence
from consilience.posteriors.ensemble import Ensemble, Stack
from consilience.posteriors.evidence.far_sites import describe_outliers, find_far_sites
from consilience.posteriors.evidence.likelihoods import likelihood_stack, virtual_loss_of
from consilience.posteriors.evidence.matching_prior import fit_lenient_prior
from consilience.posteriors.evidence.random_effects import RandomEffects
from consilience.posteriors.evidence.search import FIRST_HETEROGENEITIES, SearchedMatching
from consilience.posteriors.evidence.selection import N_ERRORS, Selection
from consilience.posteriors.evidence.virtual_loss import mean_and_error
from consilience.posteriors.method import Assignment, expand_assignment

MAX_DIAGNOSED_ROWS = 5000
"""Components up to which confidence and heterogeneity are computed. Chosen by hand for its cost."""
MIN_NAMED_PROBABILITY = 0.001
"""Probability from which on a number of components is named beside the selected one."""


def match_by_evidence(ensemble: Ensemble, max_components: int | None) -> Assignment:
    """Return the matching of the greatest evidence, with local fits gone wrong left out (label -1).

    Parameters
    ----------
    ensemble : Ensemble
        The models, L components in all.
    max_components : int, optional
        Largest number of components. Default: no limit.

    Returns
    -------
    Assignment
        Labels, minus the log evidence as objective, confidence, and as details the number with its support, the
        evidence of other numbers, the heterogeneity and the outliers. ``AT_CAPACITY`` where the limit is in use.
    """
    stack, rows = likelihood_stack(ensemble)
    selection = make_selection(ensemble, stack, rows, max_components)
    selected = selection.selected
    assignment = describe_matching(ensemble, stack, rows, selection, selected.matching)
    number: dict[str, Any] = {"prior": selected.prior_name, **assignment.details["number"]}
    if selected.losses:
        number["virtual_loss"] = selected.losses
    details = {**assignment.details, "number": number}
    status = Status.CONVERGED if selected.matching.converged else Status.MAX_ITERATIONS
    if max_components is not None and selected.matching.n_groups == max_components < len(rows):
        status = Status.AT_CAPACITY
    return Assignment(
        assignment.labels, assignment.objective, assignment.history, status, None, assignment.confidence, details
    )


def match_of_size(ensemble: Ensemble, n_components: int, by_divergence: Labels) -> Assignment | None:
    """Return the matching of a given number of components by evidence; None where that by divergence is better.

    The matching by evidence comes from the path of ``match_by_evidence``. It cannot place components of hardly any
    observations; each site's are assigned last, to groups that the site has not used. The one of the smaller virtual
    loss is kept, by the same draws, or for families without one that by evidence.

    Parameters
    ----------
    ensemble : Ensemble
        The models, L components in all.
    n_components : int
        Number of groups.
    by_divergence : Labels of shape (L,)
        The matching that minimises equation (6) of Claici et al. 2020.
    """
    stack, rows = likelihood_stack(ensemble)
    selection = make_selection(ensemble, stack, rows)
    found = selection.of_size(n_components)
    if found is None:
        return None
    assignment = describe_matching(ensemble, stack, rows, selection, found)
    labels = place_thin_rows(ensemble, assignment.labels, rows)
    loss = virtual_loss_of(ensemble)
    if loss is not None:
        difference, error = mean_and_error(loss.by_draw(labels) - loss.by_draw(by_divergence))
        if difference > N_ERRORS * error:
            return None
    return replace(assignment, labels=labels)


def place_thin_rows(ensemble: Ensemble, labels: Labels, judged: Labels) -> Labels:
    """Return a matching in which components that could not be judged are in groups, too (L,).

    Each site's take, in one assignment, those of the groups that it has no part in whose means explain them best.
    """
    labels, n_groups = labels.copy(), int(labels.max()) + 1
    is_thin = np.ones(len(labels), dtype=np.bool_)
    is_thin[judged] = False
    centres = group_sums(ensemble.natural, labels, ensemble.row_weights, n_groups).means()
    for site in np.unique(ensemble.owner[is_thin]).tolist():
        of_site = np.arange(ensemble.offsets[site], ensemble.offsets[site + 1])
        rows, free = of_site[is_thin[of_site]], np.setdiff1d(np.arange(n_groups), labels[of_site])
        costs = ensemble.family.kl(centres[free], ensemble.natural[rows]).T  # (k, free)
        placed, columns = linear_sum_assignment(costs)
        labels[rows[placed]] = free[columns]
    return labels


def make_selection(ensemble: Ensemble, stack: Stack, rows: Labels, max_components: int | None = None) -> Selection:
    """Return the selection among the matchings of the judged `rows` (L',) of an ensemble."""
    loss = virtual_loss_of(ensemble)
    return Selection(stack, None if loss is None else loss.of_rows(rows), max_components)


def describe_matching(
    ensemble: Ensemble, stack: Stack, rows: Labels, selection: Selection, found: SearchedMatching
) -> Assignment:
    """Return a matching of the judged `rows` (L',) as one of all components, with its diagnostics."""
    by_number = selection.evidence_by_number(found)
    evidences = np.array(list(by_number.values()))
    probabilities = np.exp(evidences - evidences.max())
    probabilities /= probabilities.sum()
    details: dict[str, Any] = {
        "path": [{"n_components": number, "criterion": -value} for number, value in by_number.items()],
        "number": {
            "probability": {
                str(number): round(float(probability), 4)
                for number, probability in zip(by_number, probabilities, strict=True)
                if probability >= MIN_NAMED_PROBABILITY
            }
        },
    }
    n_rows, stray_sites = len(ensemble.natural), stack.owner[found.labels < 0]
    if len(rows) < n_rows:
        details["left_out"] = n_rows - len(rows)
    confidence, diagnostics = _diagnostics(ensemble.names, stack, found, stray_sites)
    assignment = Assignment(
        found.labels,
        -found.evidence,
        np.array([-found.evidence]),
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
    stack, rows = likelihood_stack(ensemble)
    stack_labels = consecutive(labels[rows])  # (L',): of the components that are judged
    problem = RandomEffects(stack)
    prior = fit_lenient_prior(np.bincount(stack_labels[stack_labels >= 0]), stack.n_sites)
    start = np.exp(np.mean(np.log(FIRST_HETEROGENEITIES))) * problem.unit
    heterogeneity = problem.fit_heterogeneity(stack_labels, start, prior)
    found = SearchedMatching(stack_labels, heterogeneity, prior, 0.0, True)
    confidence, diagnostics = _diagnostics(ensemble.names, stack, found, np.zeros(0, dtype=np.int64))
    assignment = expand_assignment(Assignment(stack_labels, confidence=confidence), rows, len(labels))
    return assignment.confidence, diagnostics


def _diagnostics(
    names: Sequence[str], stack: Stack, found: SearchedMatching, stray_sites: Labels
) -> tuple[Array | None, dict[str, Any]]:
    """Return the confidence of each match (L',) and, as JSON values, heterogeneity (B,) and outliers."""
    labels = found.labels
    outliers = describe_outliers(tuple(names), stray_sites, find_far_sites(stack, labels))
    has_copies = bool(np.bincount(labels[labels >= 0], minlength=1).max() > 1)
    heterogeneity = found.heterogeneity.tolist() if has_copies else [None] * len(found.heterogeneity)
    diagnostics: dict[str, Any] = {"heterogeneity": dict(zip(stack.family.part_names, heterogeneity, strict=True))}
    if outliers:
        diagnostics["outliers"] = outliers
    if len(labels) > MAX_DIAGNOSED_ROWS:
        return None, diagnostics
    return match_confidence(RandomEffects(stack).groups(found.heterogeneity, found.prior), labels), diagnostics
