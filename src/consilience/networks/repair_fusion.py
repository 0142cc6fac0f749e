"""Repair and refit of a fusion of networks: the public function ``repair``, and the default refit of ``fuse``.

Both take the fused network and the aligned models as modules, apply one of the repairs of `consilience.networks.repair`
with the weights of the fusion, and return the fusion with the new network and a line on what was done. Where a refit
cannot be done the average stays, and the line says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.catalogue import suggestion
from consilience.errors import InputError, OptionError, UnsupportedError, reason_of
from consilience.networks.details import NetworkDetails
from consilience.networks.fusion import NetworkFusion
from consilience.networks.module_inputs import refuse_unfit
from consilience.networks.network import is_floating
from consilience.networks.parametrised_layers import plain_module
from consilience.networks.torch_modules import arrays_of_module, cast_like, is_module, module_with

if TYPE_CHECKING:
    from torch import nn

_N_SYNTHETIC_ROWS, _N_SYNTHETIC_SEQUENCES, _N_SYNTHETIC_IMAGES = 5000, 2000, 1000
"""Synthetic inputs that layers are fitted to; the more steps or patches one has, the fewer suffice. On MNIST 20,000
rows instead of 5,000 gained nothing (docs/adr/0011); the other two were chosen by hand, nobody has measured other
values."""

_EQUAL_UNITS = 1e-9
"""Models whose units differ by no more than this share of their squares are the same but for rounding. Chosen by hand;
nobody has measured other values."""

_MAX_NOTES_SHOWN = 3
"""Layers left alone by a refit that are named; further ones are counted. Chosen by hand, for the length of a line."""

# Torch is optional, so that what needs it is imported within functions.
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
    """Return a fusion whose network has its channel statistics repaired, or its layers refitted.

    Parameters
    ----------
    fusion : NetworkFusion
        What ``fuse`` returned for networks.
    batches : Tensor of shape (n, ...) or iterable of batches, optional
        Unlabelled inputs. Give these or `moments`.
    models : sequence of torch.nn.Module, optional
        The models that were fused, needed only if they were files without a module.
    moments : sequence of Moments, optional
        What the sites sent instead of inputs, from `consilience.networks.repair.layer_moments`, in the models' order,
        for kind ``"regmean"``.
    kind : {"repair", "statistics", "refit", "regmean"}, optional
        ``"repair"`` (default) gives every channel the mean and deviation that it has in the models (REPAIR);
        ``"statistics"`` only measures those of batch normalisation anew; ``"refit"`` fits every layer to the outputs of
        the models' layers on the inputs; ``"regmean"`` does so from moments.
    **options
        Of the repair: see `consilience.networks.repair`.

    Returns
    -------
    NetworkFusion
        The fusion with the repaired network; its `repaired` says what was done.

    Raises
    ------
    OptionError
        For a kind that does not exist, or that lacks inputs or moments.
    InputError
        For models or moments that do not fit.
    """
    if kind not in _REPAIRS:
        raise OptionError("kind", f"expected one of {', '.join(_REPAIRS)}, found {kind!r}{suggestion(kind, _REPAIRS)}")
    if (batches is None) == (moments is None):
        raise OptionError("batches, moments", "give one of them")
    if moments is None and kind == "regmean":
        raise OptionError("kind 'regmean' needs moments; with inputs, kind 'refit' does the same layer by layer")
    if moments is not None and kind != "regmean":
        text = f"kind {kind!r} needs inputs; with moments, kind 'regmean' fits all layers at once"
        raise OptionError(text)
    fused, aligned = _modules(fusion, models)
    weights = np.array([model.weight for model in fusion.inputs])
    if moments is None:
        module, description = _repair_on_inputs(fused, aligned, weights, batches, kind, options)
    else:
        if len(moments) != len(fusion.inputs):
            text = f"expected those of {len(fusion.inputs)} models, found {len(moments)}"
            raise InputError("moments", text, code="E-SHAPE")
        module = _refit_from_moments(fusion, fused, aligned, weights, moments, options)
        description = "layers fitted to moments"
    return replace_module(fusion, module, description)


def replace_module(fusion: NetworkFusion, module: nn.Module, description: str) -> NetworkFusion:
    """Return the fusion with another network of the same shape, and in its record a description of what was done."""
    before = fusion.network.arrays
    new_arrays = {key: values for key, values in arrays_of_module(module).items() if key in before}
    # In the precision that the networks came in, whatever that of the module is.
    arrays = {key: cast_like(values, before[key]) for key, values in new_arrays.items()}
    network = replace(fusion.network, arrays={**before, **arrays})
    repaired = description if fusion.repaired is None else f"{fusion.repaired}; {description}"
    result = {**fusion.provenance.get("result", {}), "repaired": repaired}
    details: NetworkDetails = {**fusion.details}
    for record in (result, details):
        record.pop("chosen", None)  # a choice is of the network that was judged
    return replace(
        fusion,
        network=network,
        repaired=repaired,
        provenance={**fusion.provenance, "result": result},
        details=details,
        judgement=None,
    )


def _modules(fusion: NetworkFusion, models: Sequence[nn.Module] | None) -> tuple[nn.Module, list[nn.Module]]:
    """Return the fused module and the aligned ones."""
    if models is None:
        return fusion.module_of(fusion.network), fusion.aligned_models
    if len(models) != len(fusion.inputs) or not all(is_module(model) for model in models):
        raise InputError("models", f"expected the {len(fusion.inputs)} modules that were fused", code="E-SHAPE")
    symmetry = fusion.network.symmetry
    networks = (fusion.network, *fusion.aligned)
    template = plain_module(models[0])
    modules = [module_with(template, network.arrays, symmetry).eval() for network in networks]
    return modules[0], modules[1:]


def _repair_on_inputs(
    fused: nn.Module, aligned: Sequence[nn.Module], weights: Any, batches: Any, kind: str, options: Mapping[str, Any]
) -> tuple[nn.Module, str]:
    """Return the network repaired on inputs, and a description of what was done."""
    from consilience.networks import repair as repairs

    if kind == "statistics":
        return repairs.reestimate_batch_norm(fused, batches), "statistics measured on inputs"
    if kind == "refit":
        return repairs.refit(fused, aligned, weights, batches, **options).module, "layers fitted on inputs"
    return repairs.repair(fused, aligned, weights, batches, **options).module, "channels repaired on inputs"


def _refit_from_moments(
    fusion: NetworkFusion,
    fused: nn.Module,
    aligned: Sequence[nn.Module],
    weights: Any,
    moments: Sequence[Any],
    options: Mapping[str, Any],
) -> nn.Module:
    """Return the network whose layers are fitted to moments that sites sent."""
    from consilience.networks import repair as repairs

    # Moments were taken before the units moved, and move with them.
    aligned_moments = [
        of_model.moved(model.network.symmetry, transports, model.network.units)
        for of_model, model, transports in zip(moments, fusion.inputs, fusion.transports, strict=True)
    ]
    return repairs.regmean(fused, aligned, weights, aligned_moments, **options).module


def refit_fusion(
    fusion: NetworkFusion, order: Sequence[int], example: Any, inputs: Any, rng: np.random.Generator
) -> NetworkFusion:
    """Return the fusion with every layer fitted to the outputs of the models' layers.

    Where the networks are no modules, take something else than one tensor of numbers or words, or start with a layer
    that no inputs can be made up for, the average stays, and ``details["refit"]`` says why. `order` is the canonical
    order of the models, so that the one in which they arrived changes nothing; `example` an input that they take;
    `inputs` unlabelled ones to fit on, None for synthetic ones.
    """
    if not_needed := _reason_for_no_refit(fusion):
        return _with_refit(fusion, f"not needed: {not_needed}")
    from consilience.networks import repair as repairs

    # Sums of floating-point numbers depend on their order: models are taken in the canonical one.
    fused, models = fusion.model, fusion.aligned_models
    aligned = [models[i] for i in order]
    weights = np.array([fusion.inputs[i].weight for i in order])
    try:
        fit_inputs = _made_up_inputs(aligned, weights, example, rng) if inputs is None else inputs
        refitted = repairs.refit(fused, aligned, weights, fit_inputs, rng=rng)
    except (InputError, UnsupportedError) as error:
        return _with_refit(fusion, f"not done: {reason_of(error)}")
    description = "layers fitted on inputs" if inputs is not None else "layers fitted on synthetic inputs"
    description += _where_average_stays([f"{name or 'it'} {why}" for name, why in refitted.notes.items()])
    return replace_module(_with_refit(fusion, description), refitted.module, description)


def _with_refit(fusion: NetworkFusion, what: str) -> NetworkFusion:
    return replace(fusion, details={**fusion.details, "refit": what})


def _reason_for_no_refit(fusion: NetworkFusion) -> str:
    """Return why layers need not be fitted; "" where they need to be."""
    # Nothing was averaged where no fused unit has two members: the network is the models side by side.
    if all(matching.members.max(initial=0) <= 1 for matching in fusion.matching.values()):
        return "no two units were merged"
    if all(group.distance <= _EQUAL_UNITS for group in fusion.quality.values()):
        return "the models are the same"
    return ""


def _where_average_stays(notes: Sequence[str]) -> str:
    """Return what follows the description of a refit where layers were left alone, a note each."""
    if not notes:
        return ""
    more = f", and {len(notes) - _MAX_NOTES_SHOWN} more" if len(notes) > _MAX_NOTES_SHOWN else ""
    return f", but where the average stays: {'; '.join(notes[:_MAX_NOTES_SHOWN])}{more}"


def _made_up_inputs(aligned: Sequence[nn.Module], weights: Any, example: Any, rng: np.random.Generator) -> Any:
    """Return synthetic inputs for the models' first layers, in the shape of an example."""
    from consilience.networks import repair as repairs

    tensor = example[0] if isinstance(example, tuple) and len(example) == 1 else example
    if tensor is None:
        raise UnsupportedError("`example=` is missing, an input that the networks take")
    if not hasattr(tensor, "shape"):
        raise UnsupportedError("the networks take something else than one tensor of numbers or words")
    n_axes = tensor.ndim + (not is_floating(tensor))  # a word becomes a vector
    count = {2: _N_SYNTHETIC_ROWS, 3: _N_SYNTHETIC_SEQUENCES}.get(n_axes, _N_SYNTHETIC_IMAGES)
    made_up = repairs.synthetic_inputs(aligned, weights, tensor, count, rng)
    refuse_unfit(aligned[0], (made_up,), "synthetic inputs")  # such as more nodes than the network's graph has
    return made_up
