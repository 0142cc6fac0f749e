"""Fusing shards gives what fusing the same sites in memory gives: minority, confidence, refinement, divergences."""

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
from consilience.posteriors.methods.kl.choose_number import search_problem
from consilience.posteriors.methods.kl.descent import refine
from consilience.posteriors.methods.kl.heterogeneity import (
    discount_by_heterogeneity,
    estimate_heterogeneity,
    likelihood_stack,
)
from consilience.posteriors.methods.kl.outliers import find_far_sites
from consilience.posteriors.methods.kl.problem import KLFit, KLProblem, objective
from consilience.posteriors.sharded.gathered import gather, n_active_rows, split_by_shard
from consilience.posteriors.sharded.header import kind_of
from consilience.posteriors.sharded.passes import Divergence, PreparedShards, prepare
from consilience.posteriors.sharded.shards import stack_posteriors
from consilience.posteriors.sharded.stacks import likelihood_shards
from tests.posteriors.shard_sites import planted_sites, written
from tests.tolerances import CALIBRATION, CONJUGATE_UPDATE, DESCENT, FIXED_POINT, LOCAL_OPTIMUM, ROUNDING

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
    """How sure each match is, and what goes with it."""

    @pytest.mark.parametrize("shard_bytes", [2_000, 10**8])
    @pytest.mark.parametrize("method", ["kl", "spahm"])
    def test_is_that_of_memory(self, rare_sites: Path, method: str, shard_bytes: int) -> None:
        here = _in_memory(rare_sites, **METHODS[method])
        there = cs.fuse(rare_sites, pilot_sites=15, shard_bytes=shard_bytes, **METHODS[method])
        assert here.matching.confidence is not None
        # SPAHM estimates its law with the matching, and stops at a step below a millionth.
        rtol = ROUNDING if method == "kl" else CALIBRATION
        np.testing.assert_allclose(there.matching.confidence, here.matching.confidence, rtol=rtol)

    @pytest.mark.parametrize("options", [{"n_components": 4}, {}], ids=["number given", "number found"])
    def test_heterogeneity_and_outliers_are_those_of_memory(self, tmp_path: Path, options: dict[str, Any]) -> None:
        posteriors = _sites_with_rare()
        family = posteriors[0].family
        far = family.to_natural(mean=np.full((1, 3), 12.0), variance=np.full((1, 3), 0.05))
        natural = np.concatenate([posteriors[7].natural[:2], far])
        posteriors[7] = cs.Posterior(family, natural, prior=posteriors[7].prior, counts=np.full(3, 30.0))
        folder = written(posteriors, tmp_path / "sites")
        here, there = _in_memory(folder, **options), cs.fuse(folder, pilot_sites=15, shard_bytes=5_000, **options)
        assert np.array_equal(there.matching.labels, here.matching.labels)
        assert there.details.get("outliers") == here.details.get("outliers")
        assert there.details["heterogeneity"] == pytest.approx(here.details["heterogeneity"], rel=CALIBRATION)
        np.testing.assert_allclose(there.matching.confidence, here.matching.confidence, rtol=CALIBRATION)

    def test_a_site_without_weight_has_none(self, rare_sites: Path) -> None:
        weights = np.ones(SITES)
        weights[3] = 0.0
        fusion = cs.fuse(rare_sites, pilot_sites=15, n_components=4, weights=weights)
        assert fusion.matching.confidence is not None
        assert np.array_equal(np.isnan(fusion.matching.confidence), fusion.matching.owner == 3)


class TestRefinement:
    """A matching is improved site by site as in memory, where memory does."""

    @pytest.mark.parametrize("parts", [1, 3, 7])
    def test_components_in_shards_are_the_ensemble_of_memory_bit_for_bit(self, parts: int) -> None:
        posteriors, _ = planted_sites(30)
        ensemble, origin = Ensemble.of(posteriors).canonical(relabel=True)
        gathered = gather(_prepared(posteriors, parts))
        assert np.array_equal(gathered.ensemble.natural, ensemble.natural)
        assert np.array_equal(gathered.rows, origin)
        assert gathered.ensemble.names != ()

    @pytest.mark.parametrize("noise", [0.5, 1.5, 3.0])
    def test_is_that_of_memory_and_never_raises_the_objective(self, tmp_path: Path, noise: float) -> None:
        posteriors, _ = planted_sites(40, noise=noise, seed=2)
        folder = written(posteriors, tmp_path / "sites")
        options = {"n_components": 6, "restarts": 20}
        here, there = _in_memory(folder, **options), cs.fuse(folder, pilot_sites=35, shard_bytes=5_000, **options)
        assert np.all(np.diff(there.history) <= DESCENT * np.abs(there.history[:-1]))
        assert there.objective == pytest.approx(here.objective, rel=LOCAL_OPTIMUM)
        assert there.objective == pytest.approx(_objective(there, posteriors), rel=DESCENT)

    @pytest.mark.parametrize("noise", [1.5, 3.0])
    def test_what_comes_back_cannot_be_refined(self, tmp_path: Path, noise: float) -> None:
        posteriors, _ = planted_sites(40, noise=noise, seed=2)
        fusion = cs.fuse(written(posteriors, tmp_path / "sites"), pilot_sites=10, n_components=6)
        problem = KLProblem.of(Ensemble.of(posteriors))
        labels = fusion.matching.labels
        start = KLFit(labels, problem.barycenters(labels, 6), fusion.objective * (1.0 + DESCENT), (), True)
        again = refine(problem, start, 0.0, np.random.default_rng(9))
        assert again.objective == pytest.approx(fusion.objective, rel=DESCENT)


