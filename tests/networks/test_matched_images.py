"""Laws of images that are matched to channel statistics."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.networks.choice.inputs import shifted_copies
from consilience.networks.descriptions.description import ChannelStatistics, Description, Moments
from consilience.networks.repair.channel_statistics import channel_statistics
from consilience.networks.synthetic.matched_images import channel_distance, channel_targets, matched_images
from tests.networks.repair_nets import same_state

IMAGE = (2, 8, 8)
SCALES = {"unit": (0.0, 1.0), "small": (0.3, 0.2), "bytes": (70.0, 90.0)}
# float32 through three layers and their gradients, in another order of operations
FLOAT32_STEPS = 1e-3


def convolutional(norm):
    norms = {"batch": nn.BatchNorm2d, "none": lambda _: nn.Identity(), "group": lambda width: nn.GroupNorm(2, width)}
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), norms[norm](6), nn.ReLU(), nn.Conv2d(6, 8, 3), norms[norm](8), nn.ReLU(inplace=True),
        nn.Dropout(0.5), nn.Flatten(), nn.Linear(128, 3),
    )  # fmt: skip


def rows_of_numbers():
    return nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))


def sequences():
    return nn.Sequential(nn.Conv1d(2, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.Flatten(), nn.Linear(60, 3))


def volumes():
    return nn.Sequential(nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.ReLU(), nn.Flatten(), nn.Linear(108, 3))


NETS = {
    "images": (lambda: convolutional("batch"), IMAGE),
    "rows": (rows_of_numbers, (5,)),
    "sequences": (sequences, (2, 12)),
    "volumes": (volumes, (1, 5, 5, 5)),
}


def data(shape, mean=0.0, deviation=1.0, count=256):
    """Inputs whose neighbours are alike."""
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(5))
    for axis in range(2, x.ndim):
        x = x + x.roll(1, dims=axis)
    return mean + deviation * x / x.std()


def trained(make, shape, seed=0, **scale):
    """A network whose statistics are those of the data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = make().train()
        for part in net.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.momentum = None
        with torch.no_grad():
            net(data(shape, **scale))
    return net


def described(net, shape, with_inputs=False, **scale):
    x = data(shape, **scale)
    rows = x.flatten(1).double().numpy()
    channels = {
        name: ChannelStatistics(layer.mean.numpy(), layer.std.square().numpy())
        for name, layer in channel_statistics(net, x).items()
    }
    inputs = Moments(256, rows.mean(axis=0), np.zeros((0, rows.shape[1])), rows.var(axis=0)) if with_inputs else None
    return Description("d", 256, shape, channels=channels, inputs=inputs, name="lund")


@pytest.mark.parametrize("kind", NETS)
def test_matching_lowers_the_distance_of_statistics(kind):
    make, shape = NETS[kind]
    nets = [trained(make, shape, seed) for seed in range(2)]
    matched = matched_images(nets, shape, 32, rng=0, steps=30, calibration_steps=10)
    assert matched.inputs.shape == (32, *shape)
    assert matched.inputs.dtype == torch.float32
    assert len(matched.losses) == 30
    assert matched.losses[-1] < 0.5 * matched.losses[0]
    assert not matched.is_cut


def test_the_statistics_of_all_networks_are_met():
    nets = [trained(NETS["images"][0], IMAGE, seed) for seed in range(2)]
    x = matched_images(nets, IMAGE, 64, rng=0).inputs
    for net in nets:
        for norm in ("1", "4"):
            layer = net.get_submodule(norm)
            with torch.no_grad():
                read = net[: int(norm)].eval()(x)
            deviation = layer.running_var.sqrt()
            distance = (read.mean(dim=(0, 2, 3)) - layer.running_mean) / deviation
            assert distance.abs().max() < 0.3
            assert_allclose(read.std(dim=(0, 2, 3)) / deviation, np.ones(len(deviation)), atol=0.3)


@pytest.mark.parametrize("scale", SCALES)
def test_calibration_finds_the_scale_of_inputs_that_nobody_describes(scale):
    mean, deviation = SCALES[scale]
    nets = [trained(NETS["images"][0], IMAGE, seed, mean=mean, deviation=deviation) for seed in range(2)]
    x = matched_images(nets, IMAGE, 64, rng=0).inputs
    assert 0.5 < float(x.std()) / deviation < 2.0
    assert abs(float(x.mean()) - mean) < deviation


