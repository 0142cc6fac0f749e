"""The server's side of a round over Flower: the round of a folder, with a process beside it that sites reach."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from consilience.errors import InputError, OptionError
from consilience.federated.flower.messages import quiet_flower
from consilience.federated.folder.server import serve_folder
from consilience.federated.plan import NAME_RULE, is_name
from consilience.federated.round import RoundResult
from consilience.files.limits import Limits

CERTIFICATE, KEY = "server.crt", "server.key"
_START = 60.0
_FINISH = 30.0
_ATTEMPTS = 2
"""Contributions of the largest size that a site may send: what it sends may stay in memory until the round is over."""


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
    **told: Any,
) -> RoundResult:
    """Run a round that sites reach over Flower, each known by its key.

    Parameters
    ----------
    address
        Host and port to listen on, such as ``0.0.0.0:8000``.
    output
        File for the fused model; the report goes beside it.
    site_keys
        A folder of public keys, ``NAME.pub``, of the sites that may take part: OpenSSH lines of keys on a NIST curve. A
        site's name is that of its key's file, never what it says.
    certificates
        A folder with ``server.crt`` and ``server.key``, PEM.
    insecure
        Go without TLS: whoever is between sees everything and can send in a site's place.
    sites
        Names of those that are waited for; None for all whose keys are there.
    work, limits, **told
        As for `serve_folder`, except for ``rounds``, of which there is one.

    Raises
    ------
    RoundError, InputError, OptionError
        As `serve_folder`, and for keys and certificates that are not there.
    UnsupportedError
        When Flower is not installed.
    """
    if told.get("rounds", 1) != 1:
        raise OptionError("rounds: over Flower there is one; for more use a folder or a bucket")
    if insecure == (certificates is not None):
        raise OptionError("certificates: give the folder of server.crt and server.key, or insecure, not both")
    quiet_flower()
    keys = _keys(Path(site_keys))
    if missing := sorted(set(sites or ()) - set(keys)):
        raise InputError(f"{site_keys}: has no key of {', '.join(missing)}; put NAME.pub there")
    pair = None if certificates is None else _certificates(Path(certificates))
    host, port = _split(address)
    target = Path(output)
    own = Path(work) if work is not None else target.with_name(f"{target.name}.work")
    spool = own / "flower"
    (spool / "sites").mkdir(parents=True, exist_ok=True)
    most = (limits or Limits()).file_bytes
    setting = {
        "host": host,
        "port": port,
        "spool": str(spool.absolute()),
        "most": most,
        "quota": _ATTEMPTS * 2 * most + 2**26,
        "keys": {name: str(path.absolute()) for name, path in keys.items() if sites is None or name in sites},
        "certificate": None if pair is None else str(pair[0].absolute()),
        "key": None if pair is None else str(pair[1].absolute()),
    }
    with _link(setting, own):
        told = {"poll": 0.5, **told}
        result = serve_folder(spool, target, sites=sites or sorted(keys), work=own, limits=limits, **told)
    if work is None:
        shutil.rmtree(own, ignore_errors=True)
    return result


@contextmanager
def _link(setting: dict[str, Any], own: Path) -> Iterator[None]:
    """Run the process that sites reach; it ends with this one, however that ends."""
    log = own / "flower.log"
    (Path(setting["spool"]) / "ready").unlink(missing_ok=True)
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    home = own / "flower-home"
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
        _tell(child, json.dumps(setting))
        _wait_for(child, setting, log)
        try:
            yield
        except InputError:  # of a round that failed, sites that wait are told
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
    """Let sites that wait for the fused model have it."""
    _tell(child, "finish")
    with suppress(subprocess.TimeoutExpired):
        child.wait(_FINISH)


def _tell(child: subprocess.Popen[bytes], line: str) -> None:
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.write(f"{line}\n".encode())
            child.stdin.flush()


def _wait_for(child: subprocess.Popen[bytes], setting: dict[str, Any], log: Path) -> None:
    """Wait until the port answers."""
    ready, ends = Path(setting["spool"]) / "ready", time.monotonic() + _START
    while time.monotonic() < ends and child.poll() is None:
        if ready.exists():
            return
        time.sleep(0.1)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace")).splitlines()
    why = next((line for line in reversed(lines) if "error" in line.lower()), "no word from it")
    raise InputError(f"{setting['host']}:{setting['port']}: Flower did not start: {why}")


def _keys(folder: Path) -> dict[str, Path]:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    problems, found, owners = [], {}, dict[bytes, str]()
    for path in sorted(folder.glob("*.pub")):
        if not is_name(path.stem):
            problems.append(f"{path}: its name is to be a site's: {NAME_RULE}")
            continue
        try:
            key = load_ssh_public_key(path.read_bytes())
        except (OSError, ValueError) as error:
            problems.append(f"{path}: is no OpenSSH public key: {error}")
            continue
        if not isinstance(key, EllipticCurvePublicKey):
            problems.append(f"{path}: is not on a NIST curve; make one with ssh-keygen -t ecdsa -b 384")
            continue
        line = path.read_bytes().split()[1]
        if line in owners:
            problems.append(f"{path}: is the key of {owners[line]}; every site needs its own")
        owners[line] = path.stem
        found[path.stem] = path
    if problems:
        raise InputError(problems)
    if len(found) < 2:
        raise InputError(f"{folder}: holds {len(found)} public keys NAME.pub; a round takes at least two sites")
    return found


def _certificates(folder: Path) -> tuple[Path, Path]:
    pair = folder / CERTIFICATE, folder / KEY
    if missing := [path for path in pair if not path.is_file()]:
        raise InputError([f"{path}: there is no such file; the server's certificate and its key" for path in missing])
    return pair


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise OptionError(f"address: expected HOST:PORT, such as 0.0.0.0:8000; found {address!r}")
    return host.strip("[]"), int(port)
