"""The wall of the command: whatever nobody foresaw is one line, exit 70, and with --debug where it failed."""

import json

import pytest

from tests.cli.bad_files import content, site
from tests.cli.running import command

TWO = ("a.safetensors", "b.safetensors")
REMEDY = "give it `--debug` too, and report what it prints"


class ForeignPanicError(BaseException):
    """What extension modules in Rust raise: no Exception."""


@pytest.fixture
def sites(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(TWO):
        (tmp_path / name).write_bytes(content(site(seed)))


@pytest.mark.parametrize(
    "error", [KeyError("weights"), AssertionError(), RecursionError("deep\nand deeper"), ForeignPanicError("x")]
)
@pytest.mark.parametrize("place", ["fuse", "check", "inspect"])
def test_what_nobody_foresaw_is_one_line(sites, monkeypatch, error, place):
    def fail(*_arguments, **_keywords):
        raise error

    module = {"fuse": "cs.fuse", "check": "cs.check", "inspect": "inspect_file"}[place]
    monkeypatch.setattr(f"consilience.cli.{'inspect' if place == 'inspect' else 'fuse'}.{module}", fail)
    words = {"fuse": [*TWO, "-o", "f.safetensors"], "check": TWO, "inspect": TWO[:1]}[place]
    done = command(place, *words)
    said = " ".join(str(error).split())
    shown = f"{type(error).__name__}{f': {said}' if said else ''}"
    line = f"the command fails in a way that consilience does not expect ({shown}); {REMEDY} [E-FAULT]"
    assert (done.code, done.err) == (70, f"consilience: {line}\n")
    debugged = command("--debug", place, *words)
    assert debugged.code == command(place, *words, "--debug").code == 70
    assert "Traceback" in debugged.err
    assert debugged.err.endswith("report what was printed [E-FAULT]\n")


def test_json_has_the_fault_as_a_problem(sites, monkeypatch):
    monkeypatch.setattr("consilience.cli.fuse.cs.check", lambda *_, **__: {}["x"])
    done = command("check", *TWO, "--json")
    (problem,) = json.loads(done.out)["problems"]
    assert (done.code, problem["code"], problem["remedy"]) == (70, "E-FAULT", REMEDY)


def test_debug_changes_nothing_else(sites):
    done = command("check", *TWO, "--debug")
    assert (done.code, done.out, done.err) == (0, "ok: 2 models can be fused\n", "")
