"""Fisher information of a torch network on the data of a site: its diagonal, leading directions, or Kronecker factors.

With x_n the observations, theta the trained parameters and f the outputs,

    F = sum_n sum_c (J_n^T s_nc) (J_n^T s_nc)^T,    J_n = d f(x_n) / d theta,

where s_nc are the columns of a square root of the information of the outputs (`likelihoods`): exact ones, or scores of
outcomes drawn from the model. Each J_n^T s_nc is one row of per-sample gradients (`sample_gradients`).

Such rows of single observations betray inputs (a row of a linear layer's is an output's gradient times the input), so
they never leave. What leaves is the sum of their squares, the singular directions of all of them together
(`GradientSketch`), or the second moments of what layers read and of the gradients at what they answer
(`kronecker_sums`), all from no fewer than a minimum of observations.

**Streaming low-rank sketch of gradients**: leading singular directions, and the diagonal that they leave.

Rows R (m, P), one for each gradient, arrive in pieces and are never in memory together. The sketch is Sigma V^T of the
singular value decomposition R = U Sigma V^T, cut to a rank, which has (nearly) the same product R^T R; the difference
of the diagonals, which is known exactly, is returned beside it. When the buffer is full it is compressed to its leading
directions; `rank` plus some more are kept on the way, since directions that are cut off early may have grown later.

The rows themselves are gone: U R has the same product R^T R for every rotation U.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consilience.core.caller import warn_caller
from consilience.core.min_count import MIN_COUNT
from consilience.errors import InputError, WithheldWarning
from consilience.networks.fisher.information import FisherInformation, Kind, Likelihood, parameter_digest
from consilience.networks.fisher.kronecker import few_observations_text
from consilience.networks.fisher.kronecker_sums import MAX_EXACT_OUTPUTS, KroneckerSums, observations_at_once
from consilience.networks.fisher.likelihoods import output_columns
from consilience.networks.fisher.sample_gradients import (
    GradientMethod,
    ModuleWithParameters,
    PerSampleBackward,
    PerSampleGradients,
    batch_rows,
)
from consilience.networks.module_inputs import first_line
from consilience.networks.repair.partial_forward import as_batches, batch_length, call_module
from consilience.networks.torch_modules import aliases_of_module, arrays_of_module, evaluating

Progress = Callable[[int, int], None]
NamedTensors = dict[str, Tensor]

_MAX_GRADIENT_ENTRIES = 2**25
"""Entries of per-sample gradients of all parameters in memory at once (128 MiB in float32). Chosen by hand; only speed
and memory depend on it, and nobody has measured other values."""

_MAX_LAYER_ENTRIES = 2**23
"""Entries of inputs and outputs of layers in memory at once, for closed forms (32 MiB). 2**25 took 1.2 times as long
for a ConvNet with maps of 32 x 32, and as long for smaller networks."""

_MAX_VECTORISED_ENTRIES = 2**21
"""Entries of per-sample gradients that torch.func makes at once (8 MiB). 2**25 took three times as long for perceptrons
of 50,000 and 110,000 parameters, and as long for a ConvNet of 22,000."""

_MAX_OBSERVATIONS_AT_ONCE = 512
"""Observations in one backward pass, at most. Chosen by hand; nobody has measured other values."""

_OBSERVATIONS_PER_DIRECTION = 4
"""Observations behind each direction that leaves, at least. From 120 directions of 120 digits all 120 digits were
recovered; from one direction for every four observations the same attack recovered none (docs/adr/0013)."""

_LINEARITY_TOLERANCE = 1e-4
"""A network is linear in its parameters when the mean of two opposite steps differs from the middle by less than this
share of their difference. Chosen by hand: above single precision's rounding; nobody has measured other values."""

_N_LINEARITY_OBSERVATIONS = 8
"""Observations on which linearity is tried. Chosen by hand; nobody has measured other values."""


