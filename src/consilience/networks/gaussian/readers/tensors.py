"""Parametrisations of the variances of weights in other libraries, and Bayesian networks from such tensors.

All libraries keep a tensor of means, and another one that gives the variance v in one of these forms:

    variance v;  deviation sqrt(v);  log-variance log v;  log-deviation log(v) / 2;
    rho, where sqrt(v) = log(1 + exp(rho)).

Errors list every problem under the names that the user of the library knows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray
from consilience.drawing.words import first_names
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.networks.gaussian.network import BayesianNetwork
from consilience.networks.network import is_floating, non_finite_problems
from consilience.networks.torch_modules import cast_like, tensor_beside

if TYPE_CHECKING:
    from torch import nn

_MAX_NAMES = 5
"""Names that a message lists; of more, the number is stated. Chosen by hand for short messages."""


@dataclass(frozen=True)
class VarianceForm:
    """A parametrisation of variances."""

    word: str  # name of its values in messages
    # Variances from values in this form. A negative deviation gives a negative variance, so that it is refused.
    decode: Callable[[AnyArray], AnyArray]
    encode: Callable[[AnyArray], AnyArray]  # values in this form from variances


def _log(values: AnyArray) -> AnyArray:
    return array_namespace(values).log(values)


def _softplus_squared(rho: AnyArray) -> AnyArray:
    xp = array_namespace(rho)
    return xp.logaddexp(rho, xp.zeros_like(rho)) ** 2


def _rho(variance: AnyArray) -> AnyArray:
    xp = array_namespace(variance)
    deviation = xp.sqrt(variance)
    return deviation + xp.log(-xp.expm1(-deviation))  # log(exp(s) - 1), also for large and for tiny s


VARIANCE = VarianceForm("variance", lambda x: x, lambda v: v)
DEVIATION = VarianceForm("deviation", lambda x: x * abs(x), lambda v: array_namespace(v).sqrt(v))
LOG_VARIANCE = VarianceForm("log-variance", lambda x: array_namespace(x).exp(x), _log)
LOG_DEVIATION = VarianceForm("log-deviation", lambda x: array_namespace(x).exp(2.0 * x), lambda v: _log(v) / 2.0)
RHO = VarianceForm("rho", _softplus_squared, _rho)


@dataclass(frozen=True)
class GaussianParameter:
    """The Gaussian of one parameter, in the library's form and under the names that its user knows."""

    # Means, and values that give the variances, of the parameter's shape.
    mean: AnyArray
    spread: AnyArray
    form: VarianceForm  # parametrisation of `spread`
    # Names of both in messages.
    mean_name: str
    spread_name: str

    @property
    def variance(self) -> AnyArray:
        """Return the variances, computed in double precision, in that of the means."""
        xp = array_namespace(self.mean)
        with np.errstate(over="ignore"):  # `problems` names what overflows
            return xp.astype(self.form.decode(_double(self.spread)), self.mean.dtype)

    def problems(self, name: str) -> list[Problem]:
        """Return what is wrong with it."""
        arrays = {self.mean_name: self.mean, self.spread_name: self.spread}
        if not_floats := [key for key, values in arrays.items() if not is_floating(values)]:
            return [Problem(name, f"{key} holds {arrays[key].dtype}, not floats", code="E-TYPE") for key in not_floats]
        shapes = tuple(self.mean.shape), tuple(self.spread.shape)
        if shapes[0] != shapes[1]:
            text = f"{self.spread_name} has shape {shapes[1]}, but {self.mean_name} {shapes[0]}"
            return [Problem(name, text, f"give one {self.form.word} for every mean", "E-SHAPE")]
        if non_finite := non_finite_problems(arrays, name):
            return non_finite
        variance = self.variance
        if 0 in shapes[0] or (float(variance.min()) > 0.0 and float(variance.max()) < float("inf")):
            return []
        if float(variance.min()) > 0.0:
            what, value = "overflow", float(self.spread.max())
        else:
            what, value = "are not positive", float(self.spread.min())
        return [
            Problem(
                name,
                f"{self.spread_name}: its variances {what} in {self.mean.dtype} ({self.form.word} {value:.3g})",
                "give every weight a positive finite variance (a tiny one for a parameter that is a point)",
                "E-NUMBER",
            )
        ]


