"""The hierarchical average: matched components under random effects between sites.

Copies l of a component come from sites that differ, so none is about the component itself but about its site's. What a
user of the fused model asks for is the mean of the law that the sites' components are drawn from. With e_l what the
data of copy l say (its site's prior taken off), n_l the information behind its location, and h the variance between
sites in units of one observation's,

    eta_h = prior_c + sum_l a_l [discounted(e_l, h) - flat],     1 / n'_l = 1 / n_l + h,

is the posterior of that mean given h, a_l the site weights. Four things make its widths honest
(docs/concepts/average.md):

1. h by Paule and Mandel (1982) for each component and block of statistics: the root of Q(h) = E Q(h)
   (``families.random_effects``). Components with fewer than ``MIN_OWN_DOF`` degrees of freedom, such as those of one
   site, take the h of all components together.
2. The prior is counted once, its location with c = sum a w / sum a n of its information, w = n / (1 + h n): at full
   strength one pseudo-observation outweighs copies that heterogeneity leaves little of.
3. h is estimated, so a normal interval is too narrow: with s = 1 - c the share of the variance that heterogeneity
   makes, nu_eff = dof / s^2 (Satterthwaite), and the location's information is divided by
   f = (t_{.95, nu_eff} / z_{.95})^2. The family's own 90 % interval is then the t interval.
4. The spread of data about the location is that of the Bayes product, within sites and between: a Normal-Wishart keeps
   W and nu of the product, and kappa is multiplied so that the mean keeps its width. A Dirichlet has one number for
   both, its total, which is the product's; ``interval_share`` says how much of it the intervals have.

With h = 0 all of this is the Bayes product, which is then returned bit for bit. Only the location is discounted; h of
the other blocks is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from consilience.checks import Array, Labels
from consilience.families.random_effects import CopyGroups, Dispersion, RandomEffectsFamily
from consilience.matching.groups import group_sums
from consilience.posteriors.details import HierarchicalDetails
from consilience.posteriors.ensemble import Ensemble

LEVEL = 0.9
"""Level at which the family's own intervals are those of Student's t: a factor on the information is right at one."""

MIN_OWN_DOF = 5.0
"""Degrees of freedom from which on a component has a heterogeneity of its own; two sites in five dimensions have five.

Measured there: intervals of 90 % cover .90, .91, .91 and .88 at deviations of 0, .1, .3 and 1 between sites."""

FIRST_STEP, BRACKET_FACTOR = 1e-3, 4.0
"""Heterogeneity is bracketed upwards from a thousandth of a copy's own variance, by factors of four."""

MAX_BRACKET_STEPS = 500
"""A bound that is not reached: four to this power is beyond float64."""

ROOT_TOLERANCE = 1e-13
"""Width of the bracket of a root, relative to its upper end."""

MAX_ROOT_STEPS = 100
"""A bound that is not reached: bisection alone needs 45 steps."""

DIGITS = 12
"""Significant digits of what is recorded: the last ones of float64 may be rounding."""


@dataclass(frozen=True, eq=False)
class RandomEffectsRecord:
    """What the hierarchical average found, for each component."""

    blocks: tuple[str, ...]  # names of the blocks of statistics (B,), the location first
    heterogeneity: Array  # h of each block (B, G); NaN where copies say nothing of it
    is_pooled: NDArray[np.bool_]  # whether h of the location is that of all components together (G,)
    pooled: Array  # h of all components together (B,); NaN where none has two copies
    widening: Array  # f, what the information of the location was divided by (G,)
    effective_dof: Array  # nu_eff of the location's interval (G,); infinite without heterogeneity
    interval_share: Array  # information of the interval over that of the component (G,); 1 where spread is apart
    n_sites: Labels  # sites whose copies were averaged (G,)
    left_out: Labels  # rows of the ensemble that say nothing beyond their prior (m,)

    @classmethod
    def of_alike(cls, blocks: tuple[str, ...], n_sites: Labels, left_out: Labels) -> RandomEffectsRecord:
        """Return the record of components of which nothing is known but from how many sites they are (G,)."""
        shape = len(blocks), len(n_sites)
        none, ones = np.zeros(shape[1], dtype=np.bool_), np.ones(shape[1])
        unknown, infinite = np.full(shape, np.nan), np.full(shape[1], np.inf)
        return cls(blocks, unknown, none, unknown[:, 0].copy(), ones, infinite, ones.copy(), n_sites, left_out)

    def take(self, order: Labels) -> RandomEffectsRecord:
        """Return the record with components in another order."""
        names = ("is_pooled", "widening", "effective_dof", "interval_share", "n_sites")
        by_component = {name: getattr(self, name)[order] for name in names}
        return replace(self, heterogeneity=self.heterogeneity[:, order], **by_component)

    def details(self) -> HierarchicalDetails:
        """Return the record as JSON values, for provenance; None stands for what is not known or infinite."""
        return {
            "heterogeneity": {
                name: _numbers(values) for name, values in zip(self.blocks, self.heterogeneity, strict=True)
            },
            "pooled_heterogeneity": dict(zip(self.blocks, _numbers(self.pooled), strict=True)),
            "is_pooled": self.is_pooled.tolist(),
            "widening": _numbers(self.widening),
            "effective_dof": _numbers(self.effective_dof),
            "interval_share": _numbers(self.interval_share),
            "n_sites": self.n_sites.tolist(),
        }


