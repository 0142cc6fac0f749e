"""The command. It is the only place that prints, and that turns a seed into a result.

Exit codes: 0 done, 1 the input is at fault (one line per problem on stderr), 2 usage, 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from consilience.cli.commands import cli
from consilience.drawing.words import printable
from consilience.errors import InputError, OptionError, UnsupportedError


def main() -> NoReturn:
    """Run the command and turn what the library raises into lines and exit codes."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        cli.main(prog_name="consilience", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted; no file was left half-written")
        sys.exit(130)
    except OptionError as error:
        _complain(str(error))
        sys.exit(2)
    except InputError as error:
        for problem in error.problems:
            _complain(problem)
        sys.exit(1)
    except (UnsupportedError, OSError) as error:
        _complain(str(error))
        sys.exit(1)
    except MemoryError:
        _complain("not enough memory for these models")
        sys.exit(1)
    sys.exit(0)


def _complain(line: str) -> None:
    click.echo(f"consilience: {printable(line)}", err=True)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
