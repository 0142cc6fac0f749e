"""Regularised horseshoe prior over the scales of a layer's units, and its variational posterior.

    w_kl | tau, v, c ~ N(0, tau~_kl^2 v_l^2 I),   tau~^2 = c^2 tau^2 / (c^2 + tau^2 v^2),
    tau_kl ~ C+(0, b_0),  v_l ~ C+(0, b_g),  c^2 ~ Inv-Gamma(c_a, c_b),

for unit k of layer l, (14) of Claici et al. 2020 after Ghosh, Yao, Doshi-Velez (2019): tau is the scale of a unit, v
that of its layer, c the width of the slab. For tau v much smaller than c the scale tau~ v is tau v (horseshoe); for
tau v much larger it is c (slab).

The variational posterior is log-normal on squared scales, ln a^2 ~ N(mu, sigma^2). A half-Cauchy distribution C+(0, b)
is written with an auxiliary, a^2 | lambda ~ Inv-Gamma(1/2, 1/lambda), lambda ~ Inv-Gamma(1/2, 1/b^2), whose optimal
posterior Inv-Gamma(1, E[1/a^2] + 1/b^2) is taken in closed form at every step.

Departure from the source: (14) as printed has the inverse gamma on c; here it is on c^2, as in Ghosh et al.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

_MAX_LOG = 30.0
"""Bound of logarithms of scales, against overflow only: e^30 is far beyond any weight, and its square is a float32."""

_INITIAL_DEVIATION = 0.05
"""Initial standard deviation of ln a^2. Chosen by hand; nobody has measured other values."""

_N_NODES = 24
"""Nodes of the Gauss-Hermite quadrature in each direction. Chosen by hand; tests compare the moments with sampling."""


class LogNormal(nn.Module):
    """Independent log-normal posteriors of squared scales: ln a^2 ~ N(location, deviation^2).

    `initial` (n,) are the initial scales a.
    """

    def __init__(self, initial: Tensor) -> None:
        super().__init__()
        self.mean = nn.Parameter(2.0 * initial.log())
        # The deviation is softplus(raw), so that any real number is valid.
        self.raw = nn.Parameter(torch.full_like(initial, inverse_softplus(_INITIAL_DEVIATION)))

    @property
    def location(self) -> Tensor:
        """Means of ln a^2 (n,), within bounds."""
        return self.mean.clamp(-_MAX_LOG, _MAX_LOG)

    @property
    def deviation(self) -> Tensor:
        """Standard deviations of ln a^2 (n,)."""
        return softplus(self.raw).clamp(max=_MAX_LOG)

    def draw(self) -> Tensor:
        """Return a reparametrised sample of ln a^2 (n,)."""
        return self.location + self.deviation * torch.randn_like(self.mean)

    def entropy(self) -> Tensor:
        """Return the entropy of a^2, mu + log(2 pi e sigma^2) / 2, summed over scales."""
        return (self.location + 0.5 * torch.log(2 * math.pi * math.e * self.deviation**2)).sum()

    def mean_inverse_square(self) -> Tensor:
        """Return E[1/a^2] = exp(-mu + sigma^2 / 2) (n,)."""
        return torch.exp(-self.location + 0.5 * self.deviation**2)

    def mean_scale(self) -> Tensor:
        """Return E[a] = exp(mu / 2 + sigma^2 / 8) (n,)."""
        return torch.exp(0.5 * self.location + self.deviation**2 / 8.0)


def half_cauchy_divergence(scales: LogNormal, width: float) -> Tensor:
    """Return KL(q || C+(0, width)) with auxiliaries at their optimum given the scales, summed.

    The auxiliaries' part is constant for gradients, as after a fixed-point update.
    """
    inverse_square = scales.mean_inverse_square()  # E[1/a^2]
    rate = (inverse_square + width**-2).detach()  # of q(lambda) = Inv-Gamma(1, rate)
    log_auxiliary = rate.log() + _EULER  # E log lambda = log(rate) - psi(1)
    return (
        -scales.entropy()
        # -E log Inv-Gamma(a^2 | 1/2, 1/lambda), with E[1/lambda] = 1/rate
        + (_LOG_GAMMA_HALF + 0.5 * log_auxiliary + 1.5 * scales.location + inverse_square / rate).sum()
        # -E log Inv-Gamma(lambda | 1/2, 1/width^2)
        + (_LOG_GAMMA_HALF + math.log(width) + 1.5 * log_auxiliary + width**-2 / rate).sum()
        - inverse_gamma_entropy(rate).sum()
    )


def inverse_gamma_entropy(rate: Tensor) -> Tensor:
    """Return the entropy of Inv-Gamma(1, rate): 1 + log(rate) - 2 psi(1)."""
    return 1.0 + rate.log() + 2.0 * _EULER


def inverse_gamma_divergence(scales: LogNormal, shape: float, rate: float) -> Tensor:
    """Return KL(q || Inv-Gamma(shape, rate)) of squared scales, summed."""
    log_prior = (
        shape * math.log(rate)
        - math.lgamma(shape)
        - (shape + 1.0) * scales.location
        - rate * scales.mean_inverse_square()
    )
    return -scales.entropy() - log_prior.sum()


_EULER = 0.5772156649015329
"""Euler's constant, -psi(1)."""
_LOG_GAMMA_HALF = 0.5 * math.log(math.pi)
"""log Gamma(1/2)."""


