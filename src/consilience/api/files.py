"""The public functions ``save`` and ``load``: what a site writes, and reading it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from consilience.api.kinds import KINDS, POSTERIORS, load_file
from consilience.bayesian.network import BayesianNetwork
from consilience.core.deprecated import renamed_keyword
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.network import Network
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.posteriors.posterior import Features, Posterior


def save(
    model: Any,
    path: str | Path,
    *,
    n_observations: float | None = None,
    features: Features | None = None,
    symmetry: Symmetry | None = None,
    samples: float | None = None,
) -> None:
    """Write a model to a file that can be fused: a posterior, a network, its Fisher information. Parameters, no data.

    A Bayesian network's file has a mean and a variance for every parameter; its module and the module's buffers stay.

    Parameters
    ----------
    model
        A fitted model, a Posterior, a torch module, a Network, a BayesianNetwork, or what ``consilience.fisher`` gave.
    path
        Where to; usually ``*.safetensors``. The file appears whole or not at all.
    n_observations
        Number of observations the model was fitted to, for models that do not record it
        (GaussianMixture, GaussianHMM, CategoricalHMM).
    features
        What the columns mean; taken from the model where it knows.
    symmetry
        Of a torch module or a BayesianNetwork, so that its file alone can be fused: what ``consilience.symmetry``
        found. A BayesianNetwork's own if not given.
    samples
        Old name of `n_observations`, deprecated since 0.2.

    Raises
    ------
    InputError
        When the model cannot be described or the path cannot be written.
    UnsupportedError
        When no adapter knows the model's class.
    """
    n_observations = renamed_keyword("samples", samples, "n_observations", n_observations)
    kind = next((kind for kind in KINDS if kind.writes(model)), POSTERIORS)
    kind.save(model, Path(path), n_observations=n_observations, features=features, symmetry=symmetry)


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
    return load_file(path)
