"""Fusion of draws: read, checked and relabelled where components are exchangeable, then combined and mapped back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from consilience.core.agreement import Doubt
from consilience.core.details import Status
from consilience.core.fusion import FusedInput
from consilience.core.gather import Described, FormatReading, gather
from consilience.core.inputs import NamedInput, in_order, too_few_models
from consilience.core.kind import Prepared, Request
from consilience.core.min_count import MIN_COUNT, checked_min_count
from consilience.core.progress import Progress
from consilience.core.provenance import make_provenance, result_record, site_digests
from consilience.draws.checking import chain_problems, disagreements, in_order_of, shared_chains, value_problems
from consilience.draws.details import CombinationDetails, DrawsDetails, OverlapDetails, SiteDetails
from consilience.draws.diagnostics import bulk_ess, rank_rhat
from consilience.draws.draws import Draws, as_draws
from consilience.draws.files import DRAWS_FILES
from consilience.draws.fusion import DrawsFusion
from consilience.draws.methods import make_draws_method
from consilience.draws.methods.base import DrawsMethod
from consilience.draws.relabel import Relabelling, relabel_sites
from consilience.draws.structure import with_structures, with_tied_entries
from consilience.draws.subposteriors import Subposteriors
from consilience.draws.verdict import judge
from consilience.errors import InputError, OptionError, Problem
from consilience.files.format import Record
from consilience.matching.result import Matching

DIGITS = 6
"""Significant digits of figures that are recorded."""


def prepare_draws(request: Request) -> Prepared:
    """Read, check and relabel draws; see ``Kind.prepare``."""
    options = dict(request.options)
    min_count = checked_min_count(options.pop("min_count", MIN_COUNT))
    method = make_draws_method(request.method, options)
    if request.weights is not None:
        raise OptionError("weights", "draws count by how sure they are; leave it out")
    gathered = describe_inputs(request.inputs, method, request.n_observations)
    described, problems, doubts = gathered.described, gathered.problems, gathered.doubts
    for site in described:
        if site.value.n_observations is not None and site.value.n_observations < min_count:
            text = f"is about {site.value.n_observations:g} observations, fewer than {min_count:g}: nothing may leave"
            problems.append(Problem(site.label, text, "`min_count=0` takes it", "E-FEW"))
    if problems or not described:
        return Prepared.checked(problems, doubts)
    stack = Subposteriors(tuple(site.name for site in described), tuple(site.value for site in described))
    if problems := method.refuse(stack):
        return Prepared.checked(problems)
    return Prepared(
        [],
        partial(_fuse_described, gathered, stack, method, min_count, request.rng, request.seed, request.progress),
        doubts=doubts,
    )


def _fuse_described(
    gathered: GatheredDraws,
    stack: Subposteriors,
    method: DrawsMethod,
    min_count: float,
    rng: np.random.Generator,
    seed: int | None,
    progress: Progress,
) -> DrawsFusion:
    """Combine subposteriors, and return the fusion with its record."""
    described = gathered.described
    combined = method.combine(stack, rng, progress)
    draws = _as_given(stack.sites, combined.draws, method, combined.details)
    details: DrawsDetails = {
        "sites": {site.name: _facts_of(site.value) for site in described},
        "overlap": _overlap(stack),
    }
    details = {**details, **combined.details}
    if gathered.notes:
        details["aligned_columns"] = gathered.notes
    if constants := stack.sites[0].constant_names:
        details["constant_entries"] = list(constants)
    relabellings = [site.relabelling for site in described if site.relabelling is not None]
    if relabellings:
        details["relabelling"] = {
            site.name: {"switched": _rounded(one.switched_share), "close": _rounded(one.close_share)}
            for site, one in zip(described, relabellings, strict=True)
        }
    verdict = judge(stack, method, details, combined.notes)
    matching = _matching(described)
    objective = float(sum(one.objective for one in relabellings)) if relabellings else float("nan")
    result = result_record(
        draws.n_components, Status.CONVERGED, details, site_digests=site_digests(site.rests_on for site in described)
    )
    options = {option.name: _option(getattr(method, option.name)) for option in fields(method)}
    records = [
        site.record(site.value.n_components, site.value.n_observations, matching.of_site(place).tolist())
        for place, site in enumerate(described)
    ]
    return DrawsFusion(
        draws=draws,
        matching=matching,
        details=details,
        provenance=make_provenance(method.name, {**options, "min_count": min_count}, seed, records, result),
        _verdict=verdict,
        inputs=tuple(FusedInput(site.name, site.value, site.digest) for site in described),
        objective=objective,
    )


def _as_given(sites: Sequence[Draws], coordinates: Any, method: DrawsMethod, details: CombinationDetails) -> Draws:
    """Return fused coordinates as draws like those of the first site, which hold the prior once."""
    first = sites[0]
    powers = [site.prior for site in sites if isinstance(site.prior, float)]
    prior: Any = first.prior
    if powers and method.needs_prior:
        prior = min(1.0, sum(powers))
    numbers = [site.n_observations for site in sites]
    total = None if any(number is None for number in numbers) else float(sum(filter(None, numbers)))
    return replace(
        first,
        variables=first.from_unconstrained(coordinates),
        prior=prior,
        likelihood_power=1.0,
        n_observations=total,
        diverging=None,
        attributes={"fused_by": f"consilience {details.get('chosen', method.name)}", "n_sites": str(len(sites))},
    )


def _facts_of(draws: Draws) -> SiteDetails:
    """Return the sizes and convergence diagnostics of one site's draws."""
    ess, rhat = bulk_ess(draws.unconstrained), rank_rhat(draws.unconstrained)
    return {
        "chains": draws.shape[0],
        "draws": draws.n_draws,
        "least_ess": _rounded(float(np.nanmin(ess))),
        "largest_rhat": _rounded(float(np.nanmax(rhat))) if np.any(np.isfinite(rhat)) else None,
        "n_observations": draws.n_observations,
    }


