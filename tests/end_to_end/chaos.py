"""Rounds in trouble: servers and sites are killed at random, on full disks, with late files and clocks that are put on.

A case is a kind of message of a round and a transport. `run` plays it with the commands that people type, in processes
of their own, and says whether the model has the bytes of the undisturbed one, and what did not end well. Processes are
forked from this one, which has imported the library, so that a second of trouble meets them at work and not at imports.
"""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem
from safetensors import safe_open
from sklearn.linear_model import Ridge

import consilience as cs
from consilience.cli import main
from tests.end_to_end.pki import write_certificates, write_key
from tests.federated import network_sites
from tests.federated.masked_sites import write_keys
from tests.federated.request_kinds_zoo import SPECIMENS
from tests.federated.rounds import rows, write_sites

SITES = ("a", "b", "c")
TRANSPORTS = ("folder", "bucket", "flower")
REQUESTS = {
    "em": "em:2", "refine": "refine:3", "head": "head", "gram": "gram:3", "chain": "chain:3", "moments4": "moments4:2",
    "density": "density:2", "choose": "choose",
}  # fmt: skip
KINDS = ("models", *REQUESTS, "rounds", "masked sum", "masked em")
"""What travels: models alone, then requests of each kind, several rounds of models, and sums under masks."""

LATE = 1.0
"""Seconds after which a bucket shows a new file, and a courier brings one to the folder."""

SECONDS = 240.0
"""Time for a case, after which it counts as lost."""

N_TRIES = 20
"""Calls of a command, the first included: who runs it calls it again after it was killed or ended with an error."""

CODE = """import numpy as np
from safetensors.torch import load_file
from sklearn.mixture import BayesianGaussianMixture
from torch import nn


def make():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def trained(site):
    network = make()
    network.load_state_dict(load_file(site))
    return network


def a():
    return trained("a")


def b():
    return trained("b")


def c():
    return trained("c")


def log_density(draws, rows):
    rate = draws["rate"]
    return (np.sum(rows) + 1 / 3) * np.log(rate) - (len(rows) + 1 / 3) * rate


def refine_of(seed):
    def refine(fused, number):
        rng = np.random.default_rng([seed, number])
        rows = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])[rng.integers(3, size=90)] + rng.normal(size=(90, 2))
        start = 0 if fused is None else len(fused.natural)
        return BayesianGaussianMixture(n_components=3, random_state=start).fit(rows)
    return refine


refine_a, refine_b, refine_c = map(refine_of, range(3))
"""
"""Code of the sites: networks, a log density, and fits of several rounds that go on from the fused model."""


