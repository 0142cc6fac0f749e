"""The commands of a round over a folder, as people give them."""

import json
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE

import numpy as np
import pytest
from click.testing import CliRunner

from consilience.cli.commands import cli
from consilience.errors import InputError, OptionError
from consilience.federated import RoundError, answer_folder
from tests.cli.running import COMMAND, ENVIRONMENT
from tests.federated.rounds import rows, write_sites

OPEN = ["round", "open", "round", "-o", "fused.safetensors"]
SEND = ["round", "send", "--to", "round", "--early"]
SITES = ["--sites", "a,b,c", "--deadline", "0.4", "--poll", "0.05", "--method", "kmeans"]


@pytest.fixture
def room(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_sites(tmp_path, "abc")
    return tmp_path


def run(*arguments):
    """Return how the command ended."""
    return CliRunner().invoke(cli, [str(one) for one in arguments], standalone_mode=False)


def done(*arguments):
    """Return what the command wrote, which went well."""
    found = run(*arguments)
    assert found.exception is None, found.exception
    return found.output


def test_sites_send_and_the_server_fuses(room):
    for site in "abc":
        assert f"sent {site} as attempt 1" in done(*SEND, site, "--site", site)
    assert "had sent a as attempt 1" in done(*SEND, "a", "--site", "a")
    out = done(*OPEN, *SITES, "--report", "page.html", "--weights", "a=2,b=1,c=1")
    assert "took part: a (weight 2), b (weight 1), c (weight 1)" in out
    assert "wrote fused.safetensors and fused.round.json" in out
    assert (room / "page.html").exists()
    assert json.loads((room / "fused.round.json").read_text())["took_part"][0]["weight"] == 2.0
    assert "method kmeans" in done("inspect", "fused.safetensors") or (room / "fused.safetensors").exists()


@pytest.mark.slow
def test_a_site_waits_for_the_fused_model(room):
    for site in "bc":
        done(*SEND, site, "--site", site)
    told = (*SEND, "a", "--site", "a", "--receive", "back", "--timeout", "60")
    # In a process of its own: two commands in one would write to each other's output.
    waiting = subprocess.Popen([*COMMAND, *told], env=ENVIRONMENT, text=True, stdout=subprocess.PIPE)
    while not (room / "round" / "sites" / "a").exists():
        assert waiting.poll() is None
    done(*OPEN, "--sites", "a,b,c", "--poll", 0.05, "--method", "kmeans", "--quiet")
    output = waiting.communicate(timeout=60)[0]
    assert waiting.returncode == 0
    assert "3 of 3 sites took part; wrote back" in output
    assert (room / "back").read_bytes() == (room / "fused.safetensors").read_bytes()


def test_a_round_that_fails_says_who_was_missing(room):
    done(*SEND, "a", "--site", "a")
    found = run(*OPEN, *SITES)
    assert isinstance(found.exception, RoundError)
    assert "sent nothing: b, c" in found.exception.problems
    assert {problem.code for problem in found.exception.problems} == {"E-ROUND"}
    assert str(found.exception).count("[E-ROUND]") == 1
    assert str(found.exception).endswith("[E-ROUND]")
    assert json.loads((room / "fused.round.json").read_text())["missing"] == ["b", "c"]
    assert not (room / "fused.safetensors").exists()


def test_a_recipe_says_how(room):
    (room / "recipe.yaml").write_text("method: kmeans\noptions: {n_components: 2}\nseed: 3\n")
    for site in "abc":
        done(*SEND, site, "--site", site, "--quiet")
    done(*OPEN, *SITES[:-2], "--recipe", "recipe.yaml", "--set", "min_count=2")
    assert json.loads((room / "fused.round.json").read_text())["seed"] == 3
    (room / "models.yaml").write_text("models: [a, b]\n")
    with pytest.raises(OptionError, match="no more"):
        raise run(*OPEN, *SITES, "--recipe", "models.yaml").exception


def test_a_site_refines_in_rounds(room, monkeypatch):
    monkeypatch.syspath_prepend(str(room))
    (room / "own.py").write_text("def a(fused, number):\n    return 'a'\nvalue = 1\n")
    found = run("round", "send", "--refine", "own:value", "--to", "round", "--site", "a")
    assert isinstance(found.exception, OptionError)
    assert "expected what can be called" in str(found.exception)


def test_what_is_wrong_is_said_in_a_line(room):
    assert isinstance(run(*OPEN, "--sites", "a,b", "--weights", "a").exception, OptionError)
    (room / "bad").write_bytes(b"nothing")
    assert isinstance(run("round", "send", "bad", "--to", "round", "--site", "a").exception, InputError)


@pytest.mark.slow
def test_a_request_that_nobody_answers_fails_and_the_same_command_asks_it_again(room):
    for seed, site in enumerate("abc"):
        done(*SEND, site, "--site", site)
        np.save(f"{site}.npy", rows(seed))
    told = (*OPEN, "--sites", "a,b,c", "--then", "em:1", "--poll", "0.05")

    def ask():
        process = subprocess.Popen([*COMMAND, *told], env=ENVIRONMENT, text=True, stdout=PIPE, stderr=PIPE)
        place = room / "round" / "server" / "2"
        while not (place / "request.safetensors").exists() or (place / "round.json").exists():
            assert process.poll() is None
        return process

    asking = ask()
    asking.send_signal(signal.SIGUSR1)  # closes it as the deadline would
    output, trouble = asking.communicate(timeout=60)
    assert asking.returncode == 1
    assert output == "fused.safetensors is the model before that\n"
    assert "sent nothing: a, b, c" in trouble
    assert trouble.endswith("0 good answers, and the round needs 2; the model stays as it was [E-ROUND]\n")
    before = (room / "fused.safetensors").read_bytes()
    asking = ask()
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(answer_folder, "round", site, f"{site}.npy", timeout=60) for site in "abc"]
        assert [len(one.result()) for one in answers] == [1, 1, 1]
    assert "3 of 3 sites answered" in asking.communicate(timeout=60)[0]
    assert asking.returncode == 0
    assert (room / "fused.safetensors").read_bytes() != before
    assert not (room / "fused.safetensors.work").exists()
    assert "3 of 3 sites answered" in done(*told)  # it has ended: the same lines again
