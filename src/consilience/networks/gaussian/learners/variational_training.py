"""Stochastic variational inference of Bayesian networks: maximisation of the ELBO, and conversion to Gaussians.

Adam minimises, on a mini-batch of B of N observations in M batches,

    B M / N * mean_n -log p(y_n | x_n, w) + a T KL(q || p) / N,   w ~ q,

an unbiased estimate of -ELBO / N; a rises from 0 to 1 where annealing is asked for. The learning rate falls to zero
along a cosine.
"""

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

from consilience.checks import Array, Labels, is_count
from consilience.core.progress import Progress
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.networks.gaussian.learners.horseshoe import LayerScale, Slab, UnitScales
from consilience.networks.gaussian.learners.variational_layers import SCALED_LAYERS, VariationalLayer, parameter_layers
from consilience.networks.gaussian.network import BayesianNetwork, as_inputs
from consilience.networks.torch_modules import is_module
from consilience.networks.tracing.proof import symmetry as symmetry_of

if TYPE_CHECKING:
    from consilience.networks.gaussian.learners.mean_field import VariationalBNN, WeightPrior

_MIN_LOG_SHARE = -1e4
"""Logarithm of the share of a class without data: its softmax is exactly zero, and stays finite. Chosen by hand."""

_MIN_VARIANCE_RATIO = 1e-8
"""Least variance, relative to the larger of median and mean of its array. That of a unit that is switched off would go
to zero, and its KL divergence from other units to infinity. Chosen by hand; nobody has measured other values."""

_WARM_UP_STEPS = 10.0
"""Steps after which a running average of parameters remembers, by the rule min(decay, t / (t + 10)) at step t. Chosen
by hand; nobody has measured other values."""


class VariationalModule(nn.Module):
    """A module with all of its layers replaced by variational ones.

    Layers are replaced in place; `generator` draws initial means and scales.
    """

    def __init__(self, module: nn.Module, learner: VariationalBNN, generator: torch.Generator) -> None:
        super().__init__()
        prior = learner.prior
        self.slab = None if prior.slab is None or prior.horseshoe is None else Slab(*prior.slab)
        layers = parameter_layers(module)
        scaled = [path for path, layer in layers if isinstance(layer, SCALED_LAYERS)]
        if not scaled:
            raise InputError("module", "has no linear layer or convolution", code="E-NEEDED")
        self.layers = {}
        for path, layer in layers:
            scales = _scales(layer, prior, path == scaled[-1], self.slab, generator)
            self.layers[path] = VariationalLayer(
                layer, learner.estimator, prior.variance, learner.deviation, scales, generator
            )
            module = _replace_layer(module, path, self.layers[path])
        self.module = module

    def forward(self, inputs: Tensor) -> Any:
        """Return the module's output with weights drawn from the posterior."""
        return self.module(inputs)

    def divergence(self) -> Tensor:
        """Return KL(q || p) of all weights, scales and the slab."""
        total = sum((layer.divergence() for layer in self.layers.values()), start=torch.zeros(()))
        return total if self.slab is None else total + self.slab.divergence()


def _scales(
    layer: nn.Module, prior: WeightPrior, is_output: bool, slab: Slab | None, generator: torch.Generator
) -> UnitScales | LayerScale | None:
    """Return the scales of a layer: one per unit, one in all for the output layer, None without a horseshoe prior."""
    if prior.horseshoe is None or not isinstance(layer, SCALED_LAYERS):
        return None
    return LayerScale(1.0) if is_output else UnitScales(layer.weight.shape[0], *prior.horseshoe, slab, generator)


def _replace_layer(module: nn.Module, path: str, layer: nn.Module) -> nn.Module:
    """Put another layer at a path, and return the module; the layer itself for the empty path."""
    if not path:
        return layer
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, layer)
    return module


def fit_network(
    learner: VariationalBNN, X: Any, y: Any, classes: int | Sequence[str], progress: Progress
) -> tuple[BayesianNetwork, Array, dict[str, Array]]:
    """Return the fitted network, its history and scales; see `FittedBNN`."""
    count, names = _parse_classes(classes)
    inputs, labels = _checked_data(X, y, count)
    device = _checked_device(learner.device)
    with torch.random.fork_rng():  # the learner's seed must not change the caller's random numbers
        torch.manual_seed(learner.seed)
        generator = torch.Generator().manual_seed(learner.seed)
        template = _make_template(learner, inputs, count)
        inputs = as_inputs(template, inputs)
        model = VariationalModule(copy.deepcopy(template), learner, generator)
        _require_single_calls(model, inputs[:2])
        model = model.to(device)
        history = _maximise_elbo(model, learner, inputs, labels, count, generator, progress)
    means, variances = _gaussian_parameters(model, learner.prior.matches_moments)
    scales = {
        path: layer.scales.plug_in().detach().cpu().double().numpy()
        for path, layer in model.layers.items()
        if layer.scales is not None
    }
    prior = learner.prior
    # Under a horseshoe the weights have no Gaussian prior N(0, v).
    prior_variance = None if prior.horseshoe is not None else prior.variance
    posterior = BayesianNetwork(
        template.eval(), means, variances, prior_variance, names,
        n_observations=len(labels), example=_synthetic_inputs(inputs),
    )  # fmt: skip
    if prior.prune is not None:
        posterior = _prune_units(posterior, scales, prior.prune, inputs[:2])
    return posterior, np.array(history), scales


