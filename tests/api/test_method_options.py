import inspect
from dataclasses import fields

import consilience as cs
from consilience.checkpoints.lora.methods import ADAPTER_METHODS
from consilience.core.arguments import CALL_KEYWORDS, KIND_KEYWORDS, NETWORK_KEYWORDS, FuseKeywords, MethodOptions
from consilience.draws.methods import DRAWS_METHODS
from consilience.estimators.methods import ESTIMATOR_METHODS
from consilience.networks.fuse_aligned import NetworkArguments
from consilience.networks.gaussian.methods import BAYESIAN_METHODS
from consilience.networks.methods import NETWORK_METHODS
from consilience.posteriors.methods import METHODS


def test_the_keyword_arguments_of_fuse_are_the_options_of_all_methods():
    options = {
        field.name
        for method in (
            *METHODS,
            *NETWORK_METHODS,
            *BAYESIAN_METHODS,
            *DRAWS_METHODS,
            *ESTIMATOR_METHODS,
            *ADAPTER_METHODS,
        )
        for field in fields(method)
    }
    assert set(MethodOptions.__annotations__) == options - {"combine", "n_components", "min_count"}


def test_fuse_names_the_keywords_of_kinds_and_check_takes_them_all():
    of_fuse = set(inspect.signature(cs.fuse).parameters) - {"models", "options"}
    assert of_fuse == {*CALL_KEYWORDS, *KIND_KEYWORDS}
    assert set(KIND_KEYWORDS) | set(MethodOptions.__annotations__) == set(FuseKeywords.__annotations__)
    assert set(inspect.signature(cs.check).parameters) <= {"models", "options", *CALL_KEYWORDS}


def test_the_keywords_for_networks_are_the_arguments_of_a_fusion_of_networks():
    assert set(NETWORK_KEYWORDS) == {one.name for one in fields(NetworkArguments)}
