"""Fusion of posteriors: inputs are described and checked, then matched, averaged and rebuilt as one model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Json, Labels
from consilience.core.fusion import FusedInput
from consilience.core.gather import Described
from consilience.core.inputs import EQUAL, in_order, stated_numbers
from consilience.core.kind import Prepared, Request
from consilience.core.min_count import MIN_COUNT, checked_min_count
from consilience.core.progress import Progress
from consilience.core.provenance import make_provenance, result_record, site_digests
from consilience.core.verdict import Verdict
from consilience.errors import ConsilienceError, InputError, OptionError, Problem, UnsupportedError
from consilience.matching.result import Matching
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.adapters.table import adapter_of, adapter_of_source, has_labels
from consilience.posteriors.admission import inadmissible
from consilience.posteriors.details import PosteriorDetails
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.fusion import PosteriorFusion
from consilience.posteriors.inputs import describe_inputs, group_by_label, unusable_in, with_labels
from consilience.posteriors.method import Assignment, Method, PosteriorOutcome, expand_assignment
from consilience.posteriors.methods import make_method
from consilience.posteriors.model_ensemble import ensemble_of
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.rebuild import rebuild
from consilience.posteriors.scaling import without_pipeline
from consilience.posteriors.thin_components import (
    left_out_record,
    nothing_left_in,
    remaining_components,
    rows_of,
    without_components,
)
from consilience.posteriors.verdict import judge_fusion
from consilience.posteriors.vocabulary import VocabularyAlignment

RECOMMENDED = "kl"
"""The method where none is named and no adapter recommends one: KL-fusion, after Claici et al. (2020)."""


def prepare_posteriors(request: Request) -> Prepared:
    """Describe and check posteriors; see ``Kind.prepare``."""
    options, is_robust = dict(request.options), bool(request.options.get("robust"))
    read = describe_inputs(request.inputs, request.n_observations, is_robust=is_robust)
    described, alignment, problems, doubts, notes = read
    min_count = checked_min_count(options.pop("min_count", MIN_COUNT))
    try:
        method = recommended_method(request.method, options, described[0].value.source if described else {})
    except OptionError:
        if problems and not described:  # what is no model of ours is told first: its options may be another kind's
            raise UnsupportedError(problems) from None
        raise
    weights, names = request.weights, [named_input.name for named_input in request.inputs]
    if weights is not None:
        weights = in_order(weights, names, "weights")
    error: OptionError | None = None
    try:
        if len({site.value.family for site in described}) == 1:
            _add_problems(problems, request, described, method, weights, min_count)
    except OptionError as option_error:
        error = option_error
    stated: PosteriorDetails = {"aligned_columns": notes} if notes else {}
    if request.n_observations is not None:
        numbers = stated_numbers(request.n_observations, names)
        stated["n_observations"] = EQUAL if numbers is None else dict(zip(names, numbers, strict=True))
    fuse = partial(
        _fuse_or_name, described, method, alignment, weights, request.rng, request.seed, request.progress, stated,
        min_count,
    )  # fmt: skip
    return Prepared(problems, fuse, error, doubts)


def _add_problems(
    problems: list[Problem],
    request: Request,
    described: Sequence[Described[Posterior]],
    method: Method,
    weights: ArrayLike | None,
    min_count: float,
) -> None:
    """Add to `problems` why models of one family cannot be fused with these options."""
    problems += [text for site in described for text in nothing_left_in(site.label, site.value, min_count)]
    # Files as a round would refuse them. A model in memory is its caller's, and robust fusion leaves out what is odd.
    is_strict = not request.options.get("robust")
    problems += _inadmissible_in([s for s in described if request.only_check or (is_strict and s.model is None)])
    ensemble = ensemble_of_inputs(described, weights if len(described) == len(request.inputs) else None)
    adapter = None
    if not problems:
        ensemble = _remaining(ensemble, min_count, method)[0]
        adapter = _rebuilding_adapter(method, ensemble)
    problems += method.refuse(ensemble) + _refusals(adapter, method, ensemble)


def _inadmissible_in(described: Sequence[Described[Posterior]]) -> list[Problem]:
    """Return why posteriors may not be fused with those of others, a line each."""
    return [
        problem.about(site.label)
        for site in described
        for problem in inadmissible(site.value, is_fused=bool(site.ancestors))
    ]


def _remaining(ensemble: Ensemble, min_count: float, method: Method) -> tuple[Ensemble, list[Labels]]:
    """Return the ensemble of components with enough observations, and which of each model's they are.

    Methods for models of equal size match all components, and leave those of few observations out of the average.
    """
    remaining = [remaining_components(posterior, min_count) for posterior in ensemble.posteriors]
    pairs = zip(ensemble.posteriors, remaining, strict=True)
    posteriors = tuple(without_components(posterior, rows) for posterior, rows in pairs)
    if method.needs_equal_sizes or all(
        posterior is whole for posterior, whole in zip(posteriors, ensemble.posteriors, strict=True)
    ):
        return ensemble, remaining
    return Ensemble(posteriors, ensemble.site_weights, ensemble.names), remaining


def ensemble_of_inputs(described: Sequence[Described[Posterior]], weights: ArrayLike | None) -> Ensemble:
    """Return described inputs as one stack."""
    return Ensemble.of([site.value for site in described], weights, [site.name for site in described])


def _rebuilding_adapter(method: Method, ensemble: Ensemble) -> Adapter | None:
    """Return the adapter that rebuilds the fused model; None where all models are kept, or none has a library's."""
    return None if method.keeps_models else adapter_of(ensemble.posteriors[0])


