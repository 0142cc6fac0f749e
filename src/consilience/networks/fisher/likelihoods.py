"""What a network's outputs say of outcomes: square roots of the Fisher information of its outputs.

For outputs f of one observation, the information is S S^T with S (outputs, columns), so that the information of the
parameters is J^T S (J^T S)^T, J = d f / d theta: one product with J^T for each column.

    categorical   p = softmax(f):    columns  sqrt(p_c) (e_c - p)
    bernoulli     p = sigmoid(f):    columns  sqrt(p_o (1 - p_o)) e_o
    gaussian      N(f, sigma^2 I):   columns  e_o / sigma

Drawing outcomes y from the model instead, the columns are d log p(y | f) / d f / sqrt(samples).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from consilience.networks.fisher.information import Likelihood


def square_root(outputs: Tensor, likelihood: Likelihood, noise: float) -> Iterator[Tensor]:
    """Yield the columns of S for every observation, each of the outputs' shape (n, ...).

    Classes are the second axis of a categorical likelihood's outputs, as in torch; further axes are positions, whose
    outcomes are independent given the input.
    """
    if likelihood == "categorical":
        shares = outputs.softmax(dim=1)
        classes, positions = outputs.shape[1], prod(outputs.shape[2:])
        for place in range(positions):
            here = _at(outputs, place).unsqueeze(1) if outputs.ndim > 2 else None
            for label in range(classes):
                root = shares[:, label : label + 1].sqrt()
                column = -shares * root
                column[:, label : label + 1] += root
                yield column if here is None else column * here
        return
    size = prod(outputs.shape[1:])
    for output in range(size):
        column = _at(outputs, output, start=1)
        if likelihood == "bernoulli":
            shares = outputs.sigmoid()
            yield column * (shares * (1.0 - shares)).sqrt()
        else:
            yield column / noise


def _at(outputs: Tensor, number: int, start: int = 2) -> Tensor:
    """Return one at one of the positions (counted through) and zero at others, for all observations."""
    column = torch.zeros(outputs.shape[0], prod(outputs.shape[start:]), dtype=outputs.dtype, device=outputs.device)
    column[:, number] = 1.0
    return column.reshape(outputs.shape[0], *outputs.shape[start:])


def drawn(
    outputs: Tensor, likelihood: Likelihood, noise: float, samples: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield gradients of log p(y | outputs) over sqrt(samples) at outcomes drawn from the model, (n, ...) each."""
    for _ in range(samples):
        if likelihood == "gaussian":
            error = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
            yield error.to(outputs) / (noise * samples**0.5)
        elif likelihood == "bernoulli":
            shares = outputs.sigmoid()
            draw = torch.rand(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
            yield ((draw < shares).to(outputs) - shares) / samples**0.5
        else:
            yield (labels_drawn(outputs, generator) - outputs.softmax(dim=1)) / samples**0.5


def labels_drawn(outputs: Tensor, generator: torch.Generator) -> Tensor:
    """Return labels drawn from softmax(outputs), one-hot along the second axis, in the outputs' shape."""
    shares = outputs.softmax(dim=1).movedim(1, -1)
    rows = shares.reshape(-1, shares.shape[-1]).double().cpu()
    labels = torch.multinomial(rows, 1, generator=generator)
    return torch.zeros_like(rows).scatter_(1, labels, 1.0).reshape(shares.shape).movedim(-1, 1).to(outputs)
