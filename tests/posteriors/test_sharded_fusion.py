"""Fusing shards: the same laws as fusing models in memory, and the same answers where both can be had."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score

import consilience as cs
from consilience.engines import Local
from consilience.matching.beta_bernoulli import AtomLaw, BetaBernoulliPrior, GaussianAtoms
from consilience.posteriors.average import combine, kl_average
from consilience.posteriors.columns import ComponentColumns
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.sharded.descent import Centres, add_pass_sums, assign_and_sum, descend
from consilience.posteriors.sharded.header import kind_of
from consilience.posteriors.sharded.passes import PreparedShard, PreparedShards, prepare
from consilience.posteriors.sharded.shards import load_shard, stack_posteriors
from consilience.posteriors.sharded.totals import add_totals, fused_posterior, shard_totals
from tests.posteriors.shard_sites import planted_sites, written
from tests.posteriors.test_shards import _with_attached
from tests.tolerances import ROUNDING

pytestmark = pytest.mark.covering(2)

SITES = 90
FUSIONS = {
    "kl": {"method": "kl"},
    "kl, number given": {"method": "kl", "n_components": 6},
    "kl, priced": {"method": "kl", "regularization": 0.5},
    "kl, reverse": {"method": "kl", "n_components": 6, "direction": "reverse"},
    "kl, product": {"method": "kl", "n_components": 6, "combine": "product"},
    "spahm": {"method": "spahm"},
    "kmeans": {"method": "kmeans", "n_components": 6},
}


@pytest.fixture(scope="module")
def planted() -> tuple[list[cs.Posterior], np.ndarray]:
    return planted_sites(SITES)


@pytest.fixture(scope="module")
def folder(planted: tuple[list[cs.Posterior], np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sharded")
    cs.pack(written(planted[0], place / "sites"), place / "packed", shard_bytes=4000)
    return place


SLOW = ("kl", "kl, priced", "kl, reverse", "kl, product")


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in FUSIONS], scope="module"
)
def options(request: pytest.FixtureRequest) -> dict[str, object]:
    return {**FUSIONS[request.param], "pilot_sites": 30}


def _rounding(options: dict[str, object]) -> float:
    """Sums agree to 1e-12; what the inverse of the mean parameters makes of that is a hundred times as much here."""
    return 100 * ROUNDING if options.get("direction") == "reverse" else ROUNDING


def _same_partition(labels: np.ndarray, expected: np.ndarray) -> bool:
    return adjusted_rand_score(labels, expected) == 1.0


def test_the_planted_components_are_found(
    planted: tuple[list[cs.Posterior], np.ndarray], folder: Path, options: dict[str, object]
) -> None:
    fusion = cs.fuse(folder / "packed", **options)
    assert fusion.n_components == 6
    assert _same_partition(fusion.matching.labels, planted[1])
    assert fusion.details["sites"] == SITES
    assert fusion.details["shards"] > 2
    assert np.bincount(fusion.matching.owner).tolist() == [posterior.n_components for posterior in planted[0]]


def test_the_objective_never_rises(folder: Path, options: dict[str, object]) -> None:
    history = cs.fuse(folder / "packed", **options).history
    assert np.all(np.diff(history) <= ROUNDING * np.abs(history[:-1]))


def test_threads_change_nothing_and_shards_only_the_rounding(folder: Path, options: dict[str, object]) -> None:
    one_thread = cs.fuse(folder / "packed", engine=Local(threads=1), **options)
    three_threads = cs.fuse(folder / "packed", engine=Local(threads=3, memory=0), **options)
    assert np.array_equal(one_thread.posterior.natural, three_threads.posterior.natural)
    assert np.array_equal(one_thread.history, three_threads.history)
    other_shards = cs.fuse(folder / "sites", engine="local", **options)
    assert np.array_equal(one_thread.matching.labels, other_shards.matching.labels)
    np.testing.assert_allclose(one_thread.posterior.natural, other_shards.posterior.natural, rtol=_rounding(options))
    np.testing.assert_allclose(one_thread.posterior.counts, other_shards.posterior.counts, rtol=1e-12)


def test_neither_the_order_of_files_nor_of_components_matters(
    planted: tuple[list[cs.Posterior], np.ndarray], folder: Path, options: dict[str, object], tmp_path: Path
) -> None:
    reversed_sites = [posterior.take(np.arange(posterior.n_components)[::-1]) for posterior in reversed(planted[0])]
    fusion = cs.fuse(folder / "packed", **options)
    reversed_fusion = cs.fuse(written(reversed_sites, tmp_path / "turned"), engine="local", **options)
    assert np.array_equal(fusion.matching.labels, reversed_fusion.matching.labels[::-1])
    np.testing.assert_allclose(fusion.posterior.natural, reversed_fusion.posterior.natural, rtol=_rounding(options))


def test_few_sites_are_fused_as_if_they_were_handed_in(folder: Path) -> None:
    files = sorted(str(path) for path in (folder / "sites").iterdir())
    here = cs.fuse(files, n_components=6)
    for where in (folder / "packed", folder / "sites"):
        there = cs.fuse(where, n_components=6, pilot_sites=SITES)
        assert np.array_equal(here.posterior.natural, there.posterior.natural)
        assert np.array_equal(here.matching.labels, there.matching.labels)
        digests = [record["sha256"] for record in there.provenance["inputs"]]
        assert digests == [record["sha256"] for record in here.provenance["inputs"]]


def test_a_fused_file_says_which_shards_it_is_from(folder: Path, tmp_path: Path) -> None:
    cs.fuse(folder / "packed", method="spahm", pilot_sites=30).save(tmp_path / "fused.safetensors")
    fusion = cs.fuse(folder / "packed", method="spahm", pilot_sites=30)
    fusion.save(tmp_path / "again.safetensors")
    fusion.report(tmp_path / "fused.html")
    assert (tmp_path / "fused.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    records = fusion.provenance["inputs"]
    assert len(records) == len(list((folder / "packed").iterdir()))
    assert sum(record["weight"] for record in records) == SITES
    assert all(len(record["sha256"]) == 64 for record in records)


class TestWeights:
    """What each site counts."""

    def test_equal_ones_change_nothing_but_rounding(self, folder: Path, options: dict[str, object]) -> None:
        plain = cs.fuse(folder / "packed", **options)
        equal = cs.fuse(folder / "packed", weights=np.full(SITES, 7.0), **options)
        assert np.array_equal(plain.matching.labels, equal.matching.labels)
        np.testing.assert_allclose(plain.posterior.natural, equal.posterior.natural, rtol=1e-10, atol=1e-10)

    def test_a_site_without_weight_is_told_its_labels_and_has_no_say(
        self, planted: tuple[list[cs.Posterior], np.ndarray], folder: Path, tmp_path: Path
    ) -> None:
        posteriors, truth = planted
        weights = np.ones(SITES)
        weights[17] = 0.0
        fusion = cs.fuse(folder / "packed", n_components=6, pilot_sites=30, weights=weights)
        assert _same_partition(fusion.matching.labels, truth)
        without = written([one for site, one in enumerate(posteriors) if site != 17], tmp_path / "without")
        rest = cs.fuse(without, n_components=6, pilot_sites=30, engine="local")
        np.testing.assert_allclose(fusion.posterior.natural, rest.posterior.natural, rtol=1e-10, atol=1e-10)

    def test_one_for_each_site_is_needed(self, folder: Path) -> None:
        with pytest.raises(cs.errors.OptionError, match=f"expected {SITES} numbers"):
            cs.fuse(folder / "packed", weights=[1.0, 2.0])
        assert any("weights" in problem for problem in cs.check(folder / "packed", weights=[1.0, 2.0]))


def _work(posteriors: list[cs.Posterior], direction: str = "forward", min_count: float = 0.0, parts: int = 3,
          weights: np.ndarray | None = None) -> PreparedShards:  # fmt: skip
    engine = Local(threads=1)
    kind = kind_of(posteriors[0])
    edges = np.linspace(0, len(posteriors), parts + 1).astype(int)
    blocks = [stack_posteriors(kind, posteriors[a:b]) for a, b in pairwise(edges.tolist())]
    weights_by_shard = None if weights is None else [weights[a:b] for a, b in pairwise(edges.tolist())]
    centre = np.concatenate([posterior.natural for posterior in posteriors]).mean(axis=0)
    shards = engine.derive(
        prepare, engine.place(partial(_at, blocks), range(parts)), centre, direction, min_count,
        each=[None] * parts if weights_by_shard is None else weights_by_shard,
    )  # fmt: skip
    tangent = engine.map(_tangent, shards)[0]
    return PreparedShards(engine, shards, tangent, direction, len(posteriors), sum(p.n_components for p in posteriors))  # type: ignore[arg-type]


def _at(blocks: list[ComponentColumns], number: int) -> ComponentColumns:
    return blocks[number]


def _tangent(shard: PreparedShard) -> object:
    return shard.tangent


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_pass_is_what_brute_force_says(direction: str, weighted: bool) -> None:
    posteriors, _ = planted_sites(25, noise=2.0)
    rng = np.random.default_rng(3)
    weights = rng.random(25) + 0.1 if weighted else None
    work = _work(posteriors, direction, weights=weights)
    family = posteriors[0].family
    natural = np.concatenate([posterior.natural for posterior in posteriors])[rng.permutation(60)[:7]]
    price = rng.random(7)
    sums_of_pass = work.reduce(
        assign_and_sum, add_pass_sums, Centres.from_natural(work.tangent, natural, direction, price), True, 3
    )  # type: ignore[arg-type]
    cost, users, sums, mass, divergences = 0.0, np.zeros(7), np.zeros_like(natural), np.zeros(7), []
    for site, posterior in enumerate(posteriors):
        weight = 1.0 if weights is None else weights[site]
        kl = (
            family.kl(natural, posterior.natural).T if direction == "forward" else family.kl(posterior.natural, natural)
        )
        rows, columns = linear_sum_assignment(weight * kl + price)
        cost += weight * kl[rows, columns].sum()
        divergences += (weight * kl[rows, columns]).tolist()
        averaged = posterior.natural if direction == "forward" else family.mean_parameters(posterior.natural)
        for row, column in zip(rows, columns, strict=True):
            users[column] += 1
            mass[column] += weight
            sums[column] += weight * averaged[row]
    assert sums_of_pass.cost == pytest.approx(cost, rel=1e-9)
    assert np.array_equal(sums_of_pass.users, users)
    np.testing.assert_allclose(sums_of_pass.farthest_costs, sorted(divergences)[::-1][:3], rtol=1e-9)
    used = mass > 0
    means = sums[used] / mass[used, None]
    expected = means if direction == "forward" else family.from_mean(means)
    groups = type(sums_of_pass.groups)(sums_of_pass.groups.sums[used], sums_of_pass.groups.mass[used])
    np.testing.assert_allclose(work.group_averages(groups), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("how", ["barycenter", "product"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("weighted", [False, True])
def test_totals_are_what_combine_gives(how: str, direction: str, weighted: bool) -> None:
    if how == "product" and direction == "reverse":
        return
    posteriors = _with_attached(20)
    rng = np.random.default_rng(0)
    labels = np.concatenate([rng.permutation(6)[: posterior.n_components] for posterior in posteriors])
    weights = rng.random(20) + 0.1 if weighted else np.ones(20)
    weights *= 20 / weights.sum()
    ensemble = Ensemble.of(posteriors, weights)
    average = partial(kl_average, direction=direction)
    expected, _ = combine(ensemble, labels, 6, how, average)  # type: ignore[arg-type]
    work = _work(posteriors, direction, weights=weights if weighted else None)
    sizes = [len(owner) for owner in work.map(_owner)]
    parts = np.split(labels, np.cumsum(sizes)[:-1])
    fused = fused_posterior(work, kind_of(posteriors[0]), work.reduce(shard_totals, add_totals, 6, each=parts), how)  # type: ignore[arg-type]
    for name in ("natural", "prior", "counts"):
        np.testing.assert_allclose(getattr(fused, name), getattr(expected, name), rtol=1e-9, atol=1e-9)
    assert fused.attached.keys() == expected.attached.keys()
    for name, array in expected.attached.items():
        assert fused.attached[name].rule == array.rule
        if array.rule != "keep":  # the first site in the order of contents, or of shards
            np.testing.assert_allclose(fused.attached[name].values, array.values, rtol=1e-9, atol=1e-12)


def _owner(shard: PreparedShard) -> np.ndarray:
    return shard.owner


def test_mixture_weights_are_what_combine_gives() -> None:
    posteriors, truth = planted_sites(20)
    expected, _ = combine(Ensemble.of(posteriors), truth, 6, "barycenter", partial(kl_average, direction="forward"))
    work = _work(posteriors)
    parts = np.split(truth, np.cumsum([len(owner) for owner in work.map(_owner)])[:-1])
    fused = fused_posterior(
        work, kind_of(posteriors[0]), work.reduce(shard_totals, add_totals, 6, each=parts), "barycenter"
    )
    assert expected.weights is not None
    np.testing.assert_allclose(fused.weights, expected.weights, rtol=1e-10)


def test_components_with_few_observations_take_no_part(folder: Path) -> None:
    fusion = cs.fuse(folder / "packed", n_components=6, pilot_sites=30, min_matching_count=40.0)
    blocks = [load_shard(source).components for source in cs.shards(folder / "packed").sources]
    counts = np.concatenate([block.counts for block in blocks if block.counts is not None])
    left_out = fusion.matching.labels < 0
    assert left_out.any()
    assert np.all(counts[left_out] < 40.0)
    best = np.maximum.reduceat(counts, np.flatnonzero(np.diff(fusion.matching.owner, prepend=-1)))
    assert np.all(fusion.matching.labels[counts == best[fusion.matching.owner]] >= 0)


def test_groups_are_opened_where_that_pays() -> None:
    posteriors, truth = planted_sites(60)
    work = _work(posteriors)
    components = np.concatenate([posterior.natural for posterior in posteriors])
    first = np.stack([components[truth == group].mean(axis=0) for group in range(4)])
    descent = descend(
        work, first, 30.0, np.full(4, 20.0), exclusive=True, limit=10, max_iterations=50, tolerance=1e-9,
        progress=lambda _done, _total: None,
    )  # fmt: skip
    assert descent.n_groups == 6
    assert _same_partition(np.concatenate(descent.labels), truth)
    assert np.all(np.diff(descent.history) <= 1e-9)


def test_what_only_few_sites_have_is_found_though_the_sample_missed_it(tmp_path: Path) -> None:
    posteriors, _ = planted_sites(300, groups=4)
    family = posteriors[0].family
    rare = family.to_natural(mean=np.full((1, 3), 60.0), variance=np.full((1, 3), 0.05))
    for site in (7, 111):
        posterior = posteriors[site]
        counts, weights = np.append(posterior.counts, 30.0), np.append(posterior.weights, 0.5)
        natural = np.concatenate([posterior.natural, rare])
        posteriors[site] = cs.Posterior(family, natural, prior=posterior.prior, counts=counts, weights=weights)
    fusion = cs.fuse(written(posteriors, tmp_path / "sites"), pilot_sites=20, engine="local")
    assert fusion.n_components == 5
    mean = fusion.posterior.parameters()["mean"]
    rare_group = int(np.abs(mean - 60.0).max(axis=1).argmin())
    assert np.abs(mean[rare_group] - 60.0).max() < 0.5
    assert fusion.matching.members[rare_group] == 2


def test_the_value_of_spahm_is_the_log_posterior_of_its_matching(folder: Path) -> None:
    fusion = cs.fuse(folder / "packed", method="spahm", pilot_sites=30)
    blocks = [load_shard(source).components for source in cs.shards(folder / "packed").sources]
    points = blocks[0].kind.family.points(np.concatenate([block.natural for block in blocks]))
    known = {name: one.values for name, one in fusion.atoms.attached.items()}
    law = AtomLaw(known["mean"], known["within_variance"], known["between_variance"])
    offsets = np.append(np.flatnonzero(np.diff(fusion.matching.owner, prepend=-1)), len(points))
    atoms = GaussianAtoms(points, offsets, law, BetaBernoulliPrior(SITES))
    assert -atoms.total(fusion.matching.labels) == pytest.approx(fusion.objective, rel=1e-9)


def test_spahm_in_shards_reaches_what_it_reaches_in_memory(folder: Path) -> None:
    files = sorted(str(path) for path in (folder / "sites").iterdir())
    here = cs.fuse(files, method="spahm")
    there = cs.fuse(folder / "packed", method="spahm", pilot_sites=20)
    assert there.objective == pytest.approx(here.objective, rel=1e-6)


def test_averages_of_equal_sizes(tmp_path: Path) -> None:
    family = cs.families.DiagonalGaussian(dim=2)
    rng = np.random.default_rng(0)
    etas = [family.to_natural(mean=rng.normal(size=(3, 2)), variance=np.ones((3, 2))) for _ in range(40)]
    folder = written([cs.Posterior(family, eta) for eta in etas], tmp_path / "sites")
    fusion = cs.fuse(folder, method="average", pilot_sites=5)
    expected = np.mean(etas, axis=0)
    for row in fusion.posterior.natural:
        assert np.abs(expected - row).max(axis=1).min() < 1e-12


class TestRefusals:
    """What does not run over shards says so, and says what does."""

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"method": "amps"}, "methods that do: average, kl, kmeans, spahm"),
            ({"method": "average"}, "average needs models of equal size"),
            ({"regularization": 0.1, "assignment": "relaxed"}, "use 'integral'"),
            ({"method": "spahm", "likelihood": "conjugate"}, "use 'gaussian'"),
            ({"robust": "median"}, "robust fusion"),
            ({"n_components": 2}, "give at least 4"),
            ({"pilot_sites": 1}, "pilot_sites"),
            ({"shard_bytes": 0}, "shard_bytes"),
            ({"n_observations": [1.0]}, "n_observations"),
            ({"method": cs.methods.WassersteinFusion()}, "does not fuse posteriors"),
            ({"engine": "dusk"}, "engine"),
        ],
    )
    def test_options(self, folder: Path, options: dict[str, object], said: str) -> None:
        with pytest.raises((cs.errors.InputError, cs.errors.OptionError), match=said):
            cs.fuse(folder / "packed", **{"pilot_sites": 30, **options})

    def test_models_that_are_worked_out_from_all_sites_at_once(self, tmp_path: Path) -> None:
        posteriors, _ = planted_sites(4)
        sites = [
            cs.Posterior(one.family, one.natural, counts=one.counts, source={"kind": "consilience.SparseGP"})
            for one in posteriors
        ]
        problems = cs.check(written(sites, tmp_path / "sites"), engine="local", pilot_sites=2)
        assert any("does not run over shards" in problem for problem in problems)

    def test_models_in_memory_need_no_engine(self, planted: tuple[list[cs.Posterior], np.ndarray]) -> None:
        with pytest.raises(cs.errors.OptionError, match="models in memory"):
            cs.fuse(planted[0], engine="local")

    def test_one_site_is_not_enough(self, planted: tuple[list[cs.Posterior], np.ndarray], tmp_path: Path) -> None:
        with pytest.raises(cs.errors.InputError, match="at least two"):
            cs.fuse(written(planted[0][:1], tmp_path / "one"))

    def test_check_finds_nothing_wrong_with_what_can_be_fused(self, folder: Path) -> None:
        assert cs.check(folder / "packed", "kl", pilot_sites=30) == []
        assert cs.check(str(folder / "sites" / "*.safetensors")) == []
