"""The horseshoe learner against quadrature, scipy's distributions, sampling and finite differences."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import nn

from consilience.networks.gaussian.learners.horseshoe import (
    LayerScale,
    LogNormal,
    Slab,
    UnitScales,
    half_cauchy_divergence,
    inverse_gamma_divergence,
    inverse_gamma_entropy,
    inverse_softplus,
)
from consilience.networks.gaussian.learners.mean_field import GaussianBNN, HorseshoeBNN
from consilience.networks.gaussian.learners.variational_layers import VariationalLayer
from tests.tolerances import DIFFERENCES, QUADRATURE, ROOT_FINDING, ROUNDING, STANDARD_ERRORS

pytestmark = pytest.mark.covering(2)

DRAWS = 1500


@pytest.fixture(autouse=True)
def seeded():
    """Draw the same samples in every run, and leave the generator of the other tests as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def log_normal(means, deviations):
    """Return posteriors ln a^2 ~ N(mean, deviation^2) in double precision."""
    made = LogNormal(torch.ones(len(means), dtype=torch.float64))
    with torch.no_grad():
        made.mean.copy_(torch.tensor(means, dtype=torch.float64))
        made.raw.copy_(torch.tensor([inverse_softplus(float(d)) for d in deviations], dtype=torch.float64))
    return made


def set_scales(scales, mean, deviation):
    """Give every log-normal of a module the same parameters, or those of a sequence."""
    with torch.no_grad():
        scales.mean.copy_(torch.as_tensor(mean, dtype=torch.float64).expand_as(scales.mean))
        scales.raw.fill_(inverse_softplus(deviation))


def unit_scales(means, layer, slab, deviation, slab_deviation=None):
    """Return the scales of one layer, with these means of ln tau^2, ln v^2 and ln c^2 (None for no slab)."""
    made_slab = None if slab is None else Slab(2.0, 6.0).double()
    made = UnitScales(len(means), 1.0, 1.0, made_slab, torch.Generator().manual_seed(0)).double()
    set_scales(made.units, means, deviation)
    set_scales(made.layer, layer, deviation)
    if made_slab is not None:
        set_scales(made_slab.squared, slab, deviation if slab_deviation is None else slab_deviation)
    return made


def draws(scales, number=DRAWS):
    """Return samples of scales (number, units)."""
    with torch.no_grad():
        return np.array([scales().numpy() for _ in range(number)])


def assert_mean(samples, expected):
    """Assert that the mean over the first axis of samples is as expected, within its standard error."""
    error = samples.std(axis=0) / math.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(axis=0) - expected) < STANDARD_ERRORS * error + 1e-12)


def expectation(function, mean, deviation):
    """Return E[f(z)] of z ~ N(mean, deviation^2) by adaptive quadrature."""

    def weighed(z):
        return function(z) * stats.norm.pdf(z, mean, deviation)

    return integrate.quad(weighed, mean - 12 * deviation, mean + 12 * deviation, epsabs=1e-12, epsrel=1e-10, limit=200)[
        0
    ]


PAIRS = [(-1.3, 0.4), (0.2, 0.05), (2.0, 1.1), (-6.0, 2.0)]


# -- Closed forms of log-normal and inverse-gamma posteriors.


@pytest.mark.parametrize(("mean", "deviation"), PAIRS)
def test_the_entropy_of_squared_scales_is_that_of_a_log_normal(mean, deviation):
    found = log_normal([mean, 0.5], [deviation, 0.3]).entropy().item()
    expected = sum(stats.lognorm(s=s, scale=math.exp(m)).entropy() for m, s in ((mean, deviation), (0.5, 0.3)))
    assert found == pytest.approx(expected, rel=QUADRATURE, abs=QUADRATURE)


@pytest.mark.parametrize(("mean", "deviation"), PAIRS)
def test_expectations_of_scales_are_their_integrals(mean, deviation):
    scales = log_normal([mean], [deviation])
    inverse_square = expectation(lambda z: math.exp(-z), mean, deviation)
    scale = expectation(lambda z: math.exp(z / 2), mean, deviation)
    assert scales.mean_inverse_square().item() == pytest.approx(inverse_square, rel=QUADRATURE)
    assert scales.mean_scale().item() == pytest.approx(scale, rel=QUADRATURE)


@pytest.mark.parametrize(("mean", "deviation"), PAIRS)
def test_samples_of_logarithms_are_normal(mean, deviation):
    scales = log_normal([mean], [deviation])
    with torch.no_grad():
        drawn = np.concatenate([scales.draw().numpy() for _ in range(4000)])
    assert stats.kstest(drawn, stats.norm(mean, deviation).cdf).pvalue > 1e-4


