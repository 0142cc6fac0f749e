"""Weight matching over lazy arrays against the same over dense ones, whose products are cached and updated."""

import weakref

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from consilience.networks.methods.weight_matching.coordinate_descent import improve_model
from consilience.networks.methods.weight_matching.match import match_incoming
from consilience.networks.methods.weight_matching.state import (
    LazyArrays,
    LazyModel,
    MatchingState,
    PlacedModel,
    RecomputedProducts,
    has_matched_units,
)
from consilience.networks.network import Network
from consilience.networks.symmetry.transport import Injection
from tests.networks.zoo import ZOO, traced

pytestmark = pytest.mark.covering(2)

NAMES = [name for name, entry in ZOO.items() if entry.groups]


def network(name, seed):
    """Return a network of the zoo in float64: which permutation is best is then no matter of rounding."""
    state = ZOO[name].module(seed).state_dict()
    arrays = {key: v.double().numpy() if v.is_floating_point() else v.numpy() for key, v in state.items()}
    return Network(arrays, traced(name)[2])


def matched(state, model, target):
    remaining = state.remaining_models([(1.0, target)])
    match_incoming(state, model, remaining)
    improve_model(state, model, remaining)
    return model


def lazy_model(net, read):
    names = [key for key in net.working if has_matched_units(key, net.symmetry.layouts[key])]
    identity = {name: Injection(np.arange(count), count) for name, count in net.units.items()}
    return LazyModel(LazyArrays(read, names, net.symmetry, net.units, identity), identity)


@pytest.mark.parametrize("linearizes", [True, False], ids=["linear", "quadratic"])
@pytest.mark.parametrize("name", NAMES)
def test_lazy_and_dense_arrays_give_the_same_permutation(name, linearizes):
    first, second = network(name, 1), network(name, 2)
    options = {"is_full": True, "linearizes_recurrent": linearizes}
    dense = MatchingState(first.symmetry, first.units, **options)
    identity = {group: Injection(np.arange(count), count) for group, count in first.units.items()}
    expected = matched(dense, dense.place(second, identity), dense.place(first, identity))
    lazy = MatchingState(first.symmetry, first.units, product_type=RecomputedProducts, **options)
    pair = [lazy_model(net, net.working.__getitem__) for net in (second, first)]
    found = matched(lazy, *pair)
    for group in first.units:
        assert_array_equal(found.transports[group].slots, expected.transports[group].slots, err_msg=group)
    assert set(found.arrays) == set(expected.arrays)
    for key, values in expected.arrays.items():
        assert_array_equal(found.arrays[key], values, err_msg=key)
    assert any(np.any(t.slots != np.arange(t.width)) for t in found.transports.values())


def test_one_array_of_each_model_is_in_memory_at_a_time():
    first, second = network("mlp", 1), network("mlp", 2)
    in_memory = {0: [], 1: []}  # references to what was read of each model
    most, n_read = 0, 0

    def reader(number, net):
        def read(name):
            nonlocal most, n_read
            n_read += 1
            values = net.working[name].copy()
            in_memory[number].append(weakref.ref(values))
            most = max(most, sum(reference() is not None for reference in in_memory[number]))
            return values

        return read

    state = MatchingState(first.symmetry, first.units, is_full=True, product_type=RecomputedProducts)
    model, target = (lazy_model(net, reader(number, net)) for number, net in enumerate((second, first)))
    assert isinstance(matched(state, model, target), PlacedModel)
    state.distance(model, target)
    assert n_read > 2 * len(model.arrays)
    assert most == 1
