"""The command where networks are merged by what data say of their parameters."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import consilience as cs
from tests.cli.some_nets import MODULE, SITES, TRACED

KNOWN = ("one.fisher.safetensors", "two.fisher.safetensors")


@pytest.fixture
def informed(nets, folder, command):
    """Files of the Fisher information of the two sites' networks."""
    rng = np.random.default_rng(0)
    for number, (site, path) in enumerate(zip(SITES, KNOWN, strict=True)):
        np.save(folder / f"{number}.npy", rng.normal(size=(120, 6)).astype(np.float32))
        options = ("--kind", "factors", "--rank", "20", "--prior-precision", "0.5")
        done = command("network", "fisher", site, *MODULE, "--data", f"{number}.npy", "-o", path, *options)
        assert (done.code, done.err) == (0, "")
        assert done.out.splitlines() == [
            f"Fisher information of {site}: diagonal and 20 factors, 120 observations",
            f"wrote {path}",
        ]
    return nets


@pytest.mark.parametrize("method", ["fisher", "ssf"])
def test_files_of_information_go_with_those_of_networks(informed, folder, command, method):
    done = command("fuse", *KNOWN, *SITES, "--method", method, "-o", "fused", "--report", "fused.html")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[1] == f"2 networks, units as they are numbered (method {method})"
    assert any(line.startswith("merged as they are") and "prior removed, shrinkage 0.9" in line for line in lines)
    fusion = cs.fuse(SITES, method, fishers=KNOWN)
    for key, values in load_file(folder / "fused").items():
        assert np.array_equal(values.numpy(), fusion.network.arrays[key])
    page = (folder / "fused.html").read_text()
    assert "What the sites' data say" in page.replace("&#39;", "'")
    assert "diagonal and 20 factors" in page
    assert "not proved" not in page
    done = command("report", "fused", "-o", "again.html")
    assert "diagonal and 20 factors" in (folder / "again.html").read_text()


def test_units_are_aligned_first_where_a_module_tells_which_move(informed, command):
    done = command("fuse", *SITES, *KNOWN, "--method", "fisher", *TRACED, "-o", "fused")
    assert (done.code, done.err) == (0, "")
    assert "2 networks with 17 units each in 2 groups -> 17 units (method fisher)" in done.out
    assert "merged with units aligned, low_rank" in done.out
    assert command("check", *SITES, *KNOWN, "--method", "fisher").out == "ok: 2 models can be fused\n"


def test_information_that_comes_along_decides_nothing_by_itself(informed, folder, command):
    assert command("fuse", *SITES, *KNOWN, "-o", "fused").code == 0
    assert command("fuse", *SITES, "--method", "average", "-o", "again").code == 0
    one, two = (load_file(folder / name) for name in ("fused", "again"))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_what_is_known_of_a_network_is_inspected_from_the_header(informed, command):
    done = command("inspect", KNOWN[0])
    assert (done.code, done.err) == (0, "")
    assert "diagonal and 20 factors; categorical likelihood, exact" in done.out
    assert "120, 120 of them looked at" in done.out
    document = json.loads(command("inspect", KNOWN[0], "--json").out)
    assert (document["kind"], document["rank"], document["header"]["prior_precision"]) == ("fisher", 20, 0.5)


def test_the_diagonal_and_drawn_outcomes_may_be_asked_for(informed, folder, command):
    options = ("--n-draws", "3", "--n-observations", "1200", "--seed", "4", "--quiet")
    done = command("network", "fisher", SITES[0], *MODULE, "--data", "0.npy", "-o", "known", *options)
    assert (done.code, done.out, done.err) == (0, "", "")
    information = cs.load(folder / "known")
    assert (information.kind, information.samples) == ("diagonal", 3)
    assert (information.observations, information.seen) == (1200.0, 120)
    module = informed.make_mlp()
    module.load_state_dict(load_file(SITES[0]))
    inputs = torch.from_numpy(np.load("0.npy"))
    again = cs.fisher(module, inputs, n_draws=3, n_observations=1200, rng=4)
    assert all(np.allclose(information.residual[key], values) for key, values in again.residual.items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("network", "fisher", SITES[0], *MODULE, "--data", "0.npy", "-o", "x", "--min-count", "121"),
            "give at least 121",
        ),
        (("network", "fisher", SITES[0], *MODULE, "--data", "0.npy", "-o", "0.npy"), "0.npy: is read here"),
        (("network", "fisher", KNOWN[0], *MODULE, "--data", "0.npy", "-o", "x"), "expected a network"),
        (("network", "fisher", SITES[0], *MODULE, "--data", "missing.npy", "-o", "x"), "missing.npy"),
        (("fuse", *SITES, KNOWN[0], "--method", "fisher", "-o", "x"), "two.safetensors: no file of Fisher"),
        (("fuse", *SITES, "--method", "ssf", "-o", "x"), "needs `fishers="),
        (("fuse", *KNOWN, "--method", "fisher", "-o", "x"), "give the networks too"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(informed, folder, command, arguments, message):
    done = command(*arguments)
    assert done.code == 1
    assert any(message in line for line in done.complaints()), done.err
    assert not (folder / "x").exists()
