"""Interrupted in the middle of the work: exit code 130, one line, and no trace on the disk."""

import signal
import subprocess
import sys
import time

import click
import numpy as np
import pytest

from tests.cli.bad_files import content, site
from tests.cli.running import on_terminal


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_interrupted_while_it_works(folder, unchanged, number):
    for seed in range(40):
        (folder / f"site-{seed:02}.safetensors").write_bytes(content(site(seed, components=15, dim=12)))
    (folder / "fused.safetensors").write_bytes(b'{"format": "consilience-posterior"} of yesterday')
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


LINE = "consilience: interrupted; no file was left half-written [E-SYSTEM]\n"


def interrupted_after(delay):
    """Return what a command says that is interrupted while it starts, and whether it ended as one that was."""
    words = [sys.executable, "-m", "consilience", "methods"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    # Click ends the line of a terminal's ^C. Python ends by the signal where C code met the interrupt: 130 in a shell.
    return said.lstrip("\n"), process.returncode in (130, -signal.SIGINT)


@pytest.mark.slow
def test_interrupted_while_it_starts():
    # Before 0.05 s Python itself starts, which says so in its own way.
    ends = [interrupted_after(delay) for delay in np.linspace(0.06, 0.9, 15)]
    odd = [(said, is_interrupted) for said, is_interrupted in ends if (said, is_interrupted) != (LINE, True) and said]
    assert len(odd) <= 1, odd  # now and then C code of a library prints what interrupts its import
