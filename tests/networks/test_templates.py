"""Modules that a function makes, wherever one is taken: seeded weights, and the caller's random numbers untouched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.torch_modules import make_template


def _make() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path in paths:
        cs.save(_make(), path)
    return paths


def test_neither_fusing_nor_evaluating_moves_torchs_generator(files: list[Path]) -> None:
    inputs, labels = np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0])
    before = torch.random.get_rng_state()
    fusion = cs.fuse(files, method="ot", module=_make, example=torch.zeros(1, 4))
    cs.evaluate(fusion, files[0], inputs, labels, module=_make)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_function_makes_the_same_weights_each_time() -> None:
    first, second = make_template(_make), make_template(_make)
    assert first is not None
    assert second is not None
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("argument", [5, lambda: 5])
def test_what_is_no_module_and_makes_none_is_refused(files: list[Path], argument: object) -> None:
    with pytest.raises(cs.ConsilienceError, match="module: expected a torch module or a function that makes one"):
        cs.fuse(files, method="ot", module=argument, example=torch.zeros(1, 4))
    with pytest.raises(cs.ConsilienceError, match="module: expected a torch module or a function that makes one"):
        cs.evaluate(*files, np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0]), module=argument)


def test_generators_of_accelerators_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    make_template(_make)
    assert seeds == []
