"""Heterogeneity between sites: how much copies of one component differ, and the discount that allows for it.

A site's posterior is about its own population. Copies of one component differ by more than their posteriors admit, so
each is worth fewer observations of the common component than it states. For information n of a block b of sufficient
statistics and heterogeneity h_b,

    1 / n' = 1 / n + h_b,

as in the random-effects models of meta-analysis, where 1 / n is the variance within a site and h_b the one between. h
is the maximum of the evidence of a matching, block by block, by a grid in log h and a bounded scalar search.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from consilience.checks import Array, Labels
from consilience.posteriors.ensemble import Ensemble, Stack, StackLike
from consilience.posteriors.methods.kl.evidence import Evidence

MAX_EFFECTIVE_SITES = 25.0
"""As how many sites all sites count at most: evidence is taken to the power 1 / (1 + J / 25).

Chosen on seeds 0 to 5 of the simulations of docs/adr/0008 and on the demo; seeds 6 to 9 judge it there. Over a hundred
sites the power is so low that components which differ less than their copies are merged.
"""
WIDE_LOG_GRID = np.linspace(-9.0, 9.0, 7)
"""First values of log h around that of the median information: steps of 3. Chosen by hand."""
NARROW_LOG_GRID = np.array([-2.0, 0.0, 2.0])
"""Values of log h around an earlier estimate. Chosen by hand; the grid grows where the best is at its end."""
MAX_LOG_HETEROGENEITY = 21.0
"""Where a growing grid ends: a factor of a billion from the start, which is no heterogeneity or nothing but it."""
SCALAR_SEARCH_STEPS = 6
"""Evaluations of the scalar search between two grid points. Chosen by hand for its cost."""


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
    priors = [posterior.prior for posterior in ensemble.posteriors]
    if family == ensemble.family and all(prior is not None for prior in priors):
        site_priors = np.stack([prior for prior in priors if prior is not None])[ensemble.owner]  # (L, P)
        without_prior, is_judged = without_priors(stack, site_priors)
        if is_mostly_judged(is_judged):
            rows = np.flatnonzero(is_judged)
            return without_prior.take(rows), rows
    return stack, np.arange(len(natural))


def without_priors(stack: Stack, site_priors: Array) -> tuple[Stack, NDArray[np.bool_]]:
    """Return components without their sites' priors (L, P), and which of them say enough to be judged (L,)."""
    family = stack.family
    without_prior = family.without_prior(stack.natural, site_priors)
    improper = {row for row, _ in family.check(without_prior)}
    is_judged = np.array([row not in improper for row in range(len(without_prior))], dtype=bool)
    is_judged[is_judged] = np.all(family.information(without_prior[is_judged]) >= family.enough, axis=1)
    return replace(stack, natural=without_prior), is_judged


def is_mostly_judged(is_judged: NDArray[np.bool_]) -> bool:
    """Return whether more than half of the components can be judged by their data alone, so that priors go."""
    return bool(2 * is_judged.sum() > len(is_judged))


def discount_by_heterogeneity(stack: StackLike, heterogeneity: Array) -> Evidence:
    """Return the evidence of matchings of the components, each discounted by the heterogeneity.

    Discounted copies still differ in ways that one number per block does not describe (a shift along one axis, say),
    and the more sites there are, the surer such a difference makes its own component of them. Their evidence is taken
    to a power, 1 / (1 + J / 25), which is what evidence for a model that holds only roughly is worth (coarsening,
    Miller & Dunson 2019): however many the sites, together they count as no more than 25.

    Parameters
    ----------
    stack : StackLike
        What the sites' data say (L, P), not discounted.
    heterogeneity : Array of shape (B,)
        h of each block of sufficient statistics.
    """
    power = 1.0 / (1.0 + stack.n_sites / MAX_EFFECTIVE_SITES)
    return _evidence(stack, heterogeneity, power)


def estimate_heterogeneity(stack: StackLike, labels: Labels, start: Array | None = None) -> Array:
    """Return h (B,), how much copies of one component differ between sites: that of the greatest evidence.

    Every block of sufficient statistics has its own; they are found one after the other, on a grid of log h and then
    between its points.

    Parameters
    ----------
    stack : StackLike
        What the sites' data say (L, P), not discounted.
    labels : Labels of shape (L,)
        A matching.
    start : Array of shape (B,), optional
        Values to search near. Default: around the inverse of the median information, widely.
    """
    if start is None:
        information = np.concatenate(stack.map(_information))  # (L, B)
        estimate, grid = 1.0 / np.median(information, axis=0), WIDE_LOG_GRID
    else:
        estimate, grid = start.copy(), NARROW_LOG_GRID
    # One pass over the blocks, not to convergence: matching and h are refitted in turn by ``refine_until_stationary``.
    for block in range(len(estimate)):

        def negative_evidence(log_factor: float, block: int = block) -> float:
            trial = estimate.copy()
            trial[block] *= np.exp(log_factor)
            # At full power: h is about copies of one component, where coarsening is about the number of components.
            return -_evidence(stack, trial, 1.0).likelihood(labels)

        log_factors = list(grid)
        values = [negative_evidence(log_factor) for log_factor in log_factors]
        step = log_factors[1] - log_factors[0]  # in nats of h
        # The grid grows until its best point is inside, so that a bracket for the scalar search exists.
        while np.argmin(values) == len(values) - 1 and log_factors[-1] < MAX_LOG_HETEROGENEITY:
            log_factors.append(log_factors[-1] + step)
            values.append(negative_evidence(log_factors[-1]))
        while np.argmin(values) == 0 and log_factors[0] > -MAX_LOG_HETEROGENEITY:
            log_factors.insert(0, log_factors[0] - step)
            values.insert(0, negative_evidence(log_factors[0]))
        lowest = int(np.argmin(values))
        low, high = log_factors[max(lowest - 1, 0)], log_factors[min(lowest + 1, len(log_factors) - 1)]
        search = minimize_scalar(
            negative_evidence, bounds=(low, high), method="bounded", options={"maxiter": SCALAR_SEARCH_STEPS}
        )
        estimate[block] *= np.exp(search.x if search.fun < values[lowest] else log_factors[lowest])
    return estimate


def _evidence(stack: StackLike, heterogeneity: Array, power: float) -> Evidence:
    """Return the evidence of discounted components, taken to a power (which multiplies their weights)."""
    return Evidence.of(stack.transform(_discounted, heterogeneity, power))


def _discounted(stack: Stack, heterogeneity: Array, power: float) -> Stack:
    """Return one shard discounted, its weights multiplied by a power."""
    family, natural = stack.family, stack.natural
    observed = family.observed(natural, heterogeneity)
    return Stack(family, family.discounted(natural, heterogeneity), stack.offsets, power * stack.row_weights, observed)


def _information(stack: Stack) -> Array:
    """Return the information of each component of one shard (n, B)."""
    return stack.family.information(stack.natural)
