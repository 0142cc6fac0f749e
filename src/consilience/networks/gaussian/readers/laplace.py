"""Diagonal Laplace approximations of laplace-torch: N(m, 1 / (H / (s^2 T) + prior precision)) over all weights.

H is the diagonal curvature of the loss at the mode m, s laplace-torch's sigma_noise and T its temperature. It keeps one
vector over the parameters that its model trains, in their order; here it is split into them.
"""

from __future__ import annotations

import copy
from math import prod
from typing import TYPE_CHECKING, Any

from consilience.checks import AnyArray
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.networks.gaussian.network import BayesianNetwork
from consilience.networks.gaussian.readers.tensors import (
    VARIANCE,
    GaussianParameter,
    build_network,
    copy_like,
    has_class,
    join_names,
    require_same_parameters,
)

if TYPE_CHECKING:
    from torch import nn

_REMEDY = 'use `Laplace(model, "classification", subset_of_weights="all", hessian_structure="diag")`'


def accepts(model: object) -> bool:
    """Return whether a model is any approximation of laplace-torch."""
    return has_class(model, "laplace", "BaseLaplace")


def read(model: Any, module: nn.Module | None, name: str) -> BayesianNetwork:
    """Return the Bayesian network of a diagonal Laplace approximation, with its model where no module is given.

    The prior's variances are known where its mean is zero and its precision one number for all or for each parameter.
    """
    _require_diagonal(model, name)
    shapes = _shapes(model)
    problems = []
    if frozen := [key for key, values in model.model.named_parameters() if not values.requires_grad]:
        problems.append(
            Problem(
                name,
                f"{join_names(frozen)}: frozen, so that there is no variance of it",
                "let every parameter of the model require gradients before fitting",
                "E-NEEDED",
            )
        )
    means, variances = _split(model.mean, shapes), _split(model.posterior_variance, shapes)
    parameters = {
        key: GaussianParameter(means[key], variances[key], VARIANCE, key, f"posterior variance of {key}")
        for key in shapes
    }
    plain = model.model if module is None else module
    # Frozen parameters are missing too, and reported already.
    return build_network(parameters, plain, name, _prior(model, shapes), tuple(problems), reports_missing=not frozen)


def write(bnn: BayesianNetwork, like: Any) -> Any:
    """Return a copy of an approximation with the posterior of a Bayesian network, by other means and curvature.

    It has the network's prior where that is known. The curvature is the precision minus the prior's; it is negative
    where the posterior is wider than the prior. The loss, and with it the marginal likelihood, stays that of `like`.
    """
    import torch

    _require_diagonal(like, bnn.name)
    shapes = _shapes(like)
    require_same_parameters(bnn, shapes, f"a {type(like).__name__}")
    mean = torch.cat([copy_like(bnn.means[key], like.mean).reshape(-1) for key in shapes])
    precision = torch.cat([1.0 / copy_like(bnn.variances[key], like.H.double()).reshape(-1) for key in shapes])
    prior, prior_of_like = bnn.prior, _prior(like, shapes)
    # The memo of deepcopy puts the new mean, and a copy of H without its graph, in place of the old ones.
    written = copy.deepcopy(like, {id(like.mean): mean, id(like.H): like.H.detach().clone()})
    if prior is not None and prior != prior_of_like:
        values = [1.0 / prior[key] for key in shapes]
        written.prior_precision = torch.tensor(values[:1] if len(set(values)) == 1 else values)
    if prior is not None and float(torch.as_tensor(like.prior_mean).abs().max()) > 0.0:
        written.prior_mean = torch.zeros_like(written.prior_mean)
    scale = float(written.sigma_noise) ** 2 * written.temperature
    written.H = ((precision - written.prior_precision_diag.double()) * scale).to(like.H.dtype)
    with torch.no_grad():
        for values, means in zip(written.params, _split(mean, shapes).values(), strict=True):
            values.copy_(means)
        for key, values in written.model.named_buffers():
            if key in bnn.arrays and tuple(bnn.arrays[key].shape) == tuple(values.shape):
                values.copy_(copy_like(bnn.arrays[key], values))
    return written


def _require_diagonal(model: Any, name: str) -> None:
    """Raise unless it is a fitted diagonal approximation over all weights, of a classifier."""
    kind = type(model).__name__
    diagonal = has_class(model, "laplace", "DiagLaplace")
    if not diagonal or has_class(model, "laplace", "LLLaplace", "SubnetLaplace"):
        raise UnsupportedError(name, f"a {kind} is no independent Gaussian for every weight", _REMEDY)
    likelihood = str(getattr(model.likelihood, "value", model.likelihood))
    if likelihood != "classification":
        raise UnsupportedError(name, f"a {kind} for {likelihood}: only classifiers are fused", _REMEDY)
    if not model.n_data:
        raise InputError(name, f"this {kind} is not fitted", "call `fit(train_loader)` first", "E-UNFITTED")


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters that an approximation covers, in its order."""
    return {key: tuple(v.shape) for key, v in model.model.named_parameters() if v.requires_grad}


def _split(vector: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, AnyArray]:
    """Return a vector over all parameters as an array for each of them."""
    parts = vector.detach().split([prod(shape) for shape in shapes.values()])
    return {key: part.reshape(shape) for (key, shape), part in zip(shapes.items(), parts, strict=True)}


def _prior(model: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, float] | None:
    """Return the prior variance of every parameter; None for a prior that is no N(0, v) with one v a parameter."""
    if bool((model.prior_mean != 0).any()):
        return None
    precisions = _split(model.prior_precision_diag.double(), shapes)
    if any(part.numel() and float(part.min()) != float(part.max()) for part in precisions.values()):
        return None
    return {key: 1.0 / float(part.max()) if part.numel() else 1.0 for key, part in precisions.items()}
