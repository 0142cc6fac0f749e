"""Distillation: a network trained for a bounded number of steps to answer as a teacher does, labels or none.

The loss is KL(t || p) = sum_c t_c (log t_c - log p_c), t the teacher's probabilities and p the student's, at
temperature 1; for regressions the mean squared gap. The student stays in evaluation mode: no dropout, and batch
normalisation with the statistics it has, which inputs of other statistics would spoil. Adam's steps fall linearly to
0. Every few steps the loss is taken on inputs that no step sees; the best network by it is returned, the one at the
start included, so that distillation on inputs that are no good is dropped rather than adopted.

With frozen statistics gamma / sqrt(var) multiplies every step: the learning rate that suits other networks ruins those
with batch normalisation on any inputs. They train the head first, then all layers at a tenth of the rate. Where inputs
are real, or like real ones, or images matched to the networks' statistics, batch normalisation may read the batch
instead (``batch_statistics=True``), and its running statistics follow: then steps have the size that suits other
networks.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from consilience.checks import Array, is_count, is_number
from consilience.core.progress import Progress, seeded, silent
from consilience.errors import InputError, OptionError
from consilience.networks.classes.heads import find_head
from consilience.networks.classes.logits import as_logits
from consilience.networks.module_inputs import refuse_unfit
from consilience.networks.module_outputs import ask, form_of
from consilience.networks.torch_modules import seeded_torch

_Module = TypeVar("_Module", bound=nn.Module)
Inputs = Tensor | Sequence[Tensor]
Loss = Literal["kl", "squared"]
StopReason = Literal["steps", "rises", "time"]

STEPS = 200
"""Steps of Adam: 200 to 250 served 26 federated settings of images; longer was not compared."""

BATCH_NORM_FACTOR = 0.1
"""Factor of the learning rate for all layers of networks with batch normalisation: on a ResNet-14 of 81.9 %, 40 steps
at 1e-3 gave 58.7 %, at 1e-4 81.7 % (on 192 real images 66.8 and 84.6)."""

EVALUATE_EVERY = 25
"""Steps between two evaluations of the loss on held-out inputs. Chosen by hand."""

MAX_RISES = 3
"""Evaluations in a row above the best one so far, after which training stops. Chosen by hand."""

MIN_GAIN, MIN_DIVERGENCE = 1e-6, 1e-9
"""A network is better than the best so far if its held-out loss is lower by this part of it, and a divergence by so
many nats: what logits in single precision round to. So a student that is its teacher stays as it is."""

_EVALUATION_ROWS = 256
"""Inputs that are evaluated at once, for bounded memory. Chosen by hand."""


@dataclass(frozen=True, eq=False)
class Distilled(Generic[_Module]):
    """A distilled network, and how it came about.

    Parameters
    ----------
    module : Module
        The best network by the held-out loss, in evaluation mode; the student as it was where nothing was better.
    steps : int
        Steps that were taken.
    best_step : int
        Step after which the network was the best; 0 for the student as it was.
    history : array of shape (evaluations,)
        Held-out loss at the start and at every evaluation.
    stopped_by : {"steps", "rises", "time"}
        What ended it: all steps taken, a held-out loss that rose, or ``max_seconds``.
    """

    module: _Module
    steps: int
    best_step: int
    history: Array
    stopped_by: StopReason


def distill(
    student: _Module,
    fit_inputs: Inputs,
    targets: Tensor,
    held_inputs: Inputs,
    held_targets: Tensor,
    *,
    loss: Loss = "kl",
    heads: Sequence[tuple[slice, bool]] = (),
    steps: int = STEPS,
    learning_rate: float = 1e-3,
    batch_size: int = 64,
    batch_statistics: bool = False,
    rng: int | np.random.Generator = 0,
    max_seconds: float | None = None,
    progress: Progress = silent,
) -> Distilled[_Module]:
    """Return a network trained to answer as a teacher did; the same seed gives the same bytes on a CPU.

    Parameters
    ----------
    student : Module
        The network at the start, on any device; it is left as it is. Parameters that need no gradient stay.
        Those of 16 bits are trained in 32, and rounded at the end.
    fit_inputs : Tensor of shape (n, ...) or sequence of such
        Inputs to train on, or those of every argument.
    targets : Tensor of shape (n, ..., C)
        The teacher's probabilities for them; for inputs with labels, say the mean of these and of one-hot labels. For
        a regression, its answers.
    held_inputs, held_targets
        As these, for inputs that are not trained on: they decide which network is the best, and when to stop.
    loss : {"kl", "squared"}, optional
        KL(teacher || student), or the mean squared gap. Default: "kl".
    heads : sequence of (slice, bool), optional
        Of a network of several outputs in one row, the columns of each and whether it classifies: the mean of their
        losses counts. Default: one output, of `loss`.
    steps : int, optional
        Steps at most; of networks with batch normalisation half for the head, half for all layers. Default: 200.
    learning_rate : float, optional
        Adam's at the start; it falls linearly to 0. Default: 0.001.
    batch_size : int, optional
        Inputs in a step, two or more where batch normalisation reads the statistics of batches. Default: 64.
    batch_statistics : bool, optional
        Whether batch normalisation reads the statistics of the batch while steps are taken, and its running ones follow
        (all else stays in evaluation mode). For inputs with the statistics of real ones. Default:
        False.
    rng : int or Generator, optional
        Draws the batches. Default: 0.
    max_seconds : float, optional
        Seconds after which no further step is taken; the result then depends on the machine. Default: no limit.
    progress : callable, optional
        Called with the steps that are done and those in all.

    Raises
    ------
    InputError
        For targets that do not fit the inputs or the network's answers, are no probabilities, or not finite; for a
        network without parameters to train.
    OptionError
        For options that are not what they must be.

    References
    ----------
    Hinton, Vinyals and Dean (2015), "Distilling the knowledge in a neural network", at temperature 1.
    """
    _require_options(loss, steps, learning_rate, batch_size, max_seconds)
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    batches, draws = seeded(rng)[1].spawn(2)
    is_short = any(p.is_floating_point() and p.element_size() < 4 for p in student.parameters())
    # Adam's steps are lost to rounding in 16 bits, and the term that keeps it from dividing by zero is zero in float16.
    module = copy.deepcopy(student).float().eval() if is_short else copy.deepcopy(student).eval()
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    fit, held = (
        _Examples(inputs, answers, device, widen=is_short, heads=heads)
        for inputs, answers in ((fit_inputs, targets), (held_inputs, held_targets))
    )
    for name, examples in (("targets", fit), ("held_targets", held)):
        examples.refuse_unfit(name, module, loss)
    if batch_statistics and has_batch_norm(module) and min(batch_size, len(fit)) < 2:
        raise OptionError("batch_size", "batch normalisation reads no variance from one input: expected two or more")
    # What draws numbers in evaluation mode, if anything does, draws them from the seed.
    with seeded_torch(int(draws.integers(2**63))), _recurrent_gradients(module), torch.enable_grad():
        run = _TrainingRun(module, fit, held, loss, batch_size, batches, deadline, progress, steps, batch_statistics)
        for parameters, rate, n_steps in _phases(module, fit.first(), learning_rate, steps, batch_statistics):
            run.train(parameters, rate, n_steps)
            if run.stopped_by == "time":
                break
    run.restore()
    best = module
    if is_short:
        best = copy.deepcopy(student).eval()
        best.load_state_dict(module.state_dict())
    return Distilled(best, run.n_steps, run.best_step, np.array(run.history), run.stopped_by)


@dataclass(eq=False)
class _TrainingRun:
    """Training with its best network so far.

    The steps of several phases are one history; a phase starts from the best network of the phases before it.
    """

    module: nn.Module
    fit: _Examples
    held: _Examples
    loss: Loss
    batch_size: int
    rng: np.random.Generator
    deadline: float | None
    progress: Progress
    total: int
    batch_statistics: bool

    def __post_init__(self) -> None:
        layers = self.module.modules() if self.batch_statistics else ()
        self.norms = [layer for layer in layers if _keeps_statistics(layer)]
        self.n_steps, self.best_step = 0, 0
        self.stopped_by: StopReason = "steps"
        self.history = [self.held.mean_loss(self.module, self.loss)]
        self.best = self._state()

    def train(self, parameters: Sequence[nn.Parameter], learning_rate: float, n_steps: int) -> None:
        """Take steps on some parameters, until all are taken, the held-out loss keeps rising, or the time is up."""
        trained = {id(parameter) for parameter in parameters}
        needs_gradient = {parameter: parameter.requires_grad for parameter in self.module.parameters()}
        for parameter in needs_gradient:
            parameter.requires_grad_(id(parameter) in trained)
        optimiser = torch.optim.Adam(parameters, lr=learning_rate)
        rises, self.stopped_by = 0, "steps"
        order: list[int] = []
        for step in range(1, n_steps + 1):
            if self.deadline is not None and time.monotonic() > self.deadline:
                self.stopped_by = "time"
                break
            if len(order) < min(self.batch_size, len(self.fit)):
                order = self.rng.permutation(len(self.fit)).tolist()
            rows, order = order[: self.batch_size], order[self.batch_size :]
            for group in optimiser.param_groups:
                group["lr"] = learning_rate * (1 - (step - 1) / n_steps)
            optimiser.zero_grad()
            with _reading_batches(self.norms):
                self.fit.losses(self.module, rows, self.loss).mean().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            self.n_steps += 1
            self.progress(min(self.n_steps, self.total), self.total)
            if step % EVALUATE_EVERY == 0 or step == n_steps:
                rises = 0 if self._evaluate() else rises + 1
                if rises == MAX_RISES:
                    self.stopped_by = "rises"
                    break
        for parameter, needed in needs_gradient.items():
            parameter.requires_grad_(needed)
            parameter.grad = None
        self.restore()

    def _evaluate(self) -> bool:
        """Record the held-out loss, and return whether it is the best so far; NaN never is."""
        self.history.append(self.held.mean_loss(self.module, self.loss))
        best = min(self.history[:-1])
        is_best = best - self.history[-1] > MIN_GAIN * best + (MIN_DIVERGENCE if self.loss == "kl" else 0.0)
        if is_best:
            self.best, self.best_step = self._state(), self.n_steps
        return is_best

    def _state(self) -> list[Tensor]:
        return [values.detach().clone() for values in self._changed()]

    def _changed(self) -> list[Tensor]:
        """Return what steps change: parameters, and the statistics of batch normalisation that reads batches."""
        return [*self.module.parameters(), *(buffer for norm in self.norms for buffer in norm.buffers())]

    def restore(self) -> None:
        """Give the module the values of the best network so far."""
        with torch.no_grad():
            for changed, values in zip(self._changed(), self.best, strict=True):
                changed.copy_(values)


class _Examples:
    """Inputs with the teacher's answers, on the device of the student."""

    def __init__(
        self,
        inputs: Inputs,
        targets: Tensor,
        device: torch.device,
        widen: bool = False,
        heads: Sequence[tuple[slice, bool]] = (),
    ) -> None:
        arguments = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        if widen:
            arguments = tuple(argument.float() if argument.is_floating_point() else argument for argument in arguments)
        self.arguments = tuple(argument.to(device) for argument in arguments)
        self.targets, self.heads = targets.detach().to(device), heads

    def __len__(self) -> int:
        return len(self.arguments[0])

    def first(self, n: int = 4) -> tuple[Tensor, ...]:
        """Return the arguments of the first inputs."""
        return tuple(argument[:n] for argument in self.arguments)

    def refuse_unfit(self, name: str, module: nn.Module, loss: Loss) -> None:
        """Raise for inputs that a network does not take, and targets that it cannot be trained to answer.

        Raises InputError, saying what was expected and found.
        """
        inputs_name = "held_inputs" if name == "held_targets" else "fit_inputs"
        if not len(self) or any(len(argument) != len(self) for argument in self.arguments):
            raise InputError(inputs_name, "expected one or more, as many of every argument", code="E-MISMATCH")
        if len(self.targets) != len(self):
            text = f"expected one for each of {len(self)} inputs, found {len(self.targets)}"
            raise InputError(name, text, code="E-SHAPE")
        refuse_unfit(module, self.first(), inputs_name)
        with torch.no_grad():
            answer = ask(module, *self.first())
        if isinstance(answer, Tensor) and answer.ndim == 1 and self.targets.ndim == 2 and self.targets.shape[1] == 1:
            self.targets = self.targets[:, 0]  # of networks that answer one number, and no axis for it
        if not isinstance(answer, Tensor) or answer.shape[1:] != self.targets.shape[1:]:
            found = tuple(answer.shape[1:]) if isinstance(answer, Tensor) else form_of(answer)
            text = f"have shape {tuple(self.targets.shape[1:])} by input, and the network answers {found}"
            raise InputError(name, text, code="E-SHAPE")
        if not bool(torch.isfinite(self.targets).all()):
            raise InputError(name, "have NaN or infinite values", code="E-NUMBER")
        if any(not _are_probabilities(self.targets[..., columns]) for columns in self._columns_of_classes(loss)):
            text = "expected probabilities, which sum to 1 over the last axis"
            raise InputError(name, text, "give a softmax", "E-NUMBER")

    def losses(self, module: nn.Module, rows: Sequence[int], loss: Loss) -> Tensor:
        """Return the loss of every input among some, mean over positions: (rows,)."""
        index = torch.as_tensor(rows, device=self.targets.device)
        # In double precision, or the rounding of small divergences would pass for progress.
        answers = ask(module, *(argument[index] for argument in self.arguments)).double()
        targets = self.targets[index].double()
        if self.heads:
            of_heads = [
                _losses(answers[..., columns], targets[..., columns], "kl" if classifies else "squared")
                for columns, classifies in self.heads
            ]
            return torch.stack(of_heads).mean(dim=0)
        return _losses(answers, targets, loss)

    def _columns_of_classes(self, loss: Loss) -> list[slice]:
        """Return the columns of every output whose targets are probabilities."""
        if self.heads:
            return [columns for columns, classifies in self.heads if classifies]
        return [slice(None)] if loss == "kl" else []

    def mean_loss(self, module: nn.Module, loss: Loss) -> float:
        """Return the mean loss of all inputs."""
        with torch.no_grad():
            parts = [
                self.losses(module, range(start, min(start + _EVALUATION_ROWS, len(self))), loss).sum()
                for start in range(0, len(self), _EVALUATION_ROWS)
            ]
        return float(sum(parts) / len(self))