def fisher_information(
    module: nn.Module,
    batches: Any,
    kind: Kind,
    likelihood: Likelihood,
    noise: float,
    n_draws: int | None,
    rank: int | None,
    n_observations: float | None,
    prior_precision: float | None,
    minimum: int,
    rng: np.random.Generator,
    progress: Progress,
) -> FisherInformation:
    """Return the Fisher information of a network's trained parameters; see `consilience.fisher`."""
    parameters = {name: values for name, values in module.named_parameters() if values.requires_grad}
    if not parameters:
        text = "has no parameter with requires_grad, so there is nothing to inform"
        raise InputError("module", text, "set it", "E-NEEDED")
    inputs = as_batches(batches)
    total = sum(map(batch_length, inputs)) if isinstance(inputs, (list, Tensor)) else 0  # 0: a stream of unknown length
    accumulator: _Accumulator = _DiagonalAccumulator(parameters)
    if kind == "factors":
        accumulator = _LowRankAccumulator(parameters, rank)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    with evaluating(module, keeps_gradients=True):
        backward = PerSampleBackward(module, parameters)
        measured = _InformationSums(backward, kind, likelihood, noise, n_draws, generator, accumulator)
        for batch in inputs:
            if not measured.n_seen:
                measured.begin(batch)
            measured.choose_method(batch)
            for start in range(0, batch_length(batch), measured.step):
                measured.add(batch_rows(batch, slice(start, start + measured.step)))
                progress(measured.n_seen, max(total, measured.n_seen))
    n_seen = measured.n_seen
    _refuse_numbers(n_seen, minimum, n_observations)
    residual, rows_by_parameter = measured.accumulator.result(n_seen)
    layers, only_diagonals = measured.sums.factors(n_seen, MIN_COUNT)
    if only_diagonals:
        warn_caller(few_observations_text(n_seen, only_diagonals), WithheldWarning)
    # F is a sum over observations, so that factors, whose squares are summed, scale with the root.
    observations = float(n_seen if n_observations is None else n_observations)
    scale = observations / n_seen
    return FisherInformation(
        residual={name: _stored(values * scale, parameters[name]) for name, values in residual.items()},
        factors={name: _stored(values * scale**0.5, parameters[name]) for name, values in rows_by_parameter.items()},
        layers=layers,
        observations=observations,
        prior_precision=prior_precision,
        likelihood=likelihood,
        noise=noise,
        seen=n_seen,
        samples=measured.n_draws,
        linear=measured.is_linear,
        digest=parameter_digest(arrays_of_module(module), parameters),
        aliases={alias: name for alias, name in aliases_of_module(module).items() if name in parameters},
    )


def _refuse_numbers(n_seen: int, minimum: int, n_observations: float | None) -> None:
    """Raise for too few observations, and for a number of all that is smaller than that of those seen."""
    if n_seen < minimum:
        text = f"Fisher information over {n_seen} observations may betray single ones"
        raise InputError("batches", text, f"give at least {minimum}, or allow fewer with `minimum=`", "E-FEW")
    if n_observations is not None and n_observations < n_seen:
        text = f"{n_observations:g} are fewer than the {n_seen} that were looked at"
        raise InputError("n_observations", text, "leave it out", "E-FEW")


