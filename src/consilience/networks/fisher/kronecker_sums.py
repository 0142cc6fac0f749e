"""Sums of the Kronecker factors of a network's layers over observations, from forward and backward passes.

One forward pass gives what every layer reads, one backward pass for each column of the square root of the information
of the outputs (``likelihoods``) gives the gradients at what it answers. Calls of a layer at several positions, or more
than once, add up (Grosse and Martens 2016). Only sums leave this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.checks import AnyArray
from consilience.networks.fisher.information import Likelihood
from consilience.networks.fisher.kronecker import (
    OBSERVATIONS_PER_SIZE,
    KroneckerFactors,
    as_stored,
    parameter_names,
    reduced,
    without_rare_rows,
)
from consilience.networks.fisher.likelihoods import output_columns
from consilience.networks.fisher.parameter_uses import LinearUse
from consilience.networks.fisher.sample_gradients import (
    ClosedFormGradients,
    GradientMethod,
    PerSampleBackward,
    PerSampleGradients,
    batch_rows,
)
from consilience.networks.repair.partial_forward import batch_length, is_layer
from consilience.networks.torch_modules import aliases_of_module

MAX_EXACT_OUTPUTS = 20
"""Outputs whose expectation is exact, a backward pass for each; of more, outcomes are drawn. The specification's bound,
for time."""

MAX_OBSERVATIONS_AT_ONCE = 256
"""Observations in one pass, at most. Chosen by hand; only speed and memory depend on it."""

MAX_ENTRIES_AT_ONCE = 2**24
"""Entries of inputs and outputs of layers in memory at once (64 MiB): patches of a convolution are as many times as
large as its input as its kernel has entries. Chosen by hand; only speed and memory depend on it."""


@dataclass(eq=False)
class _Deviations:
    """Counts of the observations in which a column of what a layer reads, or answers, is not what it mostly is.

    That is zero; of inputs also their median over the first pass, which is the other value of a scaled indicator.
    """

    has_median: bool  # whether the median counts too
    _usual: list[Tensor] = field(default_factory=list)  # (groups, 1, k) each
    _counts: list[Tensor] = field(default_factory=list)  # (groups, k) each
    _in_pass: list[Tensor] = field(default_factory=list)  # (n, groups, k) each: of the observations of this pass

    def start_pass(self) -> None:
        """Count the observations of the pass that has ended."""
        if self._in_pass:
            of_pass = [differs.sum(dim=0) for differs in self._in_pass]
            self._counts = [a + b for a, b in zip(self._counts, of_pass, strict=True)] if self._counts else of_pass
        self._in_pass = []

    def add(self, values: Tensor) -> None:
        """Add values (n, groups, positions, k) of the observations of this pass."""
        if not self._usual:
            rows = _by_group(values)
            self._usual = [torch.zeros_like(rows[:, :1])]
            if self.has_median:
                self._usual.append(rows.median(dim=1, keepdim=True).values)
        differs = [(values != usual).any(dim=2) for usual in self._usual]
        self._in_pass = [a | b for a, b in zip(self._in_pass, differs, strict=True)] if self._in_pass else differs

    def is_rare(self, min_count: float) -> AnyArray:
        """Return which columns (groups, k) are not what they mostly are in some, but fewer observations."""
        self.start_pass()
        return torch.stack([(of > 0) & (of < min_count) for of in self._counts]).any(dim=0).cpu().numpy()


@dataclass(frozen=True, eq=False)
class KroneckerSums:
    """Sums over the observations seen so far."""

    layers: dict[str, bool]  # path of every layer that has factors, and whether its bias counts among what it reads
    _inputs: dict[str, Tensor] = field(default_factory=dict)
    _outputs: dict[str, Tensor] = field(default_factory=dict)
    _n_rows: dict[str, int] = field(default_factory=dict)  # observations times positions
    _last_use: dict[str, LinearUse] = field(default_factory=dict)
    _read: dict[str, _Deviations] = field(default_factory=dict)
    _answered: dict[str, _Deviations] = field(default_factory=dict)

    @classmethod
    def start(cls, backward: PerSampleBackward, batch: Any) -> KroneckerSums:
        """Return sums over no observation, of the linear layers and convolutions whose gradients factorise.

        These are the ones whose trained weights belong to one layer alone, for which the closed form of the gradient is
        right: tried on a few observations.
        """
        right, uses = backward.closed_form_parameters(batch), backward.recorded(batch)
        tied = set(aliases_of_module(backward.module).values())
        layers: dict[str, bool] = {}
        for path, part in backward.module.named_modules():
            weight, bias = parameter_names(path)
            if not is_layer(part) or weight not in right or weight in tied:
                continue
            has_bias = bias in backward.parameters
            if has_bias and (bias not in right or bias in tied):
                continue
            of_weight = [use for use in uses if use.parameter == weight]
            if all(isinstance(use, LinearUse) for use in of_weight):
                layers[path] = has_bias
        return cls(layers)

    @property
    def parameters(self) -> set[str]:
        """Names of the parameters that the factors inform."""
        return {name for path, has_bias in self.layers.items() for name in parameter_names(path)[: 1 + has_bias]}

    def add(self, gradients: PerSampleGradients) -> None:
        """Add what layers read in a pass, once, and the gradients of one column of outputs."""
        if not isinstance(gradients, ClosedFormGradients):
            raise TypeError("factors need the inputs of layers, which closed forms of gradients have")
        for path, has_bias in self.layers.items():
            weight, _ = parameter_names(path)
            uses = [use for use in gradients.uses[weight] if isinstance(use, LinearUse)]
            is_new_pass = self._last_use.get(path) is not uses[0]
            self._last_use[path] = uses[0]
            of_inputs = self._read.setdefault(path, _Deviations(has_median=True))
            of_outputs = self._answered.setdefault(path, _Deviations(has_median=False))
            if is_new_pass:
                of_inputs.start_pass()
                of_outputs.start_pass()
            for use in uses:
                at_output = use.output_gradients(gradients.output_gradients[id(use.output)])  # (n, groups, t, o)
                _accumulate(self._outputs, path, _by_group(at_output))
                of_outputs.add(at_output)
                if is_new_pass:
                    of_inputs.add(use.inputs)
                    read = _by_group(use.inputs)  # (groups, n * t, i)
                    ones = read.new_ones(*read.shape[:2], 1)
                    _accumulate(self._inputs, path, torch.cat([read, ones], dim=2) if has_bias else read)
                    self._n_rows[path] = self._n_rows.get(path, 0) + read.shape[1]

    def factors(self, n_observations: int, min_count: float) -> tuple[dict[str, KroneckerFactors], list[str]]:
        """Return the factors by layer, in the precision of a file, and the layers of which only diagonals leave.

        Of columns that fewer than `min_count` observations make non-zero only the diagonal leaves.
        """
        layers, only_diagonals = {}, []
        for path, has_bias in self.layers.items():
            inputs = (self._inputs[path] / n_observations).cpu().numpy()
            outputs = (self._outputs[path] / self._n_rows[path]).cpu().numpy()
            factors = [reduced((of + of.transpose(0, 2, 1)) / 2, n_observations) for of in (inputs, outputs)]
            if n_observations < OBSERVATIONS_PER_SIZE * max(factors[0].shape[1], factors[1].shape[1]):
                only_diagonals.append(path or "the network")
            is_rare_input = self._read[path].is_rare(min_count)
            if has_bias:  # the column of ones is that of all observations
                is_rare_input = np.pad(is_rare_input, ((0, 0), (0, 1)))
            factors[0] = without_rare_rows(factors[0], is_rare_input)
            factors[1] = without_rare_rows(factors[1], self._answered[path].is_rare(min_count))
            layers[path] = as_stored(KroneckerFactors(factors[0], factors[1], has_bias))
        return layers, only_diagonals


def _by_group(values: Tensor) -> Tensor:
    """Return (groups, n * positions, k) of values (n, groups, positions, k)."""
    return values.transpose(0, 1).flatten(1, 2)


def _accumulate(sums: dict[str, Tensor], path: str, rows: Tensor) -> None:
    """Add the products of rows (groups, m, k) to the sums of a layer, float64.

    In single precision the sums of very many rows have negative eigenvalues, which readers refuse.
    """
    rows = rows.to(torch.float64)
    products = rows.transpose(1, 2) @ rows
    sums[path] = sums[path] + products if path in sums else products


def kronecker_factors(
    backward: PerSampleBackward,
    inputs: Any,
    likelihood: Likelihood,
    noise: float,
    generator: torch.Generator,
    min_count: float,
) -> tuple[dict[str, KroneckerFactors], list[str]]:
    """Return the factors of a network's layers over some inputs, and the layers of which only diagonals leave.

    Inputs (n, ...) are two or more. A column of a factor that fewer than `min_count` observations make non-zero leaves
    as its diagonal.
    """
    sums = KroneckerSums.start(backward, inputs)
    if not sums.layers:
        return {}, []
    step = observations_at_once(backward, inputs)
    for first in range(0, batch_length(inputs), step):
        rows = batch_rows(inputs, slice(first, first + step))
        outputs, backward_pass = backward.forward(rows, GradientMethod.CLOSED_FORMS)
        n_draws = None if outputs[0].numel() <= MAX_EXACT_OUTPUTS else 1
        for column in output_columns(outputs, likelihood, noise, n_draws, generator):
            sums.add(backward_pass(column))
    return sums.factors(batch_length(inputs), min_count)


def observations_at_once(backward: PerSampleBackward, batch: Any) -> int:
    """Return how many observations go through a network together."""
    entries = max(1, backward.entries_per_observation(batch))
    return max(1, min(MAX_OBSERVATIONS_AT_ONCE, MAX_ENTRIES_AT_ONCE // entries))
