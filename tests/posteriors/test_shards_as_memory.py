"""Fusing shards gives what fusing the same sites in memory gives: the same bytes of few components, by KL-fusion."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import consilience as cs
from consilience.engines import Local
from consilience.families.base import Tangent
from consilience.posteriors.columns import ComponentColumns
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.sharded import fuse, methods
from consilience.posteriors.sharded.header import kind_of
from consilience.posteriors.sharded.passes import (
    Divergence,
    PreparedShards,
    gather,
    n_active_rows,
    prepare,
    split_by_shard,
)
from consilience.posteriors.sharded.shards import stack_posteriors
from tests.posteriors.shard_sites import planted_sites, written
from tests.tolerances import CALIBRATION, DESCENT, FIXED_POINT, ROUNDING

pytestmark = pytest.mark.covering(0)

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


def _assert_same_bytes(there: cs.Fusion, here: cs.Fusion) -> None:
    """Assert that two matchings and all that is said of them are one; averages are sums, over shards in one of them."""
    assert there.status is here.status
    assert there.objective == here.objective
    for name in ("labels", "confidence"):
        assert getattr(there.matching, name).tobytes() == getattr(here.matching, name).tobytes()
    assert {key: value for key, value in there.details.items() if key not in ("sites", "shards")} == {**here.details}
    np.testing.assert_allclose(there.posterior.natural, here.posterior.natural, rtol=ROUNDING, atol=ROUNDING)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have shards of few components fused in passes, as those of many are; averages are still of gathered ones."""
    monkeypatch.setattr(fuse, "MAX_GATHERED_ROWS", methods.MAX_GATHERED_ROWS)  # which is bound at its first import
    monkeypatch.setattr(methods, "MAX_GATHERED_ROWS", 0)


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
            with pytest.raises(cs.errors.InputError, match="no component is held by half of the models"):
                cs.fuse(folder, method="spahm", pilot_sites=pilot_sites, minority="drop")

    def test_a_site_without_weight_has_no_say(self, rare_sites: Path) -> None:
        weights = np.ones(SITES)
        weights[:30] = 0.0
        options = {"n_components": 4, "weights": weights}
        here, there = _in_memory(rare_sites, **options), cs.fuse(rare_sites, pilot_sites=15, **options)
        assert there.details["minority"] == here.details["minority"]


def _prepared(posteriors: list[cs.Posterior], parts: int, weights: np.ndarray | None = None) -> PreparedShards:
    """Return sites prepared for passes, in so many shards."""
    engine, kind = Local(threads=1), kind_of(posteriors[0])
    edges = np.linspace(0, len(posteriors), parts + 1).astype(int).tolist()
    blocks = [stack_posteriors(kind, posteriors[first:end]) for first, end in pairwise(edges)]
    by_shard = [None] * parts if weights is None else [weights[first:end] for first, end in pairwise(edges)]
    centre = np.concatenate([posterior.natural for posterior in posteriors]).mean(axis=0)
    placed = engine.derive(prepare, engine.place(_same, blocks), centre, "forward", 0.0, each=by_shard)
    n_rows = sum(posterior.n_components for posterior in posteriors)
    return PreparedShards(engine, placed, Tangent(kind.family, centre), "forward", len(posteriors), n_rows)


def _same(block: ComponentColumns) -> ComponentColumns:
    return block


class TestConfidence:
    """How sure each match is."""

    @pytest.mark.parametrize("shard_bytes", [2_000, 10**8])
    @pytest.mark.parametrize("method", ["kl", "spahm"])
    def test_is_that_of_memory(self, rare_sites: Path, method: str, shard_bytes: int) -> None:
        here = _in_memory(rare_sites, **METHODS[method])
        there = cs.fuse(rare_sites, pilot_sites=15, shard_bytes=shard_bytes, **METHODS[method])
        assert here.matching.confidence is not None
        # SPAHM estimates its law with the matching, and stops at a step below a millionth.
        rtol = ROUNDING if method == "kl" else CALIBRATION
        np.testing.assert_allclose(there.matching.confidence, here.matching.confidence, rtol=rtol)

    def test_a_site_without_weight_has_none(self, rare_sites: Path) -> None:
        weights = np.ones(SITES)
        weights[3] = 0.0
        fusion = cs.fuse(rare_sites, pilot_sites=15, n_components=4, weights=weights)
        assert fusion.matching.confidence is not None
        assert np.array_equal(np.isnan(fusion.matching.confidence), fusion.matching.owner == 3)


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_components_in_shards_are_the_ensemble_of_memory_bit_for_bit(parts: int) -> None:
    posteriors, _ = planted_sites(30)
    ensemble, origin = Ensemble.of(posteriors).canonical(relabel=True)
    gathered = gather(_prepared(posteriors, parts))
    assert np.array_equal(gathered.ensemble.natural, ensemble.natural)
    assert np.array_equal(gathered.rows, origin)
    assert gathered.ensemble.names != ()


