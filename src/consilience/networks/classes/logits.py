"""Logits and class probabilities of whatever a classifier returns.

Logits are taken as they are, probabilities as their logarithms. A network of one output tells two classes apart by z or
p = 1 / (1 + exp(-z)), the log odds or the probability of the second class; its logits are (0, z).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from consilience.checks import Array
from consilience.networks.module_outputs import ask

IS_A_DISTRIBUTION = 1e-4
"""Rows that are not negative and sum to one within this are probabilities already, in single precision. Chosen by
hand."""
SMALLEST_PROBABILITY = 1e-12
"""Probabilities count as at least this in logarithms, which are then finite. Chosen by hand."""


def as_probabilities(outputs: Array) -> Array:
    """Return outputs (n, C) as class probabilities: the softmax, or as they are where they are a distribution."""
    sums = outputs.sum(axis=1)
    if (outputs >= 0).all() and np.allclose(sums, 1.0, atol=IS_A_DISTRIBUTION):
        return outputs / sums[:, None]
    shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def as_logits(outputs: Tensor) -> Tensor:
    """Return outputs (..., C) as logits, whose softmax are the class probabilities.

    Examples
    --------
    >>> as_logits(torch.tensor([[0.5, 0.5]])).softmax(-1)
    tensor([[0.5000, 0.5000]])
    """
    with torch.no_grad():
        is_distribution = outputs.shape[-1] > 1 and bool((outputs >= 0).all())
        is_distribution = is_distribution and bool(((outputs.sum(dim=-1) - 1).abs() <= IS_A_DISTRIBUTION).all())
    return outputs.clamp(min=SMALLEST_PROBABILITY).log() if is_distribution else outputs


OneOutput = Literal["logits", "probabilities"]
"""What a network of one output for two classes returns: log odds of the second class, or its probability."""


def two_class_logits(outputs: Tensor, one_output: OneOutput) -> Tensor:
    """Return outputs (n,) or (..., 1) as logits of two classes (..., 2).

    Examples
    --------
    >>> two_class_logits(torch.tensor([[0.75]]), "probabilities").softmax(-1)
    tensor([[0.2500, 0.7500]])
    """
    z = outputs[:, None] if outputs.ndim == 1 else outputs
    if one_output == "probabilities":
        z = z.clamp(min=SMALLEST_PROBABILITY).log() - (1 - z).clamp(min=SMALLEST_PROBABILITY).log()
    return torch.cat([torch.zeros_like(z), z], dim=-1)


class TwoClasses(nn.Module):
    """A network of one output as one of the logits of two classes.

    Parameters
    ----------
    network : Module
        The network.
    one_output : {"logits", "probabilities"}
        What it returns of the second class.
    """

    def __init__(self, network: nn.Module, one_output: OneOutput) -> None:
        super().__init__()
        self.network = network
        self.one_output: OneOutput = one_output

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return logits (..., 2)."""
        return two_class_logits(ask(self.network, *args, **kwargs), self.one_output)
