"""The second message about networks between real processes, over Flower with TLS and keys."""

from contextlib import ExitStack

import numpy as np
import pytest

import consilience as cs
from tests.end_to_end.pki import write_certificates, write_key
from tests.end_to_end.test_federated import free_port, listening, running
from tests.federated.network_sites import SITES, fused, make

MODULE = """from torch import nn


def make():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
"""


@pytest.mark.slow
@pytest.mark.alone
def test_heads_become_exact_over_flower(tmp_path):
    (tmp_path / "keys").mkdir()
    (tmp_path / "nets.py").write_text(MODULE)
    write_certificates(tmp_path)
    for site, network in zip(SITES, fused().inputs, strict=True):
        cs.save(fused()._rebuild(network.network), tmp_path / site, symmetry=fused().network.symmetry)
        np.savez(tmp_path / f"{site}.npz", x=SITES[site][0], y=SITES[site][1])
        write_key(tmp_path, f"{site}.key", tmp_path / "keys")
    for path in (tmp_path / "keys").glob("*.key.pub"):
        path.rename(path.with_name(path.name.replace(".key.pub", ".pub")))
    port = free_port()
    address = f"127.0.0.1:{port}"
    serve = ["serve", "--flower", "--address", address, "--certificates", tmp_path, "--site-keys", tmp_path / "keys"]
    serve += [
        "-o",
        "fused.safetensors",
        "--method",
        "consensus",
        "--deadline",
        "120",
        "--poll",
        "0.1",
        "--then",
        "head",
    ]
    known = ["--flower", address, "--root-certificates", "ca.crt", "--timeout", "240"]
    with ExitStack() as stack:
        server = stack.enter_context(running(*serve, cwd=tmp_path))
        listening(port)
        for site in SITES:
            sent = stack.enter_context(running("send", site, *known, "--key", f"{site}.key", cwd=tmp_path))
            assert sent.wait(240) == 0, sent.stderr.read()
        answers = [
            stack.enter_context(
                running(
                    "answer", *known, "--key", f"{site}.key", "--data", f"{site}.npz", "--module", "nets:make",
                    "--follow", cwd=tmp_path,
                )
            )
            for site in SITES
        ]  # fmt: skip
        _, err = server.communicate(timeout=240)
        assert server.returncode == 0, err
        for process in answers:
            text, trouble = process.communicate(timeout=120)
            assert process.returncode == 0, trouble
            assert "answered 1 requests" in text
    own = cs.fuse({site: cs.load(tmp_path / site) for site in SITES}, method="consensus")
    expected = cs.federated.exchange("head", own, SITES, module=make).network.arrays["4.weight"]
    found = cs.load(tmp_path / "fused.safetensors").arrays["4.weight"]
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-6)
