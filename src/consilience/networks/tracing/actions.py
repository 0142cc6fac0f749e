"""Actions on the units of a group that are not traced but tried: changes of sign, positive scales.

An action says on which groups it may hold and draws random elements, as transports. `proof` tries it on each of these
groups; where no output changes, the group gets it. A new action is a class and a line in `ACTIONS`, and its name one in
`symmetry.axes.Action`, which is what files of symmetries may state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from consilience.networks.symmetry.axes import Action, Group
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection, Scaling, Transport

SCALE_RANGE = (0.5, 2.0)
"""Range of the positive factors that are tried. Chosen by hand; nobody has measured other values."""


class UnitAction(ABC):
    """A group of transformations of the units of one group of a symmetry."""

    name: ClassVar[Action]

    def may_hold(self, symmetry: Symmetry, group: Group) -> bool:
        """Return whether it is worth trying on a group of units, from the places of the group alone."""
        del symmetry, group
        return True

    @abstractmethod
    def draws(self, units: Mapping[str, int], rng: np.random.Generator) -> list[dict[str, Transport]]:
        """Return random elements for groups of `units` by name, so many that every unit is changed in one of them."""


class SignChange(UnitAction):
    """Units change their sign, as they may below odd functions such as tanh."""

    name: ClassVar[Action] = "sign"

    def draws(self, units: Mapping[str, int], rng: np.random.Generator) -> list[dict[str, Transport]]:
        """Return random signs, and their opposites."""
        signs = {name: rng.choice([-1.0, 1.0], count) for name, count in units.items()}
        return [
            {name: Injection(np.arange(units[name]), units[name], sign * values) for name, values in signs.items()}
            for sign in (1.0, -1.0)
        ]


class PositiveScale(UnitAction):
    """Units are multiplied by positive numbers, as they may below ReLU."""

    name: ClassVar[Action] = "scale"

    def may_hold(self, symmetry: Symmetry, group: Group) -> bool:
        """Return whether no array both makes and reads the units: it would be multiplied and divided."""
        return all(place.side != "both" for place in symmetry.places(group.name))

    def draws(self, units: Mapping[str, int], rng: np.random.Generator) -> list[dict[str, Transport]]:
        """Return one draw of random factors."""
        return [{name: Scaling(rng.uniform(*SCALE_RANGE, count)) for name, count in units.items()}]


ACTIONS: tuple[UnitAction, ...] = (SignChange(), PositiveScale())
"""Every action that is tried, in the order in which a group lists them."""
