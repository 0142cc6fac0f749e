"""Matching by evidence, and the diagnostics of any matching: confidence, heterogeneity, outliers.

The evidence of a matching is that of ``random_effects``; ``selection`` says which matching is the best. The confidence
of a match is that of ``site_by_site.match_confidence`` under this evidence.

**Outliers among sites**: sites far from all others, and sites whose fits went wrong.

A site is far by the distance of its components from those that they are matched with (``find_far_sites``). Components
that look like blends or second copies of others (``strays``) are named with their site.

**Placement of the components that a search leaves out**: those of hardly any observations, and fits gone wrong.

A component of hardly any observations cannot be judged, so it takes no part in the search. A fit that blends two
components, or has a second copy of one, is left out by it (``strays``), since no two components of a site may be in one
group while groups are found. Afterwards, what such a component is mostly part of can be asked again: it is put into the
group that explains it best, even beside another one of its site, if all sites' mixtures side by side lose less of it so
than without it (``virtual_loss``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from consilience.checks import Array, Labels
from consilience.core.details import Status
from consilience.families.chunks import map_rows
from consilience.matching.groups import GroupSums, consecutive, group_sums
from consilience.matching.site_by_site import match_confidence
from consilience.posteriors.details import NumberDetails, Outlier, PosteriorDetails
from consilience.posteriors.ensemble import Ensemble, Stack
from consilience.posteriors.evidence.linkage import better_linked
from consilience.posteriors.evidence.random_effects import RandomEffects, fit_lenient_prior
from consilience.posteriors.evidence.search import (
    FIRST_HETEROGENEITIES,
    MAX_SEARCHED_ROWS,
    SearchedMatching,
    is_same_partition,
    shuffled,
    steady_order,
)
from consilience.posteriors.evidence.selection import N_ERRORS, SelectedMatching, Selection
from consilience.posteriors.evidence.split_components import (
    MAX_KNOWN_SHARE,
    MIN_EVIDENCE_GAIN,
    full_evidence,
    merge_sites,
    merge_split_components,
)
from consilience.posteriors.evidence.topic_number import MAX_LOSS, STATED_LOSSES, TopicNumber
from consilience.posteriors.evidence.virtual_loss import VirtualLoss, likelihood_stack, mean_and_error, virtual_loss_of
from consilience.posteriors.method import Assignment, expand_assignment

MAX_DIAGNOSED_ROWS = 5000
"""Components up to which confidence and heterogeneity are computed. Chosen by hand for its cost."""
MIN_HETEROGENEITY_OF_WIDTHS = 0.005
"""Heterogeneity of widths from which on a matching may have merged different components: a width is then worth 200
observations at most. Copies that are displaced, and as wide as each other, are copies. Set between the .001 of
simulated sites that differ in places and the .03 and .04 of two sets of images whose classes evidence merges."""
MIN_NAMED_PROBABILITY = 0.001
"""Probability from which on a number of components is named beside the selected one."""


@dataclass(frozen=True, eq=False)
class Judged:
    """The components of an ensemble that can be judged by their data, as what is matched: themselves or merged ones."""

    stack: Stack  # what is matched (U, P)
    unit_of_row: Labels  # which of these each component is part of (L,); -1 for one that cannot be judged
    selection: Selection  # among the matchings of these

    @classmethod
    def of(
        cls,
        ensemble: Ensemble,
        stack: Stack,
        unit_of_row: Labels,
        max_components: int | None = None,
        near: SelectedMatching | None = None,
    ) -> Judged:
        """Return them with the selection among the matchings of at most so many groups, from one near it or anew.

        Of more than 6,000 components, of which a sample is searched, the virtual loss is that of a sample of the sites.
        """
        rows = np.flatnonzero(unit_of_row >= 0)
        if len(rows) > MAX_SEARCHED_ROWS:
            rows = _rows_of_sample(ensemble, rows)
        loss = virtual_loss_of(ensemble, rows)
        if loss is not None:
            loss = replace(loss, unit_of_row=unit_of_row[rows])
        return cls(stack, unit_of_row, Selection(stack, loss, max_components, near))

    @classmethod
    def single(cls, ensemble: Ensemble, max_components: int | None = None) -> Judged:
        """Return the components by themselves."""
        stack, rows = likelihood_stack(ensemble)
        unit_of_row = np.full(len(ensemble.natural), -1, dtype=np.int64)
        unit_of_row[rows] = np.arange(len(rows))
        return cls.of(ensemble, stack, unit_of_row, max_components)

    def merged(self, ensemble: Ensemble, max_components: int | None = None) -> Judged | None:
        """Return the components with those of one site merged that look like one; None where none do."""
        merged = merge_split_components(self.stack)
        if merged is None:
            return None
        unit_of_row = np.where(self.unit_of_row >= 0, merged.unit_of_row[self.unit_of_row], -1)
        n_merged, n_units = len(self.stack.natural) - len(merged.stack.natural), len(self.stack.natural)
        near = self.selection.selected if n_merged <= MAX_KNOWN_SHARE * n_units else None
        return Judged.of(ensemble, merged.stack, unit_of_row, max_components, near)

    def whole(self, ensemble: Ensemble, max_components: int | None = None) -> Judged | None:
        """Return what is matched with all of each site merged; None where that is no better an explanation.

        Nor is it where the matching of the components loses clearly less: a mixture may tell the shape of one mode.
        """
        stack = self.stack
        if not stack.family.describes_data or int(stack.sizes.max()) == 1:
            return None
        if self.selection.loses_less_than(np.zeros(len(stack.natural), dtype=np.int64)):
            return None
        merged = merge_sites(stack)
        unit_of_row = np.where(self.unit_of_row >= 0, merged.unit_of_row[self.unit_of_row], -1)
        whole = Judged.of(ensemble, merged.stack, unit_of_row, max_components)
        return whole if whole.evidence > self.evidence + MIN_EVIDENCE_GAIN else None

    def expand(self, values: NDArray[Any], missing: float) -> NDArray[Any]:
        """Return values of units (U,) as values of all components (L,)."""
        return np.where(self.unit_of_row >= 0, values[self.unit_of_row], missing)

    @property
    def evidence(self) -> float:
        """The log evidence of the selected matching, which compares with that of other units."""
        return full_evidence(self.stack, self.selection.selected.matching)


def _rows_of_sample(ensemble: Ensemble, rows: Labels) -> Labels:
    """Return those of some rows that belong to a sample of the sites, 6,000 at most and of one site at least.

    Sites come in the order of ``steady_order``, shuffled, so that tiny changes of the input sample the same ones.
    """
    sites = np.unique(ensemble.owner[rows])
    natural = ensemble.natural if len(rows) == len(ensemble.natural) else ensemble.natural[rows]
    first_rows = steady_order(natural, np.searchsorted(sites, ensemble.owner[rows]))
    owner = ensemble.owner[rows][first_rows]
    in_order = owner[np.flatnonzero(np.diff(owner, prepend=-1))][shuffled(len(sites))]
    sizes = np.bincount(ensemble.owner[rows], minlength=ensemble.n_sites)
    n_sampled = max(1, int(np.searchsorted(np.cumsum(sizes[in_order]), MAX_SEARCHED_ROWS, side="right")))
    is_sampled = np.zeros(ensemble.n_sites, dtype=np.bool_)
    is_sampled[in_order[:n_sampled]] = True
    return rows[is_sampled[ensemble.owner[rows]]]


def match_by_evidence(ensemble: Ensemble, max_components: int | None, *, exclusive: bool) -> Assignment:
    """Return the matching of the greatest evidence, with local fits gone wrong put where they fit, or left out (-1).

    That of topics is the smallest that loses little on virtual documents (``topic_number``), with none left out. The
    objective is minus the log evidence, of topics what they lose. Details are the number with its support, the evidence
    of other numbers, the heterogeneity and the outliers. The status is ``AT_CAPACITY`` where the limit `max_components`
    is in use; with `exclusive`, what the search leaves out stays out, see the module.
    """
    topics = TopicNumber.of(ensemble, keeps_apart=exclusive, max_topics=max_components)
    if topics is not None:
        return match_topics(ensemble, topics)
    judged = judge(ensemble, max_components)
    whole = None if exclusive else judged.whole(ensemble, max_components)
    judged = whole or judged
    selected = judged.selection.selected
    number: NumberDetails = {"prior": selected.prior_name}
    if whole is not None:
        number["nothing_separates"] = True
    if selected.losses:
        number["virtual_loss"] = selected.losses
    if selected.shares_nothing:
        number["shares_nothing"] = True
    labels = judged.expand(selected.matching.labels, -1)
    is_linkable = not exclusive and whole is None and ensemble.family.describes_data
    # Where nothing is left out, nothing is placed.
    loss = virtual_loss_of(ensemble) if is_linkable or np.any(labels < 0) else None
    if loss is not None:
        labels = place_thin_if_better(ensemble, labels, judged.unit_of_row < 0, loss)
        labels = labels if exclusive else place_strays(ensemble, labels, judged.unit_of_row < 0, loss)
    if loss is not None and is_linkable:
        linked = _linked(ensemble, judged, labels, loss, max_components, number)
        if linked is not None:
            return linked
    assignment = describe_matching(ensemble, judged, selected.matching, labels, number)
    status = Status.CONVERGED if selected.matching.converged else Status.MAX_ITERATIONS
    if max_components is not None and selected.matching.n_groups == max_components < len(judged.stack.natural):
        status = Status.AT_CAPACITY
    return replace(assignment, status=status)


def widths_agree(heterogeneity: Iterable[float | None]) -> bool:
    """Return whether copies in a matching are as wide as each other, by their heterogeneity of each part, if any."""
    *_, of_widths = (None, *heterogeneity)  # the last part
    return of_widths is None or of_widths < MIN_HETEROGENEITY_OF_WIDTHS


def _linked(
    ensemble: Ensemble,
    judged: Judged,
    labels: Labels,
    loss: VirtualLoss,
    max_components: int | None,
    number: NumberDetails,
) -> Assignment | None:
    """Return the matching of linked components where it loses clearly less than that by evidence (L,); else None."""
    if widths_agree(judged.selection.selected.matching.heterogeneity.tolist()):
        return None
    counts = ensemble.column("counts")
    n_observations = np.inf if counts is None else max(float(counts.sum()), 1.0)
    rows = np.flatnonzero((judged.unit_of_row >= 0) & (loss.weights > 0))
    better = better_linked(loss, ensemble.owner, rows, labels, loss.noise_of_component(n_observations))
    if better is None:
        return None
    linked, losses = better
    if max_components is not None and int(linked.max()) >= max_components:
        return None
    linked = place_strays(ensemble, place_thin_if_better(ensemble, linked, linked < 0, loss), linked == -2, loss)
    confidence, diagnostics = diagnose(ensemble, linked)
    details: PosteriorDetails = {
        **describe_matching(ensemble, judged, judged.selection.selected.matching, labels, number).details,
        **diagnostics,
    }
    details["number"] = {**number, "virtual_loss": {**number.get("virtual_loss", {}), **losses}, "linked": True}
    details.pop("violations", None)
    details.pop("left_out", None)
    if n_out := int(np.count_nonzero(linked < 0)):
        details["left_out"] = n_out
    if n_violations := count_violations(ensemble, linked):
        details["violations"] = n_violations
    value = loss(linked)[0]
    return Assignment(linked, value, np.array([value]), confidence=confidence, details=details)


def number_by_evidence(ensemble: Ensemble) -> int:
    """Return the number of components in the matching of the greatest evidence, or that of topics."""
    topics = TopicNumber.of(ensemble, keeps_apart=False)
    if topics is not None:
        return topics.selected
    return judge(ensemble).selection.selected.matching.n_groups


def first_matching(ensemble: Ensemble) -> tuple[Labels, Labels]:
    """Return the matching of the greatest evidence, for methods that begin with it, and the leader of each component.

    Labels (L,) put no two components of a site in one group; -1 is left out, as is all but one of those that a site's
    fit split. The leader (L,) of a component is the row whose group it belongs to: the one that stands for a split one,
    or it.
    """
    labels = match_by_evidence(ensemble, None, exclusive=True).labels
    family, natural = ensemble.family.evidence_form(ensemble.natural)
    stack = Stack(family, natural, ensemble.offsets, ensemble.row_weights)
    kept = _one_per_site(stack, labels)
    leaders = np.arange(len(labels))
    for row in np.flatnonzero((kept < 0) & (labels >= 0)).tolist():
        is_leader = (ensemble.owner == ensemble.owner[row]) & (kept == labels[row])
        leaders[row] = int(np.flatnonzero(is_leader)[0])
    return kept, leaders


def judge(ensemble: Ensemble, max_components: int | None = None) -> Judged:
    """Return what is matched: single components, or merged ones where all sites' evidence says that fits split them."""
    single = Judged.single(ensemble, max_components)
    merged = single.merged(ensemble, max_components)
    if merged is None:
        return single
    n_merged = len(single.stack.natural) - len(merged.stack.natural)
    return merged if merged.evidence > single.evidence + MIN_EVIDENCE_GAIN * n_merged else single


