"""REPAIR: rescale the channels of a fused network to the means and deviations of the models' channels.

Averaging units that are not quite the same lets their signals cancel: deviations of pre-activations collapse from layer
to layer (variance collapse). Every channel y of the fused network becomes

    (y - mu) / s * sum_i a_i s_i + sum_i a_i mu_i

with mu and s its own mean and deviation, mu_i and s_i those of the aligned model i, a_i the weights of the models.
(Jordan, Sedghi, Saukh, Entezari, Neyshabur 2023, "REPAIR: REnormalizing Permuted Activations for Interpolation Repair",
ICLR.) Factors and shifts are folded into the weights, so that the architecture stays. Layers are visited from the input
to the output, each measured after those before it were repaired: at the end all of them meet their targets. Where batch
normalisation follows a layer, its output is repaired, and its running statistics become those measured. A channel
without any deviation is left as it is, and what could not be repaired is named in the notes.

**Channel statistics predicted from moments of layer inputs**.

A layer with weights W and biases b has, for inputs x of mean m and covariance C, pre-activations of mean W m + b and of
variances diag(W C W^T): exact for the moments' own network, approximate for another one in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from numpy.typing import ArrayLike
from torch import Tensor, nn

from consilience.checks import Array, as_weights
from consilience.errors import InputError
from consilience.networks.repair.channel_statistics import (
    channel_statistics,
    measure_channels,
    remeasure_batch_norm,
    rescale_channels,
    target_statistics,
)
from consilience.networks.repair.partial_forward import (
    LayerOrder,
    PartialForward,
    as_batches,
    evaluation_without_gradients,
    is_norm,
    layer_order,
)

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class Repaired(Generic[_Module]):
    """A network whose statistics were repaired, or whose weights were fitted.

    Parameters
    ----------
    module : Module
        The network.
    factors : mapping of str to Tensor of shape (channels,)
        Name of a layer or batch normalisation -> what its channels were multiplied by; far from one where there was
        much to repair.
    notes : mapping of str to str
        Name of a part that was left alone, wholly or in part -> why.
    """

    module: _Module
    factors: Mapping[str, Tensor] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


def repair(
    fused: _Module, aligned: Sequence[nn.Module], weights: ArrayLike | None, batches: Any, output: bool = False
) -> Repaired[_Module]:
    """Return a copy of a fused network whose channels have the means and deviations of the models' (REPAIR).

    A layer that has no bias, and no batch normalisation after it, is only scaled: its deviations meet their targets,
    its means do not.

    Parameters
    ----------
    fused : Module
        A network; it is left as it is.
    aligned : sequence of Module
        The models, of the same architecture and width, their units in the fused network's order.
    weights : array_like of shape (n_models,) or None
        Weight a_i of each model; None: equal weights.
    batches : Tensor of shape (n, ...) or iterable of batches
        Inputs: a tensor, or batches of them (tensors, keyword arguments, or inputs with labels, which are not used).
        They are gone through once for each model and layer, and only once in all for an ``nn.Sequential`` whose
        batches are in memory.
    output : bool, optional
        Whether the output layer is repaired too. Default: False, since nothing follows that would suffer from a lost
        deviation, while logits of the models' mean size are surer than those of the fused network deserve.

    Returns
    -------
    Repaired
        The copy, its factors, and notes on what was left alone.

    Raises
    ------
    InputError
        When there are no batches, or values are not finite.

    Examples
    --------
    >>> import torch
    >>> net_a, net_b = nn.Sequential(nn.Linear(1, 1), nn.ReLU()), nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    >>> _ = nn.init.constant_(net_a[0].weight, 1.0), nn.init.constant_(net_b[0].weight, 3.0)
    >>> weak = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    >>> _ = nn.init.constant_(weak[0].weight, 0.5)
    >>> repaired = repair(weak, [net_a, net_b], None, torch.tensor([[1.0], [2.0]]), output=True).module
    >>> round(repaired[0].weight.item(), 4)
    2.0
    """
    batches, a = as_batches(batches), normalised_weights(weights, len(aligned))
    order = layer_order(fused, next(iter(batches)))
    names = repaired_layers(order, output)
    # The models do not change, so one pass over each measures all of its layers.
    model_statistics = [channel_statistics(model, batches, names) for model in aligned]
    network = deepcopy(fused)
    factors, notes = {}, dict(order.skipped)
    with evaluation_without_gradients(network):
        forward = PartialForward.at_input(network, batches)
        for name in names:
            forward = forward.advance_to(name)
            part: Any = network.get_submodule(name)
            if is_norm(part):
                remeasure_batch_norm(forward, name, keep_function=True)
            if part.weight is None:
                notes[name] = "has no gain: only its running statistics were set"
                continue
            # Then outputs are rescaled, y -> (y - mu) s* / s + mu*, to the mean statistics mu*, s* of the models.
            target = target_statistics([statistics[name] for statistics in model_statistics], a)
            factors[name] = rescale_channels(part, measure_channels(forward, name), target)
            if part.bias is None:
                notes[name] = "has no bias: deviations were repaired, means were not"
    return Repaired(network, factors, notes)


def repaired_layers(order: LayerOrder, output: bool) -> list[str]:
    """Return the parts whose channels are repaired: batch normalisations, and layers without one."""
    # Of a layer with batch normalisation after it the normalised output is repaired, not the pre-activation.
    excluded = set(order.normalised) | (set() if output else order.outputs)
    return [name for name in order.not_recurrent if name not in excluded]


def normalised_weights(weights: ArrayLike | None, count: int) -> Array:
    """Return the weights of the models (count,), which sum to one."""
    if count == 0:
        raise InputError("aligned", "expected at least one model, found none", code="E-NEEDED")
    unnormalised = as_weights(weights, count)
    return unnormalised / unnormalised.sum()
