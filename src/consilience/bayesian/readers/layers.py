"""torch modules whose layers keep means and rho: bayesian-torch, blitz, and layers of one's own with their names.

A weight is drawn as ``mu + log(1 + exp(rho)) eps``. Such modules need not be of a library: names alone tell, as
`bayesian_states` lists them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from consilience.bayesian.network import BayesianNetwork
from consilience.bayesian.readers.state_dicts import pairs, told, weights_of
from consilience.bayesian.readers.tensors import (
    RHO,
    assembled,
    converted,
    few,
    has_class,
    spread_like,
    with_buffers,
    writable,
)
from consilience.checks import AnyArray, is_number
from consilience.networks.torch_modules import is_module

if TYPE_CHECKING:
    from torch import nn

_POINT = (
    "a parameter without a distribution; give a pair of dicts (means, log-variances) instead, in which parameters that"
    " are points have a tiny variance"
)


def accepts(model: object) -> bool:
    """Return whether a model is a torch module with a parameter that has means and rho."""
    module: Any = model
    return is_module(model) and bool(pairs([name for name, _ in module.named_parameters()], (RHO,)))


def resembles(model: object) -> bool:
    """Return whether a model is a torch module with a parameter named as means or rho are."""
    module: Any = model
    return is_module(model) and any(told(name) is not None for name, _ in module.named_parameters())


def read(model: Any, module: nn.Module | None, name: str) -> BayesianNetwork:
    """Return the Bayesian network of a module; its buffers stand in a copy of the plain module where that has them."""
    weights, others, found = weights_of(_parameters(model), name)
    if others:
        found.append(f"{name}: {few(others)}: {_POINT}")
    plain = None if module is None else with_buffers(module, dict(model.named_buffers()))
    return assembled(weights, plain, name, _priors(model, weights), tuple(found))


def write(bnn: BayesianNetwork, like: Any) -> Any:
    """Return a copy of a module with other means and rho, and the buffers that both have."""
    import torch

    own = _parameters(like)
    known = {key: one for key in own if (one := told(key)) is not None}
    writable(bnn, {one.parameter: tuple(own[key].shape) for key, one in known.items()}, f"a {type(like).__name__}")
    found = copy.deepcopy(like, _detached(like))
    arrays = bnn.arrays
    with torch.no_grad():
        for key, values in _parameters(found).items():
            one = known.get(key)
            if one is not None and one.form is None:
                values.copy_(converted(bnn.means[one.parameter], values))
            elif one is not None and one.form is not None:
                values.copy_(spread_like(bnn.variances[one.parameter], one.form, values))
        for key, values in found.named_buffers():
            if key in arrays and tuple(arrays[key].shape) == tuple(values.shape):
                values.copy_(converted(arrays[key], values))
    return found


def _parameters(model: Any) -> dict[str, AnyArray]:
    """Return its parameters by name, but for biases of layers that say that they use none."""
    idle = {f"{path}." if path else "" for path, part in model.named_modules() if getattr(part, "bias", None) is False}
    found = {}
    for key, values in model.named_parameters():
        one = told(key)
        path = key if one is None else one.parameter.removesuffix("bias")
        if one is None or not one.parameter.endswith("bias") or path not in idle:
            found[key] = values.detach()
    return found


def _priors(model: Any, weights: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the prior variance of every parameter; None where a layer does not say it."""
    layers = dict(model.named_modules())
    found = {key: _prior(layers.get(key.rpartition(".")[0])) for key in weights}
    known = {key: value for key, value in found.items() if value is not None}
    return known if len(known) == len(found) else None


def _prior(layer: Any) -> float | None:
    """Return the variance of a layer's prior N(0, v); None where it has another, or does not say it."""
    if has_class(layer, "blitz", "BayesianModule"):
        known = layer.prior_pi == 1 and layer.prior_dist is None
        return float(layer.prior_sigma_1) ** 2 if known else None
    given = getattr(layer, "prior_variance", None)
    if given is None or not is_number(given) or not given > 0 or getattr(layer, "prior_mean", 0) != 0:
        return None
    # bayesian-torch fills the prior's standard deviation with what it calls its variance
    return float(given) ** 2 if has_class(layer, "bayesian_torch", "BaseVariationalLayer_") else float(given)


def _detached(model: Any) -> dict[int, Any]:
    """Return stand-ins for results that layers keep from their last pass, which cannot be copied as they are."""
    return {
        id(value): value.detach()
        for part in model.modules()
        for value in vars(part).values()
        if hasattr(value, "grad_fn") and value.grad_fn is not None
    }
