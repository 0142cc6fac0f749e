"""Averages of matched components: hierarchical average, Bayes product and Kullback-Leibler barycenter.

Three answers to what a fused component is, given its copies eta_l with weights w_l, and they mean different things.

    barycenter    eta = sum_l w_l eta_l / sum_l w_l                    the Kullback-Leibler mean: one site's width
    product       eta = prior + sum_l w_l (eta_l - prior_l)            the posterior given all sites' data
    hierarchical  the product with copies discounted by how much       the posterior of the mean of the law that
                  sites differ (``hierarchical_average``)              the sites' components come from

(The barycenter in the reverse direction averages mean parameters.) In the product each site's prior is removed once and
one prior put back: its width shrinks as data adds up, and for conjugate models with matched components it equals the
posterior that pooling the data would give. The hierarchical average is the product where sites agree. ``"auto"`` takes
it where every model states its prior and its counts, and else the barycenter, which needs neither; the record of the
average says which and why.

**Averages of attached arrays**: summed at the groups of a matching, then normalised as each array's rule says.

An attached array of site j, such as transition counts (L_j, L_j), is put where its components were matched: entry
(l, m) goes to (labels[l], labels[m]). Sums are additive over sites and shards; ``sum`` returns them, ``mean`` and
``precision-mean`` divide by the summed weights, ``keep`` takes the entry of the first site that has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.drawing.words import first_names
from consilience.errors import InputError
from consilience.families import Direction, Family
from consilience.families.random_effects import RandomEffectsFamily
from consilience.matching.conjugate_groups import ConjugateGroups
from consilience.matching.groups import group_sums
from consilience.posteriors.details import AverageDetails, PosteriorDetails
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.hierarchical_average import RandomEffectsRecord, hierarchical_average
from consilience.posteriors.posterior import Attached, AxisTag, Posterior, Rule, shares_of

Combine = Literal["auto", "hierarchical", "product", "barycenter"]
COMBINATIONS: tuple[Combine, ...] = ("auto", "hierarchical", "product", "barycenter")
Average = Literal["hierarchical", "product", "barycenter"]
Value = TypeVar("Value")
AverageFunction = Callable[[Ensemble, Labels, int], Array]
"""Gives the averages (G, P) of an ensemble's groups from labels (L,) and their number."""


def averaged_parameters(family: Family, natural: Array, direction: Direction) -> Array:
    """Return the parameters whose mean is the barycenter: natural ones, or mean parameters in the reverse direction."""
    return natural if direction == "forward" else family.mean_parameters(natural)


def from_averaged(family: Family, means: Array, direction: Direction) -> Array:
    """Return natural parameters of what ``averaged_parameters`` averages to."""
    return means if direction == "forward" else family.from_mean(means)


class Inclusion:
    """Which copies are averaged, and how much of what sites state is believed: all of it.

    ``robust.average.RobustInclusion`` believes less. Rows are the L stacked components, and groups have members.
    """

    def site_shares(self, priors: Array, site_weights: Array) -> Array:
        """Return the share (J,) of each site in the mean of the priors (J, P); they sum to 1."""
        return site_weights / site_weights.sum()

    def averages(self, ensemble: Ensemble, labels: Labels, n_groups: int, average: AverageFunction) -> Array:
        """Return the averages (G, P) of the groups."""
        return average(ensemble, labels, n_groups)

    def likelihood_sums(self, ensemble: Ensemble, labels: Labels, n_groups: int, average: AverageFunction) -> Array:
        """Return the sums (G, P) of what the data of each group's components say, for their product."""
        return group_sums(likelihoods(ensemble), labels, ensemble.row_weights, n_groups).sums

    def credible_counts(self, counts: Array, ensemble: Ensemble) -> Array:
        """Return the counts (L,) that are believed."""
        return counts

    def totals(self, values: Array, ensemble: Ensemble, labels: Labels, n_groups: int) -> Array:
        """Return the weighted sums (G,) of values (L,) over the groups."""
        is_matched = labels >= 0
        weights = (values * ensemble.row_weights)[is_matched]
        totals = np.bincount(labels[is_matched], weights=weights, minlength=n_groups)
        return totals.astype(np.float64, copy=False)

    def attached(self, arrays: Sequence[Attached], ensemble: Ensemble, labels: Labels, n_groups: int) -> Attached:
        """Return an array that every site attaches, carried through the matching."""
        sums = carry(arrays, ensemble.offsets, labels, ensemble.site_weights, n_groups)
        return fused_attached(sums, arrays[0].axes, arrays[0].rule)

    def agreed(self, values: Sequence[Value]) -> Value:
        """Return what the fused model is said to be, of what each site says: the first."""
        return values[0]


