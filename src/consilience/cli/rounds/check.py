"""The command ``round check``: what would stop a round, found before sites are asked to send."""

from __future__ import annotations

import secrets
import shutil
import ssl
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from consilience.cli.cases import Case, Choice, CommandOfCases
from consilience.cli.json_output import echo_json, json_option
from consilience.cli.marks import echo_prose
from consilience.cli.rounds.places import address_of, at_the_server, read_plan, valid_place
from consilience.drawing.words import printable
from consilience.errors import ConsilienceError, InputError, Problem
from consilience.federated.check import check_files
from consilience.federated.flower.listener import listen
from consilience.federated.flower.messages import quiet_flower
from consilience.federated.flower.server import certificate_and_key, read_site_keys, split_address
from consilience.federated.folder.inbox import MAX_FILES
from consilience.federated.folder.server import work_folder_of
from consilience.federated.folder.storage import LocalStorage, Storage, storage_of
from consilience.federated.masking.keys import read_public_keys
from consilience.federated.plan import RoundPlan
from consilience.files.atomic import refuse_unwritable
from consilience.files.opening import read_file
from consilience.files.safetensors_file import SafetensorsFile

MAX_CLOCK_DIFFERENCE = 60.0
"""Seconds between two clocks that are no problem. Chosen by hand: Flower takes signatures of up to five minutes."""

_MASKED_GROWTH = 4
"""Bytes under masks for one of a file: a word has 16, a number of float32 has 4."""

_NAMES: Choice = (
    Case(
        "sites with keys",
        lambda given: given["signing_keys"] is not None or given["site_keys"] is not None,
        takes=("sites",),
    ),
    Case("sites without keys", lambda _given: True, needs=("sites",)),
)


@click.command(cls=CommandOfCases, choices=[at_the_server(), _NAMES])
@click.argument("place", callback=valid_place)
@click.option("--sites", help="Names of the sites that may take part.  [default: those of the keys]")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="OUTPUT that the server will be given.")
@click.option("--work", type=click.Path(path_type=Path), help="The server's own folder.  [default: OUTPUT.work]")
@click.option("--expect", type=click.Path(path_type=Path), help="A file whose kind and shapes all must have.")
@click.option("--file-size", type=click.IntRange(1), help="Bytes that each site sends.  [default: those of --expect]")
@click.option(
    "--signing-keys", type=click.Path(path_type=Path), help="Of a masked round: folder with NAME.pub of each site."
)
@click.option("--site-keys", type=click.Path(path_type=Path), help="Folder with the public key NAME.pub of each site.")
@click.option("--certificates", type=click.Path(path_type=Path), help="Folder with server.crt and server.key.")
@click.option("--insecure", is_flag=True, help="Without TLS; for trying out on one machine.")
@json_option
def check(as_json: bool, **given: Any) -> None:
    """List all that would stop a round in PLACE, a folder, a URL, or flower://HOST:PORT to listen at.

    The names of sites, whether the place and OUTPUT can be written, a round that is there already, the room on disks
    for what sites send, the clock of the file system, keys and certificates, and whether the port is free.
    """
    facts, problems = Preflight(**given).run()
    if not as_json:
        for name, text in facts.items():
            echo_prose(printable(f"{name}: {text}"))
    if problems:
        raise InputError(problems)
    if as_json:
        echo_json({"ok": True, "checked": facts})
    else:
        click.echo("ok: the round can be opened")


