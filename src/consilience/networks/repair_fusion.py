"""Repair and refit of a fusion of networks: the public function ``repair``, and what ``fuse`` does by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.networks.fusion import NetworkFusion
from consilience.networks.network import Network, is_floating
from consilience.networks.torch_modules import arrays_of_module, cast_like, is_module, module_with

if TYPE_CHECKING:
    from torch import nn

_MADE_UP, _MADE_UP_SEQUENCES, _MADE_UP_IMAGES = 5000, 2000, 1000
"""Inputs made up to fit layers on; the more steps or patches one has, the fewer do. More gained nothing."""

_AGREED = 1e-9
"""Models whose units differ by no more than this share of their squares are the same but for rounding."""

_REPAIRS = ("repair", "statistics", "regmean", "refit")


def repair(
    fusion: NetworkFusion,
    batches: Any = None,
    *,
    models: Sequence[nn.Module] | None = None,
    moments: Sequence[Any] | None = None,
    kind: str = "repair",
    **options: Any,
) -> NetworkFusion:
    """Return the fusion with a network whose statistics are what they should be.

    Parameters
    ----------
    fusion
        What ``fuse`` gave for networks.
    batches
        Unlabeled inputs: a tensor, or an iterable of batches.
    models
        The models that were fused, needed only if they were files without a module.
    moments
        What the sites sent instead of inputs, from `consilience.networks.repair.layer_moments`, in the models' order.
    kind
        ``"repair"`` gives every channel the mean and deviation that it has in the models (REPAIR); ``"statistics"``
        only measures those of batch normalisation anew; ``"refit"`` fits every layer to the models' answers on the
        inputs; ``"regmean"`` does so from moments.
    **options
        Of the repair: see `consilience.networks.repair`.

    Raises
    ------
    OptionError
        For a kind that does not exist, or that lacks inputs or moments.
    InputError
        For models or moments that do not fit.
    """
    if kind not in _REPAIRS:
        raise OptionError(f"kind: expected one of {', '.join(_REPAIRS)}, found {kind!r}")
    if (batches is None) == (moments is None):
        raise OptionError("batches, moments: give one of them")
    if moments is None and kind == "regmean":
        raise OptionError("kind 'regmean' needs moments; with inputs, kind 'refit' does the same layer by layer")
    if moments is not None and kind == "refit":
        raise OptionError("kind 'refit' needs inputs; with moments, kind 'regmean' does the same all at once")
    fused, aligned = _modules(fusion, models)
    weights = np.array([one.weight for one in fusion.inputs])
    if moments is None:
        module, done = _measured(fused, aligned, weights, batches, kind, options)
    else:
        if len(moments) != len(fusion.inputs):
            raise InputError(f"moments: expected those of {len(fusion.inputs)} models, found {len(moments)}")
        module, done = _from_moments(fusion, fused, aligned, weights, moments, kind, options)
    return with_module(fusion, module, done)


def with_module(fusion: NetworkFusion, module: nn.Module, done: str) -> NetworkFusion:
    """Return the fusion with another network of the same shape, saying what was done to it."""
    before = fusion.network.arrays
    made = {key: values for key, values in arrays_of_module(module).items() if key in before}
    # In the precision that the networks came in, whatever that of the module is.
    arrays = {key: cast_like(values, before[key]) for key, values in made.items()}
    network = Network({**before, **arrays}, fusion.network.symmetry, fusion.network.name)
    said = done if fusion.repaired is None else f"{fusion.repaired}; {done}"
    result = {**fusion.provenance.get("result", {}), "repaired": said}
    return replace(fusion, network=network, repaired=said, provenance={**fusion.provenance, "result": result})


def _modules(fusion: NetworkFusion, models: Sequence[nn.Module] | None) -> tuple[nn.Module, list[nn.Module]]:
    """Return the fused module and the aligned ones."""
    if models is None:
        return fusion.model if is_module(fusion.model) else _no_module(), fusion.aligned_models
    if len(models) != len(fusion.inputs) or not all(is_module(model) for model in models):
        raise InputError(f"models: expected the {len(fusion.inputs)} modules that were fused")
    symmetry = fusion.network.symmetry
    made = [module_with(models[0], one.arrays, symmetry).eval() for one in (fusion.network, *fusion.aligned)]
    return made[0], made[1:]


def _no_module() -> nn.Module:
    raise InputError("models: these are files without a module; give the modules that were fused")


def _measured(
    fused: nn.Module, aligned: Sequence[nn.Module], weights: Any, batches: Any, kind: str, options: Mapping[str, Any]
) -> tuple[nn.Module, str]:
    """Return the network repaired on inputs, and what was done."""
    from consilience.networks import repair as repairs

    if kind == "statistics":
        return repairs.reestimate_batch_norm(fused, batches), "statistics measured on inputs"
    if kind == "refit":
        return repairs.refit(fused, aligned, weights, batches, **options).module, "layers fitted on inputs"
    return repairs.repair(fused, aligned, weights, batches, **options).module, "channels repaired on inputs"


def _from_moments(
    fusion: NetworkFusion,
    fused: nn.Module,
    aligned: Sequence[nn.Module],
    weights: Any,
    moments: Sequence[Any],
    kind: str,
    options: Mapping[str, Any],
) -> tuple[nn.Module, str]:
    """Return the network repaired from moments that sites sent, and what was done."""
    from consilience.networks import repair as repairs

    moved = [
        one.moved(given.network.symmetry, transports, given.network.units)
        for one, given, transports in zip(moments, fusion.inputs, fusion.transports, strict=True)
    ]
    if kind == "regmean":
        return repairs.regmean(fused, aligned, weights, moved, **options).module, "layers fitted to moments"
    rescaled = kind == "repair"
    found = repairs.repair_from_moments(fused, aligned, weights, moved, rescaled=rescaled, **options)
    return found.module, "channels repaired from moments" if rescaled else "statistics predicted from moments"


_FEW = 3
"""Layers which a refit left alone that are named; more are counted."""


def refitted(
    fusion: NetworkFusion, order: Sequence[int], example: Any, inputs: Any, rng: np.random.Generator
) -> NetworkFusion:
    """Return the fusion with every layer fitted to what the models answer, on inputs or on made-up ones.

    Where the networks are no modules, take something else than one tensor of numbers or words, or start with a layer
    that no inputs can be made up for, the average stays, and ``details["refit"]`` says why. The models are taken in an
    order of their own, so that the one in which they arrived changes nothing.
    """
    if all(matching.members.max(initial=0) <= 1 for matching in fusion.matching.values()):
        return replace(fusion, details={**fusion.details, "refit": "not needed: no two units were merged"})
    if all(found.distance <= _AGREED for found in fusion.quality.values()):
        return replace(fusion, details={**fusion.details, "refit": "not needed: the models are the same"})
    from consilience.networks import repair as repairs

    fused, arrived = fusion.model, fusion.aligned_models
    aligned = [arrived[i] for i in order]
    weights = np.array([fusion.inputs[i].weight for i in order])
    one = example[0] if isinstance(example, tuple) and len(example) == 1 else example
    try:
        if one is None:
            raise UnsupportedError("example= is missing, an input that the networks take")
        if not hasattr(one, "shape"):
            raise UnsupportedError("the networks take something else than one tensor of numbers or words")
        axes = one.ndim + (not is_floating(one))  # a word becomes a vector
        count = _MADE_UP if axes == 2 else _MADE_UP_SEQUENCES if axes == 3 else _MADE_UP_IMAGES
        made = repairs.synthetic_inputs(aligned, weights, one, count, rng) if inputs is None else inputs
        found = repairs.refit(fused, aligned, weights, made, rng=rng)
    except (InputError, UnsupportedError) as error:
        return replace(fusion, details={**fusion.details, "refit": f"not done: {error}"})
    done = "layers fitted on inputs" if inputs is not None else "layers fitted on made-up inputs"
    kept = [f"{name or 'it'} {why}" for name, why in found.notes.items()]
    if kept:
        more = f", and {len(kept) - _FEW} more" if len(kept) > _FEW else ""
        done += f", but where the average stays: {'; '.join(kept[:_FEW])}{more}"
    return with_module(replace(fusion, details={**fusion.details, "refit": done}), found.module, done)
