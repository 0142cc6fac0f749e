"""The laws of families hold for every member of the table, and each is broken by some family that is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from consilience.families import Gamma
from consilience.testing import BrokenLawError, check_family
from tests.families.zoo import NAMES, ZOO


@pytest.mark.parametrize("name", NAMES)
def test_every_family_of_the_table_keeps_the_laws(name: str) -> None:
    specimen = ZOO[name]
    check_family(specimen.family, specimen.draw(np.random.default_rng(0), 4))


@dataclass(frozen=True)
class _Rescaled(Gamma):
    """A Gamma with something wrong."""

    def mean_parameters(self, eta: Any) -> Any:
        return 2.0 * super().mean_parameters(eta)

    def from_mean(self, mean: Any) -> Any:
        return super().from_mean(mean / 2.0)


class _BiasedDraws(Gamma):
    def sample(self, eta: Any, size: int, rng: Any) -> Any:
        return {name: 1.3 * values for name, values in super().sample(eta, size, rng).items()}


class _Forgetful(Gamma):
    def from_natural(self, eta: Any) -> Any:
        return {name: np.round(values, 1) for name, values in super().from_natural(eta).items()}


class _Lenient(Gamma):
    def faults(self, eta: Any) -> Any:
        return [(0, "is too small")] if len(eta) else []


@pytest.mark.parametrize(
    ("family", "law"),
    [
        (_Rescaled(), "the mean parameters are the gradient of the log normaliser"),
        (_BiasedDraws(), "draws have the mean parameters as their mean statistics"),
        (_Forgetful(), "from_natural inverts to_natural"),
        (_Lenient(), "members are rows of natural parameters"),
    ],
)
def test_a_broken_law_is_named(family: Gamma, law: str) -> None:
    natural = Gamma().to_natural(shape=[2.13, 3.37], rate=[1.29, 4.41])
    with pytest.raises(BrokenLawError, match=f"^{law}: "):
        check_family(family, natural)


def test_members_must_be_rows() -> None:
    with pytest.raises(BrokenLawError, match=r"expected \(n, P\)"):
        check_family(Gamma(), np.ones(2))