@pytest.mark.parametrize("scale", SCALES)
def test_images_of_described_scale_are_those_of_unit_scale_in_other_units(scale):
    mean, deviation = SCALES[scale]
    make = NETS["images"][0]
    net = trained(make, IMAGE)
    said = described(net, IMAGE, with_inputs=True)
    expected = matched_images([net], IMAGE, 16, rng=0, descriptions=[said], steps=10).inputs
    # The same network behind a change of units: its first layer reads (x - mean) / deviation.
    other = trained(make, IMAGE)
    with torch.no_grad():
        other[0].bias.sub_(mean / deviation * other[0].weight.sum(dim=(1, 2, 3)))
        other[0].weight.div_(deviation)
    moments = said.inputs
    in_units = replace(
        said, inputs=replace(moments, mean=mean + deviation * moments.mean, residual=deviation**2 * moments.residual)
    )
    x = matched_images([other], IMAGE, 16, rng=0, descriptions=[in_units], steps=10).inputs
    difference = ((x - mean) / deviation - expected).abs()
    # Adam divides by gradients: where one is almost zero, its rounding decides.
    assert difference.median() < FLOAT32_STEPS


def test_images_start_from_the_described_covariance():
    net = trained(NETS["images"][0], IMAGE)
    said = described(net, IMAGE, with_inputs=True)
    bright = replace(said.inputs, factor=np.ones((1, said.inputs.mean.size)), residual=0.01 * said.inputs.residual)
    x = matched_images([net], IMAGE, 64, descriptions=[replace(said, inputs=bright)], steps=1).inputs
    # all pixels of an image are bright or dark together
    assert np.corrcoef(x.flatten(1).numpy().T).mean() > 0.8


@pytest.mark.parametrize("norm", ["none", "group"])
def test_networks_without_batch_normalisation_are_matched_by_what_is_described(norm):
    nets = [trained(lambda: convolutional(norm), IMAGE, seed, mean=0.3, deviation=0.2) for seed in range(2)]
    said = [described(net, IMAGE, with_inputs=True, mean=0.3, deviation=0.2) for net in nets]
    matched = matched_images(nets, IMAGE, 48, rng=0, descriptions=said)
    assert matched.losses[-1] < 0.5 * matched.losses[0]
    statistics = channel_statistics(nets[0], matched.inputs, ["0", "8"])
    for name in statistics:
        target = said[0].channels[name]
        assert_allclose(statistics[name].mean, target.mean, atol=0.5 * float(np.sqrt(target.variance).max()))


def test_networks_of_different_widths_are_matched_together():
    narrow = trained(NETS["images"][0], IMAGE)
    wide = trained(lambda: nn.Sequential(nn.Conv2d(2, 9, 3), nn.BatchNorm2d(9)), IMAGE)
    assert matched_images([narrow, wide], IMAGE, 8, steps=2).inputs.shape == (8, *IMAGE)


def test_same_seed_same_bytes_and_other_seeds_other_images():
    net = trained(NETS["images"][0], IMAGE)
    first, again, other = (matched_images([net], IMAGE, 8, rng=seed, steps=3).inputs for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_networks_are_left_as_they_are():
    net = trained(NETS["images"][0], IMAGE)
    net[6].eval()
    net[0].weight.requires_grad_(False)
    state = {name: values.clone() for name, values in net.state_dict().items()}
    flags = [part.training for part in net.modules()]
    matched_images([net], IMAGE, 8, steps=2)
    assert all(torch.equal(values, state[name]) for name, values in net.state_dict().items())
    assert [part.training for part in net.modules()] == flags
    assert [values.requires_grad for values in net.parameters()][:2] == [False, True]
    assert all(values.grad is None for values in net.parameters())
    assert same_state(net, net)


def test_progress_counts_all_steps():
    net, calls = trained(NETS["images"][0], IMAGE), []
    matched_images([net], IMAGE, 4, steps=3, calibration_steps=2, progress=lambda *done: calls.append(done))
    assert calls == [(n, 5) for n in range(1, 6)]


def test_a_time_that_is_up_is_said(monkeypatch):
    net = trained(NETS["images"][0], IMAGE)
    seconds = iter(range(100))
    monkeypatch.setattr("consilience.networks.synthetic.matched_images.time.monotonic", lambda: next(seconds))
    cut = matched_images([net], IMAGE, 4, steps=50, calibration_steps=2, max_seconds=7.5)
    assert cut.is_cut
    assert len(cut.losses) == 5


# -- Bad input.


def test_statistics_that_were_never_updated_are_refused():
    net = convolutional("batch")
    with pytest.raises(UnsupportedError, match=r"model 0: batch normalisation 1, 4 has never seen data"):
        matched_images([net], IMAGE)
    # ... where nothing else is said
    said = described(net.eval(), IMAGE)
    assert [target.name for target in channel_targets(net, said)] == ["0", "1", "3", "4", "8"]


def test_batch_normalisation_without_statistics_is_refused():
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, track_running_stats=False))
    with pytest.raises(UnsupportedError, match=r"lund: batch normalisation 1 keeps no running statistics"):
        matched_images([net], IMAGE, names=["lund"])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("running_mean", float("nan"), "NaN or infinite"), ("running_var", float("inf"), "NaN or infinite"),
     ("running_var", -1.0, r"negative \(-1\)")],
)  # fmt: skip
def test_statistics_that_are_none_are_refused(name, value, message):
    net = trained(NETS["images"][0], IMAGE)
    getattr(net[4], name)[2] = value
    with pytest.raises(InputError, match=f"model 0: channel .* of 4 are {message}"):
        matched_images([net], IMAGE)


