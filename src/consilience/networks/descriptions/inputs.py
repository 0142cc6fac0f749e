"""Descriptions of the networks of a fusion: given, among the inputs, or beside the files of the networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.core.inputs import NamedInput
from consilience.errors import InputError, Problem
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.networks.descriptions.compare import description_problems
from consilience.networks.descriptions.description import Description
from consilience.networks.descriptions.files import description_path, read_description
from consilience.networks.fisher.information import network_digest
from consilience.networks.inputs import DescribedNetwork, assign_by_digest, values_in_order

if TYPE_CHECKING:
    from torch import Tensor, nn

    from consilience.networks.example import Example

_REMEDY = "describe the network as it is sent"


def with_descriptions(
    networks: Sequence[DescribedNetwork],
    inputs: Sequence[NamedInput],
    descriptions: Any,
    files: Sequence[NamedInput],
    *,
    unites_classes: bool = False,
) -> list[DescribedNetwork]:
    """Return the networks of a fusion with their descriptions; None where a network has none.

    Of several descriptions of one network those count that were handed in: as `descriptions` (in the order of the
    networks or by their names: values, paths, or None), then among the inputs (`files`, in any order; each belongs to
    the network whose arrays have its digest), then with the network itself, then beside its file. `unites_classes` says
    whether the sites may have different classes. One error names all files that cannot be read, descriptions of other
    networks, and what contradicts each other.
    """
    is_of = _belongs()
    given = values_in_order(descriptions, [network.name for network in networks], "descriptions")
    described = _found_descriptions(networks, inputs, given or (), files, is_of)
    problems = [*_of_others(networks, described, is_of)]
    # What is said of the sites is said by the names of their networks.
    networks = [
        network if description is None else replace(network, description=replace(description, name=network.label))
        for network, description in zip(networks, described, strict=True)
    ]
    stated = [network.description for network in networks if network.description is not None]
    if problems := [*problems, *description_problems(stated, unites_classes=unites_classes)]:
        raise InputError(problems)
    return networks


def _found_descriptions(
    networks: Sequence[DescribedNetwork],
    inputs: Sequence[NamedInput],
    given: Sequence[Any],
    files: Sequence[NamedInput],
    is_of: Callable[[Description, DescribedNetwork], bool],
) -> list[Description | None]:
    """Return the description of each network that counts; raise InputError for all that cannot be read."""
    described: list[Description | None] = [network.description for network in networks]
    problems: list[Problem] = []

    def read(source: Any, name: str = "") -> Description | None:
        try:
            return _as_description(source, name)
        except InputError as error:
            problems.extend(error.problems)
            return None

    # What counts more comes later, and takes the place of what was found before.
    for number, named in enumerate(inputs):
        if named.file is not None and (path := description_path(named.file.path)).is_file():
            described[number] = read(path) or described[number]
    found = [description for file in files if (description := read(file.file)) is not None]
    by_network, unmatched = assign_by_digest(networks, found, is_of, "describes no network here", _REMEDY)
    problems += unmatched
    for number, description in by_network.items():
        described[number] = description
    for number, entry in enumerate(given):
        if entry is not None:
            described[number] = read(entry, f"descriptions[{number}]")
    if problems:
        raise InputError(problems)
    return described


def _belongs() -> Callable[[Description, DescribedNetwork], bool]:
    """Return what says whether a description is of a network, whose digest is taken once."""

    @cache
    def digest_of(network: DescribedNetwork) -> str:
        return network_digest(network.sent_arrays, {} if network.symmetry is None else network.symmetry.aliases)

    return lambda description, network: digest_of(network) == description.digest


def _of_others(
    networks: Sequence[DescribedNetwork],
    described: Sequence[Description | None],
    is_of: Callable[[Description, DescribedNetwork], bool],
) -> Iterator[Problem]:
    """Yield descriptions of other parameters than their network's first, then those of other layers."""
    pairs = [pair for pair in zip(networks, described, strict=True) if pair[1] is not None]
    for network, description in pairs:
        if description is not None and not is_of(description, network):
            text = f"describes other parameters than those of {network.label}"
            yield Problem(description.name, text, _REMEDY, "E-MISMATCH")
    for network, description in pairs:
        if description is None or not is_of(description, network):
            continue
        for layer, factors in description.layers.items():
            if not factors.fit(layer, network.arrays):
                text = f"describes another layer {layer or 'than the network'} than {network.label} has"
                yield Problem(description.name, text, _REMEDY, "E-MISMATCH")


def _as_description(entry: Any, name: str) -> Description:
    """Return a description, given it, its file, or a network that carries one."""
    if isinstance(entry, str | Path | SafetensorsFile):
        return read_description(as_file(entry))
    entry = getattr(entry, "description", entry)
    if not isinstance(entry, Description):
        expected = "what consilience.describe gives, or the path of its file"
        raise InputError(name, f"expected {expected}, found {type(entry).__name__}", code="E-NUMBER")
    return entry


def example_of(descriptions: Sequence[Description | None], module: nn.Module | None) -> Tensor | Example | None:
    """Return two inputs of the described shape, to trace and prove a symmetry with; None where nobody says the shape.

    Real numbers have the described means and variances, so that no unit is dead that is alive at the sites.
    """
    description = next((one for one in descriptions if one is not None and one.input_shape is not None), None)
    if description is None or description.input_shape is None:
        return None
    import torch  # here, since networks of NumPy arrays need none

    from consilience.networks.descriptions.input_parts import described_arguments
    from consilience.networks.descriptions.whole_columns import as_whole
    from consilience.networks.module_inputs import precision_of

    rng = np.random.default_rng(0)
    shape = (2, *description.input_shape)
    if description.input_kind == "tokens":
        vocabulary = 2 if description.tokens is None else len(description.tokens.unigrams)
        return described_arguments(description, torch.from_numpy(rng.integers(0, vocabulary, shape)))
    rows = rng.standard_normal((2, int(np.prod(description.input_shape))))
    if description.inputs is not None:
        rows = description.inputs.mean + rows * np.sqrt(description.inputs.variance)
        rows = as_whole(rows, description.whole_columns, description.inputs)
    return described_arguments(description, torch.from_numpy(rows.reshape(shape)).to(precision_of(module)))
