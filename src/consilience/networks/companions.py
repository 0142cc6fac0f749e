"""Companion files of networks (Fisher information, descriptions), selected by format and matched by digest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from consilience.core.inputs import NamedInput, in_order
from consilience.errors import OptionError, Problem
from consilience.networks.inputs import DescribedNetwork


class Companion(Protocol):
    """A companion of a network, such as its Fisher information, with a name for messages."""

    @property
    def name(self) -> str:
        """Name in messages."""


CompanionType = TypeVar("CompanionType", bound=Companion)


def split_companions(inputs: Sequence[NamedInput], *formats: str) -> tuple[list[NamedInput], ...]:
    """Return the inputs that are files of none of these formats, and then those of each."""
    return (
        [named for named in inputs if named.format not in formats],
        *([named for named in inputs if named.format == file_format] for file_format in formats),
    )


def values_in_order(values: Any, names: Sequence[str], option: str) -> Sequence[Any] | None:
    """Return one value for each network, in their order, of a list or a mapping by name; None where none were given.

    Raises
    ------
    OptionError
        For anything else, and another number of values.
    """
    values = in_order(values, names, option)
    if values is None:
        return None
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise OptionError(option, f"expected a list with one entry for each network, found {type(values).__name__}")
    if len(values) != len(names):
        raise OptionError(option, f"expected {len(names)}, one for each network in their order, found {len(values)}")
    return values


def assign_by_digest(
    networks: Sequence[DescribedNetwork],
    companions: Sequence[CompanionType],
    is_of: Callable[[CompanionType, DescribedNetwork], bool],
    unmatched: str,
    remedy: str,
) -> tuple[dict[int, CompanionType], list[Problem]]:
    """Return the companion of every network that has one, by the network's number, and what is wrong with the others.

    Parameters
    ----------
    networks : sequence of DescribedNetwork
        The networks.
    companions : sequence
        In any order.
    is_of : callable
        Whether a companion is of a network, by digest.
    unmatched, remedy : str
        What to say of a companion of no network here.
    """
    by_network: dict[int, CompanionType] = {}
    problems: list[Problem] = []
    for companion in companions:
        numbers = [number for number, network in enumerate(networks) if is_of(companion, network)]
        if not numbers:
            problems.append(Problem(companion.name, unmatched, remedy, "E-MISMATCH"))
        # Equal networks have equal digests, so that one file may be of several.
        for number in numbers:
            if number in by_network:
                problems.append(
                    Problem(
                        companion.name,
                        f"is of {networks[number].label}, as {by_network[number].name} is",
                        "leave one out",
                        "E-TWICE",
                    )
                )
            by_network.setdefault(number, companion)
    return by_network, problems