class TestFewComponents:
    """Shards of few components are fused in memory: the same bytes, however they lie."""

    @pytest.mark.parametrize("shard_bytes", [5_000, 10**8])
    @pytest.mark.parametrize(
        "options",
        [{}, {"n_components": 4}, {"regularization": 0.1}, {"max_components": 5}, {"divergence": "hellinger"}],
        ids=str,
    )
    def test_are_fused_as_in_memory(self, tmp_path: Path, options: dict[str, Any], shard_bytes: int) -> None:
        posteriors = _sites_with_rare(30, 10)
        family = posteriors[0].family
        far = family.to_natural(mean=np.full((1, 3), 12.0), variance=np.full((1, 3), 0.05))
        natural = np.concatenate([posteriors[7].natural[:2], far])
        posteriors[7] = cs.Posterior(family, natural, prior=posteriors[7].prior, counts=np.full(3, 30.0))
        folder = written(posteriors, tmp_path / "sites")
        here, there = _in_memory(folder, **options), cs.fuse(folder, pilot_sites=9, shard_bytes=shard_bytes, **options)
        _assert_same_bytes(there, here)

    def test_of_sites_with_weights_are_fused_as_in_memory(self, rare_sites: Path) -> None:
        weights = np.where(np.arange(SITES) % 7 == 0, 0.0, 1.0 + np.arange(SITES) % 3)
        here, there = (cs.fuse(rare_sites, pilot_sites=n, shard_bytes=5_000, weights=weights) for n in (10_000, 15))
        _assert_same(there, here)
        np.testing.assert_allclose(there.matching.confidence, here.matching.confidence, rtol=ROUNDING)

    def test_that_are_points_are_fused_as_in_memory(self, tmp_path: Path) -> None:
        rng, family = np.random.default_rng(3), cs.families.Point(dim=2)
        places = 9.0 * rng.standard_normal((4, 2))
        sites = [places[rng.permutation(4)[:3]] + 0.2 * rng.standard_normal((3, 2)) for _ in range(50)]
        folder = written([cs.Posterior(family, site) for site in sites], tmp_path / "sites")
        _assert_same_bytes(cs.fuse(folder, pilot_sites=15, shard_bytes=2_000), _in_memory(folder))


@pytest.mark.usefixtures("passes")
class TestPasses:
    """Clear components are found and matched in passes over shards as in memory, with their number."""

    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize("shard_bytes", [10_000, 10**8])
    @pytest.mark.parametrize("options", [{}, {"n_components": 5}], ids=["number found", "number given"])
    def test_labels_are_those_of_memory(
        self, tmp_path: Path, seed: int, shard_bytes: int, options: dict[str, Any]
    ) -> None:
        posteriors, _ = planted_sites(60, groups=5, seed=seed)
        folder = written(posteriors, tmp_path / "sites")
        here, there = _in_memory(folder, **options), cs.fuse(folder, pilot_sites=12, shard_bytes=shard_bytes, **options)
        assert there.n_components == here.n_components == 5
        _assert_same(there, here)
        assert there.details["pilot_sites"] >= 12
        assert np.all(np.diff(there.history) <= DESCENT * np.abs(there.history[:-1]))

    def test_a_component_that_the_sample_lacks_is_found(self, rare_sites: Path) -> None:
        _assert_same(cs.fuse(rare_sites, pilot_sites=3, shard_bytes=5_000), _in_memory(rare_sites))

    @pytest.mark.parametrize("noise", [0.5, 1.5])
    def test_the_objective_never_rises(self, tmp_path: Path, noise: float) -> None:
        posteriors, _ = planted_sites(40, noise=noise, seed=2)
        folder = written(posteriors, tmp_path / "sites")
        there = cs.fuse(folder, pilot_sites=35, shard_bytes=5_000, n_components=6, restarts=20)
        assert np.all(np.diff(there.history) <= DESCENT * np.abs(there.history[:-1]))


