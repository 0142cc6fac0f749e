"""What the sites' data say about their components: posteriors with the sites' priors taken off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.families.base import Family
from consilience.families.chunks import row_chunks
from consilience.posteriors.ensemble import Ensemble, Stack
from consilience.posteriors.evidence.search import steady_order
from consilience.posteriors.evidence.virtual_loss import VirtualLoss


def likelihood_stack(ensemble: Ensemble) -> tuple[Stack, Labels]:
    """Return what the sites' data say about their components, and the rows of the ensemble that say anything.

    Sites' priors are taken off, since they are no evidence: one that all sites share would make unlike components
    alike. A component whose data alone do not make a member of the family, or say less than is ``enough`` to be judged
    by, is left out; where that would be at least half of them, priors stay.

    Returns
    -------
    tuple of (Stack, Labels)
        The components that are judged (L', P), and their rows in the ensemble (L',).
    """
    family, natural = ensemble.family.evidence_form(ensemble.natural)
    stack = Stack(family, natural, ensemble.offsets, ensemble.row_weights)
    # Families whose evidence form is another one (points, say) state no prior in that form.
    priors = [posterior.prior for posterior in ensemble.unordered]
    if family == ensemble.family and all(prior is not None for prior in priors):
        site_priors = np.stack([prior for prior in priors if prior is not None])[ensemble.owner]  # (L, P)
        without_prior, is_judged = _without_priors(stack, site_priors)
        if 2 * is_judged.sum() > len(is_judged):
            rows = np.flatnonzero(is_judged)
            return without_prior.take(rows), rows
    return stack, np.arange(len(natural))


def _without_priors(stack: Stack, site_priors: Array) -> tuple[Stack, NDArray[np.bool_]]:
    """Return components without their sites' priors (L, P), and which of them say enough to be judged (L,)."""
    family = stack.family
    without_prior = family.without_prior(stack.natural, site_priors)
    improper = {row for row, _ in family.check(without_prior)}
    is_judged = np.array([row not in improper for row in range(len(without_prior))], dtype=bool)
    is_judged[is_judged] = np.all(family.information(without_prior[is_judged]) >= family.enough, axis=1)
    return replace(stack, natural=without_prior), is_judged


def virtual_loss_of(ensemble: Ensemble, rows: Labels | None = None) -> VirtualLoss | None:
    """Return the virtual losses of matchings of components; None for families without densities of data.

    Components count by ``observation_weights``, and are drawn from in an order that tiny changes do not change.

    Parameters
    ----------
    ensemble : Ensemble
        The models, L components in all.
    rows : Labels of shape (n,), optional
        The components of which they are, ascending. Default: all.
    """
    chosen = slice(None) if rows is None else rows
    densities = _densities(ensemble.family, ensemble.natural[chosen])
    if densities is None:
        return None
    order = steady_order(ensemble.natural, ensemble.owner)
    if rows is not None:
        order = np.argsort(np.argsort(order)[rows])
    weights, describes_data = observation_weights(ensemble)[chosen], ensemble.family.describes_data
    return VirtualLoss(*densities, weights, describes_data=describes_data, order=order)


def _densities(family: Family, natural: Array) -> tuple[Array, Array] | None:
    """Return the means and covariances (or variances) of rows (L, P), one chunk after another; None without."""
    chunks = list(row_chunks(len(natural), natural.shape[1]))
    parts = family.plug_in(natural[chunks[0]]) if chunks else None
    if parts is None or len(chunks) == 1:
        return parts
    means, covariances = (np.empty((len(natural), *part.shape[1:])) for part in parts)
    for rows in chunks:
        parts = family.plug_in(natural[rows])
        assert parts is not None  # noqa: S101  (the first rows had them)
        means[rows], covariances[rows] = parts
    return means, covariances


def observation_weights(ensemble: Ensemble) -> Array:
    """Return the observations behind all components (L,), in any unit: their counts times the weights of their sites.

    Where sites state no counts, their mixture weights, or all alike.
    """
    mass = ensemble.column("counts")
    if mass is None:
        mass = ensemble.column("weights")
    if mass is None or mass.sum() <= 0:
        mass = np.ones(len(ensemble.natural))
    weights: Array = mass * ensemble.row_weights
    return weights
