"""The pipeline for posteriors: describe and check, then match, average and rebuild."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array
from consilience.core.inputs import in_order
from consilience.core.kind import Prepared, Request
from consilience.core.progress import Progress
from consilience.core.provenance import make_provenance
from consilience.errors import OptionError
from consilience.matching.result import Matching
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.fusion import FusionInput, PosteriorFusion
from consilience.posteriors.inputs import DescribedInput, describe_inputs
from consilience.posteriors.method import Method
from consilience.posteriors.methods import make_method
from consilience.posteriors.model_ensemble import ensemble_of
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.rebuild import adapter_of, rebuild
from consilience.posteriors.vocabulary import VocabularyAlignment

RECOMMENDED = "kl"
"""The method that ``method=None`` takes for posteriors."""


def prepare_posteriors(request: Request) -> Prepared:
    """Describe and check posteriors; see ``Kind.prepare``."""
    described, alignment, problems = describe_inputs(request.inputs, request.n_observations)
    method = recommended_method(request.method, request.options, described[0].posterior if described else None)
    weights = request.weights
    if weights is not None:
        weights = in_order(weights, [one.name for one in request.inputs], "weights")
    error: OptionError | None = None
    try:
        if len({one.posterior.family for one in described}) == 1:
            all_described = len(described) == len(request.inputs)
            ensemble = ensemble_of_inputs(described, weights if all_described else None)
            adapter = None if problems else _rebuilding_adapter(method, ensemble)
            problems = problems + method.refuse(ensemble) + _refusals(adapter, method, ensemble)
    except OptionError as misuse:
        error = misuse
    fuse = partial(fuse_described, described, method, alignment, weights, request.rng, request.seed, request.progress)
    return Prepared(problems, fuse, error)


def ensemble_of_inputs(described: Sequence[DescribedInput], weights: ArrayLike | None) -> Ensemble:
    """Return described inputs as one stack."""
    return Ensemble.of([one.posterior for one in described], weights, [one.name for one in described])


def _rebuilding_adapter(method: Method, ensemble: Ensemble) -> Adapter | None:
    return None if method.keeps_models else adapter_of(ensemble.posteriors[0])


def fuse_described(
    described: Sequence[DescribedInput],
    method: Method,
    alignment: VocabularyAlignment | None,
    weights: ArrayLike | None,
    rng: np.random.Generator,
    seed: int | None,
    progress: Progress,
) -> PosteriorFusion:
    """Match, average and rebuild posteriors that were described and checked."""
    ensemble = ensemble_of_inputs(described, weights)
    adapter = _rebuilding_adapter(method, ensemble)
    outcome = method.fuse(ensemble, rng, progress)
    if adapter is not None and adapter.recombines:  # then a component of few sites means nothing
        details = {name: value for name, value in outcome.details.items() if name != "minority"}
        outcome = replace(outcome, details=details)
    if alignment is not None:
        outcome = replace(outcome, details={**outcome.details, "vocabulary": alignment.details()})
    if adapter is not None:
        outcome = replace(outcome, posterior=adapter.recombine(outcome.posterior, ensemble))
    inputs = [
        _input_record(one, float(weight), outcome.matching, site)
        for site, (one, weight) in enumerate(zip(described, ensemble.site_weights, strict=True))
    ]
    result = {
        "n_components": outcome.posterior.n_components,
        "status": outcome.status.name.lower(),
        "objective": outcome.objective if math.isfinite(outcome.objective) else None,
        "history": history_values(outcome.history),
        **outcome.details,
    }
    return PosteriorFusion(
        posterior=outcome.posterior,
        matching=outcome.matching,
        objective=outcome.objective,
        history=outcome.history,
        status=outcome.status,
        details=outcome.details,
        provenance=make_provenance(method.name, asdict(method), seed, sorted(inputs, key=_input_key), result),
        inputs=tuple(
            FusionInput(one.name, one.posterior, float(weight), one.digest)
            for one, weight in zip(described, ensemble.site_weights, strict=True)
        ),
        _rebuild=_rebuilds(method, ensemble),
        keeps_models=method.keeps_models,
        atoms=outcome.atoms,
    )


def _refusals(adapter: Adapter | None, method: Method, ensemble: Ensemble) -> list[str]:
    """Return why models of this kind cannot be fused so, a line each, besides what the method itself says."""
    if adapter is None:
        return []
    asked = [name for name, usual in (("robust", None), ("minority", "keep")) if getattr(method, name) != usual]
    joint = [
        f"{name}={getattr(method, name)!r}: the fused {adapter.kind} follows from all sites' models together, not from "
        "copies of components; leave it out"
        for name in asked
        if adapter.recombines
    ]
    return adapter.refuse(ensemble) + joint


def recommended_method(method: Any, options: Mapping[str, Any], first: Posterior | None) -> Method:
    """Return the method that was asked for, or the recommended one for models like `first`."""
    if method is not None:
        return make_method(method, options)
    adapter = None if first is None else adapter_of(first)
    if adapter is None:
        return make_method(RECOMMENDED, options)
    return make_method(adapter.recommended, {**adapter.recommended_options, **options})


def _rebuilds(method: Method, ensemble: Ensemble) -> Callable[[Posterior], Any]:
    """Return what makes the fused model: of the fused posterior, or all models side by side."""
    if not method.keeps_models:
        return rebuild
    return lambda _: ensemble_of([rebuild(posterior) for posterior in ensemble.posteriors], ensemble.site_weights)


def _input_record(one: DescribedInput, weight: float, matching: Matching, site: int) -> dict[str, Any]:
    """Return what a fused file says about one of its inputs."""
    record: dict[str, Any] = {"name": one.name, "components": one.posterior.n_components, "weight": weight}
    if one.digest is not None:
        record["sha256"] = one.digest
    record["labels"] = matching.of_site(site).tolist()
    if matching.confidence is not None:
        values = matching.confidence[slice(*np.searchsorted(matching.owner, [site, site + 1]))].tolist()
        record["confidence"] = [round(value, 4) if math.isfinite(value) else None for value in values]
    return record


def history_values(history: Array) -> list[float | None]:
    """Return a history as JSON values, to the digits that differ by more than rounding."""
    return [float(f"{value:.12g}") if math.isfinite(value) else None for value in history.tolist()]


def _input_key(record: dict[str, Any]) -> tuple[str, str]:
    """Order inputs by content, so that arrival order does not change a fused file."""
    return str(record.get("sha256", "")), str(record["name"])
