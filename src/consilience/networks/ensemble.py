"""Ensembles of networks: the mean of their predictions, to which every fused network is compared.

With class probabilities p_j of J members and weights w_j that sum to 1, the ensemble returns

    log sum_j w_j p_j(c | x)      (mean="probabilities")      or      sum_j w_j logit_j(c | x)      (mean="logits").

The logarithms of mean probabilities serve wherever logits do, since a softmax returns the probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from consilience.checks import Array


class ModuleEnsemble(nn.Module):
    """An ensemble of networks as one module.

    Parameters
    ----------
    modules : sequence of Module
        J networks that take the same inputs and return logits (..., C).
    weights : array of shape (J,)
        Weight of each network in the mean; they sum to 1.
    mean : {"probabilities", "logits"}, optional
        What is averaged. Mean probabilities are returned as logarithms. Default: "probabilities".
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
        logits = torch.stack([member(*args, **kwargs) for member in self.members], dim=-1)  # (..., C, J)
        weights = self.weights.to(logits.dtype)
        if self.mean == "logits":
            return logits @ weights
        return torch.logsumexp(torch.log_softmax(logits, dim=-2) + weights.log(), dim=-1)