def match_of_size(
    ensemble: Ensemble, n_components: int, by_divergence: Labels, *, exclusive: bool
) -> Assignment | None:
    """Return the matching of a given number of components by evidence; None where that by divergence is better.

    The matching by evidence comes from the path of ``match_by_evidence``. It cannot place components of hardly any
    observations; each site's are assigned last, to groups that the site has not used. The one of the smaller virtual
    loss is kept, by the same draws, or for families without one that by evidence. `by_divergence` (L,) minimises
    equation (6) of Claici et al. 2020; `exclusive` is as in ``match_by_evidence``.
    """
    judged = judge(ensemble)
    matching = judged.selection.of_size(n_components)
    if matching is None:
        return None
    labels = place_thin(ensemble, judged.expand(matching.labels, -1), judged.unit_of_row < 0)
    # The losses of one partition differ by rounding, which is not worth the densities of very many components.
    if len(labels) > MAX_SEARCHED_ROWS and is_same_partition(labels, by_divergence):
        return describe_matching(ensemble, judged, matching, labels, {})
    loss = virtual_loss_of(ensemble)
    if loss is not None:
        labels = labels if exclusive else place_strays(ensemble, labels, judged.unit_of_row < 0, loss)
        difference, error = mean_and_error(loss.differences(labels, by_divergence))
        # Rounding of the losses of one partition may be many times its standard error.
        if difference > N_ERRORS * error and not is_same_partition(labels, by_divergence):
            return None
    del loss  # it may fill the memory
    return describe_matching(ensemble, judged, matching, labels, {})


