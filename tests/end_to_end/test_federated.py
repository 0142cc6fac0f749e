"""A round between real processes over loopback: Flower with TLS and keys, and sites that do what sites do."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

import consilience as cs
from consilience.errors import InputError, OptionError
from tests.end_to_end.pki import write_certificates, write_key
from tests.federated.rounds import digest, write_sites

COMMAND = [sys.executable, "-m", "consilience"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
SITES = ("ada", "bell", "corrupt", "curie", "killed")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def to(address):
    return ["--to", f"flower://{address}"]


@contextmanager
def running(*arguments, cwd):
    """Start the command; it and all it started are gone at the end."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def room(tmp_path):
    """A folder with certificates, keys of the sites and of one that is unknown, and their files."""
    (tmp_path / "keys").mkdir()
    write_certificates(tmp_path)
    for site in SITES:
        write_key(tmp_path, f"{site}.key")
        write_key(tmp_path, site, tmp_path / "keys")
    write_key(tmp_path, "mallory")
    (tmp_path / "files").mkdir()
    write_sites(tmp_path / "files", [*SITES, "mallory"])
    return tmp_path


OTHERS = """
import sys
from contextlib import contextmanager
from pathlib import Path
import consilience.federated.folder.site as site
from consilience.federated import flower_place, send_folder
from consilience.files.safetensors_file import SafetensorsFile

@contextmanager
def unchecked(file, *_):
    yield [SafetensorsFile(Path(file))], ()

def told(name, file, key, authority="ca.crt"):
    try:
        with flower_place(sys.argv[1], key=key, root_certificates=authority, timeout=120) as place:
            sent = send_folder(file, place, place.site)
        print(f"{name}={sent.announcement.attempt}", flush=True)
    except site.InputError as error:
        print(f"{name}={error}", flush=True)

told("curie", "files/curie", "curie")
told("curie again", "files/curie", "curie")
told("mallory", "files/mallory", "mallory")
told("deceived", "files/killed", "killed", "elsewhere/ca.crt")
site.sendable_files = unchecked  # a site that does not check what it sends
told("corrupt", "corrupt.bin", "corrupt")
"""