@pytest.mark.parametrize("rate", [0.03, 1.0, 47.0])
def test_the_entropy_of_auxiliaries_is_that_of_an_inverse_gamma(rate):
    found = inverse_gamma_entropy(torch.tensor([rate], dtype=torch.float64)).item()
    assert found == pytest.approx(stats.invgamma(1.0, scale=rate).entropy(), rel=QUADRATURE, abs=QUADRATURE)


@pytest.mark.parametrize(("shape", "rate"), [(2.0, 6.0), (0.5, 1.0), (7.0, 0.3)])
@pytest.mark.parametrize(("mean", "deviation"), PAIRS)
def test_the_divergence_from_an_inverse_gamma_is_its_integral(mean, deviation, shape, rate):
    scales = log_normal([mean], [deviation])
    prior = stats.invgamma(shape, scale=rate)
    # The density of t = exp z on the scale of z has the factor t.
    expected = expectation(
        lambda z: stats.norm.logpdf(z, mean, deviation) - z - prior.logpdf(math.exp(z)), mean, deviation
    )
    found = inverse_gamma_divergence(scales, shape, rate).item()
    assert found == pytest.approx(expected, rel=QUADRATURE, abs=QUADRATURE)


# -- Half-Cauchy scales by auxiliaries.


def divergence_with_auxiliaries(mean, deviation, width, shape, rate):
    """Return KL(q(t) IG(lam | shape, rate) || IG(t | 1/2, 1/lam) IG(lam | 1/2, 1/width^2)) by quadrature, t = a^2."""
    auxiliary = stats.invgamma(shape, scale=rate)
    top = stats.invgamma(0.5, scale=1 / width**2)

    def over_lam(function):
        def weighed(z):
            return function(z) * auxiliary.pdf(math.exp(z)) * math.exp(z)

        return integrate.quad(weighed, -30, 60, points=[math.log(rate)], limit=400, epsabs=1e-12, epsrel=1e-10)[0]

    own = over_lam(lambda z: auxiliary.logpdf(math.exp(z)) - top.logpdf(math.exp(z)))
    log_lam, inverse_lam = over_lam(lambda z: z), over_lam(lambda z: math.exp(-z))
    # log IG(t | 1/2, 1/lam) is linear in log lam and 1 / lam, which are independent of t.
    between = expectation(
        lambda z: (
            stats.norm.logpdf(z, mean, deviation)
            - z
            + special.gammaln(0.5)
            + 0.5 * log_lam
            + 1.5 * z
            + math.exp(-z) * inverse_lam
        ),
        mean,
        deviation,
    )
    return own + between


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "deviation", "width"), [(-1.3, 0.4, 0.1), (2.0, 1.1, 2.0)])
def test_the_divergence_from_a_half_cauchy_is_that_with_optimal_auxiliaries(mean, deviation, width):
    found = half_cauchy_divergence(log_normal([mean], [deviation]), width).item()
    rate = math.exp(-mean + deviation**2 / 2) + 1 / width**2
    best = divergence_with_auxiliaries(mean, deviation, width, 1.0, rate)
    assert found == pytest.approx(best, rel=QUADRATURE, abs=QUADRATURE)

    def at(logs):
        return divergence_with_auxiliaries(mean, deviation, width, math.exp(logs[0]), rate * math.exp(logs[1]))

    # Inv-Gamma(1, E[1/t] + 1/b^2) is the best of all inverse gammas.
    for step in ((0.2, 0.0), (-0.2, 0.0), (0.0, 0.2), (0.0, -0.2)):
        assert at(step) > best


@pytest.mark.parametrize("width", [0.1, 1.0, 5.0])
@pytest.mark.parametrize(("mean", "deviation"), PAIRS[:3])
def test_auxiliaries_only_add_to_the_divergence_from_a_half_cauchy(mean, deviation, width):
    prior = stats.halfcauchy(scale=width)
    # On the scale of z = ln a^2, a = exp(z / 2) has the factor a / 2.
    exact = expectation(
        lambda z: stats.norm.logpdf(z, mean, deviation) - prior.logpdf(math.exp(z / 2)) - z / 2 + math.log(2),
        mean,
        deviation,
    )
    found = half_cauchy_divergence(log_normal([mean], [deviation]), width).item()
    assert found > exact - QUADRATURE
    # They say no more of the scale than its own spread allows: the gap is at most KL of a spread inverse gamma.
    assert found < exact + deviation**2


