"""The commands and rounds on draws: fuse, check, inspect, evaluate, report, methods, send and serve."""

import json

import numpy as np
import pytest

import consilience as cs
from tests.cli.running import command
from tests.draws.sites import gaussian_sites
from tests.draws.test_containers import write_cmdstan


@pytest.fixture
def sites(tmp_path):
    made, mean, covariance = gaussian_sites(3, n_observations=100)
    paths = [tmp_path / f"{name}.safetensors" for name in "abc"]
    for path, site in zip(paths, made, strict=True):
        cs.save(site, path)
    return [str(path) for path in paths], mean, covariance


def test_files_are_fused_checked_inspected_evaluated_and_reported(sites, tmp_path):
    files, mean, covariance = sites
    fused, page, again = (tmp_path / name for name in ("fused.safetensors", "page.html", "again.html"))
    done = command("fuse", *files, "-o", str(fused), "--report", str(page))
    assert done.code == 0, done.err
    assert "3 subposteriors of 3 parameters combined by gaussian_product" in done.out
    assert "beta[0]" in done.out
    deviation = np.sqrt(np.diagonal(covariance))
    found = cs.load(fused).variables["beta"].mean(axis=(0, 1))
    np.testing.assert_allclose((found - mean) / deviation, 0.0, atol=0.1)
    assert "3 models can be fused" in command("check", *files).out
    inspected = command("inspect", str(fused)).out
    for text in ("What this file tells about people", "beta (3,) real", "prior:       to the power 1", "fused by:"):
        assert text in inspected
    evaluated = command("evaluate", str(fused), files[0], "--data", str(fused), "--json").out
    assert json.loads(evaluated)["scores"][0]["name"] == "Wasserstein distance"
    assert {one["kind"] for one in json.loads(evaluated)["scores"]} == {"distance to reference draws"}
    np.savez(tmp_path / "reference.npz", beta=np.zeros((2, 200, 2)))
    refused = command("evaluate", str(fused), files[0], "--data", str(tmp_path / "reference.npz"))
    assert "reference.npz: has arrays, expected a file of draws of the posterior of all data" in refused.err
    assert command("report", str(fused), *files, "-o", str(again)).code == 0
    for text in (
        "Forest plots",
        "Densities by site",
        "The fused posterior",
        "Largest R-hat",
        "What it tells about people",
    ):
        assert text in again.read_text()
        assert text in page.read_text()
    wrong = command("report", str(fused), str(page), "-o", str(tmp_path / "no.html"))
    assert wrong.code != 0
    assert "Traceback" not in wrong.err


def test_cmdstan_files_go_into_the_command_as_they_are(tmp_path):
    for site, chain in (("lund", 1), ("lund", 2), ("oslo", 1), ("oslo", 2)):
        write_cmdstan(tmp_path / f"{site}_{chain}.csv", chain, seed=ord(site[0]))
    files = sorted(map(str, tmp_path.glob("*.csv")))
    options = ["--set", "prior=0.5", "--set", "constraints={S: covariance}"]
    assert "2 models can be fused" in command("check", *files, *options).out
    done = command("fuse", *files, "-o", str(tmp_path / "fused.safetensors"), *options)
    assert done.code == 0, done.err
    fused = cs.load(tmp_path / "fused.safetensors")
    assert np.all(np.linalg.eigvalsh(fused.variables["S"]) > 0)
    unstated = command("fuse", *files, "-o", str(tmp_path / "no.safetensors"))
    assert unstated.code == 1
    assert "does not say what of the prior its draws hold" in unstated.err
    assert "Traceback" not in unstated.err
    missing = command("fuse", str(tmp_path / "nowhere_1.csv"), files[0], "-o", str(tmp_path / "no.safetensors"))
    assert missing.code == 1
    assert "nowhere_1.csv: cannot be read" in missing.err
    assert not (tmp_path / "no.safetensors").exists()
    refused = command("fuse", *files, "-o", str(tmp_path / "no.safetensors"), "--target-width", "a=3")
    assert "for networks only" in refused.err


