"""Laws of networks fitted to what the models answer: from moments that sites sent, from inputs, from made-up inputs."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.networks.repair.layer_moments import layer_moments
from consilience.networks.repair.refit import refit
from consilience.networks.repair.regression import regmean
from consilience.networks.repair.repair import repair
from consilience.networks.repair.synthetic_inputs import synthetic_inputs
from tests.networks.repair_nets import average, digits, every_net, inputs_for, randomised, same_state
from tests.tolerances import STANDARD_ERRORS

pytestmark = pytest.mark.covering(2)

FLOAT64 = 1e-9
# A system that is drawn by 1e-9 of the mean square towards the average.
LEAST_RIDGE = 1e-6
UNEVEN = np.array([0.3, 0.7])


def outputs(net, inputs):
    with torch.no_grad():
        return deepcopy(net).eval()(inputs)


def least_squares(rows, answers, counts):
    """Weights and biases by numpy's least squares on pooled rows, each counting so much."""
    design = np.hstack([rows, np.ones((len(rows), 1))]) * np.sqrt(counts)[:, None]
    return np.linalg.lstsq(design, answers * np.sqrt(counts)[:, None], rcond=None)[0].T


# -- From moments.


@every_net
def test_the_regression_mean_of_one_model_is_that_model(kind):
    net, inputs = randomised(kind, 0), inputs_for(kind)
    moments = layer_moments(net, inputs)
    for options in ({}, {"off_diagonal": 1.0}, {"ridge": 0.3}):
        refitted = regmean(net, [net, net], UNEVEN, [moments, moments], **options).module
        assert_allclose(outputs(refitted, inputs), outputs(net, inputs), rtol=FLOAT64, atol=FLOAT64)


@pytest.mark.parametrize("bias", [True, False])
def test_the_regression_mean_of_linear_models_is_the_pooled_least_squares_fit(bias):
    net_a, net_b = (nn.Sequential(nn.Linear(5, 3, bias=bias)).double() for _ in range(2))
    first, second = inputs_for("perceptron", 150, 1), 2.0 * inputs_for("perceptron", 150, 2) - 1.0
    moments = [layer_moments(net_a, first), layer_moments(net_b, second)]
    refitted = regmean(average([net_a, net_b], UNEVEN), [net_a, net_b], UNEVEN, moments, off_diagonal=1.0).module
    rows = torch.cat([first, second]).numpy()
    answers = torch.cat([outputs(net_a, first), outputs(net_b, second)]).numpy()
    counts = np.repeat(UNEVEN, 150)
    if bias:
        expected = least_squares(rows, answers, counts)
        assert_allclose(refitted[0].bias.detach(), expected[:, -1], rtol=LEAST_RIDGE, atol=LEAST_RIDGE)
        assert_allclose(refitted[0].weight.detach(), expected[:, :-1], rtol=LEAST_RIDGE, atol=LEAST_RIDGE)
    else:
        root = np.sqrt(counts)[:, None]
        expected = np.linalg.lstsq(rows * root, answers * root, rcond=None)[0].T
        assert_allclose(refitted[0].weight.detach(), expected, rtol=LEAST_RIDGE, atol=LEAST_RIDGE)


def test_a_great_ridge_keeps_the_average():
    net_a, net_b, inputs = randomised("perceptron", 0), randomised("perceptron", 1), inputs_for("perceptron")
    fused = average([net_a, net_b], UNEVEN)
    moments = [layer_moments(net, inputs) for net in (net_a, net_b)]
    refitted = regmean(fused, [net_a, net_b], UNEVEN, moments, ridge=1e12).module
    assert_allclose(refitted[2].weight.detach(), fused[2].weight.detach(), rtol=LEAST_RIDGE)
    refitted = refit(fused, [net_a, net_b], UNEVEN, inputs, ridge=1e12, rescaled=False).module
    assert_allclose(refitted[2].weight.detach(), fused[2].weight.detach(), rtol=LEAST_RIDGE)