def _synthetic_inputs(inputs: Tensor) -> Tensor:
    """Return two inputs of the shape and type of a site's, none of its own: draws, or numbers within its range."""
    shape, generator = (2, *inputs.shape[1:]), torch.Generator().manual_seed(0)
    if inputs.is_floating_point():
        return torch.randn(shape, generator=generator, dtype=inputs.dtype)
    return torch.randint(0, int(inputs.max()) + 1, shape, generator=generator).to(inputs.dtype)


def _parse_classes(classes: int | Sequence[str]) -> tuple[int, tuple[str, ...] | None]:
    """Return the number of classes, and their names where they are given."""
    if is_count(classes) and int(str(classes)) >= 2:
        return int(str(classes)), None
    if isinstance(classes, Sequence) and not isinstance(classes, str) and len(classes) >= 2:
        names = tuple(str(label) for label in classes)
        if len(set(names)) == len(names):
            return len(names), names
    raise OptionError("classes", f"expected their number, at least 2, or their names in order, found {classes!r}")


def _checked_device(name: str) -> torch.device:
    """Return a device of torch, or raise where there is none of that name."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:  # what torch raises for devices that are not there
        raise OptionError("device", f"{name!r} is not there: {str(error).splitlines()[0]}") from error
    return device


def _require_single_calls(model: VariationalModule, inputs: Tensor) -> None:
    """Raise unless every layer is called once, with one tensor.

    Raises UnsupportedError, naming the layers.
    """
    n_calls = dict.fromkeys(model.layers, 0)

    def count(path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            n_calls[path] += 1

        return hook

    hooks = [layer.register_forward_hook(count(path)) for path, layer in model.layers.items()]
    try:
        with torch.no_grad():
            model(inputs)
    except (TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise UnsupportedError(
            "module",
            "its layers cannot draw their weights; every layer with parameters must be called as a layer, with "
            f"one tensor: {str(error).splitlines()[0]}",
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if repeated := [path for path, times in n_calls.items() if times != 1]:
        text = f"is called {n_calls[repeated[0]]} times for one input, each time with other draws of its weights"
        raise UnsupportedError(", ".join(repeated[:3]), text, "call every layer once")


def _checked_data(X: Any, y: Any, classes: int) -> tuple[Tensor, Tensor]:
    """Return inputs (n, ...) and labels (n,) as tensors, or raise for what cannot be learned from."""
    try:
        inputs, labels = (torch.as_tensor(v if isinstance(v, Tensor) else np.asarray(v)).detach() for v in (X, y))
    except (TypeError, ValueError) as error:
        raise InputError("X, y", f"expected numbers, classes counted from 0: {error}", code="E-TYPE") from error
    if inputs.ndim < 2 or labels.ndim != 1 or len(inputs) != len(labels) or len(labels) == 0:
        text = f"expected (N, ...) inputs and (N,) classes, found {tuple(inputs.shape)} and {tuple(labels.shape)}"
        raise InputError("X, y", text, code="E-SHAPE")
    if not bool(torch.isfinite(inputs).all()):
        raise InputError("X", "has NaN or infinite values", "fill or leave out the rows at fault", "E-NUMBER")
    if labels.is_floating_point() and bool((labels != labels.round()).any()):
        raise InputError("y", "expected classes, whole numbers from 0, found fractions", code="E-NUMBER")
    labels = labels.long()
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        text = f"expected classes from 0 to {classes - 1}, found {int(labels.min())} to {int(labels.max())}"
        raise InputError("y", text, code="E-NUMBER")
    return inputs, labels


def _make_template(learner: VariationalBNN, inputs: Tensor, classes: int) -> nn.Module:
    """Return a module of the learner's architecture, or raise where its output is not logits."""
    if learner.module is None:
        n_features = math.prod(inputs.shape[1:])
        widths = [n_features, *learner.hidden, classes]
        layers: list[nn.Module] = [nn.Flatten()] if inputs.ndim > 2 else []
        for fan_in, fan_out in itertools.pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(*layers[:-1])  # no activation after the output layer
    if not is_module(learner.module):
        raise OptionError("module", f"expected a torch module, found {type(learner.module).__name__}")
    module = copy.deepcopy(learner.module).cpu().train()
    with torch.no_grad():
        logits = copy.deepcopy(module).eval()(as_inputs(module, inputs[:2]))
    if not isinstance(logits, Tensor) or tuple(logits.shape) != (len(inputs[:2]), classes):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        text = f"expected logits ({len(inputs[:2])}, {classes}) for two inputs, found {shape}"
        raise InputError("module", text, code="E-SHAPE")
    return module


