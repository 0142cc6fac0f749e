"""Bayesian networks as plain dicts of arrays: a pair of state dicts, or one in which names say what an array holds.

A pair is ``(means, log_variances)``, two dicts with the same names. In one flat dict a parameter NAME has a mean and
one array that tells its variance; ``_`` may stand for the dot:

    NAME.mean  NAME.mu                                    the means
    NAME.variance                                         the variances v
    NAME.std                                              the standard deviations
    NAME.log_variance  NAME.log_var  NAME.logvar          log v
    NAME.log_std                                          log(v) / 2
    NAME.rho                                              rho, with a standard deviation of log(1 + exp(rho))

Layers of bayesian-torch say ``PATH.mu_weight`` and ``PATH.rho_weight`` (``kernel`` in convolutions), which is
``PATH.weight`` here. Those of blitz say ``PATH.weight_mu`` and ``PATH.weight_rho``, and the same once more under
``PATH.weight_sampler.mu``. Beside these a state dict may hold noise (``eps_...``), priors (``prior_...``) and the
buffers of a module that is given. Everything else is refused, as is a parameter that is told twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consilience.bayesian.network import BayesianNetwork
from consilience.bayesian.readers.tensors import (
    DEVIATION,
    LOG_DEVIATION,
    LOG_VARIANCE,
    RHO,
    VARIANCE,
    Form,
    Weight,
    assembled,
    converted,
    few,
    spread_like,
    with_buffers,
    writable,
)
from consilience.checks import AnyArray
from consilience.errors import InputError

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
_PARTNERS = {"mu": "rho", "rho": "mu", "mean": "log_variance"}
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
_SAMPLER = "_sampler"
_POINT = "give a pair of dicts (means, log-variances) in which parameters that are points have a tiny variance"


@dataclass(frozen=True)
class Told:
    """What the name of an array says: which parameter's, in which form (None for means), and who holds the other."""

    parameter: str
    form: Form | None
    partner: str


def told(name: str) -> Told | None:
    """Return what the name of an array says; None when it names neither means nor variances."""
    path, dot, last = name.rpartition(".")
    if last.startswith(("eps_", "prior_")) or last in _BUFFERS:
        return None
    for word, form in {**dict.fromkeys(_MEANS), **_SPREADS}.items():
        stem = name.removesuffix(word)
        if stem != name and len(stem) > 1 and stem[-1] in "._":
            return Told(stem[:-1].removesuffix(_SAMPLER), form, stem + _PARTNERS.get(word, "mean"))
    for word, form in (("mu", None), ("rho", RHO)):
        if last.startswith(f"{word}_"):
            what = last.removeprefix(f"{word}_")
            own = "weight" if what == "kernel" else what
            return Told(f"{path}{dot}{own}", form, f"{path}{dot}{_PARTNERS[word]}_{what}")
    return None


def pairs(names: Collection[str], forms: Collection[Form] | None = None) -> set[str]:
    """Return the names that have their partner: a mean and a variance, in one of some forms, of one parameter."""
    known = {name: one for name in names if (one := told(name)) is not None}
    means = {one.parameter for one in known.values() if one.form is None}
    spreads = {one.parameter for one in known.values() if one.form and (forms is None or one.form in forms)}
    return {name for name, one in known.items() if one.parameter in means & spreads}


def accepts_flat(model: object) -> bool:
    """Return whether a model is a dict of which most arrays are means and variances."""
    if not isinstance(model, Mapping) or not all(isinstance(name, str) for name in model):
        return False
    return 2 * len(pairs(model)) > len([name for name in model if not _aside(name)])


def resembles_flat(model: object) -> bool:
    """Return whether a model is a dict in which some names say means or variances."""
    return isinstance(model, Mapping) and any(isinstance(name, str) and told(name) is not None for name in model)


def accepts_pair(model: object) -> bool:
    """Return whether a model is a pair of dicts with names in common."""
    pair: Any = model
    return resembles_pair(model) and bool(set(pair[0]) & set(pair[1]))


def resembles_pair(model: object) -> bool:
    """Return whether a model is a pair of dicts."""
    return isinstance(model, tuple) and len(model) == 2 and all(isinstance(one, Mapping) for one in model)


