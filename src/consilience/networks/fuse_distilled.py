"""Fusion by distillation: the fused network, or any other, trained to answer as all networks together.

1. **Inputs** to train on, to stop by and to score on: given ones, draws from what sites describe, or images matched to
   batch normalisation (``choice.inputs``); networks with batch normalisation are trained on matched images where images
   are described, too, unless sites differ and draws are like their inputs. Without any of these networks are refused by
   name.
2. **Teacher**: the ensemble of all networks, by the counts of their classes where these are described, or estimated on
   matched images (``choice.teacher``).
3. **Start**: the matched network or that refitted, of a common initialisation the plain average too, or, where sites
   have their classes alike, one of their own, and in a wider network several beside each other: which has the least
   loss on the inputs to stop by; what was fitted to synthetic inputs needs the margin over a site's own network that it
   needs to be taken (``choice.choose``). A narrower network starts from a transport into its widths, one of another
   architecture from the weights that it came with; both have the statistics of batch normalisation measured on the
   inputs, since an average has none that fit.
4. **Training** (``distillation``): the best network on the inputs to stop by is returned, the start among them; of
   sites' own networks the mean before and after. Batch normalisation learns its statistics from given inputs, matched
   images and draws that are like real inputs; on others it is anchored afterwards.
"""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from consilience.core.details import Status
from consilience.errors import InputError, OptionError, Problem
from consilience.networks.choice.candidate import Candidate, CandidateOptions, Effort
from consilience.networks.choice.sites import Sites
from consilience.networks.choice.verdict import DESCRIBE, Choice
from consilience.networks.choice.workshop import Workshop
from consilience.networks.details import Distillation
from consilience.networks.fuse_aligned import NetworkArguments, is_width_change, target_units
from consilience.networks.fusion import NetworkFusion, NetworkInput
from consilience.networks.methods.distill import Distill, is_narrower_than_some
from consilience.networks.network import Network
from consilience.networks.shared_symmetry import NetworksWithSymmetry
from consilience.networks.symmetry.symmetry import Symmetry, trivial_symmetry
from consilience.networks.torch_modules import aliases_of_module, arrays_of_module, is_module, layer_kinds, module_with

if TYPE_CHECKING:
    from torch import nn

    from consilience.networks.choice.inputs import ChoiceInputs
    from consilience.networks.choice.make_candidates import NetworkComparison

_NO_INPUTS = (
    "nothing tells what inputs are like: none are given, no site describes its own, and no batch normalisation keeps "
    "statistics of them"
)


def distillation_problems(models: NetworksWithSymmetry, sites: Sites, arguments: NetworkArguments) -> list[Problem]:
    """Return why networks cannot be distilled, a line each, as far as it is known before inputs are drawn."""
    if models.template is None:
        return [Problem("models", "came without a module", "give `module=`, a function that makes one", "E-NEEDED")]
    describes = any(said is not None and said.input_shape is not None for said in sites.descriptions)
    has_norm = any(key.endswith("running_var") for key in models.networks[0].arrays)
    if arguments.inputs is None and not describes and not has_norm:
        return [_no_inputs(sites)]
    return []


def _no_inputs(sites: Sites) -> Problem:
    return Problem(", ".join(sites.names), _NO_INPUTS, f"give `inputs=`, or {DESCRIBE}", "E-NEEDED")


def fuse_distilled(workshop: Workshop) -> NetworkFusion:
    """Return the fusion of networks whose network was distilled from all of them, without provenance.

    Raises InputError where nothing tells what inputs are like, and for a target with other outputs; OptionError for a
    time in which no step can be made.
    """
    started, method = time.monotonic(), cast(Distill, workshop.method)
    models, sites, arguments = workshop.models, workshop.sites, workshop.arguments
    if problems := distillation_problems(models, sites, arguments):
        raise InputError(problems)
    from consilience.networks.choice.make_candidates import NetworkComparison  # here, since it needs torch

    matching_rng, input_rng, candidate_rng = workshop.rng.spawn(3)
    other = _other_architecture(models, arguments.target)
    arguments = arguments if other is None else replace(arguments, target=None)
    is_narrower = other is None and is_narrower_than_some(models.networks, target_units(models, method, arguments))
    is_of_models = other is None and not is_narrower
    method = method.for_start(is_fused=is_of_models)
    if is_narrower:  # several units of a model became one: its layers are none that this network's could be fitted to
        method = replace(method, refit=False)
    workshop = replace(workshop, arguments=arguments, information=None, method=method, rng=matching_rng)
    inputs = _inputs(workshop, method, input_rng)
    steps = inputs.steps_for(workshop.modules[0]) if method.steps is None else method.steps
    options = CandidateOptions(refit=method.refit, max_seconds=method.max_seconds)
    comparison = NetworkComparison(workshop, inputs, candidate_rng, started, options)
    refit_rng, batch_rng = candidate_rng.spawn(2)
    start, note = _start(comparison, other, is_narrower, refit_rng)
    candidate, distilled = comparison.distil(
        start,
        batch_rng,
        steps=steps,
        learning_rate=method.learning_rate,
        batch_size=method.batch_size,
        max_seconds=_remaining(method, started),
        progress=workshop.progress,
        is_anchored=is_of_models,
    )
    if not distilled.steps:
        raise _too_short(method)
    if candidate is None:
        comparison.notes.append("No step came nearer to the sites' ensemble on held-out inputs: the start stays")
    comparison.notes += [note] if note else []
    is_cut_short = distilled.stopped_by == "time"
    if is_cut_short:
        bound = f"`max_seconds={method.max_seconds:g}`"
        comparison.notes.append(f"Training ended at {bound}, after {distilled.steps} of {steps} steps")
    fusion = workshop.finish(_judged(comparison, start, candidate or start))
    status = Status.OUT_OF_TIME if is_cut_short else fusion.status
    record: Distillation = {
        "steps": distilled.steps,
        "best_step": distilled.best_step,
        "stopped_by": distilled.stopped_by,
        "held_out_loss": [float(f"{loss:.6g}") for loss in distilled.history.tolist()],
    }
    return replace(fusion, status=status, details={**fusion.details, "distillation": record})