@pytest.mark.parametrize("width", [0.1, 1.0, 5.0])
def test_scales_known_exactly_have_the_density_of_a_half_cauchy(width):
    for scale in stats.halfcauchy(scale=width).ppf([0.01, 0.2, 0.5, 0.9, 0.999]):
        known = log_normal([2 * math.log(scale)], [1e-4])
        log_density = -(half_cauchy_divergence(known, width) + known.entropy()).item()
        # Of t = a^2: p(t) = p(a) / (2 a).
        expected = stats.halfcauchy(scale=width).logpdf(scale) - math.log(2 * scale)
        assert log_density == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("width", [0.3, 2.0])
def test_auxiliaries_reproduce_the_quantiles_of_a_half_cauchy(width):
    rng = np.random.default_rng(0)
    auxiliary = stats.invgamma(0.5, scale=1 / width**2).rvs(size=20_000, random_state=rng)
    squared = (1 / auxiliary) / rng.gamma(0.5, size=20_000)
    assert stats.kstest(np.sqrt(squared), stats.halfcauchy(scale=width).cdf).pvalue > 1e-4


def test_divergences_add_over_scales():
    together = half_cauchy_divergence(log_normal(*zip(*PAIRS, strict=True)), 0.7).item()
    apart = sum(half_cauchy_divergence(log_normal([m], [s]), 0.7).item() for m, s in PAIRS)
    assert together == pytest.approx(apart, rel=ROUNDING)


@pytest.mark.parametrize("divergence", [
    lambda scales: half_cauchy_divergence(scales, 0.7),
    lambda scales: inverse_gamma_divergence(scales, 2.0, 6.0),
], ids=["half-Cauchy", "inverse gamma"])  # fmt: skip
@pytest.mark.parametrize(("mean", "deviation"), PAIRS)
def test_gradients_are_those_of_the_divergence_at_its_optimum(mean, deviation, divergence):
    scales = log_normal([mean], [deviation])
    divergence(scales).backward()
    for parameter in (scales.mean, scales.raw):
        step = 1e-4
        values = []
        for side in (-2, -1, 1, 2):
            with torch.no_grad():
                parameter += side * step
                values.append(divergence(scales).item())
                parameter -= side * step
        slope = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
        assert parameter.grad.item() == pytest.approx(slope, rel=DIFFERENCES, abs=DIFFERENCES)


# -- Scales of units.


def test_without_slab_the_scale_is_that_of_unit_times_layer():
    scales = unit_scales([-1.0, 0.5, 2.0], -0.7, None, 1e-6)
    expected = np.exp(0.5 * (np.array([-1.0, 0.5, 2.0]) - 0.7))
    np.testing.assert_allclose(draws(scales, 3), np.tile(expected, (3, 1)), rtol=1e-4)
    np.testing.assert_allclose(scales.plug_in().detach(), expected, rtol=1e-9)


def test_far_below_the_slab_the_scale_is_the_horseshoes():
    scales = unit_scales([-3.0, -1.0], -2.0, 25.0, 1e-6)
    expected = np.exp(0.5 * (np.array([-3.0, -1.0]) - 2.0))
    np.testing.assert_allclose(draws(scales, 2)[0], expected, rtol=1e-4)
    np.testing.assert_allclose(scales.plug_in().detach(), expected, rtol=1e-9)


def test_far_above_the_slab_the_scale_is_the_slabs():
    scales = unit_scales([12.0, 15.0], 10.0, 0.4, 1e-6)
    np.testing.assert_allclose(draws(scales, 2)[0], np.exp(0.2), rtol=1e-4)
    np.testing.assert_allclose(scales.plug_in().detach(), np.exp(0.2), rtol=1e-4)


@pytest.mark.parametrize("slab", [None, -0.3, 1.5])
def test_plug_in_scales_take_every_scale_at_its_mean(slab):
    means, layer, deviation = np.array([-1.0, 0.5, 2.0]), 0.3, 0.8
    scales = unit_scales(means, layer, slab, deviation)
    tau, v = np.exp(means / 2 + deviation**2 / 8), np.exp(layer / 2 + deviation**2 / 8)
    tilde = tau
    if slab is not None:
        c = np.exp(slab / 2 + deviation**2 / 8)
        tilde = np.sqrt(c**2 * tau**2 / (c**2 + tau**2 * v**2))
    np.testing.assert_allclose(scales.plug_in().detach(), tilde * v, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [0.05, 0.6, 1.5])