def match_topics(ensemble: Ensemble, topics: TopicNumber, n_topics: int | None = None) -> Assignment:
    """Return the matching of topics in a given number, or in the selected one, with what it loses."""
    labels = topics.labels(topics.selected if n_topics is None else n_topics)
    loss, error = topics.loss(labels)
    curve = {str(most_lost): topics.smallest(most_lost) for most_lost in STATED_LOSSES}
    details: PosteriorDetails = {
        "path": [{"n_components": number, "criterion": value} for number, value in topics.path_losses().items()],
        "number": {"topics_at_loss": curve, "virtual_loss": {"documents": loss}, "virtual_loss_error": error},
    }
    if n_violations := count_violations(ensemble, labels):
        details["violations"] = n_violations
    confidence, diagnostics = diagnose(ensemble, labels)
    is_limited = n_topics is None and topics.max_topics is not None and loss > MAX_LOSS
    return Assignment(
        labels,
        loss,
        np.array([loss]),
        Status.AT_CAPACITY if is_limited else Status.CONVERGED,
        confidence=confidence,
        details={**details, **diagnostics},
    )


def count_violations(ensemble: Ensemble, labels: Labels) -> int:
    """Return how many components share a group with an earlier one of their own model."""
    matched = np.flatnonzero(labels >= 0)
    return len(matched) - np.unique(np.stack([labels[matched], ensemble.owner[matched]]), axis=1).shape[1]


