"""torch modules whose layers keep means and rho: bayesian-torch, blitz, and custom layers with their names.

A weight is drawn as ``mu + log(1 + exp(rho)) eps``. Such modules need not be of a library: they are recognised by the
names of their parameters, which `state_dicts` lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from consilience.checks import AnyArray, is_number
from consilience.errors import Problem
from consilience.networks.gaussian.network import BayesianNetwork
from consilience.networks.gaussian.readers.state_dicts import array_role, gaussian_parameters, paired_names
from consilience.networks.gaussian.readers.tensors import (
    RHO,
    build_network,
    copy_like,
    encode_like,
    has_class,
    join_names,
    require_same_parameters,
    with_buffers,
)
from consilience.networks.parametrised_layers import copy_of_module
from consilience.networks.torch_modules import is_module

if TYPE_CHECKING:
    from torch import nn

_POINT = (
    "a parameter without a distribution; give a pair of dicts (means, log-variances) instead, in which parameters that"
    " are points have a tiny variance"
)


def accepts(model: object) -> bool:
    """Return whether a model is a torch module with a parameter that has means and rho."""
    if not is_module(model):
        return False
    module: Any = model
    # Almost every network is asked this, and few have a name to look at.
    if not any("rho" in name for path, layer in module.named_modules() for name in (path, *layer._parameters.keys())):
        return False
    return bool(paired_names([name for name, _ in module.named_parameters()], (RHO,)))


def resembles(model: object) -> bool:
    """Return whether a model is a torch module with a parameter named as means or rho are."""
    module: Any = model
    return is_module(model) and any(array_role(name) is not None for name, _ in module.named_parameters())


def read(model: Any, module: nn.Module | None, name: str) -> BayesianNetwork:
    """Return the Bayesian network of a module; a copy of the plain module takes the buffers that both have."""
    parameters, others, problems = gaussian_parameters(_used_parameters(model), name)
    if others:
        problems.append(Problem(name, f"{join_names(others)}: {_POINT}"))
    plain = None if module is None else with_buffers(module, dict(model.named_buffers()))
    return build_network(parameters, plain, name, _prior_variances(model, parameters), tuple(problems))


def write(bnn: BayesianNetwork, like: Any) -> Any:
    """Return a copy of a module with other means and rho, and the buffers that both have."""
    import torch

    used = _used_parameters(like)
    roles = {key: role for key in used if (role := array_role(key)) is not None}
    shapes = {role.parameter: tuple(used[key].shape) for key, role in roles.items()}
    require_same_parameters(bnn, shapes, f"a {type(like).__name__}")
    written = copy_of_module(like)
    arrays = bnn.arrays
    with torch.no_grad():
        for key, values in _used_parameters(written).items():
            role = roles.get(key)
            if role is not None and role.form is None:
                values.copy_(copy_like(bnn.means[role.parameter], values))
            elif role is not None and role.form is not None:
                values.copy_(encode_like(bnn.variances[role.parameter], role.form, values))
        for key, values in written.named_buffers():
            if key in arrays and tuple(arrays[key].shape) == tuple(values.shape):
                values.copy_(copy_like(arrays[key], values))
    return written


def _used_parameters(model: Any) -> dict[str, AnyArray]:
    """Return the parameters of a module by name, without biases of layers whose ``bias`` is False."""
    without_bias = {
        f"{path}." if path else "" for path, part in model.named_modules() if getattr(part, "bias", None) is False
    }
    parameters = {}
    for key, values in model.named_parameters():
        role = array_role(key)
        path = key if role is None else role.parameter.removesuffix("bias")
        if role is None or not role.parameter.endswith("bias") or path not in without_bias:
            parameters[key] = values.detach()
    return parameters


def _prior_variances(model: Any, parameters: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the prior variance of every parameter; None where a layer does not state it."""
    layers = dict(model.named_modules())
    by_parameter = {key: _prior_variance(layers.get(key.rpartition(".")[0])) for key in parameters}
    variances = {key: value for key, value in by_parameter.items() if value is not None}
    return variances if len(variances) == len(by_parameter) else None


def _prior_variance(layer: Any) -> float | None:
    """Return the variance of a layer's prior N(0, v); None where it has another, or does not state it."""
    if has_class(layer, "blitz", "BayesianModule"):
        # A mixture of two Gaussians with shares pi and 1 - pi, unless a distribution is given.
        is_one_gaussian = layer.prior_pi == 1 and layer.prior_dist is None
        return float(layer.prior_sigma_1) ** 2 if is_one_gaussian else None
    variance = getattr(layer, "prior_variance", None)
    if variance is None or not is_number(variance) or not variance > 0 or getattr(layer, "prior_mean", 0) != 0:
        return None
    # bayesian-torch fills the prior's standard deviation with what it calls its variance
    return float(variance) ** 2 if has_class(layer, "bayesian_torch", "BaseVariationalLayer_") else float(variance)