@pytest.mark.parametrize("slab", [None, -0.3, 1.5])
def test_moments_of_scales_are_those_of_samples(slab, deviation):
    scales = unit_scales([-1.0, 0.5, 2.0], 0.3, slab, deviation)
    rng = np.random.default_rng(1)
    tau = np.array([-1.0, 0.5, 2.0]) + deviation * rng.normal(size=(400_000, 3))
    v = 0.3 + deviation * rng.normal(size=(400_000, 1))
    squared = np.exp(tau + v)
    if slab is not None:
        c = np.exp(slab + deviation * rng.normal(size=(400_000, 1)))
        squared = c * squared / (c + squared)
    first, second = (part.detach().numpy() for part in scales.moments())
    assert_mean(np.sqrt(squared), first)
    assert_mean(squared, second)


@pytest.mark.parametrize("slab", [None, -0.3])
def test_scales_drawn_in_training_have_these_moments(slab):
    scales = unit_scales([-1.0, 0.5, 2.0], 0.3, slab, 0.6)
    drawn = draws(scales)
    first, second = (part.detach().numpy() for part in scales.moments())
    assert_mean(drawn, first)
    assert_mean(drawn**2, second)


def test_units_of_a_layer_share_its_scale():
    drawn = np.log(draws(unit_scales([0.0, 0.0], 0.0, None, 0.6)))
    # ln tau + ln v: half of ln tau^2 of its own, half of ln v^2 in common.
    assert np.corrcoef(drawn.T)[0, 1] == pytest.approx(0.5, abs=0.08)


def test_the_divergence_of_unit_scales_is_that_of_units_and_layer():
    made = UnitScales(3, 0.6, 0.2, Slab(2.0, 6.0).double(), torch.Generator().manual_seed(1)).double()
    set_scales(made.units, [-1.0, 0.5, 2.0], 0.4)
    set_scales(made.layer, -0.2, 0.3)
    units = sum(half_cauchy_divergence(log_normal([m], [0.4]), 0.6).item() for m in (-1.0, 0.5, 2.0))
    layer = half_cauchy_divergence(log_normal([-0.2], [0.3]), 0.2).item()
    assert made.divergence().item() == pytest.approx(units + layer, rel=1e-9)


def test_the_divergence_of_the_slab_is_that_from_its_inverse_gamma():
    slab = Slab(2.0, 6.0).double()
    set_scales(slab.squared, 0.9, 0.3)
    assert slab.divergence().item() == pytest.approx(
        inverse_gamma_divergence(log_normal([0.9], [0.3]), 2.0, 6.0).item(), rel=1e-9
    )


def test_the_output_layer_has_one_scale():
    scale = LayerScale(0.8).double()
    set_scales(scale.layer, -0.4, 0.5)
    drawn = draws(scale)
    assert drawn.shape[1:] == (1,)
    assert_mean(drawn, scale.moments()[0].detach().numpy())
    assert_mean(drawn**2, scale.moments()[1].detach().numpy())
    assert scale.plug_in().item() == pytest.approx(math.exp(-0.2 + 0.25 / 8), rel=1e-9)
    assert scale.divergence().item() == pytest.approx(half_cauchy_divergence(log_normal([-0.4], [0.5]), 0.8).item())


# -- Layers.


def layer_of(made, estimator="local", scales=None, prior_variance=1.0, seed=0):
    """Return a variational layer with random means and deviations in double precision."""
    generator = torch.Generator().manual_seed(seed)
    layer = VariationalLayer(made, estimator, prior_variance, 0.05, scales, generator).double()
    with torch.no_grad():
        for name, mean in layer.means.items():
            mean.copy_(torch.randn(mean.shape, generator=generator, dtype=torch.float64))
            layer.raws[name].copy_(torch.randn(mean.shape, generator=generator, dtype=torch.float64) - 0.5)
    return layer


def gaussians_of(layer):
    """Return means and deviations by name, without scales, in NumPy."""
    deviations = {name: value.detach().numpy() for name, value in layer.deviations().items()}
    return {name: (mean.detach().numpy(), deviations[name]) for name, mean in layer.means.items()}


def normal_divergence(mean, deviation, prior_deviation):
    """Return KL(N(mean, deviation^2) || N(0, prior_deviation^2)) summed, by torch's own formula."""
    one, prior = (
        torch.distributions.Normal(*(torch.as_tensor(part, dtype=torch.float64) for part in both))
        for both in ((mean, deviation), (0.0, prior_deviation))
    )
    return torch.distributions.kl_divergence(one, prior).sum().item()


