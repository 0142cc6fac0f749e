"""Laws of every method of the table, whether it matches units, weighs parameters, averages or keeps all networks.

The laws of renumbering, for the methods that match units, are in ``test_methods``.
"""

from functools import cache

import numpy as np
import pytest
import torch

import consilience as cs
from tests.copies import COPIES
from tests.networks.informed_nets import informed, observations, perceptron
from tests.networks.methods_zoo import NAMES, SPECIMENS
from tests.tolerances import DESCENT, ROUNDING

every_method = pytest.mark.parametrize("name", NAMES)
WEIGHTS = [0.5, 0.3, 0.2]


def kind_of(name):
    """Return the kind of information that a method reads."""
    return "kronecker" if getattr(SPECIMENS[name], "reads_layers", False) else "factors"


def fused(name, models=None, infos=None, weights=WEIGHTS, **options):
    """Return the fusion of three networks of one start, or of these."""
    method = SPECIMENS[name]
    own, known = informed(kind_of(name))
    models, infos = own if models is None else models, known if infos is None else infos
    told = {"fishers": infos} if method.wants_information else {"example": observations(0, 5)}
    if isinstance(method, cs.methods.Distill):
        told["inputs"] = observations(3)
    return cs.fuse(models, method, weights=weights, rng=0, **told, **options)


@cache
def plain(name):
    return fused(name)


def answers(fusion):
    with torch.no_grad():
        return fusion.model(observations(9)).numpy()


@every_method
def test_the_order_in_which_models_arrive_changes_nothing(name):
    models, infos = informed(kind_of(name))
    turned = fused(name, models[::-1], infos[::-1], WEIGHTS[::-1])
    np.testing.assert_allclose(answers(turned), answers(plain(name)), rtol=ROUNDING, atol=ROUNDING)


@every_method
def test_the_same_seed_gives_the_same_bytes_and_leaves_the_models_alone(name):
    before = [[values.detach().numpy().tobytes() for values in model.parameters()] for model in informed()[0]]
    assert answers(fused(name)).tobytes() == answers(plain(name)).tobytes()
    assert [[values.detach().numpy().tobytes() for values in model.parameters()] for model in informed()[0]] == before


@every_method
def test_only_ratios_of_weights_matter(name):
    np.testing.assert_allclose(answers(fused(name, weights=[5.0, 3.0, 2.0])), answers(plain(name)), rtol=ROUNDING)


@COPIES
@every_method
def test_identical_networks_fuse_into_one_of_them(name):
    model = perceptron()
    infos = [
        cs.fisher(model, observations(seed), kind_of(name), rank=None, prior_precision=0.0, minimum=1)
        for seed in range(3)
    ]
    with torch.no_grad():
        expected = model(observations(9)).softmax(-1) if name == "ensemble" else model(observations(9))
    found = answers(fused(name, [perceptron() for _ in range(3)], infos))
    found = np.exp(found) if name == "ensemble" else found
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-9, atol=1e-9)


@every_method
def test_the_objective_never_rises(name):
    history = plain(name).history
    assert np.all(np.diff(history) <= DESCENT * np.abs(history[:-1]))


@every_method
def test_it_says_what_it_is(name):
    method = SPECIMENS[name]
    assert type(method).name == name
    assert all(getattr(method, told) for told in ("summary", "needs", "gives", "paper"))
