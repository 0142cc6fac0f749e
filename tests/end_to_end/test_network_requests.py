"""Second messages between real processes, over Flower with TLS and keys: networks and posterior draws."""

import json
from contextlib import ExitStack

import numpy as np
import pytest

import consilience as cs
from consilience.files.safetensors_file import SafetensorsFile
from tests.end_to_end.pki import write_certificates, write_key
from tests.end_to_end.test_federated import free_port, listening, running
from tests.federated.network_sites import SITES, fused, make, own, rows, trained
from tests.federated.request_kinds_zoo import poisson_density, subposteriors

MODULE = """from safetensors.torch import load_file
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
"""

DENSITY = """import numpy as np


def log_density(draws, rows):
    rate = draws["rate"]
    return (rows.sum() + 1 / 3) * np.log(rate) - (len(rows) + 1 / 3) * rate
"""


def over_flower(room, then, n_requests, answer_options, *serve_options, sites=tuple(SITES), send_options=()):
    """Send the file of every site in a room, answer all requests, and return nothing before all have ended."""
    (room / "keys").mkdir()
    write_certificates(room)
    for site in sites:
        write_key(room, f"{site}.key", room / "keys")
    for path in (room / "keys").glob("*.key.pub"):
        path.rename(path.with_name(path.name.replace(".key.pub", ".pub")))
    port = free_port()
    address = f"127.0.0.1:{port}"
    serve = ["round", "flower", "--address", address, "--certificates", room, "--site-keys", room / "keys"]
    serve += ["-o", "fused.safetensors", "--deadline", "120", "--poll", "0.1", "--then", then, *serve_options]
    known = [f"flower://{address}", "--root-certificates", "ca.crt", "--timeout", "240"]
    with ExitStack() as stack:
        server = stack.enter_context(running(*serve, cwd=room))
        listening(port)
        for site in sites:
            told = [one.format(site) for one in send_options]
            sent = stack.enter_context(
                running("round", "send", site, "--to", *known, "--key", f"{site}.key", *told, cwd=room)
            )
            assert sent.wait(240) == 0, sent.stderr.read()
        answers = [
            stack.enter_context(
                running("round", "answer", *known, "--key", f"{site}.key", *answer_options(site), "--follow", cwd=room)
            )
            for site in sites
        ]
        _, err = server.communicate(timeout=240)
        assert server.returncode == 0, err
        for process in answers:
            text, trouble = process.communicate(timeout=120)
            assert process.returncode == 0, trouble
            assert f"answered {n_requests} requests" in text


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(("then", "has_own_module"), [("head", False), ("gram:3", False), ("chain:3", True)])
def test_networks_are_refitted_over_flower(then, has_own_module, tmp_path):
    (tmp_path / "nets.py").write_text(MODULE)
    for site, (x, y) in SITES.items():
        cs.save(own(site), tmp_path / site, symmetry=fused().network.symmetry)
        np.savez(tmp_path / f"{site}.npz", x=x, y=y)
    kind, _, rounds = then.partition(":")

    def options(site):
        return ["--data", f"{site}.npz", "--module", f"nets:{site if has_own_module else 'make'}"]

    over_flower(tmp_path, then, int(rounds or 1), options, "--method", "consensus")
    again = cs.fuse({site: cs.load(tmp_path / site) for site in SITES}, method="consensus")
    modules = {site: own(site) if has_own_module else make for site in SITES}
    expected = cs.federated.exchange(kind, again, SITES, rounds=int(rounds or 1), module=modules).network.arrays
    found = cs.load(tmp_path / "fused.safetensors").arrays
    for name, values in expected.items():
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(values), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.alone
def test_five_sites_choose_over_flower_behind_an_exact_head(tmp_path):
    (tmp_path / "nets.py").write_text(MODULE)
    parts = {f"s{n}": cs.hold_out(*rows(20 + n, 300)) for n in range(5)}
    for n, (site, (train, held)) in enumerate(parts.items()):
        described = cs.describe(trained(n, *train), train, held_out=held)
        cs.save(described, tmp_path / site)
        for name, (x, y) in (("train", train), ("held", held)):
            np.savez(tmp_path / f"{site}.{name}.npz", x=x, y=y)

    def options(site):
        rows = ["--data", f"{site}.train.npz", "--held-out", f"{site}.held.npz"]
        return [*rows, "--module", "nets:make", "--own", site]

    settings = ["--module", "nets:make", "--set", "n_inputs=200", "--set", "steps=20", "--method", "auto"]
    send = ["--description", "{}.description.safetensors"]
    over_flower(tmp_path, "head,choose", 2, options, *settings, sites=tuple(parts), send_options=send)
    record = json.loads((tmp_path / "fused.round.json").read_text())
    assert record["request"]["kind"] == "choose"
    told = json.loads(SafetensorsFile(tmp_path / "fused.safetensors").header().text)["provenance"]["result"]["then"]
    assert told["behind"]["kind"] == "head"
    assert sorted(told["rounds"][0]["answers"]) == sorted(parts)


@pytest.mark.slow
@pytest.mark.alone
def test_draws_are_weighted_over_flower(tmp_path):
    fusion, data = subposteriors()
    (tmp_path / "model.py").write_text(DENSITY)
    for site in fusion.inputs:
        cs.save(site.value, tmp_path / site.name)
        np.save(tmp_path / f"{site.name}.npy", data[site.name])

    def options(site):
        return ["--data", f"{site}.npy", "--density", "model:log_density"]

    over_flower(tmp_path, "density:2", 2, options)
    expected = cs.federated.exchange("density", fusion, data, rounds=2, module=poisson_density).draws.variables["rate"]
    np.testing.assert_allclose(cs.load(tmp_path / "fused.safetensors").variables["rate"], expected)
