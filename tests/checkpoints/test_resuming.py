"""A merge that is interrupted leaves nothing half-written, and the next one goes on with the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import consilience as cs
from consilience.checkpoints.output import partial_folder
from tests.checkpoints.some_checkpoints import tensors, write

SLOW = """
import sys, time
import consilience as cs
cs.merge(sys.argv[1:3], sys.argv[3], shard_bytes=3000, progress=lambda done, total: time.sleep(0.15))
"""


@pytest.fixture
def models(tmp_path):
    return [write(tmp_path / name, tensors(seed)) for seed, name in enumerate("ab")]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def finished(output):
    journal = partial_folder(output) / "journal.json"
    return sorted(json.loads(journal.read_text())["files"]) if journal.exists() else []


def stopped(models, output, when=2):
    """Merge until some files are finished, and stop there."""

    def progress(done, total):
        if len(finished(output)) >= when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cs.merge(models, output, shard_bytes=3000, progress=progress)


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_identical_bytes(tmp_path, models):
    whole = cs.merge(models, tmp_path / "whole", shard_bytes=3000)
    output = tmp_path / "killed"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", SLOW, *map(str, models), str(output)], env=environment)
    deadline = time.monotonic() + 60
    while len(finished(output)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not output.exists()
    before = finished(output)
    assert 2 <= len(before) < len(whole.plan.shards)
    times = {name: (partial_folder(output) / name).stat().st_mtime_ns for name in before}
    done = cs.merge(models, output, shard_bytes=3000)
    assert done.resumed == len(before)
    assert contents(output) == contents(tmp_path / "whole")
    assert times == {name: (output / name).stat().st_mtime_ns for name in before}
    assert not partial_folder(output).exists()


def test_an_interrupted_run_leaves_a_part_that_goes_on(tmp_path, models):
    whole = cs.merge(models, tmp_path / "whole", shard_bytes=3000)
    output = tmp_path / "out"
    stopped(models, output)
    assert not output.exists()
    assert cs.merge(models, output, shard_bytes=3000).resumed == 2
    assert contents(output) == contents(whole.output)


@pytest.mark.parametrize("change", ["weights", "shards", "inputs", "said"])
def test_another_recipe_or_other_inputs_start_anew(tmp_path, models, change):
    output = tmp_path / "out"
    stopped(models, output)
    arguments = {"shard_bytes": 3000}
    if change == "weights":
        arguments["weights"] = [2, 1]
    elif change == "shards":
        arguments["shard_bytes"] = 4000
    elif change == "inputs":
        (models[0] / "model.safetensors").unlink()
        from safetensors.torch import save_file

        save_file(tensors(9), models[0] / "model.safetensors", {"format": "pt"})
    else:
        arguments["resume"] = False
    done = cs.merge(models, output, **arguments)
    assert done.resumed == 0
    again = cs.merge(models, tmp_path / "again", **arguments)
    assert contents(output) == contents(again.output)


def test_a_finished_file_that_was_damaged_is_written_again(tmp_path, models):
    whole = cs.merge(models, tmp_path / "whole", shard_bytes=3000)
    output = tmp_path / "out"
    stopped(models, output)
    path = partial_folder(output) / finished(output)[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert cs.merge(models, output, shard_bytes=3000).resumed == 1
    assert contents(output) == contents(whole.output)


@pytest.mark.parametrize("text", ["", "{", '{"identity": "x", "files": {"../../a": {"sha256": "0"}}}'])
def test_a_journal_that_says_nonsense_is_not_believed(tmp_path, models, text):
    output = tmp_path / "out"
    stopped(models, output)
    (partial_folder(output) / "journal.json").write_text(text)
    assert cs.merge(models, output, shard_bytes=3000).resumed == 0


def test_two_merges_into_one_output_do_not_meet(tmp_path, models):
    output = tmp_path / "out"
    failed = []

    def progress(done, total):
        if not failed:
            with pytest.raises(cs.errors.InputError, match="another merge into the same output is under way") as caught:
                cs.merge(models, output, shard_bytes=3000)
            failed.append(caught.value)

    cs.merge(models, output, shard_bytes=3000, progress=progress)
    assert failed
    assert output.is_dir()


def test_what_stands_in_the_outputs_place_stays_until_the_merge_is_whole(tmp_path, models):
    output = tmp_path / "out"
    cs.merge(models, output)
    before = contents(output)

    def progress(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cs.merge(models, output, weights=[2, 1], overwrite=True, progress=progress)
    assert contents(output) == before
    cs.merge(models, output, weights=[2, 1], overwrite=True)
    assert contents(output) != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "out"]


def test_an_input_that_changes_while_it_is_read_is_noticed(tmp_path, models):
    path = models[1] / "model.safetensors"

    def progress(done, total):
        os.utime(path, ns=(1, 1))

    with pytest.raises(cs.errors.InputError, match="changed while it was read"):
        cs.merge(models, tmp_path / "out", progress=progress)
    assert not (tmp_path / "out").exists()