def inverse_softplus(value: float) -> float:
    """Return x with softplus(x) = value."""
    return math.log(math.expm1(value))


class Slab(nn.Module):
    """The width c of the slab, shared by all layers, and its posterior.

    The prior is c^2 ~ Inv-Gamma(shape, rate), whose mode rate / (shape + 1) is the initial value.
    """

    def __init__(self, shape: float, rate: float) -> None:
        super().__init__()
        self.shape, self.rate = shape, rate
        self.squared = LogNormal(torch.full((1,), math.sqrt(rate / (shape + 1.0))))

    def divergence(self) -> Tensor:
        """Return KL(q || p)."""
        return inverse_gamma_divergence(self.squared, self.shape, self.rate)


class UnitScales(nn.Module):
    """Scales tau~ v of the units of one layer, and their posterior.

    The half-Cauchy priors of tau and v have the widths b_0 (`unit_width`) and b_g (`layer_width`). Without a slab it is
    the horseshoe without regularisation. `generator` draws the initial scales.
    """

    def __init__(
        self, units: int, unit_width: float, layer_width: float, slab: Slab | None, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.unit_width, self.layer_width = unit_width, layer_width
        half_cauchy = torch.tan(0.5 * math.pi * torch.rand(units, generator=generator))  # C+(0, 1) by its quantiles
        # Initial scales near the prior's median 1: half-Cauchy draws may be a thousand. The bounds are chosen by hand.
        self.units = LogNormal(unit_width * half_cauchy.clamp(0.5, 2.0))
        self.layer = LogNormal(torch.full((1,), float(layer_width)))
        self._slab = (slab,)  # in a tuple, so that its parameters are counted once and not here

    @property
    def slab(self) -> Slab | None:
        """The slab that all layers share."""
        return self._slab[0]

    def forward(self) -> Tensor:
        """Return a sample of the scales (units,)."""
        # ln(tau~^2 v^2) = x - log(1 + exp(x - ln c^2)) with x = ln(tau^2 v^2)
        log_squared = self.units.draw() + self.layer.draw()
        if self.slab is not None:
            log_squared = log_squared - softplus(log_squared - self.slab.squared.draw())
        return torch.exp(0.5 * log_squared.clamp(-_MAX_LOG, _MAX_LOG))

    def divergence(self) -> Tensor:
        """Return KL(q || p) of the scales of units and layer; that of the slab counts once for all layers."""
        return half_cauchy_divergence(self.units, self.unit_width) + half_cauchy_divergence(
            self.layer, self.layer_width
        )

    def plug_in(self) -> Tensor:
        """Return the scales (units,) at the posterior means of tau, v and c: appendix D of Claici et al. 2020."""
        tau_squared = self.units.mean_scale() ** 2
        if self.slab is not None:
            c_squared = self.slab.squared.mean_scale() ** 2
            tau_squared = c_squared * tau_squared / (c_squared + tau_squared * self.layer.mean_scale() ** 2)
        return tau_squared.sqrt() * self.layer.mean_scale()

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return E[scale] and E[scale^2] (units,), by quadrature over ln tau^2 v^2 and ln c^2 with Q nodes each."""
        nodes, weights = (torch.as_tensor(values) for values in np.polynomial.hermite_e.hermegauss(_N_NODES))  # (Q,)
        weights = weights / weights.sum()
        location = (self.units.location + self.layer.location).double()  # (units,)
        deviation = (self.units.deviation**2 + self.layer.deviation**2).double().sqrt()  # (units,)
        nodes, weights = nodes.to(location), weights.to(location)
        log_squared = location[:, None, None] + deviation[:, None, None] * nodes[:, None]  # (units, Q, 1)
        if self.slab is None:
            log_squared = log_squared.expand(-1, -1, _N_NODES)
        else:
            log_slab = self.slab.squared.location.double() + self.slab.squared.deviation.double() * nodes  # (Q,)
            log_squared = log_squared - softplus(log_squared - log_slab)  # (units, Q, Q)
        joint = weights[:, None] * weights  # (Q, Q)
        first = (joint * torch.exp(0.5 * log_squared)).sum(dim=(1, 2))
        second = (joint * torch.exp(log_squared)).sum(dim=(1, 2))
        dtype = self.units.mean.dtype
        return first.to(dtype), second.to(dtype)


class LayerScale(nn.Module):
    """One scale kappa ~ C+(0, width) for all weights of the output layer, and its posterior.

    The layer's units are the classes, none of which may be switched off, so it has no horseshoe.
    """

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width
        self.layer = LogNormal(torch.full((1,), float(width)))

    def forward(self) -> Tensor:
        """Return a sample of the scale (1,)."""
        return torch.exp(0.5 * self.layer.draw().clamp(-_MAX_LOG, _MAX_LOG))

    def divergence(self) -> Tensor:
        """Return KL(q || p)."""
        return half_cauchy_divergence(self.layer, self.width)

    def plug_in(self) -> Tensor:
        """Return the posterior mean of the scale (1,)."""
        return self.layer.mean_scale()

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return E[scale] and E[scale^2] (1,)."""
        return self.plug_in(), torch.exp(self.layer.location + 0.5 * self.layer.deviation**2)
