"""A site's part in a masked round: what ``round send`` and ``round answer`` print of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from consilience.checks import Json
from consilience.cli.json_output import echo_json
from consilience.cli.rounds.places import warn
from consilience.drawing.words import printable
from consilience.federated.masking.exchange import TookPart

MASK_OPTIONS = ("signing_key", "signing_keys", "work")
"""Parameters that only a masked round takes."""


@dataclass(frozen=True)
class MaskedOutput:
    """What is printed of a site's part in a masked round, and where its model was written."""

    receive: Path | None
    quiet: bool
    as_json: bool

    def say(self, line: str) -> None:
        """Print a line; what is said before anything is sent is a warning."""
        if not line.startswith("sum "):
            warn(line)
        elif not self.quiet and not self.as_json:
            click.echo(printable(line))

    def print(self, took: TookPart, as_document: Callable[[TookPart], Mapping[str, Json]]) -> None:
        """Print that a site took part; as JSON, what a function makes of it and what was written."""
        if self.as_json:
            echo_json({**as_document(took), "wrote": [] if self.receive is None else [self.receive]})
        elif not self.quiet:
            wrote = "" if self.receive is None else f"; wrote {self.receive}"
            count = f"{len(took.report.sites)} of {len(took.report.expected)} sites"
            sums = "" if took.sums == 1 else f" in the last of {took.sums} sums"
            click.echo(f"{count} were summed under masks{sums}; sent {took.bytes:,} bytes{wrote}")


def masks_of(options: dict[str, Any]) -> dict[str, Any] | None:
    """Take the options of a masked round out of all; None for an open one."""
    masks = {name: options.pop(name) for name in MASK_OPTIONS}
    return None if masks["signing_key"] is None else masks


def masked_site_options(work: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what adds the options of a site in a masked round, whose folder is by default `work`."""
    path = click.Path(path_type=Path)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own_folder = f"Own folder, one for all rounds over the same data.  [default: {work}]"
        for decorator in (
            click.option("--work", type=path, help=own_folder),
            click.option("--signing-keys", type=path, help="Folder with NAME.pub of all sites, not from the server."),
            click.option("--signing-key", type=path, help="Ed25519 key of this site, for a masked round."),
        ):
            command = decorator(command)
        return command

    return decorate