@pytest.mark.parametrize("prior_variance", [1.0, 0.01])
@pytest.mark.parametrize("made", [nn.Linear(4, 3), nn.Conv2d(2, 3, 3), nn.LayerNorm(5)], ids=["linear", "conv", "norm"])
def test_the_divergence_of_a_layer_without_scales_is_that_of_gaussians(made, prior_variance):
    layer = layer_of(made, prior_variance=prior_variance)
    expected = sum(normal_divergence(m, s, math.sqrt(prior_variance)) for m, s in gaussians_of(layer).values())
    assert layer.divergence().item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("slab", [None, 0.4])
def test_given_the_scales_the_divergence_is_that_of_scaled_gaussians(slab):
    scales = unit_scales([-1.0, 0.5, 2.0], 0.3, slab, 1e-6)
    layer = layer_of(nn.Linear(4, 3), scales=scales)
    fixed = draws(scales, 1)[0]
    expected = sum(
        normal_divergence(size * mean[unit], size * deviation[unit], size)
        for mean, deviation in gaussians_of(layer).values()
        for unit, size in enumerate(fixed)
    )
    # The slab is shared by layers, and counted apart from them.
    assert layer.divergence().item() - scales.divergence().item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("slab", [None, 0.4])
@pytest.mark.parametrize("deviation", [1e-4, 0.7])
def test_weights_converted_at_the_mean_scales_are_scaled_gaussians(deviation, slab):
    scales = unit_scales([-1.0, 0.5, 2.0], 0.3, slab, deviation)
    layer = layer_of(nn.Linear(4, 3), scales=scales)
    frozen = scales.plug_in().detach().numpy()
    rng = np.random.default_rng(0)
    for name, mean, variance in layer.gaussians(match_moments=False):
        m, s = gaussians_of(layer)[name]
        size = frozen.reshape(-1, *[1] * (m.ndim - 1))
        np.testing.assert_allclose(mean.detach(), size * m, rtol=1e-9)
        np.testing.assert_allclose(variance.detach(), size**2 * s**2, rtol=1e-9)
        drawn = size * (m + s * rng.normal(size=(DRAWS, *m.shape)))
        assert_mean(drawn, mean.detach().numpy())
        assert_mean((drawn - mean.detach().numpy()) ** 2, variance.detach().numpy())


@pytest.mark.parametrize("slab", [None, 0.4])
@pytest.mark.parametrize("deviation", [0.05, 0.7])
def test_weights_converted_by_moments_have_those_of_samples(deviation, slab):
    scales = unit_scales([-1.0, 0.5, 2.0], 0.3, slab, deviation)
    layer = layer_of(nn.Linear(4, 3), scales=scales)
    sizes = draws(scales)
    rng = np.random.default_rng(0)
    for name, mean, variance in layer.gaussians(match_moments=True):
        m, s = gaussians_of(layer)[name]
        drawn = sizes.reshape(DRAWS, -1, *[1] * (m.ndim - 1)) * (m + s * rng.normal(size=(DRAWS, *m.shape)))
        assert_mean(drawn, mean.detach().numpy())
        assert_mean((drawn - mean.detach().numpy()) ** 2, variance.detach().numpy())


def answers(layer, inputs, number):
    """Return draws (number, ...) of a layer's answer to one batch."""
    with torch.no_grad():
        return np.array([layer(inputs).numpy() for _ in range(number)])


@pytest.mark.parametrize("estimator", ["local", "weights"])
def test_what_a_linear_layer_receives_has_exact_mean_and_variance(estimator):
    layer = layer_of(nn.Linear(4, 3), estimator)
    inputs = torch.randn(2, 4, dtype=torch.float64)
    drawn = answers(layer, inputs, DRAWS)
    (m, s), (b, sb) = (gaussians_of(layer)[name] for name in ("weight", "bias"))
    x = inputs.numpy()
    mean, variance = x @ m.T + b, (x**2) @ (s**2).T + sb**2
    assert_mean(drawn, mean)
    assert_mean((drawn - mean) ** 2, variance)
    between = ((drawn - mean)[:, 0] * (drawn - mean)[:, 1]).mean(axis=0)
    shared = (x[0] * x[1]) @ (s**2).T + sb**2
    # Weights are shared by a batch; what is received locally is drawn anew for every observation.
    np.testing.assert_allclose(between, shared if estimator == "weights" else 0, atol=0.06 * variance.max())


