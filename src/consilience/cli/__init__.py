"""The command line: the entry point ``main``, its messages and its exit codes.

Nothing else in the library prints. Exit codes: 0 done, 1 the input is at fault (one line per problem on stderr),
2 wrong usage or options, 130 interrupted. With ``--json`` problems are printed to stdout too, as a JSON object.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from consilience.cli.commands import cli
from consilience.cli.json_output import echo_json, problems_json
from consilience.cli.marks import echo_marked
from consilience.drawing.words import printable
from consilience.errors import ConsilienceError, OptionError, Problem


def main() -> NoReturn:
    """Run the command and exit: every error of the library becomes lines on stderr and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        cli.main(prog_name="consilience", standalone_mode=False)
    except click.ClickException as error:
        if "--json" in sys.argv:
            echo_json(problems_json([Problem("", error.format_message())]))
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        _print_problem("interrupted; no file was left half-written")
        sys.exit(130)
    except ConsilienceError as error:
        if "--json" in sys.argv:
            echo_json(problems_json(error.problems))
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
    echo_marked("consilience:", printable(line), "red")


def _interrupt(_signal_number: int, _frame: FrameType | None) -> None:
    """Treat SIGTERM as Ctrl-C, so that half-written files are removed on the way out."""
    raise KeyboardInterrupt
