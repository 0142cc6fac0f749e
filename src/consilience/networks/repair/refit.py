"""Refitting a fused network: layer by layer, least squares to the outputs of the aligned models' layers.

The layers are visited in the order of computation. With h the input of a layer of the fused network, the layers before
already fitted, x_i the input of that layer in model i, W_i its weights and a_i the weight of the model, W is the
minimiser of

    sum_i a_i E |W h - W_i x_i|^2 + ridge * mean diagonal of E[h h^T] * |W - W_0|^2,

W_0 the average of the models' weights. So later layers compensate errors of earlier ones, which an average and a
regression mean (`consilience.networks.repair.regmean`) cannot do. Least squares shrinks: the fitted outputs deviate
less than their targets, so channels are then rescaled as in REPAIR, before the next layer is fitted. Where batch
normalisation follows a layer, its output is fitted, and at the end all of it is written at the models' own gamma and
beta (``anchor``); recurrent layers are fitted step by step (``recurrent_refit``). The
inputs need no labels, and may be synthetic (`synthetic_inputs`). Layers that cannot be fitted keep the average, with a
note.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from math import ceil, prod
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from consilience.checks import Array, is_count
from consilience.errors import InputError, OptionError
from consilience.networks.repair.anchor import anchor_norms
from consilience.networks.repair.channel_statistics import (
    channel_rows,
    gain_and_bias,
    measure_channels,
    remeasure_batch_norm,
    rescale_channels,
    target_statistics,
    weights_over_owners,
    write_parameter,
)
from consilience.networks.repair.convolution_patches import (
    channel_blocks,
    output_positions,
    patch_blocks,
    weight_blocks,
    write_weight_blocks,
)
from consilience.networks.repair.layer_moments import RunningMoments
from consilience.networks.repair.partial_forward import (
    PartialForward,
    as_batches,
    batch_length,
    evaluation_without_gradients,
    is_norm,
    layer_order,
)
from consilience.networks.repair.recurrent_refit import fit_recurrent
from consilience.networks.repair.regression import ActivationMoments, require_ridge
from consilience.networks.repair.repair import Repaired, normalised_weights, repaired_layers

_Module = TypeVar("_Module", bound=nn.Module)


def refit(
    fused: _Module,
    aligned: Sequence[nn.Module],
    weights: ArrayLike | None,
    inputs: Any,
    ridge: float = 0.1,
    rescaled: bool = True,
    patches_per_layer: int = 2**15,
    batch_size: int = 256,
    rng: np.random.Generator | int = 0,
) -> Repaired[_Module]:
    """Return a copy of a fused network whose layers are fitted to the outputs of the aligned models' layers.

    Parameters
    ----------
    fused : Module
        The average of the aligned models; it is left as it is. Layers that are called more than once or share their
        weights, recurrent cells and layers that read packed sequences, and everything that is neither linear, a
        convolution nor recurrent keep its weights.
    aligned : sequence of Module
        The models, of the same architecture and width, their units in the fused network's order.
    weights : array_like of shape (n_models,) or None
        Weight a_i of each model; None: equal weights.
    inputs : Tensor of shape (n, ...) or iterable of batches
        Unlabelled inputs on which the layers are fitted: a tensor, or batches of them (tensors, keyword arguments, or
        inputs with labels, which are not used).
    ridge : float, optional
        Strength of the shrinkage of weights towards those of `fused`, relative to the mean square of a layer's inputs.
        Default: 0.1; which other values were tried is not recorded.
    rescaled : bool, optional
        Whether channels are given the means and deviations of the models' after each layer (`repair`), and batch
        normalisation then the models' gamma and beta (`anchor`). Default: True.
    patches_per_layer : int, optional
        Samples (patches for convolutions, steps of samples for recurrent layers) that a layer is fitted to, at most;
        from more, so many are drawn. Default: 32768, chosen by hand.
    batch_size : int, optional
        Inputs in one forward pass, where they are one tensor. Default: 256.
    rng : numpy.random.Generator or int, optional
        Random generator, or its seed, for the draws of patches and samples. Default: 0.

    Returns
    -------
    Repaired
        The copy, the factors of its channels, and notes on layers that keep the average.

    Raises
    ------
    InputError
        When there are no inputs, or values are not finite.
    OptionError
        When an option has a value that it does not take.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> weak = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> inputs = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    >>> fitted = refit(weak, [net], None, inputs, ridge=0.0).module
    >>> bool((fitted(inputs) - net(inputs)).abs().max() < 1e-4)
    True
    """
    require_ridge(ridge)
    for option, value in (("patches_per_layer", patches_per_layer), ("batch_size", batch_size)):
        if not is_count(value):
            raise OptionError(option, f"expected a positive whole number, found {value!r}")
    a = normalised_weights(weights, len(aligned))
    if isinstance(inputs, Tensor) and (inputs.ndim == 0 or len(inputs) == 0):
        raise InputError("inputs", "expected at least one, found none", code="E-NEEDED")
    batches = list(torch.split(inputs, batch_size) if isinstance(inputs, Tensor) else as_batches(inputs))
    rng = np.random.default_rng(rng)
    network: Any = deepcopy(fused)
    order = layer_order(network, batches[0])
    factors: dict[str, Tensor] = {}
    notes, rescaled_names = dict(order.skipped), repaired_layers(order, output=False)
    # Every batch gives a share of the patches by its number of samples.
    n_samples = np.array([batch_length(batch) for batch in batches])
    patches_per_sample = patches_per_layer / int(n_samples.sum())
    with evaluation_without_gradients(network, *aligned):
        # The fused network first, then the models, all run to the same layer.
        passes = [PartialForward.at_input(module, batches) for module in (network, *aligned)]
        for name in order.names:
            passes = [forward.advance_to(name) for forward in passes]
            part: Any = network.get_submodule(name)
            if name in order.recurrent:
                fit_recurrent(passes, name, a, (patches_per_sample * n_samples).tolist(), ridge, rng)
            elif is_norm(part):
                remeasure_batch_norm(passes[0], name, keep_function=False)
            else:
                norm_name = order.normalised.get(name)
                _fit_affine(passes, name, norm_name, a, patches_per_sample, ridge, rng)
            # Least squares shrinks deviations: they are restored before the next layer reads these outputs.
            if rescaled and name in rescaled_names and part.weight is not None:
                current, *of_models = (measure_channels(forward, name) for forward in passes)
                factors[name] = rescale_channels(part, current, target_statistics(of_models, a))
        if rescaled:
            # In the units of the models, not of the inputs: else training mode would scale every channel twice.
            notes.update(anchor_norms(network, aligned, a)[1])
    return Repaired(network, factors, notes)


def _fit_affine(
    passes: Sequence[PartialForward],
    name: str,
    norm_name: str | None,
    weights: Array,
    patches_per_sample: float,
    ridge: float,
    rng: np.random.Generator,
) -> None:
    """Fit a linear layer or convolution in place, together with the batch normalisation that follows, if any."""
    part: Any = passes[0].module.get_submodule(name)
    norm: Any = None if norm_name is None else passes[0].module.get_submodule(norm_name)
    # A normalisation without gain, or without running statistics, cannot take up the scale and shift of its layer.
    if norm_name is not None and norm.running_mean is not None and norm.weight is not None:
        # Layer and normalisation are one affine map in evaluation mode: it is fitted to the normalised outputs.
        remeasure_batch_norm(passes[0], norm_name, keep_function=False)
        moments = _regression_moments(passes, name, norm_name, weights, patches_per_sample, rng)
        _fit_with_batch_norm(part, norm, moments, ridge)
        return
    moments = _regression_moments(passes, name, name, weights, patches_per_sample, rng)
    blocks, bias = moments.solve(weight_blocks(part), part.bias is not None, ridge)
    write_weight_blocks(part, blocks)
    if part.bias is not None:
        write_parameter(part.bias, bias.flatten())


def _fit_with_batch_norm(layer: Any, norm: Any, moments: ActivationMoments, ridge: float) -> None:
    """Fit a layer together with the batch normalisation that follows, in place.

    In evaluation mode both are one affine map y = s (W h + b - mu) + beta with the slope s = gamma / sqrt(var + eps).
    Its weights s W are fitted; W is divided by s, and beta takes the bias. Channels with s = 0 keep their weights.
    """
    mean, variance = norm.running_mean.to(torch.float64), norm.running_var.to(torch.float64)
    gain, shift = gain_and_bias(norm)
    slope = gain / (variance + norm.eps).sqrt()  # (channels,)
    has_slope = slope != 0
    initial = weight_blocks(layer)  # ((groups,) k, d)
    block_slope = slope.reshape(*initial.shape[:-1], 1)
    blocks, bias = moments.solve(block_slope * initial, True, ridge)
    blocks = torch.where(block_slope != 0, blocks / torch.where(block_slope != 0, block_slope, 1.0), initial)
    write_weight_blocks(layer, blocks)
    layer_bias = 0.0 if layer.bias is None else layer.bias.detach().to(torch.float64)
    write_parameter(norm.bias, torch.where(has_slope, bias.flatten() + slope * (mean - layer_bias), shift))


def _regression_moments(
    passes: Sequence[PartialForward],
    name: str,
    target_name: str,
    weights: Array,
    patches_per_sample: float,
    rng: np.random.Generator,
) -> ActivationMoments:
    """Return the joint moments of the inputs of the fused network's layer and the mean outputs of the models.

    The target is the layer, or the batch normalisation after it.
    """
    layer: Any = passes[0].module.get_submodule(name)
    has_unit = []  # (k,) each: a model without a unit has no weight in its channel
    for forward in passes[1:]:
        of_model: Any = forward.module.get_submodule(name)
        has_bias = False if of_model.bias is None else of_model.bias.ne(0)
        has_unit.append(weight_blocks(of_model).ne(0).any(dim=-1).flatten() | has_bias)
    channel_weights = weights_over_owners(weights, torch.stack(has_unit))  # (models, k)
    total: RunningMoments | None = None
    model_calls = [forward.inputs_and_outputs(target_name) for forward in passes[1:]]
    for (inputs, own_outputs), *calls in zip(passes[0].inputs_and_outputs(name), *model_calls, strict=True):
        positions = output_positions(layer, own_outputs)
        n_patches, n_drawn = prod(positions), ceil(patches_per_sample * len(inputs))
        # The same patches of all networks, by their numbers in the order of the layer's outputs.
        rows = np.arange(n_patches) if n_patches <= n_drawn else np.sort(rng.choice(n_patches, n_drawn, replace=False))
        drawn = torch.as_tensor(rows, device=inputs.device)
        outputs = torch.stack([channel_rows(layer, output)[drawn].to(inputs) for _, output in calls])  # (models, m, k)
        # The mean over models has the same minimiser as the sum of their squared distances.
        targets = torch.einsum("ik,ink->nk", channel_weights.to(inputs), outputs)
        patches = patch_blocks(layer, inputs, drawn, positions)  # ((groups,) m, d)
        design = torch.cat([patches, channel_blocks(layer, targets)], dim=-1)  # ((groups,) m, d + k)
        total = RunningMoments.of(design) if total is None else total.with_rows(design)
    if total is None:
        raise InputError("inputs", "expected a tensor of at least one input, found none", code="E-NEEDED")
    mean, covariance = total.mean_and_covariance()
    d = weight_blocks(layer).shape[-1]  # inputs come first in the rows, then the k targets
    return ActivationMoments(mean[..., :d], mean[..., d:], covariance[..., :d, :d], covariance[..., d:, :d])
