"""Bayesian networks as dicts of arrays: a pair of state dicts, or a flat dict whose names say what an array holds.

A pair is ``(means, log_variances)``, two dicts with the same names. In a flat dict a parameter NAME has a mean and one
array that gives its variance; ``_`` may stand for the dot:

    NAME.mean  NAME.mu                                    the means
    NAME.variance                                         the variances v
    NAME.std                                              the standard deviations
    NAME.log_variance  NAME.log_var  NAME.logvar          log v
    NAME.log_std                                          log(v) / 2
    NAME.rho                                              rho, with a standard deviation of log(1 + exp(rho))

Layers of bayesian-torch have ``PATH.mu_weight`` and ``PATH.rho_weight`` (``kernel`` in convolutions), which is
``PATH.weight`` here. Those of blitz have ``PATH.weight_mu`` and ``PATH.weight_rho``, and the same once more under
``PATH.weight_sampler.mu``. Besides these a state dict may hold noise (``eps_...``), priors (``prior_...``) and the
buffers of a module that is given. Everything else is refused, as is a parameter that is stated twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consilience.checks import AnyArray
from consilience.errors import InputError, Problem
from consilience.networks.gaussian.network import BayesianNetwork
from consilience.networks.gaussian.readers.tensors import (
    DEVIATION,
    LOG_DEVIATION,
    LOG_VARIANCE,
    RHO,
    VARIANCE,
    GaussianParameter,
    VarianceForm,
    build_network,
    copy_like,
    encode_like,
    join_names,
    require_same_parameters,
    with_buffers,
)

if TYPE_CHECKING:
    from torch import nn

_MEANS = ("mean", "mu")
_SPREADS = {
    "log_variance": LOG_VARIANCE,  # words that end another word stand after it
    "log_var": LOG_VARIANCE,
    "logvar": LOG_VARIANCE,
    "variance": VARIANCE,
    "log_std": LOG_DEVIATION,
    "std": DEVIATION,
    "rho": RHO,
}
_WORDS: dict[str, VarianceForm | None] = {**dict.fromkeys(_MEANS), **_SPREADS}
_PARTNERS = {"mu": "rho", "rho": "mu", "mean": "log_variance"}
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
_SAMPLER = "_sampler"
_POINT = "give a pair of dicts (means, log-variances) in which parameters that are points have a tiny variance"


@dataclass(frozen=True)
class ArrayRole:
    """Role of an array in a Gaussian, by its name."""

    parameter: str  # name of the parameter
    form: VarianceForm | None  # parametrisation of its variances; None for an array of means
    partner: str  # expected name of the array of variances for means, and of means for variances


def array_role(name: str) -> ArrayRole | None:
    """Return the role of an array of that name; None for a name of neither means nor variances."""
    path, dot, last = name.rpartition(".")
    if _is_ignored(name):
        return None
    for word, form in _WORDS.items():
        stem = name.removesuffix(word)
        if stem != name and len(stem) > 1 and stem[-1] in "._":
            return ArrayRole(stem[:-1].removesuffix(_SAMPLER), form, stem + _PARTNERS.get(word, "mean"))
    for word, form in (("mu", None), ("rho", RHO)):
        if last.startswith(f"{word}_"):
            suffix = last.removeprefix(f"{word}_")
            parameter = "weight" if suffix == "kernel" else suffix
            return ArrayRole(f"{path}{dot}{parameter}", form, f"{path}{dot}{_PARTNERS[word]}_{suffix}")
    return None


def paired_names(names: Collection[str], forms: Collection[VarianceForm] | None = None) -> set[str]:
    """Return the names that have their partner: a mean and a variance, in one of some forms, of one parameter."""
    roles = {name: role for name in names if (role := array_role(name)) is not None}
    means = {role.parameter for role in roles.values() if role.form is None}
    spreads = {role.parameter for role in roles.values() if role.form and (forms is None or role.form in forms)}
    return {name for name, role in roles.items() if role.parameter in means & spreads}


def accepts_flat(model: object) -> bool:
    """Return whether a model is a dict of which most arrays are means and variances."""
    if not isinstance(model, Mapping) or not all(isinstance(name, str) for name in model):
        return False
    return 2 * len(paired_names(model)) > len([name for name in model if not _is_ignored(name)])


def resembles_flat(model: object) -> bool:
    """Return whether a model is a dict in which some names are of means or variances."""
    return isinstance(model, Mapping) and any(isinstance(name, str) and array_role(name) is not None for name in model)


def accepts_pair(model: object) -> bool:
    """Return whether a model is a pair of dicts with names in common."""
    pair: Any = model
    return resembles_pair(model) and bool(set(pair[0]) & set(pair[1]))


def resembles_pair(model: object) -> bool:
    """Return whether a model is a pair of dicts."""
    return isinstance(model, tuple) and len(model) == 2 and all(isinstance(entry, Mapping) for entry in model)


def gaussian_parameters(
    arrays: Mapping[str, AnyArray], name: str
) -> tuple[dict[str, GaussianParameter], list[str], list[Problem]]:
    """Return the Gaussians of flat arrays by parameter, the names that are of none, and the problems."""
    means: dict[str, str] = {}  # names of arrays by parameter
    spreads: dict[str, str] = {}
    others, problems = [], []
    for key in arrays:
        role = array_role(key)
        if role is None:
            others.append(key)
            continue
        side = means if role.form is None else spreads
        first = side.setdefault(role.parameter, key)
        if first == key:
            continue
        if f"{_SAMPLER}." not in first + key:
            text = f"{first} and {key} both state {role.parameter}"
            problems.append(Problem(name, text, "keep one of them", "E-MISMATCH"))
        elif not bool((arrays[first] == arrays[key]).all()):
            remedy = "copy what is sampled from into the other"
            problems.append(Problem(name, f"{first} and {key} differ", remedy, "E-MISMATCH"))
    for side, other, what in ((means, spreads, "variance"), (spreads, means, "mean")):
        for parameter, key in side.items():
            role = array_role(key)
            if parameter not in other and role is not None:
                problems.append(Problem(name, f"{key} has no {what}", f"give {role.partner} too", "E-NEEDED"))
    parameters = {}
    for parameter, key in means.items():
        spread = spreads.get(parameter, "")
        role = array_role(spread)
        if role is not None and role.form is not None:
            parameters[parameter] = GaussianParameter(arrays[key], arrays[spread], role.form, key, spread)
    return parameters, others, problems


def read_flat(model: Any, module: nn.Module | None, name: str) -> BayesianNetwork:
    """Return the Bayesian network of a flat dict; buffers of the module are taken from it."""
    _require_arrays(name, model)
    parameters, others, problems = gaussian_parameters(model, name)
    buffers = {} if module is None else dict(module.named_buffers())
    if unknown := [key for key in others if key not in buffers and not _is_ignored(key)]:
        problems.append(Problem(name, f"{join_names(unknown)}: neither means nor variances by name; {_POINT}"))
    filled = None if module is None else with_buffers(module, {key: model[key] for key in others})
    return build_network(parameters, filled, name, problems=tuple(problems))


def write_flat(bnn: BayesianNetwork, like: Any) -> dict[str, AnyArray]:
    """Return a flat dict with the names and forms of another, of any width."""
    roles = {key: array_role(key) for key in like}
    array_names = {role.parameter: key for key, role in roles.items() if role is not None}
    # Widths may differ from those of `like`: only the names must agree.
    shapes = {key: tuple(bnn.means.get(key, like[array_names[key]]).shape) for key in array_names}
    require_same_parameters(bnn, shapes, "a dict")
    written = {}
    for key, role in roles.items():
        if role is None:
            written[key] = copy_like(bnn.arrays.get(key, like[key]), like[key])
        elif role.form is None:
            written[key] = copy_like(bnn.means[role.parameter], like[key])
        else:
            written[key] = encode_like(bnn.variances[role.parameter], role.form, like[key])
    return written


def read_pair(model: Any, module: nn.Module | None, name: str) -> BayesianNetwork:
    """Return the Bayesian network of a pair of dicts: means and log-variances.

    Raises InputError when all log-variances are positive, as if they were variances.
    """
    _require_arrays(name, *model)
    means, spreads = model
    sides = ((means, spreads, "a mean, but no log-variance"), (spreads, means, "a log-variance, but no mean"))
    problems = [
        Problem(name, f"{key}: {what}", "give both", "E-NEEDED")
        for one, other, what in sides
        for key in one
        if key not in other
    ]
    parameters = {
        key: GaussianParameter(values, spreads[key], LOG_VARIANCE, f"mean of {key}", f"log-variance of {key}")
        for key, values in means.items()
        if key in spreads
    }
    spread_arrays = [gaussian.spread for gaussian in parameters.values()]
    # A posterior of which every weight has a variance above 1 is surely a mistake: these are variances, not logarithms.
    if (
        parameters
        and not problems
        and all(float(values.min()) > 0 for values in spread_arrays if 0 not in values.shape)
    ):
        remedy = (
            "give (means, log-variances), or one dict whose "
            f"names say it, such as {next(iter(means))}.mean and {next(iter(means))}.variance"
        )
        problems.append(Problem(name, "every log-variance is positive, as variances are", remedy, "E-NUMBER"))
    return build_network(parameters, module, name, problems=tuple(problems))


def write_pair(bnn: BayesianNetwork, like: Any) -> tuple[dict[str, AnyArray], dict[str, AnyArray]]:
    """Return means and log-variances in the library and precision of a pair, of any width."""
    shapes = {key: tuple(bnn.means.get(key, values).shape) for key, values in like[0].items()}
    require_same_parameters(bnn, shapes, "a pair of dicts")
    return (
        {key: copy_like(bnn.means[key], values) for key, values in like[0].items()},
        {key: encode_like(bnn.variances[key], LOG_VARIANCE, values) for key, values in like[1].items()},
    )


def _require_arrays(name: str, *dicts: Any) -> None:
    """Raise unless dicts hold arrays by name."""
    if others := [str(key) for arrays in dicts for key, values in arrays.items() if not hasattr(values, "shape")]:
        raise InputError(name, f"{join_names(others)}: expected arrays or tensors by name", code="E-TYPE")


def _is_ignored(name: str) -> bool:
    """Return whether a name is of noise, a prior or running statistics, which are no part of the posterior."""
    last = name.rpartition(".")[2]
    return last.startswith(("eps_", "prior_")) or last in _BUFFERS
