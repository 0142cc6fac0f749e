"""Fisher information of a torch network on the data of a site: its diagonal, or its leading directions too.

    F = sum_n sum_c (J_n^T s_nc) (J_n^T s_nc)^T,    J_n = d f(x_n) / d theta,    s_nc as in ``likelihoods``,

exactly, or with outcomes drawn from the model. Rows J^T s of single observations betray inputs (a row of a linear
layer's is an output's gradient times the input), so they never leave: what leaves is the sum of their squares, and the
singular directions of all of them together, both from no fewer than a minimum of observations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from consilience.errors import InputError
from consilience.networks.fisher.information import FisherInformation, Likelihood, parameter_digest
from consilience.networks.fisher.likelihoods import drawn, labels_drawn, square_root
from consilience.networks.fisher.sample_gradients import Pulled, SampleGradients, length, rows_of
from consilience.networks.fisher.singular_directions import Directions
from consilience.networks.landscape.evaluation import evaluation_mode
from consilience.networks.module_inputs import first_line
from consilience.networks.repair.partial_forward import as_batches, call
from consilience.networks.torch_modules import aliases_of_module, arrays_of_module

Progress = Callable[[int, int], None]
Named = dict[str, Tensor]

_ENTRIES = 2**25
"""Numbers of all observations together that are in memory at once."""

_BEHIND_EACH = 4
"""Observations behind each direction that leaves, at least."""

_LINEAR = 1e-4
"""A network is linear in its parameters when the mean of two steps to either side differs by less than this share."""


def fisher_information(
    module: nn.Module,
    batches: Any,
    factors: bool,
    likelihood: Likelihood,
    noise: float,
    samples: int | None,
    rank: int | None,
    observations: float | None,
    prior_precision: float | None,
    minimum: int,
    rng: np.random.Generator,
    progress: Progress,
    compat: bool = False,
) -> FisherInformation:
    """Return the Fisher information of a network's trained parameters; see `consilience.fisher`."""
    parameters = {name: values for name, values in module.named_parameters() if values.requires_grad}
    if not parameters:
        raise InputError("module: has no parameter with requires_grad, so there is nothing to inform; set it")
    given = as_batches(batches)
    total = sum(map(length, given)) if isinstance(given, (list, Tensor)) else 0
    sums = _sums(parameters, factors, rank, compat)
    seen, linear = 0, False
    size = sum(values.numel() for values in parameters.values())
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    with evaluation_mode(module):
        gradients = SampleGradients(module, parameters)
        together: bool | None = None
        step = 1
        for batch in given:
            if not seen:
                _refuse_unfit(gradients, batch)
                linear = _is_linear(module, parameters, batch, generator)
            if together is None and length(batch) > 1:  # one observation alone says nothing of whether several meet
                together = _in_single_precision(gradients).fits(batch)
                room = max(gradients.entries(batch) if together else size, size if factors else 1)
                step = max(1, min(_ENTRIES // max(1, room), 512))
            for start in range(0, length(batch), step):
                outputs, pull = gradients.run(rows_of(batch, slice(start, start + step)), bool(together))
                _refuse_outputs(outputs, likelihood)
                for column in _columns(outputs, likelihood, noise, samples, generator, compat):
                    sums.add(pull(column))
                seen += len(outputs)
                progress(seen, max(total, seen))
    if seen < minimum:
        raise InputError(
            f"batches: Fisher information over {seen} observations may betray single ones; give at least {minimum}, or "
            "allow fewer with minimum="
        )
    if observations is not None and observations < seen:
        raise InputError(f"observations: {observations:g} are fewer than the {seen} that were looked at; leave it out")
    residual, rows = sums.finished(seen)
    scale = 1.0 if compat or observations is None else observations / seen
    state = arrays_of_module(module)
    return FisherInformation(
        residual={name: _written(values * scale, parameters[name]) for name, values in residual.items()},
        factors={name: _written(values * scale**0.5, parameters[name]) for name, values in rows.items()},
        observations=float(seen if observations is None else observations),
        prior_precision=prior_precision,
        likelihood=likelihood,
        noise=noise,
        seen=seen,
        samples=1 if compat else samples,
        linear=linear,
        compat=compat,
        digest=parameter_digest(state, parameters),
        aliases={alias: name for alias, name in aliases_of_module(module).items() if name in parameters},
    )


class _Sums(ABC):
    """What is summed over observations."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """Start with nothing."""
        self.parameters = parameters

    @abstractmethod
    def add(self, pulled: Pulled) -> None:
        """Take in the gradients of some observations."""

    @abstractmethod
    def finished(self, seen: int) -> tuple[Named, Named]:
        """Return the residual and the factors of what so many observations gave."""

    def zeros(self) -> Named:
        """Return zeros of the parameters' shapes."""
        return {name: torch.zeros_like(v, dtype=torch.float64) for name, v in self.parameters.items()}

    def flat(self, pulled: Pulled) -> Tensor:
        """Return the gradients of all parameters in rows (n, P)."""
        return torch.cat([self._rows(pulled.gradients(name)) for name in self.parameters], dim=1)

    @staticmethod
    def _rows(gradients: Tensor) -> Tensor:
        return gradients.reshape(len(gradients), -1)

    def split(self, rows: Tensor) -> Named:
        """Return rows (..., P) by parameter."""
        parts = torch.split(rows, [values.numel() for values in self.parameters.values()], dim=-1)
        return {
            name: part.reshape((*rows.shape[:-1], *values.shape)).contiguous()
            for (name, values), part in zip(self.parameters.items(), parts, strict=True)
        }


class _Squares(_Sums):
    """The diagonal."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """Start with zeros."""
        super().__init__(parameters)
        self.total = self.zeros()

    def add(self, pulled: Pulled) -> None:
        """Add squares."""
        for name, total in self.total.items():
            total += pulled.squares(name)

    def finished(self, seen: int) -> tuple[Named, Named]:
        """Return the diagonal."""
        del seen
        return self.total, {}


class _Sketch(_Sums):
    """The leading directions, and what they leave of the diagonal."""

    def __init__(self, parameters: Mapping[str, Tensor], rank: int | None) -> None:
        """Start without rows."""
        super().__init__(parameters)
        self.rank = rank
        self.directions = Directions(sum(values.numel() for values in parameters.values()), rank)

    def add(self, pulled: Pulled) -> None:
        """Add rows."""
        self.directions.add(self.flat(pulled))

    def finished(self, seen: int) -> tuple[Named, Named]:
        """Return what the directions leave, and the directions.

        Nearly as many directions as there were rows can be taken apart into the rows again, and these into inputs: so
        there is one for every four observations at most, unless all were asked for.
        """
        kept, left = self.directions.finished(None if self.rank is None else max(1, seen // _BEHIND_EACH))
        return self.split(left), self.split(kept)


class _Published(_Sums):
    """The mean gradient g as the only factor, and the sum of squares less g^2: what the published code keeps."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """Start with zeros."""
        super().__init__(parameters)
        self.total, self.squares = self.zeros(), self.zeros()

    def add(self, pulled: Pulled) -> None:
        """Add gradients and their squares."""
        for name in self.parameters:
            self.total[name] += pulled.gradients(name).sum(dim=0)
            self.squares[name] += pulled.squares(name)

    def finished(self, seen: int) -> tuple[Named, Named]:
        """Return the sum of squares less the factor's, and the factor."""
        means = {name: values / seen for name, values in self.total.items()}
        left = {name: (values - means[name].square()).clamp(min=0) for name, values in self.squares.items()}
        return left, {name: values[None] for name, values in means.items()}


def _sums(parameters: Mapping[str, Tensor], factors: bool, rank: int | None, compat: bool) -> _Sums:
    if compat:
        return _Published(parameters)
    return _Sketch(parameters, rank) if factors else _Squares(parameters)


def _columns(
    outputs: Tensor,
    likelihood: Likelihood,
    noise: float,
    samples: int | None,
    generator: torch.Generator,
    compat: bool,
) -> Iterator[Tensor]:
    """Yield gradients of the outputs, a column for each row of an observation's information."""
    if compat:
        return iter([labels_drawn(outputs, generator)])
    if samples is None:
        return square_root(outputs, likelihood, noise)
    return drawn(outputs, likelihood, noise, samples, generator)


def _in_single_precision(gradients: SampleGradients) -> SampleGradients:
    """Return the same, of a copy in single precision where the network has less, whose rounding would hide faults."""
    if all(torch.finfo(values.dtype).bits >= 32 for values in gradients.parameters.values()):
        return gradients
    module = deepcopy(gradients.module).float()
    named = dict(module.named_parameters())
    return SampleGradients(module, {name: named[name] for name in gradients.parameters})


def _refuse_unfit(gradients: SampleGradients, batch: Any) -> None:
    """Raise where the network does not take what it is given.

    Raises
    ------
    InputError
        Saying what the network says.
    """
    try:
        gradients.run(rows_of(batch, slice(0, 1)), together=False)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"batches: the network does not take these inputs ({first_line(error)})") from error


def _written(values: Tensor, parameter: Tensor) -> Tensor:
    """Return sums in the precision of their parameter, single at least."""
    return values.to(parameter.device, torch.promote_types(parameter.dtype, torch.float32))


def _refuse_outputs(outputs: Tensor, likelihood: Likelihood) -> None:
    if likelihood == "categorical" and (outputs.ndim < 2 or outputs.shape[1] < 2):
        raise InputError(
            f"the network answers shape {tuple(outputs.shape)}; a categorical likelihood needs logits of two classes "
            "or more on the second axis (likelihood='bernoulli' takes a logit alone)"
        )


def _is_linear(module: nn.Module, parameters: Mapping[str, Tensor], batch: Any, generator: torch.Generator) -> bool:
    """Return whether outputs are linear in the parameters, tried with a step to either side."""
    few = rows_of(batch, slice(0, 8))
    steps = {
        name: torch.randn(v.shape, generator=generator).to(v) * (v.detach().square().mean().sqrt() + 0.1)
        for name, v in parameters.items()
    }

    def at(sign: float) -> Tensor:
        moved = {name: values.detach() + sign * steps[name] for name, values in parameters.items()}
        with torch.no_grad():
            return call(_Placed(module, moved), few)

    middle, up, down = at(0.0), at(1.0), at(-1.0)
    if not isinstance(middle, Tensor):
        return False
    return bool((up + down - 2.0 * middle).abs().max() <= _LINEAR * (up - down).abs().max())


class _Placed(nn.Module):
    """A network with other values for its parameters."""

    def __init__(self, module: nn.Module, values: Mapping[str, Tensor]) -> None:
        """Take the network and the values."""
        super().__init__()
        self.module, self.values = module, values

    def forward(self, *given: Any, **named: Any) -> Any:
        """Return what it answers."""
        return functional_call(self.module, dict(self.values), given, named)
