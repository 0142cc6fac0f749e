"""Gate and sum: which sites' sums are added when sites are not trusted (``robust=True``).

A sum has breakdown 0: one site decides it. So sites are judged by what their own sums say, in coordinates that no count
changes, and the sums of the others are added, each cut to the median number of rows, and those of regressions to what
the usual site tells in every direction (`credible_information`). What comes out is the estimator of the rows of the
sites that are kept: exactness survives.

    z_j = rms over coordinates of (v_j - med v) / (1.4826 mad);   left out: z_j > 3 med z, the worst first, fewer than
    half

v_j are the coefficients of a regression (S_xx^-1 S_xy, and its value where the columns have their median means), whose
residual variance may differ by a factor of 4 from the median one besides; else the means and the logarithms of the
variances, the correlations, or the shares of what is counted, of every class that more than half of the sites have; a
site is judged by those that it has, and by the columns that vary at it. Were it the classes that all have, one site of
other classes would leave nothing to judge any site by. Correlations are many, so they have a score of their own, and
the larger one counts. Copies of each other count as one site (`core.robust`), and are told before anything else. The
rows of a regression that are sent again with other targets are copies, too: sites whose columns have nearly the same
means and variances. Since columns may be designed, the coefficients of copies are nearer, too, than those of honest
sites but once in a hundred.

A class that half of the sites or fewer have says nothing of a whole site, and is judged by itself: among its holders,
where these are three or more, by the same score with a spread no smaller than that of the classes which most have, and
what a holder beyond says of this class alone is left out. Of a class of one or two sites nothing tells who is right: it
is withheld. Estimators whose sums are of all classes together keep such classes, and the details name them.

What this is no defence against: sums that lie within the honest range. Colluding sites at one and a half deviations of
the coefficients move them as far as they move the plain sum. Nor against half of the holders of one rare class.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array
from consilience.core.robust import (
    COPY,
    MAX_DEVIATION,
    MIN_VOTES,
    NORMAL_MAD,
    ROUNDING,
    Judgement,
    cap_factors,
    copies_of_another,
    spread_of,
    too_few,
)
from consilience.errors import Problem
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.credible_information import centre_of, coefficients_about, cut_information, has_columns
from consilience.estimators.details import GateDetails, LeftOutOfClass
from consilience.estimators.statistics import INFORMATION, ROWS, SHIFT, Statistics
from consilience.families.centred_moments import CentredMoments

MAX_SCORE = 3.0
"""Score, in the median score, beyond which a site is left out; 0.03 honest sites of ten are (40 draws of eight
coefficients at 200 rows a site)."""

MAX_VARIANCE_RATIO = 4.0
"""Ratio of a residual variance to the median one, either way, that honest sites do not reach at 200 rows."""

MAX_CORRELATION = 1.0 - 1e-12
"""Correlation beyond which columns are one: Fisher's z is 14 there."""

UNSEEN = 0.5
"""Count of what was never seen, before its logarithm: Jeffreys' prior."""


@dataclass(frozen=True)
class GatedSites:
    """Which sites (J,) are kept, their sums, cut to the median number of rows, and who was left out of what."""

    kept: NDArray[np.bool_]
    statistics: tuple[Statistics, ...]
    details: GateDetails


def robust_problems(sites: Sequence[tuple[str, Statistics]]) -> list[Problem]:
    """Return why sums of these sites cannot be gated, a line each."""
    first = sites[0][1]
    if problems := too_few("`robust=True`", "", len(sites), "sites"):
        return problems
    if first.maxima or INFORMATION in first.counts or SHIFT in first.counts:
        text = f"is not known for a {first.kind}, whose sums do not say what one site would have fitted"
        return [Problem("`robust=True`", text, "leave it out")]
    if first.classes is not None and not adapter_of_kind(first.kind).pools_classes:
        places = _places_of_classes([site for _, site in sites])
        if max(map(len, places.values())) < MIN_VOTES:
            text = "needs a class that at least 3 sites have: of two, none tells which is right"
            return [Problem("`robust=True`", text, "leave it out")]
    if is_regression(first):
        return [
            Problem(
                name,
                f"has {site.n_observations:g} rows for {site.n_columns} coefficients, which `robust=True` judges it by",
                "leave the site out, or robust",
                "E-SHAPE",
            )
            for name, site in sites
            if site.n_observations <= site.n_columns
        ]
    return []


