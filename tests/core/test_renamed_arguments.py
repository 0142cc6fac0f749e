"""Old names of arguments and options work for one minor version, with a warning."""

from dataclasses import fields

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

import consilience as cs
from consilience.api.options import MethodOptions
from consilience.bayesian.methods import BAYESIAN_METHODS
from consilience.core.deprecated import renamed_keyword
from consilience.draws.methods import DRAWS_METHODS
from consilience.networks.methods import NETWORK_METHODS
from consilience.posteriors.methods import METHODS

ALL_METHODS = (*METHODS, *NETWORK_METHODS, *BAYESIAN_METHODS, *DRAWS_METHODS)


def mixtures():
    rows = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[0.0, 0.0], [9.0, 9.0]], 30, axis=0)
    return [GaussianMixture(2, random_state=seed).fit(rows) for seed in (0, 1)]


def test_samples_is_n_observations():
    with pytest.warns(DeprecationWarning, match="samples= is deprecated since 0.2"):
        old = cs.fuse(mixtures(), samples=[60, 60])
    new = cs.fuse(mixtures(), n_observations=[60, 60])
    assert np.array_equal(old.posterior.natural, new.posterior.natural)


def test_an_argument_has_the_value_of_whichever_name_was_given():
    assert renamed_keyword("old", None, "new", None) is None
    assert renamed_keyword("old", None, "new", 5) == 5
    with pytest.warns(DeprecationWarning, match="old= is deprecated since 0.2 and goes in 0.3; use new="):
        assert renamed_keyword("old", 7, "new", None) == 7


def test_samples_and_n_observations_together_are_refused():
    with pytest.raises(cs.OptionError, match="are one argument; give n_observations"):
        cs.fuse(mixtures(), samples=[60, 60], n_observations=[60, 60])


@pytest.mark.parametrize("method", [one for one in ALL_METHODS if hasattr(one, "renamed_options")], ids=str)
def test_a_renamed_option_sets_the_new_one(method):
    for old, new in method.renamed_options.items():
        with pytest.warns(DeprecationWarning, match=f"{old}= is deprecated since 0.2"):
            assert getattr(method(**{old: 7}), new) == 7


def test_the_keyword_arguments_of_fuse_are_the_options_of_all_methods():
    options = {field.name for method in ALL_METHODS for field in fields(method)}
    options |= {old for method in ALL_METHODS for old in getattr(method, "renamed_options", ())}
    assert set(MethodOptions.__annotations__) == options - {"combine", "n_components", "min_count"}