@contextmanager
def script(text, *arguments, cwd):
    """Start a script; it is gone at the end."""
    command = [sys.executable, "-c", text, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=cwd, env=ENVIRONMENT, text=True, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def listening(port):
    """Wait until somebody listens."""
    ends = time.monotonic() + 120
    while time.monotonic() < ends:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise TimeoutError(port)


def until(process, text):
    """Read the log of a process up to a line with a text."""
    lines = []
    while not lines or text not in lines[-1]:
        lines.append(process.stderr.readline())
        assert lines[-1], "".join(lines)


def children_of(*markers):
    """Return the processes whose command line or environment have all of these."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            told = path.read_bytes() + (path.parent / "environ").read_bytes()
            if all(marker.encode() in told for marker in markers):
                found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.alone
def test_a_round_over_flower_takes_the_good_sites_and_tells_the_truth(room):
    port = free_port()
    address = f"127.0.0.1:{port}"
    serve = ["round", "flower", "--address", address, "--certificates", room, "--site-keys", room / "keys"]
    serve += ["-o", "fused.safetensors", "--deadline", "50", "--quorum", "3", "--poll", "0.2"]

    def send(site, *more):
        told = ["round", "send", room / "files" / site, *to(address), "--root-certificates", room / "ca.crt"]
        return running(*told, "--key", room / site, "--timeout", "200", *more, cwd=room)

    (room / "corrupt.bin").write_bytes((room / "files" / "corrupt").read_bytes()[:-40])
    (room / "elsewhere").mkdir()
    write_certificates(room / "elsewhere")
    with ExitStack() as stack:
        killed = stack.enter_context(send("killed"))
        os.killpg(killed.pid, signal.SIGKILL)  # before it has sent anything
        waiting = {site: stack.enter_context(send(site, "--receive", f"{site}.back")) for site in ("ada", "bell")}
        others = stack.enter_context(script(OTHERS, address, cwd=room))
        server = stack.enter_context(running(*serve, cwd=room))
        listening(port)
        refused = plain_requests(port, room / "ca.crt")
        out, err = server.communicate(timeout=300)
        assert server.returncode == 0, err
        for site, process in waiting.items():
            assert process.wait(120) == 0, f"{site}: {process.stderr.read()}"
        told, trouble = others.communicate(timeout=300)
        assert others.returncode == 0, trouble
    found = dict(line.split("=", 1) for line in told.splitlines())
    assert (found["curie"], found["curie again"], found["corrupt"]) == ("1", "1", "1")  # the attempts
    assert "refused this site" in found["mallory"]
    assert "CERTIFICATE_VERIFY_FAILED" in found["deceived"]  # which sends nothing to a server that may be another's
    good = ["ada", "bell", "curie"]
    before = Path.cwd()
    try:
        os.chdir(room / "files")
        cs.fuse(good).save(room / "directly")
    finally:
        os.chdir(before)
    fused = (room / "fused.safetensors").read_bytes()
    assert fused == (room / "directly").read_bytes()
    assert fused == (room / "ada.back").read_bytes() == (room / "bell.back").read_bytes()
    report = json.loads((room / "fused.round.json").read_text())
    assert [one["site"] for one in report["took_part"]] == good
    assert {one["sha256"] for one in report["took_part"]} == {digest(room / "files" / site) for site in good}
    assert report["missing"] == ["killed"]
    assert [(one["site"], one["attempt"]) for one in report["left_out"]] == [("corrupt", 1)]
    assert "truncated or not a safetensors file" in report["left_out"][0]["reasons"][0]
    assert len(report["unknown"]) == 1
    assert report["unknown"][0].startswith("key-")
    assert report["closed"] == "deadline"
    assert report["fused"]["sha256"] == digest(room / "fused.safetensors")
    assert "3 of 5 sites took part" in out
    assert refused == {"/": 404, "/v1/control/register-node": 404, "/v1/fleet/register-node": 404, "large": 413}
    assert children_of(str(room)) == []
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def plain_requests(port, certificate):
    """Return how the server answers to what no site asks."""
    import httpx

    verify = ssl.create_default_context(cafile=str(certificate))
    found = {}
    with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=verify) as client:
        for path in ("/", "/v1/control/register-node", "/v1/fleet/register-node"):
            found[path] = client.post(path, content=b"x").status_code
        found["large"] = client.post("/v1/fleet/push-object", content=bytes(8 * 2**20)).status_code
    return found


@pytest.mark.slow
@pytest.mark.alone
def test_a_server_that_was_killed_goes_on_with_sites_that_wait(room):
    port = free_port()
    address = f"127.0.0.1:{port}"
    serve = ["round", "flower", "--address", address, "--certificates", room, "--site-keys", room / "keys"]
    serve += [
        "-o",
        "fused.safetensors",
        "--deadline",
        "60",
        "--poll",
        "0.2",
        "--sites",
        "ada,bell",
        "--method",
        "kmeans",
    ]

    def send(site):
        told = ["round", "send", room / "files" / site, *to(address), "--root-certificates", room / "ca.crt"]
        return running(*told, "--key", room / site, "--timeout", "200", "--receive", f"{site}.back", cwd=room)

    with send("ada") as ada:
        with running(*serve, cwd=room) as server:
            until(server, "ada: is in")
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
        ends = time.monotonic() + 60
        while children_of("consilience.federated.flower.link", str(room)) and time.monotonic() < ends:
            time.sleep(0.1)
        assert children_of("consilience.federated.flower.link", str(room)) == []
        assert ada.poll() is None
        with running(*serve, cwd=room) as server, send("bell") as bell:
            out, err = server.communicate(timeout=300)
            assert server.returncode == 0, err
            assert "going on with round 1" in err
            assert bell.wait(120) == 0
        assert ada.wait(20) == 0, ada.stderr.read()
    fused = (room / "fused.safetensors").read_bytes()
    assert fused == (room / "ada.back").read_bytes() == (room / "bell.back").read_bytes()
    assert "2 of 2 sites took part" in out


@pytest.mark.slow
@pytest.mark.alone
def test_a_site_that_sent_without_waiting_fetches_while_the_server_runs(room):
    address = f"127.0.0.1:{free_port()}"
    serve = ["round", "flower", "--address", address, "--insecure", "--site-keys", room / "keys", "--sites", "ada,bell"]
    serve += ["-o", "fused.safetensors", "--deadline", "60", "--poll", "0.2", "--method", "kmeans"]
    known = ["--insecure", "--timeout", "100", "--key"]

    def send(site):
        return running("round", "send", room / "files" / site, *to(address), *known, room / site, cwd=room)

    fetch = ["round", "fetch", f"flower://{address}", "-o", "ada.back", *known, room / "ada"]
    with running(*serve, cwd=room) as server:
        listening(int(address.partition(":")[2]))
        with send("ada") as ada:
            assert ada.wait(100) == 0, ada.stderr.read()
        with running("round", "status", "-o", "fused.safetensors", cwd=room) as status:
            out, err = status.communicate(timeout=100)
            assert (status.returncode, "is open\n" in out, "missing: bell\n" in out) == (0, True, True), err
        with running(*fetch, cwd=room) as waiting, send("bell"):
            out, err = waiting.communicate(timeout=100)
            assert waiting.returncode == 0, err
        assert "took part: ada, bell\n" in out
        assert server.wait(100) == 0, server.stderr.read()
    assert (room / "ada.back").read_bytes() == (room / "fused.safetensors").read_bytes()
    with running(*fetch, cwd=room) as late:
        _, err = late.communicate(timeout=100)
        assert late.returncode == 1
        assert "no server runs there" in err
    with running("round", "status", "-o", "fused.safetensors", cwd=room) as status:
        assert "is over\n" in status.communicate(timeout=100)[0]


REFINE = """import numpy as np
from sklearn.mixture import BayesianGaussianMixture


def refine_of(seed):
    def refine(fused, number):
        rng = np.random.default_rng([seed, number])
        rows = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])[rng.integers(3, size=90)] + rng.normal(size=(90, 2))
        start = {} if fused is None else {"random_state": int(fused.natural.shape[0])}
        return BayesianGaussianMixture(n_components=3, **{"random_state": number, **start}).fit(rows)
    return refine


