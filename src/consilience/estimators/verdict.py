"""The verdict on fused estimators: whether what came out is what the rows of all sites would have given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from consilience.core.robust import robust_sentences
from consilience.core.verdict import Verdict
from consilience.drawing.words import all_of
from consilience.estimators.adapters.laplace import LaplaceProductAdapter
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.details import EstimatorDetails, FourthMomentDetails
from consilience.estimators.laplace_product import MAX_PRIOR_SHARE
from consilience.estimators.statistics import FOURTH, NOISE, WITHOUT_UNWEIGHTED, Statistics

SIGNIFICANCE, MUCH_HETEROGENEITY = 0.05, 0.5
"""A p-value of Q below the one, or I^2 above the other, says that sites differ, as in a meta-analysis."""

USUAL_ROUNDS = 5
"""Refinements that a verdict suggests: 5 to 7 reached steps of 1e-4 standard errors on breast cancer, 5 to 20 sites."""
POOLED = "It is what one fit on all their rows gives"
NEAR = "It is near what one fit on all their rows would give"
"""What fused estimators are, in words of a reader who fits them."""


def judge(statistics: Statistics, n_sites: int, details: EstimatorDetails) -> Verdict:
    """Return the verdict on the estimator of the sums of all sites, given the details of their fusion."""
    verdict, robust = _judge_sums(statistics, n_sites, details), details.get("robust")
    if robust is None:
        return verdict
    further = [f"{text[0].upper()}{text[1:]}." for text in statistics.approximations[1:]]
    return replace(verdict, text=" ".join([verdict.text, *further, *robust_sentences(robust)]))


def _judge_sums(statistics: Statistics, n_sites: int, details: EstimatorDetails) -> Verdict:
    """Return the verdict on the sums of so many sites, whoever was left out."""
    adapter = adapter_of_kind(statistics.kind)
    name = adapter.class_name if statistics.last_step is None else f"Pipeline of a {adapter.class_name}"
    rows = f"the {statistics.n_observations:,.0f} rows of {all_of(n_sites, 'sites')}"
    withheld = statistics.n_withheld
    if withheld:
        rows += f", without {withheld:,} {'class' if withheld == 1 else 'classes'} of too few rows at their sites"
    if isinstance(adapter, LaplaceProductAdapter):
        return _judge_product(adapter, rows, statistics, details)
    if NOISE in statistics.counts:
        return _judge_noise(name, rows, statistics)
    if statistics.approximations:
        return Verdict(
            "approximate",
            f"near the {name} that fit gives on {rows}, and how near is not known: {statistics.approximations[0]}.",
            None,
            remedy="`min_count=0` at the sites and here sends what is missing"
            if statistics.approximations[0] == WITHOUT_UNWEIGHTED
            else "describe the models where their data are: `cs.describe(model, data=...)`",
            standing=NEAR,
        )
    if adapter.needs_fourth_moments(statistics.parameters):
        return _judge_shrinkage(name, rows, statistics, details)
    is_loose = adapter.is_loose(statistics.parameters)
    mark = "iterative" if is_loose else adapter.mark
    how = "" if mark == "exact" else ", as its iteration ends there"
    if is_loose:
        how = ", up to the tolerance of its solver: the sums are solved exactly"
    remedy = "`min_count=0` at the sites and here keeps small classes" if withheld else None
    text = f"{mark}: this is the {name} that fit gives on {rows}{how}."
    return Verdict(mark, text, None if withheld else True, remedy=remedy, standing=None if withheld else POOLED)


def _judge_shrinkage(name: str, rows: str, statistics: Statistics, details: EstimatorDetails) -> Verdict:
    """Return the verdict on shrinkage by fourth moments: exact after a second message of all rows, else near it."""
    fit = f"the {name} that fit gives on {rows}"
    if FOURTH not in statistics.counts:
        text = (
            f"approximate: near {fit}. Its shrinkage takes fourth moments of the rows, which a second message states;"
            " until then, it is the oracle approximating shrinkage (OAS), of second moments alone."
        )
        return Verdict(
            "approximate",
            text,
            None,
            remedy="to reach that fit, let sites answer one request: `consilience round open --then moments4`",
            standing=NEAR,
        )
    without_answers: FourthMomentDetails = {"rows": 0.0, "is_complete": False, "unknown": []}
    moments4 = details.get("moments4", without_answers)
    if moments4["is_complete"]:
        withheld = statistics.n_withheld
        text = f"exact: this is {fit}, its shrinkage from the fourth moments of all of these."
        keeps = "`min_count=0` at the sites and here keeps small classes" if withheld else None
        return Verdict("exact", text, None if withheld else True, remedy=keeps, standing=None if withheld else POOLED)
    text = f"approximate: near {fit}. Its shrinkage is from fourth moments of {moments4['rows']:,.0f} rows"
    if moments4["unknown"]:
        text += (
            f"; of {', '.join(moments4['unknown'][:8])} no site stated them, and the shrinkage of OAS is used instead"
        )
    remedy = (
        "let all sites answer `consilience round open --then moments4` with the rows that their first message was of"
    )
    return Verdict("approximate", text + ".", None, remedy=remedy, standing=NEAR)


def _judge_noise(name: str, rows: str, statistics: Statistics) -> Verdict:
    """Return the verdict on sums with noise: how large it is beside what a class has."""
    deviation = float(np.sqrt(statistics.counts[NOISE]))
    smallest = float(statistics.row_counts.min())
    text = (
        f"private: near the {name} that fit gives on some {rows.removeprefix('the ')}. {statistics.approximations[0]}:"
        f" its deviation is {deviation:.3g} on each sum, and the smallest class has {smallest:,.0f} rows."
    )
    is_large = deviation * np.sqrt(statistics.n_columns) > smallest
    remedy = "take fewer features, a larger epsilon, or add the sums of sites before noise" if is_large else None
    return Verdict("private", text, None, remedy=remedy, standing=f"{NEAR}, with noise that protects persons")


def _judge_product(
    laplace: LaplaceProductAdapter, rows: str, statistics: Statistics, details: EstimatorDetails
) -> Verdict:
    """Return the verdict on a product of Laplace approximations: near the pooled fit, and what speaks against it."""
    fit = f"{laplace.described(statistics)} {rows}"
    text = f"approximate: the product of the sites' Laplace approximations, near the {fit}"
    against, remedies = [], []
    heterogeneity = details.get("heterogeneity")
    if heterogeneity and (heterogeneity["p_value"] < SIGNIFICANCE or heterogeneity["i2"] > MUCH_HETEROGENEITY):
        q, freedom = heterogeneity["q"], heterogeneity["degrees_of_freedom"]
        figures = f"Q = {q:.4g} on {freedom}, I2 = {100 * heterogeneity['i2']:.0f} %"
        against.append(
            f"coefficients differ between sites ({figures}), so that one distribution for all sites is an assumption"
        )
        remedies.append("see cs.meta_analysis of what sites sent, which has random effects")
    share = details.get("prior_share", 0.0)
    if share > MAX_PRIOR_SHARE:
        against.append(f"the sites' penalties make up {100 * share:.0f} % of what is known of some coefficient")
        remedies.append("fit with weaker penalties at the sites: C times the number of sites, alpha alike")
    against += statistics.approximations
    if laplace.no_refinement(statistics) is None:
        remedies.append(
            f"to reach that fit, let sites answer requests: `consilience round open --then refine:{USUAL_ROUNDS}`"
        )
    text = "; ".join([text, *against]) + "."
    remedy = "; ".join(remedies) or None
    return Verdict("approximate", text, None, remedy=remedy, standing=NEAR, is_doubtful=bool(against))