@dataclass(frozen=True, eq=False)
class Preflight:
    """What is known of a round before it is opened, as the options of ``round check`` say."""

    place: str
    sites: str | None
    output: Path | None
    work: Path | None
    expect: Path | None
    file_size: int | None
    signing_keys: Path | None
    site_keys: Path | None
    certificates: Path | None
    insecure: bool

    def run(self) -> tuple[dict[str, str], list[Problem]]:
        """Return what is as it must be, by what was looked at, and all problems."""
        facts, problems = dict[str, str](), list[Problem]()
        looks: dict[str, Callable[[], str | None]] = {
            "sites": self.names, "place": self.access, "clock": self.clock, "earlier round": self.leftover,
            "output": self.own_files, "disk": self.disk, "expected file": self.expected,
            "signing keys": self.signing, "site keys": self.known_sites, "certificate": self.certificate,
            "port": self.port,
        }  # fmt: skip
        for name, look in looks.items():
            try:
                fact = look()
            except ConsilienceError as error:
                problems += error.problems
            except OSError as error:
                problems.append(Problem(self.place, f"{name}: {error.strerror or error}", code="E-SYSTEM"))
            else:
                facts |= {} if fact is None else {name: fact}
        return facts, list(dict.fromkeys(problems))  # a place that nothing opens stops several looks

    @cached_property
    def site_names(self) -> tuple[str, ...]:
        """Names of the sites: those given, or those of the keys."""
        if self.sites is not None:
            return tuple(name.strip() for name in self.sites.split(",") if name.strip())
        try:
            return tuple(read_public_keys(self.signing_keys) if self.signing_keys else self._site_keys())
        except ConsilienceError:  # which the check of the keys says
            return ()

    @cached_property
    def work_folder(self) -> Path | None:
        """The server's own folder, where it is known."""
        return self.work if self.output is None else work_folder_of(self.output, self.work)

    @cached_property
    def storage(self) -> Storage | None:
        """The place of the files; None where it is not known, over Flower without an output."""
        if address_of(self.place) is None:
            return storage_of(self.place)
        return None if self.work_folder is None else LocalStorage(self.work_folder / "flower")

    def names(self) -> str | None:
        """Check the names of the sites."""
        if not self.site_names:
            return None
        plan = RoundPlan(self.site_names)
        return f"{len(plan.sites)}: {', '.join(plan.sites)}; a quorum of {plan.needed}"

    @cached_property
    def clock_difference(self) -> float | None:
        """Seconds by which the clock of the place's files is ahead of this machine's; a file is written for it."""
        if address_of(self.place) is not None or self.storage is None:
            return None
        write = _write_local if isinstance(self.storage, LocalStorage) else _write_remote
        before = time.time()
        written = write(self.storage)
        return None if written is None else min(0.0, written - before) or max(0.0, written - time.time())

    def access(self) -> str | None:
        """Check that the place can be written."""
        if address_of(self.place) is not None:
            return None
        _ = self.clock_difference
        return f"{self.place} can be written"

    def clock(self) -> str | None:
        """Check the clock of the place against that of this machine."""
        try:
            difference = self.clock_difference
        except (ConsilienceError, OSError):  # which the check of the place says
            return None
        if difference is None:
            return None
        if abs(difference) > MAX_CLOCK_DIFFERENCE:
            ahead = "ahead of" if difference > 0 else "behind"
            text = f"the clock of its files is {abs(difference):.0f} s {ahead} this machine's, by which rounds end"
            raise InputError(self.place, text, "set both clocks", "E-ROUND")
        return f"within {MAX_CLOCK_DIFFERENCE:g} s of that of the place"

    def leftover(self) -> str | None:
        """Check that no round was opened in the place, or is kept in the server's own folder."""
        problems = []
        if self.work_folder is not None and (self.work_folder / "state.json").exists():
            remedy = "open it with the same options to go on with it, or give another OUTPUT"
            problems.append(Problem(self.work_folder, "has a round that is not over", remedy))
        elif self.storage is not None and read_plan(self.storage) is not None:
            problems.append(Problem(self.place, "has an earlier round", "use a new place for each round"))
        sent = [] if self.storage is None else self.storage.names("sites", MAX_FILES)
        if self.site_names and (strangers := sorted(set(sent) - set(self.site_names))):
            text = f"has folders of sites that are not expected: {', '.join(strangers[:20])}"
            problems.append(Problem(self.place, text, "give their names in `sites=`, or remove them"))
        if problems:
            raise InputError(one.coded("E-ROUND") for one in problems)
        return "none"

    def own_files(self) -> str | None:
        """Check that the server's own files can be written, and that sites cannot."""
        if self.output is not None:
            refuse_unwritable(self.output)
        folder = self.work_folder
        if folder is None:
            return None
        is_shared = isinstance(self.storage, LocalStorage) and address_of(self.place) is None
        if is_shared and folder.resolve().is_relative_to(Path(self.place.removeprefix("file://")).resolve()):
            remedy = "give a folder of the server's own as `work=`"
            raise InputError(folder, f"lies in {self.place}, where sites may write", remedy, "E-ROUND")
        return f"{self.output or folder} can be written"

    def disk(self) -> str | None:
        """Check the room on the disks of the place and of the server's own folder."""
        size = self.file_size or (self.expect.stat().st_size if self.expect and self.expect.is_file() else 0)
        each = size * (_MASKED_GROWTH if self.signing_keys else 1) * max(2, len(self.site_names)) + size
        folders = [self.work_folder] if self.work_folder is not None else []
        if isinstance(self.storage, LocalStorage):
            folders.append(self.storage.root)  # the place has what sites sent, the server's folder has copies
        needed: dict[int, tuple[Path, int]] = {}
        for folder in map(_existing, folders):
            device = folder.stat().st_dev
            needed[device] = (folder, needed.get(device, (folder, 0))[1] + each)
        room = {folder: (shutil.disk_usage(folder).free, bytes_) for folder, bytes_ in needed.values()}
        if problems := [
            Problem(folder, f"has {free:,} bytes free, and the round takes {bytes_:,}", "make room", "E-SYSTEM")
            for folder, (free, bytes_) in room.items()
            if free < bytes_
        ]:
            raise InputError(problems)
        said = "; ".join(
            f"{free:,} bytes free in {folder}" + (f", of which {bytes_:,} are taken" if size else "")
            for folder, (free, bytes_) in room.items()
        )
        return said or None

    def expected(self) -> str | None:
        """Check the file that contributions must be like."""
        if self.expect is None:
            return None
        if problems := check_files(SafetensorsFile(self.expect)).problems:
            raise InputError(problem.about(self.expect) for problem in problems)
        return f"{self.expect} can be read"

    def signing(self) -> str | None:
        """Check the signing keys of a masked round."""
        if self.signing_keys is None:
            return None
        return self._complete(read_public_keys(self.signing_keys), self.signing_keys)

    def known_sites(self) -> str | None:
        """Check the keys by which a server of Flower knows its sites."""
        return None if self.site_keys is None else self._complete(self._site_keys(), self.site_keys)

    def certificate(self) -> str | None:
        """Check the server's certificate: its time, and that the key is its own."""
        if self.certificates is None:
            return None
        certificate, key = certificate_and_key(self.certificates)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            text = f"is no certificate with its key in {key}: {error.reason or error}"
            raise InputError(certificate, text, code="E-ROUND") from error
        return f"valid until {_valid_until(certificate):%Y-%m-%d}"

    def port(self) -> str | None:
        """Check that the port is free, and Flower installed."""
        address = address_of(self.place)
        if address is None:
            return None
        quiet_flower()
        try:
            listen(*split_address(address)).close()
        except OSError as error:
            text = f"cannot be listened at: {error.strerror or error}"
            raise InputError(address, text, "give another port, or end what uses it", "E-ROUND") from error
        return f"{address} is free"

    def _site_keys(self) -> dict[str, Path]:
        assert self.site_keys is not None  # noqa: S101  (narrows the type)
        return read_site_keys(self.site_keys)

    def _complete(self, keys: Any, folder: Path) -> str:
        """Return how many keys there are; raise for sites without one."""
        if missing := sorted(set(self.site_names) - set(keys)):
            raise InputError(folder, f"has no key of {', '.join(missing)}", "put NAME.pub there", "E-NEEDED")
        return f"{len(keys)} in {folder}"


