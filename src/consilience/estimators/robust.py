"""Gate and sum: which sites' sums are added when sites are not trusted (``robust=True``).

A sum has breakdown 0: one site decides it. So sites are judged by what their own sums say, in coordinates that no count
changes, and the sums of the others are added, each cut to the median number of rows. What comes out is the estimator of
the rows of the sites that are kept: exactness survives.

    z_j = rms over coordinates of (v_j - med v) / (1.4826 mad);   left out: z_j > 3 med z, the worst first, fewer than
    half

v_j are the coefficients b_j = S_xx^-1 S_xy of a regression (ridge 1e-8 of the mean variance), whose residual variance
may differ by a factor of 4 from the median one besides; else the means and the logarithms of the variances, or of the
shares of what is counted, of every class that more than half of the sites have; a site is judged by those that it has.
Were it the classes that all have, one site of other classes would leave nothing to judge any site by. Copies whose v_j
are equal count as one hostile group.

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
    MIN_VOTES,
    NORMAL_MAD,
    ROUNDING,
    Judgement,
    alike_sites,
    cap_factors,
    spread_of,
    tolerated,
    too_few,
)
from consilience.errors import Problem
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.details import GateDetails, LeftOutOfClass
from consilience.estimators.statistics import INFORMATION, ROWS, SHIFT, Statistics

MAX_SCORE = 3.0
"""Score, in the median score, beyond which a site is left out; 0.03 honest sites of ten are (40 draws of eight
coefficients at 200 rows a site)."""

MAX_VARIANCE_RATIO = 4.0
"""Ratio of a residual variance to the median one, either way, that honest sites do not reach at 200 rows."""

RIDGE = 1e-8
"""Part of the mean variance that is added before coefficients are solved for: columns may be constant at a site."""

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
    if first.target_shape is not None and ROWS in first.moments:
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
        "left_out": judgement.details(names),
        "cut": [names[site] for site in chosen if factors[site] < 1.0],
        "tolerated": tolerated(len(sites)),
        **rare_details,
    }
    return GatedSites(judgement.kept, tuple(scaled_sums(sums[site], factors[site]) for site in chosen), details)


def _judge_whole(statistics: Sequence[Statistics]) -> Judgement:
    """Return which sites are left out, by what the sums of all classes that most have say."""
    values, is_known = _coordinates(statistics)  # (J, P), (J, P)
    values = np.where(np.isfinite(values), values, np.finfo(np.float64).max ** 0.25)
    centre = np.nanmedian(np.where(is_known, values, np.nan), axis=0)  # most sites know each
    # The same rows in another order have sums that differ by rounding, which is no deviation.
    deviations = np.where(np.abs(values - centre) > ROUNDING * np.abs(centre), values - centre, 0.0)
    spread = NORMAL_MAD * np.nanmedian(np.where(is_known, np.abs(deviations), np.nan), axis=0)
    deviations, moves = np.where(is_known, deviations, 0.0), spread > 0
    scaled, is_known = deviations[:, moves] / spread[moves], is_known[:, moves]
    n_known = np.count_nonzero(is_known, axis=1)  # (J,)
    scores = np.sqrt(np.sum(scaled**2, axis=1) / np.maximum(n_known, 1))  # (J,)
    # Where most sites agree to the last bit, any other value is infinitely far.
    scores = np.where((deviations[:, ~moves] != 0.0).any(axis=1), np.inf, scores)
    usual = float(np.median(scores[n_known > 0])) if n_known.any() else 0.0
    variances = np.array([_residual_variances(site) for site in statistics])  # (J, q), q = 0 without targets
    ratios = np.abs(np.log(variances / np.median(variances, axis=0))).max(axis=1, initial=0.0)
    judgement = Judgement(scores, {})
    judgement.leave_out(np.flatnonzero(_alike(np.clip(scaled, -1e6, 1e6), is_known)), "copy of another")
    is_far = (scores > MAX_SCORE * usual) | ~(ratios <= np.log(MAX_VARIANCE_RATIO))
    judgement.leave_out_worst(is_far, None if np.isfinite(ratios).all() else np.lexsort((-scores, -ratios)))
    return judgement


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
        judgement = _judge_class(_values(statistics, holders), usual_spread)
        outside[label] = [list(holders)[i] for i in judgement.steps]
        records += [
            {"model": record["model"], "class": str(label), "score": record["score"]}
            for record in judgement.details([names[site] for site in holders])
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
    spreads = [spread_of(_values(statistics, one)) for one in places if 2 * len(one) > len(statistics)]
    return np.median(spreads, axis=0) if spreads else np.zeros(1)


def _judge_class(values: Array, usual_spread: Array) -> Judgement:
    """Return which holders of one class are left out of it, by what each says of it (n, P)."""
    spread = np.maximum(spread_of(values), usual_spread)
    deviations = (values - np.median(values, axis=0)) / np.where(spread > 0, spread, 1.0)
    scores = np.sqrt((np.nan_to_num(deviations, nan=np.inf) ** 2).mean(axis=1))
    judgement = Judgement(scores, {})
    judgement.leave_out_worst(scores > MAX_SCORE * max(float(np.median(scores)), 1.0))
    return judgement


def _places_of_classes(statistics: Sequence[Statistics]) -> dict[Any, dict[int, int]]:
    """Return for each class the sites that have it, and its place among the classes of each."""
    places: dict[Any, dict[int, int]] = {}
    for number, site in enumerate(statistics):
        for place, label in enumerate([] if site.classes is None else site.classes.values):
            places.setdefault(label, {})[number] = place
    return places


def _values(statistics: Sequence[Statistics], places: Mapping[int, int]) -> Array:
    """Return what some sites say of one class (n, P), given its place among the classes of each."""
    return np.stack([np.concatenate(_parts(statistics[site], place)) for site, place in places.items()])


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


def _alike(scaled: Array, is_known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which sites (J,) are copies, by the coordinates (J, P) that both of a pair know; none by none."""
    squares = np.zeros((len(scaled), len(scaled)))
    for row, known in enumerate(is_known):
        differences = np.where(is_known & known, scaled - scaled[row], 0.0)
        squares[row] = (differences**2).sum(axis=1)
    n_shared = is_known.astype(np.float64) @ is_known.T.astype(np.float64)  # (J, J)
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.where(n_shared > 0, squares * (scaled.shape[1] / n_shared), np.inf)
    return alike_sites(np.sqrt(squares), scaled.shape[1])