def describe_matching(
    ensemble: Ensemble, judged: Judged, matching: SearchedMatching, labels: Labels, number: NumberDetails
) -> Assignment:
    """Return a matching of all components with its diagnostics.

    `matching` is that of the units that were judged, `labels` (L,) the same of all components, with what the search
    left out put where it fits, and `number` what else is reported of the number of components.
    """
    by_number = judged.selection.evidence_by_number()
    if matching is not judged.selection.selected.matching:  # one of a number that was given
        by_number[matching.n_groups] = max(by_number[matching.n_groups], matching.evidence)
    evidences = np.array(list(by_number.values()))
    probabilities = np.exp(evidences - evidences.max())
    probabilities /= probabilities.sum()
    support = {
        str(n_components): round(float(probability), 4)
        for n_components, probability in zip(by_number, probabilities, strict=True)
        if probability >= MIN_NAMED_PROBABILITY
    }
    details: PosteriorDetails = {
        "path": [{"n_components": n_components, "criterion": -value} for n_components, value in by_number.items()],
        "number": {**number, "probability": support},
    }
    is_judged = judged.unit_of_row >= 0
    n_merged = int(np.count_nonzero(is_judged)) - len(judged.stack.natural)
    if n_merged:
        details["number"]["merged_within_models"] = n_merged
    if n_violations := count_violations(ensemble, labels):
        details["violations"] = n_violations
    strays = np.flatnonzero(is_judged & (judged.expand(matching.labels, -1) < 0))
    if n_out := int(np.count_nonzero(~is_judged & (labels < 0))):
        details["left_out"] = n_out
    far_sites = find_far_sites(judged.stack, matching.labels)
    outliers = describe_outliers(tuple(ensemble.names), ensemble.owner[strays], labels[strays] >= 0, far_sites)
    confidence, diagnostics = _diagnostics(judged.stack, matching, outliers)
    return Assignment(
        labels,
        -matching.evidence,
        np.array([-matching.evidence]),
        confidence=None if confidence is None else judged.expand(confidence, np.nan),
        details={**details, **diagnostics},
    )


