"""Options of the wrong type are refused by the method, whatever their comparison raises."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import consilience as cs

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