def gate(sites: Sequence[tuple[str, Statistics]]) -> GatedSites:
    """Return the sums of the sites that are kept, and the others by name, of sites without `robust_problems`."""
    names, statistics = [name for name, _ in sites], [site for _, site in sites]
    with np.errstate(all="ignore"):
        judgement = _judge_whole(statistics)
        outside, rare_details = _judge_rare_classes(names, statistics, judgement.kept)
    sums = list(statistics)
    for number, site in enumerate(statistics):
        believed = _without_classes(
            site, [label for label, sites_outside in outside.items() if number in sites_outside]
        )
        if believed is not None:
            sums[number] = believed
        elif number not in judgement.steps:
            judgement.steps[number] = "no class that enough sites have"
    rows = np.array([site.n_observations for site in sums])
    factors = cap_factors(rows, float(np.median(rows))).tolist()
    chosen = np.flatnonzero(judgement.kept).tolist()
    details: GateDetails = {
        **judgement.details(names),
        "cut": [names[site] for site in chosen if factors[site] < 1.0],
        **rare_details,
    }
    kept = [scaled_sums(sums[site], factors[site]) for site in chosen]
    if is_regression(kept[0]):
        kept, largest = cut_information(kept)
        told = zip(chosen, largest.tolist(), strict=True)
        if beyond := {names[site]: float(f"{ratio:.3g}") for site, ratio in told if ratio > 1.0}:
            details["cut_information"] = beyond
    return GatedSites(judgement.kept, tuple(kept), details)


def _judge_whole(statistics: Sequence[Statistics]) -> Judgement:
    """Return which sites are left out, by what the sums of all classes that most have say."""
    said = _coordinates(statistics)
    judgement = Judgement(np.full(len(statistics), np.nan), {})
    everyone = np.ones(len(statistics), dtype=np.bool_)
    columns = [_moments_of_columns(statistics)] if is_regression(statistics[0]) else []
    judgement.leave_out(np.flatnonzero(_copies(said, columns, everyone, judgement.n_left)), COPY)
    kept = judgement.kept
    scores = np.max([_scores(one, kept) for one in said], axis=0)  # (J,)
    judgement.scores[kept] = scores[kept]
    variances = np.array([_residual_variances(site) for site in statistics])  # (J, q), q = 0 without targets
    ratios = np.abs(np.log(variances / np.median(variances[kept], axis=0))).max(axis=1, initial=0.0)
    ratios = np.where(np.isnan(ratios), np.inf, ratios)
    excess = np.maximum(scores / MAX_SCORE, ratios / np.log(MAX_VARIANCE_RATIO))
    judgement.leave_out_worst(excess, None if np.isfinite(ratios).all() else np.lexsort((-scores, -ratios)))
    return judgement