def _inputs(workshop: Workshop, method: Distill, rng: np.random.Generator) -> ChoiceInputs:
    """Return the inputs to train on, to stop by and to score on.

    Raises InputError where nothing tells what inputs are like, and OptionError for a time in which images cannot be
    matched.
    """
    try:
        inputs = workshop.choice_inputs(method.n_inputs, rng, method.max_seconds, matches_images=True)
    except OptionError as error:
        if method.max_seconds is None:
            raise
        raise _too_short(method) from error  # which names the caller's bound, and not the images' share of it
    if inputs is None:
        raise InputError([_no_inputs(workshop.sites)])
    return inputs


def _other_architecture(models: NetworksWithSymmetry, target: nn.Module | None) -> nn.Module | None:
    """Return a target that is not the models' network in these or other widths, by its arrays and kinds of layers."""
    if target is None or not is_module(target):
        return None
    same_kinds = models.template is None or layer_kinds(models.template) == layer_kinds(target)
    return None if same_kinds and is_width_change(models, target) else target


def _start(
    comparison: NetworkComparison, other: nn.Module | None, is_narrower: bool, rng: np.random.Generator
) -> tuple[Candidate, str]:
    """Return the network that training starts from, and what the verdict should say of it."""
    if other is not None:
        note = "The target is of another architecture, so it started from its own weights"
        return _start_of_other(other, comparison), note
    if is_narrower:
        base = comparison.workshop.base_candidate
        start = replace(base, module=_with_own_statistics(base.module, comparison), made="transported")
        return start, "The target is narrower, so it started from an optimal transport into its widths"
    fused = [*comparison.averages(), *comparison.refitted(rng)]
    return comparison.start([*comparison.site_candidates(), *fused]), ""


def _remaining(method: Distill, started: float) -> float | None:
    """Return the seconds that are left for training; None without a bound."""
    if method.max_seconds is None:
        return None
    left = method.max_seconds - (time.monotonic() - started)
    if left <= 0:
        raise _too_short(method)
    return left


def _too_short(method: Distill) -> OptionError:
    text = f"{method.max_seconds:g} s were over before the first step: inputs and the start took them"
    return OptionError("max_seconds", text, "give more time")


def _judged(comparison: NetworkComparison, start: Candidate, taken: Candidate) -> Choice:
    """Return the chosen network, scored with the start and the sites' networks on inputs that no training step saw."""
    candidates = comparison.workshop.site_candidates()
    candidates += [candidate for candidate in (start, taken) if candidate.site is None and candidate not in candidates]
    number = len(candidates) - 1 if taken.site is None else taken.site
    return comparison.compare(candidates, lambda _: number)


def _start_of_other(target: nn.Module, comparison: NetworkComparison) -> Candidate:
    """Return a network of another architecture as a start.

    Raises InputError for one that does not take the networks' inputs, or answers otherwise.
    """
    from consilience.networks.module_inputs import refuse_unfit
    from consilience.networks.repair.partial_forward import call_module, evaluation_without_gradients

    models, sites = comparison.workshop.models, comparison.workshop.sites
    like = next(comparison.workshop.modules[0].parameters())
    module = copy.deepcopy(target).to(like.device).eval()
    rows = comparison.inputs.fit.inputs[:2]
    refuse_unfit(module, (rows,), "target")
    n_outputs = comparison.on_held.shape[2]
    with evaluation_without_gradients(module):
        answered = getattr(call_module(module, rows), "shape", (0,))
    shape = tuple(answered[1:]) if len(answered) > 1 else (1,)  # of an answer to one input
    if shape != (n_outputs,):
        text = f"answers {shape} for an input where the networks answer ({n_outputs},)"
        raise InputError("target", text, code="E-SHAPE")
    module = _with_own_statistics(module, comparison)
    aliases = aliases_of_module(module)
    arrays = arrays_of_module(module)
    symmetry = trivial_symmetry(arrays, aliases)
    network = Network({key: v for key, v in arrays.items() if key not in aliases}, symmetry, "target")

    fusion = NetworkFusion(
        network=network,
        matching={},
        transports=tuple({} for _ in models.inputs),
        details={"proved": models.symmetry.proved, "notes": list(models.symmetry.notes)},
        provenance={},
        inputs=tuple(
            NetworkInput(of.name, local, float(weight), of.digest, None, of.description, rests_on=of.rests_on)
            for of, local, weight in zip(models.inputs, models.networks, sites.weights, strict=True)
        ),
        _rebuild=partial(_rebuild, module, symmetry, models),
        repaired="not needed: it is no average",
    )
    return Candidate("target", Effort.MATCHED, module, fusion)


def _rebuild(module: nn.Module, symmetry: Symmetry, models: NetworksWithSymmetry, network: Network) -> nn.Module:
    """Return the module of a network: of the target's architecture, or of the models', which the ensemble asks for."""
    if network.symmetry is symmetry:
        return module_with(module, network.arrays, symmetry).eval()
    return models.module(network)


def _with_own_statistics(module: nn.Module, comparison: NetworkComparison) -> nn.Module:
    """Return a network with statistics of batch normalisation that it has itself on the inputs to train on."""
    from consilience.networks.repair.channel_statistics import reestimate_batch_norm

    return reestimate_batch_norm(module, comparison.inputs.to_distil[0].inputs)
