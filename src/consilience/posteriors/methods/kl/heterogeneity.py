"""What each local component says about the component it is a copy of, given that copies differ between sites.

A site's posterior is about its own population. Copies of one component differ by more than their posteriors admit, so
each is worth fewer observations of the common component than it states: 1 / n' = 1 / n + h, a discount for each block
of sufficient statistics. The heterogeneity h is estimated from copies that were matched.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

from consilience.checks import Array, Labels
from consilience.posteriors.ensemble import Ensemble, Stack
from consilience.posteriors.methods.kl.evidence import Evidence

_SITES_AT_MOST = 25.0
_EVERYWHERE = np.linspace(-9.0, 9.0, 7)
_NEAR = np.array([-2.0, 0.0, 2.0])
_LARGEST = 21.0
_STEPS = 6


def likelihood_stack(ensemble: Ensemble) -> tuple[Stack, Labels]:
    """Return what the sites' data say about their components, and the rows of the ensemble that say anything.

    Sites' priors are taken off, since they are no evidence: one that all sites share would make unlike components
    alike. A component whose data alone do not make a member of the family, or say less than is ``enough`` to be judged
    by, is left out; where that would be most of them, priors stay.
    """
    family, natural = ensemble.family.evidence_form(ensemble.natural)
    stack = Stack(family, natural, ensemble.offsets, ensemble.row_weights)
    priors = [posterior.prior for posterior in ensemble.posteriors]
    if family == ensemble.family and all(prior is not None for prior in priors):
        own = np.stack([prior for prior in priors if prior is not None])[ensemble.owner]
        alone = family.without_prior(natural, own)
        faulty = {row for row, _ in family.check(alone)}
        proper = np.array([row not in faulty for row in range(len(natural))], dtype=bool)
        proper[proper] = np.all(family.information(alone[proper]) >= family.enough, axis=1)
        if 2 * proper.sum() > len(natural):
            rows = np.flatnonzero(proper)
            return Stack(family, alone, ensemble.offsets, ensemble.row_weights).take(rows), rows
    return stack, np.arange(len(natural))


def calibrated(stack: Stack, amount: Array) -> Evidence:
    """Return what matchings of the components are judged by, given the heterogeneity (B,).

    Discounted copies still differ in ways that one number per block does not describe (a shift along one axis, say),
    and the more sites there are, the surer such a difference makes its own component of them. Their evidence is taken
    to a power, 1 / (1 + J / 25), which is what evidence for a model that holds only roughly is worth (Miller & Dunson
    2019): however many the sites, together they count as no more than 25.

    Parameters
    ----------
    stack
        What the sites' data say (L, P).
    amount
        Heterogeneity (B,).
    """
    power = 1.0 / (1.0 + stack.n_sites / _SITES_AT_MOST)
    return _evidence(stack, amount, power)


def heterogeneity(stack: Stack, labels: Labels, start: Array | None = None) -> Array:
    """Return h (B,), how much copies of one component differ between sites: that of the greatest evidence.

    Every block of sufficient statistics has its own; they are found one after the other, on a grid of powers and then
    between its points.

    Parameters
    ----------
    stack
        What the sites' data say (L, P).
    labels
        A matching (L,).
    start
        Values to search near (B,); None searches everywhere.
    """
    if start is None:
        best, grid = 1.0 / np.median(stack.family.information(stack.natural), axis=0), _EVERYWHERE
    else:
        best, grid = start.copy(), _NEAR
    for block in range(len(best)):

        def against(power: float, block: int = block) -> float:
            trial = best.copy()
            trial[block] *= np.exp(power)
            return -_evidence(stack, trial, 1.0).likelihood(labels)

        powers = list(grid)
        values = [against(power) for power in powers]
        step = powers[1] - powers[0]
        while np.argmin(values) == len(values) - 1 and powers[-1] < _LARGEST:
            powers.append(powers[-1] + step)
            values.append(against(powers[-1]))
        while np.argmin(values) == 0 and powers[0] > -_LARGEST:
            powers.insert(0, powers[0] - step)
            values.insert(0, against(powers[0]))
        place = int(np.argmin(values))
        low, high = powers[max(place - 1, 0)], powers[min(place + 1, len(powers) - 1)]
        found = minimize_scalar(against, bounds=(low, high), method="bounded", options={"maxiter": _STEPS})
        best[block] *= np.exp(found.x if found.fun < values[place] else powers[place])
    return best


def _evidence(stack: Stack, amount: Array, power: float) -> Evidence:
    natural = stack.family.discounted(stack.natural, amount)
    discounted = Stack(stack.family, natural, stack.offsets, power * stack.row_weights)
    return Evidence.of(discounted, stack.family.observed(stack.natural, amount))
