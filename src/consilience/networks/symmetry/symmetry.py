"""Which axes of a network's arrays move together.

Renumbering the hidden units of a layer changes no output as long as every array that touches them is renumbered alike:
the rows of the weights that make the units, their biases and normalisation, the columns of the weights that read them.
Such units are a *group*. A `Symmetry` names the groups of a network and says, for every axis of every array, which
stretches of it follow which group. It knows no numbers but shapes and no framework.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from consilience.errors import InputError
from consilience.networks.symmetry.axes import Axis, Group, Layout, Place, Proof

_FEW = 5
"""Arrays that a message names; more are counted."""

_REMEDY = "fuse networks of one architecture only, with a symmetry of theirs"


@dataclass(frozen=True)
class Symmetry:
    """Which axes of a network's arrays move together.

    Parameters
    ----------
    layouts
        Every array by name. Arrays without units have axes that never move.
    all_groups
        The groups, in the order of computation.
    aliases
        Other names of arrays that are one array (tied weights), to the name that `layouts` has.
    notes
        What the tracer could not look through, a line each; the units it concerns never move.
    proof
        That it holds; None for one nobody proved.

    Examples
    --------
    >>> from consilience.networks.symmetry.axes import Segment
    >>> hidden, data = Segment("hidden"), Segment(None, inner=4)
    >>> symmetry = Symmetry(
    ...     {"1.weight": Layout((Axis((hidden,)), Axis((data,), "input"))), "1.bias": Layout((Axis((hidden,)),))},
    ...     (Group("hidden", 3, 0),),
    ... )
    >>> symmetry.units({"1.weight": (5, 4), "1.bias": (5,)})
    {'hidden': 5}
    >>> [str(place) for place in symmetry.places("hidden")]
    ['1.weight axis 0', '1.bias axis 0']
    """

    layouts: Mapping[str, Layout]
    all_groups: tuple[Group, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    proof: Proof | None = None

    @property
    def groups(self) -> dict[str, int]:
        """Number of units of every group in the network that was traced, in the order of computation.

        Units inside the units of a parent are counted over all of these.
        """
        return {name: self._sizes[name] for name in self.by_name}

    @cached_property
    def by_name(self) -> dict[str, Group]:
        """The groups by name, in the order of computation."""
        return {group.name: group for group in sorted(self.all_groups, key=lambda group: group.order)}

    @cached_property
    def _sizes(self) -> dict[str, int]:
        inside = {group.name: group.size for group in self.all_groups}
        return {g.name: g.size * (1 if g.parent is None else inside[g.parent]) for g in self.all_groups}

    @cached_property
    def _places(self) -> dict[str, tuple[Place, ...]]:
        found: dict[str, list[Place]] = {group.name: [] for group in self.all_groups}
        for array, layout in self.layouts.items():
            for number, axis in enumerate(layout.axes):
                for position, segment in enumerate(axis.segments):
                    if segment.group is not None:
                        found[segment.group].append(Place(array, number, position, axis.side))
        return {name: tuple(places) for name, places in found.items()}

    def places(self, group: str) -> tuple[Place, ...]:
        """Return every place of a group, in the order of the arrays."""
        return self._places[group]

    def beside(self, place: Place) -> set[str]:
        """Return the groups on the other axes of a place's array."""
        axes = self.layouts[place.array].axes
        return {s.group for n, axis in enumerate(axes) if n != place.axis for s in axis.segments if s.group is not None}

    def children(self, group: str) -> list[Group]:
        """Return the groups whose units lie inside the units of this one."""
        return [one for one in self.all_groups if one.parent == group]

    def units(self, shapes: Mapping[str, tuple[int, ...]], name: str = "network") -> dict[str, int]:
        """Return how many units every group has in a network with arrays of these shapes.

        Raises
        ------
        InputError
            Naming every array that is missing, unknown, or of a shape that no number of units explains.
        """
        missing = [key for key in self.layouts if key not in shapes]
        known = set(self.layouts) | set(self.aliases)
        more = [key for key in shapes if key not in known]
        problems = [f"{name}: {_arrays(missing)} missing; {_REMEDY}"] if missing else []
        problems += [f"{name}: {_arrays(more)} not in the symmetry; {_REMEDY}"] if more else []
        found = {g.name: self._sizes[g.name] for g in self.all_groups if not g.resizable or g.parent is not None}
        for axis, length in self._lengths(shapes):
            unknown = {s.group for s in axis.segments if s.group is not None} - set(found)
            if len(unknown) == 1:
                wanted = next(iter(unknown))
                rest = length - sum(s.length(found) for s in axis.segments if s.group != wanted)
                one = sum(s.outer * s.inner for s in axis.segments if s.group == wanted)
                if rest > 0 and rest % one == 0:
                    found[wanted] = rest // one
        for group in self.all_groups:
            if group.name not in found:
                if not missing:
                    problems.append(f"{name}: group {group.name}: no array tells its number of units")
                found[group.name] = self._sizes[group.name]
        for key, layout in self.layouts.items():
            if key in shapes and tuple(shapes[key]) != layout.shape(found):
                problems.append(
                    f"{name}: array {key} has shape {tuple(shapes[key])}; by its groups "
                    f"({_of(layout, found)}) it should have {layout.shape(found)}"
                )
        if problems:
            raise InputError(problems)
        return found

    def _lengths(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[Axis, int]]:
        """Yield every moving axis with its length in the dense array, simple ones first."""
        found: list[tuple[int, int, Axis, int]] = []
        for key, layout in self.layouts.items():
            shape = shapes.get(key, ())
            if len(shape) != len(layout.axes):
                continue
            for number, (axis, length) in enumerate(zip(layout.axes, shape, strict=True)):
                if axis.moves:
                    dense = length * (layout.blocks if number == 1 else 1)
                    found.append((len({s.group for s in axis.segments}), len(found), axis, dense))
        for _, _, axis, length in sorted(found, key=lambda one: one[:2]):
            yield axis, length

    @cached_property
    def digest(self) -> str:
        """What a proof is bound to: names, axes and groups, not the number of units of groups that may differ."""
        document = symmetry_to_json(self)
        for key in ("proof", "notes"):
            document.pop(key)
        for group in document["groups"]:
            if group["resizable"]:
                group.pop("size")
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    @property
    def proved(self) -> bool:
        """Whether it carries a proof of itself, not of something else."""
        return self.proof is not None and self.proof.digest == self.digest


