"""What was handed in to be fused, when it is networks: modules, networks and files, with the symmetry they share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from consilience.checks import AnyArray
from consilience.core.provenance import file_digest
from consilience.errors import InputError
from consilience.networks.files import file_kind, read_network
from consilience.networks.network import Network, to_bytes
from consilience.networks.symmetry.axes import Layout, fixed_axes
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import arrays_of_module, is_module
from consilience.posteriors.adapters import ADAPTERS

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class GivenNetwork:
    """One network handed in.

    Parameters
    ----------
    name
        What to call it in messages.
    arrays
        Its arrays.
    symmetry
        The symmetry that it came with, if any.
    module
        The module, if it is one.
    digest
        Of its file, if it is one.
    """

    name: str
    arrays: Mapping[str, AnyArray]
    symmetry: Symmetry | None
    module: nn.Module | None
    digest: str | None

    def network(self) -> Network:
        """Return it without any symmetry: nothing moves."""
        layouts = {key: Layout(fixed_axes(tuple(values.shape))) for key, values in self.arrays.items()}
        return Network(self.arrays, Symmetry(layouts, ()), self.name)

    def numbers(self) -> tuple[int, ...]:
        """Return what tells this network from others and no renumbering of units changes; for sorting.

        By array, the sum of its numbers' bits modulo 2^64: whole numbers, so the same in any order.
        """
        return tuple(_bits(self.arrays[key]) for key in sorted(self.arrays))

    def content(self) -> tuple[int, ...]:
        """Return what tells this network from others that differ in the order of units only; for sorting."""
        return tuple(crc32(to_bytes(self.arrays[key])) for key in sorted(self.arrays))


def canonical_order(given: Sequence[GivenNetwork]) -> list[int]:
    """Return the numbers of networks in an order that depends on what they are, not on how they arrive."""
    keys: list[tuple[tuple[int, ...], ...]] = [(one.numbers(),) for one in given]
    if len(set(keys)) < len(keys):
        keys = [(*key, one.content()) for key, one in zip(keys, given, strict=True)]
    return sorted(range(len(given)), key=lambda i: (keys[i], i))


def _bits(values: AnyArray) -> int:
    data = to_bytes(values)
    size = len(data) // max(1, math.prod(values.shape))
    kind = f"u{size}" if size in (1, 2, 4, 8) else "u1"
    return int(np.frombuffer(data, kind).sum(dtype=np.uint64))


def is_network(model: object) -> bool:
    """Return whether a model is a network: one of ours, or a module that is not of a kind that has posteriors."""
    known = isinstance(model, Network)
    return known or (is_module(model) and not any(adapter.accepts(model) for adapter in ADAPTERS))


def are_networks(models: Any, told: bool) -> bool:
    """Return whether models are networks: modules, networks, or files of them; plain checkpoints only if `told` so.

    Files of Fisher information are only found beside networks.
    """
    if isinstance(models, str | Path) or not isinstance(models, Sequence):
        return False
    kinds = set()
    for model in models:
        if is_network(model):
            return True
        if isinstance(model, str | Path):
            try:
                kinds.add(file_kind(Path(model)))
            except InputError:  # said better by whoever reads it
                continue
    return bool(kinds & {"network", "fisher"}) or (told and "checkpoint" in kinds)


def gather_networks(models: Sequence[Any]) -> list[GivenNetwork]:
    """Return what could be read of `models`.

    Raises
    ------
    InputError
        Naming everything that is no network, and files given twice.
    """
    given: list[GivenNetwork] = []
    problems: list[str] = []
    for number, model in enumerate(models):
        name = f"model {number}"
        try:
            if isinstance(model, Network):
                given.append(GivenNetwork(name, model.arrays, model.symmetry, None, None))
            elif is_module(model):
                given.append(GivenNetwork(name, arrays_of_module(model), None, model, None))
            elif isinstance(model, str | Path):
                file = read_network(Path(model))
                given.append(GivenNetwork(str(model), file.arrays, file.symmetry, None, file_digest(Path(model))))
            else:
                problems.append(f"{name}: a {type(model).__name__} is no network; expected a module, Network or path")
        except InputError as error:
            problems += error.problems
    digests: dict[str, str] = {}
    for one in given:
        if one.digest is not None and one.digest in digests:
            problems.append(f"{one.name}: is the same file as {digests[one.digest]}; leave one out")
        elif one.digest is not None:
            digests[one.digest] = one.name
    if len(models) < 2:
        problems.append(f"fusing takes at least two models, found {len(models)}")
    if problems:
        raise InputError(problems)
    return given
