"""Inputs that are networks: modules, Networks and files, with the symmetry that they came with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from consilience.checks import AnyArray
from consilience.core.inputs import NamedInput, files_given_twice
from consilience.errors import InputError
from consilience.networks.files import read_network
from consilience.networks.network import Network, to_bytes
from consilience.networks.symmetry.axes import Layout, fixed_axes
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import arrays_of_module, is_module
from consilience.posteriors.adapters.table import ADAPTERS

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class DescribedNetwork:
    """An input that is a network.

    Parameters
    ----------
    name
        What results call it.
    label
        What messages call it.
    arrays
        Its arrays.
    symmetry
        The symmetry that it came with, if any.
    module
        The module, if it is one.
    digest
        SHA-256 of its file; None for an object, and where nothing will be fused.
    """

    name: str
    label: str
    arrays: Mapping[str, AnyArray]
    symmetry: Symmetry | None
    module: nn.Module | None
    digest: str | None

    def network(self) -> Network:
        """Return it without any symmetry: nothing moves."""
        layouts = {key: Layout(fixed_axes(tuple(values.shape))) for key, values in self.arrays.items()}
        return Network(self.arrays, Symmetry(layouts, ()), self.label)

    def numbers(self) -> tuple[int, ...]:
        """Return what tells this network from others and no renumbering of units changes; for sorting.

        By array, the sum of its numbers' bits modulo 2^64: whole numbers, so the same in any order.
        """
        return tuple(_bits(self.arrays[key]) for key in sorted(self.arrays))

    def content(self) -> tuple[int, ...]:
        """Return what tells this network from others that differ in the order of units only; for sorting."""
        return tuple(crc32(to_bytes(self.arrays[key])) for key in sorted(self.arrays))


def canonical_order(networks: Sequence[DescribedNetwork]) -> list[int]:
    """Return the numbers of networks in an order that depends on what they are, not on how they arrive."""
    keys: list[tuple[tuple[int, ...], ...]] = [(one.numbers(),) for one in networks]
    if len(set(keys)) < len(keys):
        keys = [(*key, one.content()) for key, one in zip(keys, networks, strict=True)]
    return sorted(range(len(networks)), key=lambda i: (keys[i], i))


def _bits(values: AnyArray) -> int:
    data = to_bytes(values)
    size = len(data) // max(1, math.prod(values.shape))
    kind = f"u{size}" if size in (1, 2, 4, 8) else "u1"
    return int(np.frombuffer(data, kind).sum(dtype=np.uint64))


def is_network(model: object) -> bool:
    """Return whether an object in memory is a network: one of ours, or a module that no adapter of posteriors takes."""
    return isinstance(model, Network) or (is_module(model) and not any(one.accepts(model) for one in ADAPTERS))


def describe_networks(inputs: Sequence[NamedInput], *, mapped: bool = False) -> list[DescribedNetwork]:
    """Return the networks of all inputs.

    Parameters
    ----------
    inputs
        Modules, Networks and files.
    mapped
        Whether the arrays of files stay there until their values are looked at; digests are then not taken.

    Raises
    ------
    InputError
        Naming everything that is no network, and files given twice.
    """
    described: list[DescribedNetwork] = []
    problems: list[str] = []
    for one in inputs:
        name, label = one.name, one.label
        try:
            if one.file is not None:
                network = read_network(one.file, mapped=mapped)
                digest = None if mapped else one.file.digest
                described.append(DescribedNetwork(name, label, network.arrays, network.symmetry, None, digest))
            elif isinstance(one.model, Network):
                described.append(DescribedNetwork(name, label, one.model.arrays, one.model.symmetry, None, None))
            elif is_module(one.model):
                described.append(DescribedNetwork(name, label, arrays_of_module(one.model), None, one.model, None))
            else:
                kind = type(one.model).__name__
                problems.append(f"{label}: a {kind} is no network; expected a module, Network or path")
        except InputError as error:
            problems += error.problems
    problems += files_given_twice(inputs)
    if len(inputs) < 2:
        problems.append(f"fusing takes at least two models, found {len(inputs)}")
    if problems:
        raise InputError(problems)
    return described
