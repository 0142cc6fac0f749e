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
    wanted = list(CATALOGUE) if code is None else [_known(code)]
    texts = explanations()
    if as_json:
        echo_json({"codes": [{"code": one, "title": CATALOGUE[one], "text": texts[one]} for one in wanted]})
    elif code is None:
        for one, title in CATALOGUE.items():
            click.echo(f"{one:15} {title}")
    else:
        click.echo(f"{wanted[0]}: {CATALOGUE[wanted[0]]}\n\n{plain(texts[wanted[0]])}")


def _known(code: str) -> str:
    """Return a code of the catalogue, which may be given without its letter or with its brackets."""
    name = code.strip("[]").upper()
    known = next((one for one in (name, f"E-{name}", f"W-{name}") if one in CATALOGUE), None)
    if known is None:
        text = f"there is no code {code!r:.80}{suggestion(name, CATALOGUE)}; `consilience explain` lists them"
        raise click.BadParameter(text, param_hint="CODE")
    return known


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