def diagnose(ensemble: Ensemble, labels: Labels) -> tuple[Array | None, PosteriorDetails]:
    """Return the confidence of each match (L,) of any method's matching, and its other diagnostics.

    Of several components of one site in one group only that nearest to the group's mean is its copy there; the others
    have no confidence (NaN). Ensembles of more than 5,000 components have none: None and an empty dictionary.
    """
    if len(labels) > MAX_DIAGNOSED_ROWS:
        return None, {}
    stack, rows = likelihood_stack(ensemble)
    stack_labels = _one_per_site(stack, consecutive(labels[rows]))  # (L',): of the components that are judged
    problem = RandomEffects(stack)
    prior = fit_lenient_prior(np.bincount(stack_labels[stack_labels >= 0]), stack.n_sites)
    start = np.exp(np.mean(np.log(FIRST_HETEROGENEITIES))) * problem.unit
    heterogeneity, evidence = problem.fit_heterogeneity(stack_labels, start, prior)
    matching = SearchedMatching(stack_labels, heterogeneity, prior, evidence, True)
    none, far_sites = np.zeros(0, dtype=np.int64), find_far_sites(stack, stack_labels)
    outliers = describe_outliers(tuple(ensemble.names), none, none > 0, far_sites)
    confidence, diagnostics = _diagnostics(stack, matching, outliers)
    assignment = expand_assignment(Assignment(stack_labels, confidence=confidence), rows, len(labels))
    return assignment.confidence, diagnostics


def _one_per_site(stack: Stack, labels: Labels) -> Labels:
    """Return labels (L',) with one component of a site in a group at most: that nearest to the mean of the group."""
    rows = np.flatnonzero(labels >= 0)
    means = group_sums(stack.natural, labels, stack.row_weights, int(labels.max(initial=-1)) + 1).means()
    divergences = stack.family.kl_pairs(means[labels[rows]], stack.natural[rows])
    # Sorted by site and group, the nearest first: what follows another row of its site and group is beside it.
    by_site = rows[np.lexsort((divergences, labels[rows], stack.owner[rows]))]
    is_beside = (np.diff(stack.owner[by_site], prepend=-1) == 0) & (np.diff(labels[by_site], prepend=-1) == 0)
    result = labels.copy()
    result[by_site[is_beside]] = -1
    return result


def _diagnostics(
    stack: Stack, matching: SearchedMatching, outliers: list[Outlier]
) -> tuple[Array | None, PosteriorDetails]:
    """Return the confidence of each match (L',) and, as JSON values, heterogeneity (B,) and outliers."""
    labels = matching.labels
    has_copies = bool(np.bincount(labels[labels >= 0], minlength=1).max() > 1)
    heterogeneity = matching.heterogeneity.tolist() if has_copies else [None] * len(matching.heterogeneity)
    diagnostics: PosteriorDetails = {"heterogeneity": dict(zip(stack.family.part_names, heterogeneity, strict=True))}
    if outliers:
        diagnostics["outliers"] = outliers
    if len(labels) > MAX_DIAGNOSED_ROWS:
        return None, diagnostics
    objective = RandomEffects(stack).groups(matching.heterogeneity, matching.prior)
    return match_confidence(objective, labels, objective.value), diagnostics


FAR_SITE_RATIO = 8.0
"""Distance of a far site, in median distances of all sites. Chosen by hand; nobody has measured other values."""
FAR_SITE_IQRS = 3.0
"""Distance of a far site beyond the third quartile, in interquartile ranges: Tukey's (1977) "far out" fence."""
FAR_SITE_NATS = 1.0
"""Divergence below which no site is far, however alike all others are. Chosen by hand."""
MIN_SITES_FOR_QUARTILES = 5
"""Sites below which no site is called far: quartiles of fewer say nothing. Chosen by hand."""


