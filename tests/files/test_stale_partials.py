"""What killed processes leave of files and folders is removed; what others still write is not."""

import os
import subprocess
import sys

import pytest

from consilience.files.atomic import PARTIAL, partial_prefix, remove_stale, write_folder_atomically

pytestmark = pytest.mark.skipif(os.name != "posix", reason="elsewhere nothing tells which processes run")


@pytest.fixture
def ended():
    """Return the number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left_by(path, process):
    """Return the name that a process gives to what it writes of a path."""
    return path.with_name(f"{partial_prefix(path.name).replace(str(os.getpid()), str(process))}abc{PARTIAL}")


def test_files_and_folders_of_processes_that_are_no_more_are_removed(tmp_path, ended):
    path = tmp_path / "fused"
    left_by(path, ended).write_bytes(b"half")
    folder = left_by(tmp_path / "ensemble", ended)
    folder.mkdir()
    (folder / "member").write_bytes(b"half")
    remove_stale(path)
    with write_folder_atomically(tmp_path / "ensemble") as partial:
        (partial / "member").write_bytes(b"whole")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["ensemble"]


def test_what_others_write_stays(tmp_path):
    path = tmp_path / "fused"
    names = [left_by(path, os.getppid()), left_by(path, os.getpid()), left_by(tmp_path / "fused2", 2**22 + 1)]
    names += [tmp_path / ".fused.00000000-1.abc.partial", tmp_path / ".fused.abc.partial"]
    for name in names:
        name.write_bytes(b"half")
    remove_stale(path)
    assert all(name.exists() for name in names)
