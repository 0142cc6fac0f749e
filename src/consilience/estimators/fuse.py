"""Fusion of estimators: inputs are described and checked, their classes matched by name, their sums added."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from consilience.catalogue import suggestion
from consilience.checks import Json
from consilience.core.caller import warn_caller
from consilience.core.details import Status, WithheldComponent
from consilience.core.fusion import FusedInput
from consilience.core.inputs import NamedInput
from consilience.core.kind import Prepared, Request
from consilience.core.min_count import MAX_NAMED, MIN_COUNT, checked_min_count
from consilience.core.provenance import make_provenance, result_record, site_digests
from consilience.errors import InputError, OptionError
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.average import average
from consilience.estimators.details import EstimatorDetails
from consilience.estimators.fusion import EstimatorFusion
from consilience.estimators.hyper_parameters import encode
from consilience.estimators.inputs import (
    DescribedEstimator,
    GatheredEstimators,
    HyperParameterWarning,
    describe_inputs,
    differing_parameters,
)
from consilience.estimators.laplace_product import assess_product
from consilience.estimators.methods import Sums, make_estimator_method
from consilience.estimators.rebuild import rebuild, with_parameters
from consilience.estimators.robust import GatedSites, gate, robust_problems
from consilience.estimators.statistics import Statistics
from consilience.estimators.verdict import judge
from consilience.matching.result import Matching


def prepare_estimators(request: Request) -> Prepared:
    """Describe and check estimators; see ``Kind.prepare``."""
    if request.weights is not None:
        text = "sums count every row once; leave it out, and give sample_weight to cs.describe at the site"
        raise OptionError("weights", text)
    if request.n_observations is not None:
        raise OptionError("n_observations", "is in the sums of estimators; leave it out, or give it to cs.describe")
    parameters = dict(request.options)
    min_count = checked_min_count(parameters.pop("min_count", MIN_COUNT))
    stated: dict[str, Any] = {name: parameters.pop(name) for name in ("robust", "absent_columns") if name in parameters}
    method = make_estimator_method(request.method, stated)
    gathered = describe_inputs(request.inputs, min_count, parameters, method.absent_columns)
    described, problems, doubts = gathered.described, gathered.problems, gathered.doubts
    _refuse_unknown(parameters, described)
    if problems or not described:
        return Prepared.checked(problems, doubts)
    sites = [(site.label, site.value) for site in described]
    by_content = sorted(described, key=lambda site: site.content_digest)
    sums, gated = [site.value for site in by_content], None
    if method.robust:
        if problems := robust_problems(sites):
            return Prepared.checked(problems)
        gated = gate([(site.name, site.value) for site in by_content])
        sums = list(gated.statistics)
    fused = with_parameters(average(sums, sites[0][1]), parameters)
    if gated is not None:
        fused = replace(fused, approximations=(*fused.approximations, *_changed_by(gated)))
    differing = differing_parameters(sites, parameters)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = _rebuilt(fused, request.inputs)
    except InputError as error:
        return Prepared.checked([problem.about("the sums of all sites") for problem in error.problems])
    return Prepared(
        [],
        partial(_fuse_described, gathered, fused, model, differing, parameters, min_count, request.seed, caught, gated),
        doubts=doubts,
    )


def _refuse_unknown(options: Mapping[str, Any], described: Sequence[DescribedEstimator]) -> None:
    """Raise OptionError for an option that is no hyper-parameter."""
    if described and (unknown := [name for name in options if name not in described[0].value.parameters]):
        kind, parameters = described[0].value.kind, described[0].value.parameters
        known = ", ".join(sorted(parameters)) or "none"
        meant = suggestion(unknown[0], (*parameters, "min_count", "robust", "absent_columns"))
        raise OptionError(unknown[0], f"is no hyper-parameter of a {kind}{meant}; it has {known}")


def _changed_by(gated: GatedSites) -> Iterator[str]:
    """Yield how sums of sites that are not trusted were changed."""
    if cut := gated.details["cut"]:
        yield f"the sums of {', '.join(cut)} count as the median number of rows"
    if beyond := gated.details.get("cut_information"):
        yield f"what {', '.join(beyond)} tell beyond what the usual site does is cut to that, with their coefficients"
    if thin := gated.details.get("withheld_classes"):
        text = f"classes {', '.join(thin)} are at fewer than 3 sites, so that nobody can judge them"
        yield f"{text}, and `robust=True` leaves them out"


def _rebuilt(fused: Statistics, inputs: Sequence[NamedInput]) -> Any:
    """Return the fitted estimator, in the form of the first input in memory where sums alone do not give that."""
    adapter = adapter_of_kind(fused.kind)
    like = next((one.model for one in inputs if one.file is None and adapter.accepts(one.model)), None)
    model = rebuild(fused)
    return model if like is None else adapter.written_like(model, like)


def _fuse_described(
    gathered: GatheredEstimators,
    fused: Statistics,
    model: Any,
    differing: Sequence[str],
    parameters: Mapping[str, Json],
    min_count: float,
    seed: int | None,
    caught: Sequence[warnings.WarningMessage],
    gated: GatedSites | None,
) -> EstimatorFusion:
    """Return the fusion of sums that were added, with its record; what rebuilding warned of is told now."""
    described = gathered.described
    for line in differing:
        warn_caller(f"sites differ in a hyper-parameter that changes no sums: {line}", HyperParameterWarning)
    for warning in caught:
        warn_caller(str(warning.message), warning.category)
    details: EstimatorDetails = {
        "sites": {site.name: site.value.n_observations for site in described},
        **_classes(fused, described),
        **_withheld(described, min_count),
        **assess_product(fused, [site.value for site in described]),
    }
    if gathered.notes:
        details["aligned_columns"] = gathered.notes
    if differing:
        details["hyper_parameters"] = list(differing)
    if gated is not None:
        details["robust"] = gated.details
    n_summed = len(described) if gated is None else len(gated.statistics)
    verdict = judge(fused, n_summed, details)
    matching = match_classes(fused, [(site.name, site.value) for site in described])
    result = result_record(
        fused.n_components, Status.CONVERGED, details, site_digests=site_digests(site.rests_on for site in described)
    )
    options = {**{name: encode(name, value) for name, value in parameters.items()}, "min_count": min_count}
    if gated is not None:
        options["robust"] = True
    records = [
        site.record(site.value.n_components, site.value.n_observations, matching.of_site(place).tolist())
        for place, site in enumerate(described)
    ]
    return EstimatorFusion(
        statistics=fused,
        matching=matching,
        details=details,
        provenance=make_provenance(Sums.name, options, seed, records, result),
        _model=model,
        _verdict=verdict,
        inputs=tuple(FusedInput(site.name, site.value, site.digest) for site in described),
    )


def match_classes(fused: Statistics, sites: Sequence[tuple[str, Statistics]]) -> Matching:
    """Return the fused class of every class of every site, by label, -1 of one withheld; 0 where there are none."""
    positions = [
        np.zeros(1, dtype=np.int64)
        if site.classes is None or fused.classes is None
        else site.classes.positions_in(fused.classes, absent=-1)
        for _, site in sites
    ]
    owner = np.repeat(np.arange(len(sites)), [len(one) for one in positions])
    names = tuple(name for name, _ in sites)
    return Matching(np.concatenate(positions), owner, fused.n_components, names=names)


def _classes(fused: Statistics, described: Sequence[DescribedEstimator]) -> EstimatorDetails:
    """Return which site knows which class, with its number of rows."""
    if fused.classes is None:
        return {}
    return {
        "classes": {
            site.name: dict(zip(site.value.classes.names, site.value.row_counts.tolist(), strict=True))
            for site in described
            if site.value.classes is not None
        }
    }


def _withheld(described: Sequence[DescribedEstimator], min_count: float) -> EstimatorDetails:
    """Return the classes that were left out for too few rows, by site."""
    left_out = [(site.name, problem) for site in described for problem in site.withheld]
    if not left_out:
        return {}
    components: list[WithheldComponent] = [
        {"model": name, "component": str(problem.subject)} for name, problem in left_out[:MAX_NAMED]
    ]
    return {"withheld": {"min_count": min_count, "count": len(left_out), "components": components}}
