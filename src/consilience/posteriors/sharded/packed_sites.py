"""Sites as they stand in a packed file, whatever its form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.posteriors.columns import Block, Kind

DIGEST = 32
"""Bytes of a SHA-256."""


@dataclass(frozen=True, eq=False)
class Packed:
    """Sites as they stand in a file.

    Parameters
    ----------
    block
        Their components.
    names
        What the sites are called.
    digests
        SHA-256 of their files (J, 32); zeros where there was none.
    """

    block: Block
    names: tuple[str, ...]
    digests: NDArray[np.uint8]


@dataclass(frozen=True)
class ShardSummary:
    """What the header of a shard says.

    Parameters
    ----------
    kind
        What its sites share.
    n_sites, n_components
        Numbers of sites J and components L; L is None where only the sites say how many they have.
    groups
        Number of sites in each row group, for Parquet; one group otherwise.
    """

    kind: Kind
    n_sites: int
    n_components: int | None
    groups: tuple[int, ...] = field(default=())


def misfits(packed: Packed) -> Iterator[str]:
    """Say how arrays do not fit one another."""
    block = packed.block
    total, size = int(block.offsets[-1]), block.kind.family.size
    if block.natural.shape != (total, size) or block.natural.dtype not in (np.float32, np.float64):
        yield f"natural parameters are {block.natural.dtype} {block.natural.shape}, expected float ({total}, {size})"
    for name, values in (("counts", block.counts), ("weights", block.weights)):
        if values is not None and (values.shape != (total,) or values.dtype != np.float64):
            yield f"{name} are {values.dtype} {values.shape}, expected float64 ({total},)"
    if block.prior is not None and (block.prior.dtype != np.float64 or block.prior.shape not in (
        (size,), (block.n_sites, size),
    )):  # fmt: skip
        expected = f"({size},) or ({block.n_sites}, {size})"
        yield f"prior is {block.prior.dtype} {block.prior.shape}, expected float64 {expected}"
    for name, (_axes, rule, _lengths) in block.kind.attached.items():
        ragged, length = block.attached[name], int(block.attached_starts[name][-1])
        arrays = {"values": ragged.values, "precision": ragged.precision}
        if (rule == "precision-mean") != (ragged.precision is not None):
            yield f"attached array {name!r} must have a precision exactly when its rule is 'precision-mean'"
        for what, values in arrays.items():
            if values is not None and (values.shape != (length,) or values.dtype != np.float64):
                yield f"attached array {name!r} has {what} {values.dtype} {values.shape}, expected float64 ({length},)"
    if packed.digests.dtype != np.uint8:
        yield f"digests are {packed.digests.dtype}, expected uint8"
    if len(packed.names) != block.n_sites or packed.digests.shape != (block.n_sites, DIGEST):
        yield f"has {len(packed.names)} names and digests {packed.digests.shape} for {block.n_sites} sites"


def site_names(names: Any, first: int, end: int) -> tuple[str, ...]:
    """Return the names of some sites; made up where a file has none."""
    if names is None:
        return tuple(f"site {i}" for i in range(first, end))
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError("names are not a list of texts")
    return tuple(names[first:end])


def site_digests(digests: Any, count: int) -> NDArray[np.uint8]:
    """Return digests (J, 32); zeros where a file has none."""
    return np.zeros((count, DIGEST), dtype=np.uint8) if digests is None else np.asarray(digests)
