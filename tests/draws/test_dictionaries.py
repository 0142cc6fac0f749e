"""Dictionaries of arrays are draws where something is said that is said of draws alone."""

import numpy as np
import pytest

import consilience as cs
from consilience.errors import InputError


def arrays(seed, **shapes):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in (shapes or {"mu": (4, 300)}).items()}


def test_a_stated_prior_says_that_they_are_draws():
    sites = {"lund": arrays(0), "oslo": arrays(1)}
    fusion = cs.fuse(sites, prior=1 / 2)
    stated = cs.fuse({site: cs.Draws(own, prior=1 / 2) for site, own in sites.items()})
    np.testing.assert_array_equal(fusion.model["mu"], stated.model["mu"])
    assert cs.check(sites, prior=1 / 2) == []


def test_without_a_statement_they_could_be_anything():
    with pytest.raises(InputError, match=r"could be anything; of posterior draws, say so: `consilience\.Draws"):
        cs.fuse({"lund": arrays(0), "oslo": arrays(1)})


def test_chains_of_unequal_lengths_are_no_draws_of_vectors():
    with pytest.raises(InputError, match=r"do not agree in their draws: mu \(4, 300\), tau \(4, 200\)"):
        cs.Draws(arrays(0, mu=(4, 300), tau=(4, 200)))
    assert cs.Draws(arrays(0, mu=(4, 300), tau=(4, 200)), has_chains=False).shape == (1, 4)
    assert cs.Draws(arrays(0, mu=(1000, 3), tau=(1000, 2))).shape == (1, 1000)
