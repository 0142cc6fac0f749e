"""The public function fisher: what a site computes on its data and sends with its network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from consilience.checks import is_count, is_number
from consilience.core.progress import Progress, seeded, shown
from consilience.errors import InputError, OptionError
from consilience.networks.fisher.information import LIKELIHOODS, FisherInformation, Likelihood
from consilience.networks.torch_modules import is_module

if TYPE_CHECKING:
    from torch import nn

_KINDS = ("diagonal", "factors")


def fisher(
    model: nn.Module,
    batches: Any,
    kind: Literal["diagonal", "factors"] = "diagonal",
    likelihood: Likelihood = "categorical",
    samples: int | None = None,
    prior_precision: float = 1.0,
    *,
    noise: float = 1.0,
    rank: int | None = 256,
    observations: float | None = None,
    minimum: int = 100,
    rng: int | np.random.Generator = 0,
    progress: bool | Progress = False,
    compat: bool = False,
) -> FisherInformation:
    """Return the Fisher information of a network's trained parameters on the data of a site.

    For every observation x the expectation over outcomes y of the model itself, summed over observations,

        F = sum_n E_{y ~ p(. | x_n)} [ grad log p(y | x_n) grad log p(y | x_n)^T ];

    labels are not used. Frozen parameters are left out, tied ones counted once. The network runs in evaluation mode.

    Parameters
    ----------
    model
        The network as it will be sent; its first axis in and out counts observations. It is left as it is.
    batches
        Inputs: a tensor, or batches of them (tensors, keyword arguments, or inputs with labels, which are not used).
    kind
        ``"diagonal"``: F_pp, an array for every parameter. ``"factors"``: also the leading singular directions G of all
        gradients together, so that F is G^T G plus a diagonal. Gradients of single observations do not leave.
    likelihood
        What outputs stand for: ``"categorical"`` (logits of classes on the second axis), ``"bernoulli"`` (logits),
        ``"gaussian"`` (means).
    samples
        Outcomes drawn for each observation (Monte Carlo); None takes the expectation exactly, which costs a backward
        pass for each output.
    prior_precision
        alpha of the prior N(0, I / alpha) that the network was trained with, on the scale of the sum: N times the
        weight decay where the loss is a mean over N observations. 0 without any.
    noise
        Standard deviation sigma of a gaussian likelihood, in units of the outputs.
    rank
        Directions that are kept at most, and no more than one for every four observations: as many directions as there
        were gradients can be taken apart into gradients, and these into inputs. None keeps all, at most one for each
        parameter: only for many more observations than parameters, or where inputs are no secret.
    observations
        How many observations the site has, where `batches` are only some of them: F is scaled up to that number.
    minimum
        Fewer observations are refused, since sums over few may betray single ones.
    rng
        Draws outcomes.
    progress
        True shows a bar on a terminal; a callable is told (observations seen, in all).
    compat
        Compute the sums that the published code of self-supervised Fisher merging keeps instead: the mean gradient of
        one sampled logit (not log probability) as the only factor, and the sum of its squares.

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

    References
    ----------
    Matena, Raffel (2022), "Merging models with Fisher-weighted averaging"; (3) of Recasens et al. (2023), "Beyond
    parameter averaging in model aggregation".

    Examples
    --------
    >>> import torch
    >>> net, x = torch.nn.Linear(3, 2), torch.randn(100, 3)
    >>> info = fisher(net, x)
    >>> {name: tuple(values.shape) for name, values in info.diagonal.items()}
    {'weight': (2, 3), 'bias': (2,)}
    """
    if not is_module(model):
        raise InputError(f"model: expected a torch module, found {type(model).__name__}")
    if isinstance(batches, tuple):
        raise InputError("batches: a tuple is one batch, inputs with labels; give [(inputs, labels)], or a list")
    for what, valid, expected in (
        ("kind", kind in _KINDS, " or ".join(map(repr, _KINDS))),
        ("likelihood", likelihood in LIKELIHOODS, ", ".join(map(repr, LIKELIHOODS))),
        ("samples", samples is None or is_count(samples), "a positive integer or None"),
        ("rank", rank is None or is_count(rank), "a positive integer or None"),
        ("prior_precision", is_number(prior_precision), "a number, not negative"),
        ("noise", is_number(noise) and noise > 0, "a positive number"),
        ("observations", observations is None or (is_number(observations) and observations > 0), "a positive number"),
        ("minimum", is_count(minimum), "a positive integer"),
        ("compat", not compat or kind == "factors", "False, or True with kind 'factors'"),
        ("compat", not compat or likelihood == "categorical", "False for such a likelihood"),
    ):
        if not valid:
            raise OptionError(f"{what}: expected {expected}, found {locals()[what]!r}")
    _, generator = seeded(rng)
    if isinstance(batches, np.ndarray):
        raise InputError("batches: expected tensors, found a NumPy array; give torch.from_numpy(array)")
    from consilience.networks.fisher.compute import fisher_information  # here, since it needs torch

    with shown(progress, "Fisher information", "observation") as report:
        return fisher_information(
            model, batches, kind == "factors", likelihood, noise, samples, rank, observations, prior_precision,
            minimum, generator, report, compat,
        )  # fmt: skip
