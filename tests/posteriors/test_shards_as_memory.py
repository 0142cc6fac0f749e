"""Fusing shards gives what fusing the same sites in memory gives: minority, confidence, refinement, divergences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import consilience as cs
from tests.posteriors.shard_sites import planted_sites, written
from tests.tolerances import ROUNDING

SITES = 60
RARE = 20  # sites that hold a component that the others lack


def _sites_with_rare(sites: int = SITES, rare: int = RARE) -> list[cs.Posterior]:
    """Return sites of three common components each and, at some of them, a fourth one."""
    rng = np.random.default_rng(8)
    family = cs.families.DiagonalGaussian(dim=3)
    places = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [30.0, 30.0, 30.0]])
    prior = family.to_natural(mean=np.zeros((1, 3)), variance=np.full((1, 3), 100.0))[0]
    posteriors = []
    for site in range(sites):
        own = places[: 4 if site % (sites // rare) == 0 else 3]
        natural = family.to_natural(
            mean=rng.permutation(own) + 0.1 * rng.standard_normal(own.shape),
            variance=0.05 * rng.gamma(20.0, 0.05, size=own.shape),
        )
        posteriors.append(cs.Posterior(family, natural, prior=prior, counts=rng.uniform(20.0, 60.0, len(own))))
    return posteriors


@pytest.fixture(scope="module")
def rare_sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(_sites_with_rare(), tmp_path_factory.mktemp("rare") / "sites")


def _in_memory(folder: Path, **options: Any) -> cs.Fusion:
    """Fuse a folder of sites as models in memory: with a sample that holds them all."""
    return cs.fuse(folder, pilot_sites=10_000, **options)


def _assert_same(there: cs.Fusion, here: cs.Fusion, rtol: float = ROUNDING) -> None:
    """Assert that two fusions give the same components and labels, whatever the numbers of close components."""
    assert there.n_components == here.n_components
    assert adjusted_rand_score(there.matching.labels, here.matching.labels) == 1.0
    assert np.array_equal(there.matching.labels, here.matching.labels)
    np.testing.assert_allclose(there.posterior.natural, here.posterior.natural, rtol=rtol, atol=rtol)


METHODS: dict[str, dict[str, Any]] = {
    "kl": {"n_components": 4},
    "kmeans": {"method": "kmeans", "n_components": 4},
    "spahm": {"method": "spahm"},
}


class TestMinority:
    """Components that few sites hold are named, or dropped."""

    @pytest.mark.parametrize("shard_bytes", [2_000, 20_000, 10**8])
    @pytest.mark.parametrize("method", METHODS)
    def test_is_named_as_in_memory(self, rare_sites: Path, method: str, shard_bytes: int) -> None:
        here = _in_memory(rare_sites, **METHODS[method])
        there = cs.fuse(rare_sites, pilot_sites=15, shard_bytes=shard_bytes, **METHODS[method])
        assert there.details["minority"] == here.details["minority"]
        assert there.details["minority"][0]["sites"] == RARE
        assert len(there.details["minority"][0]["names"]) == 8

    @pytest.mark.parametrize("method", METHODS)
    def test_is_dropped_as_in_memory(self, rare_sites: Path, method: str) -> None:
        here = _in_memory(rare_sites, minority="drop", **METHODS[method])
        there = cs.fuse(rare_sites, pilot_sites=15, shard_bytes=5_000, minority="drop", **METHODS[method])
        _assert_same(there, here)
        assert there.n_components == 3
        assert there.details["dropped"] == here.details["dropped"] == 1
        assert np.count_nonzero(there.matching.labels < 0) == RARE

    def test_where_nothing_would_be_left_is_refused_as_in_memory(self, tmp_path: Path) -> None:
        folder = written(planted_sites(40, groups=12)[0], tmp_path / "sites")
        for pilot_sites in (20, 10_000):
            with pytest.raises(cs.InputError, match="no component is held by half of the models"):
                cs.fuse(folder, method="spahm", pilot_sites=pilot_sites, minority="drop")

    def test_a_site_without_weight_has_no_say(self, rare_sites: Path) -> None:
        weights = np.ones(SITES)
        weights[:30] = 0.0
        options = {"n_components": 4, "weights": weights}
        here, there = _in_memory(rare_sites, **options), cs.fuse(rare_sites, pilot_sites=15, **options)
        assert there.details["minority"] == here.details["minority"]
