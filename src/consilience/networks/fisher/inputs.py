"""Inputs of Fisher information: values in the order of the networks, or files matched to networks by digest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consilience.core.inputs import NamedInput
from consilience.errors import InputError, Problem
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.networks.fisher.files import read_fisher
from consilience.networks.fisher.information import FisherInformation, as_information, parameter_digest
from consilience.networks.inputs import DescribedNetwork, assign_by_digest, values_in_order


def gather_information(
    networks: Sequence[DescribedNetwork], fishers: Any, files: Sequence[NamedInput]
) -> tuple[FisherInformation, ...] | None:
    """Return the Fisher information of every network; None where nothing was handed in.

    What was handed in is a list in the order of the networks, or by their names: values, diagonals by parameter, or
    paths. Files among the inputs, in any order, belong each to the network whose parameters have its digest. One error
    names all files that cannot be read or have no network, and networks without a file.
    """
    fishers = values_in_order(fishers, [network.name for network in networks], "fishers")
    if fishers is not None:
        return _read(fishers)
    if not files:
        return None
    # Files come in any order: the digest of the parameters says which network each is of.
    read = _read([named.file for named in files])
    with_digest = [information for information in read if information.digest is not None]
    text, remedy = "does not say which network it is of", "give `fishers=` in the networks' order"
    problems = [Problem(one.name, text, remedy, "E-NEEDED") for one in read if one.digest is None]
    by_network, unmatched = assign_by_digest(
        networks,
        with_digest,
        _was_computed_at,
        "was computed at other parameters than those of any network here",
        "compute it for the networks as they are sent",
    )
    problems += unmatched
    if not problems:
        text = "no file of Fisher information among the models is of this network"
        problems += [
            Problem(network.label, text, "compute it with consilience.fisher")
            for number, network in enumerate(networks)
            if number not in by_network
        ]
    if problems:
        raise InputError(problems)
    return tuple(by_network[number] for number in range(len(networks)))


def _read(fishers: Sequence[Any]) -> tuple[FisherInformation, ...]:
    values: list[FisherInformation] = []
    problems: list[Problem] = []
    for number, entry in enumerate(fishers):
        try:
            is_file = isinstance(entry, str | Path | SafetensorsFile)
            values.append(as_information(read_fisher(as_file(entry)) if is_file else entry, f"fishers[{number}]"))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return tuple(values)


def _was_computed_at(information: FisherInformation, network: DescribedNetwork) -> bool:
    """Return whether a network has the parameters at which Fisher information was computed, by digest."""
    parameters = {}
    for key in information.parameters:
        names = (key, *(alias for alias, name in information.aliases.items() if name == key))  # of a tied parameter
        found = next((name for name in names if name in network.arrays), None)
        if found is None:
            return False
        parameters[key] = network.arrays[found]
    return parameter_digest(parameters, parameters) == information.digest
