"""Adapters of Bayesian neural networks of other libraries: the table of all, reading and writing.

The kinds are `BayesianNetwork` itself, diagonal Laplace approximations of laplace-torch, mean-field guides of Pyro,
modules whose layers keep means and rho (bayesian-torch, blitz, or custom ones), and dicts of arrays. No library is
imported to recognise a model. The first entry of the table that resembles a model reads it, or says what it lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from consilience.errors import InputError, UnsupportedError
from consilience.networks.gaussian.network import BayesianNetwork
from consilience.networks.gaussian.readers import laplace as bayesian_laplace
from consilience.networks.gaussian.readers import layers as bayesian_layers
from consilience.networks.gaussian.readers import pyro as bayesian_pyro
from consilience.networks.gaussian.readers import state_dicts as bayesian_states
from consilience.networks.gaussian.readers.tensors import require_same_parameters
from consilience.networks.torch_modules import is_module

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class BayesianAdapter:
    """Reader and writer of one kind of Bayesian networks.

    Parameters
    ----------
    kind : str
        Name of the kind in messages.
    accepts : callable
        Whether a model is of this kind, without importing its library.
    resembles : callable
        Whether a model is meant to be of this kind, though something may be missing that `read` will name.
    read : callable
        From a model, a plain torch module of its architecture or None, and a name in messages, the Bayesian network.
    write : callable
        From a Bayesian network and a model, a copy of that model with the network's means and variances.
    """

    kind: str
    accepts: Callable[[object], bool]
    resembles: Callable[[object], bool]
    read: Callable[[Any, nn.Module | None, str], BayesianNetwork]
    write: Callable[[BayesianNetwork, Any], Any]


def _is_own(model: object) -> bool:
    return isinstance(model, BayesianNetwork)


def _read_own(model: BayesianNetwork, module: nn.Module | None, name: str) -> BayesianNetwork:
    return replace(model, name=name, module=model.module if module is None else module)


def _write_own(bnn: BayesianNetwork, like: BayesianNetwork) -> BayesianNetwork:
    if bnn.module is not None or like.module is None:
        return bnn
    require_same_parameters(bnn, {key: tuple(values.shape) for key, values in like.means.items()}, "this network")
    return bnn.with_module(like.module)


def _of_library(kind: str, reader: Any) -> BayesianAdapter:
    """Return the entry of a library's reader, whose models are of its kind or of none."""
    return BayesianAdapter(kind, reader.accepts, reader.accepts, reader.read, reader.write)


BAYESIAN_ADAPTERS: tuple[BayesianAdapter, ...] = (
    BayesianAdapter("consilience.BayesianNetwork", _is_own, _is_own, _read_own, _write_own),
    _of_library("laplace-torch's DiagLaplace", bayesian_laplace),
    _of_library("Pyro's AutoDiagonalNormal or AutoNormal", bayesian_pyro),
    BayesianAdapter(
        "a module with mu_weight and rho_weight or weight_mu and weight_rho (bayesian-torch, blitz)",
        bayesian_layers.accepts,
        bayesian_layers.resembles,
        bayesian_layers.read,
        bayesian_layers.write,
    ),
    BayesianAdapter(
        "a pair of dicts (means, log-variances)",
        bayesian_states.accepts_pair,
        bayesian_states.resembles_pair,
        bayesian_states.read_pair,
        bayesian_states.write_pair,
    ),
    BayesianAdapter(
        "a dict with NAME.mean and NAME.log_variance or NAME.variance",
        bayesian_states.accepts_flat,
        bayesian_states.resembles_flat,
        bayesian_states.read_flat,
        bayesian_states.write_flat,
    ),
)
"""Every kind; a new one is one file and one entry here."""


def is_bayesian(model: object) -> bool:
    """Return whether a model is a Bayesian neural network of a known kind, without importing its library.

    Kinds that a library has but that are no independent Gaussian for every weight count too, so that
    `as_bayesian_network` can say what to use instead.

    Examples
    --------
    >>> import numpy as np
    >>> is_bayesian({"weight.mean": np.zeros((2, 3)), "weight.log_variance": np.zeros((2, 3))})
    True
    >>> is_bayesian({"weight": np.zeros((2, 3)), "bias": np.zeros(2)})
    False
    """
    return any(adapter.accepts(model) for adapter in BAYESIAN_ADAPTERS)


def as_bayesian_network(model: Any, module: nn.Module | None = None, name: str = "model") -> BayesianNetwork:
    """Return the Bayesian network that a model of another library is.

    Parameters
    ----------
    model : object
        A Bayesian network of a kind in the table.
    module : torch.nn.Module, optional
        A plain module of the architecture, whose parameters have the names of the model's weights. Needed for
        predictions, and to trace the symmetry; laplace-torch's models bring their own.
    name : str
        Name of the network in messages.

    Raises
    ------
    InputError
        Naming every problem at once, by the names that the model itself uses.
    UnsupportedError
        When it is of no known kind, or its posterior is no independent Gaussian for every weight.

    Examples
    --------
    >>> import numpy as np
    >>> model = {"weight.mean": np.zeros((2, 3)), "weight.std": np.full((2, 3), 0.1)}
    >>> as_bayesian_network(model).variances["weight"].round(3)
    array([[0.01, 0.01, 0.01],
           [0.01, 0.01, 0.01]])
    """
    if module is not None and not is_module(module):
        raise InputError(name, f"module: expected a torch module, found {type(module).__name__}", code="E-TYPE")
    return _adapter(model, name).read(model, module, name)


def written_like(bnn: BayesianNetwork, like: Any) -> Any:
    """Return a copy of a model of a kind in the table with the means and variances of a network of its architecture.

    Raises InputError when parameters have other names, and UnsupportedError when shapes differ from those of layers,
    naming them, or `like` is of no known kind; see ``consilience.written_like``.
    """
    if not isinstance(bnn, BayesianNetwork):
        raise InputError("", f"expected a consilience.BayesianNetwork, found {type(bnn).__name__}", code="E-TYPE")
    return _adapter(like, bnn.name).write(bnn, like)


def _adapter(model: Any, name: str) -> BayesianAdapter:
    """Return the first entry that a model resembles; its `read` says what the model lacks."""
    for adapter in BAYESIAN_ADAPTERS:
        if adapter.resembles(model):
            return adapter
    kinds = "; ".join(adapter.kind for adapter in BAYESIAN_ADAPTERS)
    raise UnsupportedError(
        name,
        f"{type(model).__module__}.{type(model).__qualname__} is no Bayesian neural network of a known kind; "
        f"known: {kinds}",
    )