def _maximise_elbo(
    model: VariationalModule,
    learner: VariationalBNN,
    inputs: Tensor,
    labels: Tensor,
    classes: int,
    generator: torch.Generator,
    progress: Progress,
) -> list[float]:
    """Maximise the ELBO in place, and return it after each epoch."""
    n, device = len(labels), torch.device(learner.device)
    inputs, labels = inputs.to(device), labels.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=learner.learning_rate, fused=True)
    n_batches = math.ceil(n / learner.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, learner.epochs * n_batches)
    # Running averages of the parameters, in their order; empty where there are none.
    averages = [p.detach().clone() for p in model.parameters()] if learner.averaging is not None else []
    log_shares = torch.zeros(classes, device=device)
    if learner.logit_adjustment:
        counts = torch.bincount(labels, minlength=classes).to(torch.get_default_dtype())
        log_shares = (counts / counts.sum()).log().clamp_min(_MIN_LOG_SHARE)  # finite also for a class without data
    history = []
    step = 0
    for epoch in range(learner.epochs):
        order = torch.randperm(n, generator=generator).to(device)
        summed_loss = 0.0
        annealing = min(1.0, (epoch + 1) / learner.annealing) if learner.annealing else 1.0
        for batch in torch.split(order, learner.batch_size):
            loss = cross_entropy(model(inputs[batch]) + log_shares, labels[batch])
            batch_weight = len(batch) * n_batches / n  # below 1 for a last batch that is short
            divergence = model.divergence()
            optimizer.zero_grad(set_to_none=True)
            (batch_weight * loss + annealing * learner.temperature * divergence / n).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            step += 1
            summed_loss += float(loss.detach()) * len(batch)
            _update_averages(averages, model, learner.averaging, step)
        with torch.no_grad():
            bound = -summed_loss - learner.temperature * float(model.divergence())
        if not math.isfinite(bound):
            text = f"the bound is {bound} after epoch {epoch + 1}: standardise the inputs, or lower learning_rate"
            raise InputError(text)
        history.append(bound)
        progress(epoch + 1, learner.epochs)
    with torch.no_grad():
        for parameter, mean in zip(model.parameters(), averages, strict=False):  # which may be empty
            parameter.copy_(mean)
    return history


def _update_averages(averages: list[Tensor], model: nn.Module, decay: float | None, step: int) -> None:
    """Move running averages of the parameters towards them, early with less memory than the decay gives."""
    if decay is None:
        return
    memory = min(decay, step / (step + _WARM_UP_STEPS))
    with torch.no_grad():
        for mean, parameter in zip(averages, model.parameters(), strict=True):
            mean.lerp_(parameter, 1.0 - memory)


def _gaussian_parameters(model: VariationalModule, match_moments: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return means and variances by name of the parameter, on the CPU, no variance below the floor."""
    means, variances = {}, {}
    for path, layer in model.layers.items():
        for name, mean, variance in layer.gaussians(match_moments):
            key = f"{path}.{name}" if path else name
            means[key] = mean.cpu()
            typical = max(float(variance.median()), float(variance.mean()))
            floor = max(_MIN_VARIANCE_RATIO * typical, torch.finfo(variance.dtype).tiny)
            variances[key] = variance.clamp_min(floor).cpu()
    return means, variances


def _prune_units(
    posterior: BayesianNetwork, scales: Mapping[str, Array], min_ratio: float, example: Tensor
) -> BayesianNetwork:
    """Return a network without the units that are switched off in every layer that computes them.

    `scales` (units,) are by layer; a unit is switched off below `min_ratio` of the largest of its layer. Groups that a
    layer without scales writes too, such as a normalisation, keep all units. `example` is for tracing.
    """
    assert posterior.module is not None  # noqa: S101  (narrows the type)
    symmetry = symmetry_of(posterior.module, example)
    active: dict[str, Labels] = {}  # numbers of the units that stay, by group
    for name, group in symmetry.by_name.items():
        layers = {  # that compute these units
            place.array.rpartition(".")[0]
            for place in symmetry.places(name)
            if place.axis == 0 and place.side == "output"
        }
        unit_scales = [scales[path] for path in layers if path in scales and len(scales[path]) == group.size]
        if unit_scales and len(unit_scales) == len(layers) and group.resizable and group.parent is None:
            is_active = np.any([tau >= min_ratio * tau.max() for tau in unit_scales], axis=0)  # (units,)
            active[name] = np.flatnonzero(is_active)
    return posterior.with_units(symmetry, active)
