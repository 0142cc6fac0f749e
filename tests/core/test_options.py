"""Options of methods: which there are, what their values must be, and how methods are made by name."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.core.methods import MethodTable, Options
from consilience.networks.methods.baselines import NetworkAverage
from tests.copies import COPIES

METHODS = (
    cs.methods.KLFusion,
    cs.methods.ConsensusMonteCarlo,
    cs.methods.DensityProduct,
    cs.methods.SPAHM,
    cs.methods.AMPS,
    cs.methods.KMeans,
    cs.methods.DirichletProcess,
    cs.methods.Consensus,
    cs.methods.OTFusion,
    cs.methods.ReBasin,
    cs.methods.TIES,
)
VALUES = (np.array(["x"]), np.array([1.0, 2.0]), 10**400, object(), {"a": 1}, "x")


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(type(value)))
def test_nothing_but_an_option_error(method: Any, value: object) -> None:
    for option in (field.name for field in fields(method)):
        try:
            method(**{option: value})
        except cs.errors.OptionError:
            continue


@dataclass(frozen=True)
class Named(Options):
    name: ClassVar[str] = "named"
    rate: float = 1.0


@dataclass(frozen=True)
class Other(Options):
    name: ClassVar[str] = "other"


@dataclass(frozen=True)
class Unknown(Options):
    name: ClassVar[str] = "unknown"


def test_a_method_of_another_kind_is_that_of_its_name():
    table = MethodTable((Other, NetworkAverage), (Other, NetworkAverage), "things")
    assert table.make(cs.methods.Average(), {}) == NetworkAverage()
    assert table.make(cs.methods.Average(robust=True), {}) == NetworkAverage(robust=True)
    with pytest.raises(cs.errors.OptionError, match=r"method 'average' for things|no option combine"):
        table.make(cs.methods.Average(combine="product"), {})
    for stranger in (cs.methods.KMeans(), Unknown()):
        name = type(stranger).__name__
        with pytest.raises(cs.errors.OptionError, match=f"{name} does not fuse things; give one of 'other', 'average'"):
            table.make(stranger, {})


def test_auto_is_the_recommended_method_of_every_kind():
    assert MethodTable((Named, Other), (Named, Other)).make("auto", {"rate": 2.0}) == Named(rate=2.0)


def test_methods_that_have_an_option_are_named_where_another_lacks_it():
    with pytest.raises(
        cs.errors.OptionError, match="method 'other' has no option rate; it has none; methods with it: 'named'"
    ):
        MethodTable((Named, Other), (Named, Other)).make("other", {"rate": 2.0})


@pytest.mark.parametrize(
    "method",
    [
        cs.methods.Concatenate, cs.methods.PredictionEnsemble, cs.methods.FisherMerging,
        cs.methods.SelfSupervisedFisher,
        cs.methods.KFAC, cs.methods.Distill, cs.methods.KLNetworkFusion, cs.methods.BayesianAuto,
    ],
)  # fmt: skip
def test_what_does_not_average_copies_has_no_robust_option(method):
    assert not {"robust", "trim"} & method().get_params().keys()
    with pytest.raises(TypeError, match="robust"):
        method(robust=True)
    assert not method().is_robust


def test_a_class_of_a_users_own_is_never_taken_for_one_of_ours():
    @dataclass(frozen=True)
    class Mine(cs.methods.Average):
        pass

    networks = [torch.nn.Linear(2, 2) for _ in range(2)]
    with pytest.raises(cs.errors.OptionError, match="Mine does not fuse networks; give one of 'auto'"):
        cs.fuse(networks, method=Mine(), example=torch.zeros(1, 2))


@COPIES
@pytest.mark.parametrize("method", [cs.methods.BayesianAuto(), cs.methods.DrawsAuto()])
def test_the_default_of_another_kind_is_that_of_this_one(method):
    networks = [torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)) for _ in range(2)]
    fusion = cs.fuse(networks, method=method, example=torch.zeros(1, 2))
    assert fusion.provenance["method"] == "auto"
    posteriors = [cs.Posterior(cs.families.Gamma(), cs.families.Gamma().to_natural(shape=[2.0], rate=[1.0]))] * 2
    assert cs.fuse({"a": posteriors[0], "b": replace(posteriors[1])}, method=method).provenance["method"] == "kl"
