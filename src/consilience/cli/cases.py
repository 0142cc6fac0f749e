"""Ways to call a command: the options that each needs, and those that it takes, checked in one place.

A command that can be called in several ways has choices, such as over a folder or over Flower. Of each choice one case
applies; options of the others are refused, and what the case needs and lacks is named, all in one message. The help
lists the options of each case in a section of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource


@dataclass(frozen=True)
class Case:
    """One of the cases of a choice.

    Parameters
    ----------
    title : str
        What messages and the help call it.
    applies : callable
        Whether a call is of this case, by the values of its parameters.
    needs : tuple of str or of tuple
        Names of the parameters that must be given; a tuple for exactly one of several.
    takes : tuple of str
        Names of the further parameters that may be given.
    """

    title: str
    applies: Callable[[Mapping[str, Any]], bool]
    needs: tuple[str | tuple[str, ...], ...] = ()
    takes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all its parameters."""
        needed = (name for need in self.needs for name in ((need,) if isinstance(need, str) else need))
        return (*needed, *self.takes)


Choice = Sequence[Case]
"""Cases of which exactly one applies to every call."""


class CommandOfCases(click.Command):
    """A command whose calls are of one case of every choice.

    Examples
    --------
    >>> over = [
    ...     Case("a folder", lambda given: not given["key"], takes=("site",)),
    ...     Case("a server", lambda given: bool(given["key"])),
    ... ]
    >>> command = CommandOfCases("send", params=[click.Option(["--site"]), click.Option(["--key"])], choices=[over])
    >>> command.make_context("send", ["--site", "lund", "--key", "own"])
    Traceback (most recent call last):
        ...
    click.exceptions.UsageError: --site is for a folder, not for a server.
    """

    def __init__(self, *args: Any, choices: Sequence[Choice] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.choices = choices

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return what is left of the arguments; raise UsageError with everything that does not go together."""
        rest = super().parse_args(ctx, args)
        if wrong := list(self._problems(ctx)):
            raise click.UsageError("; ".join(wrong) + ".", ctx)
        return rest

    def _problems(self, ctx: click.Context) -> Iterator[str]:
        given = {
            str(one.name)
            for one in self.params
            if one.name and ctx.get_parameter_source(one.name) is not ParameterSource.DEFAULT
        }
        flags = {str(one.name): _flag(one) for one in self.params}
        for choice in self.choices:
            case = next(one for one in choice if one.applies(ctx.params))
            for name, other in _refused(choice, case):
                if name in given:
                    yield f"{flags[name]} is for {other.title}, not for {case.title}"
            for need in case.needs:
                names = (need,) if isinstance(need, str) else need
                if len(given & set(names)) != 1:
                    which = "one of " * (len(names) > 1)
                    yield f"{case.title} needs {which}{' and '.join(flags[name] for name in names)}"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options that every call takes, then those of each case."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for one in self.get_params(ctx):
            if isinstance(one, click.Option) and (record := one.get_help_record(ctx)) is not None:
                sections.setdefault(self._section(str(one.name)), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def _section(self, name: str) -> str:
        """Return the section of a parameter in the help: that of its case, where it is one of several."""
        choices = [choice for choice in self.choices if len(choice) > 1]
        titles = {case.title for choice in choices for case in choice if name in case.names}
        return f"Options for {titles.pop()}" if len(titles) == 1 else "Options"


def _refused(choice: Choice, case: Case) -> Iterator[tuple[str, Case]]:
    """Yield the parameters of the other cases that this one does not take, each with its case."""
    seen = set(case.names)
    for other in choice:
        for name in other.names:
            if name not in seen:
                seen.add(name)
                yield name, other


def _flag(parameter: click.Parameter) -> str:
    """Return a parameter as people type it."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return str(parameter.human_readable_name)