def _numbers(values: Array) -> list[float | None]:
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]


def hierarchical_average(
    ensemble: Ensemble,
    labels: Labels,
    n_groups: int,
    likelihoods: Array,
    prior: Array,
    product: Callable[[Labels], Array],
) -> tuple[Array, RandomEffectsRecord]:
    """Return the random-effects averages (G, P) of a matching, and what was found.

    Components of one site in one group (`labels` (L,), -1 drops) are parts of one copy, so they are added up first.
    `likelihoods` (L, P) are what each component's data say: natural parameters less its site's prior. `prior` (P,) is
    that of the fused components, and `product` gives their Bayes products (G, P) from labels; a group without any
    informative copy keeps its product. All models state a prior, and their family is a RandomEffectsFamily.
    """
    family = ensemble.family
    assert isinstance(family, RandomEffectsFamily)  # noqa: S101  (narrows the type; other families are refused)
    assigned = np.flatnonzero(labels >= 0)
    says_nothing = family.saying_nothing(likelihoods[assigned] + family.flat, ensemble.natural[assigned])
    left_out = assigned[says_nothing]
    # A group of which nobody knows anything keeps its members: their product is about the prior.
    is_known = np.isin(labels[left_out], labels[assigned[~says_nothing]])
    informed_labels = labels.copy()
    informed_labels[left_out[is_known]] = -1
    products = product(informed_labels)
    rows = assigned[~says_nothing]
    copies, groups, group_of_copy = _copies(family, ensemble, likelihoods, labels, rows)
    record = RandomEffectsRecord.of_alike(family.part_names, np.bincount(group_of_copy, minlength=n_groups), left_out)
    if not len(copies):
        return products, record
    dispersions = family.dispersions(copies, groups)
    present = np.unique(group_of_copy)  # groups with copies
    for block, dispersion in enumerate(dispersions):
        own, pooled = estimate_heterogeneity(dispersion, groups)
        record.heterogeneity[block, present] = np.where(dispersion.dof >= MIN_OWN_DOF, own, pooled)
        record.pooled[block] = pooled
    location, location_dof = dispersions[0], dispersions[0].dof
    takes_pooled = location_dof < MIN_OWN_DOF
    record.is_pooled[present] = takes_pooled & ~np.isnan(record.pooled[0])
    heterogeneity = np.nan_to_num(record.heterogeneity[0, present])  # what nobody can tell is not discounted
    differs = np.flatnonzero(heterogeneity > 0.0)
    if not len(differs):
        return products, record
    eta_h, strength = _discounted(family, copies, groups, location, heterogeneity, prior)
    dof = np.where(takes_pooled, location_dof.sum(), location_dof)
    effective_dof, widening = satterthwaite(dof[differs], 1.0 - strength[differs])
    widened = family.rescaled_location(eta_h[differs], 1.0 / widening)
    # A group of a few observations per dimension may have no covariance of its own: its product stays.
    is_proper = np.ones(len(differs), dtype=np.bool_)
    is_proper[[row for row, _ in family.check(widened)]] = False
    changed = present[differs[is_proper]]
    widened = widened[is_proper]
    products[changed] = family.with_spread(widened, products[changed])
    if not family.separates_spread:
        of_interval, of_posterior = map(family.location_information, (widened, products[changed]))
        record.interval_share[changed] = of_interval / of_posterior
    record.effective_dof[changed], record.widening[changed] = effective_dof[is_proper], widening[is_proper]
    record.heterogeneity[0, present[differs[~is_proper]]] = np.nan
    return products, record


def _discounted(
    family: RandomEffectsFamily,
    copies: Array,
    groups: CopyGroups,
    location: Dispersion,
    heterogeneity: Array,
    prior: Array,
) -> tuple[Array, Array]:
    """Return eta_h of groups at their heterogeneity (n, P), and c, the strength of the prior in each (n,)."""
    remaining = 1.0 / (1.0 + heterogeneity[groups.labels] * location.information)  # w / n of each copy
    informed = groups.weights * location.information
    strength = groups.sum(informed * remaining) / groups.sum(informed)
    discounted = copies - family.flat - (1.0 - remaining)[:, None] * family.location_part(copies)
    common = prior + (strength - 1.0)[:, None] * family.location_part(prior[None])
    return common + groups.sum(groups.weights[:, None] * discounted), strength


