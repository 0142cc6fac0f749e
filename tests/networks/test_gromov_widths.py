"""What holds when recurrent networks are fused into other widths by Gromov-Wasserstein barycenters."""

import numpy as np
import pytest

import consilience as cs
from tests.copies import COPIES
from tests.networks.fusable_nets import outputs
from tests.networks.gromov_nets import EXACT, difference, every_mode, fused, net, plan_of, renumbered, sequences
from tests.networks.methods_zoo import MARGINALS
from tests.tolerances import SINGLE_PRECISION

pytestmark = pytest.mark.covering(2)

SIGNED = ["rnn", "lstm", "gru"]
WIDER = [
    "rnn", "relu rnn", "lstm", "gru", "lstm, stacked", "gru, stacked", "lstm, both ways", "gru, stacked both ways",
    "gru, dense front", "rnn, learned start",
]  # fmt: skip


@COPIES
@pytest.mark.parametrize("factor", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WIDER)
def test_copies_into_a_multiple_of_the_width_are_the_same_function(name, factor):
    module = net(name)
    fusion = fused([renumbered(module, name, seed) for seed in range(2)], name, target=net(name, hidden=5 * factor))
    assert difference(fusion.model, module, name) < EXACT
    recurrent = [group for group in fusion.groups if group != "enc"]
    assert all(fusion.groups[group] == 5 * factor for group in recurrent)


@COPIES
@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_in_single_precision_copies_into_twice_the_width_are_the_same_function(kind):
    module, target = net(kind).float(), net(kind, hidden=10).float()
    example = sequences(kind).float()
    fusion = cs.fuse([module, module], method="gwb", example=example, target=target)
    expected = outputs(module, example)
    assert np.abs(outputs(fusion.model, example) - expected).max() < SINGLE_PRECISION * np.abs(expected).max()


@pytest.mark.parametrize("kind", SIGNED)
def test_turned_copies_into_twice_the_width_are_the_same_function_with_restarts(kind):
    """The units to start from are chosen without regard to signs, so that one start may be a poor one."""
    for seed in range(3):
        module = net(kind, seed)
        copies = [renumbered(module, kind, number, True) for number in range(2)]
        fusion = fused(copies, kind, target=net(kind, hidden=10), restarts=3)
        assert difference(fusion.model, module, kind) < EXACT


@every_mode
@pytest.mark.parametrize("name", ["rnn", "relu rnn", "lstm", "gru", "lstm, stacked", "lstm, both ways"])
def test_widths_may_differ_in_and_out(name, mode):
    models = [net(name, seed, hidden=width) for seed, width in enumerate((6, 9))]
    target = net(name, hidden=8)
    fusion = fused(models, name, mode=mode, target=target)
    for moves, module in zip(fusion.transports, models, strict=True):
        for group, one in moves.items():
            mass, signs = plan_of(one)
            assert mass.shape == ((4, 4) if group == "enc" else (8, module.rnn.hidden_size))
            assert np.isfinite(mass).all()
            assert set(np.unique(signs)) <= {-1.0, 1.0}
            np.testing.assert_allclose(mass.sum(axis=1), 1 / mass.shape[0], rtol=0, atol=MARGINALS)
            np.testing.assert_allclose(mass.sum(axis=0), 1 / mass.shape[1], rtol=0, atol=MARGINALS)
    shapes = {key: value.shape for key, value in target.state_dict().items()}
    assert {key: value.shape for key, value in fusion.model.state_dict().items()} == shapes
    assert np.isfinite(outputs(fusion.model, sequences(name))).all()


@every_mode
@pytest.mark.parametrize("name", ["rnn", "lstm", pytest.param("lstm, both ways", marks=pytest.mark.slow)])
def test_a_model_that_counts_for_nothing_changes_nothing(name, mode):
    models = [net(name, seed) for seed in range(2)]
    for weights, kept in (([1, 0], 0), ([0, 1], 1)):
        fusion = fused(models, name, mode=mode, weights=weights, reference=kept)
        assert difference(fusion.model, models[kept], name) < EXACT