DIVERGENCES: dict[str, dict[str, Any]] = {
    "renyi": {"divergence": "renyi", "order": 0.7},
    "hellinger": {"divergence": "hellinger"},
    "wasserstein": {"divergence": "wasserstein"},
}
# Scaled by one number as diagonal covariances are by several; averages of normal-wisharts are found by iteration.
SLOWER_FAMILIES = ("spherical", "normal-wishart")
FAMILIES = {
    "diagonal": lambda mean, width: (
        cs.families.DiagonalGaussian(dim=2),
        {"mean": mean, "variance": width[:, None] * np.array([1.0, 2.0])},
    ),
    "spherical": lambda mean, width: (cs.families.SphericalGaussian(dim=2), {"mean": mean, "variance": width}),
    "full": lambda mean, width: (
        cs.families.Gaussian(dim=2),
        {"mean": mean, "covariance": width[:, None, None] * np.array([[1.0, 0.4], [0.4, 2.0]])},
    ),
    "normal-wishart": lambda mean, width: (
        cs.families.NormalWishart(dim=2),
        {
            "mean": mean,
            "kappa": 30.0 + 0.0 * width,
            "dof": 30.0 + 0.0 * width,
            "inverse_scale": 30.0 * width[:, None, None] * np.array([[1.0, 0.4], [0.4, 2.0]]),
        },
    ),
}


def _gaussian_sites(family: str, sites: int = 40) -> list[cs.Posterior]:
    """Return sites that hold two or three of three components that lie apart, of other widths at every site."""
    rng = np.random.default_rng(4)
    places = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    posteriors = []
    for _ in range(sites):
        own = places[rng.permutation(3)[: rng.integers(2, 4)]]
        mean = own + 0.4 * rng.standard_normal(own.shape)
        made, parameters = FAMILIES[family](mean, rng.uniform(0.5, 2.0, len(own)))
        posteriors.append(cs.Posterior(made, made.to_natural(**parameters), counts=rng.uniform(20.0, 60.0, len(own))))
    return posteriors


@pytest.mark.usefixtures("passes")
class TestDivergences:
    """Every divergence runs over shards and gives what it gives in memory."""

    @pytest.mark.parametrize(
        ("divergence", "family"),
        [
            pytest.param(divergence, family, marks=pytest.mark.slow if is_slow else ())
            for divergence in DIVERGENCES
            for family in FAMILIES
            for is_slow in [family in SLOWER_FAMILIES and divergence != "wasserstein"]
        ],
    )
    def test_components_are_those_of_memory(self, tmp_path: Path, divergence: str, family: str) -> None:
        folder = written(_gaussian_sites(family), tmp_path / "sites")
        options = {"n_components": 3, **DIVERGENCES[divergence]}
        here = _in_memory(folder, **options)
        for shard_bytes in (3_000, 10**8):
            there = cs.fuse(folder, pilot_sites=10, shard_bytes=shard_bytes, **options)
            _assert_same(there, here, FIXED_POINT)
            assert there.objective == pytest.approx(here.objective, rel=FIXED_POINT)
            assert np.all(np.diff(there.history) <= DESCENT * np.abs(there.history[:-1]))

    @pytest.mark.parametrize("divergence", DIVERGENCES)
    @pytest.mark.parametrize("parts", [1, 2, 5])
    def test_averages_are_sums_over_shards(self, divergence: str, parts: int) -> None:
        posteriors = _gaussian_sites("full", 20)
        rng = np.random.default_rng(6)
        labels = np.concatenate([rng.permutation(3)[: posterior.n_components] for posterior in posteriors])
        ensemble = Ensemble.of(posteriors, rng.random(20) + 0.1)
        weights = ensemble.site_weights
        method = cs.methods.KLFusion(**DIVERGENCES[divergence])
        expected = method.average(ensemble, labels, 3)
        shards = replace(_prepared(posteriors, parts, weights), divergence=Divergence(method.divergence, method.order))
        found = shards.averages_of(split_by_shard(labels, shards.map(n_active_rows)), 3)
        if parts == 1:
            assert np.array_equal(found, expected)
        else:
            np.testing.assert_allclose(found, expected, rtol=FIXED_POINT, atol=FIXED_POINT)

    def test_the_number_is_that_of_kl(self, tmp_path: Path) -> None:
        folder = written(planted_sites(60, groups=5)[0], tmp_path / "sites")
        options = {"pilot_sites": 20, "shard_bytes": 10_000}
        kl, fusion = cs.fuse(folder, **options), cs.fuse(folder, **options, divergence="hellinger")
        assert fusion.n_components == kl.n_components
        assert fusion.details["path"] == kl.details["path"]
