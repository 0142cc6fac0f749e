"""Fisher information at a site: the public function `fisher`.

It validates its options, computes the information on the site's data (`compute`), and returns a `FisherInformation`,
which is saved and sent beside the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import is_count, is_number
from consilience.core.progress import Progress, seeded, shown
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.networks.fisher.information import KINDS, LIKELIHOODS, FisherInformation, Kind, Likelihood
from consilience.networks.parametrised_layers import plain_module
from consilience.networks.torch_modules import is_module, unwrapped

if TYPE_CHECKING:
    from torch import nn


def fisher(
    model: nn.Module,
    batches: Any,
    kind: Kind = "diagonal",
    likelihood: Likelihood = "categorical",
    n_draws: int | None = None,
    prior_precision: float = 1.0,
    *,
    noise: float = 1.0,
    rank: int | None = 256,
    n_observations: float | None = None,
    minimum: int = 100,
    rng: int | np.random.Generator = 0,
    progress: bool | Progress = False,
) -> FisherInformation:
    """Return the Fisher information of a network's trained parameters on the data of a site.

    For every observation x the expectation over outcomes y of the model itself, summed over observations,

        F = sum_n E_{y ~ p(. | x_n)} [ grad log p(y | x_n) grad log p(y | x_n)^T ];

    labels are not used. Frozen parameters are left out, tied ones counted once. The network runs in evaluation mode.

    Parameters
    ----------
    model : torch.nn.Module
        The network as it will be sent; its first axis in and out counts observations. It is left as it is.
    batches : Tensor of shape (n, ...) or iterable of batches
        Inputs: a tensor, or batches of them (tensors, keyword arguments, or inputs with labels, which are not used).
    kind : {"diagonal", "factors", "kronecker"}, optional
        ``"diagonal"`` (default): F_pp, an array for every parameter. ``"factors"``: also the leading singular
        directions G of all gradients together, so that F is G^T G plus a diagonal. ``"kronecker"``: for every linear
        layer and convolution the second moments of what it reads and of the gradients at what it answers (K-FAC), about
        twice the numbers of the network; what has no such factors (gains of norms, embeddings, weights of several
        layers) keeps its diagonal. Gradients of single observations do not leave.
    likelihood : {"categorical", "bernoulli", "gaussian"}, optional
        What outputs stand for: ``"categorical"`` (default; logits of classes on the second axis), ``"bernoulli"``
        (logits), ``"gaussian"`` (means).
    n_draws : int, optional
        Outcomes drawn for each observation (Monte Carlo). Default: None, the exact expectation, which costs a backward
        pass for each output; for Kronecker factors one outcome where there are more than 20 outputs.
    prior_precision : float, optional
        alpha of the prior N(0, I / alpha) that the network was trained with, on the scale of the sum: N times the
        weight decay where the loss is a mean over N observations. 0 without any. Default: 1.
    noise : float, optional
        Standard deviation sigma of a gaussian likelihood, in units of the outputs. Default: 1.
    rank : int or None, optional
        Directions that are kept at most, and no more than one for every four observations (default: 256): as many
        directions as there were gradients can be taken apart into gradients, and these into inputs. None keeps all, at
        most one for each parameter: only for many more observations than parameters, or where inputs are no secret.
    n_observations : float, optional
        Number of observations that the site has, where `batches` are only some of them: F is scaled up to that number.
        Default: None, those in `batches`.
    minimum : int, optional
        Fewer observations are refused, since sums over few may betray single ones. Default: 100, chosen by hand.
    rng : int or numpy.random.Generator, optional
        Random generator, or its seed, for the outcomes. Default: 0.
    progress : bool or callable, optional
        True shows a bar on a terminal; a callable is given (observations done, observations in all). Default: False.

    Returns
    -------
    FisherInformation
        To be saved with ``consilience.save``, and fused with ``consilience.fuse(..., method="fisher", fishers=[...])``.

    Raises
    ------
    InputError
        For too few observations, outputs that do not fit the likelihood or are not finite, no information at all.
    OptionError
        For options that do not exist.
    UnsupportedError
        For a network that normalises over the batch, where no observation has a gradient of its own.

    Warns
    -----
    WithheldWarning
        Where there are fewer than two observations for each row of a Kronecker factor, so that only its diagonal is
        given: the eigenvectors of second moments of few observations are these observations.

    References
    ----------
    Matena, Raffel (2022), "Merging models with Fisher-weighted averaging"; (3) of Recasens et al. (2023), "Beyond
    parameter averaging in model aggregation". Kronecker factors: Martens, Grosse (2015), "Optimizing neural networks
    with Kronecker-factored approximate curvature"; of convolutions: Grosse, Martens (2016), "A Kronecker-factored
    approximate Fisher matrix for convolution layers".

    Examples
    --------
    >>> import torch
    >>> net, x = torch.nn.Linear(3, 2), torch.randn(100, 3)
    >>> info = fisher(net, x)
    >>> {name: tuple(values.shape) for name, values in info.diagonal.items()}
    {'weight': (2, 3), 'bias': (2,)}
    """
    if not is_module(model):
        raise InputError("model", f"expected a torch module, found {type(model).__name__}", code="E-TYPE")
    model = plain_module(unwrapped(model))
    if names := [name for name, parameter in model.named_parameters() if parameter.is_complex()]:
        text = f"parameter {names[0]} is complex, and Fisher information is of real ones"
        raise UnsupportedError(type(model).__name__, text, "fuse by a method that needs none, such as 'average'")
    if isinstance(batches, tuple):
        raise InputError("batches", "a tuple is one batch, inputs with labels", "give [(inputs, labels)], or a list")
    is_scale = n_observations is None or (is_number(n_observations) and n_observations > 0)
    for option, is_valid, expected in (
        ("kind", kind in KINDS, ", ".join(map(repr, KINDS))),
        ("likelihood", likelihood in LIKELIHOODS, ", ".join(map(repr, LIKELIHOODS))),
        ("n_draws", n_draws is None or is_count(n_draws), "a positive integer or None"),
        ("rank", rank is None or is_count(rank), "a positive integer or None"),
        ("prior_precision", is_number(prior_precision), "a number, not negative"),
        ("noise", is_number(noise) and noise > 0, "a positive number"),
        ("n_observations", is_scale, "a positive number"),
        ("minimum", is_count(minimum), "a positive integer"),
    ):
        if not is_valid:
            raise OptionError(option, f"expected {expected}, found {locals()[option]!r}")
    _, generator = seeded(rng)
    # Iterating over an array would take each row for a batch.
    if isinstance(batches, np.ndarray):
        raise InputError("batches", "expected tensors, found a NumPy array", "give `torch.from_numpy(array)`", "E-TYPE")
    from consilience.networks.fisher.compute import fisher_information  # here, since it needs torch

    with shown(progress, "Fisher information", "observation") as report:
        return fisher_information(
            model, batches, kind, likelihood, noise, n_draws, rank, n_observations, prior_precision,
            minimum, generator, report,
        )  # fmt: skip