ada, bell = refine_of(1), refine_of(2)
"""


@pytest.mark.slow
@pytest.mark.alone
def test_several_rounds_over_flower_are_those_in_a_folder(room):
    """A server that is killed between two rounds, and a site that is killed and called again."""
    (room / "fits.py").write_text(REFINE)
    fits = {}
    exec(REFINE, fits)  # noqa: S102  (the same functions, here)
    place = room / "round"
    taking = [
        threading.Thread(target=cs.federated.take_part, args=(place, site, fits[site]), kwargs={"timeout": 60})
        for site in ("ada", "bell")
    ]
    for one in taking:
        one.start()
    told = {"sites": ["ada", "bell"], "rounds": 3, "tolerance": 0.0, "deadline": 60, "poll": 0.05, "method": "kmeans"}
    cs.federated.serve_folder(place, room / "expected.safetensors", **told)
    for one in taking:
        one.join()
    address = f"127.0.0.1:{free_port()}"
    serve = ["round", "flower", "--address", address, "--certificates", room, "--site-keys", room / "keys"]
    serve += ["--sites", "ada,bell", "--rounds", "3", "--tolerance", "0", "--deadline", "120", "--poll", "0.1"]
    serve += ["--method", "kmeans", "-o", "fused.safetensors"]

    def take_part(site):
        told = ["round", "send", "--refine", f"fits:{site}", *to(address), "--root-certificates", room / "ca.crt"]
        return running(*told, "--key", room / site, "--timeout", "100", "--receive", f"{site}.back", cwd=room)

    with take_part("ada") as ada:
        with running(*serve, cwd=room) as server, take_part("bell") as bell:
            until(server, "round 2: waiting")
            os.killpg(bell.pid, signal.SIGKILL)
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
        with running(*serve, cwd=room) as server, take_part("bell") as bell:
            out, err = server.communicate(timeout=300)
            assert server.returncode == 0, err
            for process in (ada, bell):
                assert process.wait(60) == 0, process.stderr.read()
                assert "took part in 3 rounds" in process.stdout.read()
    assert "2 of 2 sites took part" in out
    fused = (room / "fused.safetensors").read_bytes()
    assert fused == (room / "ada.back").read_bytes() == (room / "bell.back").read_bytes()
    assert fused == (room / "expected.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.alone
def test_a_port_that_is_taken_is_said_so(room):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match=r"(?i)address already in use"):
            cs.federated.serve_flower(
                f"127.0.0.1:{taken.getsockname()[1]}", room / "out", site_keys=room / "keys", certificates=room
            )
    assert children_of("consilience.federated.flower.link", str(room)) == []


@pytest.mark.slow
@pytest.mark.alone
def test_a_server_that_is_stopped_leaves_nothing_running(room):
    port = free_port()
    serve = ["round", "flower", "--address", f"127.0.0.1:{port}", "--insecure"]
    serve += ["--site-keys", room / "keys", "-o", "fused.safetensors", "--deadline", "60"]
    with running(*serve, cwd=room) as server:
        listening(port)
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=120)
        assert server.returncode == 130
        assert "--insecure: whoever is between" in err
    assert children_of(str(room)) == []


def test_a_round_over_flower_needs_keys_and_certificates(room):
    serve = cs.federated.serve_flower
    told = {"site_keys": room / "keys", "certificates": room}
    file = room / "files" / "ada"

    def reach(**options):
        with cs.federated.flower_place("127.0.0.1:1", **options):
            pass

    with pytest.raises(OptionError, match="certificates"):
        serve("127.0.0.1:1", room / "out", site_keys=room / "keys")
    with pytest.raises(OptionError, match="HOST:PORT"):
        serve("nowhere", room / "out", **told)
    with pytest.raises(InputError, match="no key of eve"):
        serve("127.0.0.1:1", room / "out", sites=["ada", "eve"], **told)
    with pytest.raises(InputError, match=r"server\.crt: there is no such file"):
        serve("127.0.0.1:1", room / "out", site_keys=room / "keys", certificates=room / "keys")
    with pytest.raises(InputError, match="holds 0 public keys"):
        serve("127.0.0.1:1", room / "out", site_keys=room / "files", certificates=room)
    (room / "keys" / "copy.pub").write_bytes((room / "keys" / "ada.pub").read_bytes())
    with pytest.raises(InputError, match="is the key of ada"):
        serve("127.0.0.1:1", room / "out", **told)
    with pytest.raises(OptionError, match="root_certificates"):
        reach(key=room / "ada")
    with pytest.raises(InputError, match="is no private key"):
        reach(key=file, root_certificates=room / "ca.crt", timeout=1)
    with pytest.raises(InputError, match="no server runs there"):
        reach(key=room / "ada.key", root_certificates=room / "ca.crt", waits=False)