class _DiagonalAccumulator:
    """The diagonal: sums over observations of squared gradients."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = parameters
        self.total = {name: torch.zeros_like(v, dtype=torch.float64) for name, v in parameters.items()}

    def add(self, gradients: PerSampleGradients) -> None:
        for name, total in self.total.items():
            total += gradients.squares(name)

    def result(self, n_seen: int) -> tuple[NamedTensors, NamedTensors]:
        """Return the residual and the factors, by parameter: the diagonal, and no factors."""
        return self.total, {}


class _LowRankAccumulator:
    """The leading singular directions of all gradients, and what they leave of the diagonal."""

    def __init__(self, parameters: Mapping[str, Tensor], rank: int | None) -> None:
        self.parameters, self.rank = parameters, rank
        self.sketch = GradientSketch(sum(values.numel() for values in parameters.values()), rank)

    def add(self, gradients: PerSampleGradients) -> None:
        by_parameter = [gradients.gradients(name) for name in self.parameters]
        self.sketch.add(torch.cat([of_one.reshape(len(of_one), -1) for of_one in by_parameter], dim=1))

    def result(self, n_seen: int) -> tuple[NamedTensors, NamedTensors]:
        """Return the residual of the directions, and the directions, by parameter.

        Nearly as many directions as there were rows can be taken apart into the rows again, and these into inputs: so
        there is one for every four observations at most, unless all were asked for.
        """
        max_rank = None if self.rank is None else max(1, n_seen // _OBSERVATIONS_PER_DIRECTION)
        directions, residual = self.sketch.result(max_rank)
        return self._by_parameter(residual), self._by_parameter(directions)

    def _by_parameter(self, rows: Tensor) -> NamedTensors:
        """Return rows (..., P) by parameter, (..., *shape) each."""
        parts = torch.split(rows, [values.numel() for values in self.parameters.values()], dim=-1)
        return {
            name: part.reshape((*rows.shape[:-1], *values.shape)).contiguous()
            for (name, values), part in zip(self.parameters.items(), parts, strict=True)
        }


_Accumulator = _DiagonalAccumulator | _LowRankAccumulator


@dataclass(eq=False)
class _InformationSums:
    """What is summed over the observations seen so far, and how their gradients are taken."""

    backward: PerSampleBackward
    kind: Kind
    likelihood: Likelihood
    noise: float
    n_draws: int | None
    generator: torch.Generator
    accumulator: _Accumulator  # of all parameters, or of those whose information does not factorise
    sums: KroneckerSums = field(default_factory=lambda: KroneckerSums({}))  # of layers whose information factorises
    method: GradientMethod = GradientMethod.ONE_BY_ONE
    step: int = 1  # observations that go backward together
    n_seen: int = 0
    is_linear: bool = False
    _is_chosen: bool = False

    def begin(self, batch: Any) -> None:
        """Look at the first batch: whether the network takes it, is linear, and which layers factorise."""
        parameters = self.backward.parameters
        _refuse_unfit(self.backward, batch)
        self.is_linear = _is_linear(self.backward.module, parameters, batch, self.generator)
        if self.kind == "kronecker":
            self.sums = KroneckerSums.start(self.backward, batch)
            rest = {name: values for name, values in parameters.items() if name not in self.sums.parameters}
            self.accumulator = _DiagonalAccumulator(rest)

    def choose_method(self, batch: Any) -> None:
        """Choose how gradients are taken, once there is a batch of several observations."""
        if self._is_chosen or batch_length(batch) < 2:  # one alone cannot show whether several interact
            return
        self.method, self._is_chosen = _in_single_precision(self.backward).choose_method(batch), True
        self.step = _observations_at_once(self.backward, batch, self.method, self.kind == "factors")
        if self.sums.layers:
            self.step = min(self.step, observations_at_once(self.backward, batch))

    def add(self, rows: Any) -> None:
        """Add the gradients of some observations."""
        for way, parts in self._passes():
            outputs, backward_pass = self.backward.forward(rows, way)
            if self.likelihood == "categorical" and (outputs.ndim < 2 or outputs.shape[1] < 2):
                text = f"the network answers shape {tuple(outputs.shape)}; a categorical likelihood needs logits of two"
                text += " classes or more on the second axis (`likelihood='bernoulli'` takes a logit alone)"
                raise InputError("", text, code="E-SHAPE")
            if self.kind == "kronecker" and self.n_draws is None and outputs[0].numel() > MAX_EXACT_OUTPUTS:
                self.n_draws = 1
            for column in output_columns(outputs, self.likelihood, self.noise, self.n_draws, self.generator):
                gradients = backward_pass(column)
                for part in parts:
                    part.add(gradients)
        self.n_seen += batch_length(rows)

    def _passes(self) -> list[tuple[GradientMethod, list[_Accumulator | KroneckerSums]]]:
        """Return how gradients are taken and what they are added to: one pass where one will do for all."""
        if not self.sums.layers:
            return [(self.method, [self.accumulator])]
        if not self.accumulator.parameters:
            return [(GradientMethod.CLOSED_FORMS, [self.sums])]
        if self.method is GradientMethod.CLOSED_FORMS:
            return [(self.method, [self.accumulator, self.sums])]
        return [(self.method, [self.accumulator]), (GradientMethod.CLOSED_FORMS, [self.sums])]


def _in_single_precision(backward: PerSampleBackward) -> PerSampleBackward:
    """Return the same, of a copy in single precision where the network has less, whose rounding would hide faults."""
    if all(torch.finfo(values.dtype).bits >= 32 for values in backward.parameters.values()):
        return backward
    module = deepcopy(backward.module).float()
    named = dict(module.named_parameters())
    return PerSampleBackward(module, {name: named[name] for name in backward.parameters})


def _observations_at_once(backward: PerSampleBackward, batch: Any, method: GradientMethod, factors: bool) -> int:
    """Return how many observations go backward together, by what is in memory of each of them."""
    n_parameters = sum(values.numel() for values in backward.parameters.values())
    limits = [_MAX_OBSERVATIONS_AT_ONCE]
    if method is GradientMethod.CLOSED_FORMS:
        limits.append(_MAX_LAYER_ENTRIES // max(1, backward.entries_per_observation(batch)))
    if method is GradientMethod.VECTORISED:
        limits.append(_MAX_VECTORISED_ENTRIES // n_parameters)
    if factors or method is GradientMethod.ONE_BY_ONE:
        limits.append(_MAX_GRADIENT_ENTRIES // n_parameters)
    return max(1, min(limits))


def _refuse_unfit(backward: PerSampleBackward, batch: Any) -> None:
    """Raise where the network does not take its inputs."""
    try:
        backward.forward(batch_rows(batch, slice(0, 1)), GradientMethod.ONE_BY_ONE)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("batches", f"the network does not take these inputs ({first_line(error)})") from error


def _stored(values: Tensor, parameter: Tensor) -> Tensor:
    """Return sums in the precision of their parameter, single at least, on its device."""
    return values.to(parameter.device, torch.promote_types(parameter.dtype, torch.float32))


def _is_linear(module: nn.Module, parameters: Mapping[str, Tensor], batch: Any, generator: torch.Generator) -> bool:
    """Return whether outputs are linear in the parameters: f(theta + d) + f(theta - d) = 2 f(theta) for a random d."""
    trial = batch_rows(batch, slice(0, _N_LINEARITY_OBSERVATIONS))
    # Steps as large as the parameters; the 0.1 moves parameters that are all zero.
    steps = {
        name: torch.randn(v.shape, generator=generator).to(v) * (v.detach().square().mean().sqrt() + 0.1)
        for name, v in parameters.items()
    }

    def outputs_at(sign: float) -> Tensor:
        moved = {name: values.detach() + sign * steps[name] for name, values in parameters.items()}
        with torch.no_grad():
            return call_module(ModuleWithParameters(module, moved), trial)

    middle, up, down = outputs_at(0.0), outputs_at(1.0), outputs_at(-1.0)
    if not isinstance(middle, Tensor):
        return False
    return bool((up + down - 2.0 * middle).abs().max() <= _LINEARITY_TOLERANCE * (up - down).abs().max())


_RESIDUAL_ROUNDING_UNITS = 100.0
"""Residuals below this many rounding units (eps) of the whole diagonal entry count as zero. Chosen by hand: what the
sum of some hundred squares rounds to; nobody has measured other values."""

_MIN_OVERSAMPLING = 64
"""Directions kept beyond the rank while rows arrive, at least; a quarter of the rank where that is more. Chosen by
hand; nobody has measured other values."""


class GradientSketch:
    """A sketch of rows of length P, of as many directions as its rank says, or all that there are."""

    def __init__(self, n_parameters: int, rank: int | None) -> None:
        self._rank = n_parameters if rank is None else min(rank, n_parameters)
        self._capacity = self._rank + max(_MIN_OVERSAMPLING, self._rank // 4)
        self._rows: Tensor | None = None  # buffer (2 * capacity, P), of which the first n_rows are filled
        self._n_rows = 0
        self._squares = torch.zeros(n_parameters, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Add rows (m, P)."""
        if self._rows is None:
            self._rows = rows.new_empty(2 * self._capacity, rows.shape[1])
        self._squares += rows.square().sum(dim=0, dtype=torch.float64).cpu()
        for part in torch.split(rows, len(self._rows) - self._capacity):
            if self._n_rows + len(part) > len(self._rows):
                self._compress(self._capacity)
            self._rows[self._n_rows : self._n_rows + len(part)] = part
            self._n_rows += len(part)

    def result(self, max_rank: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the directions (r, P), at most `max_rank`, and what they lack of the sums of squares (P,)."""
        directions = self._compress(self._rank if max_rank is None else min(self._rank, max_rank))
        residual = self._squares - directions.square().sum(dim=0, dtype=torch.float64).cpu()
        # A difference of nearly equal sums: what is left of it below the rounding may be negative.
        rounding = _RESIDUAL_ROUNDING_UNITS * torch.finfo(directions.dtype).eps * self._squares
        return directions, torch.where(residual > rounding, residual, torch.zeros_like(residual))

    def _compress(self, rank: int) -> Tensor:
        """Replace rows R by U^T R, U the leading eigenvectors of R R^T; more rows than columns by a triangle first."""
        assert self._rows is not None  # noqa: S101  (narrows the type; there is a row before anything is compressed)
        rows = self._rows[: self._n_rows]
        if len(rows) > rows.shape[1]:
            rows = torch.linalg.qr(rows, mode="r").R  # R^T R is unchanged, and R R^T is (P, P) then
        eigenvectors = torch.linalg.eigh((rows @ rows.T).double()).eigenvectors  # ascending eigenvalues
        directions = eigenvectors[:, -rank:].flip(1).T.to(rows.dtype) @ rows  # (rank, P), the longest first
        self._n_rows = len(directions)
        self._rows[: self._n_rows] = directions
        return directions