@pytest.mark.parametrize("estimator", ["local", "weights"])
def test_what_a_convolution_receives_has_exact_mean_and_variance(estimator):
    layer = layer_of(nn.Conv2d(2, 3, 2, stride=2, padding=1), estimator)
    inputs = torch.randn(1, 2, 3, 3, dtype=torch.float64)
    drawn = answers(layer, inputs, DRAWS)
    (m, s), (b, sb) = ((torch.tensor(p) for p in gaussians_of(layer)[name]) for name in ("weight", "bias"))
    mean = nn.functional.conv2d(inputs, m, b, stride=2, padding=1).numpy()
    variance = nn.functional.conv2d(inputs**2, s**2, sb**2, stride=2, padding=1).numpy()
    assert_mean(drawn, mean)
    assert_mean((drawn - mean) ** 2, variance)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["local", "weights"])
def test_scales_multiply_what_units_receive(estimator):
    scales = unit_scales([-1.0, 0.5, 2.0], 0.3, 0.4, 0.5)
    layer = layer_of(nn.Linear(4, 3), estimator, scales)
    inputs = torch.randn(1, 4, dtype=torch.float64)
    drawn = answers(layer, inputs, DRAWS)
    (m, s), (b, sb) = (gaussians_of(layer)[name] for name in ("weight", "bias"))
    x = inputs.numpy()
    first, second = (part.detach().numpy() for part in scales.moments())
    mean = x @ m.T + b
    assert_mean(drawn, first * mean)
    assert_mean(drawn**2, second * (mean**2 + (x**2) @ (s**2).T + sb**2))


class Pooled(nn.Module):
    """Averages a layer's answers over all positions but the last axis."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        answer = self.layer(inputs)
        if answer.ndim > 2 and not isinstance(self.layer.layer, nn.Linear):
            answer = answer.movedim(1, -1)
        return answer.flatten(1, -2).mean(dim=1) if answer.ndim > 2 else answer


def pooled_case(name):
    """Return a layer and inputs of two observations."""
    inputs = torch.randn(2, 1, 6, dtype=torch.float64)
    return {
        "linear": (nn.Linear(6, 2), inputs[:, 0]),
        "linear over a sequence": (nn.Linear(2, 2), inputs.reshape(2, 3, 2)),
        "convolution": (nn.Conv1d(1, 2, 2), inputs),
    }[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "linear over a sequence", "convolution"])
def test_both_estimators_have_the_same_expected_gradient(name):
    made, inputs = pooled_case(name)
    found = {}
    for estimator in ("local", "weights"):
        layer = layer_of(made, estimator)
        model, parameters = Pooled(layer), list(layer.parameters())
        gradients = []
        for _ in range(2000):
            loss = nn.functional.cross_entropy(model(inputs), torch.tensor([0, 1]), reduction="sum")
            gradients.append(np.concatenate([g.numpy().ravel() for g in torch.autograd.grad(loss, parameters)]))
        found[estimator] = np.array(gradients)
    error = np.sqrt(sum(one.var(axis=0) / len(one) for one in found.values())) + ROUNDING
    assert np.all(np.abs(found["local"].mean(axis=0) - found["weights"].mean(axis=0)) < STANDARD_ERRORS * error)
    assert np.abs(found["local"].mean(axis=0)).max() > STANDARD_ERRORS * error.max()  # they tell something


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "linear over a sequence", "convolution"])
def test_both_estimators_have_the_same_spread_of_an_average_over_positions(name):
    made, inputs = pooled_case(name)
    drawn = {one: answers(Pooled(layer_of(made, one)), inputs, DRAWS) for one in ("local", "weights")}
    np.testing.assert_allclose(drawn["local"].var(axis=0), drawn["weights"].var(axis=0), rtol=0.25)


def test_the_order_of_units_does_not_matter():
    order = torch.tensor([2, 0, 1])
    scales = unit_scales([-1.0, 0.5, 2.0], 0.3, 0.4, 0.5)
    layer = layer_of(nn.Linear(4, 3), "local", scales)
    after = layer_of(nn.Linear(3, 2), "local")
    before = layer.divergence().item() + after.divergence().item()
    plain = {name: (mean.clone(), variance.clone()) for name, mean, variance in layer.gaussians(match_moments=True)}
    with torch.no_grad():
        for part in (layer.means, layer.raws):
            part["weight"].copy_(part["weight"][order].clone())
            part["bias"].copy_(part["bias"][order].clone())
            after_part = after.means if part is layer.means else after.raws
            after_part["weight"].copy_(after_part["weight"][:, order].clone())
        for part in (scales.units.mean, scales.units.raw):
            part.copy_(part[order].clone())
    assert layer.divergence().item() + after.divergence().item() == pytest.approx(before, rel=ROUNDING)
    for name, mean, variance in layer.gaussians(match_moments=True):
        torch.testing.assert_close(mean, plain[name][0][order])
        torch.testing.assert_close(variance, plain[name][1][order])


# -- Learners.


def blobs(number=120, classes=3, seed=0):
    """Return points (n, 2) in Gaussian clouds on a circle, and their class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(number) % classes
    angles = 2 * np.pi * labels / classes
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) * 2 + 0.5 * rng.normal(size=(number, 2)), labels


