"""Packed sites: their components as columns, their names, and the digests of the files they came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.files.safetensors_file import TensorHeader
from consilience.posteriors.columns import ComponentColumns, ShardSchema

DIGEST_BYTES = 32
"""Bytes of a SHA-256."""


@dataclass(frozen=True, eq=False)
class PackedSites:
    """The sites of a packed file, or some of them.

    Parameters
    ----------
    components : ComponentColumns
        Their components.
    names : tuple of str of length J
        The sites' names.
    digests : ndarray of uint8 of shape (J, 32)
        SHA-256 of the files they were packed from; zeros where there was none.
    """

    components: ComponentColumns
    names: tuple[str, ...]
    digests: NDArray[np.uint8]


@dataclass(frozen=True)
class ShardSummary:
    """What the header of a shard states.

    Parameters
    ----------
    kind : ShardSchema
        What its sites share.
    n_sites : int
        Number J of sites.
    n_components : int, optional
        Number L of components; None where only the sites say how many they have (Parquet).
    groups : tuple of int
        Number of sites in each row group, for Parquet; one group otherwise.
    header : TensorHeader, optional
        What the header of a safetensors file says of its tensors.
    """

    kind: ShardSchema
    n_sites: int
    n_components: int | None
    groups: tuple[int, ...] = field(default=())
    header: TensorHeader | None = None


def column_problems(packed: PackedSites) -> Iterator[str]:
    """Yield how columns do not fit one another in shape or type, a line each."""
    components = packed.components
    total, size = int(components.offsets[-1]), components.kind.family.size
    if components.natural.shape != (total, size) or components.natural.dtype not in (np.float32, np.float64):
        natural = components.natural
        yield f"natural parameters are {natural.dtype} {natural.shape}, expected float ({total}, {size})"
    for name, values in (("counts", components.counts), ("weights", components.weights)):
        if values is not None and (values.shape != (total,) or values.dtype != np.float64):
            yield f"{name} are {values.dtype} {values.shape}, expected float64 ({total},)"
    if components.prior is not None and (components.prior.dtype != np.float64 or components.prior.shape not in (
        (size,), (components.n_sites, size),
    )):  # fmt: skip
        expected = f"({size},) or ({components.n_sites}, {size})"
        yield f"prior is {components.prior.dtype} {components.prior.shape}, expected float64 {expected}"
    for name, (_axes, rule, _lengths) in components.kind.attached.items():
        ragged, length = components.attached[name], int(components.attached_starts[name][-1])
        arrays = {"values": ragged.values, "precision": ragged.precision}
        if (rule == "precision-mean") != (ragged.precision is not None):
            yield f"attached array {name!r} must have a precision exactly when its rule is 'precision-mean'"
        for part, values in arrays.items():
            if values is not None and (values.shape != (length,) or values.dtype != np.float64):
                yield f"attached array {name!r} has {part} {values.dtype} {values.shape}, expected float64 ({length},)"
    if packed.digests.dtype != np.uint8:
        yield f"digests are {packed.digests.dtype}, expected uint8"
    if len(packed.names) != components.n_sites or packed.digests.shape != (components.n_sites, DIGEST_BYTES):
        yield f"has {len(packed.names)} names and digests {packed.digests.shape} for {components.n_sites} sites"


def site_names(names: Any, first: int, end: int) -> tuple[str, ...]:
    """Return the names of sites `first` to `end`; made up where a file has none."""
    if names is None:
        return tuple(f"site {i}" for i in range(first, end))
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError("names are not a list of texts")
    return tuple(names[first:end])


def site_digests(digests: Any, count: int) -> NDArray[np.uint8]:
    """Return digests (J, 32); zeros where a file has none."""
    return np.zeros((count, DIGEST_BYTES), dtype=np.uint8) if digests is None else np.asarray(digests)
