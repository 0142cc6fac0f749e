"""The public functions ``shards`` and ``pack``: opening and packing the posteriors of very many sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from consilience.core.progress import Progress, shown
from consilience.posteriors.sharded import packing
from consilience.posteriors.sharded.file import Form
from consilience.posteriors.sharded.shards import SHARD_BYTES, Shards, open_shards


def shards(where: Any, *, shard_bytes: int = SHARD_BYTES) -> Shards:
    """Return the posteriors of many sites as shards to fuse, known from their headers and not loaded.

    Parameters
    ----------
    where : str, Path, or sequence of these
        Packed shards or posterior files, not both: a path, a folder, a pattern such as ``sites/*.safetensors``, an
        address that fsspec opens (``s3://bucket/sites``), or a list of these.
    shard_bytes : int, optional
        Bytes of a shard, about; never less than one site. Default: `SHARD_BYTES`. The same input in the same shards
        gives the same result on every engine.

    Raises
    ------
    InputError
        For files that are missing, are neither, or do not go together.
    OptionError
        For a size that is not positive, and where an optional package is missing.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from consilience import Posterior, families, fuse, save
    >>> family, rng = families.DiagonalGaussian(dim=2), np.random.default_rng(0)
    >>> folder = tempfile.mkdtemp()
    >>> for site in range(20):
    ...     eta = family.to_natural(mean=rng.normal([[0, 0], [9, 9]], 0.5), variance=np.ones((2, 2)))
    ...     save(Posterior(family, eta), f"{folder}/site-{site}.safetensors")
    >>> shards(folder).n_sites
    20
    >>> fuse(shards(folder), method="spahm").n_components
    2
    """
    return open_shards(where, shard_bytes)


def pack(
    where: Any,
    folder: str | Path,
    *,
    shard_bytes: int = packing.PACK_BYTES,
    dtype: str = "float64",
    form: Form = "safetensors",
    progress: bool | Progress = False,
) -> packing.Packing:
    """Write many posterior files as a few shards, into a new folder that appears whole or not at all.

    Parameters
    ----------
    where : str, Path, or sequence of these
        Posterior files, as ``shards`` takes them (or shards, to pack them otherwise).
    folder : str or Path
        Folder to write; it must not exist or be empty.
    shard_bytes : int, optional
        Bytes of parameters in a file, about. Default: `PACK_BYTES`.
    dtype : {"float64", "float32"}, optional
        ``"float64"`` keeps every bit; ``"float32"`` halves the size. Default: ``"float64"``.
    form : {"safetensors", "parquet"}, optional
        Form of the files. Default: ``"safetensors"``.
    progress : bool or callable, optional
        True shows a bar on a terminal; a callable is told (sites done, sites in all).

    Returns
    -------
    Packing
        What was written; its `divergence` says, in nats, by how much float32 moved the component it moved most.

    Raises
    ------
    InputError
        For files that cannot be read, do not go together, stand twice, or leave their family's domain in float32.
    OptionError
        For a form, type or size that does not exist.
    """
    with shown(progress, "packing", "site") as report:
        return packing.pack(where, folder, shard_bytes=shard_bytes, dtype=dtype, form=form, progress=report)
