"""Square roots of the Fisher information of a network's outputs, and scores of outcomes drawn from the model.

For the outputs f of one observation the information is S S^T with S (outputs, columns), so that the information of the
parameters is J^T S (J^T S)^T, J = d f / d theta: one product with J^T, a backward pass, for each column of S.

    categorical   p = softmax(f):    columns  sqrt(p_c) (e_c - p)
    bernoulli     p = sigmoid(f):    columns  sqrt(p_o (1 - p_o)) e_o
    gaussian      N(f, sigma^2 I):   columns  e_o / sigma

with e_c the unit vector of class or output c. For outcomes y drawn from the model instead (Monte Carlo), the columns
are scores d log p(y | f) / d f over sqrt(n_draws): S S^T is then an unbiased estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from consilience.networks.fisher.information import Likelihood


def output_columns(
    outputs: Tensor, likelihood: Likelihood, noise: float, n_draws: int | None, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield the exact columns of S for every observation, or scores at so many drawn outcomes (n, ...)."""
    if n_draws is None:
        return information_square_root(outputs, likelihood, noise)
    return sampled_scores(outputs, likelihood, noise, n_draws, generator)


def information_square_root(outputs: Tensor, likelihood: Likelihood, noise: float) -> Iterator[Tensor]:
    """Yield the columns of S for every observation, each of the outputs' shape (n, ...).

    Classes are the second axis of a categorical likelihood's outputs, as in torch; further axes are positions, whose
    outcomes are independent given the input. The deviation sigma of a gaussian likelihood is `noise`.
    """
    if likelihood == "categorical":
        probabilities = outputs.softmax(dim=1)  # (n, classes, *positions)
        n_classes, n_positions = outputs.shape[1], prod(outputs.shape[2:])
        for position in range(n_positions):
            # Outcomes at different positions are independent: a column for each class and position.
            at_position = _unit_vectors(outputs, position).unsqueeze(1) if outputs.ndim > 2 else None
            for label in range(n_classes):
                root = probabilities[:, label : label + 1].sqrt()  # (n, 1, *positions)
                column = -probabilities * root
                column[:, label : label + 1] += root
                yield column if at_position is None else column * at_position
        return
    n_outputs = prod(outputs.shape[1:])
    for output in range(n_outputs):
        column = _unit_vectors(outputs, output, start=1)
        if likelihood == "bernoulli":
            probabilities = outputs.sigmoid()
            yield column * (probabilities * (1.0 - probabilities)).sqrt()
        else:
            yield column / noise


def _unit_vectors(outputs: Tensor, index: int, start: int = 2) -> Tensor:
    """Return (n, *shape[start:]): one at one index of the axes from `start`, counted through, and zero elsewhere."""
    column = torch.zeros(outputs.shape[0], prod(outputs.shape[start:]), dtype=outputs.dtype, device=outputs.device)
    column[:, index] = 1.0
    return column.reshape(outputs.shape[0], *outputs.shape[start:])


def sampled_scores(
    outputs: Tensor, likelihood: Likelihood, noise: float, n_draws: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield scores d log p(y | outputs) / d outputs over sqrt(n_draws) at outcomes y drawn from the model.

    Each has the shape (n, ...) of the outputs. Draws are made in float64 on the CPU, so that a seed gives the same
    outcomes on every device.
    """
    for _ in range(n_draws):
        if likelihood == "gaussian":
            error = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
            yield error.to(outputs) / (noise * n_draws**0.5)  # sigma e / sigma^2, e standard normal
        elif likelihood == "bernoulli":
            probabilities = outputs.sigmoid()
            uniform = torch.rand(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
            yield ((uniform < probabilities).to(outputs) - probabilities) / n_draws**0.5
        else:
            yield (sample_labels(outputs, generator) - outputs.softmax(dim=1)) / n_draws**0.5


def sample_labels(outputs: Tensor, generator: torch.Generator) -> Tensor:
    """Return labels drawn from softmax(outputs), one-hot along the second axis, in the outputs' shape."""
    probabilities = outputs.softmax(dim=1).movedim(1, -1)  # (n, *positions, classes)
    rows = probabilities.reshape(-1, probabilities.shape[-1]).double().cpu()
    labels = torch.multinomial(rows, 1, generator=generator)
    return torch.zeros_like(rows).scatter_(1, labels, 1.0).reshape(probabilities.shape).movedim(-1, 1).to(outputs)