def _overlap(stack: Subposteriors) -> OverlapDetails:
    """Return how far subposteriors overlap, as JSON values."""
    if stack.n_draws <= stack.n_coordinates + 1:  # no covariance: coordinates count alone
        return {
            "coefficient": None, "coordinate": None, "sites": [], "q": 0.0, "p_value": 1.0, "degrees_of_freedom": 0,
            "i2": 0.0,
        }  # fmt: skip
    overlap = stack.overlap
    return {
        "coefficient": _rounded(overlap.coefficient),
        "coordinate": stack.sites[0].coordinate_names[overlap.coordinate],
        "sites": [stack.names[site] for site in overlap.sites],
        "q": _rounded(overlap.q),
        "p_value": _rounded(overlap.p_value),
        "degrees_of_freedom": overlap.degrees_of_freedom,
        "i2": _rounded(overlap.i2),
    }


def _matching(described: Sequence[DescribedDraws]) -> Matching:
    """Return the fused component that each site's component became in most draws; variables by name without such."""
    labels = []
    for site in described:
        count = site.value.n_components
        if site.relabelling is None:
            labels.append(np.arange(count))
            continue
        flat = site.relabelling.labels.reshape(-1, count)
        rows, counts = np.unique(flat, axis=0, return_counts=True)
        labels.append(rows[int(np.argmax(counts))])
    owner = np.repeat(np.arange(len(labels)), [len(one) for one in labels])
    names = tuple(site.name for site in described)
    return Matching(np.concatenate(labels).astype(np.int64), owner, described[0].value.n_components, names=names)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _option(value: Any) -> Any:
    """Return an option as JSON values; objects by their texts."""
    if isinstance(value, Mapping):
        return {str(name): _option(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_option(one) for one in value]
    if hasattr(value, "to_json"):
        return value.to_json()
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True, eq=False)
class DescribedDraws(Described[Draws]):
    """An input and its draws."""

    relabelling: Relabelling | None = None  # how components were renumbered


@dataclass(frozen=True, eq=False)
class GatheredDraws:
    """All inputs as draws, and what is wrong, in doubt, or to be known of them."""

    described: list[DescribedDraws]
    problems: list[Problem]
    doubts: list[Doubt]
    notes: list[str]  # whose coordinates were aligned by name, a sentence each


