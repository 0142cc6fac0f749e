"""The laws of transports hold for those of the library, and name what a wrong one breaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.networks.symmetry.transport import (
    Injection,
    MatrixTransport,
    Scaling,
    Spread,
    Transport,
    permutation,
)
from consilience.testing import BrokenLawError, check_transport

RNG = np.random.default_rng(0)
COUPLING = RNG.random((5, 3)) / 15.0
COUPLING = COUPLING / COUPLING.sum()
TRANSPORTS = {
    "permutation": permutation(np.array([2, 0, 1])),
    "signed permutation": Injection(np.array([2, 0, 1]), 3, np.array([1.0, -1.0, -1.0])),
    "injection": Injection(np.array([4, 1]), 5),
    "signed injection": Injection(np.array([4, 1]), 5, np.array([1.0, -1.0])),
    "spread": Spread(COUPLING),
    "scaled spread": Spread(COUPLING, 5 / 3),
    "signed spread": Spread(COUPLING, 1.0, np.where(RNG.random((5, 3)) < 0.5, -1.0, 1.0)),
    "scaling": Scaling(np.array([0.5, 2.0, 3.0])),
    "matrices": MatrixTransport(RNG.standard_normal((4, 3)), RNG.standard_normal((4, 3))),
    "nothing": MatrixTransport(np.zeros((2, 3)), np.zeros((2, 3))),
}


@pytest.mark.parametrize("name", sorted(TRANSPORTS))
def test_every_transport_keeps_the_laws(name: str) -> None:
    check_transport(TRANSPORTS[name])


class _Wrong(Transport):
    """A swap of two units that gets one thing wrong."""

    receiving = np.array([[0.0, 1.0], [1.0, 0.0]])
    sending = receiving


class _MovesTheOtherWay(_Wrong):
    def move(self, values: Any, axis: int, side: Any) -> Any:
        return values + 0.0 if side == "input" else super().move(values, axis, side)


class _OwnsNothing(_Wrong):
    owned = np.zeros(2)


class _Unlabelled(_Wrong):
    labels = np.array([0.0, 1.0])


class _LabelledWrongly(_Wrong):
    labels = np.array([0, 1])


class _TooMuchMass(_Wrong):
    plan = np.ones((2, 2))


class _Single(_Wrong):
    def move(self, values: Any, axis: int, side: Any) -> Any:
        return np.asarray(super().move(values, axis, side), dtype=np.float64)


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (_MovesTheOtherWay, "the input side moves by its matrix"),
        (_OwnsNothing, "a unit is owned if anything comes to it"),
        (_Unlabelled, "labels are new units, or -1"),
        (_LabelledWrongly, "a label is a unit to which the old one goes"),
        (_TooMuchMass, "the plan is mass"),
        (_Single, "arrays keep their type"),
    ],
)
def test_a_broken_law_is_named(kind: type[Transport], law: str) -> None:
    check_transport(_Wrong())
    with pytest.raises(BrokenLawError, match=f"^{law}: "):
        check_transport(kind())