def _copies(
    family: RandomEffectsFamily, ensemble: Ensemble, likelihoods: Array, labels: Labels, rows: Labels
) -> tuple[Array, CopyGroups, Labels]:
    """Return what each site says of each group (n, P), sorted by group, the groups that occur, and whose it is (n,)."""
    keys, copy_of_row = np.unique(labels[rows] * ensemble.n_sites + ensemble.owner[rows], return_inverse=True)
    sums = group_sums(likelihoods[rows], copy_of_row, np.ones(len(rows)), len(keys)).sums
    group_of_copy, site_of_copy = np.divmod(keys, ensemble.n_sites)
    consecutive = np.unique(group_of_copy, return_inverse=True)[1]
    groups = CopyGroups(consecutive.astype(np.int64), ensemble.site_weights[site_of_copy])
    return sums + family.flat, groups, group_of_copy


def estimate_heterogeneity(dispersion: Dispersion, groups: CopyGroups) -> tuple[Array, float]:
    """Return h of each group (G,) by Paule and Mandel, and that of all groups together.

    0 where copies differ no more than their information admits; NaN where there are no two to compare.
    """
    scale = 1.0 / (groups.sum(dispersion.information) / groups.sizes())  # a copy's own variance
    own = decreasing_roots(dispersion.excess, scale)
    own = np.where(dispersion.dof > 0, own, np.nan)
    if not np.any(dispersion.dof > 0):
        return own, float("nan")

    def total_excess(heterogeneity: Array) -> Array:
        return dispersion.excess(np.repeat(heterogeneity, len(scale))).sum(keepdims=True)

    return own, float(decreasing_roots(total_excess, np.array([np.median(scale)]))[0])


def decreasing_roots(excess: Callable[[Array], Array], scale: Array) -> Array:
    """Return the roots (G,) of decreasing functions of h >= 0, one of each group; 0 where a function is not positive.

    Brackets grow from ``FIRST_STEP`` by factors of ``BRACKET_FACTOR``, in units of `scale` (G,); inside, steps are
    those of Chandrupatla (1997), which bisects unless inverse quadratic interpolation is safe. `excess` gives the
    values (G,) at one argument for each group (G,).
    """
    low, value_low = np.zeros(len(scale)), excess(np.zeros(len(scale)))
    is_positive = value_low > 0.0
    high = FIRST_STEP * scale
    value_high = excess(high)
    for _ in range(MAX_BRACKET_STEPS):
        is_short = is_positive & (value_high > 0.0)
        if not is_short.any():
            break
        low, value_low = np.where(is_short, high, low), np.where(is_short, value_high, value_low)
        high = np.where(is_short, BRACKET_FACTOR * high, high)
        value_high = np.where(is_short, excess(high), value_high)
    # x1 is the newest point, x2 the one across the root, x3 the one before.
    x1, f1, x2, f2 = high, value_high, low, value_low
    x3, f3, step = x1, f1, np.full(len(scale), 0.5)
    for _ in range(MAX_ROOT_STEPS):
        is_open = is_positive & (np.abs(x2 - x1) > ROOT_TOLERANCE * np.maximum(x1, x2)) & (f1 != 0.0)
        if not is_open.any():
            break
        x = np.where(is_open, x1 + step * (x2 - x1), x1)
        f = excess(x)
        is_same = np.sign(f) == np.sign(f1)
        x3, f3 = np.where(is_same, x1, x2), np.where(is_same, f1, f2)
        x2, f2 = np.where(is_open & ~is_same, x1, x2), np.where(is_open & ~is_same, f1, f2)
        x1, f1 = np.where(is_open, x, x1), np.where(is_open, f, f1)
        with np.errstate(all="ignore"):  # groups that are done divide by zero
            xi, phi = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
            is_safe = (phi**2 < xi) & ((1.0 - phi) ** 2 < 1.0 - xi)
            quadratic = f1 / (f2 - f1) * f3 / (f2 - f3)
            quadratic += (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
            nearest = 0.5 * ROOT_TOLERANCE * np.maximum(x1, x2) / np.abs(x2 - x1)
            step = np.where(is_safe, np.clip(quadratic, nearest, 1.0 - nearest), 0.5)
        step = np.where(np.isfinite(step), step, 0.5)
    nearest_root = np.where(np.abs(f1) <= np.abs(f2), x1, x2)
    return np.where(is_positive, nearest_root, 0.0)


def satterthwaite(dof: Array, share: Array) -> tuple[Array, Array]:
    """Return nu_eff = dof / s^2 and f = (t_{.95, nu_eff} / z_{.95})^2, for s the share that heterogeneity makes."""
    effective_dof = dof / np.maximum(share, np.finfo(np.float64).tiny ** 0.5) ** 2
    return effective_dof, quantile_ratio(effective_dof, LEVEL) ** 2


def quantile_ratio(effective_dof: Array, level: float) -> Array:
    """Return Student's quantile over the normal one, of a central interval of this level (n,); 1 for infinite dof."""
    probability = 0.5 + 0.5 * level
    # Beyond a billion degrees of freedom the quantiles agree to all digits that matter, and `stdtrit` loses them.
    is_finite = effective_dof < 1e9
    quantiles = stdtrit(np.where(is_finite, effective_dof, 1.0), probability)
    return np.where(is_finite, quantiles / ndtri(probability), 1.0)
