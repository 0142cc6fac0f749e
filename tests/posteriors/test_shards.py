"""Shards hold what the posterior files held, in either form, and say what is wrong with them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.mixture import BayesianGaussianMixture

import consilience as cs
from consilience.posteriors.columns import ComponentColumns, ShardSchema
from consilience.posteriors.sharded.packing import Packing
from consilience.posteriors.sharded.shards import load_shard
from tests.posteriors.shard_sites import planted_sites, written

pytestmark = pytest.mark.covering(2)

FORMS = ("safetensors", "parquet")


def _sites_of(shards: cs.results.Shards) -> list[cs.Posterior]:
    blocks = [load_shard(source).components for source in shards.sources]
    return [block.site(number) for block in blocks for number in range(block.n_sites)]


def _same(posterior: cs.Posterior, expected: cs.Posterior) -> bool:
    columns = ("natural", "prior", "counts", "weights")
    attached = posterior.attached.keys() == expected.attached.keys() and all(
        np.array_equal(array.values, expected.attached[name].values)
        and array.axes == expected.attached[name].axes
        and array.rule == expected.attached[name].rule
        for name, array in posterior.attached.items()
    )
    return (
        attached
        and posterior.family == expected.family
        and dict(posterior.source) == dict(expected.source)
        and posterior.features == expected.features
        and all(np.array_equal(getattr(posterior, name), getattr(expected, name)) for name in columns)
    )


def _mixtures(count: int) -> list[cs.Posterior]:
    rng = np.random.default_rng(0)
    models = [BayesianGaussianMixture(n_components=2 + n % 2, random_state=n, max_iter=500) for n in range(count)]
    return [
        cs.describe(m.fit(rng.normal(size=(60, 2)) + 9.0 * rng.integers(0, 2, size=(60, 1))), min_count=0)
        for m in models
    ]


def _with_attached(count: int) -> list[cs.Posterior]:
    posteriors, _ = planted_sites(count)
    rng = np.random.default_rng(1)
    with_attached = []
    for posterior in posteriors:
        size = posterior.n_components
        attached = {
            "table": cs.Attached(rng.random((size, size)), ("component", "component"), "sum"),
            "bias": cs.Attached(rng.random(3), ("fixed",), "mean"),
            "level": cs.Attached(rng.random(size), ("component",), "precision-mean", rng.random(size) + 0.1),
            "first": cs.Attached(rng.random((size, 2)), ("component", "fixed"), "keep"),
        }
        with_attached.append(
            cs.Posterior(
                posterior.family, posterior.natural, prior=posterior.prior, counts=posterior.counts, attached=attached
            )
        )
    return with_attached


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [lambda: planted_sites(30)[0], lambda: _mixtures(6), lambda: _with_attached(12)],
                         ids=["diagonal Gaussians", "mixtures", "attached arrays"])  # fmt: skip
def test_packing_keeps_every_bit(tmp_path: Path, make: object, form: str) -> None:
    posteriors = make()  # type: ignore[operator]
    folder = written(posteriors, tmp_path / "sites")
    packed = cs.pack(folder, tmp_path / "packed", form=form, shard_bytes=600)
    assert isinstance(packed, Packing)
    assert len(packed.files) > 1
    assert (packed.n_sites, packed.divergence) == (len(posteriors), 0.0)
    for shards in (cs.shards(tmp_path / "packed"), cs.shards(tmp_path / "packed", shard_bytes=500), cs.shards(folder)):
        assert shards.n_sites == len(posteriors)
        assert all(_same(one, other) for one, other in zip(_sites_of(shards), posteriors, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_float32_halves_the_size_and_says_at_what_cost(tmp_path: Path, form: str) -> None:
    posteriors, _ = planted_sites(200, dim=20)
    folder = written(posteriors, tmp_path / "sites")
    exact = cs.pack(folder, tmp_path / "exact", form=form)
    rounded = cs.pack(folder, tmp_path / "rounded", form=form, dtype="float32")
    assert rounded.bytes < 0.7 * exact.bytes
    assert 0.0 < rounded.divergence < 1e-6
    rounded_sites = _sites_of(cs.shards(tmp_path / "rounded"))
    worst = max(
        float(exact_site.family.kl_pairs(exact_site.natural, rounded_site.natural).max())
        for exact_site, rounded_site in zip(posteriors, rounded_sites, strict=True)
    )
    assert worst == rounded.divergence


def test_packing_shards_again_changes_nothing(tmp_path: Path) -> None:
    posteriors, _ = planted_sites(25)
    cs.pack(written(posteriors, tmp_path / "sites"), tmp_path / "one")
    cs.pack(tmp_path / "one", tmp_path / "two", form="parquet", shard_bytes=2000)
    assert all(_same(a, b) for a, b in zip(_sites_of(cs.shards(tmp_path / "two")), posteriors, strict=True))


def test_shards_are_runs_of_whole_sites_of_about_as_many_bytes_as_asked_for(tmp_path: Path) -> None:
    posteriors, _ = planted_sites(100)
    cs.pack(written(posteriors, tmp_path / "sites"), tmp_path / "packed")
    file = next((tmp_path / "packed").iterdir())
    shards = cs.shards(file, shard_bytes=file.stat().st_size // 7)
    assert len(shards.sources) == 7
    assert shards.sources[0].first == 0
    assert shards.sources[-1].end == 100
    assert all(a.end == b.first for a, b in pairwise(shards.sources))


def test_patterns_lists_and_addresses_open_the_same_sites(tmp_path: Path) -> None:
    posteriors, _ = planted_sites(8)
    folder = written(posteriors, tmp_path / "sites")
    (folder / ".hidden.safetensors").write_bytes(b"no")
    (folder / "notes.txt").write_text("no")
    ways = [folder, str(folder / "*.safetensors"), sorted(folder.glob("s*.safetensors")), f"file://{folder}",
            f"file://{folder}/site-*.safetensors"]  # fmt: skip
    for where in ways:
        assert all(_same(a, b) for a, b in zip(_sites_of(cs.shards(where)), posteriors, strict=True))


def test_a_bucket_is_read_file_by_file(tmp_path: Path) -> None:
    import fsspec

    posteriors, _ = planted_sites(6)
    cs.pack(written(posteriors, tmp_path / "sites"), tmp_path / "packed", shard_bytes=500)
    bucket = fsspec.filesystem("memory")
    for file in (tmp_path / "packed").iterdir():
        bucket.pipe_file(f"/bucket/{file.name}", file.read_bytes())
    shards = cs.shards("memory://bucket")
    assert len(shards.sources) == len(list((tmp_path / "packed").iterdir()))
    assert all(_same(a, b) for a, b in zip(_sites_of(shards), posteriors, strict=True))


class TestKeys:
    """The numbers that choose the sample."""

    def test_they_depend_on_contents_alone(self) -> None:
        posteriors, _ = planted_sites(40)
        family = posteriors[0].family
        turned = [one.take(np.arange(one.n_components)[::-1]) for one in reversed(posteriors)]
        keys = [
            ComponentColumns(ShardSchema(family), np.concatenate([p.natural for p in some]),
                  np.cumsum([0, *(p.n_components for p in some)])).keys(3)
            for some in (posteriors, turned)
        ]  # fmt: skip
        assert np.array_equal(keys[0], keys[1][::-1])
        assert len(np.unique(keys[0])) == 40

    def test_another_seed_gives_another_sample(self) -> None:
        posteriors, _ = planted_sites(40)
        block = ComponentColumns(
            ShardSchema(posteriors[0].family),
            np.concatenate([p.natural for p in posteriors]),
            np.cumsum([0, *(p.n_components for p in posteriors)]),
        )
        assert not np.array_equal(np.argsort(block.keys(0)), np.argsort(block.keys(1)))

    def test_chunks_are_whole_sites_and_all_of_them(self) -> None:
        posteriors, _ = planted_sites(50)
        offsets = np.cumsum([0, *(p.n_components for p in posteriors)])
        block = ComponentColumns(
            ShardSchema(posteriors[0].family), np.concatenate([p.natural for p in posteriors]), offsets
        )
        for limit in (1, 100, 1000, 10**9):
            runs = list(block.runs(limit))
            assert [run.start for run in runs] == [0, *(run.stop for run in runs[:-1])]
            assert runs[-1].stop == 50


class TestRefusals:
    """What is wrong is said, by name, and nothing is left behind."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return written(planted_sites(5)[0], tmp_path / "sites")

    def test_a_site_of_another_family(self, folder: Path, tmp_path: Path) -> None:
        family = cs.families.Dirichlet(dim=4)
        cs.save(cs.Posterior(family, family.to_natural(concentration=np.ones((1, 4)))), folder / "z.safetensors")
        with pytest.raises(cs.errors.InputError, match=r"z\.safetensors: is Dirichlet"):
            cs.pack(folder, tmp_path / "packed")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["sites"]

    def test_a_site_that_is_there_twice(self, folder: Path, tmp_path: Path) -> None:
        (folder / "again.safetensors").write_bytes((folder / "site-0003.safetensors").read_bytes())
        with pytest.raises(cs.errors.InputError, match="is the same file as"):
            cs.pack(folder, tmp_path / "packed")

    def test_a_folder_that_is_there(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(cs.errors.InputError, match="it is there already"):
            cs.pack(folder, folder)
        (tmp_path / "empty").mkdir()
        assert cs.pack(folder, tmp_path / "empty").n_sites == 5

    def test_an_empty_folder_and_a_missing_one(self, tmp_path: Path) -> None:
        (tmp_path / "nothing").mkdir()
        for where in (
            tmp_path / "nothing",
            tmp_path / "none",
            str(tmp_path / "*.safetensors"),
            f"file://{tmp_path}/no",
        ):
            with pytest.raises(cs.errors.InputError, match=r"is here|cannot be read"):
                cs.shards(where)

    def test_options_that_do_not_exist(self, folder: Path, tmp_path: Path) -> None:
        for options in ({"form": "zarr"}, {"dtype": "float16"}, {"shard_bytes": 0}):
            with pytest.raises(cs.errors.OptionError, match=next(iter(options))):
                cs.pack(folder, tmp_path / "packed", **options)
        with pytest.raises(cs.errors.OptionError, match="shard_bytes"):
            cs.shards(folder, shard_bytes=-1)

    def test_a_family_that_float32_breaks(self, tmp_path: Path) -> None:
        family = cs.families.Gaussian(dim=2)
        covariance = np.array([[[1.0, 1.0 - 1e-9], [1.0 - 1e-9, 1.0]]])
        eta = family.to_natural(mean=np.zeros((1, 2)), covariance=covariance)
        posteriors = [cs.Posterior(family, eta * (1.0 + 1e-3 * n)) for n in range(3)]
        with pytest.raises(cs.errors.InputError, match="in float32 a component"):
            cs.pack(written(posteriors, tmp_path / "sites"), tmp_path / "packed", dtype="float32")

    @pytest.mark.parametrize("form", FORMS)
    def test_shards_of_two_kinds(self, folder: Path, tmp_path: Path, form: str) -> None:
        cs.pack(folder, tmp_path / "packed", form=form)
        cs.pack(written(planted_sites(3, dim=2)[0], tmp_path / "others"), tmp_path / "two", form=form)
        with pytest.raises(
            cs.errors.InputError, match=r"is DiagonalGaussian\(dim=2\), expected DiagonalGaussian\(dim=3\)"
        ):
            cs.shards([tmp_path / "packed", tmp_path / "two"])

    def test_shards_beside_posterior_files(self, folder: Path, tmp_path: Path) -> None:
        cs.pack(folder, tmp_path / "packed")
        shard = next((tmp_path / "packed").iterdir())
        with pytest.raises(cs.errors.InputError, match=r"site-0000\.safetensors: is no shard"):
            cs.fuse([shard, folder / "site-0000.safetensors"])
        with pytest.raises(cs.errors.InputError, match=r"is no shard|is a shard"):
            cs.fuse([folder / "site-0000.safetensors", shard])
        with pytest.raises(cs.errors.FileFormatError, match=r"open it with consilience\.shards"):
            cs.load(shard)

    @pytest.mark.parametrize("change", ["offsets", "nan", "short", "counts", "names", "type"])
    def test_broken_columns(self, folder: Path, tmp_path: Path, change: str) -> None:
        cs.pack(folder, tmp_path / "packed")
        path = next((tmp_path / "packed").iterdir())
        tensors = {name: values.copy() for name, values in load_file(path).items()}
        if change == "offsets":
            tensors["offsets"][2] = tensors["offsets"][1]
        elif change == "nan":
            tensors["natural"][3, 0] = np.nan
        elif change == "short":
            tensors["natural"] = tensors["natural"][:, :-1].copy()
        elif change == "counts":
            tensors["counts"] = tensors["counts"][:-1].copy()
        elif change == "names":
            tensors["names"] = np.frombuffer(b'["one"]', dtype=np.uint8)
        else:
            tensors["natural"] = tensors["natural"].astype(np.float16)
        save_file(tensors, path, _metadata(path))
        with pytest.raises(cs.errors.InputError, match=path.name):
            _sites_of(cs.shards(path))

    def test_a_value_out_of_its_domain_is_named_by_site_and_component(self, folder: Path, tmp_path: Path) -> None:
        cs.pack(folder, tmp_path / "packed")
        path = next((tmp_path / "packed").iterdir())
        tensors = {name: values.copy() for name, values in load_file(path).items()}
        row = int(tensors["offsets"][3]) + 1
        tensors["natural"][row] = np.inf
        save_file(tensors, path, _metadata(path))
        with pytest.raises(cs.errors.InputError, match=r"site-0003\.safetensors: component 1 has NaN or infinite"):
            cs.fuse(path)
        assert any("site-0003" in problem for problem in cs.check(path))

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("size", [0, 3, 60, 0.5])
    def test_truncated_files(self, folder: Path, tmp_path: Path, form: str, size: float) -> None:
        cs.pack(folder, tmp_path / "packed", form=form)
        path = next((tmp_path / "packed").iterdir())
        data = path.read_bytes()
        path.write_bytes(data[: int(size if size >= 1 else size * len(data))])
        with pytest.raises(cs.errors.InputError, match=path.name):
            cs.fuse(path)


def _metadata(path: Path) -> dict[str, str]:
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    found: dict[str, str] = header["__metadata__"]
    return found
