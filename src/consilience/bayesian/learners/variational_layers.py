"""Layers whose weights are independent Gaussians: mean-field variational inference in any torch module.

Two estimators of the expected log likelihood. With the *local* one, linear layers draw what their units receive instead
of their weights,

    z = W x ~ N(x M, x^2 S^2),

another draw for every observation (Kingma, Salimans, Welling 2015): the same expectation with less variance. With
*weights*, one draw theta = m + s eps serves the whole batch, (9) and (10) of the appendix of Rossi et al. 2023. Where
an observation meets the same weights several times, in convolutions and in linear layers along a sequence, what units
receive is correlated, which independent draws would miss: such layers, and those of any other kind, draw weights.
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

from consilience.bayesian.learners.horseshoe import LayerScale, UnitScales, inverse_softplus
from consilience.errors import UnsupportedError

Estimator = Literal["local", "weights"]

WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_OVER_BATCH = (nn.modules.batchnorm._BatchNorm,)


class VariationalLayer(nn.Module):
    """A layer with a Gaussian for each of its parameters, and a scale for each of its units where it has one.

    Parameters
    ----------
    layer
        The layer; its parameters' shapes count, and, for layers that are neither linear nor convolutions, their values.
    estimator
        What is drawn.
    prior_variance
        Of the parameters' Gaussian prior, without their scale.
    deviation
        First standard deviation of every parameter.
    scales
        Of the units; None for a layer without.
    generator
        Draws the first means of linear layers and convolutions, N(0, 2 / inputs); their biases start at zero.
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
            start = values.detach().clone()
            if isinstance(layer, WEIGHTED):
                start = torch.zeros_like(start)
                if start.ndim > 1:
                    drawn = torch.randn(start.shape, generator=generator, dtype=start.dtype)
                    start = drawn * math.sqrt(2.0 / math.prod(start.shape[1:]))
            self.means[name] = nn.Parameter(start)
            self.raws[name] = nn.Parameter(torch.full_like(start, inverse_softplus(deviation)))
        self._layer = (copy.deepcopy(layer).requires_grad_(False),)  # in a tuple: its own parameters play no part

    @property
    def layer(self) -> nn.Module:
        """The layer as it was handed in."""
        return self._layer[0]

    def deviations(self) -> dict[str, Tensor]:
        """Return the standard deviations by name of the parameter, without the units' scale."""
        return {name: softplus(raw) for name, raw in self.raws.items()}

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's answer to a batch, drawn."""
        scale = None if self.scales is None else self.scales()
        if self.estimator == "local" and isinstance(self.layer, nn.Linear) and inputs.ndim == 2:
            return self._received(inputs, scale)
        deviations = self.deviations()
        drawn = {name: mean + deviations[name] * torch.randn_like(mean) for name, mean in self.means.items()}
        answer = cast(Tensor, functional_call(self.layer, drawn, (inputs,)))
        return answer if scale is None else answer * self._along_units(scale, answer)

    def _received(self, inputs: Tensor, scale: Tensor | None) -> Tensor:
        deviations = self.deviations()
        mean = cast(Tensor, functional_call(self.layer, dict(self.means.items()), (inputs,)))
        squares = {name: values**2 for name, values in deviations.items()}
        variance = cast(Tensor, functional_call(self.layer, squares, (inputs**2,)))
        drawn = mean + variance.clamp_min(1e-16).sqrt() * torch.randn_like(mean)
        return drawn if scale is None else drawn * self._along_units(scale, drawn)

    def _along_units(self, scale: Tensor, answer: Tensor) -> Tensor:
        """Return scales shaped so that they multiply the units of an answer."""
        if isinstance(self.layer, nn.Linear):
            return scale
        return scale.reshape(-1, *[1] * (answer.ndim - 2))

    def divergence(self) -> Tensor:
        """Return KL(q || p) of parameters and scales: for Gaussians in closed form."""
        total = torch.zeros((), device=next(iter(self.means.values())).device)
        for name, deviation in self.deviations().items():
            ratio = (deviation**2 + self.means[name] ** 2) / self.prior_variance
            total = total + 0.5 * (ratio - 1.0 + math.log(self.prior_variance) - 2.0 * deviation.log()).sum()
        return total if self.scales is None else total + self.scales.divergence()

    def gaussians(self, moments: bool) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield name, mean and variance of every parameter, scales multiplied in.

        Parameters
        ----------
        moments
            Match the first two moments of the products with scales, instead of taking scales at their means.
        """
        with torch.no_grad():
            first = second = None
            if self.scales is not None:
                first = self.scales.averages()
                second = first**2
                if moments:
                    first, second = self.scales.moments()
            for name, deviation in self.deviations().items():
                mean, variance = self.means[name].detach(), deviation**2
                if first is not None and second is not None:
                    shape = (-1, *[1] * (mean.ndim - 1))
                    once, twice = first.reshape(shape), second.reshape(shape)
                    variance = twice * variance + (twice - once**2).clamp_min(0.0) * mean**2
                    mean = once * mean
                yield name, mean.clone(), variance.clone()


def leaves(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers that have parameters, by path, in order.

    Raises
    ------
    UnsupportedError
        For tied parameters, parameters outside of layers, and normalisation over the batch.
    """
    found: list[tuple[str, nn.Module]] = []
    seen: dict[int, str] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        own = list(part.named_parameters(recurse=False))
        if not own:
            continue
        if isinstance(part, _OVER_BATCH):
            raise UnsupportedError(
                f"{path}: batch normalisation mixes the observations of a batch, which single draws of weights cannot; "
                "use layer, group or instance normalisation"
            )
        if next(part.children(), None) is not None:
            raise UnsupportedError(f"{path or 'the module'}: has parameters beside layers of its own; put them in one")
        for name, values in own:
            full = f"{path}.{name}" if path else name
            if id(values) in seen:
                raise UnsupportedError(f"{full}: is tied to {seen[id(values)]}; a posterior needs weights of their own")
            seen[id(values)] = full
        found.append((path, part))
    return found
