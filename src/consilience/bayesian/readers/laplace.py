"""Diagonal Laplace approximations over all weights, by laplace-torch: N(mean, 1 / (H factor * H + prior precision)).

laplace-torch keeps one vector over the parameters that its model trains, in their order; here it is cut into them.
"""

from __future__ import annotations

import copy
from math import prod
from typing import TYPE_CHECKING, Any

from consilience.bayesian.network import BayesianNetwork
from consilience.bayesian.readers.tensors import VARIANCE, Weight, assembled, converted, few, has_class, writable
from consilience.checks import AnyArray
from consilience.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from torch import nn

_REMEDY = 'use Laplace(model, "classification", subset_of_weights="all", hessian_structure="diag")'


def accepts(model: object) -> bool:
    """Return whether a model is any approximation of laplace-torch."""
    return has_class(model, "laplace", "BaseLaplace")


def read(model: Any, module: nn.Module | None, name: str) -> BayesianNetwork:
    """Return the Bayesian network of a diagonal Laplace approximation, with its model where no module is given.

    The prior's variances are known where its mean is zero and its precision one number for all or for each parameter.
    """
    _checked(model, name)
    shapes = _shapes(model)
    found = []
    if frozen := [key for key, values in model.model.named_parameters() if not values.requires_grad]:
        found.append(
            f"{name}: {few(frozen)}: frozen, so that there is no variance of it; let every parameter of the model "
            "require gradients before fitting"
        )
    means, variances = _cut(model.mean, shapes), _cut(model.posterior_variance, shapes)
    weights = {key: Weight(means[key], variances[key], VARIANCE, key, f"posterior variance of {key}") for key in shapes}
    plain = model.model if module is None else module
    return assembled(weights, plain, name, _prior(model, shapes), tuple(found), whole=not frozen)


def write(bnn: BayesianNetwork, like: Any) -> Any:
    """Return a copy of an approximation with other means and curvature, and so the posterior of a Bayesian network.

    It has the network's prior where that is known. Curvature is what the precision has beyond the prior; it is negative
    where the posterior is wider than the prior. The loss, and with it the marginal likelihood, stays that of `like`.
    """
    import torch

    _checked(like, bnn.name)
    shapes = _shapes(like)
    writable(bnn, shapes, f"a {type(like).__name__}")
    mean = torch.cat([converted(bnn.means[key], like.mean).reshape(-1) for key in shapes])
    precision = torch.cat([1.0 / converted(bnn.variances[key], like.H.double()).reshape(-1) for key in shapes])
    prior, told = bnn.prior, _prior(like, shapes)
    found = copy.deepcopy(like, {id(like.mean): mean, id(like.H): like.H.detach().clone()})
    if prior is not None and prior != told:
        values = [1.0 / prior[key] for key in shapes]
        found.prior_precision = torch.tensor(values[:1] if len(set(values)) == 1 else values)
    if prior is not None and float(torch.as_tensor(like.prior_mean).abs().max()) > 0.0:
        found.prior_mean = torch.zeros_like(found.prior_mean)
    scale = float(found.sigma_noise) ** 2 * found.temperature
    found.H = ((precision - found.prior_precision_diag.double()) * scale).to(like.H.dtype)
    with torch.no_grad():
        for values, own in zip(found.params, _cut(mean, shapes).values(), strict=True):
            values.copy_(own)
        for key, values in found.model.named_buffers():
            if key in bnn.arrays and tuple(bnn.arrays[key].shape) == tuple(values.shape):
                values.copy_(converted(bnn.arrays[key], values))
    return found


def _checked(model: Any, name: str) -> None:
    """Raise unless it is a fitted diagonal approximation over all weights, of a classifier."""
    kind = type(model).__name__
    diagonal = has_class(model, "laplace", "DiagLaplace")
    if not diagonal or has_class(model, "laplace", "LLLaplace", "SubnetLaplace"):
        raise UnsupportedError(f"{name}: a {kind} is no independent Gaussian for every weight; {_REMEDY}")
    likelihood = str(getattr(model.likelihood, "value", model.likelihood))
    if likelihood != "classification":
        raise UnsupportedError(f"{name}: a {kind} for {likelihood}: only classifiers are fused; {_REMEDY}")
    if not model.n_data:
        raise InputError(f"{name}: this {kind} is not fitted; call fit(train_loader) first")


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters that it covers, in its order."""
    return {key: tuple(v.shape) for key, v in model.model.named_parameters() if v.requires_grad}


def _cut(vector: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, AnyArray]:
    parts = vector.detach().split([prod(shape) for shape in shapes.values()])
    return {key: part.reshape(shape) for (key, shape), part in zip(shapes.items(), parts, strict=True)}


def _prior(model: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, float] | None:
    if bool((model.prior_mean != 0).any()):
        return None
    precisions = _cut(model.prior_precision_diag.double(), shapes)
    if any(part.numel() and float(part.min()) != float(part.max()) for part in precisions.values()):
        return None
    return {key: 1.0 / float(part.max()) if part.numel() else 1.0 for key, part in precisions.items()}