def side_by_side():
    """Two networks in a wider one, the units of each where the other has none, and their average over owners."""
    rng = torch.Generator().manual_seed(3)
    small = [nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double() for _ in range(2)]
    aligned = [nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).double() for _ in range(2)]
    wide = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for number, (padded, net) in enumerate(zip(aligned, small, strict=True)):
            units = slice(4 * number, 4 * number + 4)
            for values in net.parameters():
                values.copy_(torch.randn(values.shape, generator=rng))
            for values in padded.parameters():
                values.zero_()
            padded[0].weight[units], padded[0].bias[units] = net[0].weight, net[0].bias
            padded[2].weight[:, units], padded[2].bias[:] = net[2].weight, net[2].bias
            wide[0].weight[units], wide[0].bias[units] = net[0].weight, net[0].bias
        wide[2].weight.copy_(sum(a * net[2].weight for a, net in zip(UNEVEN, aligned, strict=True)))
        wide[2].bias.copy_(sum(a * net[2].bias for a, net in zip(UNEVEN, aligned, strict=True)))
    return wide, aligned


@pytest.mark.parametrize("method", ["refit", "regmean", "repair"])
def test_networks_side_by_side_still_answer_as_the_ensemble(method):
    wide, aligned = side_by_side()
    inputs = inputs_for("perceptron")
    ensemble = sum(a * outputs(net, inputs) for a, net in zip(UNEVEN, aligned, strict=True))
    assert_allclose(outputs(wide, inputs), ensemble, rtol=FLOAT64, atol=FLOAT64)
    if method == "refit":
        refitted = refit(wide, aligned, UNEVEN, inputs)
    elif method == "repair":
        refitted = repair(wide, aligned, UNEVEN, inputs)
    else:
        refitted = regmean(wide, aligned, UNEVEN, [layer_moments(net, inputs) for net in aligned])
        assert refitted.notes == {"2": "reads units that not all models have: it keeps the average"}
    assert_allclose(outputs(refitted.module, inputs), ensemble, rtol=LEAST_RIDGE, atol=LEAST_RIDGE)


# -- From inputs.


@every_net
@pytest.mark.parametrize("rescaled", [True, False])
def test_a_fusion_that_is_the_model_is_refitted_to_itself(kind, rescaled):
    net, inputs = randomised(kind, 0), inputs_for(kind)
    refitted = refit(net, [net, net], UNEVEN, inputs, rescaled=rescaled, batch_size=50).module
    if kind == "perceptron":  # without batch normalisation, whose running statistics change to those of the inputs
        assert_allclose(outputs(refitted, inputs), outputs(net, inputs), rtol=FLOAT64, atol=FLOAT64)


@every_net
def test_a_network_of_noise_is_fitted_to_the_model_it_is_asked_to_be(kind):
    net, inputs = randomised(kind, 0), inputs_for(kind, 400)
    fitted = refit(randomised(kind, 7), [net], None, inputs, ridge=0.0).module
    assert_allclose(outputs(fitted, inputs), outputs(net, inputs), rtol=1e-4, atol=1e-4)


def test_one_layer_is_the_least_squares_fit_to_the_models_answers():
    net_a, net_b = (nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)).double() for _ in range(2))
    inputs, fused = inputs_for("perceptron"), average([net_a, net_b], UNEVEN)
    refitted = refit(fused, [net_a, net_b], UNEVEN, inputs, ridge=0.0, rescaled=False).module
    # the first layer answers as the average of the layers, and the second is fitted to what that one makes of it
    assert_allclose(refitted[0].weight.detach(), fused[0].weight.detach(), rtol=LEAST_RIDGE, atol=LEAST_RIDGE)
    answers = 0.3 * outputs(net_a, inputs) + 0.7 * outputs(net_b, inputs)
    expected = least_squares(outputs(refitted[:2], inputs).numpy(), answers.numpy(), np.ones(len(inputs)))
    assert_allclose(refitted[2].weight.detach(), expected[:, :-1], rtol=LEAST_RIDGE, atol=LEAST_RIDGE)
    assert_allclose(refitted[2].bias.detach(), expected[:, -1], rtol=LEAST_RIDGE, atol=LEAST_RIDGE)


