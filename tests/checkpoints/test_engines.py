"""Merges on an engine write the bytes of merges in one process, and their record."""

import pickle

import pytest
import torch

import consilience as cs
from consilience.checkpoints import engine_run
from consilience.checkpoints.request import MergeRequest
from consilience.checkpoints.run import _ShardWriter
from consilience.engines import Local
from tests.checkpoints.some_checkpoints import write
from tests.checkpoints.test_laws import three
from tests.cli.running import command

MERGES = [
    ("average", {}, False), ("ties", {"density": 0.3}, True), ("dare", {"rng": 3}, True),
    ("average", {"patterns": [{"pattern": "lm_head*", "method": "copy", "from": 1}]}, False),
    ("slerp", {"dtype": "float32"}, False),
]  # fmt: skip


def contents(folder):
    """Return the bytes of all files of an output by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(("method", "options", "has_base"), MERGES)
def test_threads_write_the_same_files(tmp_path, method, options, has_base):
    base, models = three(tmp_path)
    settings = {"base": base if has_base else None, "shard_bytes": 3000, **options}
    here = cs.merge(models, tmp_path / "here", method, **settings)
    there = cs.merge(models, tmp_path / "there", method, engine=Local(threads=2), **settings)
    assert len(there.plan.shards) > 2
    assert contents(here.output) == contents(there.output)
    assert here.digests == there.digests
    assert here.notes == there.notes


def test_what_travels_can_be_pickled(tmp_path):
    base, models = three(tmp_path)
    seen = []

    class Recording(Local):
        def place(self, load, sources, sizes=()):
            seen.extend(sources)
            return super().place(load, sources, sizes)

    cs.merge(models, tmp_path / "out", "ties", base=base,
             weights=[1, 2], patterns=[{"pattern": "*norm*", "method": "average"}], engine=Recording())  # fmt: skip
    (source,) = (one for one in seen if isinstance(one, engine_run.ShardSource))
    again = pickle.loads(pickle.dumps(source))  # noqa: S301  (our own)
    assert isinstance(again.request, MergeRequest)
    assert again.request.document() == source.request.document()
    assert all(path.is_absolute() for path in again.request.models)
    assert pickle.loads(pickle.dumps(_ShardWriter(None, 1, 2))).piece == 2  # noqa: S301


def test_an_interrupted_merge_goes_on_after_the_last_wave(tmp_path, monkeypatch):
    base, models = three(tmp_path)
    monkeypatch.setattr(engine_run, "_WAVE", 1)
    written = []

    def stop(source, write):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(source.name)
        return original(source, write)

    original = engine_run._write
    settings = {"base": base, "shard_bytes": 3000, "engine": Local(threads=1)}
    monkeypatch.setattr(engine_run, "_write", stop)
    with pytest.raises(KeyboardInterrupt):
        cs.merge(models, tmp_path / "out", "ties", **settings)
    monkeypatch.setattr(engine_run, "_write", original)
    resumed = cs.merge(models, tmp_path / "out", "ties", **settings)
    assert resumed.resumed == 2
    whole = cs.merge(models, tmp_path / "whole", "ties", base=base, shard_bytes=3000)
    assert contents(resumed.output) == contents(whole.output)


def test_faults_on_a_worker_reach_the_caller(tmp_path):
    whole, broken = (write(tmp_path / str(value), {"w": torch.full((16,), value)}) for value in (1.0, torch.nan))
    with pytest.raises(cs.errors.InputError, match="NaN or infinite"):
        cs.merge([broken, whole], tmp_path / "out", engine=Local(threads=1))
    assert not (tmp_path / "out").exists()


def test_a_worker_that_sees_other_files_is_refused(tmp_path, monkeypatch):
    _, models = three(tmp_path)
    monkeypatch.setattr(engine_run, "files_seen", lambda inputs: (str(id(inputs)),))
    with pytest.raises(cs.errors.InputError, match="a worker sees other input files"):
        cs.merge(models, tmp_path / "out", engine=Local(threads=1))


def test_the_workers_of_a_cluster_write_the_same_files(tmp_path):
    distributed = pytest.importorskip("distributed")
    base, models = three(tmp_path)
    settings = {"base": base, "shard_bytes": 3000}
    here = cs.merge(models, tmp_path / "here", "ties", **settings)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        there = cs.merge(models, tmp_path / "there", "ties", engine=cluster.scheduler_address, **settings)
        assert contents(here.output) == contents(there.output)
        result = command("merge", *models, "--base", base, "--method", "ties", "--shard-size", "3000", "-o",
                         tmp_path / "shell", "--engine", "dask", "--scheduler", cluster.scheduler_address)  # fmt: skip
        assert result.code == 0, result.err
        assert contents(here.output) == contents(tmp_path / "shell")
        with pytest.raises(cs.errors.InputError, match="does not exist"):
            cs.merge([tmp_path / "no"], tmp_path / "out", engine=cluster.scheduler_address)


def test_an_engine_without_a_scheduler_is_refused(tmp_path):
    _, models = three(tmp_path)
    result = command("merge", *models, "-o", tmp_path / "out", "--engine", "dask")
    assert "give the address of its scheduler" in result.err
    with pytest.raises(cs.errors.OptionError, match="engine"):
        cs.merge(models, tmp_path / "out", engine="ray")
