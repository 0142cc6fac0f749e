"""Pipeline of Bayesian network fusion: describe and check, then match, average and rebuild, or choose.

Bayesian networks become Gaussian networks (`bayesian.shared_symmetry`), which the pipeline of plain networks fuses
(`networks.fuse_aligned`). An ensemble keeps all networks and takes neither symmetry nor matching.

The default makes candidates, compares them by their predictions, and returns one. Sites, inputs, teacher, criterion,
rule and verdict are those of networks without variances (``networks.choice``). What a candidate answers is its
predictive distribution, by the same samples of the weights for all; and what candidates there are is in
``choice.workshop``. Nothing is fitted to inputs, so that all that are drawn compare.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from consilience.checks import Array
from consilience.core.inputs import NamedInput
from consilience.core.kind import Prepared, Request
from consilience.errors import InputError, OptionError
from consilience.files.document import DESCRIPTION
from consilience.networks.choice.candidate import CandidateOptions
from consilience.networks.choice.default import fuse_by_choice
from consilience.networks.choice.sites import Sites, weigh_sites
from consilience.networks.choice.verdict import Choice
from consilience.networks.descriptions.inputs import example_of
from consilience.networks.fuse import as_ensemble_method
from consilience.networks.fuse_aligned import (
    NetworkArguments,
    fuse_aligned,
    network_provenance,
    split_arguments,
    target_units,
)
from consilience.networks.fusion import NetworkFusion, NetworkInput
from consilience.networks.gaussian.choice.workshop import BayesianWorkshop
from consilience.networks.gaussian.fusion import BayesianEnsemble, BayesianFusion, class_priors
from consilience.networks.gaussian.methods import make_bayesian_method
from consilience.networks.gaussian.methods.auto import BayesianAuto
from consilience.networks.gaussian.shared_symmetry import BayesianNetworksWithSymmetry, describe_bayesian_networks
from consilience.networks.inputs import split_companions
from consilience.networks.method import NetworkEnsemble, NetworkMethod
from consilience.networks.network import Network

if TYPE_CHECKING:
    from consilience.networks.choice.inputs import ChoiceInputs

ALL_PER_FIT = 3.25
"""Inputs in all three sets that are drawn, for each one to fit on: 1 + ``EARLY_PER_FIT`` + ``HELD_PER_FIT`` of
``networks.choice.inputs``, which needs torch."""


def fuse_by_default(workshop: BayesianWorkshop, choice_rng: np.random.Generator) -> NetworkFusion:
    """Return the fusion of Bayesian networks that was chosen among candidates, without provenance.

    The generator of the workshop is for the matching, the other for inputs and samples.
    """
    started, method = time.monotonic(), workshop.method
    input_rng, sample_rng = choice_rng.spawn(2)

    def compare(inputs: ChoiceInputs) -> Choice:
        from consilience.networks.gaussian.choice.compare import (  # here, since it needs torch
            BayesianComparison,
            all_to_compare,
        )

        held = all_to_compare(inputs, method.n_inputs)
        options = CandidateOptions(max_seconds=method.max_seconds)
        return BayesianComparison(workshop, held, sample_rng, started, options).choose()

    return fuse_by_choice(workshop, method.matching, math.ceil(method.n_inputs / ALL_PER_FIT), compare, input_rng)


def prepare_bayesian(request: Request) -> Prepared:
    """Describe and check Bayesian networks; see ``Kind.prepare``."""
    arguments, options = split_arguments(request.options)
    method = make_bayesian_method(request.method, options)
    networks, description_files = split_companions(request.inputs, DESCRIPTION)
    try:
        return _prepare(request, arguments, method, networks, description_files)
    except (InputError, OptionError) as error:
        return Prepared.failed(error)


def _prepare(
    request: Request,
    arguments: NetworkArguments,
    method: NetworkMethod,
    networks: Sequence[NamedInput],
    description_files: Sequence[NamedInput],
) -> Prepared:
    """Return described networks with what fuses them, or the reasons why the method refuses them."""
    for option in ("fishers",) if method.road == "chosen" else ("fishers", "inputs"):
        if getattr(arguments, option) is not None:
            raise OptionError(option, "of no use for Bayesian networks, whose variances say what is known")
    names = [named.name for named in networks]
    arguments = arguments.with_reference_number(names)
    proof_rng, fusion_rng, choice_rng = request.rng.spawn(3)
    models = describe_bayesian_networks(
        networks,
        arguments.symmetry,
        arguments.example,
        arguments.module,
        proof_rng,
        is_optional=method.optional_symmetry or method.keeps_models,
        descriptions=arguments.descriptions,
        description_files=description_files,
    )
    descriptions = tuple(bnn.description for bnn in models.bnns)
    said = [bnn.n_observations if bnn.description is None else bnn.description.n_observations for bnn in models.bnns]
    weights, are_stated, observations = weigh_sites(names, request.weights, request.n_observations, said)
    if method.keeps_models:
        asked = request.weights is not None or request.n_observations is not None
        counted = as_ensemble_method(method).with_described_counts(descriptions)
        class_counts = counted.site_class_counts(len(models.inputs), weights if asked else None)
        keep_all = partial(_recorded, partial(_keep_all, models, weights, class_counts), counted, request)
        return Prepared((), keep_all, doubts=models.doubts)
    if request.only_check:
        units, reference = target_units(models, method, arguments), arguments.reference_number or 0
        ensemble = NetworkEnsemble(models.networks, weights, units, reference, priors=models.priors)
        return Prepared.checked(method.reasons(ensemble), models.doubts)

    def fuse() -> NetworkFusion:
        if method.road != "chosen":
            return fuse_aligned(models, method, weights, arguments, fusion_rng, request.progress)[0]
        sites = Sites(tuple(names), weights, descriptions, are_stated, observations)
        stated, chosen = replace(arguments, example=_example(models, arguments)), cast(BayesianAuto, method)
        workshop = BayesianWorkshop(models, sites, stated, None, chosen, fusion_rng, request.progress)
        return fuse_by_default(workshop, choice_rng)

    return Prepared((), partial(_recorded, fuse, method, request), doubts=models.doubts)


def _recorded(fuse: Callable[[], NetworkFusion], method: NetworkMethod, request: Request) -> NetworkFusion:
    """Return a fusion with the record of how it was made."""
    fusion = fuse()
    return replace(fusion, provenance=network_provenance(fusion, method, request.seed))


def _example(models: BayesianNetworksWithSymmetry, arguments: NetworkArguments) -> Any:
    """Return an input that the networks take: the caller's, one as sites describe them, or a synthetic one."""
    if arguments.example is not None or models.template is None:
        return arguments.example
    described = example_of([bnn.description for bnn in models.bnns], models.template)
    if described is not None:
        return described
    return next((bnn.example for bnn in models.bnns if bnn.example is not None), None)


def _side_by_side(members: Any, weights: Array, class_counts: Array | None, priors: Any, _fused: Network) -> Any:
    """Return all networks side by side; no lambda, so that a fusion can be pickled."""
    return BayesianEnsemble(members, weights, class_counts, priors)


def _keep_all(models: BayesianNetworksWithSymmetry, weights: Array, class_counts: Array | None) -> BayesianFusion:
    """Return the ensemble of all networks as a fusion; `weights` (J,) sum to 1, counts of classes are (J, C)."""
    members = models.bnns
    priors = class_priors([bnn.description for bnn in members])
    if without_module := [bnn.name for bnn in members if bnn.module is None]:
        remedy = "give `module=`, one of the architecture"
        raise InputError(", ".join(without_module), "an ensemble asks modules", remedy, "E-NEEDED")
    return BayesianFusion(
        network=models.networks[0],
        matching={},
        transports=tuple({} for _ in members),
        details={},
        provenance={},
        inputs=tuple(
            NetworkInput(described.name, network, float(weight), described.digest, rests_on=described.rests_on)
            for described, network, weight in zip(models.inputs, models.networks, weights, strict=True)
        ),
        _rebuild=partial(_side_by_side, members, weights, class_counts, priors),
        keeps_models=True,
    )
