"""The command ``explain``: what the code at the end of a message means, with an example, and what to do."""

from __future__ import annotations

import re
from importlib.resources import files
from textwrap import fill

import click

from consilience.catalogue import CATALOGUE, suggestion
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import terminal_width

_SECTION = re.compile(r"^## (\S+): .*\n((?:(?!^\(|^## ).*\n?)*)", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\((?:\.\./)*([^)]*)\)")


def explanations() -> dict[str, str]:
    """Return what docs/results/errors.md says of every code, in Markdown."""
    page = (files("consilience.cli") / "explanations.md").read_text(encoding="utf-8")
    return {code: text.strip() for code, text in _SECTION.findall(page)}


def _complete_code(_context: click.Context, _argument: click.Parameter, incomplete: str) -> list[str]:
    """Return the codes that begin with what was typed."""
    return [code for code in CATALOGUE if code.startswith(incomplete.upper())]


@click.command()
@click.argument("code", required=False, shell_complete=_complete_code)
@json_option
def explain(code: str | None, as_json: bool) -> None:
    """Explain CODE, such as E-FEW, which stands at the end of a message; without one, list all codes."""
    if code is None:
        if as_json:
            echo_json({"codes": dict(CATALOGUE)})
            return
        for name, title in CATALOGUE.items():
            click.echo(f"{name:15} {title}")
        return
    known = code.strip("[]").upper()
    known = next((name for name in (known, f"E-{known}", f"W-{known}") if name in CATALOGUE), "")
    if not known:
        raise click.BadParameter(
            f"there is no code {code!r:.80}{suggestion(code.upper(), CATALOGUE)}", param_hint="CODE"
        )
    text = explanations()[known]
    if as_json:
        echo_json({"code": known, "title": CATALOGUE[known], "text": text})
        return
    click.echo(f"{known}: {CATALOGUE[known]}\n")
    click.echo(plain(text))


def plain(markdown: str) -> str:
    r"""Return a section of the page as a terminal shows it: examples indented, links as the pages that they lead to.

    Examples
    --------
    >>> print(plain("Sums betray ([](../../../docs/sites/privacy.md)).\n\n```text\na: too few\n```"))
    Sums betray (docs/sites/privacy.md).
    <BLANKLINE>
        a: too few
    """
    blocks = []
    for block in re.split(r"\n\n+", markdown):
        if block.startswith("```"):
            lines = block.splitlines()[1:]
            blocks.append("\n".join(f"    {line}" for line in lines if line != "```"))
        else:
            shown = _LINK.sub(lambda link: link[1] or link[2], " ".join(block.split()))
            blocks.append(fill(shown, terminal_width(), break_long_words=False, break_on_hyphens=False))
    return "\n\n".join(blocks)
