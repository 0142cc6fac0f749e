"""Laws of every method of the table, on sites that it takes: names, order and seeds, weights, copies, and the descent.

The laws on every family, for the methods that take any, are in ``test_methods``.
"""

import functools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import consilience as cs
from tests import tolerances
from tests.copies import COPIES
from tests.posteriors.methods_zoo import NAMES, SPECIMENS

every_method = pytest.mark.parametrize("name", NAMES)
WEIGHTS = (1.0, 2.0, 0.5)


def fused(name, sites, weights=WEIGHTS):
    return cs.fuse(sites, SPECIMENS[name].method, weights=weights, rng=0)


@functools.cache
def plain(name):
    return fused(name, SPECIMENS[name].sites())


def contents(fusion):
    """Every bit of what is fused, but for the labels."""
    one = fusion.posterior
    arrays = [one.natural, one.counts, one.weights, fusion.history, np.array(fusion.objective)]
    arrays += [one.attached[key].values for key in sorted(one.attached)]
    return [np.ascontiguousarray(array).tobytes() for array in arrays]


@every_method
def test_relabelling_components_changes_only_labels(name):
    rng, sites = np.random.default_rng(1), SPECIMENS[name].sites()
    if not SPECIMENS[name].method.relabels:
        pytest.skip("components are what they are numbered")
    orders = [rng.permutation(one.n_components) for one in sites]
    moved = fused(name, [one.take(order) for one, order in zip(sites, orders, strict=True)])
    assert contents(moved) == contents(plain(name))
    for number, order in enumerate(orders):
        assert_array_equal(moved.matching.of_site(number), plain(name).matching.of_site(number)[order])


@every_method
def test_the_order_of_sites_changes_only_the_order_of_labels(name):
    sites, order = SPECIMENS[name].sites(), [2, 0, 1]
    moved = fused(name, [sites[number] for number in order], [WEIGHTS[number] for number in order])
    assert contents(moved) == contents(plain(name))
    for place, number in enumerate(order):
        assert_array_equal(moved.matching.of_site(place), plain(name).matching.of_site(number))


@every_method
def test_only_ratios_of_weights_matter(name):
    assert contents(fused(name, SPECIMENS[name].sites(), (8.0, 16.0, 4.0))) == contents(plain(name))


@every_method
def test_the_same_seed_gives_the_same_bytes_and_leaves_the_sites_alone(name):
    sites = SPECIMENS[name].sites()
    before = [one.natural.tobytes() for one in sites]
    again = fused(name, sites)
    assert contents(again) == contents(plain(name))
    assert again.matching.labels.tobytes() == plain(name).matching.labels.tobytes()
    assert [one.natural.tobytes() for one in sites] == before


@every_method
def test_the_objective_never_rises_and_ends_where_its_history_does(name):
    history = plain(name).history
    assert np.all(np.diff(history) <= tolerances.DESCENT * np.abs(history[:-1]))
    if len(history):
        assert_allclose(plain(name).objective, history[-1], rtol=tolerances.DESCENT)


@COPIES
@every_method
def test_copies_in_any_order_fuse_into_one_another(name):
    """Into as many components, each the same: but for methods that keep all, or shrink what they average."""
    rng, model = np.random.default_rng(2), SPECIMENS[name].sites()[0]
    copies = [model.take(rng.permutation(model.n_components)) for _ in range(3)]
    if name in ("concatenate", "ensemble", "average", "spahm"):
        pytest.skip("keeps all, matches nothing, or shrinks what it averages")
    fusion = fused(name, copies)
    labels = [fusion.matching.of_site(number) for number in range(3)]
    for copy, found in zip(copies, labels, strict=True):
        assert sorted(found) == list(range(model.n_components))
        assert_array_equal(copy.natural[np.argsort(found)], copies[0].natural[np.argsort(labels[0])])


@every_method
def test_every_component_is_a_member_of_the_family(name):
    one = plain(name).posterior
    assert one.family.check(one.natural) == []
    assert_array_equal(np.unique(plain(name).matching.labels), np.arange(one.n_components))


@every_method
def test_it_says_what_it_is(name):
    method = SPECIMENS[name].method
    assert type(method).name == name
    assert all(getattr(method, told) for told in ("summary", "needs", "gives", "paper"))
