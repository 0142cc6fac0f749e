"""Server of a round over Flower: the round of a folder, and a child process that sites reach.

The child (`flower.link`) writes what sites send into a folder of the server's own; `serve_folder` runs the round there.
Deadlines, restarts, quotas and reports therefore exist once. The child ends with this process, however that ends.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from consilience.errors import InputError, OptionError, Problem
from consilience.federated.flower.messages import quiet_flower
from consilience.federated.folder.server import remove_work_folder, serve_folder, work_folder_of
from consilience.federated.masking.keys import site_keys
from consilience.federated.masking.messages import STEPS
from consilience.federated.plan import DEADLINE
from consilience.federated.requests.table import Then
from consilience.federated.round import RoundResult
from consilience.files.limits import Limits
from consilience.files.opening import read_text

CERTIFICATE, KEY = "server.crt", "server.key"
_START_SECONDS = 60.0
"""Time for the child to open its port; imports of Flower take some seconds. Chosen by hand."""

_FINISH_SECONDS = 130.0
"""Time for waiting sites to get the fused model at the end, a little more than the child gives them. Chosen by hand."""

_MAX_CONTRIBUTIONS = 2
"""Contributions of the largest size that a site may send in a round or to a request: Flower may keep them in memory."""

_QUOTA_SLACK = 2**26
"""Bytes beyond these for questions, answers and heartbeats. Chosen by hand."""

_BYTES_PER_SECOND = 2**12
"""Bytes further for each second of a deadline, in which a site looks for what the server publishes. Chosen by hand."""


def serve_flower(
    address: str,
    output: str | Path,
    *,
    site_keys: str | Path,
    certificates: str | Path | None = None,
    insecure: bool = False,
    sites: list[str] | None = None,
    work: str | Path | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> RoundResult:
    """Run a round that sites reach over Flower, each known by its key.

    Parameters
    ----------
    address : str
        Host and port to listen on, such as ``0.0.0.0:8000``.
    output : path
        File for the fused model; the report is written next to it.
    site_keys : path
        A folder of public keys, ``NAME.pub``, of the sites that may take part: OpenSSH lines of keys on a NIST curve. A
        site's name is that of its key's file, whatever the site says.
    certificates : path, optional
        A folder with ``server.crt`` and ``server.key``, PEM. Required unless `insecure`.
    insecure : bool
        Go without TLS: everyone on the way sees everything and can send in a site's place. Default: False.
    sites : list of str, optional
        Names of the expected sites. Default: all whose keys are in the folder.
    work, limits, **options
        As for `serve_folder`.

    Raises
    ------
    RoundError, InputError, OptionError
        As `serve_folder`, and for missing keys and certificates.
    UnsupportedError
        When Flower is not installed.
    """
    requests = Then.given(options.get("then"))  # first, so that no key is read for a misspelt name
    if requests is not None:
        requests.refuse_unfit(options.get("method"), options.get("expect"))
    if insecure == (certificates is not None):
        raise OptionError("certificates", "give the folder of server.crt and server.key, or insecure, not both")
    quiet_flower()
    keys = read_site_keys(Path(site_keys))
    if missing := sorted(set(sites or ()) - set(keys)):
        raise InputError(site_keys, f"has no key of {', '.join(missing)}", "put NAME.pub there", "E-NEEDED")
    certificate, key = (None, None) if certificates is None else certificate_and_key(Path(certificates))
    host, port = split_address(address)
    target = Path(output)
    work_folder = work_folder_of(target, work)
    spool = work_folder / "flower"
    (spool / "sites").mkdir(parents=True, exist_ok=True)
    max_file_bytes = (limits or Limits()).file_bytes
    n_deadlines = 1 if options.get("masked") is None else len(STEPS)  # in a round, each to be waited for
    seconds = n_deadlines * float(options.get("deadline", DEADLINE))
    settings = {
        "host": host,
        "port": port,
        "spool": str(spool.absolute()),
        "max_file_bytes": max_file_bytes,
        "rounds": options.get("rounds", 1),
        # Two files for each contribution, the model and its Fisher information.
        "quota": _MAX_CONTRIBUTIONS * 2 * max_file_bytes + _QUOTA_SLACK + int(seconds * _BYTES_PER_SECOND),
        "keys": {name: str(path.absolute()) for name, path in keys.items() if sites is None or name in sites},
        "certificate": certificate,
        "key": key,
    }
    with _run_link(settings, work_folder):
        options = {"poll": 0.5, **options}
        result = serve_folder(spool, target, sites=sites or sorted(keys), work=work_folder, limits=limits, **options)
    if work is None and not result.has_failed_request:
        remove_work_folder(work_folder)
    return result


@contextmanager
def _run_link(settings: dict[str, Any], work_folder: Path) -> Iterator[None]:
    """Run the child process; it ends with this one, however that ends."""
    log = work_folder / "flower.log"
    (Path(settings["spool"]) / "ready").unlink(missing_ok=True)
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    home = work_folder / "flower-home"
    home.mkdir(exist_ok=True)
    environment["FLWR_HOME"] = str(home.absolute())
    with log.open("wb") as stream:
        child = subprocess.Popen(
            [sys.executable, "-m", "consilience.federated.flower.link"],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )
    try:
        _send_line(child, json.dumps(settings))
        _wait_until_ready(child, settings, log)
        try:
            yield
        except InputError:  # the round failed: sites that wait get its report
            _finish(child)
            raise
        _finish(child)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        if child.stdin is not None:
            with suppress(OSError):
                child.stdin.close()
        child.wait()


def _finish(child: subprocess.Popen[bytes]) -> None:
    """Let the child serve the sites that wait for the fused model, and end."""
    _send_line(child, "finish")
    with suppress(subprocess.TimeoutExpired):
        child.wait(_FINISH_SECONDS)


def _send_line(child: subprocess.Popen[bytes], line: str) -> None:
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.write(f"{line}\n".encode())
            child.stdin.flush()


def _wait_until_ready(child: subprocess.Popen[bytes], settings: dict[str, Any], log: Path) -> None:
    """Wait until the port answers."""
    ready, deadline = Path(settings["spool"]) / "ready", time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        if ready.exists():
            return
        time.sleep(0.1)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", read_text(log, errors="replace")).splitlines()
    cause = next((line for line in reversed(lines) if "error" in line.lower()), "no word from it")
    raise InputError("", f"{settings['host']}:{settings['port']}: Flower did not start: {cause}", code="E-ROUND")


def read_site_keys(folder: Path) -> dict[str, Path]:
    """Return the files of the sites' public keys, by site; raise for all that are no such keys."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    other = ("is not on a NIST curve", "make one with ssh-keygen -t ecdsa -b 384")
    paths = {site: path for site, (path, _) in site_keys(folder, EllipticCurvePublicKey, other).items()}
    if len(paths) < 2:
        text = f"holds {len(paths)} public keys NAME.pub; a round takes at least two sites"
        raise InputError(folder, text, code="E-FEW")
    return paths


def certificate_and_key(folder: Path) -> tuple[str, str]:
    """Return the paths of the server's certificate and of its key."""
    pair = folder / CERTIFICATE, folder / KEY
    if missing := [path for path in pair if not path.is_file()]:
        raise InputError(
            [Problem(path, "there is no such file; the server's certificate and its key") for path in missing]
        )
    return str(pair[0].absolute()), str(pair[1].absolute())


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an address; raise OptionError for what is none."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise OptionError("address", f"expected HOST:PORT, such as 0.0.0.0:8000; found {address!r}")
    return host.strip("[]"), int(port)
