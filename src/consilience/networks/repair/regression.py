"""RegMean: layers of a fused network by least squares on the aligned models' layers.

With x_i the input of a layer of model i, W_i its weights, a_i the weight of the model and h the input of the layer of
the fused network, W is the minimiser of

    sum_i a_i E |W h - W_i x_i|^2 + ridge * mean diagonal of E[h h^T] * |W - W_0|^2,

W_0 the weights of the fused network as it was; a bias is fitted along and is not penalised. `regmean` takes h to be
x_i, model by model, so that second moments G_i of their inputs are all it needs: W (sum_i a_i G_i) = sum_i a_i W_i G_i.
(Jin, Ren, Preotiuc-Pietro, Cheng 2023, "Dataless Knowledge Fusion by Merging Weights of Language Models", ICLR.) For h
the real input of the fused network's layer see ``refit``. The system is that of ``core.solve_layer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from consilience.checks import is_number
from consilience.core.solve_layer import solve_layer
from consilience.errors import InputError, OptionError
from consilience.networks.repair.channel_statistics import write_parameter
from consilience.networks.repair.layer_moments import LayerMoments
from consilience.networks.repair.repair import Repaired, normalised_weights

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class ActivationMoments:
    """Moments of the inputs of a layer and of the outputs that it should have (its targets), float64.

    A leading axis, where there is one, is of the groups of a convolution, each a regression of its own.
    """

    input_mean: Tensor  # (..., d): E[h]
    target_mean: Tensor  # (..., k): E[y]
    input_covariance: Tensor  # (..., d, d): cov(h)
    cross_covariance: Tensor  # (..., k, d): cov(y, h)

    def solve(self, initial: Tensor, has_bias: bool, ridge: float) -> tuple[Tensor, Tensor]:
        """Return the ridge regression of targets on inputs: W (..., k, d) and b = E[y] - W E[h] (..., k).

        Weights are shrunk towards W_0 (..., k, d), `initial`. Without a bias second moments about zero take the place
        of covariances.
        """
        gram, cross = self.input_covariance, self.cross_covariance
        # E[h^2] of every input: the penalty is relative to their mean, with and without a bias.
        mean_squares = (gram.diagonal(dim1=-2, dim2=-1) + self.input_mean.square()).mean(dim=-1)
        if not has_bias:
            gram = gram + self.input_mean[..., :, None] * self.input_mean[..., None, :]
            cross = cross + self.target_mean[..., :, None] * self.input_mean[..., None, :]
        weight = initial + solve_layer(gram, cross - initial @ gram, ridge, mean_squares)
        return weight, self.target_mean - (weight @ self.input_mean[..., None])[..., 0]


def regmean(
    fused: _Module,
    aligned: Sequence[nn.Module],
    weights: ArrayLike | None,
    moments: Sequence[LayerMoments],
    off_diagonal: float = 0.9,
    ridge: float = 0.0,
) -> Repaired[_Module]:
    """Return a copy of a fused network whose layers are the regression mean of the models' (RegMean).

    Parameters
    ----------
    fused : Module
        A network; it is left as it is. Layers without moments keep its weights, and all keep its normalisation.
    aligned : sequence of Module
        The models, of the same architecture and width, their units in the fused network's order.
    weights : array_like of shape (n_models,) or None
        Weight a_i of each model; None: equal weights.
    moments : sequence of Moments
        Those of each model, moved as the model was (`Moments.moved`).
    off_diagonal : float, optional
        Factor of the covariances of different inputs, which keeps the system well-conditioned. Default: 0.9, which the
        authors found best.
    ridge : float, optional
        Strength of the shrinkage of weights towards those of `fused`, relative to the mean square of inputs.
        Default: 0.

    Returns
    -------
    Repaired
        The copy, and notes on layers that keep the average.

    Raises
    ------
    InputError
        When the moments are of other networks.
    OptionError
        When `off_diagonal` is not between 0 and 1, or `ridge` is negative.

    Examples
    --------
    >>> from consilience.networks.repair.layer_moments import layer_moments
    >>> net = nn.Sequential(nn.Linear(2, 3))
    >>> moments = layer_moments(net, torch.eye(2), minimum=2)
    >>> fused = regmean(net, [net, net], None, [moments, moments]).module
    >>> bool((fused[0].weight - net[0].weight).abs().max() < 1e-6)
    True
    """
    if not is_number(off_diagonal) or not 0 <= off_diagonal <= 1:
        raise OptionError("off_diagonal", f"expected a number from 0 to 1, found {off_diagonal!r}")
    require_ridge(ridge)
    a = torch.as_tensor(normalised_weights(weights, len(aligned)))
    _refuse_other_moments(moments, len(aligned))
    network = deepcopy(fused)
    notes = dict(moments[0].skipped)
    for name in moments[0].layers:
        model_layers = [
            _model_layer(model, name, of_model, off_diagonal) for model, of_model in zip(aligned, moments, strict=True)
        ]
        layer: Any = network.get_submodule(name)
        # Columns of zeros belong to units that a model lacks; their covariances with other units are unknown.
        reads = torch.stack([model.weight.ne(0).any(dim=0) for model in model_layers])  # (models, d)
        if (reads != reads[0]).any():
            notes[name] = "reads units that not all models have: it keeps the average"
            continue
        initial = layer.weight.detach().to("cpu", torch.float64).flatten(1)  # (k, d)
        # Channels that no model has keep their weights, and get a bias of zero.
        weight, bias = initial.clone(), torch.zeros(len(initial), dtype=torch.float64)
        has_unit = torch.stack([model.has_unit for model in model_layers])  # (models, k)
        # Channels that the same models have share one linear system.
        for owners in torch.unique(has_unit, dim=1).T:
            rows = (has_unit == owners[:, None]).all(dim=0)
            owner_weights = a * owners
            if owner_weights.sum() > 0:
                joint = _pooled_moments(model_layers, owner_weights / owner_weights.sum(), rows)
                weight[rows], bias[rows] = joint.solve(initial[rows], layer.bias is not None, ridge)
        write_parameter(layer.weight, weight.reshape(layer.weight.shape))
        if layer.bias is not None:
            write_parameter(layer.bias, bias)
    return Repaired(network, notes=notes)


def _refuse_other_moments(moments: Sequence[LayerMoments], n_models: int) -> None:
    """Raise InputError unless there are moments for each model, of the same layers and numbers of inputs."""
    if len(moments) != n_models:
        text = f"expected one for each of {n_models} models, found {len(moments)}"
        raise InputError("moments", text, code="E-SHAPE")
    first = moments[0]
    for number, other in enumerate(moments[1:], 1):  # numbers as in the message, from 0
        for name in dict.fromkeys((*first.layers, *other.layers)):
            sizes = [len(m.layers[name].mean) if name in m.layers else None for m in (first, other)]
            if sizes[0] != sizes[1]:
                text = f"moments {number}: layer {name} has {sizes[1]} inputs, but {sizes[0]} in moments 0"
                raise InputError("", text, code="E-SHAPE")


@dataclass(frozen=True, eq=False)
class _ModelLayer:
    """One model's layer: weights (k, d), biases (k,), mean (d,) and covariance (d, d) of its inputs; float64, CPU."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    covariance: Tensor

    @property
    def has_unit(self) -> Tensor:
        """Whether the model has the unit of each channel (k,): any weight or bias."""
        return self.weight.ne(0).any(dim=1) | self.bias.ne(0)