def log_bound(posterior, inputs, labels, prior_variance, samples=400, seed=0):
    """Return the evidence lower bound of Gaussians under N(0, prior_variance), and its standard error, by sampling."""
    rng = np.random.default_rng(seed)
    means = {name: np.asarray(value, dtype=float) for name, value in posterior.means.items()}
    deviations = {name: np.sqrt(np.asarray(value, dtype=float)) for name, value in posterior.variances.items()}
    likelihoods = []
    for _ in range(samples):
        drawn = {name: mean + deviations[name] * rng.normal(size=mean.shape) for name, mean in means.items()}
        hidden = np.maximum(inputs @ drawn["0.weight"].T + drawn["0.bias"], 0)
        logits = hidden @ drawn["2.weight"].T + drawn["2.bias"]
        likelihoods.append(
            (logits - special.logsumexp(logits, axis=1, keepdims=True))[range(len(labels)), labels].sum()
        )
    kl = sum(normal_divergence(means[name], deviations[name], math.sqrt(prior_variance)) for name in means)
    return np.mean(likelihoods) - kl, np.std(likelihoods)


def test_the_recorded_bound_is_that_of_the_posterior():
    inputs, labels = blobs()
    learner = GaussianBNN(hidden=(6,), epochs=80, batch_size=120, learning_rate=0.05, prior_variance=0.5)
    fitted = learner.fit(inputs, labels, classes=3)
    # The steps have become so small at the end of the cosine that the last epochs are those of the posterior returned;
    # each is one draw per observation, three of them with half of the error of one.
    bound, error = log_bound(fitted.posterior, inputs, labels, 0.5)
    assert fitted.history[-3:].mean() == pytest.approx(bound, abs=3 * error)


@pytest.mark.parametrize("estimator", ["local", "weights"])
@pytest.mark.parametrize("learner", [HorseshoeBNN, GaussianBNN])
def test_the_bound_rises_in_training(learner, estimator):
    inputs, labels = blobs()
    options = {"prior_variance": 0.5} if learner is GaussianBNN else {}
    fitted = learner(hidden=(6,), epochs=40, batch_size=120, learning_rate=0.05, estimator=estimator, **options).fit(
        inputs, labels, classes=3
    )
    thirds = np.array_split(fitted.history, 4)
    assert len(fitted.history) == 40
    assert np.all(np.diff([part.mean() for part in thirds]) > 0)


@pytest.mark.parametrize("learner", [HorseshoeBNN, GaussianBNN])
def test_the_same_seed_gives_the_same_posterior_and_leaves_torch_alone(learner):
    inputs, labels = blobs()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    made = [learner(hidden=(4,), epochs=3, seed=3).fit(inputs, labels, classes=3) for _ in range(2)]
    chances = [one.posterior.predict(inputs, samples=8, rng=2) for one in made]
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(77)
    made.append(learner(hidden=(4,), epochs=3, seed=3).fit(inputs, labels, classes=3))
    chances.append(made[-1].posterior.predict(inputs, samples=8, rng=2))
    for one, chance in zip(made[1:], chances[1:], strict=True):
        np.testing.assert_array_equal(one.history, made[0].history)
        np.testing.assert_array_equal(chance, chances[0])
        for name, mean in made[0].posterior.means.items():
            assert torch.equal(one.posterior.means[name], mean)
            assert torch.equal(one.posterior.variances[name], made[0].posterior.variances[name])
    other = learner(hidden=(4,), epochs=3, seed=4).fit(inputs, labels, classes=3)
    assert not torch.equal(other.posterior.means["0.weight"], made[0].posterior.means["0.weight"])