def _fuse_or_name(described: Sequence[Described[Posterior]], *rest: Any) -> PosteriorFusion:
    """Return what `fuse_described` returns, or name the models with which nothing can be calculated.

    Robust fusion may leave them out, so they are not refused before it was tried.
    """
    try:
        return fuse_described(described, *rest)
    except ConsilienceError:
        raise
    except Exception:  # numbers at the extremes fail in many ways
        if problems := _inadmissible_in(described):
            raise InputError(problems) from None
        raise


def fuse_described(
    described: Sequence[Described[Posterior]],
    method: Method,
    alignment: VocabularyAlignment | None,
    weights: ArrayLike | None,
    rng: np.random.Generator,
    seed: int | None,
    progress: Progress,
    stated: PosteriorDetails | None = None,
    min_count: float = MIN_COUNT,
) -> PosteriorFusion:
    """Match, average and rebuild posteriors that were described and checked.

    `alignment` says how words were aligned, `weights` (J,) weigh the models, and `stated` is what the call said of
    them, for details and provenance. Components of fewer than `min_count` effective observations are left out; a model
    of which nothing would be left is refused.
    """
    if problems := [text for site in described for text in nothing_left_in(site.label, site.value, min_count)]:
        raise InputError(problems)
    whole = ensemble_of_inputs(described, weights)
    ensemble, remaining = _remaining(whole, min_count, method)
    left_out = left_out_record(ensemble.names, whole.posteriors, remaining, min_count)
    adapter, thin = _rebuilding_adapter(method, ensemble), None
    if left_out and method.needs_equal_sizes:
        thin = np.setdiff1d(np.arange(len(ensemble.natural)), rows_of(whole.posteriors, remaining))
    outcome = _matched(ensemble, method, adapter, thin, rng, progress)
    labels = outcome.matching.labels  # of the components that were not left out
    details = _with_statements(outcome.details, described, alignment, {**(stated or {}), **left_out})
    matching = _matching_of_all(outcome.matching, whole, rows_of(whole.posteriors, remaining))
    outcome = replace(outcome, matching=matching, details=details)
    if adapter is not None:
        outcome = replace(outcome, posterior=adapter.recombine(outcome.posterior, ensemble))
    inputs = [
        _input_record(described_input, float(weight), outcome.matching, site)
        for site, (described_input, weight) in enumerate(zip(described, ensemble.site_weights, strict=True))
    ]
    return fusion_of(
        outcome,
        method,
        {"min_count": float(min_count)},
        seed,
        # by content, so that arrival order does not change a fused file
        sorted(inputs, key=lambda record: (str(record.get("sha256", "")), str(record["name"]))),
        site_digests(site.rests_on for site in described),
        inputs=tuple(
            FusedInput(site.name, site.value, site.digest, float(weight))
            for site, weight in zip(described, ensemble.site_weights, strict=True)
        ),
        _rebuild=partial(_side_by_side, ensemble) if method.keeps_models else rebuild,
        _judge=judge_of(method, adapter, outcome.posterior, ensemble, labels),
        keeps_models=method.keeps_models,
    )


def _matching_of_all(matching: Matching, whole: Ensemble, rows: Labels) -> Matching:
    """Return the matching of some rows (n,) of an ensemble as one of all, if it is not: the others have label -1."""
    if len(matching.labels) == len(whole.owner):
        return matching
    known = Assignment(matching.labels, coupling=matching.coupling, confidence=matching.confidence)
    of_all = expand_assignment(known, rows, len(whole.owner))
    return Matching(
        of_all.labels, whole.owner, matching.n_components, of_all.coupling, of_all.confidence, names=matching.names
    )


def fusion_of(
    outcome: PosteriorOutcome,
    method: Method,
    options: Mapping[str, Any],
    seed: int | None,
    records: list[dict[str, Any]],
    digests: Mapping[str, str] | None = None,
    **further: Any,
) -> PosteriorFusion:
    """Return a finished fusion with its provenance: further options of the call, and records of the models.

    `digests` names by digest all that it rests on; further fields are those of `PosteriorFusion`.
    """
    result = result_record(
        outcome.posterior.n_components, outcome.status, outcome.details, outcome.objective, outcome.history, digests
    )
    provenance = make_provenance(method.name, {**asdict(method), **options}, seed, records, result)
    stated = {field.name: getattr(outcome, field.name) for field in fields(outcome)}
    return PosteriorFusion(**stated, provenance=provenance, **further)


