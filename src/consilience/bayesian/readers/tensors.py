"""How libraries write down the Gaussian of a weight, and Bayesian networks from such tensors with every problem named.

All of them keep a tensor of means; beside it stands what tells the variance v, in one of these forms:

    variance v;  deviation sqrt(v);  log-variance log v;  log-deviation log(v) / 2;
    rho, where sqrt(v) = log(1 + exp(rho)).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace

from consilience.bayesian.network import BayesianNetwork
from consilience.checks import AnyArray
from consilience.errors import InputError, UnsupportedError
from consilience.networks.network import is_floating, non_finite_problems
from consilience.networks.torch_modules import cast_like, tensor_beside

if TYPE_CHECKING:
    from torch import nn

_FEW = 5
"""Names that a message lists; more are counted."""


@dataclass(frozen=True)
class Form:
    """A form in which variances are written.

    Parameters
    ----------
    word
        What messages call it.
    variance
        What gives the variances; the sign of what must be positive stays, so that it is refused.
    written
        The way back.
    """

    word: str
    variance: Callable[[AnyArray], AnyArray]
    written: Callable[[AnyArray], AnyArray]


def _log(values: AnyArray) -> AnyArray:
    return array_namespace(values).log(values)


def _softplus_squared(rho: AnyArray) -> AnyArray:
    xp = array_namespace(rho)
    return xp.logaddexp(rho, xp.zeros_like(rho)) ** 2


def _rho(variance: AnyArray) -> AnyArray:
    xp = array_namespace(variance)
    deviation = xp.sqrt(variance)
    return deviation + xp.log(-xp.expm1(-deviation))  # log(exp(s) - 1), also for large and for tiny s


VARIANCE = Form("variance", lambda x: x, lambda v: v)
DEVIATION = Form("deviation", lambda x: x * abs(x), lambda v: array_namespace(v).sqrt(v))
LOG_VARIANCE = Form("log-variance", lambda x: array_namespace(x).exp(x), _log)
LOG_DEVIATION = Form("log-deviation", lambda x: array_namespace(x).exp(2.0 * x), lambda v: _log(v) / 2.0)
RHO = Form("rho", _softplus_squared, _rho)


@dataclass(frozen=True)
class Weight:
    """The Gaussian of one parameter, in the library's form and under the names that its user knows."""

    mean: AnyArray
    spread: AnyArray
    form: Form
    mean_name: str
    spread_name: str

    @property
    def variance(self) -> AnyArray:
        """Return the variances, computed in double precision, in that of the means."""
        xp = array_namespace(self.mean)
        with np.errstate(over="ignore"):  # what overflows is named in words
            return xp.astype(self.form.variance(_double(self.spread)), self.mean.dtype)

    def problems(self, name: str) -> list[str]:
        """Return what is wrong with it."""
        named = {self.mean_name: self.mean, self.spread_name: self.spread}
        if odd := [key for key, values in named.items() if not is_floating(values)]:
            return [f"{name}: {key} holds {named[key].dtype}, not floats" for key in odd]
        shapes = tuple(self.mean.shape), tuple(self.spread.shape)
        if shapes[0] != shapes[1]:
            return [
                f"{name}: {self.spread_name} has shape {shapes[1]}, but {self.mean_name} {shapes[0]}; give one "
                f"{self.form.word} for every mean"
            ]
        if found := non_finite_problems(named, name):
            return found
        variance = self.variance
        if 0 in shapes[0] or (float(variance.min()) > 0.0 and float(variance.max()) < float("inf")):
            return []
        if float(variance.min()) > 0.0:
            what, worst = "overflow", float(self.spread.max())
        else:
            what, worst = "are not positive", float(self.spread.min())
        return [
            f"{name}: {self.spread_name}: its variances {what} in {self.mean.dtype} ({self.form.word} {worst:.3g}); "
            "give every weight a positive finite variance (a tiny one for a parameter that is a point)"
        ]


