"""Fusing Bayesian networks: what ``fuse`` and ``check`` do with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.bayesian.ensemble import BayesianEnsemble
from consilience.bayesian.fusion import BayesianFusion
from consilience.bayesian.methods import make_bayesian_method
from consilience.bayesian.shared_symmetry import GatheredBayesian, gather_bayesian
from consilience.checks import Array, as_weights
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.errors import InputError, OptionError
from consilience.networks.fuse_aligned import (
    Arguments,
    fuse_gathered,
    network_provenance,
    split_arguments,
    target_units,
)
from consilience.networks.fusion import NetworkInput
from consilience.networks.method import NetworkEnsemble, NetworkMethod
from consilience.posteriors.method import Method


def fuse_bayesian(
    models: Sequence[Any],
    method: str | NetworkMethod | Method | None,
    weights: ArrayLike | None,
    rng: np.random.Generator,
    seed: int | None,
    progress: Progress,
    options: Mapping[str, Any],
) -> BayesianFusion:
    """Fuse Bayesian networks; see ``fuse`` for what it takes."""
    told, options = split_arguments(options)
    chosen = make_bayesian_method(method, options)
    proving, fusing = rng.spawn(2)
    gathered = _gathered(models, chosen, told, proving)
    shares = as_weights(weights, len(gathered.given))
    shares = shares / shares.sum()
    if chosen.keeps_models:
        fusion = _side_by_side(gathered, shares)
    else:
        priors = [one.prior for one in gathered.bayesian]
        fusion, _ = fuse_gathered(gathered, chosen, shares, told, fusing, progress, BayesianFusion, priors=priors)
        if gathered.template is None and told.target is None:  # a Bayesian network also without a module, if not asked
            fusion = replace(fusion, _rebuild=gathered.module)
    return replace(fusion, provenance=network_provenance(fusion, chosen, seed))


def check_bayesian(
    models: Sequence[Any],
    method: str | NetworkMethod | Method | None,
    weights: ArrayLike | None,
    options: Mapping[str, Any],
) -> list[str]:
    """Return everything that would go wrong in fusing Bayesian networks, a line each; see ``check``."""
    told, options = split_arguments(options)
    chosen = make_bayesian_method(method, options)
    try:
        gathered = _gathered(models, chosen, told, np.random.default_rng(0))
        shares = as_weights(weights, len(gathered.given))
        if chosen.keeps_models:
            return []
        units = target_units(gathered, chosen, told)
        priors = tuple(one.prior for one in gathered.bayesian)
        ensemble = NetworkEnsemble(gathered.networks, shares / shares.sum(), units, told.reference or 0, priors=priors)
        return chosen.reasons(ensemble)
    except InputError as error:
        return list(error.problems)
    except OptionError as error:
        return [str(error)]


def _gathered(
    models: Sequence[Any], method: NetworkMethod, told: Arguments, rng: np.random.Generator
) -> GatheredBayesian:
    for option in ("fishers", "inputs"):
        if getattr(told, option) is not None:
            raise OptionError(f"{option}: of no use for Bayesian networks, whose variances say what is known")
    without = method.optional_symmetry or method.keeps_models
    return gather_bayesian(models, told.symmetry, told.example, told.module, rng, without=without)


def _side_by_side(gathered: GatheredBayesian, shares: Array) -> BayesianFusion:
    """Return all networks side by side."""
    members = gathered.bayesian
    if lacking := [one.name for one in members if one.module is None]:
        raise InputError(f"{', '.join(lacking)}: an ensemble asks modules; give module=, one of the architecture")
    return BayesianFusion(
        network=gathered.networks[0],
        matching={},
        transports=tuple({} for _ in members),
        objective=math.nan,
        history=np.zeros(0),
        status=Status.CONVERGED,
        details={},
        provenance={},
        inputs=tuple(
            NetworkInput(one.name, network, float(share), one.digest)
            for one, network, share in zip(gathered.given, gathered.networks, shares, strict=True)
        ),
        _rebuild=lambda _: BayesianEnsemble(members, shares),
        keeps_models=True,
    )
