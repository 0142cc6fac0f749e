"""REPAIR: give the channels of a fused network the means and deviations that the models' channels have.

Averaging units that are not quite the same lets their signals cancel: deviations of pre-activations collapse from layer
to layer. Every channel y of the fused network becomes

    (y - mu) / s * sum_i a_i s_i + sum_i a_i mu_i

with mu and s its own mean and deviation, mu_i and s_i those of the aligned models. (Jordan, Sedghi, Saukh, Entezari,
Neyshabur 2023, "REPAIR: REnormalizing Permuted Activations for Interpolation Repair", ICLR.) Factors and shifts are
folded into the weights, so that the architecture stays. Layers are done from the input to the output, each measured
after those before it were done: then all of them meet their goals at the end. Where batch normalisation follows a
layer, it is its output that is repaired, and its running statistics become those measured.
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
from consilience.networks.repair.channel_statistics import channel_statistics, goals, measured, rescale, restate
from consilience.networks.repair.layer_moments import Moments, mixture
from consilience.networks.repair.partial_forward import Stage, Structure, as_batches, evaluated, is_norm, structure
from consilience.networks.repair.predicted_statistics import pre_activations

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class Repaired(Generic[_Module]):
    """A network whose statistics were repaired, or whose weights were fitted.

    Parameters
    ----------
    module
        The network.
    factors
        Name of a layer or batch normalisation -> what its channels were multiplied by (channels,); far from one where
        there was much to repair.
    notes
        Name of a part that was left alone, wholly or in part -> why.
    """

    module: _Module
    factors: Mapping[str, Tensor] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


def repair(
    fused: _Module,
    aligned: Sequence[nn.Module],
    weights: ArrayLike | None,
    batches: Any,
    output: bool = False,
) -> Repaired[_Module]:
    """Return a copy of a fused network whose channels have the means and deviations of the models' (REPAIR).

    A layer that has no bias, and no batch normalisation after it, is only scaled: its deviations meet their goals, its
    means do not.

    Parameters
    ----------
    fused
        A network; it is left as it is.
    aligned
        The models, of the same architecture and width, their units in the fused network's order.
    weights
        What each counts; None counts all alike.
    batches
        Inputs: a tensor, or batches of them (tensors, keyword arguments, or inputs with labels, which are not used).
        They are gone through once for each model and layer, and only once in all for an ``nn.Sequential`` whose
        batches are in memory.
    output
        Whether the output layer is repaired too. It is not by default: nothing follows that would suffer from a lost
        deviation, while logits of the models' mean size are surer than those of the fused network deserve.

    Raises
    ------
    InputError
        When there are no batches, or values are not finite.

    Examples
    --------
    >>> import torch
    >>> one, two = nn.Sequential(nn.Linear(1, 1), nn.ReLU()), nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    >>> _ = nn.init.constant_(one[0].weight, 1.0), nn.init.constant_(two[0].weight, 3.0)
    >>> weak = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    >>> _ = nn.init.constant_(weak[0].weight, 0.5)
    >>> found = repair(weak, [one, two], None, torch.tensor([[1.0], [2.0]]), output=True).module
    >>> round(found[0].weight.item(), 4)
    2.0
    """
    rows, share = as_batches(batches), shares(weights, len(aligned))
    form = structure(fused, next(iter(rows)))
    points = repair_points(form, output)
    wanted = [channel_statistics(model, rows, points) for model in aligned]
    network = deepcopy(fused)
    factors, notes = {}, dict(form.skipped)
    with evaluated(network):
        stage = Stage.at_input(network, rows)
        for name in points:
            stage = stage.advanced(name)
            part: Any = network.get_submodule(name)
            if is_norm(part) and part.running_mean is not None:
                given = measured(stage, name, given=True)
                restate(part, given.mean, given.std.square(), keep_function=True)
            if part.weight is None:
                notes[name] = "has no gain: only its running statistics were set"
                continue
            factors[name] = rescale(part, measured(stage, name), goals([one[name] for one in wanted], share))
            if part.bias is None:
                notes[name] = "has no bias: deviations were repaired, means were not"
    return Repaired(network, factors, notes)


def repair_points(form: Structure, output: bool) -> list[str]:
    """Return where pre-activations are repaired: at batch normalisation, and at layers without one."""
    left = set(form.normalised) | (set() if output else form.outputs)
    return [name for name in form.order if name not in left]


def repair_from_moments(
    fused: _Module,
    aligned: Sequence[nn.Module],
    weights: ArrayLike | None,
    moments: Sequence[Moments],
    rescaled: bool = True,
    output: bool = False,
) -> Repaired[_Module]:
    """Return a copy of a fused network, repaired without inputs: from moments of layer inputs that models came with.

    A layer of the fused network is taken to be given what that layer of the models is given, each as often as it
    counts. That is exact for the first layer. For deeper ones it holds as far as what the layers before give is like
    what they give in the models, which is what the repair sees to.

    Parameters
    ----------
    fused
        A network; it is left as it is.
    aligned
        The models, of the same architecture and width, their units in the fused network's order.
    weights
        What each counts; None counts all alike.
    moments
        Those of each model, moved as the model was (`Moments.moved`).
    rescaled
        Whether channels are given the means and deviations of the models' (REPAIR); otherwise only the running
        statistics of batch normalisation are set.
    output
        Whether the output layer is repaired too.

    Raises
    ------
    InputError
        When the moments are of other networks.
    """
    share = shares(weights, len(aligned))
    pooled = mixture(moments, share)
    network = deepcopy(fused)
    factors: dict[str, Tensor] = {}
    notes = dict(pooled.skipped)
    for name in pooled.layers:
        norm_name = pooled.normalised.get(name)
        now = pre_activations(network, name, pooled)
        own = [pre_activations(model, name, one) for model, one in zip(aligned, moments, strict=True)]
        point = name if norm_name is None else norm_name
        part: Any = network.get_submodule(point)
        if norm_name is not None:
            restate(part, now.mean, now.std.square(), keep_function=False)
            now = now.through(part)
            norms: list[Any] = [model.get_submodule(point) for model in aligned]
            own = [one.through(norm) for one, norm in zip(own, norms, strict=True)]
        elif name in pooled.outputs and not output:
            continue
        if rescaled and part.weight is not None:
            factors[point] = rescale(part, now, goals(own, share))
            if part.bias is None:
                notes[point] = "has no bias: deviations were repaired, means were not"
    return Repaired(network, factors, notes)


def shares(weights: ArrayLike | None, count: int) -> Array:
    """Return weights that sum to one.

    Raises
    ------
    InputError
        When there are no models.
    """
    if count == 0:
        raise InputError("aligned: expected at least one model, found none")
    found = as_weights(weights, count)
    return found / found.sum()
