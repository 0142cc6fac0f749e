"""Selection of a matching and its number of groups: two priors over matchings, and the virtual loss between them.

The strict prior merges what sites do not share, however clear it is; the lenient one keeps every blend of overlapping
fits. Neither is right everywhere: where the matching under the strict one loses anything, both are searched, and the
virtual loss, in nats of the user's data, decides. The lenient matching is taken if the strict one loses more by the
greatest of 0.1 nats per observation, a quarter of its loss, and two standard errors of the difference. The quarter is
for sites that truly differ, where everything loses.
Where what was chosen loses so much, and components are no nearer to those of other sites than by chance,
sites share nothing, and the matching without heterogeneity is taken if it loses less by as much again.
Components of fits gone wrong are then left out (``strays``), and where the matching is below another one on its own
path that one is taken, in turn. Families without a virtual loss take the strict matching.

Where the number is given, the matching comes from the same path at the same heterogeneity (``Selection.of_size``).

**Whether sites share anything**: nearer to the components of other sites than they would be by chance.

A fit of the heterogeneity finds copies in anything: of sites that share nothing it makes groups whose members differ as
much as any two components do. What evidence does not know is how near the components of unrelated sites come to each
other by chance. Turning shows it: if sites share nothing, the components of one are as probable turned as a whole about
the common centre. With the mean covariance of a component as the metric,

    T = mean_l log min_{k: site(k) != site(l)} |m_k - m_l|^2,    score = (T - mean(T)) / sd(T),

mean and deviation over random turns of all sites. A turn keeps all distances within a site and from the centre; it says
nothing in one dimension, nor of sites of one component.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from consilience.checks import Array, Labels
from consilience.families.chunks import LazyRows, as_lazy_array
from consilience.families.evidence import MAX_KEPT_ROWS
from consilience.posteriors.ensemble import Stack
from consilience.posteriors.evidence.search import (
    MAX_SEARCHED_ROWS,
    EvidenceSearch,
    SearchedMatching,
    is_same_partition,
    shuffled,
    steady_order,
)
from consilience.posteriors.evidence.strays import MAX_STRAY_ROUNDS, without_strays
from consilience.posteriors.evidence.virtual_loss import N_FIRST_DRAWS, N_FURTHER_DRAWS, VirtualLoss, mean_and_error

MIN_LOSS = 0.1
"""Nats per observation that a merged matching must lose before more components are kept. Chosen by eye on simulations;
experiments/battery judges it on others."""
MIN_LOSS_SHARE = 0.25
"""The same in units of the loss: sites that differ lose in any matching. Judged as ``MIN_LOSS``."""
MIN_NARROW_LOSS, MIN_NARROW_LOSS_SHARE = 1.0, 0.5
"""The same where densities are of parameters: they are narrow, and lose in any matching. Chosen by hand."""
N_ERRORS = 2.0
"""The same in standard errors of the difference; and how many deviations nearer than by chance copies must be."""

MIN_OWN_GAIN = 12.0
"""Nats for each component less by which a matching must be the better one where each group has a heterogeneity of its
own: as between merged and single components (``split_components``)."""

N_CLEAR_ERRORS = 4.0
"""Standard errors above a bound at which a loss, or a difference, of few draws is clear: else all draws decide."""


@dataclass(frozen=True, eq=False)
class SelectedMatching:
    """A matching whose number of groups was selected."""

    matching: SearchedMatching
    prior_name: str  # "strict" or "lenient", under which it was found
    losses: dict[str, float] = field(default_factory=dict)  # of both matchings, in nats per observation, if compared
    shares_nothing: bool = False  # whether sites share no component by ``nearness_score``


class Selection:
    """The selection among the matchings of one stack, which says what the sites' data say; see ``likelihood_stack``.

    Without losses of matchings of these components the strict prior decides. `near` is a matching of almost the same
    components: searches then start from its heterogeneity only, under its prior only.
    """

    def __init__(
        self,
        stack: Stack,
        loss: VirtualLoss | None,
        max_groups: int | None = None,
        near: SelectedMatching | None = None,
    ) -> None:
        self._order = steady_order(stack.natural, stack.owner)
        start = None if near is None else near.matching.heterogeneity
        self._search = EvidenceSearch(in_order(stack, self._order), max_groups, start)
        self._loss, self._near = loss, near

    @cached_property
    def selected(self) -> SelectedMatching:
        """The matching of the greatest evidence under the prior that the virtual loss chooses."""
        if self._near is not None:
            searches = {"strict": self._search.strict, "lenient": self._search.lenient}
            search = self._search.apart if self._near.shares_nothing else searches[self._near.prior_name]
            return replace(self._near, matching=self._finished(search()))
        chosen, name, losses, shares_nothing = self._search.strict(), "strict", dict[str, float](), False
        if self._loss is not None and self._may_lose(self._loss, self._of_input(chosen.labels)):
            lenient = self._search.lenient()
            if not is_same_partition(chosen.labels, lenient.labels):
                strict_labels, lenient_labels = self._of_input(chosen.labels), self._of_input(lenient.labels)
                losses, is_lenient = compare_losses(self._loss, strict_labels, lenient_labels)
                if is_lenient:
                    chosen, name = lenient, "lenient"
            if name == "strict" or self._may_lose(self._loss, self._of_input(chosen.labels)):
                apart = self._unless_shared(self._loss, chosen)
                if apart is not None:
                    chosen, name, shares_nothing = apart, "lenient", True
        return SelectedMatching(self._finished(chosen), name, losses, shares_nothing)

    def _unless_shared(self, loss: VirtualLoss, chosen: SearchedMatching) -> SearchedMatching | None:
        """Return the matching without heterogeneity where sites share nothing and the chosen one loses more.

        Of more than ``MAX_SEARCHED_ROWS`` components it is not looked for: it has about as many groups.
        """
        if not loss.describes_data or len(chosen.labels) > MAX_SEARCHED_ROWS:
            return None
        labels, owner = self._of_input(chosen.labels), self._of_input(self._search.problem.stack.owner)
        score = nearness_score(loss, owner if loss.unit_of_row is None else owner[loss.unit_of_row])
        if score is None or score < -N_ERRORS:
            return None
        apart = self._search.apart()
        return apart if compare_losses(loss, labels, self._of_input(apart.labels))[1] else None

    def _finished(self, matching: SearchedMatching) -> SearchedMatching:
        """Return a matching without strays, the best on its own paths, its rows in the order of the given stack.

        A matching that is taken from a path has groups that nobody has looked for strays in.
        """
        search = self._search
        matching = without_strays(search, matching)
        for _ in range(MAX_STRAY_ROUNDS):
            better = search.best_of_its_paths(matching)
            if better is matching:
                break
            matching = without_strays(search, better)
        return self._by_input(self._unless_own(search.best_of_its_paths(matching)))

    def _unless_own(self, matching: SearchedMatching) -> SearchedMatching:
        """Return a matching on the paths of this one that is clearly better where groups have their own heterogeneity.

        Members of a group that differ more than others' are also what two components that overlap look like as one.
        """
        if not self._search.problem.has_own:
            return matching
        own = self._search.with_own(matching)
        better = self._search.best_of_its_paths(own)
        n_less = max(1, matching.n_groups - better.n_groups)
        return better if better.evidence > own.evidence + MIN_OWN_GAIN * n_less else matching

    @cached_property
    def _few_draws(self) -> VirtualLoss:
        """The losses by a few draws, whose densities are computed once."""
        assert self._loss is not None  # noqa: S101  (narrows the type)
        return replace(self._loss, n_draws=N_FIRST_DRAWS)

    def _may_lose(self, loss: VirtualLoss, labels: Labels) -> bool:
        """Return whether the strict matching may lose enough for another one to be taken: none loses less than nothing.

        A few draws tell a clear loss, all of them that there is none.
        """
        least = _least_loss(loss)[0]
        if _is_clearly_above(self._few_draws.by_draw(labels), least):
            return True
        mean, error = loss(labels)
        return mean + N_ERRORS * error > least

    def loses_less_than(self, labels: Labels) -> bool:
        """Return whether the selected matching loses clearly less than another one (L,), or nothing is known of it.

        A few draws tell a clear difference, and all of them any other.
        """
        if self._loss is None:
            return True
        selected, (least, share) = self.selected.matching.labels, _least_loss(self._loss)
        few = self._few_draws
        losses, gains = few.by_draw(labels), few.differences(labels, selected)
        if _is_clearly_above(gains, least) and _is_clearly_above(gains - share * losses, 0.0):
            return True
        return compare_losses(self._loss, labels, selected)[1]

    def evidence_by_number(self) -> dict[int, float]:
        """Return the log evidence of the best matching of each number of groups that agglomeration passed.

        All at the heterogeneity and prior of the selected matching, whose own evidence is among them, and exceeded by
        none but within rounding; components that are in none of its groups are in none of any.
        """
        matching = self._in_order(self.selected.matching)
        by_number = {matching.n_groups: matching.evidence}
        offset = matching.evidence - self._search.total(matching)
        for path in self._search.paths(matching):
            for n_groups, total in zip(path.n_groups.tolist(), (path.totals + offset).tolist(), strict=True):
                if self._search.max_groups is None or n_groups <= self._search.max_groups:
                    by_number[n_groups] = max(by_number.get(n_groups, -np.inf), total)
        return dict(sorted(by_number.items()))

    def of_size(self, n_groups: int) -> SearchedMatching | None:
        """Return the matching of a given number of groups at the heterogeneity of the selected one; None without one.

        From the selected groups downwards or, where more are wanted, from every component by itself; then site by site
        with no group opened and none emptied, and the heterogeneity is fitted once.
        """
        matching = self.selected.matching
        if n_groups == matching.n_groups:
            return matching
        paths = self._search.paths(self._in_order(matching))
        if len(paths) < 2:  # too many components, or groups, for paths from both
            return None
        path = paths[0] if n_groups < matching.n_groups else paths[1]
        if not path.n_groups[-1] <= n_groups <= path.n_groups[0]:
            return None
        labels = path.labels(int(path.n_groups[0]) - n_groups)
        objective = self._search.judged_groups(matching)
        labels = self._search.ascend_in_size(objective, labels)
        return self._by_input(replace(self._search.refitted(matching, labels), converged=True))

    def _by_input(self, matching: SearchedMatching) -> SearchedMatching:
        """Return a matching with its rows in the order of the stack that was given."""
        return replace(matching, labels=self._of_input(matching.labels))

    def _of_input(self, labels: Labels) -> Labels:
        """Return labels of rows in the order of the search as those of the stack that was given (L,)."""
        of_input = np.empty_like(labels)
        of_input[self._order] = labels
        return of_input

    def _in_order(self, matching: SearchedMatching) -> SearchedMatching:
        """Return a matching with its rows in the order of the search."""
        return replace(matching, labels=matching.labels[self._order])


def compare_losses(loss: VirtualLoss, strict: Labels, lenient: Labels) -> tuple[dict[str, float], bool]:
    """Return the virtual losses of a matching and of one that merges less, and whether that is to be taken."""
    least, share = _least_loss(loss)
    for n_draws in (loss.n_draws, N_FURTHER_DRAWS):
        drawn = loss if n_draws == loss.n_draws else replace(loss, n_draws=n_draws)
        by_draw: tuple[Array, Array] = (drawn.by_draw(strict), drawn.by_draw(lenient))
        difference, error = mean_and_error(by_draw[0] - by_draw[1])
        strict_loss = float(by_draw[0].mean())
        threshold = max(least, share * strict_loss)
        if abs(difference - threshold) >= N_ERRORS * error:
            break
    is_lenient = difference > max(threshold, N_ERRORS * error)
    return {"strict": strict_loss, "lenient": float(by_draw[1].mean())}, is_lenient


def _is_clearly_above(values: Array, bound: float) -> bool:
    """Return whether the mean of few draws (n,) is so far above a bound that all draws would say the same."""
    mean, error = mean_and_error(values)
    return mean - N_CLEAR_ERRORS * error > bound


def _least_loss(loss: VirtualLoss) -> tuple[float, float]:
    """Return what a matching must lose for another to be taken, in nats and as a share of its loss."""
    return (MIN_LOSS, MIN_LOSS_SHARE) if loss.describes_data else (MIN_NARROW_LOSS, MIN_NARROW_LOSS_SHARE)


def in_order(stack: Stack, order: Labels) -> Stack:
    """Return the stack with its rows in an order in which those of every site are together; empty sites come last.

    Very many rows are gathered when asked for, so that they are not there twice.
    """
    owner = stack.owner[order]
    sizes = np.diff(np.flatnonzero(np.diff(owner, prepend=-1, append=-1)))
    offsets = np.full(stack.n_sites + 1, len(order), dtype=np.int64)
    offsets[: len(sizes) + 1] = np.concatenate([[0], np.cumsum(sizes)])
    natural = stack.natural
    if len(order) > MAX_KEPT_ROWS:
        gathered = as_lazy_array(LazyRows(natural.shape, lambda rows: natural[order[rows]]))
    else:
        gathered = natural[order]
    return Stack(stack.family, gathered, offsets, stack.row_weights[order])


N_TURNS = 20
"""Random turns, which give the deviation to a sixth of itself."""
MAX_TURNED_ROWS = 400
"""Components of a sample of the sites that are turned, about: more only make clearer what is clear. For its cost."""
SMALLEST_SQUARE = float(np.finfo(np.float64).eps)
"""Squared distance, in widths of a component, below which two are in one place."""


def nearness_score(loss: VirtualLoss, owner: Labels) -> float | None:
    """Return by how many standard deviations components are nearer to other sites' (below zero) than by chance.

    About zero where sites share nothing; None where turns say nothing. `owner` (L,) is the site of each component of
    `loss`.
    """
    sites = _sample_of_sites(np.arange(len(owner)) if loss.order is None else loss.order, owner)
    if loss.means.shape[1] < 2 or sum(len(site) > 1 for site in sites) < 2:
        return None
    rows = np.concatenate(sites)
    means = _in_widths(loss.means[rows] - loss.means[rows].mean(axis=0), loss.covariances[rows])  # (n, D)
    spans, rng = _spans(means, [len(site) for site in sites]), np.random.default_rng(0)
    is_same_site = owner[rows][:, None] == owner[rows]
    by_turn = np.array([_log_nearest(turned, is_same_site) for turned in _turned(spans, means.shape, rng)])
    deviation = float(by_turn.std(ddof=1))
    return (_log_nearest(means, is_same_site) - float(by_turn.mean())) / deviation if deviation > 0.0 else None


def _sample_of_sites(order: Labels, owner: Labels) -> list[Labels]:
    """Return the rows of every site, or of as many of them as have about ``MAX_TURNED_ROWS`` together."""
    sites = np.split(order, np.flatnonzero(np.diff(owner[order])) + 1)
    sites = [sites[number] for number in shuffled(len(sites)).tolist()]
    n_rows = np.cumsum([len(site) for site in sites])
    return sites[: max(2, int(np.searchsorted(n_rows, MAX_TURNED_ROWS, side="right")))]


def _in_widths(means: Array, covariances: Array) -> Array:
    """Return means (n, D) in the metric of the mean of covariances (n, D, D), or of variances (n, D)."""
    usual = covariances.mean(axis=0)
    if usual.ndim == 1:
        return means / np.sqrt(usual)
    return solve_triangular(np.linalg.cholesky(usual), means.T, lower=True).T


def _spans(means: Array, sizes: list[int]) -> list[tuple[Labels, Array]]:
    """Return, for every size k, the rows of the sites of that size (m, k) and their coordinates (m, r, k).

    The coordinates are in an orthonormal basis of what a site's rows span, of r = min(k, D) dimensions.
    """
    starts, spans = np.cumsum([0, *sizes[:-1]]), []
    for size in np.unique(sizes).tolist():
        rows = starts[np.array(sizes) == size][:, None] + np.arange(size)
        spans.append((rows, np.linalg.qr(means[rows].transpose(0, 2, 1))[1]))
    return spans


def _turned(spans: list[tuple[Labels, Array]], shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return centred means (turns, n, D), each time with each site turned about the origin by a random rotation."""
    normals = [
        [rng.standard_normal((len(rows), shape[1], size.shape[1])) for rows, size in spans] for _ in range(N_TURNS)
    ]
    turned = np.empty((N_TURNS, *shape))
    for (rows, coordinates), of_span in zip(spans, zip(*normals, strict=True), strict=True):
        basis, triangle = np.linalg.qr(np.stack(of_span))
        signs = np.sign(np.diagonal(triangle, axis1=2, axis2=3))  # with them, by Haar's measure
        turned[:, rows] = ((basis * signs[:, :, None, :]) @ coordinates).transpose(0, 1, 3, 2)  # (turns, m, k, D)
    return turned


def _log_nearest(means: Array, is_same_site: Array) -> float:
    """Return T of means (n, D)."""
    squares = np.sum(means**2, axis=1)
    distances = squares[:, None] + squares - 2.0 * (means @ means.T)
    distances[is_same_site] = np.inf
    return float(np.log(np.maximum(distances.min(axis=1), SMALLEST_SQUARE)).mean())