def test_fitting_lowers_the_distance_to_the_models_answers_and_batches_do_not_matter():
    net_a, net_b = (randomised("perceptron", seed) for seed in (0, 1))
    inputs, fused = inputs_for("perceptron", 300), average([net_a, net_b], UNEVEN)
    target = 0.3 * outputs(net_a, inputs) + 0.7 * outputs(net_b, inputs)
    refitted = refit(fused, [net_a, net_b], UNEVEN, inputs).module
    before, after = (float((outputs(net, inputs) - target).square().mean()) for net in (fused, refitted))
    assert after < 0.5 * before
    for other in (list(inputs.split(77)), [(batch, None) for batch in inputs.split(100)]):
        again = refit(fused, [net_a, net_b], UNEVEN, other).module
        assert_allclose(outputs(again, inputs), outputs(refitted, inputs), rtol=LEAST_RIDGE, atol=LEAST_RIDGE)


def test_few_patches_are_drawn_the_same_for_the_same_seed_and_fit_nearly_as_well():
    net_a, net_b = (randomised("convolutional", seed) for seed in (0, 1))
    inputs, fused = inputs_for("convolutional", 400), average([net_a, net_b], UNEVEN)
    drawn = [refit(fused, [net_a, net_b], None, inputs, patches_per_layer=1500, rng=3).module for _ in range(2)]
    assert same_state(*drawn)
    target = 0.5 * outputs(net_a, inputs) + 0.5 * outputs(net_b, inputs)
    whole = refit(fused, [net_a, net_b], None, inputs).module
    errors = [float((outputs(net, inputs) - target).square().mean()) for net in (whole, drawn[0], fused)]
    assert errors[0] < errors[2]
    assert errors[1] < 1.3 * errors[0]


@every_net
def test_networks_keep_their_state_and_names(kind):
    net_a, net_b, inputs = randomised(kind, 0), randomised(kind, 1), inputs_for(kind)
    fused = average([net_a, net_b], UNEVEN).train()
    moments = [layer_moments(net, inputs) for net in (net_a, net_b)]
    before = [deepcopy(net) for net in (net_a, net_b, fused)]
    for refitted in (refit(fused, [net_a, net_b], None, inputs), regmean(fused, [net_a, net_b], None, moments)):
        assert all(same_state(*pair) for pair in zip(before, (net_a, net_b, fused), strict=True))
        assert list(refitted.module.state_dict()) == list(fused.state_dict())
        assert all(part.training for part in refitted.module.modules())


CONVOLUTIONS = {
    "grouped, 1-d": lambda: nn.Conv1d(4, 6, 3, groups=2, stride=2, padding=1),
    "grouped": lambda: nn.Conv2d(4, 6, (3, 2), groups=2, dilation=(1, 2), padding=1, padding_mode="circular"),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False),
    "depthwise, multiplied": lambda: nn.Conv2d(4, 8, 3, groups=4, stride=2, padding=1),
    "grouped, 3-d": lambda: nn.Conv3d(4, 4, 2, groups=2),
    "transposed, 1-d": lambda: nn.ConvTranspose1d(4, 3, 4, stride=3, padding=1, output_padding=2),
    "transposed": lambda: nn.ConvTranspose2d(4, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
    "transposed, cut": lambda: nn.ConvTranspose2d(4, 3, 2, stride=2, padding=2, bias=False),
    "transposed, grouped": lambda: nn.ConvTranspose2d(4, 6, 3, groups=2, stride=2, output_padding=1),
    "transposed, 3-d": lambda: nn.ConvTranspose3d(4, 2, 2, stride=2),
}
every_convolution = pytest.mark.parametrize("name", CONVOLUTIONS)


def before_convolution(layer):
    """A pointwise convolution, a bend, and the layer."""
    first = getattr(nn, f"Conv{len(layer.kernel_size)}d")(2, 4, 1)
    return nn.Sequential(first, nn.Tanh(), layer).double()


def columns(layer, inputs):
    """What a layer answers for each of its weights being one and all others zero: outputs (..., weights), dense."""
    probe, answers = deepcopy(layer), []
    with torch.no_grad():
        for parameter in probe.parameters():
            parameter.zero_()
        for parameter in probe.parameters():
            for entry in range(parameter.numel()):
                parameter.view(-1)[entry] = 1.0
                answers.append(probe(inputs).flatten())
                parameter.view(-1)[entry] = 0.0
    return torch.stack(answers, dim=1).numpy()


