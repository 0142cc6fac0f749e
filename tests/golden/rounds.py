"""Golden rounds in a folder, and golden files of the command."""

import sys
from unittest import mock

import numpy as np
import pytest

import consilience as cs
from consilience.cli import main
from tests.golden.networks import nets, symmetry_of
from tests.golden.posteriors import DIM, sites
from tests.golden.table import case, cases


def files_of_sites(folder):
    paths = {}
    for name, site in zip("abc", sites(cs.families.DiagonalGaussian(DIM)), strict=True):
        paths[name] = folder / f"{name}.safetensors"
        cs.save(site, paths[name])
    return paths


@cases("a round in a folder: {}", {"kl": "kl", "spahm": "spahm"})
def _round(folder, method):
    for name, path in files_of_sites(folder).items():
        cs.federated.send_folder(path, folder / "round", name)
    result = cs.federated.serve_folder(
        folder / "round", folder / "fused.safetensors", sites=["a", "b", "c"], method=method, deadline=60.0, poll=0.01
    )
    cs.federated.receive_folder(folder / "round", folder / "back.safetensors", timeout=60.0)
    return {"fused": result.fusion, "back": folder / "back.safetensors", "closed": result.report.closed}


def run(*words):
    """Run the command in this process."""
    told = ["consilience", *(str(word) for word in words)]
    with mock.patch.object(sys, "argv", told), mock.patch("signal.signal"), pytest.raises(SystemExit) as over:
        main()
    assert over.value.code == 0


@case("the command: posteriors")
def _command(folder):
    paths, fused = files_of_sites(folder), folder / "fused.safetensors"
    run("fuse", *paths.values(), "-o", fused, "--method", "kl", "--set", "n_components=4", "--weights", "2,1,1")
    run("pack", *paths.values(), "-o", folder / "packed", "--dtype", "float32")
    run("fuse", folder / "packed", "-o", folder / "of-shards.safetensors", "--method", "spahm", "--seed", "3")
    return {
        "fused": fused,
        "packed": next((folder / "packed").glob("*.safetensors")),
        "of shards": folder / "of-shards.safetensors",
    }


@case("the command: networks")
def _networks(folder):
    paths = []
    for number, net in enumerate(nets("dense")):
        paths.append(folder / f"net-{number}.safetensors")
        cs.save(net, paths[-1], symmetry=symmetry_of("dense"))
    found = {}
    for method in ("consensus", "wb"):
        found[method] = folder / f"{method}.safetensors"
        run("fuse", *paths, "-o", found[method], "--method", method, "--reference", "0")
    run("merge", *paths, "-o", folder / "merged.safetensors", "--weights", "1,2,1")
    return {**found, "merged": folder / "merged.safetensors"}


@case("evaluation of mixtures with labels")
def _evaluation(_folder):
    from sklearn.mixture import GaussianMixture

    from tests.golden.adapters import ROWS, mixtures

    models = [model for _, model in mixtures(GaussianMixture, "diag")]
    fusion = cs.fuse(models, n_observations=[200, 150, 300])
    truth = np.repeat(np.arange(4), 12)
    evaluation = cs.evaluate(fusion, models[0], ROWS, labels=truth)
    difference = evaluation.difference
    scores = np.array([[score.fused, score.own] for score in evaluation.scores])
    return {"scores": scores, "usage": evaluation.usage.fused, "mean": difference.mean, "better": evaluation.better}
