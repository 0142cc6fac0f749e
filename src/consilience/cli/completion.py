"""The command ``completion``: the script by which a shell completes commands, options and files."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from consilience.cli.json_output import echo_json, json_option

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
@click.pass_context
def completion(context: click.Context, shell: str, as_json: bool) -> None:
    r"""Print the script that completes commands and options in SHELL.

    \b
    bash: eval "$(consilience completion bash)"            in ~/.bashrc
    zsh:  eval "$(consilience completion zsh)"             in ~/.zshrc
    fish: consilience completion fish | source             in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  (click has all of the choices)
    script = kind(context.find_root().command, {}, "consilience", "_CONSILIENCE_COMPLETE").source()
    if as_json:
        echo_json({"shell": shell, "script": script})
    else:
        click.echo(script)