ALL_COPIES = Inclusion()
"""Every site is trusted."""


def common_prior(ensemble: Ensemble, inclusion: Inclusion = ALL_COPIES) -> Array | None:
    """Return the weighted mean of the sites' priors (P,): their prior, when they share one; None where one lacks it."""
    priors = [posterior.prior for posterior in ensemble.unordered]
    stated = [prior for prior in priors if prior is not None]
    if len(stated) < len(priors):
        return None
    rows = np.stack(stated)  # (J, P)
    return inclusion.site_shares(rows, ensemble.site_weights) @ rows


def kl_average(ensemble: Ensemble, labels: Labels, n_groups: int, direction: Direction) -> Array:
    """Return the Kullback-Leibler barycenters (G, P) of a matching whose groups all have members."""
    parameters = averaged_parameters(ensemble.family, ensemble.natural, direction)  # (L, P)
    means = group_sums(parameters, labels, ensemble.row_weights, n_groups).means()
    return from_averaged(ensemble.family, means, direction)


@dataclass(frozen=True, eq=False)
class AverageRecord:
    """Which average was taken, and why."""

    name: Average
    requested: Combine  # what the option said
    reason: str = ""  # why it was this one; empty where the option named it
    priors: str = ""  # how those of the models differ, of which the mean is taken; empty where they agree
    random_effects: RandomEffectsRecord | None = None

    def take(self, order: Labels) -> AverageRecord:
        """Return the record with components in another order."""
        return replace(self, random_effects=None if self.random_effects is None else self.random_effects.take(order))

    def details(self) -> PosteriorDetails:
        """Return ``average`` and ``hierarchical`` of a fusion's details."""
        average: AverageDetails = {"name": self.name, "requested": self.requested}
        if self.reason:
            average["reason"] = self.reason
        if self.priors:
            average["priors"] = self.priors
        if self.random_effects is None:
            return {"average": average}
        return {"average": average, "hierarchical": self.random_effects.details()}


def why_not_hierarchical(ensemble: Ensemble) -> str:
    """Return why these models have no hierarchical average, or why it would mean nothing; empty where they have."""
    family = ensemble.family
    if ensemble.n_sites == 1:
        return "there is one model, which stays as it is"
    if not family.has_width:
        return f"{family.name}s have no width"
    if not isinstance(family, RandomEffectsFamily):
        return f"a {family.name} has no random-effects average"
    pairs = list(zip(ensemble.names, ensemble.unordered, strict=True))
    for field in ("prior", "counts"):
        lacking = [name for name, posterior in pairs if getattr(posterior, field) is None]
        if lacking:
            return f"{_listed(lacking)} {'states' if len(lacking) == 1 else 'state'} no {field}"
    assumed = [name for name, posterior in pairs if posterior.source.get("samples") == "assumed"]
    if assumed:
        return f"the number of observations of {_listed(assumed)} is assumed; give n_observations"
    return ""


MAX_NAMED = 3
"""Models that a reason names; more are counted."""


def _listed(names: Sequence[str]) -> str:
    return first_names(sorted(names), MAX_NAMED)


def prior_differences(ensemble: Ensemble) -> str:
    """Return how the priors of two models differ, in a sentence that shows both; empty where all are alike."""
    stated = [
        (name, p.prior) for name, p in zip(ensemble.names, ensemble.unordered, strict=True) if p.prior is not None
    ]
    if len(stated) < 2:
        return ""
    rows = np.stack([prior for _, prior in stated])
    distances = np.abs(rows - rows[0]).max(axis=1)
    other = int(distances.argmax())
    if np.allclose(rows, rows[0], rtol=PRIOR_ROUNDING, atol=0.0):
        return ""
    difference = _difference(ensemble.family, rows[[0, other]])
    return f"{stated[0][0]} and {stated[other][0]} state different priors ({difference})"


PRIOR_ROUNDING = 1e-9
"""Priors that differ by less, relatively, are one prior that sites computed in different orders."""


def _difference(family: Family, pair: Array) -> str:
    """Return the first standard parameter that differs between two rows (2, P), with both values."""
    try:
        with np.errstate(all="ignore"):
            parameters = family.from_natural(pair)
    except (InputError, np.linalg.LinAlgError):  # improper priors may have none
        parameters = {}
    for name, values in {**_flattened(parameters), "natural parameter": pair}.items():
        first, second = np.ravel(values[0]), np.ravel(values[1])
        entries = np.flatnonzero(
            ~np.isclose(first, second, rtol=PRIOR_ROUNDING, atol=0.0) & np.isfinite(first + second)
        )
        if len(entries):
            return f"{name} {first[entries[0]]:.4g} against {second[entries[0]]:.4g}"
    return "in their natural parameters"


