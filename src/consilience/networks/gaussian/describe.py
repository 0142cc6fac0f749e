"""Describe: a Bayesian network with its symmetry, and what its site says of its data besides means and variances."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from consilience.errors import InputError, OptionError
from consilience.networks.gaussian.files import known_symmetry
from consilience.networks.gaussian.network import BayesianNetwork
from consilience.networks.symmetry.symmetry import Symmetry

if TYPE_CHECKING:
    from torch import nn


def describe_bayesian(
    bnn: BayesianNetwork,
    data: Any = None,
    *,
    n_observations: float | None = None,
    classes: Any = None,
    example: Any = None,
    min_count: float | None = None,
    class_prior: Literal["own", "removed"] | None = None,
    held_out: Any = None,
    share_network: bool = False,
    symmetry: Symmetry | None = None,
) -> BayesianNetwork:
    """Return a Bayesian network with its symmetry and its description; see ``consilience.describe``.

    The data are described as they are for a network without variances, but for what that network's layers would answer:
    predictions of a Bayesian network are those of no single one. Its number of observations becomes that of the
    description, since a difference would tell how many observations of small classes there are.

    With data, `bnn` has a module. `n_observations` and `classes` are the network's own by default; so is `symmetry`, or
    else it is traced and proved on the example; none where it cannot be traced. Raises InputError for data or options
    that do not fit, or that contradict what the network says. Raises OptionError where there is nothing to describe the
    network with.
    """
    if data is not None and bnn.module is None:
        raise OptionError("data", "are given to a network by its module, and this one has none", "use with_module")
    from consilience.networks.describe import digest_of_held_out
    from consilience.networks.descriptions.measure import measure_network  # here, since it needs torch

    if n_observations is None and (data is None or bnn.description is None):  # which left out what was withheld
        n_observations = bnn.n_observations
    if classes is None:
        classes = bnn.classes
    described, first_inputs = measure_network(
        _asked_module(bnn),
        data,
        n_observations=n_observations,
        classes=classes,
        example=example,
        min_count=min_count,
        class_prior=class_prior,
        layers=False,  # their factors are of one network
        name=f"description of {bnn.name}",
    )
    if bnn.classes is not None and described.classes is not None and described.classes != bnn.classes:
        text = f"are {', '.join(described.classes)}, and the network has {', '.join(bnn.classes)}"
        raise InputError("classes", text, "give its own, or leave them out")
    description = replace(
        described,
        digest=bnn.digest,
        channels={},
        class_features=None,
        held_out=digest_of_held_out(data, held_out),
        share_network=bool(share_network),
    )
    example = first_inputs if example is None else example
    known = known_symmetry(bnn, symmetry, bnn.example if example is None else example, bnn.name)
    return replace(bnn, description=description, symmetry=known, n_observations=description.n_observations)


def _asked_module(bnn: BayesianNetwork) -> nn.Module:
    """Return a module that takes the network's inputs; one without layers where there is none, and nothing to ask."""
    if bnn.module is not None:
        return bnn.mean_module()
    import torch  # here, as above

    return torch.nn.Identity()
