"""Logits of whatever a classifier returns: logits as they are, probabilities as their logarithms."""

from __future__ import annotations

import torch
from torch import Tensor

from consilience.networks.classes.probabilities import IS_A_DISTRIBUTION, SMALLEST_PROBABILITY


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