def _flattened(parameters: Mapping[str, Any]) -> dict[str, Array]:
    """Return parameters by name; those of blocks, which are mappings themselves, by "block.name"."""
    flat: dict[str, Array] = {}
    for name, values in parameters.items():
        if isinstance(values, Mapping):
            flat |= {f"{name}.{part}": array for part, array in _flattened(values).items()}
        else:
            flat[name] = values
    return flat


def combine(
    ensemble: Ensemble,
    labels: Labels,
    n_groups: int,
    how: Combine,
    average: AverageFunction,
    inclusion: Inclusion = ALL_COPIES,
    own_average: str = "",
) -> tuple[Posterior, AverageRecord]:
    """Return the fused posterior of a matching: components, prior, counts, weights and what is attached.

    Labels (L,) are the group of each component, -1 to drop it; every one of the G groups has a member. ``"auto"`` is
    the hierarchical average where every model states its prior and its counts, else the barycenters (G, P) that
    `average` gives of the ensemble, the labels and their number; `own_average` says why, where ``"auto"`` is not the
    method's own. A product that was asked for is refused where it leaves the family's domain.
    """
    prior = common_prior(ensemble, inclusion)
    natural, record = _fused_components(ensemble, labels, n_groups, how, average, inclusion, own_average, prior)
    counts = ensemble.column("counts")
    if counts is not None:
        counts = inclusion.credible_counts(counts, ensemble)
    features = [p.features for p in ensemble.unordered]
    names = set.intersection(*(set(p.attached) for p in ensemble.unordered))  # arrays that some site lacks are dropped
    posterior = Posterior(
        ensemble.family,
        natural,
        prior=prior,
        counts=None if counts is None else inclusion.totals(counts, ensemble, labels, n_groups),
        weights=_mixture_weights(ensemble, counts, labels, n_groups, inclusion),
        attached={
            name: inclusion.attached([p.attached[name] for p in ensemble.posteriors], ensemble, labels, n_groups)
            for name in sorted(names)
        },
        features=inclusion.agreed([stated for stated in features if stated.names] or features),
    )
    return posterior, record


def _fused_components(
    ensemble: Ensemble,
    labels: Labels,
    n_groups: int,
    how: Combine,
    average: AverageFunction,
    inclusion: Inclusion,
    own_average: str,
    prior: Array | None,
) -> tuple[Array, AverageRecord]:
    """Return the fused components (G, P), and which average they are; `prior` (P,) is that of all, where stated."""
    reason = (own_average or why_not_hierarchical(ensemble)) if how == "auto" else ""
    record = AverageRecord("barycenter", how, reason, "" if prior is None else prior_differences(ensemble))
    if prior is None or how == "barycenter" or reason:
        return inclusion.averages(ensemble, labels, n_groups, average), record

    def product(chosen: Labels) -> Array:
        """Return the Bayes products (G, P): each site's own prior is removed from its components, one put back."""
        return prior + inclusion.likelihood_sums(ensemble, chosen, n_groups, average)

    # Under "auto" only the hierarchical average is left here, which falls back to the barycenter.
    if how == "product":
        natural, record = product(labels), replace(record, name="product")
    else:
        natural, random_effects = hierarchical_average(
            ensemble, labels, n_groups, likelihoods(ensemble), prior, product
        )
        reason = "every model states its prior and its counts" if how == "auto" else ""
        record = replace(record, name="hierarchical", reason=reason, random_effects=random_effects)
    if how != "auto":
        refuse_improper(ensemble.family, natural)
    elif reason := why_improper(ensemble.family, natural):
        record = replace(record, name="barycenter", reason=reason, random_effects=None)
        natural = inclusion.averages(ensemble, labels, n_groups, average)
    return natural, record


def why_improper(family: Family, products: Array) -> str:
    """Return why Bayes products (G, P) are no posteriors; empty where they are."""
    for row, text in family.check(products)[:1]:
        return f"the Bayes product of component {row} {text}, so the priors are not those of the models"
    return ""


def refuse_improper(family: Family, products: Array) -> None:
    """Raise InputError for Bayes products (G, P) that leave their family's domain."""
    for row, text in family.check(products)[:1]:
        problem = f"the product of the posteriors matched to component {row} {text}: check the sites' priors"
        raise InputError("", problem, code="E-NUMBER")


def likelihoods(ensemble: Ensemble) -> Array:
    """Return what each component's data say, eta_l less its site's prior (L, P); every site states one."""
    own_priors = np.stack([p.prior for p in ensemble.unordered if p.prior is not None])
    return ensemble.natural - own_priors[ensemble.owner]


