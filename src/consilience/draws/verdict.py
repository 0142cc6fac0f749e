"""The verdict on fused draws: what was combined how, and what speaks against it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from consilience.core.verdict import Verdict
from consilience.drawing.words import first_names, format_count
from consilience.draws.checking import chain_problems
from consilience.draws.constraints import Real
from consilience.draws.details import DrawsDetails
from consilience.draws.importance import WeightedPoints
from consilience.draws.methods.base import DrawsMethod
from consilience.draws.subposteriors import Subposteriors
from consilience.draws.tied_entries import TiedEntries

SIGNIFICANCE = 0.05
"""p-value of Q below which sites differ, as in a meta-analysis."""
HARDLY = 1e-6
"""p-value of Q below which subposteriors hardly overlap: sites that agree show it once in a million fusions."""
MIN_ROWS_PER_COORDINATE = 20
"""Rows of a site for each coordinate below which errors of 0.3 standard deviations were measured: logistic regressions
of 10 and 8 rows for each of 5 and 50 coefficients (docs/evidence/draws.md)."""
_JOINT = "They are of the posterior given all sites' data, as near as this way to multiply comes"
NEAR_BOUND = 3.0
"""Mean of a variable without a constraint whose draws are all positive, in standard deviations, below which its bound
shows."""


def judge(stack: Subposteriors, method: DrawsMethod, details: DrawsDetails, notes: Mapping[str, str]) -> Verdict:
    """Return the verdict on draws, given the details of their fusion.

    `notes` are what the method says is wrong, each with its remedy.
    """
    chosen = str(details.get("chosen", method.name))
    against = dict(notes)
    code, harmless = "fine", None
    overlap = details["overlap"]
    differs = method.assumes_agreement and overlap["p_value"] < SIGNIFICANCE
    if differs:
        figures = f"Q = {overlap['q']:.4g} on {overlap['degrees_of_freedom']}, I2 = {100 * overlap['i2']:.0f} %"
        remedy = "`method='hierarchical'` gives what sites have in common, with honest intervals"
        if overlap["p_value"] < HARDLY:
            code, harmless = "apart", False
            where = (
                f"{overlap['coordinate']} of {' and '.join(overlap['sites'])}, coefficient {overlap['coefficient']:.2g}"
            )
            against[
                f"subposteriors hardly overlap (least in {where}; {figures}), so that their product lies where no site"
                " has draws, and its intervals are too narrow"
            ] = remedy
        else:
            code = "differ"
            against[f"sites differ ({figures}), so that one distribution for all sites is an assumption"] = remedy
    against |= _prior_notes(stack, method)
    against |= _size_notes(stack)
    against |= _shape_notes(stack)
    if method.assumes_normality:  # an acceptance rate is there where the default went on by densities
        against |= _density_notes(stack) if "acceptance_rate" in details else _skewness_notes(stack, method)
    if method.allow_divergent:
        against |= _chain_notes(stack)
    if code == "fine" and against:
        code = "doubtful"
    parameters = format_count(stack.n_coordinates, "parameter")
    if n_constant := len(stack.sites[0].constant_names):
        parameters += f" (and {format_count(n_constant, 'constant')})"
    text = f"{stack.n_sites} subposteriors of {parameters} combined by {chosen}"
    candidates: dict[str, float] = {}
    if "largest_skewness" in details:
        text += f" (largest |skewness| {details['largest_skewness']:.2f})"
    sentences = "; ".join([text, *against])
    harm = "" if harmless is False else "; how near it is to the posterior of all data is not known"
    remedies = [remedy for remedy in dict.fromkeys(against.values()) if remedy]
    return Verdict(
        code, f"{sentences}{harm}.", harmless, candidates, remedy="; ".join(remedies) or None, standing=_JOINT
    )


def judge_weighted(weighted: WeightedPoints, method: DrawsMethod, details: DrawsDetails) -> Verdict:
    """Return the verdict on draws that were weighted by the sites' log densities, by the details of the fusion before.

    What product was formed how near no longer matters; what is multiplied still does: whether sites differ, and whether
    the prior counts once.
    """
    stack, overlap = weighted.stack, details["overlap"]
    size = f"effective sample size {weighted.effective_size:,.0f}, Pareto k {weighted.pareto_k:.2f}"
    n_answered = len(weighted.answered)
    parameters = format_count(stack.n_coordinates, "parameter")
    text = (
        f"{stack.n_sites} subposteriors of {parameters} weighted by the log densities of"
        f" {'all' if n_answered == stack.n_sites else n_answered} sites at {len(weighted.points):,} points ({size})"
    )
    against: dict[str, str] = {}
    code = "weighted"
    harmless: bool | None = True  # weights correct any product that was formed
    if weighted.standing_in:
        names = ", ".join(weighted.standing_in[:5])
        verb = "its draws stands" if len(weighted.standing_in) == 1 else "their draws stand"
        against[f"{names} did not answer, and in the place of it the Gaussian of {verb}"] = "let all sites answer"
    if not weighted.is_reliable:
        against["weights are too uneven to be trusted"] = (
            "ask again, with more requests: `consilience round open --then density:N`"
        )
    if any(len(places) for places in stack.bimodal):
        against["sites have modes that are apart, and points may have missed one"] = "compare with their own draws"
    against |= _prior_notes(stack, method)
    if against:
        code, harmless = "doubtful", None
    if overlap["p_value"] < SIGNIFICANCE:
        figures = f"Q = {overlap['q']:.4g} on {overlap['degrees_of_freedom']}, I2 = {100 * overlap['i2']:.0f} %"
        against[f"sites differ ({figures}), so that one distribution for all sites is an assumption"] = (
            "`method='hierarchical'` gives what sites have in common, with honest intervals"
        )
        code, harmless = ("apart", False) if overlap["p_value"] < HARDLY else ("differ", None)
    exact = "; up to Monte Carlo error the posterior of all data" if harmless else ""
    remedies = [remedy for remedy in dict.fromkeys(against.values()) if remedy]
    said = f"{'; '.join([text, *against])}{exact}."
    return Verdict(code, said, harmless, remedy="; ".join(remedies) or None, standing=_JOINT)


def _prior_notes(stack: Subposteriors, method: DrawsMethod) -> dict[str, str]:
    """Return whether the powers of the prior do not add up to one."""
    powers = [site.prior for site in stack.sites if isinstance(site.prior, float)]
    if not powers or not method.needs_prior or abs(sum(powers) - 1.0) <= 1e-6:
        return {}
    return {
        f"the prior counts {sum(powers):.3g} times, since the sites' powers of it add up to that": (
            f"sample with the prior raised to 1/{stack.n_sites}"
        )
    }


def _size_notes(stack: Subposteriors) -> dict[str, str]:
    """Return sites with few rows for each coordinate."""
    few = [
        name
        for name, site in zip(stack.names, stack.sites, strict=True)
        if site.n_observations is not None and site.n_observations < MIN_ROWS_PER_COORDINATE * stack.n_coordinates
    ]
    if not few:
        return {}
    which = first_names(few, 3)
    verb = "has" if len(few) == 1 else "have"
    return {
        f"{which} {verb} fewer than {MIN_ROWS_PER_COORDINATE} rows for each parameter, where errors of 0.3 standard"
        " deviations must be expected": (
            "join small sites before sampling, or send a second message (`consilience round open --then density`)"
        )
    }


def _skewness_notes(stack: Subposteriors, method: DrawsMethod) -> dict[str, str]:
    """Return that subposteriors are skewed beyond chance, and how far their third moments put a mean off."""
    names = stack.sites[0].coordinate_names
    sentences = []
    if stack.most_skewed is not None:
        site, place = stack.most_skewed
        skewness = f"{names[place]} at {stack.names[site]} by {stack.skewness[site, place]:.2f}"
        sentences.append(f"subposteriors are skewed ({skewness})")
    is_product = method.needs_covariance and method.assumes_agreement
    if is_product and (shift := _shift_in_words(stack)):
        sentences.append(f"by the third moments of all sites {shift}")
    elif sentences:
        sentences.append("errors of 0.1 to 0.6 standard deviations were measured of such")
    if not sentences:
        return {}
    return {
        ", and ".join(sentences): (
            "send a second message (`consilience round open --then density`); of few parameters, compare with"
            " `method='semiparametric'`, `parametric=False`"
        )
    }


def _density_notes(stack: Subposteriors) -> dict[str, str]:
    """Return that subposteriors are skewed, so that the default multiplied their densities."""
    shift = _shift_in_words(stack)
    instead = f": in a product of Gaussians {shift}" if shift else ""
    return {
        f"subposteriors are skewed, so that their densities are multiplied{instead}": (
            "send a second message (`consilience round open --then density`)"
        )
    }


def _shift_in_words(stack: Subposteriors) -> str:
    """Return how far third moments put a mean of the Gaussian product off; empty where that is within chance."""
    place = stack.most_shifted
    if place is None:
        return ""
    shift = abs(stack.shift_by_skewness[0][place])
    return f"the mean of {stack.sites[0].coordinate_names[place]} is about {shift:.2f} standard deviations off"


def _chain_notes(stack: Subposteriors) -> dict[str, str]:
    """Return chains that diverged or did not mix, and were taken since somebody allowed it."""
    return {
        f"{name}: {problem.subject} {problem.text}": "sample again (a smaller step, another parametrisation)"
        for name, site in zip(stack.names, stack.sites, strict=True)
        for problem in chain_problems(site)
    }


def _shape_notes(stack: Subposteriors) -> dict[str, str]:
    """Return variables that are positive everywhere, near zero, and combined as real."""
    near = []
    for name, _, shape, constraint in stack.sites[0].parts():
        inner = constraint.inner if isinstance(constraint, TiedEntries) else constraint
        if not isinstance(inner, Real) or not constraint.n_coordinates(shape):
            continue
        values = [constraint.unconstrain(site.variables[name].reshape(-1, *shape)) for site in stack.sites]
        is_positive = all(np.all(one > 0) for one in values)
        if is_positive and any(np.any(one.mean(axis=0) < NEAR_BOUND * one.std(axis=0)) for one in values):
            near.append(name)
    if not near:
        return {}
    return {
        f"{', '.join(near[:5])}: positive in all draws and near zero, but combined as any real number": (
            f"state `constraints={{{near[0]!r}: 'positive'}}`"
        )
    }