def assembled(
    weights: Mapping[str, Weight],
    module: nn.Module | None,
    name: str,
    prior_variances: float | Mapping[str, float] | None = None,
    problems: tuple[str, ...] = (),
    whole: bool = True,
) -> BayesianNetwork:
    """Return the Bayesian network of such weights.

    Parameters
    ----------
    weights
        By name of the module's parameter.
    module
        A torch module of the architecture; None where there is none.
    name
        What the network is called in messages.
    prior_variances
        As BayesianNetwork takes them.
    problems
        What the caller found already.
    whole
        Whether a parameter of the module without a weight is a problem still to be told.

    Raises
    ------
    InputError
        Naming every problem by the tensors that the user knows.
    """
    found = [*problems, *(line for weight in weights.values() for line in weight.problems(name))]
    if module is not None:
        own = {key: tuple(values.shape) for key, values in module.named_parameters()}
        found += [
            f"{name}: {weight.mean_name}: the module has no parameter {key}; give a module of this architecture, whose "
            "parameters have the same names"
            for key, weight in weights.items()
            if key not in own
        ]
        found += [
            f"{name}: {weight.mean_name} has shape {tuple(weight.mean.shape)}, the module's parameter {key} "
            f"{own[key]}; give a module of this architecture"
            for key, weight in weights.items()
            if key in own and tuple(weight.mean.shape) != own[key]
        ]
        if lacking := [key for key in own if key not in weights]:
            found += [f"{name}: nothing here is the module's parameter {few(lacking)}; give it a distribution"] * whole
    if not weights and not found:
        found = [f"{name}: has no weights with a distribution"]
    if found:
        raise InputError(found)
    means = {key: array_namespace(w.mean).asarray(w.mean, copy=True) for key, w in weights.items()}
    variances = {key: weight.variance for key, weight in weights.items()}
    return BayesianNetwork(module, means, variances, prior_variances, name=name)


def with_buffers(module: nn.Module, arrays: Mapping[str, AnyArray]) -> nn.Module:
    """Return the module, or where it has buffers among the arrays a copy that holds them."""
    own = dict(module.named_buffers())
    shared = {k: v for k, v in arrays.items() if k in own and tuple(v.shape) == tuple(own[k].shape)}
    if not shared:
        return module
    found = copy.deepcopy(module)
    for key, values in found.named_buffers():
        if key in shared:
            values.copy_(converted(shared[key], values))
    return found


def writable(bnn: BayesianNetwork, shapes: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Raise unless the parameters of a Bayesian network are those of a model of another library.

    Raises
    ------
    InputError
        When names differ.
    UnsupportedError
        When shapes differ: a network of another width needs a model built for that width.
    """
    if odd := sorted(set(bnn.means) ^ set(shapes)):
        raise InputError(
            f"{bnn.name}: cannot be written like {what}: {few(odd)}: in one of them only; give a model of its "
            "architecture"
        )
    found = {key: (tuple(values.shape), shapes[key]) for key, values in bnn.means.items()}
    if odd := [f"{key} {new} and not {old}" for key, (new, old) in found.items() if new != old]:
        raise UnsupportedError(
            f"{bnn.name}: cannot be written like {what}, since it has other widths: {few(odd)}; give a model built "
            "with these widths, or take its means and variances"
        )


def converted(values: AnyArray, other: AnyArray) -> AnyArray:
    """Return a copy of an array in the library and precision and on the device of another."""
    if hasattr(other, "detach"):
        return tensor_beside(values, other).to(other.dtype, copy=True)
    return cast_like(values, other) if hasattr(values, "detach") else values.astype(other.dtype)


def spread_like(variance: AnyArray, form: Form, other: AnyArray) -> AnyArray:
    """Return variances in a form, in the library and precision and on the device of another array."""
    return converted(form.written(_double(variance)), other)


def few(names: list[str]) -> str:
    """Return the first names, and how many there are more."""
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def has_class(model: object, module: str, *names: str) -> bool:
    """Return whether a model is of a class, or derived from it, of a library that is not imported here."""
    return any(
        kind.__name__ in names and f"{kind.__module__}.".startswith(f"{module}.") for kind in type(model).__mro__
    )


def _double(values: Any) -> AnyArray:
    xp = array_namespace(values)
    return xp.astype(values, xp.float64)
