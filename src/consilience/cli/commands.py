"""The command ``consilience``: the group of all commands."""

from __future__ import annotations

import click

from consilience.cli.command_table import COMMANDS, load_command


class CommandGroup(click.Group):
    """All commands, each imported when it is called; a misspelt one is answered with the one that was meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None for a name that is none."""
        del ctx
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word, or raise with the nearest."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from consilience.catalogue import suggestion  # here, since only a misspelling needs it

            meant = suggestion(args[0], COMMANDS)
            raise click.UsageError(f"No such command {args[0]!r}{meant or '.'} [E-COMMAND]", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command, without importing any."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in sorted(COMMANDS)])


_EXIT_CODES = """\b
Exit codes: 0 done, 1 the input is at fault (a line for each problem on stderr),
2 wrong usage or options, 130 interrupted."""


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXIT_CODES)
@click.version_option(package_name="consilience")
def cli() -> None:
    """Fuse models that were trained apart into one. No data travels, only parameters."""
    from consilience.cli.shell_wording import short_warnings  # here, so that --help starts without it

    click.get_current_context().with_resource(short_warnings())
