"""Climbing the evidence lower bound of a Bayesian network on mini-batches, and reading off its Gaussians."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from consilience.checks import Array, Labels, is_count
from consilience.errors import InputError, OptionError
from consilience.learners.horseshoe import LayerScale, Slab, UnitScales
from consilience.learners.variational_layers import WEIGHTED, VariationalLayer, leaves
from consilience.methods.base import Progress
from consilience.models.bayesian_network import BayesianNetwork
from consilience.models.torch_network import is_module
from consilience.networks.proof import symmetry as symmetry_of
from consilience.networks.symmetry import Symmetry

if TYPE_CHECKING:
    from consilience.learners.bayesian_networks import FittedBNN, Prior, VariationalBNN

_NEVER = -1e4
"""Logarithm of the share of a class that a site never saw."""

_FLOOR = 1e-8
"""Least variance, as a share of the median of its array: where a unit is switched off, nothing is left of its own."""


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
    from consilience.learners.bayesian_networks import FittedBNN

    count, names = _classes(classes)
    inputs, labels = _data(X, y, count)
    device = torch.device(learner.device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(learner.seed)
        generator = torch.Generator().manual_seed(learner.seed)
        template = _architecture(learner, inputs, count)
        model = VariationalModule(copy.deepcopy(template), learner, generator).to(device)
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


def _data(X: Any, y: Any, classes: int) -> tuple[Tensor, Tensor]:
    """Return inputs and labels as tensors, checked."""
    inputs = torch.as_tensor(np.asarray(X) if not isinstance(X, Tensor) else X).detach()
    labels = torch.as_tensor(np.asarray(y) if not isinstance(y, Tensor) else y).detach()
    inputs = inputs.to(torch.get_default_dtype()) if inputs.is_floating_point() else inputs.float()
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
        answer = copy.deepcopy(module).eval()(inputs[:2])
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
            divergence = model.divergence()
            optimizer.zero_grad(set_to_none=True)
            (loss + fade * learner.temperature * divergence / total).backward()  # type: ignore[no-untyped-call]
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
            least = max(_FLOOR * float(variance.median()), torch.finfo(variance.dtype).tiny)
            variances[key] = variance.clamp_min(least).cpu()
    return means, variances


def _pruned(posterior: BayesianNetwork, scales: Mapping[str, Array], share: float, example: Tensor) -> BayesianNetwork:
    """Return a network without the units that are switched off in every layer that makes them."""
    assert posterior.module is not None  # noqa: S101  (narrows the type)
    found = symmetry_of(posterior.module, example)
    kept: dict[str, Labels] = {}
    for name, group in found.by_name.items():
        makers = {
            place.array.rpartition(".")[0]
            for place in found.places(name)
            if place.axis == 0 and place.side == "output" and not _shared_axis(found, place.array)
        }
        known = [scales[path] for path in makers if path in scales and len(scales[path]) == group.size]
        if known and group.resizable and group.parent is None:
            in_use = np.any([one >= share * one.max() for one in known], axis=0)
            kept[name] = np.flatnonzero(in_use)
    return posterior.with_units(found, kept)


def _shared_axis(symmetry: Symmetry, array: str) -> bool:
    """Return whether the first axis of an array has other entries beside one for each unit."""
    segments = symmetry.layouts[array].axes[0].segments
    return len(segments) > 1 or segments[0].outer * segments[0].inner > 1
