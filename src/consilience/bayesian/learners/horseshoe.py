"""The horseshoe prior over the scales of a layer's units, and its variational posterior.

    w_kl | tau, v, c ~ N(0, tau~_kl^2 v_l^2 I),   tau~^2 = c^2 tau^2 / (c^2 + tau^2 v^2),
    tau_kl ~ C+(0, b_0),  v_l ~ C+(0, b_g),  c^2 ~ Inv-Gamma(c_a, c_b),

(14) of Claici et al. 2020 after Ghosh, Yao, Doshi-Velez (2019), with the inverse gamma on c^2 as in the latter. Half
Cauchy distributions are written with auxiliaries, a^2 | lambda ~ Inv-Gamma(1/2, 1/lambda), lambda ~ Inv-Gamma(1/2,
1/b^2), whose optimal posterior Inv-Gamma(1, E[1/a^2] + 1/b^2) is taken in closed form. Squared scales are log-normal.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

_LIMIT = 30.0
"""Logarithms are held within this: e^30 is far beyond any weight, and its square is a float32."""

_FIRST_DEVIATION = 0.05
_NODES = 24
"""Nodes of the Gauss-Hermite quadrature, in each direction."""


class LogNormal(nn.Module):
    """Independent log-normal posteriors: ln a^2 ~ N(mean, deviation^2).

    Parameters
    ----------
    start
        First values of a (n,).
    """

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.mean = nn.Parameter(2.0 * start.log())
        self.raw = nn.Parameter(torch.full_like(start, inverse_softplus(_FIRST_DEVIATION)))

    @property
    def location(self) -> Tensor:
        """Means of ln a^2 (n,), within limits."""
        return self.mean.clamp(-_LIMIT, _LIMIT)

    @property
    def deviation(self) -> Tensor:
        """Standard deviations of ln a^2 (n,)."""
        return softplus(self.raw).clamp(max=_LIMIT)

    def draw(self) -> Tensor:
        """Return a sample of ln a^2 (n,)."""
        return self.location + self.deviation * torch.randn_like(self.mean)

    def entropy(self) -> Tensor:
        """Return the entropy of a^2, summed."""
        return (self.location + 0.5 * torch.log(2 * math.pi * math.e * self.deviation**2)).sum()

    def reciprocal(self) -> Tensor:
        """Return E[1/a^2] (n,)."""
        return torch.exp(-self.location + 0.5 * self.deviation**2)

    def average(self) -> Tensor:
        """Return E[a] (n,)."""
        return torch.exp(0.5 * self.location + self.deviation**2 / 8.0)


def half_cauchy_divergence(scales: LogNormal, width: float) -> Tensor:
    """Return KL(q || C+(0, width)) with auxiliaries at their optimum given the scales, summed.

    The auxiliaries' part is constant for gradients, as after a fixed-point update.
    """
    reciprocal = scales.reciprocal()
    rate = (reciprocal + width**-2).detach()  # of q(lambda) = Inv-Gamma(1, rate)
    log_auxiliary = rate.log() + _EULER  # E log lambda, -psi(1) being Euler's constant
    return (
        -scales.entropy()
        + (_LOG_GAMMA_HALF + 0.5 * log_auxiliary + 1.5 * scales.location + reciprocal / rate).sum()
        + (_LOG_GAMMA_HALF + math.log(width) + 1.5 * log_auxiliary + width**-2 / rate).sum()
        - inverse_gamma_entropy(rate).sum()
    )


def inverse_gamma_entropy(rate: Tensor) -> Tensor:
    """Return the entropy of Inv-Gamma(1, rate)."""
    return 1.0 + rate.log() + 2.0 * _EULER


def inverse_gamma_divergence(scales: LogNormal, shape: float, rate: float) -> Tensor:
    """Return KL(q || Inv-Gamma(shape, rate)) of squared scales, summed."""
    log_prior = (
        shape * math.log(rate) - math.lgamma(shape) - (shape + 1.0) * scales.location - rate * scales.reciprocal()
    )
    return -scales.entropy() - log_prior.sum()


_EULER = 0.5772156649015329
_LOG_GAMMA_HALF = 0.5 * math.log(math.pi)


def inverse_softplus(value: float) -> float:
    """Return x with softplus(x) = value."""
    return math.log(math.expm1(value))


class Slab(nn.Module):
    """The width c of the slab, shared by all layers.

    Parameters
    ----------
    shape, rate
        Of the prior c^2 ~ Inv-Gamma(shape, rate).
    """

    def __init__(self, shape: float, rate: float) -> None:
        super().__init__()
        self.shape, self.rate = shape, rate
        self.squared = LogNormal(torch.full((1,), math.sqrt(rate / (shape + 1.0))))

    def divergence(self) -> Tensor:
        """Return KL(q || p)."""
        return inverse_gamma_divergence(self.squared, self.shape, self.rate)


class UnitScales(nn.Module):
    """Scales tau~ v of the units of one layer.

    Parameters
    ----------
    units
        Number of units.
    unit_width, layer_width
        b_0 and b_g.
    slab
        The slab; None for the horseshoe without regularisation.
    generator
        Draws the first scales.
    """

    def __init__(
        self, units: int, unit_width: float, layer_width: float, slab: Slab | None, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.unit_width, self.layer_width = unit_width, layer_width
        drawn = torch.tan(0.5 * math.pi * torch.rand(units, generator=generator))  # of C+(0, 1)
        self.units = LogNormal(unit_width * drawn.clamp(0.5, 2.0))
        self.layer = LogNormal(torch.full((1,), float(layer_width)))
        self._slab = (slab,)  # in a tuple, so that its parameters are counted once and not here

    @property
    def slab(self) -> Slab | None:
        """The slab that all layers share."""
        return self._slab[0]

    def forward(self) -> Tensor:
        """Return a sample of the scales (units,)."""
        log_squared = self.units.draw() + self.layer.draw()
        if self.slab is not None:
            log_squared = log_squared - softplus(log_squared - self.slab.squared.draw())
        return torch.exp(0.5 * log_squared.clamp(-_LIMIT, _LIMIT))

    def divergence(self) -> Tensor:
        """Return KL(q || p) of the scales of units and layer, the slab's apart."""
        return half_cauchy_divergence(self.units, self.unit_width) + half_cauchy_divergence(
            self.layer, self.layer_width
        )

    def averages(self) -> Tensor:
        """Return the scales at the posterior means of tau, v and c (units,): appendix D of Claici et al. 2020."""
        squared = self.units.average() ** 2
        if self.slab is not None:
            slab = self.slab.squared.average() ** 2
            squared = slab * squared / (slab + squared * self.layer.average() ** 2)
        return squared.sqrt() * self.layer.average()

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return E[scale] and E[scale^2] (units,), by quadrature over ln tau^2 v^2 and ln c^2."""
        nodes, weights = (torch.as_tensor(one) for one in np.polynomial.hermite_e.hermegauss(_NODES))
        weights = weights / weights.sum()
        location = (self.units.location + self.layer.location).double()
        deviation = (self.units.deviation**2 + self.layer.deviation**2).double().sqrt()
        nodes, weights = nodes.to(location), weights.to(location)
        log_squared = location[:, None, None] + deviation[:, None, None] * nodes[:, None]
        if self.slab is None:
            log_squared = log_squared.expand(-1, -1, _NODES)
        else:
            slab = self.slab.squared.location.double() + self.slab.squared.deviation.double() * nodes
            log_squared = log_squared - softplus(log_squared - slab)
        joint = weights[:, None] * weights
        first = (joint * torch.exp(0.5 * log_squared)).sum(dim=(1, 2))
        second = (joint * torch.exp(log_squared)).sum(dim=(1, 2))
        kind = self.units.mean.dtype
        return first.to(kind), second.to(kind)


class LayerScale(nn.Module):
    """One scale kappa ~ C+(0, width) for all weights of the output layer.

    Parameters
    ----------
    width
        Of the half-Cauchy prior.
    """

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width
        self.layer = LogNormal(torch.full((1,), float(width)))

    def forward(self) -> Tensor:
        """Return a sample of the scale (1,)."""
        return torch.exp(0.5 * self.layer.draw().clamp(-_LIMIT, _LIMIT))

    def divergence(self) -> Tensor:
        """Return KL(q || p)."""
        return half_cauchy_divergence(self.layer, self.width)

    def averages(self) -> Tensor:
        """Return the posterior mean of the scale (1,)."""
        return self.layer.average()

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return E[scale] and E[scale^2] (1,)."""
        return self.averages(), torch.exp(self.layer.location + 0.5 * self.layer.deviation**2)
