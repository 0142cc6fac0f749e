"""Inputs that are networks: modules, Networks and files, described by their arrays, symmetry and digest.

Networks are fused in an order that depends on their contents only (`canonical_order`), so that a result does not
depend on the order in which they arrive (docs/adr/4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from consilience.checks import AnyArray
from consilience.core.inputs import NamedInput, files_given_twice, too_few_models
from consilience.errors import InputError, Problem
from consilience.networks.descriptions.description import Description
from consilience.networks.files import read_network
from consilience.networks.network import Network, as_buffer, to_bytes
from consilience.networks.state_entries import dense_arrays, extra_state, is_state_dict
from consilience.networks.symmetry.axes import Layout, fixed_axes
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import arrays_of_module, initialised, is_module, unwrapped
from consilience.posteriors.adapters.table import has_adapter

if TYPE_CHECKING:
    from torch import nn

    from consilience.networks.descriptions.description import Description


_NO_ARRAY = -1
"""Part of a sorting key where a network has fewer arrays than another: before every sum."""


@dataclass(frozen=True, eq=False)
class DescribedNetwork:
    """An input that is a network.

    Parameters
    ----------
    name : str
        Name in results, reports and provenance.
    label : str
        Name in messages: the name, or the path of a file.
    arrays : mapping of str to array
        Parameters and buffers by name.
    symmetry : Symmetry or None
        The symmetry that the input came with.
    module : torch.nn.Module or None
        The module, where the input is one.
    digest : str or None
        SHA-256 of the file; None for an object in memory, and where nothing will be fused.
    description : Description, optional
        What the site says of the network beside the weights.
    extra_state : tuple of str, optional
        Names of the entries of a state dict that are extra state, and no arrays. Default: none.
    """

    name: str
    label: str
    arrays: Mapping[str, AnyArray]
    symmetry: Symmetry | None
    module: nn.Module | None
    digest: str | None
    description: Description | None = None
    extra_state: tuple[str, ...] = ()

    def network(self) -> Network:
        """Return the network under the trivial symmetry, under which nothing moves."""
        layouts = {key: Layout(fixed_axes(tuple(values.shape))) for key, values in self.arrays.items()}
        return Network(self.arrays, Symmetry(layouts, ()), self.label)

    def invariant_key(self) -> Iterator[int]:
        """Yield the parts of a sorting key of the network's values that no renumbering of units changes.

        By array, the sum of its numbers' bits modulo 2^64: whole numbers, so the same in any order.
        """
        return (_sum_of_bits(self.arrays[key]) for key in sorted(self.arrays))

    def content_key(self) -> tuple[int, ...]:
        """Return a sorting key that differs between networks that differ in the order of units only: a CRC by array."""
        return tuple(crc32(to_bytes(self.arrays[key])) for key in sorted(self.arrays))


def canonical_order(networks: Sequence[DescribedNetwork]) -> list[int]:
    """Return the numbers of networks in an order that depends on what they are, not on how they arrive."""
    keys: list[tuple[int, ...]] = [()] * len(networks)
    # Keys differ in their first parts, as a rule, and are read no further than it takes to tell all apart.
    for parts in zip_longest(*(network.invariant_key() for network in networks), fillvalue=_NO_ARRAY):
        keys = [(*key, part) for key, part in zip(keys, parts, strict=True)]
        if len(set(keys)) == len(keys):
            break
    else:
        keys = [(*key, *network.content_key()) for key, network in zip(keys, networks, strict=True)]
    return sorted(range(len(networks)), key=lambda i: (keys[i], i))


def _sum_of_bits(values: AnyArray) -> int:
    """Return the sum modulo 2^64 of the numbers of an array, their bits read as unsigned integers."""
    data = as_buffer(values)
    size = len(data) // max(1, math.prod(values.shape))  # bytes of a number
    kind = f"u{size}" if size in (1, 2, 4, 8) else "u1"
    return int(data.view(kind).sum(dtype=np.uint64))


def is_network(model: object) -> bool:
    """Return whether an object in memory is a network: one of ours, a state dict, or a module of no posterior."""
    return isinstance(model, Network) or is_state_dict(model) or (is_module(model) and not has_adapter(model))


def describe_networks(
    inputs: Sequence[NamedInput], *, mapped: bool = False, example: Any = None
) -> list[DescribedNetwork]:
    """Return the networks of all inputs.

    Parameters
    ----------
    inputs : sequence of NamedInput
        Modules, Networks and files.
    mapped : bool
        Whether arrays stay in their files until their values are used; digests are then not taken.
    example : Tensor or tuple, optional
        Arguments for a call of the modules, which gives lazy layers their shapes. Default: lazy layers are refused.

    Raises
    ------
    InputError
        Naming everything that is no network, and files given twice.
    """
    described: list[DescribedNetwork] = []
    problems: list[Problem] = []
    for named in inputs:
        name, label = named.name, named.label
        try:
            if named.file is not None:
                network = read_network(named.file, mapped=mapped)
                digest = None if mapped else named.file.digest
                arrays, extra = dense_arrays(network.arrays, label), extra_state(network.arrays)
                described.append(
                    DescribedNetwork(name, label, arrays, network.symmetry, None, digest, extra_state=extra)
                )
            elif isinstance(named.model, Network):
                described.append(_described(named.model, name, label))
            elif is_module(named.model):
                module = initialised(unwrapped(named.model), example)
                arrays, extra = arrays_of_module(module, label), extra_state(module.state_dict())
                described.append(DescribedNetwork(name, label, arrays, None, module, None, extra_state=extra))
            elif is_state_dict(named.model):
                arrays = dense_arrays(named.model, label)
                extra = extra_state(named.model)
                described.append(DescribedNetwork(name, label, arrays, None, None, None, extra_state=extra))
            else:
                kind = type(named.model).__name__
                problems.append(
                    Problem(label, f"a {kind} is no network; expected a module, Network or path", code="E-TYPE")
                )
        except InputError as error:
            problems += error.problems
    problems += files_given_twice(inputs)
    problems += too_few_models(len(inputs))
    if problems:
        raise InputError(problems)
    return described


def _described(network: Network, name: str, label: str) -> DescribedNetwork:
    """Return a Network as an input; one that was not traced says nothing of which axes move together."""
    symmetry = None if network.is_untraced else network.symmetry
    return DescribedNetwork(name, label, network.arrays, symmetry, network.module, None, network.description)
