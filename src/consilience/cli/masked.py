"""A site's part in masked rounds, as the commands ``send`` and ``answer`` take it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from consilience.cli.json_output import echo_json
from consilience.cli.marks import echo_marked
from consilience.drawing.words import printable
from consilience.federated.flower.masked_site import answer_masked_flower, send_masked_flower
from consilience.federated.folder.masked_site import answer_masked, send_masked
from consilience.federated.masking.exchange import TookPart


def only_for(flag: str, **given: Any) -> None:
    """Raise UsageError where options are given that another one takes."""
    if any(value is not None and value is not False for value in given.values()):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"{names}: for {flag} only.")


def place_and_site(
    place: str | None,
    site: str | None,
    connection: dict[str, Any],
    missing: str = "Missing the place of the round or option '--site'.",
) -> tuple[str, str]:
    """Return where a round is and which site this is; raise UsageError where one is missing, or Flower's are given."""
    only_for("--flower", **connection)
    if place is None or site is None:
        raise click.UsageError(missing)
    return place, site


def flower_connection(
    place: str | None,
    site: str | None,
    connection: dict[str, Any],
    usage: str = "--flower takes --key, and no place or --site (its key says who).",
) -> dict[str, Any]:
    """Return how a server of Flower is reached; raise UsageError without a key, or with what its key says."""
    if place is not None or site is not None or connection["key"] is None:
        raise click.UsageError(usage)
    warn_of_insecure(connection["insecure"])
    return connection


@dataclass(frozen=True)
class MaskedOptions:
    """Options of a site in a masked round."""

    # signing_key, signing_keys, work, receive, timeout, min_count: as for `send_masked`
    signing_key: Path | None
    signing_keys: Path | None
    work: Path | None
    receive: Path | None
    timeout: float
    min_count: float
    # quiet, as_json: what is printed
    quiet: bool
    as_json: bool

    def send(
        self,
        file: Path,
        place: str | None,
        site: str | None,
        *,
        flower: str | None,
        connection: dict[str, Any],
        fisher: Path | None,
        **more: Any,
    ) -> None:
        """Take part with a file, and print what came of it; `fisher` is the description of its network."""
        arguments = {**self._arguments(), "description": fisher, **more}
        if flower is None:
            self._print_sent(send_masked(file, *place_and_site(place, site, connection), **arguments))
        else:
            known = flower_connection(place, site, connection)
            self._print_sent(send_masked_flower(file, flower, **known, **arguments))

    def answer(
        self,
        data: Any,
        place: str | None,
        site: str | None,
        *,
        flower: str | None,
        connection: dict[str, Any],
        module: Any = None,
    ) -> None:
        """Answer all requests of a round, and print what came of it; `module` is for requests that need one."""
        arguments = {**self._arguments(), "module": module}
        if flower is None:
            self._print_answered(answer_masked(*place_and_site(place, site, connection), data, **arguments))
        else:
            known = flower_connection(place, site, connection)
            self._print_answered(answer_masked_flower(flower, data, **known, **arguments))

    def _arguments(self) -> dict[str, Any]:
        if self.signing_key is None:
            raise click.UsageError("--masked takes --signing-key, the Ed25519 key of this site.")
        names = ("signing_key", "signing_keys", "work", "receive", "timeout", "min_count")
        return {**{name: getattr(self, name) for name in names}, "say": self._say}

    def _say(self, line: str) -> None:
        """Print a line; what is said before anything is sent is a warning."""
        if line.startswith("sum "):
            if not self.quiet and not self.as_json:
                click.echo(printable(line))
        else:
            warn(line)

    def _print_sent(self, took: TookPart) -> None:
        """Print that a site took part with a file."""
        if self.as_json:
            values = {"attempt": None, "sha256": None, "took_part": took.site in took.report.sites}
            echo_json({**values, "warnings": list(took.warnings), "rounds": took.sums, "wrote": self._wrote()})
        else:
            self._print(took)

    def _print_answered(self, took: TookPart) -> None:
        """Print that a site answered requests."""
        if self.as_json:
            unsaid = dict.fromkeys(("n_observations", "withheld", "sha256"))
            answered = {"kind": "masked", "number": took.sums, "rounds": took.sums, **unsaid, "again": False}
            echo_json({"answers": [answered], "wrote": self._wrote()})
        else:
            self._print(took)

    def _wrote(self) -> list[Path]:
        return [] if self.receive is None else [self.receive]

    def _print(self, took: TookPart) -> None:
        if self.quiet:
            return
        wrote = "" if self.receive is None else f"; wrote {self.receive}"
        count = f"{len(took.report.sites)} of {len(took.report.expected)} sites"
        sums = "" if took.sums == 1 else f" in the last of {took.sums} sums"
        click.echo(f"{count} were summed under masks{sums}; sent {took.bytes:,} bytes{wrote}")


def warn(line: str) -> None:
    """Print a warning to stderr."""
    echo_marked("consilience: warning:", printable(line), "yellow")


def warn_of_insecure(insecure: bool) -> None:
    """Warn on stderr where a round runs without TLS."""
    if insecure:
        warn("--insecure: whoever is between reads and changes everything, and can send in a site's place")