def find_far_sites(stack: Stack, labels: Labels) -> dict[int, str]:
    """Return the sites that do not belong, and why.

    The distance of a site is the mean divergence of its components from the barycenters of the other members of their
    groups, d_j = mean_{l in j} KL(mean_{k in g(l), k != l} eta_k || eta_l), over its components that are shared. Far is
    more than eight times the median of all sites and beyond the third quartile by three times the interquartile range.
    A site of several components of which none is shared is named too, if most sites share theirs.

    The stack is of what the data say, not discounted: an outlier makes copies look more different than they are.
    """
    site_distances = _site_distances(stack, labels)  # (J,), NaN where nothing is shared
    sites = np.flatnonzero(~np.isnan(site_distances))
    distances = site_distances[sites]
    reasons = {}
    if len(sites) >= MIN_SITES_FOR_QUARTILES:
        lower, median, upper = np.quantile(distances, [0.25, 0.5, 0.75])
        fence = max(FAR_SITE_NATS, FAR_SITE_RATIO * median, upper + FAR_SITE_IQRS * (upper - lower))
        for index in np.flatnonzero(distances > fence):
            ratio = distances[index] / median
            reasons[int(sites[index])] = f"its components are {ratio:.0f} times as far from what they match as is usual"
    if len(sites) > stack.n_sites / 2:
        unmatched = np.setdiff1d(np.flatnonzero(stack.sizes > 1), sites)
        reasons |= {int(site): "none of its components is found at another site" for site in unmatched}
    return reasons


def _site_distances(stack: Stack, labels: Labels) -> Array:
    """Return d_j of each site (J,); NaN where nothing is shared."""
    sums: GroupSums = group_sums(stack.natural, labels, np.ones(len(labels)), int(labels.max()) + 1)
    shared = np.flatnonzero((labels >= 0) & (sums.mass[labels] > 1))

    def divergences_of(chunk: slice) -> Array:
        rows = shared[chunk]
        other_means = sums.sums[labels[rows]] - stack.natural[rows]  # (n, P): leave one out
        other_means /= (sums.mass[labels[rows]] - 1.0)[:, None]
        return stack.family.kl_pairs(other_means, stack.natural[rows])

    divergences = map_rows(len(shared), stack.family.size, divergences_of) if len(shared) else np.zeros(0)
    owner, n_sites = stack.owner[shared], stack.n_sites
    n_shared = np.bincount(owner, minlength=n_sites)
    return np.bincount(owner, weights=divergences, minlength=n_sites) / np.where(n_shared, n_shared, np.nan)


def describe_outliers(
    names: tuple[str, ...], stray_sites: Labels, is_placed: NDArray[np.bool_], far_sites: dict[int, str]
) -> list[Outlier]:
    """Return why which site is an outlier, with ``name``, ``why`` and ``whole_site``, by name.

    `stray_sites` (n,) has the site of each component that the search left out as a stray, `is_placed` (n,) whether it
    was put into a group afterwards, and `far_sites` is from ``find_far_sites``.
    """
    records: list[Outlier] = []
    for placed, ending in ((False, "left out"), (True, "put where most of it fits")):
        for site, count in zip(*np.unique(stray_sites[is_placed == placed], return_counts=True), strict=True):
            subject, verb = ("1 component looks", "was") if count == 1 else (f"{count} components look", "were")
            reason = (
                f"{subject} like a blend or a second copy of others, as after a fit gone wrong, and {verb} {ending}"
            )
            records.append({"name": names[int(site)], "why": reason, "whole_site": False})
    records += [{"name": names[site], "why": reason, "whole_site": True} for site, reason in far_sites.items()]
    return sorted(records, key=lambda record: record["name"])


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

    One after another, the best explained first; `is_thin` components could not be judged, so nothing is asked of them.
    Loss is that of the virtual draws, without a margin: to leave a component out is no more cautious than to place it.
    """
    strays = np.flatnonzero((labels < 0) & ~is_thin)
    if not strays.size:
        return labels
    centres = group_sums(ensemble.natural, labels, ensemble.row_weights, int(labels.max()) + 1).means()
    divergences = ensemble.family.kl(centres, ensemble.natural[strays])  # (G, n)
    order = np.argsort(divergences.min(axis=0), kind="stable")
    return loss.grown(labels, strays[order], divergences.argmin(axis=0)[order])
