"""Climbing the evidence lower bound of a Bayesian network on mini-batches, and reading off its Gaussians."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from consilience.bayesian.learners.horseshoe import LayerScale, Slab, UnitScales
from consilience.bayesian.learners.variational_layers import WEIGHTED, VariationalLayer, leaves
from consilience.bayesian.network import BayesianNetwork, as_inputs
from consilience.checks import Array, Labels, is_count
from consilience.core.progress import Progress
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.networks.torch_modules import is_module
from consilience.networks.tracing.proof import symmetry as symmetry_of

if TYPE_CHECKING:
    from consilience.bayesian.learners.mean_field import FittedBNN, Prior, VariationalBNN

_NEVER = -1e4
"""Logarithm of the share of a class that a site never saw."""

_FLOOR = 1e-8
"""Least variance, as a share of the median and mean of its array: of a unit that is switched off nothing is left."""


class VariationalModule(nn.Module):
    """A module whose layers draw their weights.

    Parameters
    ----------
    module
        The module.
    learner
        Estimator, prior and first deviations.
    generator
        Draws first values.
    """

    def __init__(self, module: nn.Module, learner: VariationalBNN, generator: torch.Generator) -> None:
        super().__init__()
        prior = learner.prior
        self.slab = None if prior.slab is None or prior.horseshoe is None else Slab(*prior.slab)
        found = leaves(module)
        weighted = [path for path, layer in found if isinstance(layer, WEIGHTED)]
        if not weighted:
            raise InputError("module: has no linear layer or convolution")
        self.layers = {}
        for path, layer in found:
            scales = _scales(layer, prior, path == weighted[-1], self.slab, generator)
            self.layers[path] = VariationalLayer(
                layer, learner.estimator, prior.variance, learner.deviation, scales, generator
            )
            module = _replaced(module, path, self.layers[path])
        self.module = module

    def forward(self, inputs: Tensor) -> Any:
        """Return the module's answer with drawn weights."""
        return self.module(inputs)

    def divergence(self) -> Tensor:
        """Return KL(q || p) of everything."""
        total = sum((layer.divergence() for layer in self.layers.values()), start=torch.zeros(()))
        return total if self.slab is None else total + self.slab.divergence()


def _scales(
    layer: nn.Module, prior: Prior, last: bool, slab: Slab | None, generator: torch.Generator
) -> UnitScales | LayerScale | None:
    if prior.horseshoe is None or not isinstance(layer, WEIGHTED):
        return None
    return LayerScale(1.0) if last else UnitScales(layer.weight.shape[0], *prior.horseshoe, slab, generator)


def _replaced(module: nn.Module, path: str, layer: nn.Module) -> nn.Module:
    """Return a module with another layer at a path; the layer itself for the module's own path."""
    if not path:
        return layer
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, layer)
    return module


def fit_network(learner: VariationalBNN, X: Any, y: Any, classes: int | Sequence[str], progress: Progress) -> FittedBNN:
    """Return the fitted network; see `VariationalBNN.fit`."""
    from consilience.bayesian.learners.mean_field import FittedBNN

    count, names = _classes(classes)
    inputs, labels = _data(X, y, count)
    device = _device(learner.device)
    with torch.random.fork_rng():
        torch.manual_seed(learner.seed)
        generator = torch.Generator().manual_seed(learner.seed)
        template = _architecture(learner, inputs, count)
        inputs = as_inputs(template, inputs)
        model = VariationalModule(copy.deepcopy(template), learner, generator)
        _refuse_other_uses(model, inputs[:2])
        model = model.to(device)
        history = _climb(model, learner, inputs, labels, count, generator, progress)
    means, variances = _gaussians(model, learner.prior.moments)
    scales = {
        path: layer.scales.averages().detach().cpu().double().numpy()
        for path, layer in model.layers.items()
        if layer.scales is not None
    }
    prior = learner.prior
    known = None if prior.horseshoe is not None else prior.variance
    posterior = BayesianNetwork(template.eval(), means, variances, known, names)
    if prior.prune is not None:
        posterior = _pruned(posterior, scales, prior.prune, inputs[:2])
    return FittedBNN(posterior, np.array(history), scales)


