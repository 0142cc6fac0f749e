"""State dicts with entries of every kind, for laws that fusions in memory and merges of files keep."""

import torch

INF, NAN = float("inf"), float("nan")


def real(dtype=torch.float32):
    return lambda draw: torch.randn(3, 4, generator=draw).to(dtype)


def complex_numbers(dtype, shape=(3, 4)):
    return lambda draw: torch.randn(shape, generator=draw, dtype=torch.complex64).to(dtype)


CONSTANTS = {
    "causal mask": torch.triu(torch.full((4, 4), -INF), 1),
    "mask of bfloat16": torch.triu(torch.full((4, 4), -INF), 1).bfloat16(),
    "mask with slopes": torch.tensor([[0.0, -INF], [-0.5, 0.0]]),
    "bounds": torch.tensor([-INF, INF]),
    "padding": torch.tensor([1.0, NAN]),
    "scalar": torch.tensor(INF),
    "complex infinity": torch.tensor([complex(INF, 1.0)]),
    "truth values": torch.tensor([True, False]),
    "indices": torch.arange(6).reshape(2, 3),
    "small integers": torch.tensor([[3, -4]], dtype=torch.int8),
    "no entries": torch.zeros(0, dtype=torch.int64),
}
"""Entries that have no mean."""

ENTRIES = {
    "float32": real(),
    "float64": real(torch.float64),
    "float16": real(torch.float16),
    "bfloat16": real(torch.bfloat16),
    "complex64": complex_numbers(torch.complex64),
    "complex vector": complex_numbers(torch.complex64, (5,)),
    "complex scalar": complex_numbers(torch.complex64, ()),
    "counter": lambda draw: torch.randint(0, 900, (), generator=draw),
} | {name: lambda _, values=values: values.clone() for name, values in CONSTANTS.items()}
"""Entries by kind: what a site has, drawn with its generator."""


def state(kind, seed):
    """Return a state dict with an entry of a kind beside a weight."""
    draw = torch.Generator().manual_seed(seed)
    name = "norm.num_batches_tracked" if kind == "counter" else "entry"
    return {"weight": torch.randn(4, 3, generator=draw), name: ENTRIES[kind](draw)}


def same_bits(a, b):
    """Return whether two tensors are equal to the bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(*(values.contiguous().reshape(-1).view(torch.uint8) for values in (a, b)))
