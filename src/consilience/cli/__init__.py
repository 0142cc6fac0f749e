"""The command line: ``main``, its messages and its exit codes.

Nothing else in the library prints. Exit codes: 0 done, 1 the input is at fault (one line per problem on stderr),
2 wrong usage or options, 70 a fault of this library, 130 interrupted. With ``--json`` problems are printed to stdout
too, as a JSON object.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from consilience.cli.commands import cli
from consilience.errors import ConsilienceError, OptionError, Problem, fault_of


def main() -> NoReturn:
    """Run the command and exit: every error of the library becomes lines on stderr and an exit code."""
    try:
        _interrupts.clear()
        for number in (signal.SIGINT, signal.SIGTERM):  # which the entry point ended at once while it started
            signal.signal(number, _interrupt)
        cli.main(_arguments(), prog_name="consilience", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:  # of a group without a command: its help, once
        _print_json([Problem("", "expected a command", "see `--help`", "E-USAGE")])
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        problem = _usage_problem(error)
        _print_json([problem])
        click.UsageError(problem, getattr(error, "ctx", None)).show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        _exit_interrupted()
    except ConsilienceError as error:
        _exit_with(error.problems, 2 if isinstance(error, OptionError) else 1)
    except OSError as error:
        _exit_with([Problem("", str(error))], 1)
    except MemoryError:
        _exit_with([Problem("", "not enough memory for these models")], 1)
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # extension modules in Rust raise what is no Exception
        if _interrupts:  # an extension module that is interrupted while it is imported fails in ways of its own
            _exit_interrupted()
        _exit_with_fault(error)
    sys.exit(0)


DEBUG = "--debug"
"""The option of every command that prints where it failed, of a fault of this library."""


def _arguments() -> list[str]:
    """Return the words of the command line without `DEBUG`, which may stand anywhere in it."""
    return [word for word in sys.argv[1:] if word != DEBUG]


def _exit_with_fault(error: BaseException) -> NoReturn:
    """Print an exception that nobody expected as one line, or whole where that was asked for, and exit."""
    if DEBUG in sys.argv:
        traceback.print_exception(error)
    remedy = "report what was printed" if DEBUG in sys.argv else f"give it `{DEBUG}` too, and report what it prints"
    fault = fault_of(error, remedy)
    _exit_with([fault.with_parts(text=f"the command {fault.text}")], FAULT)


FAULT = 70
"""Exit code of a fault of this library (EX_SOFTWARE of sysexits.h)."""


_interrupts: list[int] = []
"""Signals that ended the work of this process."""


def _usage_problem(error: click.ClickException) -> Problem:
    """Return what is wrong with a command line; an option of another library with the name that it has here."""
    from consilience.catalogue import did_you_mean
    from consilience.cli.shell_wording import flags_of

    text = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        options = flags_of(error.ctx.command)
        meant = did_you_mean(error.option_name.lstrip("-").replace("-", "_"), options)
        if meant:
            remedy = f"give {options[meant]}, if that was meant"
            return Problem("", f"No such option {error.option_name}", remedy, "E-USAGE")
    return Problem("", text).coded("E-USAGE")


def _exit_with(problems: Sequence[Problem], status: int) -> NoReturn:
    """Print problems to stderr, without control characters of a stranger's file names, and exit."""
    from consilience.cli.marks import echo_marked
    from consilience.cli.shell_wording import problem_of_the_command
    from consilience.drawing.words import printable

    coded = [problem_of_the_command(problem).coded("E-SYSTEM") for problem in problems]  # those of ours have a code
    _print_json(coded)
    for problem in coded:
        echo_marked("consilience:", printable(problem), "red")
    sys.exit(status)


def _exit_interrupted() -> NoReturn:
    """Say so and exit; what is half imported cannot be used, so that nothing else is."""
    from consilience.cli.marks import echo_marked

    problem = Problem("", "interrupted", "no file was left half-written").coded("E-SYSTEM")
    _print_json([problem])
    echo_marked("consilience:", problem, "red")
    sys.exit(130)


def _print_json(problems: Sequence[Problem]) -> None:
    """Print problems to stdout where the results were asked for as JSON."""
    if "--json" in sys.argv:
        from consilience.cli.json_output import echo_json, problems_json

        echo_json(problems_json(problems))


def _interrupt(signal_number: int, _frame: FrameType | None) -> None:
    """Raise as Ctrl-C does, for SIGTERM too, so that half-written files are removed on the way out."""
    _interrupts.append(signal_number)
    sys.unraisablehook = lambda _unraisable: None  # of callbacks that are interrupted too, Python prints tracebacks
    raise KeyboardInterrupt
