"""Variational layers: independent Gaussian weights, and the local reparametrisation trick, in any torch module.

There are two estimators of the expected log likelihood. With the *local* one, linear layers draw pre-activations
instead of weights W with means M and deviations S,

    z = W x ~ N(M x, S^2 x^2),   squares by entry,

another draw for every observation (local reparametrisation; Kingma, Salimans, Welling 2015): the same expectation with
less variance. With *weights*, one draw theta = m + s eps serves the whole batch, (9) and (10) of the appendix of Rossi
et al. 2023. Where the same weights apply several times to an observation, in convolutions and in linear layers along a
sequence, pre-activations are correlated, which independent draws would miss: such layers, and those of any other type,
draw weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import softplus

from consilience.errors import UnsupportedError
from consilience.networks.gaussian.learners.horseshoe import LayerScale, UnitScales, inverse_softplus

Estimator = Literal["local", "weights"]

SCALED_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose units can have scales, and whose initial weights are drawn."""
_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)

_MIN_VARIANCE = 1e-16
"""Floor of a pre-activation's variance before the root, whose gradient is infinite at zero (inputs that are all zero).
Chosen by hand; far below the variance of any weight."""


class VariationalLayer(nn.Module):
    """A layer with a Gaussian for each of its parameters, and a scale for each of its units where it has one.

    `layer` gives shapes; its values are used only for layers that are neither linear nor convolutions. `estimator` says
    whether pre-activations ("local") or weights ("weights") are drawn. `prior_variance` is that of the parameters
    without their scale, `deviation` the initial one of every parameter. `generator` draws the initial means of linear
    layers and convolutions, N(0, 2 / fan-in) (He et al. 2015); their biases start at zero.
    """

    def __init__(
        self,
        layer: nn.Module,
        estimator: Estimator,
        prior_variance: float,
        deviation: float,
        scales: UnitScales | LayerScale | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.estimator, self.prior_variance = estimator, prior_variance
        self.means, self.raws = nn.ParameterDict(), nn.ParameterDict()
        self.scales = scales
        for name, values in layer.named_parameters(recurse=False):
            initial = values.detach().clone()
            if isinstance(layer, SCALED_LAYERS):
                initial = torch.zeros_like(initial)
                if initial.ndim > 1:
                    normal = torch.randn(initial.shape, generator=generator, dtype=initial.dtype)
                    initial = normal * math.sqrt(2.0 / math.prod(initial.shape[1:]))
            self.means[name] = nn.Parameter(initial)
            self.raws[name] = nn.Parameter(torch.full_like(initial, inverse_softplus(deviation)))  # of the deviations
        self._layer = (copy.deepcopy(layer).requires_grad_(False),)  # in a tuple, so that its parameters do not count

    @property
    def layer(self) -> nn.Module:
        """The layer as it was handed in."""
        return self._layer[0]

    def deviations(self) -> dict[str, Tensor]:
        """Return the standard deviations by name of the parameter, without the units' scale."""
        return {name: softplus(raw) for name, raw in self.raws.items()}

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's output for a batch, with weights or pre-activations drawn."""
        scale = None if self.scales is None else self.scales()
        if self.estimator == "local" and isinstance(self.layer, nn.Linear) and inputs.ndim == 2:
            outputs = self._draw_preactivations(inputs)
        else:
            deviations = self.deviations()
            weights = {name: mean + deviations[name] * torch.randn_like(mean) for name, mean in self.means.items()}
            outputs = cast(Tensor, functional_call(self.layer, weights, (inputs,)))
        if scale is not None and not isinstance(self.layer, nn.Linear):  # (units,), outputs (n, units, ...)
            scale = scale.reshape(-1, *[1] * (outputs.ndim - 2))
        return outputs if scale is None else outputs * scale

    def _draw_preactivations(self, inputs: Tensor) -> Tensor:
        """Return pre-activations (n, units) of a linear layer for inputs (n, features), by local reparametrisation."""
        deviations = self.deviations()
        mean = cast(Tensor, functional_call(self.layer, dict(self.means.items()), (inputs,)))
        squares = {name: values**2 for name, values in deviations.items()}
        variance = cast(Tensor, functional_call(self.layer, squares, (inputs**2,)))
        # Public code of the horseshoe prior divides this deviation by the root of the fan-in, unlike that of W x.
        return mean + variance.clamp_min(_MIN_VARIANCE).sqrt() * torch.randn_like(mean)

    def divergence(self) -> Tensor:
        """Return KL(q || p) of parameters and scales: for Gaussians in closed form."""
        total = torch.zeros((), device=next(iter(self.means.values())).device)
        for name, deviation in self.deviations().items():
            # KL(N(m, s^2) || N(0, v)) = ((s^2 + m^2) / v - 1 + log v - log s^2) / 2
            ratio = (deviation**2 + self.means[name] ** 2) / self.prior_variance
            total = total + 0.5 * (ratio - 1.0 + math.log(self.prior_variance) - 2.0 * deviation.log()).sum()
        return total if self.scales is None else total + self.scales.divergence()

    def gaussians(self, match_moments: bool) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield name, mean and variance of every parameter, scales multiplied in.

        The first two moments of the products with scales are matched, or scales taken at their means.
        """
        with torch.no_grad():
            first = second = None
            if self.scales is not None:
                first = self.scales.plug_in()  # E[scale], and E[scale^2]: (units,)
                second = first**2
                if match_moments:
                    first, second = self.scales.moments()
            for name, deviation in self.deviations().items():
                mean, variance = self.means[name].detach(), deviation**2
                if first is not None and second is not None:
                    shape = (-1, *[1] * (mean.ndim - 1))
                    e1, e2 = first.reshape(shape), second.reshape(shape)
                    # Var[scale w] = E[scale^2] s^2 + Var[scale] m^2
                    variance = e2 * variance + (e2 - e1**2).clamp_min(0.0) * mean**2
                    mean = e1 * mean
                yield name, mean.clone(), variance.clone()


def parameter_layers(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers that have parameters, by path, in order.

    Raises UnsupportedError for tied parameters, parameters outside of layers, and normalisation over the batch.
    """
    layers: list[tuple[str, nn.Module]] = []
    first_names: dict[int, str] = {}  # of each parameter, by identity
    for path, layer in module.named_modules(remove_duplicate=False):
        parameters = list(layer.named_parameters(recurse=False))
        if not parameters:
            continue
        if isinstance(layer, _BATCH_NORMS):
            text = "batch normalisation mixes the observations of a batch, which single draws of weights cannot"
            raise UnsupportedError(path, text, "use layer, group or instance normalisation")
        if next(layer.children(), None) is not None:
            raise UnsupportedError(
                path or "the module", "has both parameters and layers of its own", "put the parameters in a layer"
            )
        for name, values in parameters:
            full_name = f"{path}.{name}" if path else name
            if id(values) in first_names:
                text = f"is tied to {first_names[id(values)]}; a posterior needs weights of their own"
                raise UnsupportedError(full_name, text)
            first_names[id(values)] = full_name
        layers.append((path, layer))
    return layers
