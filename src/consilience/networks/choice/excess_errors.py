"""Whether synthetic inputs are like real ones: by how much more, or less, often sites' networks err on them.

A site's own error is that on its held-out rows where it held any out, else that on the rows that it trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from consilience.checks import Array
from consilience.networks.choice.rows import Rows, like_module
from consilience.networks.descriptions.description import Description
from consilience.networks.descriptions.input_parts import described_arguments
from consilience.networks.synthetic.draws import draw_inputs

N_OF_SITE = 1000
"""Inputs drawn as one site describes them, by which it is seen whether such inputs are like its own: a standard error
of 1 % at most. Chosen by hand."""


@dataclass(frozen=True)
class ExcessErrors:
    """By how much more often networks err on inputs drawn as their site describes them than on its own."""

    mean: float  # size of the excess, over the observations of the sites that say their error and their classes
    is_harder: bool = True  # whether synthetic inputs are harder than real ones, in the mean


def excess_errors(
    descriptions: Sequence[Description | None],
    answers_of: Callable[[int, Rows], Array],
    module: nn.Module,
    rng: np.random.Generator,
) -> ExcessErrors:
    """Return by how much more often the sites' networks err on synthetic inputs.

    `answers_of` takes the number of a site and inputs, on the device and in the precision of `module`, and returns what
    its network answers (n, C).
    """
    excesses, observations = [0.0] * len(descriptions), [0.0] * len(descriptions)
    for site, (said, stream) in enumerate(zip(descriptions, rng.spawn(len(descriptions)), strict=True)):
        if said is not None and said.own_error is not None and (said.class_moments or said.class_tokens):
            drawn = draw_inputs([said], N_OF_SITE, stream, labelled=True)
            inputs = Rows(described_arguments(said, like_module(drawn.inputs, module)))
            answers = answers_of(site, inputs).argmax(axis=1)
            excesses[site] = float(np.mean(answers != np.asarray(drawn.labels))) - said.own_error
            observations[site] = said.n_observations
    if not any(observations):
        return ExcessErrors(0.0)
    sizes, signed = (float(np.average(of, weights=observations)) for of in (np.abs(excesses), excesses))
    return ExcessErrors(sizes, signed >= 0.0)