def _coordinates(statistics: Sequence[Statistics]) -> tuple[Array, NDArray[np.bool_]]:
    """Return what each site is judged by (J, P), and which of that it knows."""
    first = statistics[0]
    if first.target_shape is not None and ROWS in first.moments:
        values = np.stack([_coefficients(site).ravel() for site in statistics])
        return values, np.ones(values.shape, dtype=np.bool_)
    if first.classes is None:
        values = np.stack([np.concatenate(_parts(site, None)) for site in statistics])
        return values, np.ones(values.shape, dtype=np.bool_)
    n_sites = len(statistics)
    blocks, masks = [np.zeros((n_sites, 1))], [np.ones((n_sites, 1), dtype=np.bool_)]
    for places in _places_of_classes(statistics).values():
        if 2 * len(places) > n_sites:
            said = _values(statistics, places)
            blocks.append(np.zeros((n_sites, said.shape[1])))
            masks.append(np.zeros((n_sites, said.shape[1]), dtype=np.bool_))
            blocks[-1][list(places)], masks[-1][list(places)] = said, True
    return np.concatenate(blocks, axis=1), np.concatenate(masks, axis=1)


def _parts(site: Statistics, position: int | None) -> list[Array]:
    """Return means, log variances and log shares of one class, or of all rows."""
    parts: list[Array] = [np.zeros(1)]
    for record in site.moments.values():
        chosen = record if position is None else record.at(np.array([position]))
        rows = np.maximum(chosen.weight, 1.0)[..., None]
        parts += [np.ravel(chosen.mean), np.ravel(np.log(chosen.variances / rows + np.finfo(np.float64).tiny))]
    for name, values in sorted(site.counts.items()):
        row = np.atleast_1d(values if position is None else values[position])
        if name != ROWS and row.size > 1:
            parts.append(np.ravel(np.log((row + UNSEEN) / (row.sum() + UNSEEN * row.size))))
    return parts


def _coefficients(site: Statistics) -> Array:
    """Return S_xx^-1 S_xy (d, q) of a site."""
    scatter, d = site.rows.scatter, site.n_columns
    ridge = RIDGE * float(np.trace(scatter[:d, :d])) / max(d, 1)
    try:
        return np.asarray(np.linalg.solve(scatter[:d, :d] + ridge * np.eye(d), scatter[:d, d:]), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.full((d, scatter.shape[1] - d), np.inf)


def _residual_variances(site: Statistics) -> Array:
    """Return the variance of each target (q,) about its regression; none without targets."""
    if site.target_shape is None or ROWS not in site.moments:
        return np.zeros(0)
    record, d = site.rows, site.n_columns
    explained = np.einsum("dq,dq->q", record.scatter[:d, d:], _coefficients(site))
    residual: Array = np.maximum(np.diagonal(record.scatter[d:, d:]) - explained, 0.0)
    return residual / max(float(record.weight) - d - 1.0, 1.0) + np.finfo(np.float64).tiny
