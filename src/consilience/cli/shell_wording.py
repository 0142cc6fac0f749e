"""Messages in the words of the shell: options and calls of Python become those of the command that was called.

A message names options and calls in backticks (docs/adr/0045): "give `min_count=0`, or `consilience.describe(model)`".
Who typed a command reads `--min-count 0` and `consilience site describe` there. What the command has no option for
stays as it is, and so does all that stands outside backticks. Warnings become lines of the command, without source
lines.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from consilience.cli.command_table import COMMANDS, load_command
from consilience.cli.marks import echo_marked
from consilience.drawing.words import printable
from consilience.errors import HarmWarning, Problem, UncomparedWarning, UnprovedSymmetryWarning, replace_code

_OTHER_NAMES = {"rng": "seed", "target_widths": "widths", "samples": "n_observations", "overwrite": "overwrite"}
"""Keywords of functions whose option of the command is stored under another name."""

_CALL = re.compile(r"(?:consilience|cs)\.([a-z_]+)\(.*\)")
_OPTION = re.compile(r"([a-z][a-z_]*)=(.*)")


def in_words_of_the_command(text: str) -> str:
    """Return a message in the words of the command that was called."""
    return in_shell(text, called_command(), COMMANDS, _method_options())


def problem_of_the_command(problem: Problem) -> Problem:
    """Return a problem in the words of the command that was called; a file named like an option keeps its name."""
    translated = problem_in_shell(problem, called_command(), COMMANDS, _method_options())
    return translated.without_subject().about(problem.subject) if problem.subject in sys.argv[2:] else translated


def called_command() -> click.Command | None:
    """Return the command that was called; None where there is none of that name."""
    names = (" ".join(sys.argv[1:count]) for count in (3, 2))  # of two words in a group
    return next((load_command(name) for name in names if name in COMMANDS), None)


def _method_options() -> Collection[str]:
    from consilience.cli.methods import method_options  # here, since the tables of methods import every kind

    return method_options()


def in_shell(text: str, command: click.Command | None, commands: Collection[str], options: Collection[str]) -> str:
    """Return a message in the words of a command.

    `command` is None where it is not known; `commands` are names of all, `options` those of options that ``--set``
    takes.

    Examples
    --------
    >>> from click import Command, Option
    >>> fuse = Command("fuse", params=[Option(["--min-count"]), Option(["--set", "settings"])])
    >>> in_shell("give `min_count=0`, or `combine='product'`", fuse, ["site describe"], ["combine"])
    'give `--min-count 0`, or `--set combine=product`'
    >>> in_shell("describe it: `consilience.describe(model, data)`", fuse, ["site describe"], [])
    'describe it: `consilience site describe`'
    """
    flags = flags_of(command)

    def translated(code: str) -> str:
        if call := _CALL.fullmatch(code):
            name = call[1].replace("_", "-")
            of_group = (one for one in commands if one.endswith(f" {name}") and not one.startswith("round "))
            called = name if name in commands else next(of_group, None)
            return code if called is None else f"consilience {called}"
        if option := _OPTION.fullmatch(code):
            name, value = option[1], option[2].strip("'\"")
            if name in flags:
                return flags[name] + (f" {value}" if value not in ("", "True", "...") else "")
            if name in options and "settings" in flags:
                return f"{flags['settings']} {name}={value}"
        return code

    return replace_code(text, translated)


def problem_in_shell(
    problem: Problem, command: click.Command | None, commands: Collection[str], options: Collection[str]
) -> Problem:
    """Return a problem in the words of a command; a subject that is an option is called as the command calls it."""
    text, remedy = (in_shell(part, command, commands, options) for part in (problem.text, problem.remedy))
    subject = flags_of(command).get(problem.subject) or in_shell(problem.subject, command, commands, options)
    return problem.with_parts(subject=subject, text=text, remedy=remedy)


def flags_of(command: click.Command | None) -> Mapping[str, str]:
    """Return the long options of a command by the keyword that they are in Python."""
    flags = {
        str(option.name): max(option.opts, key=len)
        for option in (() if command is None else command.params)
        if isinstance(option, click.Option)
    }
    return flags | {word: flags[name] for word, name in _OTHER_NAMES.items() if name in flags}


@contextmanager
def short_warnings() -> Iterator[None]:
    """Print warnings of this library as one line each on stderr, those of networks that may do harm always."""
    with warnings.catch_warnings():
        for category in (UnprovedSymmetryWarning, HarmWarning, UncomparedWarning):
            warnings.simplefilter("always", category)
        show_others = warnings.showwarning

        def show(message: Any, category: Any, *location: Any, **keywords: Any) -> None:
            if hasattr(category, "code"):  # of this library
                echo_marked("consilience: warning:", printable(in_words_of_the_command(str(message))), "yellow")
            else:
                show_others(message, category, *location, **keywords)

        warnings.showwarning = show
        yield
