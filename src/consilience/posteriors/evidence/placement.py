"""Placement of the components that a search leaves out: those of hardly any observations, and fits gone wrong.

A component of hardly any observations cannot be judged, so it takes no part in the search. A fit that blends two
components, or has a second copy of one, is left out by it (``strays``), since no two components of a site may be in one
group while groups are found. Afterwards, what such a component is mostly part of can be asked again: it is put into the
group that explains it best, even beside another one of its site, if all sites' mixtures side by side lose less of it so
than without it (``virtual_loss``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from consilience.checks import Labels
from consilience.matching.groups import group_sums
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.evidence.selection import N_ERRORS
from consilience.posteriors.evidence.virtual_loss import VirtualLoss, mean_and_error


def place_thin(ensemble: Ensemble, labels: Labels, is_thin: NDArray[np.bool_]) -> Labels:
    """Return a matching in which components that could not be judged are in groups, too (L,).

    Each site's take, in one assignment, those of the groups that it has no part in whose means explain them best.
    """
    labels, n_groups = labels.copy(), int(labels.max()) + 1
    centres = group_sums(ensemble.natural, labels, ensemble.row_weights, n_groups).means()
    for site in np.unique(ensemble.owner[is_thin]).tolist():
        of_site = np.arange(ensemble.offsets[site], ensemble.offsets[site + 1])
        rows, free = of_site[is_thin[of_site]], np.setdiff1d(np.arange(n_groups), labels[of_site])
        costs = ensemble.family.kl(centres[free], ensemble.natural[rows]).T  # (k, free)
        placed, columns = linear_sum_assignment(costs)
        labels[rows[placed]] = free[columns]
    return labels


def place_thin_if_better(ensemble: Ensemble, labels: Labels, is_thin: NDArray[np.bool_], loss: VirtualLoss) -> Labels:
    """Return the matching with components that could not be judged in groups, if it loses less by two standard errors.

    That they belong to any of the groups is not said before.
    """
    if not is_thin.any():
        return labels
    placed = place_thin(ensemble, labels, is_thin)
    gain, error = mean_and_error(loss.differences(labels, placed))
    return placed if gain > N_ERRORS * error else labels


def place_strays(ensemble: Ensemble, labels: Labels, is_thin: NDArray[np.bool_], loss: VirtualLoss) -> Labels:
    """Return the matching with each fit gone wrong in the group whose mean explains it best, if that pays.

    One after another, the best explained first. Loss is that of the virtual draws, without a margin: to leave a
    component out is no more cautious than to place it.

    Parameters
    ----------
    ensemble : Ensemble
        The models, L components in all.
    labels : Labels of shape (L,)
        A matching; -1 for what is left out.
    is_thin : ndarray of bool of shape (L,)
        Components that could not be judged, of which nothing is asked.
    loss : VirtualLoss
        Losses of matchings of these components.
    """
    strays = np.flatnonzero((labels < 0) & ~is_thin)
    if not strays.size:
        return labels
    centres = group_sums(ensemble.natural, labels, ensemble.row_weights, int(labels.max()) + 1).means()
    divergences = ensemble.family.kl(centres, ensemble.natural[strays])  # (G, n)
    order = np.argsort(divergences.min(axis=0), kind="stable")
    return loss.grown(labels, strays[order], divergences.argmin(axis=0)[order])