def _arrays(keys: list[str]) -> str:
    """Return the names of arrays as the subject of a sentence."""
    more = f" and {len(keys) - _FEW} more" if len(keys) > _FEW else ""
    return f"array{'s' if len(keys) > 1 else ''} {', '.join(keys[:_FEW])}{more} {'are' if len(keys) > 1 else 'is'}"


def _of(layout: Layout, units: Mapping[str, int]) -> str:
    names = dict.fromkeys(s.group for axis in layout.axes for s in axis.segments if s.group is not None)
    return ", ".join(f"{name}: {units[name]}" for name in names) or "none"


def _axis_to_json(axis: Axis) -> dict[str, Any]:
    """Return an axis as JSON values, with the odd copies of its segments where not all are odd."""
    found: dict[str, Any] = {"side": axis.side, "segments": [[s.group, s.outer, s.inner] for s in axis.segments]}
    if any(segment.odd is not None for segment in axis.segments):
        found["odd"] = [None if segment.odd is None else list(segment.odd) for segment in axis.segments]
    return found


def symmetry_to_json(symmetry: Symmetry) -> dict[str, Any]:
    """Return a symmetry as JSON values."""
    return {
        "groups": [
            {
                "name": group.name,
                "size": group.size,
                "order": group.order,
                "parent": group.parent,
                "actions": list(group.actions),
                "resizable": group.resizable,
            }
            for group in symmetry.all_groups
        ],
        "arrays": {
            name: {
                "blocks": layout.blocks,
                "axes": [_axis_to_json(axis) for axis in layout.axes],
            }
            for name, layout in symmetry.layouts.items()
        },
        "aliases": dict(symmetry.aliases),
        "notes": list(symmetry.notes),
        "proof": None
        if symmetry.proof is None
        else {
            "digest": symmetry.proof.digest,
            "deviation": symmetry.proof.deviation,
            "trials": symmetry.proof.trials,
        },
    }