def weights_of(arrays: Mapping[str, AnyArray], name: str) -> tuple[dict[str, Weight], list[str], list[str]]:
    """Return the weights of flat arrays by parameter, the names that say nothing, and what is wrong."""
    means: dict[str, str] = {}
    spreads: dict[str, str] = {}
    others, found = [], []
    for key in arrays:
        one = told(key)
        if one is None:
            others.append(key)
            continue
        side = means if one.form is None else spreads
        first = side.setdefault(one.parameter, key)
        if first == key:
            continue
        if f"{_SAMPLER}." not in first + key:
            found.append(f"{name}: {first} and {key} both tell of {one.parameter}; keep one of them")
        elif not bool((arrays[first] == arrays[key]).all()):
            found.append(f"{name}: {first} and {key} differ; copy what is sampled from into the other")
    for side, other, what in ((means, spreads, "variance"), (spreads, means, "mean")):
        for parameter, key in side.items():
            one = told(key)
            if parameter not in other and one is not None:
                found.append(f"{name}: {key}: no {what} beside it; give {one.partner} too")
    weights = {}
    for parameter, key in means.items():
        spread = spreads.get(parameter, "")
        one = told(spread)
        if one is not None and one.form is not None:
            weights[parameter] = Weight(arrays[key], arrays[spread], one.form, key, spread)
    return weights, others, found


def read_flat(model: Any, module: nn.Module | None, name: str) -> BayesianNetwork:
    """Return the Bayesian network of a flat dict; buffers of the module are taken from it."""
    _checked(name, model)
    weights, others, found = weights_of(model, name)
    buffers = {} if module is None else dict(module.named_buffers())
    if odd := [key for key in others if key not in buffers and not _aside(key)]:
        found.append(f"{name}: {few(odd)}: neither means nor variances by name; {_POINT}")
    filled = None if module is None else with_buffers(module, {key: model[key] for key in others})
    return assembled(weights, filled, name, problems=tuple(found))


def write_flat(bnn: BayesianNetwork, like: Any) -> dict[str, AnyArray]:
    """Return a flat dict with the names and forms of another, of any width."""
    known = {key: told(key) for key in like}
    own = {one.parameter: key for key, one in known.items() if one is not None}
    writable(bnn, {key: tuple(bnn.means.get(key, like[own[key]]).shape) for key in own}, "a dict")
    found = {}
    for key, one in known.items():
        if one is None:
            found[key] = converted(bnn.arrays.get(key, like[key]), like[key])
        elif one.form is None:
            found[key] = converted(bnn.means[one.parameter], like[key])
        else:
            found[key] = spread_like(bnn.variances[one.parameter], one.form, like[key])
    return found


def read_pair(model: Any, module: nn.Module | None, name: str) -> BayesianNetwork:
    """Return the Bayesian network of a pair of dicts: means and log-variances.

    Raises
    ------
    InputError
        When all log-variances are positive, as if they were variances.
    """
    _checked(name, *model)
    means, spreads = model
    found = [f"{name}: {key}: a mean, but no log-variance; give both" for key in means if key not in spreads]
    found += [f"{name}: {key}: a log-variance, but no mean; give both" for key in spreads if key not in means]
    weights = {
        key: Weight(values, spreads[key], LOG_VARIANCE, f"mean of {key}", f"log-variance of {key}")
        for key, values in means.items()
        if key in spreads
    }
    if weights and not found and all(float(one.spread.min()) > 0 for one in weights.values() if _numbers(one.spread)):
        found.append(
            f"{name}: every log-variance is positive, as variances are; give (means, log-variances), or one dict whose "
            f"names say it, such as {next(iter(means))}.mean and {next(iter(means))}.variance"
        )
    return assembled(weights, module, name, problems=tuple(found))


def write_pair(bnn: BayesianNetwork, like: Any) -> tuple[dict[str, AnyArray], dict[str, AnyArray]]:
    """Return means and log-variances in the library and precision of a pair, of any width."""
    writable(bnn, {key: tuple(bnn.means.get(key, values).shape) for key, values in like[0].items()}, "a pair of dicts")
    return (
        {key: converted(bnn.means[key], values) for key, values in like[0].items()},
        {key: spread_like(bnn.variances[key], LOG_VARIANCE, values) for key, values in like[1].items()},
    )


def _checked(name: str, *dicts: Any) -> None:
    """Raise unless dicts hold arrays by name."""
    if odd := [str(key) for one in dicts for key, values in one.items() if not hasattr(values, "shape")]:
        raise InputError(f"{name}: {few(odd)}: expected arrays or tensors by name")


def _aside(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.startswith(("eps_", "prior_")) or last in _BUFFERS


def _numbers(values: AnyArray) -> bool:
    return 0 not in values.shape
