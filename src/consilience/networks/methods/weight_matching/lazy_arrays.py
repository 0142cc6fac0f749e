"""Weight matching of models that no memory holds: arrays are read and moved when a product needs them.

A `LazyModel` takes the place of a `PlacedModel`: of its arrays it keeps a function that reads them, and when its units
move only its transports change. Products are recomputed at every visit (`RecomputedProducts`), since one of them for
each place of each group would be more than the largest arrays. So the descent holds one array of each model at a time,
and matrices (K, K) of one group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from consilience.checks import AnyArray
from consilience.networks.methods.weight_matching.products import AssignmentGain, InnerProducts
from consilience.networks.methods.weight_matching.state import PlacedModel
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection, move_dense


@dataclass(frozen=True, eq=False)
class LazyArrays(Mapping[str, AnyArray]):
    """Arrays of a model in its slots; each is read and moved whenever it is looked up."""

    read: Callable[[str], AnyArray]  # gives an array, as stored, by its name
    names: Collection[str]  # names of the arrays
    symmetry: Symmetry  # which axes move together
    units: Mapping[str, int]  # number of units of every group
    transports: Mapping[str, Injection]  # by group, the slot of each unit

    def __getitem__(self, name: str) -> AnyArray:
        return move_dense(self.read(name), self.symmetry.layouts[name], self.transports, self.units)

    def __contains__(self, name: object) -> bool:  # the default would read the array
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(eq=False)
class LazyModel(PlacedModel):
    """A model in the slots whose arrays are lazy."""

    arrays: LazyArrays

    def moved(self, symmetry: Symmetry, moves: Mapping[str, Injection], width: Mapping[str, int]) -> LazyModel:
        """Return the model with the units of some groups moved from slot to slot; nothing is read."""
        transports = self._transports_after(moves)
        return LazyModel(replace(self.arrays, transports=transports), transports)


class RecomputedProducts(InnerProducts):
    """Inner products that are computed at every use, so that none is kept."""

    def at(self, place: Place, arrays: Mapping[str, AnyArray]) -> AssignmentGain:
        """Return the products (K, K) at one place: rows of the model that moves, columns of the target."""
        return self._product(place, arrays[place.array], self.target[place.array])

    def update(
        self, group: str, move: Injection, before: Mapping[str, AnyArray], after: Mapping[str, AnyArray]
    ) -> None:
        """Do nothing: no product is kept that a move could change."""
