"""Symmetries of networks: the groups of units that move together, and where they stand in the arrays.

Renumbering the hidden units of a layer changes no output as long as every array that touches them is renumbered alike:
for y = W_2 f(W_1 x + b_1) and any permutation matrix P,

    W_2 P^T f(P W_1 x + P b_1) = W_2 f(W_1 x + b_1).

P acts on the rows of the weights that make the units, on their biases and normalisation, and on the columns of the
weights that read them. Such units are a *group* (a permutation group of the specification in Git Re-Basin, Ainsworth et
al. 2023). A `Symmetry` names the groups of a network and assigns the segments of every axis of every array to them. It
contains names and shapes only, no weights and no framework. `Symmetry.units` reads the numbers of units off the shapes
of another network, or refuses it with every array that does not fit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from consilience.checks import AnyArray, Json
from consilience.drawing.display import Displayed, names_in_line
from consilience.drawing.words import first_names, format_count
from consilience.errors import InputError, Problem
from consilience.networks.symmetry.axes import Axis, Group, Layout, Place, Proof, fixed_axes

MAX_LISTED_ARRAYS = 5
"""Arrays that a message names; more are counted. Chosen by hand, for legible messages."""

_REMEDY = "fuse networks of one architecture only, with a symmetry of theirs"


@dataclass(frozen=True, repr=False)
class Symmetry(Displayed):
    """Which axes of a network's arrays move together.

    Parameters
    ----------
    layouts : mapping of str to Layout
        The axes of every array by name. Arrays without units have axes that never move.
    all_groups : tuple of Group
        The groups, in the order of computation.
    aliases : mapping of str to str, optional
        Second names of tied arrays, to the name that `layouts` has. Default: none.
    notes : tuple of str, optional
        Operations that the tracer could not look through, a line each; the units that they touch never move.
    proof : Proof, optional
        Record of its proof; None for an unproved symmetry.

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

    def _headline(self) -> str:
        state = "proved" if self.proved else "unproved"
        return f"{format_count(len(self.all_groups), 'group')} in {format_count(len(self.layouts), 'array')}, {state}"

    def _facts(self) -> dict[str, object | None]:
        roles = self.roles
        called = {name: f" ({roles[name]})" if roles[name] != UNITS else "" for name in self.groups}
        sizes = [f"{name} {size:,}{called[name]}" for name, size in self.groups.items()]
        return {"units by group": names_in_line(sizes, 40), "not looked through": names_in_line(self.notes, 60)}

    @property
    def groups(self) -> dict[str, int]:
        """Number of units of every group in the network that was traced, in the order of computation.

        Units inside a parent are counted over all of its units: group size times parent size.
        """
        return {name: self._sizes[name] for name in self.by_name}

    @property
    def roles(self) -> dict[str, str]:
        """What every group is, by its arrays and by what lies inside it: units, heads, a residual stream."""
        return {name: self._role(group) for name, group in self.by_name.items()}

    def _role(self, group: Group) -> str:
        """Return what a group is."""
        kind = next((one for one in (*reversed(group.name.split(".")),) if not one.isdigit()), "")
        if group.parent is not None:
            return _INSIDE_HEADS.get(kind, f"inside {group.parent}")
        if kind == "heads":
            inside = {name for child in self.children(group.name) for name in child.name.split(".")}
            return "heads of keys and values" if "heads" in inside else "heads"
        inside = self._branches(group.name)
        # Of two groups of which each lies on a branch of the other, the one of more branches, or the earlier one.
        rank = (len(inside), -group.order)
        others = [(len(self._branches(name)), -self.by_name[name].order) for name in inside]
        return "residual stream" if len(inside) >= MIN_OF_STREAM and rank > max(others) else UNITS

    def _branches(self, group: str) -> set[str]:
        """Return the groups that are made of a group, and that write into it again."""
        writes, reads = (
            {other for place in self.places(group) if place.side == side for other in self.beside(place)}
            for side in ("output", "input")
        )
        return writes & reads

    @cached_property
    def by_name(self) -> dict[str, Group]:
        """The groups by name, in the order of computation."""
        return {group.name: group for group in sorted(self.all_groups, key=lambda group: group.order)}

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Number of units by group in the network that was traced, over all units of a parent."""
        sizes = {group.name: group.size for group in self.all_groups}
        return {g.name: g.size * (1 if g.parent is None else sizes[g.parent]) for g in self.all_groups}

    @cached_property
    def _places(self) -> dict[str, tuple[Place, ...]]:
        """The places of every group, in the order of the arrays."""
        places: dict[str, list[Place]] = {group.name: [] for group in self.all_groups}
        for array, layout in self.layouts.items():
            for axis_number, axis in enumerate(layout.axes):
                for segment_number, segment in enumerate(axis.segments):
                    if segment.group is not None:
                        places[segment.group].append(Place(array, axis_number, segment_number, axis.side))
        return {group: tuple(group_places) for group, group_places in places.items()}

    def places(self, group: str) -> tuple[Place, ...]:
        """Return every place of a group, in the order of the arrays."""
        return self._places[group]

    def beside(self, place: Place) -> set[str]:
        """Return the groups on the other axes of a place's array."""
        axes = self.layouts[place.array].axes
        return {s.group for n, axis in enumerate(axes) if n != place.axis for s in axis.segments if s.group is not None}

    def children(self, group: str) -> list[Group]:
        """Return the groups whose units lie inside the units of this one."""
        return [child for child in self.all_groups if child.parent == group]

    def units(self, shapes: Mapping[str, tuple[int, ...]], name: str = "network") -> dict[str, int]:
        """Return the number of units of every group in a network with arrays of these shapes.

        A group whose size is not fixed is solved for, one axis at a time: an axis with a single group of unknown size k
        has the length ``known entries + k * (entries per unit)``.

        Parameters
        ----------
        shapes : mapping of str to tuple of int
            Shape of every array by name.
        name : str, optional
            The network's name in messages. Default: "network".

        Raises
        ------
        InputError
            Naming every array that is missing, unknown, or of a shape that no number of units explains.
        """
        key = tuple((array, tuple(shape)) for array, shape in shapes.items())
        units = self._units_by_shapes.get(key)
        if units is None:
            units = self._solve_units(shapes, name)
            self._units_by_shapes.clear()  # the networks of a fusion have one set of shapes, as a rule
            self._units_by_shapes[key] = units
        return dict(units)

    @cached_property
    def _units_by_shapes(self) -> dict[tuple[tuple[str, tuple[int, ...]], ...], dict[str, int]]:
        """The number of units that were last solved for, by the shapes of all arrays."""
        return {}

    def _solve_units(self, shapes: Mapping[str, tuple[int, ...]], name: str) -> dict[str, int]:
        """Return the number of units of every group, as `units` does."""
        missing = [key for key in self.layouts if key not in shapes]
        unexpected = [key for key in shapes if key not in self.layouts and key not in self.aliases]
        problems = []
        if missing:
            problems.append(Problem(name, f"{_describe_arrays(missing)} missing", _REMEDY, "E-NEEDED"))
        if unexpected:
            problems.append(Problem(name, f"{_describe_arrays(unexpected)} not in the symmetry", _REMEDY, "E-MISMATCH"))
        units = self._determined_units(shapes)
        # What nothing determines is as wide as in the network that was traced, so that all that differs is found.
        for group in self.all_groups:
            if group.name not in units:
                if not missing:
                    problems.append(Problem(name, f"group {group.name}: no array tells its number of units"))
                units[group.name] = self._sizes[group.name]
        for key, layout in self.layouts.items():
            if key in shapes and tuple(shapes[key]) != layout.shape(units):
                text = (
                    f"array {key} has shape {tuple(shapes[key])}; by its groups ({_describe_units(layout, units)}) it "
                )
                problems.append(Problem(name, f"{text}should have {layout.shape(units)}", code="E-SHAPE"))
        if problems:
            raise InputError(problems)
        return units

    def _determined_units(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the number of units of the groups that are not resizable, and of those that the axes determine."""
        units = {g.name: self._sizes[g.name] for g in self.all_groups if not g.resizable or g.parent is not None}
        # Axes with one group come first, so that what they determine is known where several groups are concatenated.
        axes = [
            (axis, length)
            for key, layout in self.layouts.items()
            for axis, length in zip(layout.axes, layout.lengths(shapes.get(key, ())), strict=False)
            if axis.moves
        ]
        for axis, length in sorted(axes, key=lambda entry: len({s.group for s in entry[0].segments})):
            undetermined = {s.group for s in axis.segments if s.group is not None} - set(units)
            if len(undetermined) == 1:
                (group_name,) = undetermined
                remaining = length - sum(s.length(units) for s in axis.segments if s.group != group_name)
                entries_per_unit = sum(s.outer * s.inner for s in axis.segments if s.group == group_name)
                if remaining > 0 and remaining % entries_per_unit == 0:
                    units[group_name] = remaining // entries_per_unit
        return units

    @cached_property
    def digest(self) -> str:
        """SHA-256 of names, axes and groups, which a proof is bound to; sizes of resizable groups are left out."""
        document = symmetry_to_json(self)
        for key in ("proof", "notes"):
            document.pop(key)
        for group in document["groups"]:
            if group["resizable"]:
                group.pop("size")
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    @property
    def proved(self) -> bool:
        """Whether it carries a proof of itself: one with its own digest."""
        return self.proof is not None and self.proof.digest == self.digest


UNITS = "units"
"""What groups are that are no heads, and no stream."""
MIN_OF_STREAM = 2
"""Groups that read a residual stream and write into it again, at least: squeeze and excitation is one for channels that
are none. Chosen by hand."""
_INSIDE_HEADS = {
    "heads": "heads of queries in a head of keys and values",
    "query_key": "queries and keys inside heads",
    "value": "values inside heads",
}
"""What groups inside heads are, by the ends of their names."""


def trivial_symmetry(
    arrays: Mapping[str, AnyArray], aliases: Mapping[str, str] | None = None, notes: tuple[str, ...] = ()
) -> Symmetry:
    """Return the symmetry under which no array moves; `aliases` are second names of tied ones, to the first."""
    aliases = aliases or {}
    layouts = {key: Layout(fixed_axes(tuple(v.shape))) for key, v in arrays.items() if key not in aliases}
    return Symmetry(layouts, (), aliases, notes)


def _describe_arrays(keys: list[str]) -> str:
    """Return the names of arrays as the subject of a sentence."""
    noun, verb = ("arrays", "are") if len(keys) > 1 else ("array", "is")
    return f"{noun} {first_names(keys, MAX_LISTED_ARRAYS)} {verb}"


def _describe_units(layout: Layout, units: Mapping[str, int]) -> str:
    """Return the groups of an array with their numbers of units, in words."""
    names = dict.fromkeys(s.group for axis in layout.axes for s in axis.segments if s.group is not None)
    return ", ".join(f"{name}: {units[name]}" for name in names) or "none"


def _axis_to_json(axis: Axis) -> dict[str, Json]:
    """Return an axis as JSON values, with the odd copies of its segments where not all are odd."""
    entry: dict[str, Json] = {"side": axis.side, "segments": [[s.group, s.outer, s.inner] for s in axis.segments]}
    if any(segment.odd is not None for segment in axis.segments):
        entry["odd"] = [None if segment.odd is None else list(segment.odd) for segment in axis.segments]
    return entry


def symmetry_to_json(symmetry: Symmetry) -> dict[str, Any]:
    """Return a symmetry as JSON values; `symmetry_from_json` reads them."""
    arrays: dict[str, dict[str, Json]] = {}
    for name, layout in symmetry.layouts.items():
        arrays[name] = {"blocks": layout.blocks, "axes": [_axis_to_json(axis) for axis in layout.axes]}
        if layout.split is not None:
            arrays[name]["split"] = list(layout.split)
    return {
        # JSON knows no tuples.
        "groups": [{**vars(group), "actions": list(group.actions)} for group in symmetry.all_groups],
        "arrays": arrays,
        "aliases": dict(symmetry.aliases),
        "notes": list(symmetry.notes),
        "proof": None if symmetry.proof is None else dict(vars(symmetry.proof)),
    }
