"""How far a merge is from its base is told from sums in the pass that merges, whatever the files and interruptions."""

import json

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.checkpoints import changes
from consilience.checkpoints.methods.base import BLOCK_ENTRIES, TensorBlock
from tests.checkpoints.some_checkpoints import read, tensors, write
from tests.checkpoints.test_laws import three


def told(done):
    return done.provenance["details"]["changes"]


def norms_of(base, others):
    """Return the norms of changes over all tensors."""
    squares = [sum(float((one[k].double() - base[k].double()).square().sum()) for k in base) for one in others]
    return np.sqrt(squares)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_and_their_ratio_are_those_of_whole_tensors(tmp_path, dtype):
    base, models = three(tmp_path, dtype)
    done = cs.merge(models, tmp_path / "out", "task_arithmetic", base=base, dtype="float32")
    found, start = told(done), read(base)
    a, b, merge = norms_of(start, [read(models[0]), read(models[1]), read(done.output)])
    assert found["models"] == pytest.approx({"a": a, "b": b}, rel=1e-3)
    assert found["merge"] == pytest.approx(merge, rel=1e-3)
    assert found["ratio"] == pytest.approx(merge / max(a, b), rel=2e-3)
    assert any(note.startswith(f"the merge is {found['ratio']:.2f} times as far") for note in done.notes)
    assert "most fine-tunes merged so far were worse" in "".join(done.notes)
    near = cs.merge(models, tmp_path / "near", "task_arithmetic", base=base, scaling=0.3)
    assert "worse than their start" not in "".join(near.notes)
    assert told(near)["ratio"] < 0.8


def test_conflicts_of_signs_are_counted_and_layers_have_ratios(tmp_path):
    base, models = three(tmp_path, torch.float32)
    found, start = told(cs.merge(models, tmp_path / "out", "ties", base=base)), read(base)
    deltas = [torch.cat([(read(model)[name] - start[name]).flatten() for name in start]) for model in models]
    conflicts = (deltas[0] * deltas[1] < 0).sum() / ((deltas[0] != 0) & (deltas[1] != 0)).sum()
    assert found["conflicts"] == pytest.approx(float(conflicts), abs=1e-4)
    assert list(found["layers"]) == ["0", "1"]


def test_the_record_is_the_same_for_other_files_and_threads(tmp_path):
    base, models = three(tmp_path)
    one = cs.merge(models, tmp_path / "one", "ties", base=base, threads=1)
    many = cs.merge(models, tmp_path / "many", "ties", base=base, shard_bytes=2000, threads=3)
    assert told(one) == told(many)


def test_another_models_start_is_no_base(tmp_path):
    base, models = three(tmp_path, torch.float32)
    wrong = write(tmp_path / "wrong", tensors(99, torch.float32, scale=1.0))
    assert "hardly what they were trained from" in "".join(cs.merge(models, tmp_path / "far", "ties", base=wrong).notes)
    assert "hardly" not in "".join(cs.merge(models, tmp_path / "near", "ties", base=base).notes)


def test_without_a_base_nothing_is_said(tmp_path):
    _, models = three(tmp_path)
    assert "changes" not in cs.merge(models, tmp_path / "out").provenance["details"]


def test_of_many_blocks_some_stand_for_all(tmp_path):
    few = [TensorBlock(number, [], np.zeros(BLOCK_ENTRIES)) for number in range(8)]
    assert all(changes.looked_at(block, 8) == slice(0, BLOCK_ENTRIES) for block in few)
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(BLOCK_ENTRIES * 20 + 5, generator=draw)
    states = [{"w": start}] + [{"w": start + 0.1 * torch.randn(len(start), generator=draw)} for _ in range(2)]
    base, *models = (write(tmp_path / str(number), state) for number, state in enumerate(states))
    done = cs.merge(models, tmp_path / "out", "task_arithmetic", base=base, scaling=0.5)
    a, b, merge = norms_of(states[0], [*states[1:], read(done.output)])
    assert list(told(done)["models"].values()) == pytest.approx([a, b], rel=0.01)
    assert told(done)["merge"] == pytest.approx(merge, rel=0.01)


def test_an_interrupted_merge_ends_in_the_same_record(tmp_path, monkeypatch):
    from consilience.checkpoints.output import PartialOutput

    base, models = three(tmp_path)
    whole = cs.merge(models, tmp_path / "whole", "ties", base=base, shard_bytes="100kB")
    finish, n_finished = PartialOutput.finish, []

    def finish_once(self, name, sha256, sums):
        finish(self, name, sha256, sums)
        n_finished.append(name)
        if len(n_finished) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(PartialOutput, "finish", finish_once)
    with pytest.raises(KeyboardInterrupt):
        cs.merge(models, tmp_path / "out", "ties", base=base, shard_bytes="100kB")
    monkeypatch.setattr(PartialOutput, "finish", finish)
    done = cs.merge(models, tmp_path / "out", "ties", base=base, shard_bytes="100kB")
    assert done.resumed == 2
    files = [json.loads((tmp_path / name / "merge.json").read_text()) for name in ("whole", "out")]
    assert files[0] == files[1]
    assert told(whole) == told(done)
