"""What a stranger broke in shards once: components that all sites have, sites without weight, mixed columns, copies."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import consilience as cs
from consilience.posteriors.sharded import methods
from tests.posteriors.shard_sites import written

pytestmark = pytest.mark.covering(2)

FAMILY = cs.families.DiagonalGaussian(dim=2)
PLACES = np.array([[0.0, 0.0], [9.0, 9.0], [50.0, 50.0], [-50.0, 50.0]])
TWO = {"method": "kl", "n_components": 2, "pilot_sites": 5}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _site(rng: np.random.Generator, count: int = 2, places: np.ndarray = PLACES, **columns: object) -> cs.Posterior:
    mean = places[:count] + 0.1 * rng.standard_normal((count, 2))
    return cs.Posterior(FAMILY, FAMILY.to_natural(mean=mean, variance=np.full(mean.shape, 0.05)), **columns)


def test_a_component_that_every_site_has(rng: np.random.Generator, tmp_path: Path) -> None:
    folder = written([_site(rng) for _ in range(30)], tmp_path / "sites")
    assert cs.fuse(folder, method="spahm", pilot_sites=10).n_components == 2


@pytest.mark.parametrize("options", [{"method": "spahm"}, {"method": "kl"}, {"method": "kl", "n_components": 2}])
def test_a_large_site_without_weight_has_no_say(
    rng: np.random.Generator, tmp_path: Path, options: dict[str, object]
) -> None:
    folder = written([*(_site(rng, 1 + i % 2) for i in range(40)), _site(rng, 4)], tmp_path / "sites")
    weights = np.append(np.ones(40), 0.0)
    here = cs.fuse(sorted(map(str, folder.iterdir())), weights=weights, **options)
    there = cs.fuse(folder, pilot_sites=10, weights=weights, **options)
    assert there.n_components == here.n_components == 2
    assert np.array_equal(there.matching.labels, here.matching.labels)  # two of its four are nobody else's: -1


def test_one_site_with_weight(rng: np.random.Generator, tmp_path: Path) -> None:
    folder = written([*(_site(rng, 1 + i % 2) for i in range(40)), _site(rng, 4)], tmp_path / "sites")
    weights = np.zeros(41)
    weights[3] = 1.0
    assert cs.fuse(folder, pilot_sites=10, weights=weights).n_components == 2


def test_what_is_kept_is_that_of_the_first_site_by_contents(rng: np.random.Generator, tmp_path: Path) -> None:
    arrays = [cs.Attached(np.array([float(i)]), ("fixed",), "keep") for i in range(30)]
    sites = [_site(rng, attached={"first": one}) for one in arrays]
    folders = [written(some, tmp_path / name) for name, some in (("a", sites), ("b", sites[::-1]))]
    found = [cs.fuse(folder, **TWO).posterior.attached["first"].values for folder in folders]
    assert np.array_equal(*found)


def test_sites_that_state_counts_and_sites_that_do_not(rng: np.random.Generator, tmp_path: Path) -> None:
    sites = [_site(rng, counts=None if i == 17 else np.array([5.0, 6.0])) for i in range(30)]
    folder = written(sites, tmp_path / "sites")
    for work in (lambda: cs.pack(folder, tmp_path / "packed"), lambda: cs.fuse(folder, **TWO)):
        with pytest.raises(cs.errors.InputError, match=r"site-0017\.safetensors: states neither .*, expected counts"):
            work()


def test_a_file_that_is_there_twice(rng: np.random.Generator, tmp_path: Path) -> None:
    folder = written([_site(rng) for _ in range(20)], tmp_path / "sites")
    shutil.copy(folder / "site-0000.safetensors", folder / "copy.safetensors")
    for where in (folder, [folder / "site-0001.safetensors", folder]):
        with pytest.raises(cs.errors.InputError, match="has the same contents as"):
            cs.fuse(where, **TWO)


def test_every_shard_may_open_groups(rng: np.random.Generator, tmp_path: Path) -> None:
    places = np.array([[0.0, 0.0], [9.0, 9.0], [0.0, 9.0], [9.0, 0.0], [-9.0, 0.0], [0.0, -9.0]])
    sites = [_site(rng, places=rng.permutation(places)) for _ in range(150)]
    sites += [_site(rng, 1, np.array([[200.0, 200.0]])) for _ in range(2)]
    shards = cs.shards(written(sites, tmp_path / "sites"), shard_bytes=2500)
    assert len(shards.sources) > 20
    fusion = cs.fuse(shards, method="spahm", pilot_sites=20)
    assert fusion.status is cs.results.Status.CONVERGED
    assert np.abs(fusion.posterior.parameters()["mean"] - 200.0).max(axis=1).min() < 1.0


def test_packing_merges_small_shards(rng: np.random.Generator, tmp_path: Path) -> None:
    folder = written([_site(rng) for _ in range(40)], tmp_path / "sites")
    assert len(cs.pack(folder, tmp_path / "small", shard_bytes=400).files) > 1
    assert len(cs.pack(tmp_path / "small", tmp_path / "large").files) == 1


def test_an_engine_can_be_used_again(rng: np.random.Generator, tmp_path: Path) -> None:
    folder = written([_site(rng) for _ in range(20)], tmp_path / "sites")
    engine = cs.engines.Local(threads=1)
    one, other = (cs.fuse(folder, engine=engine, **TWO) for _ in range(2))
    assert np.array_equal(one.posterior.natural, other.posterior.natural)


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"threads": "2"}, {"memory": -1}])
def test_local_engines_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(cs.errors.OptionError, match=next(iter(wrong))):
        cs.engines.Local(**wrong)


@pytest.fixture
def table(rng: np.random.Generator, tmp_path: Path) -> pa.Table:
    sites = [_site(rng, 1 + i % 2, counts=np.full(1 + i % 2, 7.0)) for i in range(30)]
    cs.pack(written(sites, tmp_path / "sites"), tmp_path / "packed", form="parquet")
    return pq.read_table(tmp_path / "packed" / "shard-00000.parquet")


class TestParquetOfOthers:
    """Tables that somebody else wrote, or wrote over."""

    def _refused(self, table: pa.Table, path: Path, said: str) -> None:
        pq.write_table(table, path, compression="none", use_dictionary=False)
        with pytest.raises(cs.errors.InputError, match=said):
            cs.fuse(path, **TWO)
        assert cs.check(path)

    def _with(self, table: pa.Table, name: str, values: list[bytes]) -> pa.Table:
        return table.set_column(table.column_names.index(name), name, pa.array(values, pa.large_binary()))

    def test_counts_of_another_length_than_the_site(self, table: pa.Table, tmp_path: Path) -> None:
        counts = [one.as_py() for one in table.column("counts")]
        counts[0], counts[1] = counts[1], counts[0]
        self._refused(
            self._with(table, "counts", counts), tmp_path / "x.parquet", "counts of a site has another length"
        )

    @pytest.mark.parametrize("at", [4, 29])
    def test_a_site_without_components(self, table: pa.Table, tmp_path: Path, at: int) -> None:
        for name in ("natural", "counts"):
            values = [one.as_py() for one in table.column(name)]
            values[at] = b""
            table = self._with(table, name, values)
        self._refused(table, tmp_path / "x.parquet", "whole components")

    def test_a_column_of_somebody_elses(self, table: pa.Table, tmp_path: Path) -> None:
        self._refused(table.append_column("hospital", pa.array(range(30))), tmp_path / "x.parquet", "hospital")

    def test_a_column_of_another_type(self, table: pa.Table, tmp_path: Path) -> None:
        other = table.set_column(table.column_names.index("counts"), "counts", pa.array(range(30)))
        self._refused(other, tmp_path / "x.parquet", "counts is int64, expected binary")

    def test_no_rows(self, table: pa.Table, tmp_path: Path) -> None:
        self._refused(table.slice(0, 0), tmp_path / "x.parquet", "at least two|no sites|no posteriors")


def test_a_packed_file_that_was_replaced_is_not_read_by_the_header_of_the_former(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    folders = [written([_site(rng, n) for _ in range(30)], tmp_path / f"{n}") for n in (1, 2)]
    for folder in folders:
        cs.pack(folder, tmp_path / f"packed-{folder.name}")
    former, new = (tmp_path / f"packed-{folder.name}" / "shard-00000.safetensors" for folder in folders)
    shards = cs.shards(former)
    shutil.copy(new, former)
    with pytest.raises(cs.ConsilienceError, match="was replaced after it was opened; open it again"):
        cs.fuse(shards, **TWO)


@pytest.mark.parametrize(
    "options", [{}, {"n_components": 3}, {"regularization": 1.0}, {"method": "kmeans"}, {"method": "spahm"}]
)
def test_a_shard_without_weight(rng: np.random.Generator, tmp_path: Path, options: dict[str, object]) -> None:
    sites = [_site(rng, 2 + i % 2, prior=np.zeros(4)) for i in range(12)]
    folder = written(sites, tmp_path / "sites")
    weights = np.repeat([1.0, 0.0], 6)
    fusion = cs.fuse(folder, weights=weights, pilot_sites=4, shard_bytes=3000, **options)
    assert fusion.details["shards"] > 2
    assert fusion.n_components == 3


def test_a_replaced_parquet_file_does_not_shift_weights(rng: np.random.Generator, tmp_path: Path) -> None:
    folders = [written([_site(rng) for _ in range(n)], tmp_path / f"{k}") for k, n in enumerate((12, 12, 8))]
    for folder in folders:
        cs.pack(folder, tmp_path / f"packed-{folder.name}", form="parquet")
    first, second, shorter = (tmp_path / f"packed-{folder.name}" / "shard-00000.parquet" for folder in folders)
    shards = cs.shards([first, second])
    shutil.copy(shorter, first)
    weights = np.repeat([1.0, 1e-9], 12)
    with pytest.raises(
        cs.errors.InputError, match="held 24 sites when they were opened, and now 20, so one was replaced"
    ):
        cs.fuse(shards, weights=weights, pilot_sites=4, method="kmeans", n_components=2)


def test_checking_shards_asks_for_what_a_method_needs(rng: np.random.Generator, tmp_path: Path) -> None:
    folder = written([_site(rng) for _ in range(12)], tmp_path / "sites")
    problems = cs.check(folder, combine="product", pilot_sites=4)
    assert problems == ["`combine='product'` needs every model's prior, which the shards do not state [E-INPUT]"]


def test_a_number_that_the_sample_cannot_start_is_refused(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few components need no sample."""
    folder = written([_site(rng, 3) for _ in range(12)], tmp_path / "sites")
    assert cs.fuse(folder, n_components=20, pilot_sites=4).n_components == 20
    monkeypatch.setattr(methods, "MAX_GATHERED_ROWS", 0)
    with pytest.raises(
        cs.errors.InputError, match=r"n_components is 20, .* has 12 components: give a larger pilot_sites"
    ):
        cs.fuse(folder, n_components=20, pilot_sites=4)
