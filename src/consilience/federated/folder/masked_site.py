"""A site's part in a masked round over a shared folder or a bucket: its file, or its rows, leave as masked numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.core.min_count import MIN_COUNT
from consilience.errors import InputError
from consilience.federated.folder.site import TIMEOUT, put_announced, refuse_site_name, sendable_files
from consilience.federated.folder.storage import RefusedError, Storage, storage_of
from consilience.federated.masking.exchange import MaskedPart, TookPart
from consilience.federated.masking.keys import read_public_keys, read_signing_key
from consilience.federated.masking.table import MaskedSiteRows
from consilience.files.atomic import refuse_unwritable
from consilience.files.limits import Limits


@dataclass(frozen=True)
class FolderMailbox:
    """A site's end of a folder or bucket."""

    storage: Storage  # the place
    site: str  # the site

    @property
    def where(self) -> str:
        """What messages call the place."""
        return self.storage.where

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """See `Mailbox`."""
        try:
            data = self.storage.read(name, max_bytes + 1)
        except RefusedError as error:
            raise InputError(f"{self.where}: {name}", str(error), code="E-ROUND") from error
        except OSError:  # is not there yet, or may pass; the caller looks again
            return None
        if len(data) > max_bytes:
            text = f"is longer than the {max_bytes} bytes that a site reads"
            raise InputError(f"{self.where}: {name}", text, code="E-ROUND")
        return data

    def send(self, number: int, data: bytes) -> None:
        """See `Mailbox`."""
        put_announced(self.storage, self.site, number, None, [(hashlib.sha256(data).hexdigest(), data)])


def send_masked(
    file: str | Path,
    place: str | Path | Storage,
    site: str,
    *,
    signing_key: str | Path,
    signing_keys: str | Path | None = None,
    description: str | Path | None = None,
    min_count: float = MIN_COUNT,
    receive: str | Path | None = None,
    timeout: float = TIMEOUT,
    work: str | Path | None = None,
    allow_differencing: bool = False,
    say: Callable[[str], None] | None = None,
) -> TookPart:
    """Take part in a masked round with a file: its numbers leave under masks, and the server sees the sum alone.

    The site stays until the sum is over, since the masks of who leaves have to be compensated for.

    Parameters
    ----------
    file : path
        What ``consilience.save`` wrote: statistics of an estimator, or a network trained from the common start.
    place : path or URL
        The folder or URL of the round.
    site : str
        Name of this site, as the server expects it.
    signing_key : path
        This site's long-term key of Ed25519 (``ssh-keygen -t ed25519``).
    signing_keys : path, optional
        A folder with the public keys ``NAME.pub`` of all sites, known from elsewhere than from this server. Default:
        the keys that the server says, with a warning.
    description : path, optional
        The description of a network, where networks count by their observations.
    min_count, allow_differencing
        As for `send_folder`.
    receive : path, optional
        File for the fused model. Default: none.
    timeout : float
        Seconds to wait for the other sites in each step. Default: 3600.
    work : path, optional
        This site's own folder, for its secret while the sum goes on, and for the record of the sums that it has opened,
        which stays: take the same one for all rounds over the same data. Default: ``FILE.masked`` next to the file.
    say : callable, optional
        Called with each line for people, warnings before anything is sent. Default: no lines.

    Returns
    -------
    TookPart
        The report of the sum, and what was sent.

    Raises
    ------
    InputError
        For a file that does not fit, a plan that cannot be agreed to, a server that departs from the protocol, a sum
        that failed, and one of nearly the sites of an earlier sum, which together would reveal what the others sent.
        Where time is over, the same call goes on where it was.
    """
    with sendable_files(file, description, Limits(), min_count, allow_differencing) as (files, warnings):
        for warning in warnings:
            (say or _silent)(str(warning))
        part = _part(place, site, signing_key, signing_keys, files, file_folder(work, file), timeout, say)
        return run_part(part, receive)


def answer_masked(
    place: str | Path | Storage,
    site: str,
    data: Any,
    *,
    signing_key: str | Path,
    signing_keys: str | Path | None = None,
    module: Any = None,
    min_count: float = MIN_COUNT,
    receive: str | Path | None = None,
    timeout: float = TIMEOUT,
    work: str | Path | None = None,
    say: Callable[[str], None] | None = None,
) -> TookPart:
    """Answer all requests of a masked round from this site's own data: its sums leave under masks.

    Parameters
    ----------
    place, site, signing_key, signing_keys, receive, timeout, say
        As for `send_masked`.
    data : array_like, DataFrame, str or Path
        The rows of the site, as for `answer_folder`.
    module : object, optional
        The site's own model, for requests that need one.
    min_count : float
        A sum over fewer observations does not leave the site. Default: 5.
    work : path, optional
        This site's own folder, as for `send_masked`. Default: ``KEY.masked`` in the working
        directory, KEY being the file of the signing key.

    Raises
    ------
    InputError
        As `send_masked`, and for data that do not fit.
    """
    source = MaskedSiteRows(data, min_count, module)
    part = _part(place, site, signing_key, signing_keys, source, rows_folder(work, signing_key), timeout, say)
    return run_part(part, receive)


def _part(
    place: str | Path | Storage,
    site: str,
    signing_key: str | Path,
    signing_keys: str | Path | None,
    source: Any,
    work: Path,
    timeout: float,
    say: Callable[[str], None] | None,
) -> MaskedPart:
    """Return this site in the masked sums of a place; its folder must be out of the others' reach."""
    refuse_site_name(site)
    storage = storage_of(place)
    root = getattr(storage, "root", None)
    if isinstance(root, Path) and work.resolve().is_relative_to(root.resolve()):
        text = f"lies in {storage.where}, where others read"
        raise InputError(work, text, "give a folder of this site's own", "E-ROUND")
    keys = None if signing_keys is None else read_public_keys(signing_keys)
    mailbox = FolderMailbox(storage, site)
    return MaskedPart(mailbox, site, read_signing_key(signing_key), source, work, timeout, keys, say or _silent)


def file_folder(work: str | Path | None, file: str | Path) -> Path:
    """Return the folder of a site that sends a file: by default next to it."""
    return Path(work) if work is not None else Path(file).with_name(f"{Path(file).name}.masked")


def rows_folder(work: str | Path | None, signing_key: str | Path) -> Path:
    """Return the folder of a site that answers from its rows: by default named like its key, in the working directory.

    Over Flower the server says a site's name, and must not choose which record of opened sums a site goes by.
    """
    return Path(work) if work is not None else Path(f"{Path(signing_key).name}.masked")


def run_part(part: MaskedPart, receive: str | Path | None) -> TookPart:
    """Take part, and write the model where it is asked for."""
    if receive is not None:
        refuse_unwritable(Path(receive))
    return part.run(None if receive is None else Path(receive))


def _silent(_line: str) -> None:
    """Say nothing."""
