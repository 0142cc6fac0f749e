from dataclasses import fields

from consilience.api.fuse import MethodOptions
from consilience.bayesian.methods import BAYESIAN_METHODS
from consilience.draws.methods import DRAWS_METHODS
from consilience.networks.methods import NETWORK_METHODS
from consilience.posteriors.methods import METHODS


def test_the_keyword_arguments_of_fuse_are_the_options_of_all_methods():
    options = {
        field.name
        for method in (*METHODS, *NETWORK_METHODS, *BAYESIAN_METHODS, *DRAWS_METHODS)
        for field in fields(method)
    }
    assert set(MethodOptions.__annotations__) == options - {"combine", "n_components", "min_count"}
