"""Fisher information handed in with networks: as values, or as files that find their networks by digest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consilience.core.inputs import NamedInput, in_order
from consilience.errors import InputError, OptionError
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.networks.fisher.files import read_fisher
from consilience.networks.fisher.information import FisherInformation, as_information, parameter_digest
from consilience.networks.inputs import DescribedNetwork

FORMAT = "consilience-fisher"


def without_information(inputs: Sequence[NamedInput]) -> tuple[list[NamedInput], list[NamedInput]]:
    """Return the inputs that are no files of Fisher information, and those that are."""
    is_information = [one.format == FORMAT for one in inputs]
    return (
        [one for one, known in zip(inputs, is_information, strict=True) if not known],
        [one for one, known in zip(inputs, is_information, strict=True) if known],
    )


def gather_information(
    networks: Sequence[DescribedNetwork], fishers: Any, files: Sequence[NamedInput]
) -> tuple[FisherInformation, ...] | None:
    """Return what is known of every network; None where nothing was handed in.

    Parameters
    ----------
    networks
        The networks.
    fishers
        Information of each, in their order or by their names: values, diagonals by parameter, or paths.
    files
        Files among the inputs, in any order; each belongs to the network whose parameters it was computed at.

    Raises
    ------
    InputError
        Naming files that cannot be read or have no network, and networks without a file.
    OptionError
        For `fishers` that is no list, or not of one entry for each network.
    """
    fishers = in_order(fishers, [network.name for network in networks], "fishers")
    if fishers is not None:
        count = len(networks)
        if isinstance(fishers, (str, bytes)) or not isinstance(fishers, Sequence):
            raise OptionError(
                f"fishers: expected a list with one entry for each network, found {type(fishers).__name__}"
            )
        if len(fishers) != count:
            raise OptionError(f"fishers: expected {count}, one for each network in their order, found {len(fishers)}")
        return _read(fishers)
    if not files:
        return None
    by_network: dict[int, FisherInformation] = {}
    problems: list[str] = []
    for information in _read([one.file for one in files]):
        if not isinstance(information.digest, str):
            problems.append(
                f"{information.name}: does not say which network it is of; give fishers= in the networks' order"
            )
            continue
        places = [place for place, network in enumerate(networks) if _is_of(information, network)]
        if not places:
            problems.append(
                f"{information.name}: was computed at other parameters than those of any network here; compute it for "
                "the networks as they are sent"
            )
        for place in places:
            if place in by_network:
                problems.append(
                    f"{information.name}: is of {networks[place].label}, as {by_network[place].name} is; leave one out"
                )
            by_network.setdefault(place, information)
    if not problems:
        problems += [
            f"{network.label}: no file of Fisher information among the models is of this network; compute it with "
            "consilience.fisher"
            for place, network in enumerate(networks)
            if place not in by_network
        ]
    if problems:
        raise InputError(problems)
    return tuple(by_network[place] for place in range(len(networks)))


def _read(fishers: Sequence[Any]) -> tuple[FisherInformation, ...]:
    values: list[FisherInformation] = []
    problems: list[str] = []
    for number, entry in enumerate(fishers):
        try:
            is_file = isinstance(entry, str | Path | SafetensorsFile)
            values.append(as_information(read_fisher(as_file(entry)) if is_file else entry, f"fishers[{number}]"))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return tuple(values)


def _is_of(information: FisherInformation, network: DescribedNetwork) -> bool:
    names = {
        key: key if key in network.arrays else _other_name(information, key, network) for key in information.residual
    }
    if any(name is None for name in names.values()):
        return False
    parameters = {key: network.arrays[str(name)] for key, name in names.items()}
    return parameter_digest(parameters, names) == information.digest


def _other_name(information: FisherInformation, key: str, network: DescribedNetwork) -> str | None:
    """Return the name under which a network has a tied parameter."""
    return next((alias for alias, name in information.aliases.items() if name == key and alias in network.arrays), None)
