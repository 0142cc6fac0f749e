"""Several networks asked together: the reference that every fused network is held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from consilience.checks import Array


class ModuleEnsemble(nn.Module):
    """All networks side by side; the answer is the mean of theirs.

    Parameters
    ----------
    modules
        Networks that take the same inputs and answer with logits (..., C).
    weights
        What each counts (J,), summing to 1.
    mean
        Of class probabilities, given as their logarithms, so that the answer serves wherever logits do; or of logits.
    """

    weights: Tensor

    def __init__(
        self, modules: Sequence[nn.Module], weights: Array, mean: Literal["probabilities", "logits"] = "probabilities"
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self.register_buffer("weights", torch.as_tensor(weights), persistent=False)
        self.mean = mean

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return logits (..., C), or logarithms of mean probabilities."""
        answers = torch.stack([member(*args, **kwargs) for member in self.members], dim=-1)
        weights = self.weights.to(answers.dtype)
        if self.mean == "logits":
            return answers @ weights
        return torch.logsumexp(torch.log_softmax(answers, dim=-2) + weights.log(), dim=-1)
