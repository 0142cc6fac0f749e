"""Places of rounds on the command line: a folder, the URL of a bucket, or ``flower://HOST:PORT``.

The scheme alone decides the transport. What goes with each is in `at_a_site` and `at_the_server`, cases of
`CommandOfCases`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from consilience.checks import Json
from consilience.cli.cases import Case, Choice
from consilience.cli.marks import echo_marked
from consilience.drawing.words import printable
from consilience.errors import InputError
from consilience.federated.flower.place import flower_place
from consilience.federated.folder.site import FIRST_PAUSE, MAX_PAUSE
from consilience.federated.folder.storage import MAX_REPORT_BYTES, RefusedError, Storage, retry, storage_of
from consilience.files.document import parse_document

Command = Callable[..., None]

FLOWER = "flower://"


def valid_place(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return a place of the command line; raise BadParameter for one of Flower without a port."""
    if (address := address_of(value or "")) is not None:
        valid_address(ctx, param, address)
    return value


def valid_address(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return an address of the command line; raise BadParameter for one without a port."""
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.BadParameter(f"expected HOST:PORT, such as 0.0.0.0:8000; found {value!r}", ctx, param)
    return value


def address_of(place: str) -> str | None:
    """Return the address of a server of Flower; None for a folder or bucket.

    Examples
    --------
    >>> address_of("flower://fusion.example.org:8000"), address_of("s3://bucket/round")
    ('fusion.example.org:8000', None)
    """
    return place.removeprefix(FLOWER) if place.startswith(FLOWER) else None


def is_flower(given: Mapping[str, Any]) -> bool:
    """Return whether the place among the parameters of a command is a server of Flower."""
    return address_of(given["place"] or "") is not None


def at_a_site(*needs: str, takes: tuple[str, ...] = ()) -> Choice:
    """Return the cases of how a site reaches a round: what a folder or bucket needs, and takes further."""
    return (
        Case("a folder or bucket", lambda given: not is_flower(given), needs, takes),
        Case(f"{FLOWER}HOST:PORT", is_flower, ("key", ("root_certificates", "insecure"))),
    )


def at_the_server(*needs: str) -> Choice:
    """Return the cases of where a server opens a round: what a folder or bucket needs."""
    return (
        Case("a folder or bucket", lambda given: not is_flower(given), needs),
        Case(f"{FLOWER}HOST:PORT", is_flower, ("site_keys", ("certificates", "insecure"))),
    )


IN_A_ROUND: Choice = (
    Case(
        "an open round",
        lambda given: given["signing_key"] is None and given["signing_keys"] is None,
        takes=("attempt", "early", "refine", "follow", "held_out", "density"),
    ),
    Case(
        "a masked round",
        lambda given: given["signing_key"] is not None or given["signing_keys"] is not None,
        needs=("signing_key",),
        takes=("signing_keys", "work"),
    ),
)
"""The cases of a site's part: a round is masked where the site gives its signing key, and no other is taken for it."""


def site_options(command: Command) -> Command:
    """Add the options by which a site reaches a round."""
    decorators: list[Callable[[Command], Command]] = [
        click.option("--site", help="Name of this site."),
        click.option("--key", type=click.Path(path_type=Path), help="Private key of this site, which says its name."),
        click.option(
            "--root-certificates", type=click.Path(path_type=Path), help="Certificate by which the server is known."
        ),
        click.option("--insecure", is_flag=True, help="Without TLS; for trying out on one machine."),
    ]
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def connection_of(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of a connection to a server of Flower out of all, and warn of one without TLS."""
    connection = {name: options.pop(name) for name in ("key", "root_certificates", "insecure")}
    warn_of_insecure(connection["insecure"])
    return connection


@contextmanager
def reached(place: str, options: dict[str, Any], *, waits: bool = True) -> Iterator[tuple[Any, Any]]:
    """Yield the place of a round as functions take it, and the name of this site, taken out of the options.

    `waits` says whether a server of Flower is waited for that does not run yet.
    """
    connection, site, address = connection_of(options), options.pop("site"), address_of(place)
    if address is None:
        yield place, site
        return
    with flower_place(address, **connection, timeout=options["timeout"], waits=waits) as storage:
        yield storage, storage.site


def warn(line: str) -> None:
    """Print a warning to stderr."""
    echo_marked("consilience: warning:", printable(line), "yellow")


def warn_of_insecure(insecure: bool) -> None:
    """Warn on stderr where a round runs without TLS."""
    if insecure:
        warn("--insecure: whoever is between reads and changes everything, and can send in a site's place")


def read_plan(storage: Storage) -> Mapping[str, Json] | None:
    """Return what the server of a round published of its plan; None where it has published nothing yet."""
    try:
        text = retry(lambda: storage.read("server/plan.json", MAX_REPORT_BYTES))
    except FileNotFoundError:
        return None
    except RefusedError as error:
        raise InputError(f"{storage.where}: server/plan.json", str(error), code="E-ROUND") from error
    plan = parse_document(Path("plan.json"), text, "content", "`consilience round open` writes it")
    if not isinstance(plan, dict) or not isinstance(plan.get("sites"), list):
        raise InputError(storage.where, "server/plan.json is no plan of a round", code="E-ROUND")
    return plan


def wait_for_open_round(place: Any, timeout: float, before: Callable[[], None]) -> None:
    """Wait for the plan of a round, and raise where it is masked: what would be sent is not.

    `before` is called where there is something to wait for.
    """
    storage, deadline, pause = storage_of(place), time.monotonic() + timeout, FIRST_PAUSE
    while (plan := read_plan(storage)) is None:
        if time.monotonic() >= deadline:
            text = f"no server has opened a round here in {timeout:g} seconds, so whether it is masked is not known"
            raise InputError(storage.where, text, "ask who opens it, or give `early=True`", "E-ROUND")
        if pause == FIRST_PAUSE:
            before()
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2.0 * pause, MAX_PAUSE)
    if plan.get("masked") is True:
        text = "this round is masked, and what you would send is not; nothing was sent"
        raise InputError(storage.where, text, "give the `signing_key=` of this site", "E-ROUND")
