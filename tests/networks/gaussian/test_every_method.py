"""Laws of every method of the table: order, seeds, weights, copies, and the objective.

The laws of renumbering, for the methods that match units, are in ``test_fusion``.
"""

from functools import cache

import numpy as np
import pytest

import consilience as cs
from tests.copies import COPIES
from tests.networks.gaussian.methods_zoo import NAMES, SPECIMENS
from tests.networks.gaussian.nets import example, network, random_layers, symmetry_of
from tests.tolerances import DESCENT, ROUNDING

every_method = pytest.mark.parametrize("name", NAMES)
WEIGHTS = [0.5, 0.3, 0.2]


def sites():
    return [random_layers((3, 5, 4, 2), np.random.default_rng((8, site))) for site in range(3)]


def fused(name, models=None, weights=WEIGHTS):
    models = sites() if models is None else models
    bnns = [network(layers) for layers in models]
    return cs.fuse(bnns, SPECIMENS[name], symmetry=symmetry_of(models[0]), weights=weights, rng=0)


def answers(fusion):
    return fusion.model.predict(example(sites()[0]), samples=8, rng=1)


@cache
def plain(name):
    return answers(fused(name))


def numbers(fusion):
    """Return the means and variances of a fused network; of an ensemble, what its networks answer."""
    model = fusion.model
    parts = [model.means, model.variances] if hasattr(model, "means") else [{"answers": answers(fusion)}]
    return {(place, key): np.asarray(values) for place, part in enumerate(parts) for key, values in part.items()}


def assert_same(found, expected):
    assert {key: values.shape for key, values in found.items()} == {key: v.shape for key, v in expected.items()}
    for key, values in found.items():
        np.testing.assert_allclose(values, expected[key], rtol=ROUNDING, atol=ROUNDING)


@every_method
def test_the_same_seed_gives_the_same_bytes(name):
    assert answers(fused(name)).tobytes() == plain(name).tobytes()


@every_method
def test_the_order_of_sites_changes_nothing(name):
    if name == "ensemble":
        pytest.skip("each network draws weights of its own, in the order in which they are kept")
    assert_same(numbers(fused(name, sites()[::-1], WEIGHTS[::-1])), numbers(fused(name)))


@every_method
def test_only_ratios_of_weights_matter(name):
    assert_same(numbers(fused(name, weights=[5.0, 3.0, 2.0])), numbers(fused(name)))


@every_method
def test_networks_of_different_widths_are_fused_by_the_methods_that_say_so(name):
    models = [random_layers((3, width, 2), np.random.default_rng((9, width))) for width in (5, 4)]
    problems = cs.check([network(layers) for layers in models], SPECIMENS[name], symmetry=symmetry_of(models[0]))
    assert (problems == []) == SPECIMENS[name].widths, problems


@every_method
def test_the_networks_are_left_as_they_are(name):
    models = sites()
    bnns = [network(layers) for layers in models]
    before = [[values.numpy().tobytes() for part in (bnn.means, bnn.variances) for values in part.values()]
              for bnn in bnns]  # fmt: skip
    cs.fuse(bnns, SPECIMENS[name], symmetry=symmetry_of(models[0]))
    after = [[values.numpy().tobytes() for part in (bnn.means, bnn.variances) for values in part.values()]
             for bnn in bnns]  # fmt: skip
    assert after == before


@COPIES
@every_method
def test_identical_posteriors_fuse_into_their_means(name):
    """Variances are a method's own: several copies may count as more evidence than one."""
    layers = sites()[0]
    fusion = fused(name, [layers] * 3)
    if name == "ensemble":
        assert len(fusion.model.members) == 3
        return
    expected = network(layers).means
    found = fusion.model.means
    order = np.argsort(np.asarray(found["0.bias"])), np.argsort(np.asarray(expected["0.bias"]))
    for key in ("0.bias", "0.weight"):
        one, other = (np.asarray(part[key])[turn] for part, turn in zip((found, expected), order, strict=True))
        np.testing.assert_allclose(one, other, rtol=ROUNDING, atol=ROUNDING)


@every_method
def test_the_objective_never_rises(name):
    history = fused(name).history
    assert np.all(np.diff(history) <= DESCENT * np.abs(history[:-1]))


@every_method
def test_it_says_what_it_is(name):
    method = SPECIMENS[name]
    assert type(method).name == name
    assert all(getattr(method, told) for told in ("summary", "needs", "gives", "paper"))
