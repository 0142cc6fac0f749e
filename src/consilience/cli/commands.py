"""The command ``consilience``: the group of all commands, and groups in it such as ``consilience round``."""

from __future__ import annotations

from functools import cache

import click

from consilience.cli.command_table import COMMANDS, GROUPS, SECTIONS, commands_in, load_command


class LazyGroup(click.Group):
    """Commands of the table, each imported when it is called; a misspelt one is answered with the one that was meant.

    `path` is the name of the group in the table, "" for ``consilience`` itself.
    """

    path = ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands and groups in this one."""
        del ctx
        return list(commands_in(self.path))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command or group; None for a name that is none."""
        del ctx
        name = f"{self.path} {cmd_name}".strip()
        if name in GROUPS:
            return group_of(name)
        return load_command(name) if name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word, or raise with the nearest."""
        known = commands_in(self.path)
        if args and not args[0].startswith("-") and args[0] not in known:
            from consilience.catalogue import suggestion  # here, since only a misspelling needs it

            nested = next((name for name in COMMANDS if not self.path and name.endswith(f" {args[0]}")), None)
            meant = f", did you mean {nested}?" if nested else suggestion(args[0], known)
            raise click.UsageError(f"No such command {args[0]!r}{meant or '.'} [E-COMMAND]", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command, without importing any."""
        del ctx
        known = commands_in(self.path)
        for title, names in ({"Commands": tuple(known)} if self.path else SECTIONS).items():
            with formatter.section(title):
                formatter.write_dl([(name, known[name]) for name in names])


@cache
def group_of(name: str) -> LazyGroup:
    """Return the group of a name in the table."""
    entry = GROUPS[name]
    group = LazyGroup(name.rsplit(" ", 1)[-1], help=entry.text, short_help=entry.summary)
    group.path = name
    return group


_EPILOG = """\b
From models to a fused file:
  consilience check lund.safetensors oslo.safetensors
  consilience fuse lund.safetensors oslo.safetensors -o fused.safetensors
  consilience inspect fused.safetensors
Networks take `--module nets:make_net` too, a function that makes one.
In Python, `consilience.save(model, "lund.safetensors", data=X)` or `data=(X, y)` writes a
site's file, and `consilience.rebuild("fused.safetensors")` returns the fused model.

\b
Exit codes: 0 done, 1 the input is at fault (a line for each problem on stderr),
2 wrong usage or options, 70 a fault of consilience, 130 interrupted."""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EPILOG)
@click.version_option(package_name="consilience")
@click.option("--debug", is_flag=True, expose_value=False, help="Of a fault of consilience, print where it failed.")
def cli() -> None:
    """Fuse models that were trained apart into one. No data travels, only parameters."""
    from consilience.cli.shell_wording import short_warnings  # here, so that --help starts without it

    click.get_current_context().with_resource(short_warnings())