def test_descriptions_of_other_networks_and_inputs_are_refused():
    net = trained(lambda: convolutional("none"), IMAGE)
    said = described(net, IMAGE)
    other = replace(said, channels={"9": said.channels["0"]})
    with pytest.raises(InputError, match="statistics of 9, which it does not have"):
        matched_images([net], IMAGE, descriptions=[other])
    other = replace(said, channels={"0": said.channels["3"]})
    with pytest.raises(InputError, match="has statistics of 8 channels of 0, which has 6"):
        matched_images([net], IMAGE, descriptions=[other])
    with pytest.raises(InputError, match=r"lund: describes inputs of shape \(2, 8, 8\), expected \(2, 9, 9\)"):
        matched_images([net], (2, 9, 9), descriptions=[described(net, IMAGE, with_inputs=True)])
    with pytest.raises(UnsupportedError, match="neither batch normalisation nor described"):
        matched_images([net], IMAGE)


def test_inputs_that_a_network_cannot_read_are_refused():
    net = trained(NETS["images"][0], IMAGE)
    with pytest.raises(UnsupportedError, match=r"model 0: fails on inputs of shape \(3, 8, 8\)"):
        matched_images([net], (3, 8, 8))


def test_options_out_of_range_are_refused():
    net = trained(NETS["images"][0], IMAGE)
    with pytest.raises(OptionError, match="steps"):
        matched_images([net], IMAGE, steps=0)
    with pytest.raises(OptionError, match="count"):
        matched_images([net], IMAGE, count=0)
    with pytest.raises(OptionError, match="max_seconds: 0 s are too few for one step"):
        matched_images([net], IMAGE, 4, max_seconds=0.0)
    with pytest.raises(InputError, match="at least one network"):
        matched_images([], IMAGE)


# -- Copies that candidates are fitted on.


def test_copies_are_the_images_shifted_by_a_pixel():
    images = torch.randn(5, 2, 14, 28)
    copies = shifted_copies(images, 4, np.random.default_rng(0))
    assert copies.shape == (20, 2, 14, 28)
    assert torch.equal(copies[:5], images)
    offsets = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    found = []
    for number, copied in enumerate(copies[5:]):
        equal = [offset for offset in offsets if torch.equal(torch.roll(images[number % 5], offset, (1, 2)), copied)]
        assert len(equal) == 1
        found += equal
    assert len(set(found)) > 5  # every image has its own
    assert torch.equal(copies, shifted_copies(images, 4, np.random.default_rng(0)))


def test_rows_of_numbers_have_nowhere_to_be_shifted():
    rows = torch.randn(5, 3)
    assert shifted_copies(rows, 4, np.random.default_rng(0)) is rows


def test_copies_are_as_many_as_fit_into_memory(monkeypatch):
    monkeypatch.setattr("consilience.networks.choice.inputs.MAX_BYTES", 2 * 4 * 5 * 49)
    assert len(shifted_copies(torch.randn(5, 1, 7, 7), 8, np.random.default_rng(0))) == 10


@pytest.mark.parametrize(("shape", "axis"), [((5, 3, 4, 4), 1), ((7, 3), -1)])
def test_the_slope_of_the_distance_is_that_of_finite_differences(shape, axis):
    rng = torch.Generator().manual_seed(0)
    values = torch.randn(shape, dtype=torch.float64, generator=rng, requires_grad=True)
    mean, scale = torch.randn(3, dtype=torch.float64, generator=rng), torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda values: channel_distance(values, mean, scale, axis), (values,))