def build_network(
    parameters: Mapping[str, GaussianParameter],
    module: nn.Module | None,
    name: str,
    prior_variances: float | Mapping[str, float] | None = None,
    problems: tuple[str, ...] = (),
    reports_missing: bool = True,
) -> BayesianNetwork:
    """Return the Bayesian network of the Gaussians of its parameters.

    `parameters` are by name of the module's. `problems` that the caller knows already are raised with the others;
    `reports_missing` says whether a parameter without a Gaussian is one that they do not have yet. Raises InputError,
    naming every problem by the tensors that the user knows.
    """
    all_problems = [*problems, *(line for gaussian in parameters.values() for line in gaussian.problems(name))]
    if module is not None:
        all_problems += _misfits(parameters, module, name, reports_missing)
    if not parameters and not all_problems:
        all_problems = [Problem(name, "has no weights with a distribution", code="E-NEEDED")]
    if all_problems:
        raise InputError(all_problems)
    means = {key: array_namespace(g.mean).asarray(g.mean, copy=True) for key, g in parameters.items()}
    variances = {key: gaussian.variance for key, gaussian in parameters.items()}
    return BayesianNetwork(module, means, variances, prior_variances, name=name)


def _misfits(
    parameters: Mapping[str, GaussianParameter], module: nn.Module, name: str, reports_missing: bool
) -> Iterator[Problem]:
    """Yield where the Gaussians are not those of a module's parameters."""
    shapes = {key: tuple(values.shape) for key, values in module.named_parameters()}
    for key, gaussian in parameters.items():
        if key not in shapes:
            yield Problem(
                name,
                f"{gaussian.mean_name}: the module has no parameter {key}",
                "give a module of this architecture, whose parameters have the same names",
                "E-MISMATCH",
            )
    for key, gaussian in parameters.items():
        shape = tuple(gaussian.mean.shape)
        if key in shapes and shape != shapes[key]:
            text = f"{gaussian.mean_name} has shape {shape}, the module's parameter {key} {shapes[key]}"
            yield Problem(name, text, "give a module of this architecture", "E-SHAPE")
    missing = [key for key in shapes if key not in parameters]
    if missing and reports_missing:
        text = f"nothing here is the module's parameter {join_names(missing)}"
        yield Problem(name, text, "give it a distribution", "E-MISMATCH")


def with_buffers(module: nn.Module, arrays: Mapping[str, AnyArray]) -> nn.Module:
    """Return the module, or where it has buffers among the arrays a copy that holds them."""
    buffers = dict(module.named_buffers())
    new_values = {k: v for k, v in arrays.items() if k in buffers and tuple(v.shape) == tuple(buffers[k].shape)}
    if not new_values:
        return module
    filled = copy.deepcopy(module)
    for key, values in filled.named_buffers():
        if key in new_values:
            values.copy_(copy_like(new_values[key], values))
    return filled


def require_same_parameters(bnn: BayesianNetwork, shapes: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Raise unless the parameters of a Bayesian network are those of a model of another library.

    Raises InputError when names differ. Raises UnsupportedError when shapes differ: a network of another width needs a
    model built for that width.
    """
    if unmatched := sorted(set(bnn.means) ^ set(shapes)):
        text = f"cannot be written like {what}: {join_names(unmatched)}: in one of them only"
        raise InputError(bnn.name, text, "give a model of its architecture", "E-MISMATCH")
    pairs = {key: (tuple(values.shape), shapes[key]) for key, values in bnn.means.items()}
    if mismatched := [f"{key} {new} and not {old}" for key, (new, old) in pairs.items() if new != old]:
        text = f"cannot be written like {what}, since it has other widths: {join_names(mismatched)}"
        raise UnsupportedError(bnn.name, text, "give a model built with these widths, or take its means and variances")


def copy_like(values: AnyArray, other: AnyArray) -> AnyArray:
    """Return a copy of an array in the library and precision and on the device of another."""
    if hasattr(other, "detach"):
        return tensor_beside(values, other).to(other.dtype, copy=True)
    return cast_like(values, other) if hasattr(values, "detach") else values.astype(other.dtype)


def encode_like(variance: AnyArray, form: VarianceForm, other: AnyArray) -> AnyArray:
    """Return variances in a form, in the library and precision and on the device of another array."""
    return copy_like(form.encode(_double(variance)), other)


def join_names(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    return first_names(names, _MAX_NAMES)


def has_class(model: object, module: str, *names: str) -> bool:
    """Return whether a model is of a class, or derived from it, of a library that is not imported here."""
    return any(
        kind.__name__ in names and f"{kind.__module__}.".startswith(f"{module}.") for kind in type(model).__mro__
    )


def _double(values: Any) -> AnyArray:
    xp = array_namespace(values)
    return xp.astype(values, xp.float64)
