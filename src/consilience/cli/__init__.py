"""The command line: the entry point ``main``, its messages and its exit codes.

Nothing else in the library prints. Exit codes: 0 done, 1 the input is at fault (one line per problem on stderr),
2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from consilience.cli.commands import cli
from consilience.drawing.words import printable
from consilience.errors import ConsilienceError, OptionError


def main() -> NoReturn:
    """Run the command and exit: every error of the library becomes lines on stderr and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        cli.main(prog_name="consilience", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        _print_problem("interrupted; no file was left half-written")
        sys.exit(130)
    except ConsilienceError as error:
        for problem in error.problems:
            _print_problem(problem)
        sys.exit(2 if isinstance(error, OptionError) else 1)
    except OSError as error:
        _print_problem(str(error))
        sys.exit(1)
    except MemoryError:
        _print_problem("not enough memory for these models")
        sys.exit(1)
    sys.exit(0)


def _print_problem(line: str) -> None:
    """Print one problem to stderr, without control characters of a stranger's file names."""
    click.echo(f"consilience: {printable(line)}", err=True)


def _interrupt(_signal_number: int, _frame: FrameType | None) -> None:
    """Treat SIGTERM as Ctrl-C, so that half-written files are removed on the way out."""
    raise KeyboardInterrupt
