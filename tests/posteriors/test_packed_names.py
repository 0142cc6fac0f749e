"""Every site of a packed file goes by the name of its own file, also where a shard is a run in the middle of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import consilience as cs
from consilience.posteriors.sharded import packing, parquet
from consilience.posteriors.sharded.shards import load_shard
from tests.posteriors.shard_sites import planted_sites, written

pytestmark = pytest.mark.covering(2)

FORMS = ("safetensors", "parquet")
every_form = pytest.mark.parametrize("form", FORMS)
N_SITES, N_RUNS = 30, 5
PLAIN = {"compression": "none", "use_dictionary": False}
"""How shards are stored, and no others are read."""


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_SITES", N_SITES // N_RUNS)


def one_packed_file(folder: Path, form: str) -> Path:
    """Pack the sites of a folder into one file and return it."""
    packed = cs.pack(folder, folder.parent / f"{folder.name}-{form}", form=form)  # type: ignore[arg-type]
    assert len(packed.files) == 1
    return packed.folder / packed.files[0]


def in_runs(packed: Path) -> cs.results.Shards:
    """Open a packed file as runs of equally many sites."""
    shards = cs.shards(packed, shard_bytes=packed.stat().st_size // N_RUNS)
    assert len(shards.sources) == N_RUNS
    return shards


def without_names(packed: Path) -> Path:
    """Return a packed file of somebody who writes no names."""
    target = packed.with_name(f"nameless{packed.suffix}")
    if packed.suffix == ".parquet":
        pq.write_table(pq.read_table(packed).drop_columns(["name"]), target, row_group_size=N_SITES // N_RUNS, **PLAIN)
    else:
        with safe_open(packed, "np") as file:
            metadata = file.metadata()
        save_file({name: values for name, values in load_file(packed).items() if name != "names"}, target, metadata)
    return target


def with_broken_site(packed: Path, number: int) -> None:
    """Give the last component of a site, and of no other, an infinite parameter."""
    if packed.suffix == ".parquet":
        table = pq.read_table(packed)
        rows = table.column("natural").to_pylist()
        values = np.frombuffer(rows[number]).copy()
        values[-1] = np.inf
        rows[number] = values.tobytes()
        column = table.column_names.index("natural")
        table = table.set_column(column, "natural", pa.array(rows, pa.large_binary()))
        pq.write_table(table, packed, row_group_size=N_SITES // N_RUNS, **PLAIN)
    else:
        tensors = {name: values.copy() for name, values in load_file(packed).items()}
        tensors["natural"][tensors["offsets"][number + 1] - 1, -1] = np.inf
        with safe_open(packed, "np") as file:
            metadata = file.metadata()
        save_file(tensors, packed, metadata)


@every_form
def test_the_sites_of_every_run_have_the_names_parameters_and_digests_of_their_files(tmp_path: Path, form: str) -> None:
    posteriors = planted_sites(N_SITES)[0]
    folder = written(posteriors, tmp_path / "sites")
    start = 0
    for source in in_runs(one_packed_file(folder, form)).sources:
        packed = load_shard(source)
        assert packed.components.n_sites == N_SITES // N_RUNS
        for number, (name, digest) in enumerate(zip(packed.names, packed.digests, strict=True), start):
            assert name == f"site-{number:04d}.safetensors"
            assert digest.tobytes() == hashlib.sha256((folder / name).read_bytes()).digest()
            assert np.array_equal(packed.components.site(number - start).natural, posteriors[number].natural)
        start += packed.components.n_sites
    assert start == N_SITES


@every_form
def test_sites_without_names_are_numbered_from_the_start_of_their_file(tmp_path: Path, form: str) -> None:
    nameless = without_names(one_packed_file(written(planted_sites(N_SITES)[0], tmp_path / "sites"), form))
    names = [name for source in in_runs(nameless).sources for name in load_shard(source).names]
    assert names == [f"site {number}" for number in range(N_SITES)]


@every_form
@pytest.mark.parametrize("number", [0, 13, N_SITES - 1])
def test_a_component_out_of_its_domain_is_told_with_the_name_of_its_site(
    tmp_path: Path, form: str, number: int
) -> None:
    posteriors = planted_sites(N_SITES)[0]
    packed = one_packed_file(written(posteriors, tmp_path / "sites"), form)
    with_broken_site(packed, number)
    last = posteriors[number].n_components - 1
    expected = f"{packed}: site-{number:04d}.safetensors: component {last} has NaN or infinite"
    for where in (packed, in_runs(packed)):
        with pytest.raises(cs.errors.InputError) as raised:
            cs.fuse(where, method="kl", n_components=6, pilot_sites=10)
        assert [problem.startswith(expected) for problem in raised.value.problems] == [True]
    nameless = without_names(packed)
    with pytest.raises(
        cs.errors.InputError, match=rf"nameless\.{form}: site {number}: component {last} has NaN or infinite"
    ):
        cs.fuse(in_runs(nameless), method="kl", n_components=6, pilot_sites=10)


@every_form
def test_copies_are_told_with_the_names_of_their_sites(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    posteriors = planted_sites(N_SITES)[0]
    posteriors[20] = posteriors[8]
    folder = written(posteriors, tmp_path / "sites")
    with pytest.raises(
        cs.errors.InputError, match=r"^site-0020\.safetensors: is the same file as site-0008\.safetensors; leave"
    ):
        cs.pack(folder, tmp_path / "packed", form=form)  # type: ignore[arg-type]
    monkeypatch.setattr(packing, "_duplicates", lambda _packed, _name_of_digest: ())
    packed = one_packed_file(folder, form)
    expected = (
        f"{packed}: site-0020.safetensors: has the same contents as {packed}: site-0008.safetensors; "
        "leave one out [E-TWICE]"
    )
    for where in (packed, in_runs(packed)):
        with pytest.raises(cs.errors.InputError) as raised:
            cs.fuse(where, method="kl", n_components=6, pilot_sites=10)
        assert list(raised.value.problems) == [expected]


@every_form
def test_packed_files_whose_sites_have_the_same_names_are_told_apart(tmp_path: Path, form: str) -> None:
    posteriors = planted_sites(N_SITES)[0]
    packed = []
    for hospital, some in (("lund", posteriors[:20]), ("oslo", [*posteriors[20:], posteriors[13]])):
        (tmp_path / hospital).mkdir()
        packed.append(one_packed_file(written(some, tmp_path / hospital / "sites"), form))
    expected = (
        f"{packed[1]}: site-0010.safetensors: has the same contents as {packed[0]}: site-0013.safetensors; "
        "leave one out [E-TWICE]"
    )
    with pytest.raises(cs.errors.InputError) as raised:
        cs.fuse(packed, method="kl", n_components=6, pilot_sites=10)
    assert list(raised.value.problems) == [expected]


@every_form
def test_every_packed_file_has_a_record_of_its_own(tmp_path: Path, form: str) -> None:
    """Also where the ends of the files' paths are the same."""
    posteriors = planted_sites(N_SITES)[0]
    packed, sizes = [], []
    for hospital, some in (("lund", posteriors[:20]), ("oslo", posteriors[20:])):
        (tmp_path / hospital).mkdir()
        packed.append(one_packed_file(written(some, tmp_path / hospital / "sites"), form))
        sizes.append((sum(posterior.n_components for posterior in some), float(len(some))))
    records = cs.fuse(packed, method="kl", n_components=6, pilot_sites=10).provenance["inputs"]
    name = f"sites-{form}/{packed[0].name}"
    assert [record["name"] for record in records] == [f"lund/{name}", f"oslo/{name}"]
    assert [(record["components"], record["weight"]) for record in records] == sizes
    assert [record["sha256"] for record in records] == [hashlib.sha256(p.read_bytes()).hexdigest() for p in packed]
    alone = cs.fuse(packed[0], method="kl", n_components=6, pilot_sites=10).provenance["inputs"]
    assert [record["name"] for record in alone] == [name]


@every_form
def test_names_that_only_folders_tell_apart_stay_whole_when_packed_again(tmp_path: Path, form: str) -> None:
    posteriors = planted_sites(N_SITES)[0]
    folders = [written(posteriors[:20], tmp_path / "lund"), written(posteriors[20:], tmp_path / "oslo")]
    cs.pack(folders, tmp_path / "once", form=form)  # type: ignore[arg-type]
    cs.pack(tmp_path / "once", tmp_path / "twice", form=form)  # type: ignore[arg-type]
    expected = tuple(str(path) for folder in folders for path in sorted(folder.iterdir()))
    for folder in ("once", "twice"):
        assert load_shard(cs.shards(tmp_path / folder).sources[0]).names == expected
