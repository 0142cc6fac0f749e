"""Numbers in 64 bits become bfloat16 in one rounding, also where a first rounding would end on a tie."""

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.checkpoints.methods.task_vectors import TIES
from consilience.checkpoints.numbers import FLOAT_TYPES
from tests.checkpoints.some_checkpoints import write


def patterns(seed):
    """Return numbers at, above and below ties of bfloat16, and any others."""
    rng = np.random.default_rng(seed)
    upper = rng.integers(0, 2**16, 50_000).astype(np.uint32) << 16
    with np.errstate(over="ignore", invalid="ignore"):
        ties = (upper | 0x8000).view(np.float32).astype(np.float64)
        near = ties * (1 + rng.choice([0.0, 2.0**-52, -(2.0**-52), 1e-12, -1e-12, 1e-9], len(ties)))
    others = rng.normal(size=50_000) * 10.0 ** rng.integers(-40, 38, 50_000)
    values = np.concatenate([near, others])
    return values[np.isfinite(values)]


@pytest.mark.parametrize("seed", range(3))
def test_a_number_is_rounded_once(seed):
    values = patterns(seed)
    out = np.empty(2 * len(values), dtype=np.uint8)
    FLOAT_TYPES["BF16"].encode(values.copy(), out)
    found = torch.from_numpy(out).view(torch.bfloat16).double().numpy()
    # The two neighbours in bfloat16 around a value, from its pattern in 64 bits: the nearer one, of two the even one.
    single = values.astype(np.float32).view(np.uint32)
    below = (single & 0xFFFF0000).astype(np.uint32)
    grid = np.stack([below + np.uint32(step << 16) for step in (0, 1)])
    lower = below - np.uint32(1 << 16)
    near = np.stack([lower.view(np.float32), *(row.view(np.float32) for row in grid)]).astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.where(np.isfinite(near) & (np.sign(near) * np.sign(values) >= 0), np.abs(near - values), np.inf)
    is_inside = np.abs(values) < 3e38
    assert np.all(np.abs(found - values)[is_inside] == distance.min(axis=0)[is_inside])
    is_tie = np.sum(distance == distance.min(axis=0), axis=0) > 1
    even = (found.astype(np.float32).view(np.uint32) >> 16) % 2 == 0
    assert np.all(even[is_tie & is_inside])
    assert np.count_nonzero(is_tie & is_inside) > 1000


def awkward_models(kind, count, seed=0, n=30_000):
    """Return a start and its changes in bfloat16: with ties, equal masses, cancellation, or numbers of any size."""
    draw = torch.Generator().manual_seed(seed)
    start = torch.randn(n, generator=draw)
    if kind == "few bits":
        changes = [torch.randint(-3, 4, (n,), generator=draw) / 128 for _ in range(count)]
        start = torch.randint(-40, 41, (n,), generator=draw) / 16
    elif kind == "cancelling":
        changes = [-start * (1 + torch.randint(-2, 3, (n,), generator=draw) / 256) for _ in range(count)]
    elif kind == "any size":
        start = start * 10.0 ** torch.randint(-38, 37, (n,), generator=draw)
        changes = [start * torch.randn(n, generator=draw) for _ in range(count)]
    else:
        changes = [0.1 * torch.randn(n, generator=draw) for _ in range(count)]
    return [{"w": values.bfloat16()} for values in (start, *(start + change for change in changes))]


@pytest.mark.parametrize("kind", ["normal", "few bits", "cancelling", "any size"])
@pytest.mark.parametrize(
    ("count", "options"),
    [(1, {}), (2, {"density": 1.0}), (3, {"density": 0.4}), (3, {"weights": [0.3, 0.5, 0.2], "density": 0.7}),
     (4, {"weights": [1, -1, 0.5, 2], "normalize": False, "scaling": 0.3}), (5, {"density": 1.0, "scaling": 0.5})],
)  # fmt: skip
def test_ties_in_32_bits_is_ties_in_64(tmp_path, monkeypatch, kind, count, options):
    states = awkward_models(kind, count)
    base, *models = (write(tmp_path / str(number), state) for number, state in enumerate(states))
    merges_in_single = []
    for is_single in (True, False):
        monkeypatch.setattr(TIES, "merges_in_single", is_single)
        done = cs.merge(models, tmp_path / f"out {is_single}", "ties", base=base, **options)
        merges_in_single.append((done.output / "model.safetensors").read_bytes())
    assert merges_in_single[0] == merges_in_single[1]