@dataclass(frozen=True, eq=False)
class _Said:
    """What sites say (J, P), and which of it each knows; of each number more than half of them do."""

    values: Array
    is_known: NDArray[np.bool_]

    @classmethod
    def by_all(cls, values: Sequence[Array]) -> _Said:
        """Return what all sites say."""
        stacked = np.stack(values)
        return cls(stacked, np.ones(stacked.shape, dtype=np.bool_))

    def deviations(self, chosen: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Return deviations (J, P) from the median of the chosen sites, and their spread (P,) among these."""
        values = np.where(np.isfinite(self.values), self.values, np.finfo(np.float64).max ** 0.25)
        known = np.where(self.is_known & chosen[:, None], values, np.nan)
        centre = np.nanmedian(known, axis=0)
        # The same rows in another order have sums that differ by rounding, which is no deviation.
        is_rounding = np.abs(values - centre) <= ROUNDING * np.abs(centre)
        deviations = np.where(is_rounding | ~self.is_known, 0.0, values - centre)
        spread = np.nanmedian(np.where(np.isnan(known), np.nan, np.abs(deviations)), axis=0)
        return deviations, NORMAL_MAD * np.nan_to_num(spread)


def _scores(said: _Said, chosen: NDArray[np.bool_]) -> Array:
    """Return the distance (J,) of each site from the median of the chosen ones, in the usual distance of these."""
    deviations, spread = said.deviations(chosen)
    moves = spread > 0
    n_known = np.count_nonzero(said.is_known[:, moves], axis=1)
    distances = np.sqrt(np.sum((deviations[:, moves] / spread[moves]) ** 2, axis=1) / np.maximum(n_known, 1))
    judged = chosen & (n_known > 0)
    usual = float(np.median(distances[judged])) if judged.any() else 0.0
    scores = np.where(distances > 0.0, distances / usual if usual > 0 else np.inf, 0.0)
    # Where most sites agree to the last bit, any other value is infinitely far.
    farthest: Array = np.where((deviations[:, ~moves] != 0.0).any(axis=1), np.inf, scores)
    return farthest


def _copies(
    said: Sequence[_Said], columns: Sequence[_Said], chosen: NDArray[np.bool_], limit: int
) -> NDArray[np.bool_]:
    """Return which sites (J,) are copies of another, by what they say and by their columns, if these are any."""
    squares, n_shared = _squares(said, chosen)
    if not columns:
        return copies_of_another(np.sqrt(squares), n_shared, limit)
    all_squares, n_all = _squares([*said, *columns], chosen)
    usual = float(np.median(np.sort(squares, axis=1)[:, len(squares) // 2]))  # of each site the median to the others
    relative = squares / usual if 0.0 < usual < np.inf else np.zeros_like(squares)
    return copies_of_another(np.sqrt(all_squares), n_all, limit, relative, n_shared)


def _squares(said: Sequence[_Said], chosen: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return squared distances (J, J), by the numbers that both of a pair know, and how many these are.

    Deviations are cut, so that one number of small spread does not make all sites alike that agree in it.
    """
    n_sites, n_moving = len(chosen), 0
    squares, n_shared = np.zeros((n_sites, n_sites)), np.zeros((n_sites, n_sites))
    for one in said:
        deviations, spread = one.deviations(chosen)
        moves = spread > 0
        is_known, n_moving = one.is_known[:, moves], n_moving + int(np.count_nonzero(moves))
        scaled = np.clip(deviations[:, moves] / spread[moves], -MAX_DEVIATION, MAX_DEVIATION)
        for row, known in enumerate(is_known):
            squares[row] += (np.where(is_known & known, scaled - scaled[row], 0.0) ** 2).sum(axis=1)
        n_shared += is_known.astype(np.float64) @ is_known.T.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(n_shared > 0, squares * (n_moving / n_shared), np.inf), n_shared


def _judge_rare_classes(
    names: Sequence[str], statistics: Sequence[Statistics], kept: NDArray[np.bool_]
) -> tuple[dict[Any, list[int]], GateDetails]:
    """Return who is not believed of classes that half of the sites or fewer have, and a record of it."""
    places = _places_of_classes(statistics)
    rare = {label: of_sites for label, of_sites in places.items() if 2 * len(of_sites) <= len(statistics)}
    if not rare or adapter_of_kind(statistics[0].kind).pools_classes:
        return {}, {"unjudged_classes": sorted(map(str, rare))} if rare else {}
    usual_spread = _usual_spread(statistics, places.values())
    outside: dict[Any, list[int]] = {}
    withheld: list[str] = []
    records: list[LeftOutOfClass] = []
    for label, of_sites in rare.items():
        holders = {site: place for site, place in of_sites.items() if kept[site]}
        if len(holders) < MIN_VOTES:
            withheld.append(str(label))
            outside[label] = list(of_sites)
            continue
        judgement = _judge_class(np.hstack(_values(statistics, holders)), usual_spread)
        outside[label] = [list(holders)[i] for i in judgement.steps]
        records += [
            {"model": record["model"], "class": str(label), "score": record["score"]}
            for record in judgement.left_out([names[site] for site in holders])
        ]
    details: GateDetails = {}
    if withheld:
        details["withheld_classes"] = sorted(withheld)
    if records:
        details["left_out_of_classes"] = records
    return outside, details


def _without_classes(site: Statistics, labels: Collection[Any]) -> Statistics | None:
    """Return the sums of a site without those of some classes; None where it has no others."""
    if not labels or site.classes is None:
        return site
    others = [place for place, label in enumerate(site.classes.values) if label not in labels]
    return adapter_of_kind(site.kind).trimmed(site.some_classes(np.array(others, np.int64))) if others else None


def _usual_spread(statistics: Sequence[Statistics], places: Collection[Mapping[int, int]]) -> Array:
    """Return how much honest sites differ in each coordinate (P,), from the classes where most are there to say it."""
    spreads = [spread_of(np.hstack(_values(statistics, one))) for one in places if 2 * len(one) > len(statistics)]
    return np.median(spreads, axis=0) if spreads else np.zeros(1)


def _judge_class(values: Array, usual_spread: Array) -> Judgement:
    """Return which holders of one class are left out of it, by what each says of it (n, P)."""
    spread = np.maximum(spread_of(values), usual_spread)
    deviations = (values - np.median(values, axis=0)) / np.where(spread > 0, spread, 1.0)
    scores = np.sqrt((np.nan_to_num(deviations, nan=np.inf) ** 2).mean(axis=1))
    judgement = Judgement(scores, {})
    judgement.leave_out_worst(scores / (MAX_SCORE * max(float(np.median(scores)), 1.0)))
    return judgement


def _places_of_classes(statistics: Sequence[Statistics]) -> dict[Any, dict[int, int]]:
    """Return for each class the sites that have it, and its place among the classes of each."""
    places: dict[Any, dict[int, int]] = {}
    for number, site in enumerate(statistics):
        for place, label in enumerate([] if site.classes is None else site.classes.values):
            places.setdefault(label, {})[number] = place
    return places


def _values(statistics: Sequence[Statistics], places: Mapping[int, int]) -> tuple[Array, Array]:
    """Return what some sites say of one class, (n, P) and correlations (n, Q), given its place at each."""
    parts = [_parts(statistics[site], place) for site, place in places.items()]
    return np.stack([one for one, _ in parts]), np.stack([other for _, other in parts])


def scaled_sums(statistics: Statistics, factor: float) -> Statistics:
    """Return the statistics of `factor` times as many rows of the same moments; the same object for 1."""
    if factor == 1.0:
        return statistics
    moments = {
        name: replace(
            record,
            n=record.n * factor,
            weight=record.weight * factor,
            log_weight=record.log_weight * factor,
            scatter=record.scatter * factor,
        )
        for name, record in statistics.moments.items()
    }
    counts = {name: values * factor for name, values in statistics.counts.items()}
    return replace(statistics, moments=moments, counts=counts)


def _coordinates(statistics: Sequence[Statistics]) -> list[_Said]:
    """Return what the sites are judged by, a score for each."""
    first = statistics[0]
    if is_regression(first):
        return [_coefficients(statistics)]
    if first.classes is None:
        said = [_parts(site, None) for site in statistics]
        return [_Said.by_all(some) for some in zip(*said, strict=True) if some[0].size]
    n_sites = len(statistics)
    blocks: list[list[_Said]] = [[_Said.by_all([np.zeros(1)] * n_sites)], []]
    for places in _places_of_classes(statistics).values():
        if 2 * len(places) > n_sites:
            for block, values in zip(blocks, _values(statistics, places), strict=True):
                of_class = np.zeros((n_sites, values.shape[1]))
                is_known = np.zeros(of_class.shape, dtype=np.bool_)
                of_class[list(places)], is_known[list(places)] = values, True
                block.append(_Said(of_class, is_known))
    return [
        _Said(np.hstack([one.values for one in block]), np.hstack([one.is_known for one in block]))
        for block in blocks
        if any(one.values.size for one in block)
    ]


def _parts(site: Statistics, position: int | None) -> tuple[Array, Array]:
    """Return means, log variances and log shares of one class, or of all rows; and the correlations of columns."""
    parts: list[Array] = [np.zeros(1)]
    correlations: list[Array] = [np.zeros(0)]
    for record in site.moments.values():
        chosen = record if position is None else record.at(np.array([position]))
        rows = np.maximum(chosen.weight, 1.0)[..., None]
        parts += [np.ravel(chosen.mean), np.ravel(np.log(chosen.variances / rows + np.finfo(np.float64).tiny))]
        if not chosen.is_diagonal:
            correlations.append(_correlations(chosen))
    for name, values in sorted(site.counts.items()):
        row = np.atleast_1d(values if position is None else values[position])
        if name != ROWS and row.size > 1:
            parts.append(np.ravel(np.log((row + UNSEEN) / (row.sum() + UNSEEN * row.size))))
    return np.concatenate(parts), np.concatenate(correlations)


def _correlations(record: CentredMoments) -> Array:
    """Return the correlations of all pairs of columns, as Fisher's z, whose variance does not depend on them."""
    deviations = np.sqrt(record.variances)
    deviations = np.where(deviations > 0, deviations, 1.0)
    correlations = record.scatter / (deviations[..., :, None] * deviations[..., None, :])
    limits = np.clip(correlations[..., *np.triu_indices(record.n_columns, 1)], -MAX_CORRELATION, MAX_CORRELATION)
    return np.ravel(np.arctanh(limits))


def is_regression(statistics: Statistics) -> bool:
    """Return whether the sums are those of a regression."""
    return statistics.target_shape is not None and ROWS in statistics.moments


def _coefficients(statistics: Sequence[Statistics]) -> _Said:
    """Return the coefficients that each site's own regression has, of the columns that vary there."""
    centre, n_targets = centre_of(statistics), statistics[0].n_targets
    values = [coefficients_about(site.rows, centre).ravel() for site in statistics]
    varies = has_columns(statistics)
    is_known = np.hstack([np.ones((len(statistics), 1), dtype=np.bool_), varies])
    is_known[:, 1:] &= 2 * np.count_nonzero(varies, axis=0) > len(statistics)  # of a rare column nothing is usual
    is_known = np.repeat(is_known, n_targets, axis=1)
    return _Said(np.stack(values)[:, is_known.any(axis=0)], is_known[:, is_known.any(axis=0)])


def _moments_of_columns(statistics: Sequence[Statistics]) -> _Said:
    """Return means and log variances of the columns of a regression, where they vary."""
    varies = has_columns(statistics)
    means = np.stack([site.rows.mean[: site.n_columns] for site in statistics])
    variances = np.stack([site.rows.variances[: site.n_columns] / site.rows.weight for site in statistics])
    is_usual = 2 * np.count_nonzero(varies, axis=0) > len(statistics)
    values = np.hstack([means, np.log(np.where(varies, variances, 1.0))])[:, np.tile(is_usual, 2)]
    return _Said(values, np.tile(varies[:, is_usual], 2))


def _residual_variances(site: Statistics) -> Array:
    """Return the variance of each target (q,) about its regression; none without targets."""
    if not is_regression(site):
        return np.zeros(0)
    record, d = site.rows, site.n_columns
    explained = np.einsum("dq,dq->q", record.scatter[:d, d:], coefficients_about(record, np.zeros(d))[1:])
    residual: Array = np.maximum(np.diagonal(record.scatter[d:, d:]) - explained, 0.0)
    return residual / max(float(record.weight) - d - 1.0, 1.0) + np.finfo(np.float64).tiny