def _model_layer(model: nn.Module, name: str, moments: LayerMoments, off_diagonal: float) -> _ModelLayer:
    """Return a model's layer with the moments of its inputs, off-diagonal covariances damped."""
    layer: Any = model.get_submodule(name)
    weight = layer.weight.detach().to("cpu", torch.float64).flatten(1)
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().to("cpu", torch.float64)
    inputs = moments.layers[name]
    if weight.shape[1] != len(inputs.mean):
        text = f"layer {name} has {len(inputs.mean)} inputs where the model has {weight.shape[1]}; moments move"
        raise InputError("moments", f"{text} as their model does", code="E-SHAPE")
    covariance = torch.as_tensor(inputs.covariance)
    # RegMean's regularisation: off-diagonal entries times 0.9 by default, the diagonal as it is.
    covariance = off_diagonal * covariance + (1 - off_diagonal) * torch.diag(covariance.diagonal())
    return _ModelLayer(weight, bias, torch.as_tensor(inputs.mean), covariance)


def _pooled_moments(models: Sequence[_ModelLayer], weights: Tensor, rows: Tensor) -> ActivationMoments:
    """Return the moments of the mixture of the models' inputs, and of their outputs y_i = W_i x_i + b_i in some rows.

    A mixture's covariance is the weighted mean of the models' covariances plus that of their means.
    """
    # (k_rows,) each
    output_means = [model.weight[rows] @ model.mean + model.bias[rows] for model in models]
    input_mean, target_mean = torch.zeros_like(models[0].mean), torch.zeros_like(output_means[0])
    for a, model, output_mean in zip(weights, models, output_means, strict=True):
        input_mean, target_mean = input_mean + a * model.mean, target_mean + a * output_mean
    covariance, cross = torch.zeros_like(models[0].covariance), torch.zeros_like(models[0].weight[rows])
    for a, model, output_mean in zip(weights, models, output_means, strict=True):
        shift = model.mean - input_mean
        covariance += a * (model.covariance + torch.outer(shift, shift))
        cross += a * (model.weight[rows] @ model.covariance + torch.outer(output_mean - target_mean, shift))
    return ActivationMoments(input_mean, target_mean, covariance, cross)


def require_ridge(ridge: float) -> None:
    """Raise OptionError unless a ridge is a number that is not negative."""
    if not is_number(ridge) or ridge < 0:
        raise OptionError("ridge", f"expected a number that is not negative, found {ridge!r}")