def _objective(fusion: cs.Fusion, posteriors: list[cs.Posterior]) -> float:
    """Return equation (6) of a matching at its own barycenters."""
    problem = KLProblem.of(Ensemble.of(posteriors))
    labels = fusion.matching.labels
    return objective(problem, problem.barycenters(labels, fusion.n_components), labels, 0.0)


class TestNumberOfComponents:
    """The number is selected by the evidence of all sites, as in memory."""

    @pytest.mark.parametrize("parts", [1, 4, 9])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_evidence_is_a_sum_over_shards(self, parts: int, weighted: bool) -> None:
        posteriors, truth = planted_sites(30)
        rng = np.random.default_rng(0)
        weights = rng.random(30) + 0.1 if weighted else np.ones(30)
        weights *= 30 / weights.sum()
        ensemble = Ensemble.of(posteriors, weights)
        in_memory, rows = likelihood_stack(ensemble)
        in_shards, shard_rows = likelihood_shards(_prepared(posteriors, parts, weights if weighted else None), ensemble)
        assert np.array_equal(rows, shard_rows)
        expected, found = (estimate_heterogeneity(stack, truth[rows]) for stack in (in_memory, in_shards))
        np.testing.assert_allclose(found, expected, rtol=CALIBRATION)
        here, there = (discount_by_heterogeneity(stack, expected) for stack in (in_memory, in_shards))
        for labels in (truth[rows], rng.permutation(truth[rows]), np.where(truth[rows] == 5, -1, truth[rows])):
            assert there.score(labels) == pytest.approx(here.score(labels), rel=CONJUGATE_UPDATE)
        assert there.likelihood(truth) == pytest.approx(here.likelihood(truth), rel=CONJUGATE_UPDATE)
        assert find_far_sites(in_shards, truth[rows]) == find_far_sites(in_memory, truth[rows])

    def test_is_that_of_memory_for_points(self, tmp_path: Path) -> None:
        rng, family = np.random.default_rng(3), cs.families.Point(dim=2)
        places = 9.0 * rng.standard_normal((4, 2))
        sites = [places[rng.permutation(4)[:3]] + 0.2 * rng.standard_normal((3, 2)) for _ in range(50)]
        folder = written([cs.Posterior(family, site) for site in sites], tmp_path / "sites")
        here, there = _in_memory(folder), cs.fuse(folder, pilot_sites=15, shard_bytes=2_000)
        _assert_same(there, here)
        np.testing.assert_allclose(there.matching.confidence, here.matching.confidence, rtol=CALIBRATION)

    def test_one_group_goes_as_in_memory(self) -> None:
        posteriors, truth = planted_sites(30, noise=1.0)
        ensemble = Ensemble.of(posteriors)
        in_memory, _ = likelihood_stack(ensemble)
        in_shards, _ = likelihood_shards(_prepared(posteriors, 4), ensemble)
        here, there = search_problem(in_memory), search_problem(in_shards)  # type: ignore[arg-type]
        rng = np.random.default_rng(1)
        for centres in (here.barycenters(truth, 6), here.seeds(9, rng)):
            first, second = here.descend(centres, rng), there.descend(centres, rng)
            assert np.array_equal(first.labels, second.labels)
            np.testing.assert_allclose(first.centres, second.centres, rtol=CONJUGATE_UPDATE)
            np.testing.assert_allclose(
                here.without_one_group(first), there.without_one_group(second), rtol=CONJUGATE_UPDATE
            )

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("shard_bytes", [10_000, 10**8])
    def test_is_that_of_memory(self, tmp_path: Path, seed: int, shard_bytes: int) -> None:
        posteriors, _ = planted_sites(120, groups=5, seed=seed)
        folder = written(posteriors, tmp_path / "sites")
        here, there = _in_memory(folder), cs.fuse(folder, pilot_sites=12, shard_bytes=shard_bytes)
        assert there.n_components == here.n_components == 5
        _assert_same(there, here, CONJUGATE_UPDATE)
        assert there.objective == pytest.approx(here.objective, rel=CALIBRATION)
        assert np.all(np.diff(there.history) <= 0.0)


DIVERGENCES: dict[str, dict[str, Any]] = {
    "renyi": {"divergence": "renyi", "order": 0.7},
    "hellinger": {"divergence": "hellinger"},
    "wasserstein": {"divergence": "wasserstein"},
}
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


class TestDivergences:
    """Every divergence runs over shards and gives what it gives in memory."""

    @pytest.mark.parametrize(
        ("divergence", "family"),
        [
            pytest.param(divergence, family, marks=pytest.mark.slow if is_slow else ())
            for divergence in DIVERGENCES
            for family in FAMILIES
            for is_slow in [family == "normal-wishart" and divergence != "wasserstein"]
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
        method = cs.KLFusion(**DIVERGENCES[divergence])
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
