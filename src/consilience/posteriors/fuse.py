"""Fusing posteriors: what ``fuse`` and ``check`` do with everything that is not a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array
from consilience.core.progress import Progress
from consilience.core.provenance import make_provenance
from consilience.errors import InputError, OptionError
from consilience.matching.result import Matching
from consilience.posteriors.adapters import adapter_of, rebuild
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.fusion import FusionInput, PosteriorFusion
from consilience.posteriors.inputs import Given, gather
from consilience.posteriors.method import Method
from consilience.posteriors.methods import make_method
from consilience.posteriors.model_ensemble import ensemble_of
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.vocabulary import VocabularyAlignment

RECOMMENDED = "kl"
"""The method that ``method=None`` takes for posteriors."""


def fuse_posteriors(
    models: Sequence[Any],
    method: str | Method | None,
    weights: ArrayLike | None,
    rng: np.random.Generator,
    seed: int | None,
    progress: Progress,
    samples: Sequence[float] | None,
    options: Mapping[str, Any],
) -> PosteriorFusion:
    """Fuse posteriors; see ``fuse`` for what it takes."""
    given, alignment, problems = gather(models, samples)
    chosen = _chosen(method, options, given)
    if problems:
        raise InputError(problems)
    return fuse_given(given, chosen, alignment, weights, rng, seed, progress)


def fuse_given(
    given: Sequence[Given],
    chosen: Method,
    alignment: VocabularyAlignment | None,
    weights: ArrayLike | None,
    rng: np.random.Generator,
    seed: int | None,
    progress: Progress,
) -> PosteriorFusion:
    """Fuse posteriors that were read and found to go together."""
    ensemble = Ensemble.of([one.posterior for one in given], weights, [one.name for one in given])
    adapter = None if chosen.keeps_models else adapter_of(ensemble.posteriors[0])
    if reasons := _refused(adapter, chosen, ensemble):
        raise InputError(reasons)
    outcome = chosen.fuse(ensemble, rng, progress)
    if adapter is not None and adapter.recombines:  # then a component of few sites means nothing
        details = {name: value for name, value in outcome.details.items() if name != "minority"}
        outcome = replace(outcome, details=details)
    if alignment is not None:
        outcome = replace(outcome, details={**outcome.details, "vocabulary": alignment.details()})
    if adapter is not None:
        outcome = replace(outcome, posterior=adapter.recombine(outcome.posterior, ensemble))
    inputs = [
        _input_record(one, float(weight), outcome.matching, site)
        for site, (one, weight) in enumerate(zip(given, ensemble.site_weights, strict=True))
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
        provenance=make_provenance(chosen.name, asdict(chosen), seed, sorted(inputs, key=_input_key), result),
        inputs=tuple(
            FusionInput(one.name, one.posterior, float(weight), one.digest)
            for one, weight in zip(given, ensemble.site_weights, strict=True)
        ),
        _rebuild=_rebuilds(chosen, ensemble),
        keeps_models=chosen.keeps_models,
        atoms=outcome.atoms,
    )


def check_posteriors(
    models: Sequence[Any],
    method: str | Method | None,
    weights: ArrayLike | None,
    samples: Sequence[float] | None,
    options: Mapping[str, Any],
) -> list[str]:
    """Return everything that would go wrong in fusing posteriors, a line each; see ``check``."""
    given, _, problems = gather(models, samples)
    chosen = _chosen(method, options, given)
    try:
        if len({one.posterior.family for one in given}) == 1:
            of_given = None if weights is None or len(given) < len(models) else weights
            ensemble = Ensemble.of([one.posterior for one in given], of_given, [one.name for one in given])
            refused = chosen.refuse(ensemble)
            adapter = None if problems or chosen.keeps_models else adapter_of(ensemble.posteriors[0])
            problems += refused + _refused(adapter, chosen, ensemble)
    except OptionError as error:
        problems.append(str(error))
    return problems


def _refused(adapter: Adapter | None, method: Method, ensemble: Ensemble) -> list[str]:
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


def _chosen(method: str | Method | None, options: Mapping[str, Any], given: Sequence[Given]) -> Method:
    """Return the method that was asked for, or the recommended one for models of this kind."""
    if method is not None:
        return make_method(method, options)
    adapter = adapter_of(given[0].posterior) if given else None
    if adapter is None:
        return make_method(RECOMMENDED, options)
    return make_method(adapter.recommended, {**adapter.recommended_options, **options})


def _rebuilds(method: Method, ensemble: Ensemble) -> Callable[[Posterior], Any]:
    """Return what makes the fused model: of the fused posterior, or all models side by side."""
    if not method.keeps_models:
        return rebuild
    return lambda _: ensemble_of([rebuild(posterior) for posterior in ensemble.posteriors], ensemble.site_weights)


def _input_record(one: Given, weight: float, matching: Matching, site: int) -> dict[str, Any]:
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
