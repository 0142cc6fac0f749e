"""Entries that the networks of a fusion share: names in common, and the same bookkeeping."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from array_api_compat import array_namespace

from consilience.checks import AnyArray
from consilience.drawing.words import first_names
from consilience.errors import InputError, Problem
from consilience.networks.entry_names import common_names, is_bookkeeping, is_counter
from consilience.networks.files import read_symmetry
from consilience.networks.inputs import DescribedNetwork
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import arrays_of_module

if TYPE_CHECKING:
    from torch import nn

_MAX_LISTED = 3
"""Arrays that a note names; more are counted. Chosen by hand."""


def own_arrays(
    networks: Sequence[DescribedNetwork], module: nn.Module | None, symmetry: Symmetry | str | Path | None
) -> dict[str, AnyArray | None] | None:
    """Return what says by which names a network knows its arrays: a module, else a symmetry; None without either.

    Arrays are those of the module, and None by the names of a symmetry.
    """
    template = next((network.module for network in networks if network.module is not None), module)
    if template is not None:
        return dict(arrays_of_module(template))
    if isinstance(symmetry, str | Path):
        symmetry = read_symmetry(Path(symmetry))
    if symmetry is None:
        symmetry = next((network.symmetry for network in networks if network.symmetry is not None), None)
    return None if symmetry is None else dict.fromkeys((*symmetry.layouts, *symmetry.aliases))


def under_common_names(
    networks: Sequence[DescribedNetwork], own: Mapping[str, AnyArray | None] | None
) -> tuple[list[DescribedNetwork], list[str]]:
    """Return networks under the names that they have in common, and notes on prefixes that were left out.

    `own` is what `own_arrays` returned. Modules and networks with a symmetry keep their names, by which it knows them.
    Raises InputError for networks that differ in a prefix and in more, or in a prefix that a module or a symmetry
    needs.
    """
    shapes = [{key: tuple(values.shape) for key, values in network.arrays.items()} for network in networks]
    labels = [network.label for network in networks]
    found = common_names(shapes, labels, own)
    problems = list(found.problems)
    renamed = list(networks)
    for number, (network, own_names, left_out) in enumerate(
        zip(networks, found.own_names, found.left_out, strict=True)
    ):
        if network.module is None and network.symmetry is None:
            arrays = {key: network.arrays[name] for key, name in own_names.items()}
            parametrised = network.parametrised
            if parametrised is not None:
                parametrised = parametrised.renamed({name: key for key, name in own_names.items()})
            renamed[number] = replace(network, arrays=arrays, parametrised=parametrised)
        elif left_out:
            text = f"its names have {left_out}, which those of the others lack"
            problems.append(Problem(network.label, text, "give the network inside of what wraps it", "E-MISMATCH"))
    if problems:
        raise InputError(problems)
    return renamed, [*(note for network in networks for note in network.notes), *found.notes]


def with_common_bookkeeping(
    networks: Sequence[DescribedNetwork], own: Mapping[str, AnyArray | None] | None
) -> tuple[list[DescribedNetwork], list[str]]:
    """Return networks that all have the same bookkeeping, and notes on what was left out of or added to which.

    What is not in `own`, which `own_arrays` returned, is left out; what a network lacks of it is another network's or
    the module's, and a counter that it lacks is zero.
    """
    bookkeeping = _bookkeeping(networks, own or {})
    common = set(bookkeeping).intersection(*(network.arrays for network in networks))
    kept = common if own is None else own
    dropped = [key for key in bookkeeping if key not in kept]
    added = {
        key: array_namespace(values).zeros_like(values) if is_counter(key) else values
        for key, values in bookkeeping.items()
        if key in kept and key not in common
    }
    notes = [f"{_listed(dropped)}: bookkeeping that not all networks have, left out"] if dropped else []
    notes += [f"{_listed(list(added))}: bookkeeping that not all networks have, completed"] if added else []
    return [_with_entries(network, added, dropped) for network in networks], notes


def _bookkeeping(networks: Sequence[DescribedNetwork], own: Mapping[str, AnyArray | None]) -> dict[str, AnyArray]:
    """Return the bookkeeping of networks and their module; of several of one name that of the last network."""
    pool = [own, *(network.arrays for network in networks)]
    known = ((key, values) for arrays in pool for key, values in arrays.items() if values is not None)
    return {key: values for key, values in known if is_bookkeeping(key, tuple(values.shape))}


def _with_entries(
    network: DescribedNetwork, added: Mapping[str, AnyArray], dropped: Container[str]
) -> DescribedNetwork:
    """Return a network without some entries, and with others that it lacks."""
    kept = {key: values for key, values in network.arrays.items() if key not in dropped}
    return replace(network, arrays={**kept, **{key: values for key, values in added.items() if key not in kept}})


def extra_state_notes(networks: Sequence[DescribedNetwork], has_module: bool) -> list[str]:
    """Return where the extra state of the fused network is from, where any network has some.

    With a module, the fused one is a copy of it with other arrays.
    """
    names = dict.fromkeys(name for network in networks for name in network.extra_state)
    taken = "the module's is kept" if has_module else "left out; give `module=` to keep that of a module"
    return [f"{_listed(list(names))}: extra state has no mean, {taken}"] if names else []


def _listed(names: Sequence[str]) -> str:
    return f"{first_names(names, _MAX_LISTED)}"
