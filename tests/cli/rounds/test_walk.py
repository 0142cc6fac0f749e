"""An operator and two sites go by the page alone: its commands, in order, as processes in folders of their own."""

import re
import shlex
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import consilience as cs
from tests.cli.running import COMMAND, ENVIRONMENT
from tests.federated.rounds import mixture, rows

PAGES = Path(__file__).parents[3] / "docs/sites"
SECONDS = 120


def commands_of(page, section):
    """Return the commands of rounds in a section of a page, as words."""
    text = re.split(rf"^## {section}\n", (PAGES / page).read_text(), flags=re.MULTILINE)[1].split("\n## ")[0]
    lines = re.sub(r" \\\n\s+", " ", text).splitlines()
    found = [shlex.split(line) for line in lines if line.startswith("    consilience round ")]
    return [words for words in found if not any("://" in word for word in words)]


@contextmanager
def started(words, folder):
    """Start a command of the page; what it started ends with the block."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([*COMMAND, *words[1:]], cwd=folder, env=ENVIRONMENT, text=True, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process):
    """Return what a command printed, which went well."""
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    return out


def appears(path):
    """Wait for a file."""
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


@pytest.fixture
def room(tmp_path):
    """The operator's folder, those of two sites with a model and rows, and a folder that all reach."""
    for name in ("server", "lund", "oslo", "shared"):
        (tmp_path / name).mkdir()
    for seed, site in enumerate(("lund", "oslo")):
        cs.save(mixture(seed), tmp_path / site / "mixture.safetensors")
        np.savetxt(tmp_path / site / "rows.csv", rows(seed), delimiter=",")
    return tmp_path


def words_here(room, words):
    """Return a command of the page with the shared folder of this test."""
    return [word.replace("/mnt/shared", str(room / "shared")) for word in words]


@pytest.mark.slow
def test_a_round_by_the_page_alone(room):
    check, opening, status, waiting, sending, fetching = (
        words_here(room, words) for words in commands_of("rounds.md", "The same as commands")
    )
    assert [words[2] for words in (check, opening, status)] == ["check", "open", "status"]
    assert [words[2] for words in (waiting, sending, fetching)] == ["send", "send", "fetch"]
    with ExitStack() as stack:
        run = lambda words, who: stack.enter_context(started(words, room / who))  # noqa: E731
        assert ended(run(check, "server")).endswith("ok: the round can be opened\n")
        server = run(opening, "server")
        appears(room / "shared/round-7/server/plan.json")
        appears(room / "server/fused.round.json")
        assert "missing: lund, oslo\n" in ended(run(status, "server"))
        lund = run(waiting, "lund")
        assert "sent mixture.safetensors as attempt 1" in ended(run(sending, "oslo"))
        assert "took part: lund, oslo\n" in ended(run(fetching, "oslo"))
        assert "2 of 2 sites took part; wrote fused.safetensors" in ended(lund)
        assert "wrote fused.safetensors and fused.round.json" in ended(server)
        assert "is over\n" in ended(run(status, "server"))
    fused = {(room / name / "fused.safetensors").read_bytes() for name in ("server", "lund", "oslo")}
    assert len(fused) == 1


FITS = """import numpy as np
from sklearn.mixture import BayesianGaussianMixture


def refine(fused, number):
    return BayesianGaussianMixture(n_components=3, random_state=number).fit(np.loadtxt("rows.csv", delimiter=","))
"""


@pytest.mark.slow
def test_several_rounds_by_the_page_alone(room):
    opening, sending = (words_here(room, words) for words in commands_of("requests.md", "Several rounds"))
    assert [words[2] for words in (opening, sending)] == ["open", "send"]
    with ExitStack() as stack:
        server = stack.enter_context(started(opening, room / "server"))
        sites = []
        for site in ("lund", "oslo"):
            (room / site / "fits.py").write_text(FITS)
            words = [word.replace("lund", site) for word in sending]
            sites.append(stack.enter_context(started(words, room / site)))
        said = [re.search(r"took part in ([23]) rounds; wrote fused\.safetensors", ended(site)) for site in sites]
        assert all(said)
        assert f"round {said[0][1]} closed (all sites in): 2 of 2 sites took part" in ended(server)
    fused = {(room / name / "fused.safetensors").read_bytes() for name in ("server", "lund", "oslo")}
    assert len(fused) == 1


def blocks_of(page):
    """Return the blocks of commands of a page."""
    text = "\n" + (PAGES / page).read_text()
    return [match[0].replace("\n    ", "\n").strip() for match in re.finditer(r"(?:\n    [^\n]+)+", text)]


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs OpenSSL and OpenSSH")
def test_flower_by_the_page_alone(room):
    authority, key, round_ = blocks_of("flower.md")[:3]
    assert authority.startswith("openssl")

    def shell(text, who):
        subprocess.run(["/bin/bash", "-ec", text], cwd=room / who, check=True, capture_output=True)

    def here(text):
        return text.replace("fusion.example.org", "localhost").replace("8000", str(port))

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shell(here(authority), "server")
    for name in ("keys", "tls"):
        (room / "server" / name).mkdir()
    for name in ("server.crt", "server.key"):
        (room / "server" / name).rename(room / "server/tls" / name)
    for site in ("lund", "oslo"):
        shell(key.replace("lund", site), site)
        (room / site / f"{site}.pub").rename(room / "server/keys" / f"{site}.pub")
        shutil.copy(room / "server/ca.crt", room / site)
    opening, sending = (shlex.split(one) for one in here(round_).replace("\\\n", " ").split("\n"))
    with ExitStack() as stack:
        server = stack.enter_context(started(opening, room / "server"))
        sites = [
            stack.enter_context(started([word.replace("lund", site) for word in sending], room / site))
            for site in ("lund", "oslo")
        ]
        assert all("2 of 2 sites took part; wrote fused.safetensors" in ended(site) for site in sites)
        assert "wrote fused.safetensors and fused.round.json" in ended(server)
    fused = {(room / name / "fused.safetensors").read_bytes() for name in ("server", "lund", "oslo")}
    assert len(fused) == 1


@pytest.mark.slow
def test_requests_by_the_page_alone(room):
    opening, sending, answering = (
        words_here(room, words) for words in commands_of("requests.md", "Requests that follow")
    )
    assert [words[2] for words in (opening, sending, answering)] == ["open", "send", "answer"]
    with ExitStack() as stack:
        server = stack.enter_context(started(opening, room / "server"))
        answers = []
        for site in ("lund", "oslo"):
            send, answer = ([word.replace("lund", site) for word in words] for words in (sending, answering))
            ended(stack.enter_context(started(send, room / site)))
            answers.append(stack.enter_context(started(answer, room / site)))
        assert all("answered 3 requests; wrote fused.safetensors" in ended(answer) for answer in answers)
        assert "round 4 (request em 3 of 3) closed (all sites in): 2 of 2 sites answered" in ended(server)
    fused = {(room / name / "fused.safetensors").read_bytes() for name in ("server", "lund", "oslo")}
    assert len(fused) == 1