@every_convolution
def test_every_convolution_is_the_dense_least_squares_fit(name):
    torch.manual_seed(11)  # designs of condition 170 at most: the least ridge moves weights by its square
    nets = [before_convolution(CONVOLUTIONS[name]()) for _ in range(2)]
    shape = [6, 5, 4][: len(nets[0][2].kernel_size)]
    inputs = torch.randn(50, 2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fused = average(nets, UNEVEN)
    refitted = refit(fused, nets, UNEVEN, inputs, ridge=0.0, rescaled=False, batch_size=20, patches_per_layer=10**6)
    assert refitted.notes == {}
    answers = 0.3 * outputs(nets[0], inputs) + 0.7 * outputs(nets[1], inputs)
    design = columns(refitted.module[2], outputs(refitted.module[:2], inputs))
    expected = np.linalg.lstsq(design, answers.flatten().numpy(), rcond=None)[0]
    weights = torch.cat([values.detach().flatten() for values in refitted.module[2].parameters()])
    assert_allclose(weights, expected, rtol=LEAST_RIDGE, atol=LEAST_RIDGE)


@every_convolution
@pytest.mark.parametrize("normed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_convolutions_of_noise_are_fitted_to_the_model(name, normed):
    def make(seed):
        torch.manual_seed(seed)
        layer = CONVOLUTIONS[name]()
        axes = len(layer.kernel_size)
        rest = [getattr(nn, f"BatchNorm{axes}d")(layer.out_channels)] if normed else []
        net = nn.Sequential(*before_convolution(layer), *rest, nn.Tanh(), nn.Flatten(), nn.LazyLinear(3)).double()
        net(torch.randn(8, 2, *[6, 5, 4][:axes], dtype=torch.float64))
        return net.eval()

    with torch.random.fork_rng(devices=[]):
        model, noise = make(0), make(1)
    shape = [6, 5, 4][: len(CONVOLUTIONS[name]().kernel_size)]
    inputs = torch.randn(300, 2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    fitted = refit(noise, [model], None, inputs, ridge=0.0).module
    assert_allclose(outputs(fitted, inputs), outputs(model, inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fit", [refit, repair])
def test_an_output_size_that_is_asked_for_is_fitted_too(fit):
    class Sized(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.head = nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1), nn.Conv2d(3, 2, 1)

        def forward(self, x):
            return self.head(self.up(x, output_size=[12, 11]).tanh())

    model, noise = Sized().double(), Sized().double()
    inputs = inputs_for("convolutional", 200)
    options = {"ridge": 0.0} if fit is refit else {"output": True}
    fitted = fit(noise, [model], None, inputs, **options)
    assert fitted.notes == {}
    if fit is refit:
        assert_allclose(outputs(fitted.module, inputs), outputs(model, inputs), rtol=1e-4, atol=1e-4)
    for channel in range(2):  # either way every channel has the model's mean and deviation
        of_fitted, of_model = (outputs(net, inputs)[:, channel] for net in (fitted.module, model))
        assert_allclose(of_fitted.mean(), of_model.mean(), rtol=1e-4, atol=1e-6)
        assert_allclose(of_fitted.std(), of_model.std(), rtol=1e-4)


def test_a_group_without_any_input_keeps_its_weights():
    nets = [nn.Sequential(nn.Conv2d(2, 4, 3, groups=2)).double() for _ in range(2)]
    inputs, fused = inputs_for("convolutional"), average(nets, UNEVEN)
    inputs[:, 1] = 0.0
    refitted = refit(fused, nets, UNEVEN, inputs, rescaled=False).module
    assert_array_equal(refitted[0].weight.detach()[2:], fused[0].weight.detach()[2:])


def test_moments_leave_grouped_and_transposed_convolutions_out():
    net = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.ConvTranspose2d(4, 3, 2), nn.Conv2d(3, 2, 1)).double()
    moments = layer_moments(net, inputs_for("convolutional"))
    assert set(moments.layers) == {"2"}
    assert moments.skipped == {"0": "is a grouped convolution", "1": "is a transposed convolution"}


@pytest.mark.slow
def test_refitting_brings_trained_networks_back_further_than_repair():
    data = digits("convolutional")
    fused = average(data.aligned, [0.5, 0.5])
    base = np.mean([data.accuracy(net) for net in data.aligned])
    repaired = data.accuracy(repair(fused, data.aligned, None, data.inputs).module)
    fitted = data.accuracy(refit(fused, data.aligned, None, data.inputs).module)
    assert base - fitted < 0.5 * (base - repaired)


# -- From made-up inputs.


def test_made_up_inputs_vary_where_the_first_layers_look():
    net_a, net_b = (nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double() for _ in range(2))
    synthetic = synthetic_inputs([net_a, net_b], UNEVEN, torch.zeros(1, 2, 2).double(), 20_000, rng=1)
    assert synthetic.shape == (20_000, 2, 2)
    assert_allclose(synthetic.std(), 1.0, rtol=1e-9)
    rows = [net[1].weight.detach().numpy() for net in (net_a, net_b)]
    covariance = 0.3 * rows[0].T @ rows[0] + 0.7 * rows[1].T @ rows[1]
    covariance /= np.trace(covariance) / 4
    deviation = STANDARD_ERRORS * np.sqrt(2 / 20_000) * np.abs(covariance).max()
    assert_allclose(np.cov(synthetic.flatten(1).T.numpy()), covariance, atol=deviation)


def test_made_up_images_are_smooth_as_pictures_are_and_repeat():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    synthetic = synthetic_inputs([net], None, torch.zeros(1, 3, 16, 16), 200, rng=1)
    assert synthetic.shape == (200, 3, 16, 16)
    assert_allclose(synthetic.std(), 1.0, rtol=1e-5)
    neighbours = np.corrcoef(synthetic[..., 1:].flatten().numpy(), synthetic[..., :-1].flatten().numpy())[0, 1]
    distant = np.corrcoef(synthetic[..., 8:].flatten().numpy(), synthetic[..., :-8].flatten().numpy())[0, 1]
    assert 0.5 < neighbours < 1.0
    assert distant < neighbours - 0.2
    assert torch.equal(synthetic, synthetic_inputs([net], None, torch.zeros(1, 3, 16, 16), 200, rng=1))


def test_made_up_sequences_have_the_covariance_of_the_kernel():
    net = nn.Sequential(nn.Conv1d(1, 1, 3, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[[1.0, 2.0, 1.0]]]))
    synthetic = synthetic_inputs([net], None, torch.zeros(1, 1, 40), 4000, rng=1)[:, 0, 5:-5].numpy()
    for lag, expected in ((0, 6 / 6), (1, 4 / 6), (2, 1 / 6), (3, 0.0)):
        correlation = (synthetic[:, : 30 - 3] * synthetic[:, lag : 30 - 3 + lag]).mean() / synthetic.var()
        assert_allclose(correlation, expected, atol=0.02)


def test_refitting_on_made_up_inputs_helps_trained_networks():
    data = digits("perceptron")
    fused = average(data.aligned, [0.5, 0.5])
    synthetic = synthetic_inputs(data.aligned, None, data.inputs[:1], 2000, rng=0)
    assert data.accuracy(refit(fused, data.aligned, None, synthetic).module) > data.accuracy(fused)


def test_networks_that_start_otherwise_are_refused():
    for net, example in (
        (nn.Sequential(nn.Linear(3, 2)), torch.zeros(1, 3, dtype=torch.int64)),
        (nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)), torch.randn(1, 4)),
    ):
        with pytest.raises(UnsupportedError, match="start with a linear layer"):
            synthetic_inputs([net], None, example, 10)


def test_options_are_checked():
    net, inputs = randomised("perceptron", 0), inputs_for("perceptron")
    moments = [layer_moments(net, inputs)]
    with pytest.raises(OptionError, match="off_diagonal"):
        regmean(net, [net], None, moments, off_diagonal=1.5)
    with pytest.raises(OptionError, match="ridge"):
        regmean(net, [net], None, moments, ridge=-1.0)
    with pytest.raises(OptionError, match="ridge"):
        refit(net, [net], None, inputs, ridge=-1.0)
    with pytest.raises(OptionError, match="patches_per_layer"):
        refit(net, [net], None, inputs, patches_per_layer=0)
    with pytest.raises(OptionError, match="count"):
        synthetic_inputs([net], None, inputs, 0)
    with pytest.raises(InputError, match="at least one model"):
        refit(net, [], None, inputs)
    with pytest.raises(InputError, match="inputs"):
        refit(net, [net], None, inputs[:0])
