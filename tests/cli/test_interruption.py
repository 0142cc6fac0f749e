"""Interrupted in the middle of the work: exit code 130, one line, and no trace on the disk."""

import signal

import click
import pytest

from tests.cli.bad_files import content, site
from tests.cli.running import on_terminal


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_interrupted_while_it_works(folder, unchanged, number):
    for seed in range(40):
        (folder / f"site-{seed:02}.safetensors").write_bytes(content(site(seed, components=15, dim=12)))
    (folder / "fused.safetensors").write_bytes(b"the result of yesterday")
    unchanged()
    files = sorted(path.name for path in folder.glob("site-*"))
    with on_terminal("fuse", *files, "-o", "fused.safetensors", "--set", "restarts=10000") as terminal:
        assert b"fusing" in terminal.read(until=b"fusing")  # the bar is there, so the work has begun
        terminal.process.send_signal(number)
        said = click.unstyle(terminal.read().decode())  # marks are coloured on a terminal
        assert said.endswith("\r\nconsilience: interrupted; no file was left half-written [E-SYSTEM]\r\n")
        assert terminal.process.wait(timeout=60) == 130
        assert terminal.process.stdout.read() == b""
        assert b"Traceback" not in terminal.shown
