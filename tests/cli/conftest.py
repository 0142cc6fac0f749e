"""The command as a user meets it: in this process, which is quick, or in one of its own."""

import functools
import signal
import sys

import pytest

from consilience.cli import main
from tests.cli.bad_files import content, site
from tests.cli.running import Finished, run
from tests.cli.some_nets import write_nets


@functools.cache
def site_file(seed):
    """Return the bytes of the file of a site, written once."""
    return content(site(seed))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with the files of two sites: a and b."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("ab"):
        (tmp_path / f"{name}.safetensors").write_bytes(site_file(seed))
    return tmp_path


@pytest.fixture
def nets(folder, monkeypatch):
    """The user's own module of networks, in the current folder with the checkpoints of two sites and data."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write_nets(folder)
    sys.modules.pop("somenets", None)


@pytest.fixture
def command(folder, monkeypatch, capfd):
    """Run the command's entry point in this process; warnings are errors here too."""

    def enter(*arguments):
        monkeypatch.setattr(sys, "argv", ["consilience", *map(str, arguments)])
        handler = signal.getsignal(signal.SIGTERM)
        capfd.readouterr()
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            signal.signal(signal.SIGTERM, handler)
        return Finished(ended.value.code, *capfd.readouterr())

    return enter


@pytest.fixture
def process(folder):
    """Run the command as a process of its own."""
    return run


@pytest.fixture
def unchanged(folder):
    """Call it before the deed; after the test every file must be the same, and none added: nothing half-written."""
    before = []

    def files():
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    yield lambda: before.append(files())
    assert before == [files()]
