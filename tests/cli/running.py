"""The command in this process, which is quick, and in one of its own, with and without a terminal."""

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from consilience.cli import main
from consilience.errors import FAMILIES

COMMAND = [sys.executable, "-m", "consilience"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Finished:
    """How a run of the command ended."""

    code: object
    out: str
    err: str

    def complaints(self):
        """Return the lines on stderr, each of which must be one for people; without the code of a family."""
        lines = self.err.splitlines()
        assert "Traceback" not in self.err
        assert all(line.startswith("consilience: ") for line in lines), self.err
        assert all(re.search(r" \[E-[A-Z]+\]$", line) for line in lines), self.err
        said = [line.removeprefix("consilience: ") for line in lines]
        return [re.sub(rf" \[({'|'.join(FAMILIES)})\]$", "", line) for line in said]


def rows_of(inspected):
    """Return the lines of an inspection below its sentences."""
    sentences, _, rows = inspected.partition("\n\n")
    assert sentences.startswith("This is ")
    assert "\nNext: " in sentences
    return rows.splitlines()


def command(*arguments):
    """Run the command's entry point in this process."""
    out, err = io.StringIO(), io.StringIO()
    handler = signal.getsignal(signal.SIGTERM)
    code = 0
    try:
        words = mock.patch.object(sys, "argv", ["consilience", *map(str, arguments)])
        with words, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = ended.code
    finally:
        signal.signal(signal.SIGTERM, handler)
    return Finished(code, out.getvalue(), err.getvalue())


def run(*arguments, **settings):
    """Run the command to its end in a process of its own."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env=ENVIRONMENT,
        timeout=120,
        text=True,
        check=False,
        **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings),
    )
    return Finished(done.returncode, done.stdout, done.stderr)


class Terminal:
    """A terminal of 80 columns as stderr of a running command."""

    def __init__(self, process, screen):
        self.process, self.screen, self.shown = process, screen, b""

    def read(self, until=None, seconds=60):
        """Return all that was ever shown, once `until` is part of it or the command has closed the terminal."""
        end = time.monotonic() + seconds
        while (until is None or until not in self.shown) and time.monotonic() < end:
            if select.select([self.screen], [], [], 0.1)[0]:
                try:
                    block = os.read(self.screen, 4096)
                except OSError:  # how Linux says that the other side is closed
                    break
                if not block:
                    break
                self.shown += block
        return self.shown


@contextmanager
def on_terminal(*arguments):
    """Start the command with stderr on a terminal; it does not outlive the block."""
    screen, other_side = pty.openpty()
    fcntl.ioctl(other_side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=other_side,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which background jobs are told to ignore
    )
    os.close(other_side)
    try:
        yield Terminal(process, screen)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(screen)
