"""What each local component says about the component it is a copy of, given that copies differ between sites.

A site's posterior is about its own population. Copies of one component differ by more than their posteriors admit, so
each is worth fewer observations of the common component than it states: 1 / n' = 1 / n + h, a discount for each block
of sufficient statistics. The heterogeneity h is estimated from copies that were matched.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

from consilience.checks import Array, Labels
from consilience.families import EvidenceFamily
from consilience.families.ensemble import Ensemble, Stack
from consilience.methods.combine import group_sums

_GRID = np.linspace(np.log(1e-4), np.log(1e8), 19)
_TRUSTED = 0.9
_ROUNDS = 2
_STEPS = 8


def likelihood_stack(ensemble: Ensemble) -> tuple[Stack, Labels]:
    """Return what the sites' data say about their components, and the rows of the ensemble that say anything.

    Sites' priors are taken off, since they are no evidence: one that all sites share would make unlike components
    alike. A component whose data alone do not make a member of the family (fewer observations than dimensions) says
    too little to be matched by, and is left out; where that would be most of them, priors stay.
    """
    family, natural = ensemble.family.evidence_form(ensemble.natural)
    rows = np.arange(len(natural))
    priors = [posterior.prior for posterior in ensemble.posteriors]
    if family == ensemble.family and all(prior is not None for prior in priors):
        own = np.stack([prior for prior in priors if prior is not None])[ensemble.owner]
        alone = family.without_prior(natural, own)
        faulty = {row for row, _ in family.check(alone)}
        proper = np.array([row not in faulty for row in rows.tolist()], dtype=bool)
        proper[proper] = np.all(family.information(alone[proper]) >= family.enough, axis=1)
        if 2 * proper.sum() > len(rows):
            natural, rows = alone, np.flatnonzero(proper)
    sizes = np.bincount(ensemble.owner[rows], minlength=ensemble.n_sites)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    return Stack(family, natural[rows], offsets, ensemble.row_weights[rows]), rows


def discounted(stack: Stack, heterogeneity: Array) -> Stack:
    """Return the stack with every component's information n turned into n / (1 + n h)."""
    return Stack(
        stack.family, stack.family.discounted(stack.natural, heterogeneity), stack.offsets, stack.row_weights
    )


def heterogeneity(stack: Stack, labels: Labels, centres: Array, start: Array | None = None) -> Array:
    """Return h (B,): how much copies of one component differ between sites, per block of sufficient statistics.

    Each matched component is predicted from the other members of its group, discounted and averaged: the loss is minus
    the log density of its centre. The best h has the lowest mean loss over the nine tenths of the components that fit
    best, so that components matched wrongly, or fitted badly at their site, have no say.

    Parameters
    ----------
    stack
        The components (L, P).
    labels
        Group of each (L,).
    centres
        ``stack.family.centre_statistics`` of them (L, P).
    start
        Values to begin with (B,).
    """
    family = stack.family
    amount = np.median(family.information(stack.natural), axis=0)
    members = np.bincount(labels[labels >= 0])
    told = (labels >= 0) & (members[labels] >= 2)
    best = 1e-4 / amount if start is None else start.copy()
    if not np.any(told):
        return best

    def loss(values: Array) -> float:
        losses = _losses(family, stack.natural[told], labels[told], centres[told], values)
        trusted = int(np.ceil(_TRUSTED * losses.size))
        return float(np.partition(losses, trusted - 1)[:trusted].mean())

    for _ in range(_ROUNDS):
        for block in range(len(best)):

            def along(power: float, block: int = block) -> float:
                trial = best.copy()
                trial[block] = np.exp(power) / amount[block]
                return loss(trial)

            grid = _GRID if start is None else np.log(best[block] * amount[block]) + np.linspace(-2.0, 2.0, 5)
            values = [along(power) for power in grid]
            place = int(np.argmin(values))
            low, high = grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]
            found = minimize_scalar(along, bounds=(low, high), method="bounded", options={"maxiter": _STEPS})
            best[block] = np.exp(found.x if found.fun < values[place] else grid[place]) / amount[block]
        start = best
    return best


def _losses(family: EvidenceFamily, natural: Array, labels: Labels, centres: Array, values: Array) -> Array:
    """Return minus the log density of each row's centre, predicted from the rest of its group of at least two."""
    discount = family.discounted(natural, values)
    _, groups = np.unique(labels, return_inverse=True)
    sums = group_sums(discount, groups, np.ones(len(labels)), int(groups.max()) + 1)
    others = sums.mass[groups] - 1.0
    rest = (sums.sums[groups] - discount) / others[:, None]
    # the mean of m copies is itself uncertain: the next copy differs from it by 1 + 1 / m times what one differs
    share = np.repeat((others / (others + 1.0))[:, None], len(family.part_names), axis=1)
    rest = family.reweighted(rest, share)
    losses: Array = family.log_normalizer(rest) - np.einsum("np,np->n", centres, rest)
    return losses
