"""Layers of a fused network by least squares: answer what the aligned models' layers answer.

With x_i what a layer of model i is given, W_i its weights and h what the layer of the fused network is given, W is the
minimiser of

    sum_i a_i E |W h - W_i x_i|^2 + ridge * mean diagonal of E[h h'] * |W - W_0|^2,

W_0 the weights of the fused network as it was; a bias is fitted along and costs nothing. `regmean` takes h to be x_i,
model by model, so that second moments G_i of their inputs are all it needs: W (sum_i a_i G_i) = sum_i a_i W_i G_i.
(Jin, Ren, Preotiuc-Pietro, Cheng 2023, "Dataless Knowledge Fusion by Merging Weights of Language Models", ICLR.) For
what the fused network itself is given see ``refit``.
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
from consilience.errors import InputError, OptionError
from consilience.networks.repair.channel_statistics import put
from consilience.networks.repair.layer_moments import Moments, mixture
from consilience.networks.repair.repair import Repaired, shares

_Module = TypeVar("_Module", bound=nn.Module)
_LEAST_RIDGE = 1e-9
"""Ridge at least, relative to the mean square of inputs: those that are constantly zero say nothing of weights."""


@dataclass(frozen=True, eq=False)
class Joint:
    """Means and covariances of what a layer is given (d) and what it should answer (k), float64."""

    given: Tensor
    wanted: Tensor
    covariance: Tensor
    cross: Tensor

    def fit(self, start: Tensor, bias: bool, ridge: float) -> tuple[Tensor, Tensor]:
        """Return weights (k, d), drawn towards `start`, and biases (k,)."""
        covariance, cross = self.covariance, self.cross
        squares = covariance.diagonal() + self.given.square()
        if not bias:
            covariance = covariance + torch.outer(self.given, self.given)
            cross = cross + torch.outer(self.wanted, self.given)
        drawn = max(ridge, _LEAST_RIDGE) * squares.mean()
        if drawn == 0:  # nothing but zeros is given
            return start, self.wanted
        system = covariance + drawn * torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
        # fitted is the change from the start, so that what is fitted well already stays exactly
        change = torch.cholesky_solve((cross - start @ covariance).T, torch.linalg.cholesky(system)).T
        weight = start + change
        return weight, self.wanted - weight @ self.given


def regmean(
    fused: _Module,
    aligned: Sequence[nn.Module],
    weights: ArrayLike | None,
    moments: Sequence[Moments],
    off_diagonal: float = 0.9,
    ridge: float = 0.0,
) -> Repaired[_Module]:
    """Return a copy of a fused network whose layers are the regression mean of the models' (RegMean).

    Parameters
    ----------
    fused
        A network; it is left as it is. Layers without moments keep its weights, and all keep its normalisation.
    aligned
        The models, of the same architecture and width, their units in the fused network's order.
    weights
        What each counts; None counts all alike.
    moments
        Those of each model, moved as the model was (`Moments.moved`).
    off_diagonal
        What covariances of different inputs are multiplied by, which keeps the system well-conditioned; 0.9 is what the
        authors found best.
    ridge
        How much weights are drawn towards those of `fused`, relative to the mean square of inputs.

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
    >>> told = layer_moments(net, torch.eye(2), minimum=2)
    >>> found = regmean(net, [net, net], None, [told, told]).module
    >>> bool((found[0].weight - net[0].weight).abs().max() < 1e-6)
    True
    """
    if not is_number(off_diagonal) or not 0 <= off_diagonal <= 1:
        raise OptionError(f"off_diagonal: expected a number from 0 to 1, found {off_diagonal!r}")
    require_ridge(ridge)
    share = torch.as_tensor(shares(weights, len(aligned)))
    pooled = mixture(moments, share.numpy())
    network = deepcopy(fused)
    notes = dict(pooled.skipped)
    for name in pooled.layers:
        own = [_own(model, name, one, off_diagonal) for model, one in zip(aligned, moments, strict=True)]
        layer: Any = network.get_submodule(name)
        read = torch.stack([one.weight.ne(0).any(dim=0) for one in own])
        if (read != read[0]).any():
            notes[name] = "reads units that not all models have: it keeps the average"
            continue
        start = layer.weight.detach().to("cpu", torch.float64).flatten(1)
        fitted, biases = start.clone(), torch.zeros(len(start), dtype=torch.float64)
        owned = torch.stack([one.owned for one in own])
        for held in torch.unique(owned, dim=1).T:
            rows = (owned == held[:, None]).all(dim=0)
            counts = share * held
            if counts.sum() > 0:
                joint = _pooled(own, counts / counts.sum(), rows)
                fitted[rows], biases[rows] = joint.fit(start[rows], layer.bias is not None, ridge)
        put(layer.weight, fitted.reshape(layer.weight.shape))
        if layer.bias is not None:
            put(layer.bias, biases)
    return Repaired(network, notes=notes)


@dataclass(frozen=True, eq=False)
class _Own:
    """What one model's layer has (float64, CPU): weights (k, d), biases (k,), moments of its input, units it has."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    covariance: Tensor

    @property
    def owned(self) -> Tensor:
        return self.weight.ne(0).any(dim=1) | self.bias.ne(0)


def _own(model: nn.Module, name: str, moments: Moments, off_diagonal: float) -> _Own:
    layer: Any = model.get_submodule(name)
    weight = layer.weight.detach().to("cpu", torch.float64).flatten(1)
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().to("cpu", torch.float64)
    one = moments.layers[name]
    if weight.shape[1] != len(one.mean):
        raise InputError(
            f"moments: layer {name} has {len(one.mean)} inputs where the model has {weight.shape[1]}; moments move as "
            "their model does"
        )
    covariance = torch.as_tensor(one.covariance)
    covariance = off_diagonal * covariance + (1 - off_diagonal) * torch.diag(covariance.diagonal())
    return _Own(weight, bias, torch.as_tensor(one.mean), covariance)


def _pooled(own: Sequence[_Own], share: Tensor, rows: Tensor) -> Joint:
    """Return the joint moments of the models' inputs and what some channels of theirs answer to them."""
    answers = [one.weight[rows] @ one.mean + one.bias[rows] for one in own]
    given = sum((a * one.mean for a, one in zip(share, own, strict=True)), torch.zeros_like(own[0].mean))
    wanted = sum((a * one for a, one in zip(share, answers, strict=True)), torch.zeros_like(answers[0]))
    covariance, cross = torch.zeros_like(own[0].covariance), torch.zeros_like(own[0].weight[rows])
    for a, one, answer in zip(share, own, answers, strict=True):
        covariance += a * (one.covariance + torch.outer(one.mean - given, one.mean - given))
        cross += a * (one.weight[rows] @ one.covariance + torch.outer(answer - wanted, one.mean - given))
    return Joint(given, wanted, covariance, cross)


def require_ridge(ridge: float) -> None:
    """Raise OptionError unless a ridge is a number that is not negative."""
    if not is_number(ridge) or ridge < 0:
        raise OptionError(f"ridge: expected a number that is not negative, found {ridge!r}")