def test_a_module_that_is_handed_in_is_left_as_it_is():
    inputs, labels = blobs()
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    HorseshoeBNN(module=module, epochs=2).fit(inputs, labels, classes=3)
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_class_that_was_never_seen_keeps_the_gaussian_prior_of_its_outgoing_weights():
    inputs, labels = blobs()
    seen = labels != 2
    learner = GaussianBNN(hidden=(8,), epochs=150, batch_size=80, learning_rate=0.05, prior_variance=0.25,
                          logit_adjustment=True)  # fmt: skip
    posterior = learner.fit(inputs[seen], labels[seen], classes=3).posterior
    for name in ("2.weight", "2.bias"):
        mean, variance = np.asarray(posterior.means[name]), np.asarray(posterior.variances[name])
        np.testing.assert_allclose(mean[2], 0, atol=0.05)
        np.testing.assert_allclose(variance[2], 0.25, rtol=0.1)
    weights, spread = np.asarray(posterior.means["2.weight"]), np.asarray(posterior.variances["2.weight"])
    assert np.abs(weights[:2]).max() > 10 * np.abs(weights[2]).max()
    assert spread[:2].min() < 0.5 * spread[2].min()


@pytest.mark.slow
def test_a_class_that_was_never_seen_keeps_the_horseshoes_prior_of_its_outgoing_weights():
    inputs, labels = blobs()
    seen = labels != 2
    learner = HorseshoeBNN(hidden=(8,), epochs=400, batch_size=80, learning_rate=0.05, logit_adjustment=True)
    fitted = learner.fit(inputs[seen], labels[seen], classes=3)
    (scale,) = fitted.scales["2"]
    mean, variance = (np.asarray(part["2.weight"]) for part in (fitted.posterior.means, fitted.posterior.variances))
    # Given the layer's one scale the prior is N(0, scale^2).
    np.testing.assert_allclose(mean[2] / scale, 0, atol=0.1)
    np.testing.assert_allclose(variance[2], scale**2, rtol=0.1)


@pytest.mark.slow
def test_narrower_layers_leave_fewer_units_in_use():
    inputs, labels = blobs(60)
    effective = []
    for width in (1.0, 0.01):
        counts = []
        for seed in range(2):
            learner = HorseshoeBNN(hidden=(30,), epochs=600, batch_size=60, learning_rate=0.03, layer_width=width,
                                   seed=seed)  # fmt: skip
            fitted = learner.fit(inputs, labels, classes=3)
            assert (fitted.posterior.predict(inputs).argmax(axis=1) == labels).mean() > 0.95
            scales = fitted.scales["0"]
            counts.append(scales.sum() ** 2 / (scales**2).sum())  # of equal scales, their number
        effective.append(np.mean(counts))
    assert effective[1] < 0.7 * effective[0]


@pytest.mark.parametrize("conversion", ["means", pytest.param("moments", marks=pytest.mark.slow)])
def test_pruned_networks_are_those_with_all_units_but_for_the_ones_switched_off(conversion):
    inputs, labels = blobs()
    options = {"hidden": (12,), "epochs": 20, "batch_size": 120, "learning_rate": 0.05, "conversion": conversion}
    whole = HorseshoeBNN(**options).fit(inputs, labels, classes=3)
    threshold = np.sort(whole.scales["0"] / whole.scales["0"].max())[4] * (1 + ROOT_FINDING)
    pruned = HorseshoeBNN(**options, prune=threshold).fit(inputs, labels, classes=3).posterior
    kept = np.flatnonzero(whole.scales["0"] / whole.scales["0"].max() >= threshold)
    assert 0 < len(kept) < 12
    for part in ("means", "variances"):
        one, other = getattr(pruned, part), getattr(whole.posterior, part)
        torch.testing.assert_close(one["0.weight"], other["0.weight"][kept])
        torch.testing.assert_close(one["0.bias"], other["0.bias"][kept])
        torch.testing.assert_close(one["2.weight"], other["2.weight"][:, kept])
        torch.testing.assert_close(one["2.bias"], other["2.bias"])


def test_no_variance_is_vanishing_beside_those_of_its_layer():
    inputs, labels = blobs()
    fitted = HorseshoeBNN(hidden=(8,), epochs=5, layer_width=1e-12, unit_width=1e-6).fit(inputs, labels, classes=3)
    for name, variance in fitted.posterior.variances.items():
        values = np.asarray(variance, dtype=float)
        assert np.all(values > 0), name
        assert values.min() >= 0.99e-8 * np.median(values), name
