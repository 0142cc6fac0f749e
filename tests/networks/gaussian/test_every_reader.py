"""Laws of every reader of the table: means and variances come in, and go back into a model of the same kind."""

import numpy as np
import pytest

import consilience as cs
from consilience.networks.gaussian.readers.table import BAYESIAN_ADAPTERS
from tests.networks.gaussian.readers_zoo import KINDS, SPECIMENS, module, moments
from tests.tolerances import SINGLE_PRECISION

every_kind = pytest.mark.parametrize("kind", KINDS)


def taken(model):
    return cs.as_bayesian_network(model, module())


def assert_has(bnn, means, variances):
    assert list(bnn.means) == list(means)
    for key, values in means.items():
        np.testing.assert_allclose(bnn.means[key], values, rtol=SINGLE_PRECISION)
        np.testing.assert_allclose(bnn.variances[key], variances[key], rtol=SINGLE_PRECISION)


@every_kind
def test_one_reader_alone_accepts_it(kind):
    model = SPECIMENS[kind](*moments())
    assert [adapter.kind for adapter in BAYESIAN_ADAPTERS if adapter.accepts(model)] == [kind]
    assert next(adapter.kind for adapter in BAYESIAN_ADAPTERS if adapter.resembles(model)) == kind


@every_kind
def test_means_and_variances_are_those_of_the_model(kind):
    assert_has(taken(SPECIMENS[kind](*moments())), *moments())


@every_kind
def test_what_is_written_is_of_the_kind_and_read_the_same_and_the_model_is_left_alone(kind):
    model, other = SPECIMENS[kind](*moments()), cs.BayesianNetwork(module(), *moments(1))
    written = cs.written_like(other, model)
    adapter = BAYESIAN_ADAPTERS[KINDS.index(kind)]
    assert adapter.accepts(written)
    assert_has(taken(written), *moments(1))
    assert_has(taken(model), *moments())


@every_kind
def test_it_is_fused_as_the_network_that_it_is(kind):
    models = [SPECIMENS[kind](*moments(seed)) for seed in range(2)]
    fusion = cs.fuse(models, "average", module=module())
    expected = cs.fuse([cs.BayesianNetwork(module(), *moments(seed)) for seed in range(2)], "average")
    assert_has(fusion.model, expected.model.means, expected.model.variances)
