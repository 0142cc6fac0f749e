"""``check`` says every problem, and ``fuse`` refuses what it cannot calculate with: no exception of another library."""

import contextlib

import numpy as np
import pytest

import consilience as cs
from consilience.api.kinds import kind_of_file
from consilience.errors import InputError
from consilience.federated.check import check_files
from consilience.files.safetensors_file import SafetensorsFile
from tests.fuzz import mutants

KINDS = ("wishart", "topics", "joint", "point", "known", "network", "bayesian", "statistics", "sums", "draws")


def extreme(content, value):
    """Return a file of which one number of each tensor is extreme."""
    header, document, data = mutants.taken_apart(content)
    numbers = bytearray(data)
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in ("F64", "F32"):
            start = entry["data_offsets"][0]
            written = np.array([value], np.float64 if entry["dtype"] == "F64" else np.float32).tobytes()
            numbers[start : start + len(written)] = written
    return mutants.put_together(header, document, bytes(numbers))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("value", [1e308, -1e308, 1e155, 5e-324, 0.0, -1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_extreme_numbers_are_refused_by_check_and_by_fuse(tmp_path, kind, value):
    honest, changed = tmp_path / "honest.safetensors", tmp_path / "changed.safetensors"
    honest.write_bytes(mutants.seeds()[kind])
    with np.errstate(all="ignore"):
        changed.write_bytes(extreme(mutants.seeds()[kind], value))
    method = "average" if kind in ("network", "bayesian") else None  # the default needs a module
    problems = cs.check([honest, changed], method)
    check_files(SafetensorsFile(changed))
    with contextlib.suppress(InputError):
        fusion = cs.fuse([honest, changed], method)
        assert problems == []
        fusion.save(tmp_path / "fused.safetensors")


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("x"), np.linalg.LinAlgError("Singular matrix")])
def test_check_and_rounds_say_what_nobody_foresaw(tmp_path, monkeypatch, error):
    path = tmp_path / "a.safetensors"
    path.write_bytes(mutants.seeds()["wishart"])
    kind = type(kind_of_file(SafetensorsFile(path)))

    def fail(*_arguments, **_keywords):
        raise error

    monkeypatch.setattr(kind, "prepare", fail)
    monkeypatch.setattr(kind, "site_facts", fail)
    (problem,) = cs.check([path, path])
    assert problem.code == "E-FAULT"
    assert type(error).__name__ in problem
    (refusal,) = check_files(SafetensorsFile(path)).problems
    assert str(error) in refusal
