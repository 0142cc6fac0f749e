"""Fisher information handed in with networks: as values, or as files that find their networks by digest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consilience.errors import InputError, OptionError
from consilience.networks.files import file_kind
from consilience.networks.fisher.files import read_fisher
from consilience.networks.fisher.information import FisherInformation, as_information, parameter_digest
from consilience.networks.inputs import GivenNetwork


def without_information(models: Sequence[Any]) -> tuple[list[Any], list[Path]]:
    """Return models without the files of Fisher information among them, and these files."""
    paths = [model for model in models if isinstance(model, str | Path) and _is_information(Path(model))]
    return [model for model in models if not any(model is path for path in paths)], [Path(path) for path in paths]


def _is_information(path: Path) -> bool:
    try:
        return file_kind(path) == "fisher"
    except InputError:  # said better by whoever reads it
        return False


def gather_information(
    given: Sequence[GivenNetwork], told: Sequence[Any] | None, files: Sequence[Path]
) -> tuple[FisherInformation, ...] | None:
    """Return what is known of every network; None where nothing was handed in.

    Parameters
    ----------
    given
        The networks.
    told
        Information of each, in their order: values, diagonals by parameter, or paths.
    files
        Files among the models, in any order; each belongs to the network whose parameters it was computed at.

    Raises
    ------
    InputError
        Naming files that cannot be read or have no network, and networks without a file.
    OptionError
        For `told` that is no list, or not of one entry for each network.
    """
    if told is not None:
        if isinstance(told, (str, bytes)) or not isinstance(told, Sequence):
            raise OptionError(f"fishers: expected a list with one entry for each network, found {type(told).__name__}")
        if len(told) != len(given):
            raise OptionError(f"fishers: expected {len(given)}, one for each network in their order, found {len(told)}")
        return _read(told)
    if not files:
        return None
    found = _read(files)
    own: dict[int, FisherInformation] = {}
    problems: list[str] = []
    for one in found:
        if not isinstance(one.digest, str):
            problems.append(f"{one.name}: does not say which network it is of; give fishers= in the networks' order")
            continue
        places = [place for place, network in enumerate(given) if _is_of(one, network)]
        if not places:
            problems.append(
                f"{one.name}: was computed at other parameters than those of any network here; compute it for the "
                "networks as they are sent"
            )
        for place in places:
            if place in own:
                problems.append(f"{one.name}: is of {given[place].name}, as {own[place].name} is; leave one out")
            own.setdefault(place, one)
    if not problems:
        problems += [
            f"{network.name}: no file of Fisher information among the models is of this network; compute it with "
            "consilience.fisher"
            for place, network in enumerate(given)
            if place not in own
        ]
    if problems:
        raise InputError(problems)
    return tuple(own[place] for place in range(len(given)))


def _read(told: Sequence[Any]) -> tuple[FisherInformation, ...]:
    found: list[FisherInformation] = []
    problems: list[str] = []
    for number, one in enumerate(told):
        try:
            read = read_fisher(Path(one)) if isinstance(one, str | Path) else one
            found.append(as_information(read, f"fishers[{number}]"))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return tuple(found)


def _is_of(one: FisherInformation, network: GivenNetwork) -> bool:
    names = {key: key if key in network.arrays else _other_name(one, key, network) for key in one.residual}
    if any(name is None for name in names.values()):
        return False
    return parameter_digest({key: network.arrays[str(name)] for key, name in names.items()}, names) == one.digest


def _other_name(one: FisherInformation, key: str, network: GivenNetwork) -> str | None:
    """Return the name under which a network has a tied parameter."""
    return next((alias for alias, name in one.aliases.items() if name == key and alias in network.arrays), None)
