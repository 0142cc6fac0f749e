"""Second messages between real processes, over Flower with TLS and keys: networks and posterior draws."""

from contextlib import ExitStack

import numpy as np
import pytest

import consilience as cs
from tests.end_to_end.pki import write_certificates, write_key
from tests.end_to_end.test_federated import free_port, listening, running
from tests.federated.network_sites import SITES, fused, make, own
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


def over_flower(room, then, n_requests, answer_options, *serve_options):
    """Send the file of every site in a room, answer all requests, and return nothing before all have ended."""
    (room / "keys").mkdir()
    write_certificates(room)
    for site in SITES:
        write_key(room, f"{site}.key", room / "keys")
    for path in (room / "keys").glob("*.key.pub"):
        path.rename(path.with_name(path.name.replace(".key.pub", ".pub")))
    port = free_port()
    address = f"127.0.0.1:{port}"
    serve = ["serve", "--flower", "--address", address, "--certificates", room, "--site-keys", room / "keys"]
    serve += ["-o", "fused.safetensors", "--deadline", "120", "--poll", "0.1", "--then", then, *serve_options]
    known = ["--flower", address, "--root-certificates", "ca.crt", "--timeout", "240"]
    with ExitStack() as stack:
        server = stack.enter_context(running(*serve, cwd=room))
        listening(port)
        for site in SITES:
            sent = stack.enter_context(running("send", site, *known, "--key", f"{site}.key", cwd=room))
            assert sent.wait(240) == 0, sent.stderr.read()
        answers = [
            stack.enter_context(
                running("answer", *known, "--key", f"{site}.key", *answer_options(site), "--follow", cwd=room)
            )
            for site in SITES
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
