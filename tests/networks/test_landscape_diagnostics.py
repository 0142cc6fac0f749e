"""Laws of what is said of couplings and alignments."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from consilience.errors import InputError, OptionError
from consilience.networks.landscape.alignment import coupling_diagnostics, variance_collapse
from tests.networks.landscape_nets import OTHER_ORDER, every_kind, make, task
from tests.tolerances import ROUNDING

# -- Couplings and alignments.


def test_a_permutation_is_a_coupling_of_one_partner_each():
    order = np.random.default_rng(0).permutation(9)
    diagnostics = coupling_diagnostics(np.eye(9)[order] / 9)
    assert_array_equal(diagnostics.permutation, order)
    assert (diagnostics.mean_entropy, diagnostics.effective_partners, diagnostics.mean_largest) == (0.0, 1.0, 1.0)
    assert_allclose(
        (diagnostics.distance, diagnostics.off_permutation, diagnostics.row_error, diagnostics.column_error),
        0.0,
        atol=ROUNDING,
    )


def test_the_independent_coupling_has_every_unit_as_partner():
    diagnostics = coupling_diagnostics(np.full((4, 6), 1.0 / 24))
    assert_allclose(diagnostics.mean_entropy, np.log(6), rtol=ROUNDING)
    assert_allclose(diagnostics.effective_partners, 6.0, rtol=ROUNDING)
    assert_allclose(diagnostics.mean_largest, 1.0 / 6.0, rtol=ROUNDING)
    assert diagnostics.permutation is None
    assert np.isnan(diagnostics.distance)
    assert np.isnan(diagnostics.off_permutation)


def test_diagnostics_do_not_depend_on_the_order_of_units():
    rng = np.random.default_rng(1)
    coupling = rng.dirichlet(np.full(36, 0.2)).reshape(6, 6)
    rows, columns = rng.permutation(6), rng.permutation(6)
    one, two = coupling_diagnostics(coupling), coupling_diagnostics(coupling[rows][:, columns])
    for name in ("mean_entropy", "mean_largest", "distance", "off_permutation", "row_error", "column_error"):
        assert_allclose(getattr(one, name), getattr(two, name), rtol=ROUNDING)
    assert_array_equal(columns[two.permutation], one.permutation[rows])


def test_a_row_without_mass_has_no_entropy_and_counts_as_error():
    diagnostics = coupling_diagnostics([[0.5, 0.5], [0.0, 0.0]])
    assert np.isnan(diagnostics.entropy[1])
    assert_allclose(
        (diagnostics.effective_partners, diagnostics.row_error, diagnostics.column_error),
        (2.0, 1.0, 0.0),
        atol=ROUNDING,
    )


@pytest.mark.parametrize("bad", [[1.0, 2.0], [[-1.0, 2.0]], [[np.nan, 1.0]], np.zeros((2, 2)), np.zeros((0, 2))])
def test_what_is_no_coupling_is_refused(bad):
    with pytest.raises(InputError, match="coupling: expected a matrix of finite numbers, not negative"):
        coupling_diagnostics(bad)


@every_kind
def test_the_spread_does_not_collapse_between_a_network_and_itself(kind):
    net = make(kind, 1)
    ratios = variance_collapse(net, deepcopy(net), task(kind, net).inputs)
    layers = [name for name, part in net.named_modules() if isinstance(part, (nn.Linear, nn.Conv2d))]
    assert list(ratios) == [name for name in layers if (kind, name) != ("branching", "two")]
    assert_allclose(list(ratios.values()), 1.0, rtol=ROUNDING)


def test_the_spread_collapses_between_networks_that_were_not_aligned():
    net_a, net_b = make("convolutional", 1), make("convolutional", 2)
    inputs = task("convolutional", net_a).inputs
    assert all(ratio < 0.9 for ratio in variance_collapse(net_a, net_b, inputs).values())
    for end in (0.0, 1.0):
        assert_allclose(list(variance_collapse(net_a, net_b, inputs, t=end).values()), 1.0, rtol=ROUNDING)
    parts = [variance_collapse(net_a, net_b, inputs, batch_size=size) for size in (7, 1000)]
    assert_allclose(list(parts[0].values()), list(parts[1].values()), rtol=OTHER_ORDER)


def test_a_layer_without_spread_has_no_ratio():
    net_a, net_b = nn.Linear(2, 2), nn.Linear(2, 2)
    assert np.isnan(variance_collapse(nn.Sequential(net_a), nn.Sequential(net_b), torch.ones(1, 2))["0"])


def test_spread_needs_samples():
    net = make("perceptron", 1)
    with pytest.raises(InputError, match="inputs: expected at least one sample"):
        variance_collapse(net, net, torch.ones(0, 5))
    with pytest.raises(OptionError, match="batch_size: expected a positive whole number"):
        variance_collapse(net, net, torch.ones(2, 5), batch_size=0)
