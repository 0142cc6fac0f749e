"""Files are opened in one place, which takes ordinary ones alone."""

import ast
import os
import signal
import socket
from pathlib import Path

import numpy as np
import pytest

import consilience as cs
from consilience.api.kinds import inspect_file
from consilience.core.recipe import read_recipe
from consilience.draws.cmdstan import read_cmdstan
from consilience.errors import ConsilienceError
from consilience.files.csv import read_csv
from consilience.files.labelled_arrays import read_labelled_arrays
from consilience.files.npy import read_array
from consilience.files.opening import open_file, open_unbuffered, read_file, read_text
from consilience.files.tables import read_named_table

SOURCE = Path(cs.__file__).parent
OWN = {
    "files/opening.py": "the place",
    "drawing/downloads.py": "reads what the package brings, below the room of files",
    "cli/demo.py": "reads what it wrote",
    "cli/explain.py": "reads what the package brings",
}
NO_FILES = ("self.files.open", "server.open", "os.open", "archive.open", "_Plan.open")
"""Functions of the name that open a remote file, a sum, a part of an archive, or a plan."""


def readings(path):
    """Yield the lines of a module that open files for reading in another way."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        mode = next((arg.value for arg in node.args if isinstance(arg, ast.Constant)), "r")
        is_opening = node.func.attr == "open" and str(mode).startswith("r")
        if node.func.attr in ("read_bytes", "read_text") or (is_opening and ast.unparse(node.func) not in NO_FILES):
            yield node.lineno


def test_no_module_opens_files_by_itself():
    found = {str(path.relative_to(SOURCE)): list(readings(path)) for path in SOURCE.rglob("*.py")}
    assert {name: lines for name, lines in found.items() if lines and name not in OWN} == {}


@pytest.fixture
def strange(tmp_path):
    """Return what makes a pipe, a socket or a device under the name of any file."""

    def make(kind, name):
        path = tmp_path / name
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            made = socket.socket(socket.AF_UNIX)
            made.bind(str(path))
            made.close()
        else:
            path.symlink_to("/dev/zero")
        return path

    signal.alarm(60)  # a reader that waits ends the test
    yield make
    signal.alarm(0)


READERS = {
    "a.safetensors": (
        cs.load, inspect_file, lambda path: cs.fuse([path, path]), lambda path: cs.check([path, path]),
        lambda path: cs.pack(path.parent, path.parent / "packed"),
    ),
    "a.json": (cs.load, inspect_file),
    "a.parquet": (inspect_file, read_named_table, lambda path: cs.shards(path.parent)),
    "a.csv": (read_csv, read_named_table, lambda path: read_cmdstan([path]), lambda path: cs.fuse([path])),
    "a.npy": (read_array, read_labelled_arrays),
    "a.npz": (read_array, read_labelled_arrays),
    "a.yml": (read_recipe,),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("name", READERS)
def test_pipes_sockets_and_devices_are_refused_at_once(strange, kind, name):
    path = strange(kind, name)
    for read in READERS[name]:
        try:
            problems = read(path)
        except ConsilienceError as error:
            problems = error.problems
        assert problems


@pytest.mark.parametrize(
    "read", [cs.load, lambda name: cs.fuse([name, name]), lambda name: cs.merge([name, f"{name}+{name}"], "out")]
)
@pytest.mark.parametrize("ending", ["", ".safetensors", ".parquet", ".yml"])
def test_names_longer_than_a_file_may_have_are_refused(read, ending):
    with pytest.raises(ConsilienceError, match=r"cannot be read|does not exist"):
        read(300 * "a" + ending)


def test_recipes_may_name_files_of_any_length(tmp_path):
    (tmp_path / "recipe.yml").write_text(f"models: ['*.{300 * '9'}', {300 * 'a'}]\noutput: out\n")
    with pytest.raises(ConsilienceError, match="no file named"):
        read_recipe(tmp_path / "recipe.yml")


def test_ordinary_files_and_links_to_them_are_read(tmp_path):
    (tmp_path / "a").write_bytes("é".encode())
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with open_file(tmp_path / "b") as stream, open_unbuffered(tmp_path / "a") as other:
        assert stream.read() == other.read() == read_file(tmp_path / "a") == "é".encode()
    assert (read_text(tmp_path / "b"), read_file(tmp_path / "a", 1)) == ("é", b"\xc3")
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)


@pytest.mark.parametrize("form", ["safetensors", "parquet"])
def test_names_that_are_no_utf8_are_packed_and_read(tmp_path, form):
    family = cs.families.Gamma()
    (tmp_path / "sites").mkdir()
    for number, name in enumerate((b"caf\xe9.safetensors", b"b.safetensors")):
        eta = family.to_natural(shape=[2.0 + number], rate=[1.0])
        cs.save(cs.Posterior(family, eta, counts=[9.0]), tmp_path / "sites" / os.fsdecode(name))
    cs.pack(tmp_path / "sites", tmp_path / "packed", form=form)
    fusion = cs.fuse(tmp_path / "packed")
    assert np.isfinite(fusion.posterior.natural).all()
    assert cs.shards(tmp_path / "packed").n_sites == 2