def test_a_folder_of_draws_is_fused(sites, tmp_path):
    files, *_ = sites
    assert cs.check(tmp_path) == []
    fusion = cs.fuse(str(tmp_path / "*.safetensors"))
    assert [site.name for site in fusion.inputs] == ["a", "b", "c"]
    with pytest.raises(cs.ConsilienceError, match=r"draws|posterior"):
        cs.pack(tmp_path, tmp_path / "packed")
    assert len(files) == 3


def test_other_files_beside_draws_are_named(sites, tmp_path):
    from sklearn.cluster import KMeans

    files, *_ = sites
    cs.save(KMeans(2, n_init=1, random_state=0).fit(np.arange(20.0)[:, None]), tmp_path / "other.safetensors")
    done = command("check", *files, str(tmp_path / "other.safetensors"))
    assert done.code == 1
    assert "other.safetensors: is a posterior file, expected a draws file" in done.err


def test_methods_are_listed(sites):
    done = command("methods", "consensus_mc").out
    assert done.startswith("consensus_mc: posterior draws\n\n  does:           average draws weighted")
    assert "covariance=full" in done
    assert len(sites) == 3


def test_a_round_fuses_what_sites_send_and_leaves_out_who_sends_another_model(sites, tmp_path):
    _, mean, covariance = sites
    other = cs.Draws({"gamma": np.random.default_rng(0).normal(size=(2, 500))}, prior=1 / 3)
    cs.save(other, tmp_path / "d.safetensors")
    folder = tmp_path / "round"
    for name in "abcd":
        cs.federated.send_folder(tmp_path / f"{name}.safetensors", folder, name)
    report = cs.federated.serve_folder(
        folder, tmp_path / "fused.safetensors", sites=["a", "b", "c", "d"], deadline=1.0, poll=0.05
    ).report
    (rejected,) = report.left_out
    assert rejected.site == "d"
    assert "its variables is not that of 3 of 4 contributions" in str(rejected.reasons)
    found = cs.load(tmp_path / "fused.safetensors").variables["beta"].mean(axis=(0, 1))
    np.testing.assert_allclose((found - mean) / np.sqrt(np.diagonal(covariance)), 0.0, atol=0.1)


def test_a_site_of_few_observations_sends_nothing(tmp_path):
    draws = cs.Draws({"beta": np.random.default_rng(0).normal(size=(2, 500))}, prior=0.5, n_observations=3)
    cs.save(draws, tmp_path / "a.safetensors")
    with pytest.raises(cs.errors.InputError, match="is about 3 observations, fewer than 5: nothing may leave"):
        cs.federated.send_folder(tmp_path / "a.safetensors", tmp_path / "round", "a")


def test_draws_are_evaluated_by_held_out_rows_and_by_reference_draws():
    sites, mean, covariance = gaussian_sites(4, seed=3)
    fusion = cs.fuse(sites)
    rng = np.random.default_rng(0)
    reference = {"beta": rng.multivariate_normal(mean, covariance, size=(2, 2000))}
    by_reference = cs.evaluate(fusion, sites[0], reference)
    first = by_reference.scores[0]
    assert first.fused < 0.1 < first.own
    rows = rng.multivariate_normal(mean, 0.1 * np.eye(3), size=200)

    def log_likelihood(draws):
        return -0.5 * np.sum((rows - draws["beta"][:, None]) ** 2, axis=2) / 0.1 - 1.5 * np.log(2 * np.pi * 0.1)

    by_rows = cs.evaluate(fusion, sites[0], log_likelihood)
    density = np.log(np.mean(np.exp(log_likelihood({"beta": fusion.draws.variables["beta"][0]})), axis=0))
    np.testing.assert_allclose(by_rows.scores[0].fused, density.mean(), rtol=1e-9)
    assert by_rows.better == "fused"
    assert "nats" in str(by_rows)
    with pytest.raises(cs.errors.InputError, match=r"gave log-likelihoods of shape \(3,\)"):
        cs.evaluate(fusion, sites[0], lambda draws: np.zeros(3))
    with pytest.raises(cs.errors.InputError, match="has the variables beta, expected gamma as in the reference"):
        cs.evaluate(fusion, sites[0], {"gamma": rng.normal(size=(2, 500))})
    with pytest.raises(cs.errors.OptionError, match="labels"):
        cs.evaluate(fusion, sites[0], reference, labels=[1])