def conjugate_groups(ensemble: Ensemble, level: Array) -> ConjugateGroups:
    """Return the log marginal likelihoods of groups of components that share a prior, which all models state.

    `level` (J + 1,) is the log prior of a group of n = 0 ... J members.
    """
    prior = common_prior(ensemble)
    assert prior is not None  # noqa: S101  (methods refuse models without)
    pieces = likelihoods(ensemble) * ensemble.row_weights[:, None]
    proper = not ensemble.family.check(prior[None])
    return ConjugateGroups(ensemble.family, prior, pieces, ensemble.offsets, level, proper)


def _mixture_weights(
    ensemble: Ensemble, counts: Array | None, labels: Labels, n_groups: int, inclusion: Inclusion
) -> Array | None:
    """Return mixture weights (G,): each site's weights in proportion to its observations, where these are known."""
    weights = ensemble.column("weights")
    if weights is None:
        return None
    mass = mixture_mass(weights, counts, ensemble.offsets, ensemble.owner)
    return shares_of(inclusion.totals(mass, ensemble, labels, n_groups))


def mixture_mass(weights: Array, counts: Array | None, offsets: Labels, owner: Labels) -> Array:
    """Return weights (L,) that sum in each site to one, or to its observations, where these are known.

    What a site says of the pool is in proportion to its data.
    """
    starts = offsets[:-1]  # reduceat sums the rows of each site; no site is empty
    totals = np.add.reduceat(weights, starts)  # (J,)
    mass: Array = weights / np.where(totals > 0, totals, 1.0)[owner]
    return mass if counts is None else mass * np.add.reduceat(counts, starts)[owner]


MIN_PRECISION = 1e-300
"""Precision of an entry that no site has: positive, since a precision must be, and next to nothing."""


@dataclass(frozen=True, eq=False)
class AttachedSums:
    """Sums of an attached array at the groups of a matching; additive over sites, in any order.

    All have the shape of the array, with component axes of length G.
    """

    total: Array  # weighted sums of the entries
    mass: Array  # weights of the entries that were summed
    first: Array  # the entry of the site of the lowest key that has one; NaN where none has
    key: NDArray[np.uint64]  # that key; the largest number where no site has an entry

    def __add__(self, other: AttachedSums) -> AttachedSums:
        first_entries = np.where(other.key < self.key, other.first, self.first)
        key = np.minimum(self.key, other.key)
        return AttachedSums(self.total + other.total, self.mass + other.mass, first_entries, key)


def carry(
    arrays: Sequence[Attached],
    offsets: Labels,
    labels: Labels,
    weights: Array,
    n_groups: int,
    keys: NDArray[np.uint64] | None = None,
) -> AttachedSums:
    """Return the sums of one attached array of several sites at its groups.

    Sites start at `offsets` (J + 1,) among the components, whose groups are `labels` (L,), -1 for none. `keys` (J,)
    order the sites by their contents; without them they come as they stand.
    """
    keys = np.arange(len(arrays), dtype=np.uint64) if keys is None else keys
    first = arrays[0]
    pairs = zip(first.axes, first.values.shape, strict=True)
    shape = tuple(n_groups if tag == "component" else size for tag, size in pairs)
    total, mass, first_entries = np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
    lowest_keys = np.full(shape, np.iinfo(np.uint64).max)
    for site, attached in enumerate(arrays):
        site_labels = labels[offsets[site] : offsets[site + 1]]
        rows = np.flatnonzero(site_labels >= 0)
        values = attached.take(rows)
        cells = np.ix_(
            *(
                site_labels[rows] if tag == "component" else np.arange(size)
                for tag, size in zip(first.axes, shape, strict=True)
            )
        )
        # Several components of a site may share a group, so entries are added unbuffered.
        weight = weights[site] * (1.0 if values.precision is None else values.precision)
        np.add.at(total, cells, weight * values.values)
        np.add.at(mass, cells, np.broadcast_to(weight, values.values.shape))
        # Sites come in any order in a sharded pass: the key, not the arrival, decides which entry is first.
        is_lower = keys[site] < lowest_keys[cells]
        first_entries[cells] = np.where(is_lower, values.values, first_entries[cells])
        lowest_keys[cells] = np.minimum(lowest_keys[cells], keys[site])
    return AttachedSums(total, mass, first_entries, lowest_keys)


def fused_attached(carried: AttachedSums, axes: tuple[AxisTag, ...], rule: Rule) -> Attached:
    """Return the fused array: sums, means, or what the first sites had."""
    if rule == "sum":
        return Attached(carried.total, axes, "sum")
    if rule == "keep":
        return Attached(np.nan_to_num(carried.first), axes, "keep")
    means = carried.total / np.where(carried.mass > 0, carried.mass, 1.0)
    return Attached(means, axes, rule, np.maximum(carried.mass, MIN_PRECISION) if rule == "precision-mean" else None)