def _classes(classes: int | Sequence[str]) -> tuple[int, tuple[str, ...] | None]:
    if is_count(classes) and int(str(classes)) >= 2:
        return int(str(classes)), None
    if isinstance(classes, Sequence) and not isinstance(classes, str) and len(classes) >= 2:
        names = tuple(str(one) for one in classes)
        if len(set(names)) == len(names):
            return len(names), names
    raise OptionError(f"classes: expected their number, at least 2, or their names in order, found {classes!r}")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:  # what torch raises for devices that are not there
        raise OptionError(f"device: {name!r} is not there: {str(error).splitlines()[0]}") from error
    return device


def _refuse_other_uses(model: VariationalModule, inputs: Tensor) -> None:
    """Raise where a layer is not asked once, with one tensor.

    Raises
    ------
    UnsupportedError
        Naming the layers.
    """
    calls = dict.fromkeys(model.layers, 0)

    def count(path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            calls[path] += 1

        return hook

    hooks = [layer.register_forward_hook(count(path)) for path, layer in model.layers.items()]
    try:
        with torch.no_grad():
            model(inputs)
    except (TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise UnsupportedError(
            "module: its layers cannot draw their weights; every layer with parameters must be called as a layer, with "
            f"one tensor: {str(error).splitlines()[0]}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if odd := [path for path, times in calls.items() if times != 1]:
        raise UnsupportedError(
            f"{', '.join(odd[:3])}: is called {calls[odd[0]]} times for one input, each time with other draws of its "
            "weights; call every layer once"
        )


def _data(X: Any, y: Any, classes: int) -> tuple[Tensor, Tensor]:
    """Return inputs and labels as tensors, checked."""
    try:
        inputs, labels = (torch.as_tensor(v if isinstance(v, Tensor) else np.asarray(v)).detach() for v in (X, y))
    except (TypeError, ValueError) as error:
        raise InputError(f"X, y: expected numbers, classes counted from 0: {error}") from error
    if inputs.ndim < 2 or labels.ndim != 1 or len(inputs) != len(labels) or len(labels) == 0:
        raise InputError(
            f"X, y: expected (N, ...) inputs and (N,) classes, found {tuple(inputs.shape)} and {tuple(labels.shape)}"
        )
    if not bool(torch.isfinite(inputs).all()):
        raise InputError("X: has NaN or infinite values; fill or leave out the rows at fault")
    if labels.is_floating_point() and bool((labels != labels.round()).any()):
        raise InputError("y: expected classes, whole numbers from 0, found fractions")
    labels = labels.long()
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InputError(
            f"y: expected classes from 0 to {classes - 1}, found {int(labels.min())} to {int(labels.max())}"
        )
    return inputs, labels


def _architecture(learner: VariationalBNN, inputs: Tensor, classes: int) -> nn.Module:
    """Return a module of the learner's architecture, checked to answer with logits."""
    if learner.module is None:
        flat = math.prod(inputs.shape[1:])
        widths = [flat, *learner.hidden, classes]
        parts: list[nn.Module] = [nn.Flatten()] if inputs.ndim > 2 else []
        for one, other in itertools.pairwise(widths):
            parts += [nn.Linear(one, other), nn.ReLU()]
        return nn.Sequential(*parts[:-1])
    if not is_module(learner.module):
        raise OptionError(f"module: expected a torch module, found {type(learner.module).__name__}")
    module = copy.deepcopy(learner.module).cpu().train()
    with torch.no_grad():
        answer = copy.deepcopy(module).eval()(as_inputs(module, inputs[:2]))
    if not isinstance(answer, Tensor) or tuple(answer.shape) != (len(inputs[:2]), classes):
        shape = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise InputError(f"module: expected logits ({len(inputs[:2])}, {classes}) for two inputs, found {shape}")
    return module


def _climb(
    model: VariationalModule,
    learner: VariationalBNN,
    inputs: Tensor,
    labels: Tensor,
    classes: int,
    generator: torch.Generator,
    progress: Progress,
) -> list[float]:
    """Climb the bound, and return it after each epoch."""
    total, device = len(labels), torch.device(learner.device)
    inputs, labels = inputs.to(device), labels.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=learner.learning_rate, fused=True)
    batches = math.ceil(total / learner.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, learner.epochs * batches)
    average = [p.detach().clone() for p in model.parameters()] if learner.averaging is not None else []
    shares = _log_shares(labels, classes) if learner.logit_adjustment else torch.zeros(classes)
    shares = shares.to(device)
    history = []
    step = 0
    for epoch in range(learner.epochs):
        order = torch.randperm(total, generator=generator).to(device)
        fitted = 0.0
        fade = min(1.0, (epoch + 1) / learner.annealing) if learner.annealing else 1.0
        for batch in torch.split(order, learner.batch_size):
            loss = cross_entropy(model(inputs[batch]) + shares, labels[batch])
            counted = len(batch) * batches / total  # the last batch may be short
            divergence = model.divergence()
            optimizer.zero_grad(set_to_none=True)
            (counted * loss + fade * learner.temperature * divergence / total).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            step += 1
            fitted += float(loss.detach()) * len(batch)
            _follow(average, model, learner.averaging, step)
        with torch.no_grad():
            bound = -fitted - learner.temperature * float(model.divergence())
        if not math.isfinite(bound):
            raise InputError(
                f"the bound is {bound} after epoch {epoch + 1}: standardise the inputs, or lower learning_rate"
            )
        history.append(bound)
        progress(epoch + 1, learner.epochs)
    with torch.no_grad():
        for parameter, mean in zip(model.parameters(), average, strict=False):
            parameter.copy_(mean)
    return history


def _log_shares(labels: Tensor, classes: int) -> Tensor:
    """Return the logarithm of each class's share of the labels (classes,); a class without any cannot be told."""
    counts = torch.bincount(labels, minlength=classes).to(torch.get_default_dtype())
    return (counts / counts.sum()).log().clamp_min(_NEVER)


def _follow(average: list[Tensor], model: nn.Module, decay: float | None, step: int) -> None:
    """Move a running average of the parameters towards them; early steps count more, as there are fewer."""
    if decay is None:
        return
    kept = min(decay, step / (step + 10.0))
    with torch.no_grad():
        for mean, parameter in zip(average, model.parameters(), strict=True):
            mean.lerp_(parameter, 1.0 - kept)


def _gaussians(model: VariationalModule, moments: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return means and variances by name of the parameter, on the CPU, no variance below the floor."""
    means, variances = {}, {}
    for path, layer in model.layers.items():
        for name, mean, variance in layer.gaussians(moments):
            key = f"{path}.{name}" if path else name
            means[key] = mean.cpu()
            usual = max(float(variance.median()), float(variance.mean()))
            least = max(_FLOOR * usual, torch.finfo(variance.dtype).tiny)
            variances[key] = variance.clamp_min(least).cpu()
    return means, variances


def _pruned(posterior: BayesianNetwork, scales: Mapping[str, Array], share: float, example: Tensor) -> BayesianNetwork:
    """Return a network without the units that are switched off in every layer that makes them.

    Units that something without a scale makes too, such as a normalisation, all stay.
    """
    assert posterior.module is not None  # noqa: S101  (narrows the type)
    found = symmetry_of(posterior.module, example)
    kept: dict[str, Labels] = {}
    for name, group in found.by_name.items():
        makers = {
            place.array.rpartition(".")[0] for place in found.places(name) if place.axis == 0 and place.side == "output"
        }
        known = [scales[path] for path in makers if path in scales and len(scales[path]) == group.size]
        if known and len(known) == len(makers) and group.resizable and group.parent is None:
            in_use = np.any([one >= share * one.max() for one in known], axis=0)
            kept[name] = np.flatnonzero(in_use)
    return posterior.with_units(found, kept)