class DrawsReading(FormatReading[Draws]):
    """How draws are read: with what the method and the call say of sites that do not say it themselves."""

    called = "a draws file"
    format = DRAWS_FILES

    def __init__(self, method: DrawsMethod, numbers: Sequence[float] | None) -> None:
        self.method, self.numbers = method, numbers

    def convert(self, one: NamedInput) -> tuple[Draws, Record]:
        """Return a container, or the draws of a fusion, as draws."""
        if isinstance(one.model, DrawsFusion):
            return one.model.draws, one.model.record
        return as_draws(one.model), None

    def settle(self, value: Draws, one: NamedInput, place: int, problems: list[Problem]) -> Draws:
        """Return draws with their prior and constraints; raises for values that are none."""
        draws = value.stated(
            prior=self.method.prior,
            constraints=self.method.constraints,
            only=self.method.only,
            exchangeable=self.method.exchangeable,
            n_observations=None if self.numbers is None else self.numbers[place],
        )
        if wrong := value_problems(draws):
            raise InputError(wrong)
        return draws


def _numbers_of(n_observations: Any, inputs: Sequence[NamedInput]) -> Sequence[float] | None:
    """Return the numbers of observations in the order of the inputs, where the call states them."""
    numbers = in_order(n_observations, [one.name for one in inputs], "n_observations")
    if numbers is not None and (isinstance(numbers, str) or len(numbers) != len(inputs)):
        raise OptionError("n_observations", f"expected {len(inputs)} numbers, one for each, found {numbers!r:.80}")
    return numbers


def describe_inputs(inputs: Sequence[NamedInput], method: DrawsMethod, n_observations: Any) -> GatheredDraws:
    """Return the draws of all inputs that could be read, sorted by name, with what is wrong, in doubt or to be known.

    The options of the method say of sites what these do not say themselves; `n_observations` are by name, or in the
    order of the inputs.
    """
    gathered = gather(inputs, DrawsReading(method, _numbers_of(n_observations, inputs)))
    described = [DescribedDraws(**site.fields()) for site in sorted(gathered.described, key=lambda site: site.name)]
    problems, doubts = [*too_few_models(len(inputs)), *gathered.problems], gathered.doubts
    if method.multiplies and not problems:
        copied = {doubt.problem.subject for doubt in doubts}
        doubts += shared_chains([(site.label, site.value) for site in described if site.label not in copied])
    if not described:
        return GatheredDraws(described, problems, doubts, [])
    described, notes = _in_one_order(described)
    recognised, found = with_structures(*_labelled(described))
    described, problems = _with_draws(described, recognised), [*problems, *found]
    problems += disagreements([(site.label, site.value) for site in described])
    if problems:
        return GatheredDraws(described, problems, doubts, notes)
    described = _alike(described)
    tied, problems = with_tied_entries(*_labelled(described))
    if problems:
        return GatheredDraws(described, problems, doubts, notes)
    described = _with_draws(described, tied)
    if not method.allow_divergent:
        problems += [problem.about(site.label) for site in described for problem in chain_problems(site.value)]
    return GatheredDraws(described, problems, doubts, notes)


def _in_one_order(described: Sequence[DescribedDraws]) -> tuple[list[DescribedDraws], list[str]]:
    """Return sites with the labels of their axes in the order of the first, and whose were moved."""
    ordered = [in_order_of(site.value, described[0].value) for site in described]
    moved = [site.label for site, own in zip(described, ordered, strict=True) if own is not None]
    return [site if own is None else site.with_value(own) for site, own in zip(described, ordered, strict=True)], [
        f"{label} has its coordinates in another order: aligned by name" for label in moved
    ]


def _labelled(described: Sequence[DescribedDraws]) -> tuple[list[Draws], list[str]]:
    return [site.value for site in described], [site.label for site in described]


def _with_draws(described: Sequence[DescribedDraws], draws: Sequence[Draws]) -> list[DescribedDraws]:
    """Return sites with other draws."""
    return [site.with_value(own) for site, own in zip(described, draws, strict=True)]


def _alike(described: Sequence[DescribedDraws]) -> list[DescribedDraws]:
    """Return sites with variables in one order and exchangeable components numbered alike."""
    order = list(described[0].value.variables)
    sites = [
        site.value
        if list(site.value.variables) == order
        else replace(site.value, variables={name: site.value.variables[name] for name in order})
        for site in described
    ]
    if not sites[0].exchangeable:
        return _with_draws(described, sites)
    relabelled, relabellings = relabel_sites(sites)
    return [
        replace(site, value=draws, relabelling=one)
        for site, draws, one in zip(described, relabelled, relabellings, strict=True)
    ]
