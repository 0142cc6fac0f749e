"""Entries of a variable that are constant, or copies of other entries: they are no parameters, and are carried over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array
from consilience.draws.constraints import Constraint, Elementwise

TIED = "tied"
"""Name in files."""
_ENTRIES, _CONSTANTS = "entries", "constants"
_CONSTANT = -1
"""Place of an entry that has no coordinate."""


@dataclass(frozen=True)
class TiedEntries(Elementwise):
    """A constraint of every entry alone, of which some entries are constant and some are copies of others."""

    inner: Elementwise  # the constraint of the entries that vary
    # Of every entry, in row order, its coordinate; -1 of a constant one. Coordinates are numbered as they come.
    places: tuple[int, ...]
    constants: tuple[float, ...]  # the values of the constant entries, in order
    name: ClassVar[str] = TIED

    @property
    def sign(self) -> int:
        """The sign of dh / du."""
        return int(getattr(self.inner, "sign", 1))

    @property
    def free(self) -> list[int]:
        """The first entry of every coordinate."""
        return [self.places.index(coordinate) for coordinate in range(max(self.places, default=_CONSTANT) + 1)]

    @property
    def fixed(self) -> list[int]:
        """The constant entries."""
        return [entry for entry, place in enumerate(self.places) if place == _CONSTANT]

    def to_json(self) -> str | list[Any]:
        """Return the inner constraint, the coordinate of every entry, and the constants, after each other."""
        inner = self.inner.to_json()
        stated = [inner] if isinstance(inner, str) else inner
        return [TIED, *stated, _ENTRIES, *self.places, _CONSTANTS, *self.constants]

    def n_coordinates(self, shape: tuple[int, ...]) -> int:
        """Return the number of entries that vary by themselves."""
        if prod(shape) != len(self.places):
            raise ValueError(f"{len(self.places)} tied entries have no shape {shape}")
        return len(self.free)

    def is_inside(self, values: Array) -> NDArray[np.bool_]:
        """Return which entries lie inside, those that are constant where they are."""
        inside = self.inner.is_inside(values).reshape(*values.shape).copy()
        flat, entries = inside.reshape(-1, len(self.places)), values.reshape(-1, len(self.places))
        flat[:, self.fixed] = entries[:, self.fixed] == self.constants
        return inside

    def unconstrain(self, values: Array) -> Array:
        """Return the coordinates of the entries that vary by themselves."""
        return self.inner.unconstrain(values.reshape(len(values), -1)[:, self.free])

    def derivatives(self, coordinates: Array) -> tuple[Array, Array, Array]:
        """Return those of the inner constraint."""
        return self.inner.derivatives(coordinates)

    def constrain(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return the entries: h(u), their copies, and the constants."""
        places = np.array(self.places)
        values = np.empty((len(coordinates), len(places)))
        values[:, places != _CONSTANT] = self.derivatives(coordinates)[0][:, places[places != _CONSTANT]]
        values[:, places == _CONSTANT] = self.constants
        return values.reshape(len(coordinates), *shape)

    def log_jacobian(self, coordinates: Array, shape: tuple[int, ...]) -> Array:
        """Return that of the entries that vary by themselves."""
        return self.inner.log_jacobian(coordinates, coordinates.shape[1:])

    def jacobian_derivatives(self, coordinates: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return those of the inner constraint."""
        return self.inner.jacobian_derivatives(coordinates, coordinates.shape)

    def coordinate_names(self, names: Sequence[str], shape: tuple[int, ...]) -> list[str]:
        """Return the names of the entries that vary by themselves."""
        return [names[entry] for entry in self.free]


def tied_entries(values: Array, inner: Elementwise) -> TiedEntries | None:
    """Return which entries of values (n, ...) are constant or copies; None where all vary by themselves."""
    flat = values.reshape(len(values), -1)
    is_constant = np.ptp(flat, axis=0) == 0  # (n_entries,)
    first_of_value: dict[float, list[int]] = {}
    places, coordinate_of = np.full(flat.shape[1], _CONSTANT), dict[int, int]()
    for entry in np.flatnonzero(~is_constant).tolist():
        alike = first_of_value.setdefault(float(flat[0, entry]), [])  # entries that begin with the same value
        source = next((one for one in alike if np.array_equal(flat[:, one], flat[:, entry])), entry)
        if source == entry:
            alike.append(entry)
            coordinate_of[entry] = len(coordinate_of)
        places[entry] = coordinate_of[source]
    if len(coordinate_of) == flat.shape[1]:
        return None
    return TiedEntries(inner, tuple(places.tolist()), tuple((flat[0, is_constant] + 0.0).tolist()))


def inner_of_json(stated: Sequence[Any]) -> Any:
    """Return the inner constraint that `TiedEntries.to_json` states after its name."""
    inner = list(stated[: list(stated).index(_ENTRIES)])
    return inner[0] if len(inner) == 1 else inner


def tied_of_json(stated: Sequence[Any], inner: Constraint) -> TiedEntries:
    """Return what `TiedEntries.to_json` states after its name, given its inner constraint."""
    end = list(stated).index(_CONSTANTS)
    places, constants = stated[list(stated).index(_ENTRIES) + 1 : end], [float(value) for value in stated[end + 1 :]]
    highest = _CONSTANT
    for place in places:
        if isinstance(place, bool) or not isinstance(place, int) or not _CONSTANT <= place <= highest + 1:
            raise ValueError(f"{place!r:.20} is no coordinate")
        highest = max(highest, place)
    is_valid = isinstance(inner, Elementwise) and not isinstance(inner, TiedEntries) and np.all(np.isfinite(constants))
    if not is_valid or list(places).count(_CONSTANT) != len(constants):
        raise ValueError("no tied entries")
    assert isinstance(inner, Elementwise)  # noqa: S101  (narrows the type; checked above)
    return TiedEntries(inner, tuple(places), tuple(constants))
