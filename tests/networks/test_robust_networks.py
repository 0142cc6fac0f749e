"""Laws of robust fusion of networks: copies, order, widths, and what hostile networks can do."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import consilience as cs
from consilience.networks.network import Network
from consilience.networks.symmetry.axes import Axis, Group, Layout, Segment
from consilience.networks.symmetry.symmetry import Symmetry
from tests import tolerances
from tests.copies import COPIES

HOWS = ("trim", "median", True)
every_how = pytest.mark.parametrize("how", HOWS)


def fixed(size, side="output"):
    return Axis((Segment(None, inner=size),), side)


def net(arrays, name="net"):
    units = len(arrays["0.bias"])
    symmetry = Symmetry(
        {
            "0.weight": Layout((Axis((Segment("hidden"),)), fixed(4, "input"))),
            "0.bias": Layout((Axis((Segment("hidden"),)),)),
            "2.weight": Layout((fixed(2), Axis((Segment("hidden"),), "input"))),
        },
        (Group("hidden", units, 0, None, ("permute",), True),),
    )
    return Network(arrays, symmetry, name)


def random_net(seed, units=6, near=None, by=0.05):
    rng = np.random.default_rng(seed)
    arrays = {
        "0.weight": rng.normal(size=(units, 4)),
        "0.bias": rng.normal(size=units),
        "2.weight": rng.normal(size=(2, units)),
    }
    return arrays if near is None else {key: near[key] + by * values for key, values in arrays.items()}


def honest(count):
    common = random_net(0)
    return [net(random_net(seed + 1, near=common)) for seed in range(count)]


def times(network, factor):
    return net({key: factor * values for key, values in network.arrays.items()})


@pytest.fixture(autouse=True)
def _unproved():
    """Symmetries made by hand are not proved, of which the library warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cs.errors.UnprovedSymmetryWarning)
        yield


def fused(networks, **options):
    return cs.fuse(networks, rng=0, **{"method": "average", **options})


@COPIES
@every_how
@pytest.mark.parametrize("method", ["average", "rebasin", "consensus", "wb"])
def test_copies_are_a_fixed_point(how, method):
    arrays = random_net(3)
    found = fused([net(arrays)] * 5, robust=how, method=method).network.arrays
    for key, values in arrays.items():
        assert_allclose(np.sort(np.ravel(found[key])), np.sort(np.ravel(values)), rtol=1e-9, atol=1e-9)


@every_how
def test_the_order_of_networks_changes_nothing(how):
    networks = [*honest(5), times(honest(1)[0], -10.0)]
    one, other = fused(networks, robust=how).network.arrays, fused(networks[::-1], robust=how).network.arrays
    for key in one:
        assert_array_equal(one[key], other[key])


@COPIES
def test_trimming_gives_the_average_of_the_others():
    good = honest(8)
    bad = [times(good[0], 10.0), times(good[1], -1.0)]
    robust, clean = fused([*good, *bad], robust="trim").network.arrays, fused(good).network.arrays
    for key in clean:
        assert_allclose(robust[key], clean[key], rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)


@every_how
@pytest.mark.parametrize("factor", [1e3, -1e6, 1e12])
def test_two_of_ten_move_the_result_no_farther_than_honest_ones_differ(how, factor):
    good = honest(8)
    arrays = fused([*good, times(good[0], factor), times(good[1], factor)], robust=how).network.arrays
    for key, values in arrays.items():
        stacked = np.stack([one.arrays[key] for one in good])
        assert np.abs(values - stacked.mean(axis=0)).max() <= 2.0 * np.ptp(stacked, axis=0).max()


@every_how
def test_a_model_that_counts_nothing_has_no_say(how):
    good = honest(4)
    wild = times(good[0], 1e6)
    with_it = fused([*good, wild], robust=how, weights=[1, 1, 1, 1, 0]).network.arrays
    without = fused(good, robust=how).network.arrays
    for key in without:
        assert_allclose(with_it[key], without[key], rtol=1e-9, atol=1e-12)


@every_how
def test_hostile_scales_do_not_disturb_the_alignment(how):
    common, rng = random_net(0, units=8), np.random.default_rng(1)
    good = []
    for seed in range(6):
        arrays, order = random_net(seed + 9, units=8, near=common, by=0.02), rng.permutation(8)
        good.append(net({"0.weight": arrays["0.weight"][order], "0.bias": arrays["0.bias"][order],
                         "2.weight": arrays["2.weight"][:, order]}))  # fmt: skip
    bad = [times(good[0], 100.0)]
    found = fused([*good, *bad], robust=how, method="rebasin").network.arrays
    places = np.abs(found["0.weight"][:, None] - common["0.weight"][None]).max(axis=2)
    assert np.all(places.min(axis=1) < 0.1)


def test_shrunk_neurons_are_no_averages_of_copies():
    with pytest.raises(cs.errors.OptionError, match="no averages of copies"):
        fused(honest(4), robust="trim", method="fedma", shrink=True)


def test_an_average_of_posteriors_by_class_is_that_of_networks():
    networks = honest(4)
    by_name, by_class = (fused(networks, method=method) for method in ("average", cs.methods.Average()))
    for name, values in by_name.network.arrays.items():
        np.testing.assert_array_equal(by_class.network.arrays[name], values)


def test_two_networks_are_too_few():
    with pytest.raises(cs.errors.InputError, match="at least 3 networks"):
        fused(honest(2), robust="median")


@pytest.mark.parametrize("options", [{"robust": "mean"}, {"robust": "trim", "trim": 0.6}])
def test_odd_options_are_refused(options):
    with pytest.raises(cs.errors.OptionError, match="must be"):
        fused(honest(3), **options)