def _existing(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    return next(one for one in (folder, *folder.resolve().parents) if one.is_dir())


def _write_local(storage: Any) -> float:
    """Write a file where a server will, in a folder or the one above it; return its time by the file system."""
    root: Path = storage.root
    if not root.is_dir() and not root.parent.is_dir():
        raise InputError(root, f"there is no folder {root.parent} to make it in", "is the file system mounted?")
    folder = next(one for one in (root / "server", root, root.parent) if one.is_dir())
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".consilience-check-") as stream:
        stream.write(b"consilience")
        stream.flush()
        return _modified(Path(stream.name))


def _modified(path: Path) -> float:
    """Return the time of a file by its file system."""
    return path.stat().st_mtime


def _write_remote(storage: Any) -> float | None:
    """Write an object where a server will; return its time by the service, None where that says none."""
    name, text = f"server/check-{secrets.token_hex(8)}", secrets.token_bytes(16)
    storage.put(name, text)
    try:
        if storage.read(name, 64) != text:
            raise InputError(storage.where, "what was written there reads otherwise", code="E-ROUND")
        modified = storage.files.modified(f"{storage.root.rstrip('/')}/{name}")
        return float(modified.replace(tzinfo=modified.tzinfo or UTC).timestamp())
    except NotImplementedError:
        return None
    finally:
        storage.remove(name)


def _valid_until(certificate: str) -> datetime:
    """Return the end of a certificate's time; raise InputError where it is not valid now."""
    from cryptography.x509 import load_pem_x509_certificate

    found = load_pem_x509_certificate(read_file(certificate))
    begins, ends = found.not_valid_before_utc, found.not_valid_after_utc
    if not begins <= datetime.now(UTC) <= ends:
        text = f"is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}, and not now"
        raise InputError(certificate, text, "make a new one", "E-ROUND")
    return ends