def _are_probabilities(targets: Tensor) -> bool:
    """Return whether targets (n, ..., C) are probabilities: one in half precision is 1 to three digits."""
    sums = targets.double().sum(dim=-1)
    return not bool((targets < 0).any()) and not bool(((sums - 1).abs() > 1e-2).any())


def _losses(answers: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """Return the loss of every input, mean over positions: (n,)."""
    if loss == "squared":
        losses = (answers - targets).square()
    else:
        targets = targets / targets.sum(dim=-1, keepdim=True)
        losses = (torch.xlogy(targets, targets) - targets * as_logits(answers).log_softmax(dim=-1)).sum(dim=-1)
    return losses.reshape(len(losses), -1).mean(dim=1)


def _phases(
    module: nn.Module, inputs: tuple[Tensor, ...], learning_rate: float, steps: int, batch_statistics: bool
) -> list[tuple[list[nn.Parameter], float, int]]:
    """Return which parameters are trained at which rate for how many steps, one phase after the other."""
    everything = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not everything:
        raise InputError(type(module).__name__, "has no parameters to train", "set requires_grad of some", "E-NEEDED")
    if batch_statistics or not has_batch_norm(module):
        return [(everything, learning_rate, steps)]
    slow = (everything, BATCH_NORM_FACTOR * learning_rate)
    path = find_head(module, inputs)
    head = [] if path is None else [p for p in module.get_submodule(path).parameters() if p.requires_grad]
    if not head or steps < 2:
        return [(*slow, steps)]
    return [(head, learning_rate, steps // 2), (*slow, steps - steps // 2)]


def part_way(before: _Module, after: _Module, share: float = 0.5) -> _Module:
    """Return the network so much of the way from one before training to what it became, by default their mean.

    Statistics of batch normalisation go the same way. On inputs unlike those of training it keeps most of what was
    right before.

    References
    ----------
    Wortsman et al. (2022), "Robust fine-tuning of zero-shot models", equation (1) with the share as mixing coefficient.
    """
    module, start, end = copy.deepcopy(after).eval(), before.state_dict(), after.state_dict()
    with torch.no_grad():
        for key, values in module.state_dict().items():
            if values.is_floating_point():
                values.copy_(torch.lerp(start[key], end[key], share))
    return module


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether a network has batch normalisation with running statistics."""
    return any(map(_keeps_statistics, module.modules()))


def _keeps_statistics(layer: nn.Module) -> bool:
    return "BatchNorm" in type(layer).__name__ and getattr(layer, "running_var", None) is not None


@contextmanager
def _reading_batches(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Let batch normalisation read the statistics of batches for the while."""
    for norm in norms:
        norm.train()
    try:
        yield
    finally:
        for norm in norms:
            norm.eval()


@contextmanager
def _recurrent_gradients(module: nn.Module) -> Iterator[None]:
    """Let recurrent layers in evaluation mode have gradients: cuDNN's have none there, torch's own have."""
    if not any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
        yield
        return
    with torch.backends.cudnn.flags(enabled=False):
        yield


def _require_options(
    loss: object, steps: object, learning_rate: object, batch_size: object, max_seconds: object
) -> None:
    """Raise OptionError for options that are not what they must be."""
    if loss not in ("kl", "squared"):
        raise OptionError("loss", f"expected 'kl' or 'squared', found {loss!r}")
    for name, count in (("steps", steps), ("batch_size", batch_size)):
        if not is_count(count):
            raise OptionError(name, f"expected a positive integer, found {count!r}")
    for name, number in (("learning_rate", learning_rate), ("max_seconds", max_seconds)):
        if not (name == "max_seconds" and number is None) and not (is_number(number) and number):
            raise OptionError(name, f"expected a positive number, found {number!r}")
