"""A method says what every site must state; checking asks for it before anything is matched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

import consilience as cs
from consilience.posteriors.method import WEIGHS_BY_PRIOR, SiteNeed
from consilience.posteriors.methods.average import Average

FAMILY = cs.families.Gamma()
NATURAL = FAMILY.to_natural(shape=[2.0, 3.0], rate=[1.0, 1.0])


@dataclass(frozen=True)
class _Demanding(Average):
    """The average, with needs."""

    name: ClassVar[str] = "demanding"
    needed: tuple[SiteNeed, ...] = ()

    def site_needs(self) -> tuple[SiteNeed, ...]:
        return self.needed


def sites(**stated: object) -> dict[str, cs.Posterior]:
    return {"lund": cs.Posterior(FAMILY, NATURAL, **stated), "oslo": cs.Posterior(FAMILY, 2.0 * NATURAL)}


@pytest.mark.parametrize(
    ("need", "stated", "text"),
    [
        (SiteNeed("counts", "demanding"), {}, "demanding needs every model's counts, which are missing in lund, oslo"),
        (
            SiteNeed("weights", "option=1"),
            {"weights": [0.5, 0.5]},
            "option=1 needs every model's weights, which are missing in oslo",
        ),
        (
            SiteNeed("prior", "demanding"),
            {"prior": NATURAL[0]},
            "demanding needs every model's prior, which is missing in oslo",
        ),
    ],
)
def test_what_is_missing_is_named_with_the_sites(need: SiteNeed, stated: dict[str, object], text: str) -> None:
    assert cs.check(sites(**stated), method=_Demanding(needed=(need,))) == [f"{text} [E-INPUT]"]


def test_a_prior_that_must_be_proper() -> None:
    need = SiteNeed("prior", "demanding", WEIGHS_BY_PRIOR)
    models = {
        name: cs.Posterior(FAMILY, NATURAL, prior=prior) for name, prior in (("a", NATURAL[0]), ("b", 0 * NATURAL[0]))
    }
    problems = cs.check(models, method=_Demanding(needed=(need,)))
    assert problems == [
        "demanding weighs new components by their prior, which is improper in b; use method 'kl' [E-INPUT]"
    ]


def test_what_is_met_is_not_mentioned() -> None:
    models = {name: cs.Posterior(FAMILY, NATURAL * k, counts=[1.0, 2.0]) for name, k in (("a", 1.0), ("b", 2.0))}
    assert cs.check(models, method=_Demanding(needed=(SiteNeed("counts", "demanding"),)), min_count=0) == []
