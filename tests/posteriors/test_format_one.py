"""Files of format 1 that were written when it became final: every later version reads them, to the last bit."""

import json
from pathlib import Path

import pytest

import consilience as cs
from consilience.posteriors.files import read_posterior, write_posterior

FOLDER = Path(__file__).parents[1] / "data" / "format-1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())

every_file = pytest.mark.parametrize("name", sorted(EXPECTED))


def test_every_file_is_expected():
    assert sorted(EXPECTED) == sorted(path.stem for path in FOLDER.glob("*.safetensors"))


@every_file
def test_what_was_written_is_read(name):
    found, expected = cs.load(FOLDER / f"{name}.safetensors"), EXPECTED[name]
    assert {"name": found.family.name, **found.family.config()} == expected["family"]
    assert found.source.get("kind") == expected["kind"]
    assert list(found.natural.shape) == expected["shape"]
    assert found.natural[0].tolist() == expected["natural"]
    assert (None if found.prior is None else found.prior.tolist()) == expected["prior"]
    assert (None if found.counts is None else found.counts.tolist()) == expected["counts"]
    assert (found.features.names and list(found.features.names)) == expected["names"]
    carried = {
        key: {"axes": list(a.axes), "rule": a.rule, "shape": list(a.values.shape), "sum": float(a.values.sum())}
        for key, a in found.attached.items()
    }
    assert carried == expected["attached"]


@every_file
def test_what_was_read_is_written_alike(name, tmp_path):
    posterior, provenance = read_posterior(FOLDER / f"{name}.safetensors")
    write_posterior(tmp_path / "again.safetensors", posterior, provenance)
    again, history = read_posterior(tmp_path / "again.safetensors")
    assert again.natural.tobytes() == posterior.natural.tobytes()
    assert history == provenance
    assert (provenance is None) == (name != "fused")


@every_file
def test_models_are_rebuilt(name):
    posterior = cs.load(FOLDER / f"{name}.safetensors")
    model = cs.rebuild(posterior)
    if posterior.source.get("kind") is not None:
        assert model is not posterior
        assert cs.describe(model).family == posterior.family
