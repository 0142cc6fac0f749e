"""The public functions ``save`` and ``load``: what a site writes, and reading it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from consilience.bayesian.files import read_bayesian_network, write_bayesian_network
from consilience.bayesian.network import BayesianNetwork
from consilience.errors import InputError
from consilience.networks.files import file_kind, read_network, write_network
from consilience.networks.fisher.files import read_fisher, write_fisher
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.inputs import is_network
from consilience.networks.network import Network
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import arrays_of_module
from consilience.posteriors.adapters import describe
from consilience.posteriors.files import read_posterior, write_posterior
from consilience.posteriors.posterior import Features, Posterior


def save(
    model: Any,
    path: str | Path,
    *,
    samples: float | None = None,
    features: Features | None = None,
    symmetry: Symmetry | None = None,
) -> None:
    """Write a model to a file that can be fused: a posterior, a network, its Fisher information. Parameters, no data.

    A Bayesian network's file has a mean and a variance for every parameter; its module and the module's buffers stay.

    Parameters
    ----------
    model
        A fitted model, a Posterior, a torch module, a Network, a BayesianNetwork, or what ``consilience.fisher`` gave.
    path
        Where to; usually ``*.safetensors``. The file appears whole or not at all.
    samples
        Number of observations the model was fitted to, for models that do not record it
        (GaussianMixture, GaussianHMM, CategoricalHMM).
    features
        What the columns mean; taken from the model where it knows.
    symmetry
        Of a torch module or a BayesianNetwork, so that its file alone can be fused: what ``consilience.symmetry``
        found. A BayesianNetwork's own if not given.

    Raises
    ------
    InputError
        When the model cannot be described or the path cannot be written.
    UnsupportedError
        When no adapter knows the model's class.
    """
    if isinstance(model, FisherInformation):
        write_fisher(Path(path), model)
        return
    if isinstance(model, BayesianNetwork):
        write_bayesian_network(Path(path), model, symmetry)
        return
    if isinstance(model, Network):
        write_network(Path(path), model.arrays, model.symmetry)
        return
    if is_network(model):
        arrays = arrays_of_module(model)
        if symmetry is not None:
            arrays = dict(Network(arrays, symmetry, type(model).__name__).arrays)
        write_network(Path(path), arrays, symmetry)
        return
    write_posterior(Path(path), describe(model, samples=samples, features=features))


def load(path: str | Path) -> Posterior | Network | BayesianNetwork | FisherInformation:
    """Return the posterior, the network (Bayesian or not) or the Fisher information in a file.

    A Bayesian network comes without a module: give it one with ``with_module`` to ask it.

    Raises
    ------
    FileFormatError
        When the file is none of these, or of a version that this library does not read.
    InputError
        When its values are not valid, naming the components at fault.
    """
    kind = file_kind(Path(path))
    if kind == "fisher":
        return read_fisher(Path(path))
    if kind == "bayesian":
        return read_bayesian_network(Path(path))
    if kind != "network":
        return read_posterior(Path(path))[0]
    file = read_network(Path(path))
    if file.symmetry is None:
        raise InputError(f"{path}: a checkpoint without symmetry; read it with safetensors, or save it with symmetry=")
    return Network(file.arrays, file.symmetry, str(path))