def _with_statements(
    details: PosteriorDetails,
    described: Sequence[Described[Posterior]],
    alignment: VocabularyAlignment | None,
    stated: PosteriorDetails,
) -> PosteriorDetails:
    """Return the details of a matching with what the models and the call state."""
    whole: PosteriorDetails = {**details}
    if alignment is not None:
        whole["vocabulary"] = alignment.details()
    whole = {**whole, **stated}
    if unusable := {site.name: numbers for site in described if (numbers := unusable_in(site))}:
        whole["unusable"] = unusable
    return whole


def _matched(
    ensemble: Ensemble,
    method: Method,
    adapter: Adapter | None,
    thin: Labels | None,
    rng: np.random.Generator,
    progress: Progress,
) -> PosteriorOutcome:
    """Return the components matched, by label where they have one, and averaged."""
    groups = None
    if adapter is not None and adapter.components == "labelled":
        groups = group_by_label(ensemble.posteriors, ensemble.site_weights)
    outcome = method.fuse(ensemble, rng, progress, groups, thin)
    if groups is not None:
        fused = with_labels(outcome.posterior, ensemble.posteriors, outcome.matching.labels)
        outcome = replace(outcome, posterior=fused)
    # Where components are computed from all sites together, it means nothing that only a few hold one.
    if adapter is not None and adapter.recombines:
        text = f"a fused {adapter.kind} follows from all sites' models together"
        details: PosteriorDetails = {
            **outcome.details,
            "average": {"name": "product", "requested": method.combine, "reason": text},
        }
        details.pop("minority", None)
        details.pop("hierarchical", None)
        outcome = replace(outcome, details=details)
    if method.keeps_models and has_labels(ensemble.posteriors[0]):  # of all models together no component has one label
        unlabelled = replace(outcome.posterior, features=replace(outcome.posterior.features, classes=None))
        outcome = replace(outcome, posterior=unlabelled)
    return outcome


def judge_of(
    method: Method,
    adapter: Adapter | None,
    fused: Posterior,
    ensemble: Ensemble,
    labels: Labels,
    n_sites: int | None = None,
) -> Callable[..., Verdict]:
    """Return what judges the fusion of an ensemble when it is asked for; see ``judge_fusion``."""
    return partial(
        judge_fusion,
        ensemble,
        labels,
        is_mixture=adapter is None or adapter.mixture(fused) is not None,
        matches=method.matches,
        trusts_sites=not method.is_robust,
        n_sites=n_sites,
        has_means=adapter is not None and adapter.centres_are_means,
    )


def _refusals(adapter: Adapter | None, method: Method, ensemble: Ensemble) -> list[Problem]:
    """Return why models of this kind cannot be fused with these options, a line each, besides the method's refusals."""
    if adapter is None:
        return []
    is_changed = {"robust": method.is_robust, "minority": method.minority != "auto"}
    refused_options = [
        Problem(
            f"{name}={getattr(method, name)!r}",
            f"the fused {adapter.kind} follows from all sites' models together, not from copies of components",
            "leave it out",
        )
        for name in is_changed
        if is_changed[name] and adapter.recombines
    ]
    if adapter.components == "labelled" and not method.keeps_models:
        matching_options = [f"method {method.name!r}"] if not method.takes_labels else method.changed_matching_options()
        refused_options += [
            Problem(
                option,
                f"the components of a {adapter.kind} have labels, by which they are matched",
                "use method 'kl' and leave options of its matching out",
            )
            for option in matching_options
        ]
    return adapter.refuse(ensemble) + refused_options


def recommended_method(method: Any, options: Mapping[str, Any], source: Mapping[str, Json]) -> Method:
    """Return the named method, or the one recommended for models of this source; an empty one is no library's."""
    if method is not None:
        return make_method(method, options)
    adapter = adapter_of_source(source)
    if adapter is None:
        return make_method(RECOMMENDED, options)
    return make_method(adapter.recommended, {**adapter.recommended_options, **options})


def _side_by_side(ensemble: Ensemble, _fused: Posterior) -> Any:
    """Return all models of an ensemble side by side; no lambda, so that a fusion can be pickled."""
    members = [rebuild(without_pipeline(posterior)) for posterior in ensemble.posteriors]
    return ensemble_of(members, ensemble.site_weights)


def _input_record(described: Described[Posterior], weight: float, matching: Matching, site: int) -> dict[str, Json]:
    """Return the record of an input in the provenance of a fused file."""
    record = described.record(described.value.n_components, weight, matching.of_site(site).tolist())
    if matching.confidence is not None:
        rows = slice(*np.searchsorted(matching.owner, [site, site + 1]))  # owners ascend
        values = matching.confidence[rows].tolist()
        record["confidence"] = [round(value, 4) if math.isfinite(value) else None for value in values]
    return record