class LateBucket(LocalFileSystem):
    """A bucket in a folder: files appear whole, and in listings only some time after they are there."""

    protocol = "late"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("late://"))

    def ls(self, path, detail=False, **options):
        """Return what is old enough to be seen."""
        entries = super().ls(path, detail=True, **options)
        seen = [one for one in entries if one["type"] == "directory" or one["mtime"] < REAL_TIME() - LATE]
        return seen if detail else [one["name"] for one in seen]

    def pipe_file(self, path, value, mode="overwrite", **options):
        """Write a file whole."""
        target = Path(self._strip_protocol(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            partial.write_bytes(value)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def put_file(self, local, path, **options):
        """Send a file whole."""
        self.pipe_file(path, Path(local).read_bytes())


REAL_TIME = time.time
fsspec.register_implementation("late", LateBucket, clobber=True)


@dataclass
class Actor:
    """A server or a site: commands one after the other, each called again until it has ended well."""

    name: str
    commands: list[list[str]]
    process: int | None = None
    writer: subprocess.Popen | None = None  # of its log
    tries: int = 0
    was_killed: bool = False
    errors: list[str] = field(default_factory=list)

    @property
    def is_done(self):
        """Whether nothing is left to do."""
        return not self.commands

    def step(self, home):
        """Look after the process; start the next where none runs."""
        if self.process is not None:
            ended, status = os.waitpid(self.process, os.WNOHANG)
            if not ended:
                return
            self.process, code = None, os.waitstatus_to_exitcode(status)
            self.writer.wait()
            if code == 0:
                self.commands.pop(0)
                self.tries = 0
            elif not self.was_killed:
                said = (home / f"{self.name}.log").read_text(errors="replace").strip().splitlines()
                self.errors.append(re.sub(r"/\S*/", "", f"{code}: {said[-1] if said else ''}")[:300])  # without folders
            self.was_killed = False
        if self.commands:
            self.tries += 1
            if self.tries > N_TRIES:
                raise TimeoutError(f"{self.name}: {self.commands[0]} ended {N_TRIES} times: {self.errors[-3:]}")
            self.process, self.writer = fork(self.commands[0], home, self.name)

    def end(self):
        """Kill what is left."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
            self.writer.wait()


def fork(command, home, name):
    """Run a command of the library in a process of its own; return its number, and the process that writes its log.

    What it says goes through a pipe, since the log is to be written whatever befalls it.
    """
    with (home / f"{name}.log").open("ab") as log:
        writer = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=log, start_new_session=True)
    process = os.fork()
    if process:
        writer.stdin.close()
        return process, writer
    code = 70
    try:
        os.setsid()
        os.dup2(writer.stdin.fileno(), 1)
        os.dup2(writer.stdin.fileno(), 2)
        writer.stdin.close()
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        os.chdir(home)
        clock = home / "clock"
        time.time = lambda: REAL_TIME() + float(clock.read_text() if clock.exists() else 0.0)
        sys.path.insert(0, str(home))
        sys.argv = ["consilience", *command]
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def kill(actor):
    """Kill the process of an actor, which has no say in it."""
    with suppress(ProcessLookupError):
        os.kill(actor.process, signal.SIGKILL)
        actor.was_killed = True


def prepare(kind, home):
    """Write what every site has: its model, its data, its code and its keys."""
    (home / "keys").mkdir(parents=True)
    (home / "chaos_code.py").write_text(CODE)
    write_certificates(home)
    for site in SITES:
        write_key(home, f"{site}.key", home / "keys")
        (home / "keys" / f"{site}.key.pub").rename(home / "keys" / f"{site}.pub")
    if kind.startswith("masked"):
        write_keys(home / "signing", SITES)
    if kind in ("models", "rounds", "em", "masked em"):
        write_sites(home, SITES)
        for seed, site in enumerate(SITES):
            np.save(home / f"{site}.npy", rows(seed))
    elif kind == "masked sum":
        for seed, site in enumerate(SITES):
            rng = np.random.default_rng(seed)
            X = rng.normal(size=(50, 3))
            y = X @ [1.0, -2.0, 0.5] + rng.normal(size=50)
            cs.save(Ridge(alpha=0.5).fit(X, y), home / site, data=(X, y))
    else:
        fusion, data = SPECIMENS[kind]()
        for site, one in zip(SITES, fusion.inputs, strict=True):
            if kind == "choose":
                cs.save(cs.describe(network_sites.own(site), network_sites.SITES[site]), home / site)
            elif kind in ("head", "gram", "chain"):
                cs.save(network_sites.own(site), home / site, symmetry=network_sites.fused().network.symmetry)
            else:
                cs.save(one.value, home / site)
            own = data[site]
            if isinstance(own, tuple):
                np.savez(home / f"{site}.npz", x=own[0], y=own[1])
            else:
                np.save(home / f"{site}.npy", own)
    if kind == "masked em":
        cs.save(cs.fuse([home / site for site in SITES]).model, home / "expected")


def actors(kind, transport, home, seconds):
    """Return the server and the sites of a case."""
    if transport == "flower":
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            place = f"flower://127.0.0.1:{found.getsockname()[1]}"
    else:
        place = "place" if transport == "folder" else f"late://{home}/place"
    if transport == "folder":
        for site in SITES:  # a folder of its own, that a courier brings to the server's
            (home / f"at-{site}").mkdir()
            (home / f"at-{site}" / "server").symlink_to(home / "place" / "server")
    is_masked, then = kind.startswith("masked"), REQUESTS.get(kind, "em:2" if kind == "masked em" else None)
    return [
        Actor("server", [server_command(kind, is_masked, then, transport, place, seconds)]),
        *(
            Actor(site, site_commands(kind, is_masked, then, transport, own_place(transport, place, site), site, home))
            for site in SITES
        ),
    ]


def own_place(transport, place, site):
    """Return the place as a site sees it."""
    return f"at-{site}" if transport == "folder" else place


def bring_files(home):
    """Bring what sites have put into their folders to the server's, late: announcements before what they announce."""
    for site in SITES:
        source, target = home / f"at-{site}" / "sites" / site, home / "place" / "sites" / site
        if not (source.is_dir() and target.is_dir()):
            continue
        for path in source.iterdir():
            is_announcement = "-" in path.name
            if path.name.startswith(".") or (target / path.name).exists():
                continue
            if path.stat().st_mtime < REAL_TIME() - (0.5 if is_announcement else 1.0) * LATE:
                shutil.copyfile(path, target / path.name)


def server_command(kind, is_masked, then, transport, place, seconds):
    """Return the command of the server."""
    told = ["--site-keys", "keys", "--certificates", "."] if transport == "flower" else []
    if is_masked:
        expected = "expected" if kind == "masked em" else "a"
        command = ["round", "masked", place, "--signing-keys", "signing/public", "--expect", expected]
        told += ["--quorum", "3"]
    elif transport == "flower":
        command = ["round", "flower", "--address", place.removeprefix("flower://"), "--quorum", "3"]
    else:
        command = ["round", "open", place, "--sites", ",".join(SITES), "--quorum", "3"]
    if kind in ("head", "gram", "chain"):
        told += ["--method", "consensus"]
    if kind == "choose":
        told += ["--module", "chaos_code:make", "--set", "n_inputs=200", "--set", "steps=20", "--method", "auto"]
    if kind == "rounds":
        told += ["--rounds", "3", "--tolerance", "0"]
    told += [] if then is None else ["--then", then]
    return [*command, *told, "-o", "fused", "--deadline", str(seconds), "--poll", "0.1"]


def site_commands(kind, is_masked, then, transport, place, site, home):
    """Return the commands of a site: it sends, answers what is asked, and fetches the model."""
    told = ["--timeout", str(SECONDS)]
    told += ["--key", f"{site}.key", "--root-certificates", "ca.crt"] if transport == "flower" else ["--site", site]
    if is_masked:
        told += ["--signing-key", f"signing/{site}.key", "--signing-keys", "signing/public"]
    data = next(iter(home.glob(f"{site}.np[yz]")), None)
    options = {
        "head": ["--module", "chaos_code:make"],
        "gram": ["--module", "chaos_code:make"],
        "chain": ["--module", f"chaos_code:{site}"],
        "density": ["--density", "chaos_code:log_density"],
        "choose": ["--held-out", f"{site}.npz", "--module", "chaos_code:make", "--own", site],
    }.get(kind, [])
    receive = ["--receive", f"{site}.back"]
    follow = [] if is_masked else ["--follow"]
    answer = ["round", "answer", place, *told, "--data", str(data), *options, *follow, *receive]
    if kind == "rounds":
        return [["round", "send", "--to", place, *told, "--refine", f"chaos_code:refine_{site}", *receive]]
    if kind == "masked em":
        return [answer]
    beside = ["--description", f"{site}.description.safetensors"] if kind == "choose" else []
    send = ["round", "send", site, "--to", place, *told, *beside]
    return [[*send, *receive]] if then is None else [send, answer]


@dataclass
class Trouble:
    """What befalls the processes of a round, at random moments."""

    seed: int
    kills: int = 8  # of the server and of sites, every second one of the server
    full_disks: int = 2  # for a second each, of one process
    clocks: tuple[float, ...] = (90_000.0, -90_000.0, 0.0)  # seconds by which the wall clock is put on, in turn
    pause: float = 0.6  # seconds between two events, on average

    @classmethod
    def over(cls, transport, seed):
        """Return trouble as a transport takes it: Flower's server starts in seconds."""
        return cls(seed, kills=6, pause=3.0) if transport == "flower" else cls(seed)

    def events(self):
        """Return the events in their order, with the pause before each."""
        rng = random.Random(self.seed)  # noqa: S311
        events = [("kill server" if n % 2 == 0 else "kill site", None) for n in range(self.kills)]
        events += [("full disk", None)] * self.full_disks
        rng.shuffle(events)
        for n, offset in enumerate(self.clocks):
            events.insert((n + 1) * len(events) // (len(self.clocks) + 1), ("clock", offset))
        return [(rng.uniform(0.0, 2.0 * self.pause), rng.random(), *event) for event in events]


@dataclass
class Outcome:
    """What came of a case."""

    kind: str
    transport: str
    seconds: float
    events: dict[str, int]
    errors: dict[str, list[str]]  # what commands said that ended with an error, by actor; they were called again
    lost: str | None  # why there is no model, or not the same at all ends
    partial: list[str] = field(default_factory=list)  # names of what is left half-written

    def to_json(self):
        """Return JSON values."""
        return asdict(self)


def run(kind, transport, home, trouble=None, seconds=SECONDS):
    """Play a case in a folder; return what came of it, and the content of the model."""
    prepare(kind, home)
    everyone, happened = actors(kind, transport, home, seconds), dict[str, int]()
    started, lost = time.monotonic(), None
    events = [] if trouble is None else trouble.events()
    rng = random.Random(0 if trouble is None else trouble.seed)  # noqa: S311
    due = time.monotonic() + (events[0][0] if events else 0)
    restore = []
    try:
        while not all(actor.is_done for actor in everyone):
            for actor in everyone:
                actor.step(home)
            if transport == "folder":
                bring_files(home)
            for until, process, limits in [one for one in restore if one[0] < time.monotonic()]:
                restore.remove((until, process, limits))
                with suppress(ProcessLookupError, PermissionError):
                    resource.prlimit(process, resource.RLIMIT_FSIZE, limits)
            if events and time.monotonic() > due:
                _, _, what, offset = events.pop(0)
                due = time.monotonic() + (events[0][0] if events else 0)
                if befall(what, offset, everyone, home, rng, restore):
                    happened[what] = happened.get(what, 0) + 1
            if time.monotonic() - started > seconds:
                raise TimeoutError(f"not over after {seconds:g} s: {[one.name for one in everyone if not one.is_done]}")
            time.sleep(0.02)
    except TimeoutError as error:
        lost = str(error)
    finally:
        for actor in everyone:
            actor.end()
    contents = {name: content(home / name, kind) for name in ("fused", *(f"{site}.back" for site in SITES))}
    if lost is None and len(set(contents.values())) != 1:
        lost = f"not the same at all ends: { {name: (one or b'').hex()[:8] for name, one in contents.items()} }"
    errors = {actor.name: actor.errors for actor in everyone if actor.errors}
    partial = sorted(path.name for path in home.rglob("*.partial"))
    outcome = Outcome(kind, transport, round(time.monotonic() - started, 1), happened, errors, lost, partial)
    return outcome, contents["fused"]


def befall(what, offset, everyone, home, rng, restore):
    """Let an event happen; return whether there was anybody whom it could befall."""
    server, *sites = everyone
    at_work = [one for one in sites if one.process is not None]
    if what == "clock":
        (home / ".clock").write_text(str(offset))
        (home / ".clock").replace(home / "clock")
        return True
    if what == "kill server" or not at_work:
        actor = server
    else:
        actor = rng.choice(at_work if what == "kill site" else [server, *at_work])
    if actor.process is None:
        return False
    if what == "full disk":
        limits = resource.prlimit(actor.process, resource.RLIMIT_FSIZE)
        resource.prlimit(actor.process, resource.RLIMIT_FSIZE, (0, limits[1]))
        restore.append((time.monotonic() + 1.5, actor.process, limits))
    else:
        kill(actor)
    return True


def content(path, kind):
    """Return the digest of a model's bytes; under masks of its numbers, since every sum has a random name."""
    if not path.exists():
        return None
    if not kind.startswith("masked"):
        return sha256(path.read_bytes()).digest()
    with safe_open(path, "numpy") as file:
        return sha256(
            b"".join(name.encode() + file.get_tensor(name).tobytes() for name in sorted(file.keys()))
        ).digest()
