"""Numbers in 64 bits become bfloat16 in one rounding, also where a first rounding would end on a tie."""

import numpy as np
import pytest
import torch

from consilience.checkpoints.numbers import FLOAT_TYPES


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
