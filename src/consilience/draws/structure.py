"""Structure that draws of all sites show by themselves: matrices, simplexes, constant entries, copies of entries.

Samplers write what a model declares: a Cholesky factor with the zeros above its diagonal, a correlation matrix with
both triangles. Such entries are no parameters, and a covariance with them is singular. Where nothing is stated of a
variable, a structure that holds in every draw of every site is its constraint: of a law without it, no draw would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array
from consilience.core.inspection import MAX_LISTED, listed
from consilience.draws.constraint_table import NARROWER, STRUCTURES, is_shaped
from consilience.draws.constraints import Constraint, Elementwise, Real
from consilience.draws.draws import Draws
from consilience.draws.tied_entries import TiedEntries, tied_entries
from consilience.errors import InputError, Problem

ROUNDING = 1e-12
"""Range of a coordinate, relative to its size, that is rounding. Chosen by hand, far above that of float64."""


def with_structures(sites: Sequence[Draws], labels: Sequence[str]) -> tuple[list[Draws], list[Problem]]:
    """Return draws with the constraint that each variable has in all draws of all sites, where nothing is stated.

    A site that states nothing takes what others state, where its draws are so; tied entries are found anew. Problems
    are sites of which one has a narrower structure than another, or than it states, and priors that it cannot have.
    Messages call sites by their labels.
    """
    untied = [
        _with_constraints(site, {name: one.inner for name, one in site.constraints.items() if _is_tied(one)})
        for site in sites
    ]
    found, problems = _common_structures(untied, labels)
    described = []
    for site, label in zip(untied, labels, strict=True):
        try:
            described.append(_with_constraints(site, found))
        except InputError as error:  # of a law that cannot be the prior of such a variable
            problems += [problem.about(label) for problem in error.problems]
    return (described if not problems else list(sites)), problems


def _common_structures(sites: Sequence[Draws], labels: Sequence[str]) -> tuple[dict[str, Constraint], list[Problem]]:
    """Return the structure of each variable that all sites have, and what is wrong with those of single sites."""
    found: dict[str, Constraint] = {}
    problems: list[Problem] = []
    for name, values in sites[0].variables.items():
        others = [site.variables.get(name) for site in sites]
        if any(one is None or one.shape[2:] != values.shape[2:] for one in others) or _is_switched(sites, name):
            continue
        shown = [structure_of(draws) for draws in _flat(sites, name)]
        stated = {site.constraints[name] for site in sites} - {Real()}
        if narrow := _narrower(sites, labels, name, shown):
            problems += narrow
        elif len(set(shown)) == 1 and shown[0] is not None and stated <= {shown[0]}:
            found[name] = shown[0]
    return found, problems


def structure_of(values: Array) -> Constraint | None:
    """Return the narrowest structure that all draws (n, ...) of a variable have; None where they have none."""
    return next((structure for structure in STRUCTURES if _holds(structure, values)), None)


def _narrower(
    sites: Sequence[Draws], labels: Sequence[str], name: str, shown: Sequence[Constraint | None]
) -> list[Problem]:
    """Return the sites whose draws have a narrower structure than they state, or other sites have, a line each."""
    narrow = [(label, one) for label, one in zip(labels, shown, strict=True) if one is not None and one in NARROWER]
    if not narrow:
        return []
    problems = []
    for site, label, own in zip(sites, labels, shown, strict=True):
        stated = site.constraints[name]
        if own is not None and NARROWER.get(own) == stated:
            text = f"{name} is a {own.name} in all draws, and is stated to be a {stated.name}"
            problems.append(Problem(label, text, f"state `constraints={{{name!r}: {own.name!r}}}`", "E-MISMATCH"))
    first_label, first = narrow[0]
    return problems or [
        Problem(
            label,
            f"{name} is a {own.name}, expected a {first.name} as in {first_label}",
            "fit the same model at all sites",
            "E-MISMATCH",
        )
        for label, own in zip(labels, shown, strict=True)
        if own is not None and own != first
    ]


def _is_tied(constraint: Constraint) -> bool:
    return isinstance(constraint, TiedEntries)


def _with_constraints(draws: Draws, constraints: dict[str, Any]) -> Draws:
    changed = {name: one for name, one in constraints.items() if draws.constraints[name] != one}
    return replace(draws, constraints={**draws.constraints, **changed}) if changed else draws


def _flat(sites: Sequence[Draws], name: str) -> list[Array]:
    """Return the draws (n, ...) of a variable, site by site."""
    return [site.variables[name].reshape(-1, *site.variables[name].shape[2:]) for site in sites]


def _holds(structure: Constraint, values: Array) -> bool:
    """Return whether draws (n, ...) have a structure, and vary in all of its coordinates by more than rounding."""
    if not is_shaped(structure, values.shape[1:]) or values.shape[-1] < 2:
        return False
    if not np.all(structure.is_inside(values[:1])):  # which is quick, and nearly always the answer
        return False
    return bool(np.all(structure.is_inside(values)) and np.all(_varies(structure.unconstrain(values))))


def _varies(coordinates: Array) -> NDArray[np.bool_]:
    """Return which coordinates (d,) of draws (n, d) vary by more than rounding."""
    varies: NDArray[np.bool_] = np.ptp(coordinates, axis=0) > ROUNDING * np.abs(coordinates).max(axis=0)
    return varies


def _is_switched(sites: Sequence[Draws], name: str) -> bool:
    """Return whether an axis of components, which change places, would be one of the axes of a matrix."""
    return sites[0].variables[name].ndim == 4 and any(name in site.exchangeable for site in sites)


def with_tied_entries(sites: Sequence[Draws], labels: Sequence[str]) -> tuple[list[Draws], list[Problem]]:
    """Return draws without the entries that are constant, or copies, at all sites; and where sites differ in them.

    Sites have the same variables, with components numbered alike; messages call them by their labels.
    """
    problems: list[Problem] = []
    found: dict[str, Any] = {}
    for name, constraint in sites[0].constraints.items():
        if isinstance(constraint, Elementwise):
            values = _flat(sites, name)
            patterns = [tied_entries(one, constraint) for one in values]
            if len(set(patterns)) > 1:
                problems += _differences(sites, labels, name, values)
            elif patterns[0] is not None:
                found[name] = patterns[0]
        else:
            problems += _fixed_coordinates(sites, labels, name)
    if problems:
        return list(sites), problems
    return [_with_constraints(site, found) for site in sites], problems


def _differences(sites: Sequence[Draws], labels: Sequence[str], name: str, values: Sequence[Array]) -> list[Problem]:
    """Return which sites have constants, or copies, that others have not, a line each."""
    flat = [one.reshape(len(one), -1) for one in values]
    is_constant = np.stack([np.ptp(one, axis=0) == 0 for one in flat])  # (J, n_entries)
    is_common = is_constant.all(axis=0)
    entries, problems = np.array(sites[0].entry_names(name), dtype=object), []
    others = [repr(variable) for variable in sites[0].variables if variable != name]
    leave_out = f"leave it out with `only=({', '.join(others)},)`" if 0 < len(others) <= MAX_LISTED else ""
    remedy = leave_out or f"fit the same model at all sites, or leave {name} out"
    for place, label in enumerate(labels):
        if np.any(is_alone := is_constant[place] & ~is_common):
            text = f"has the same value in all draws of {listed(entries[is_alone].tolist())}, unlike the other sites"
            problems.append(Problem(label, text, remedy, "E-NUMBER"))
        for entry in np.flatnonzero(is_common & (flat[place][0] != flat[0][0]))[:1]:
            value, expected = flat[place][0, entry], flat[0][0, entry]
            text = f"has {entries[entry]} = {value:g} in all draws, expected {expected:g} as in {labels[0]}"
            problems.append(Problem(label, text, remedy, "E-MISMATCH"))
    if problems:
        return problems
    patterns = [tied_entries(one, Real()) for one in values]
    odd = next(place for place, pattern in enumerate(patterns) if pattern != patterns[0])
    return [Problem(labels[odd], f"has other copies of entries in {name} than {labels[0]}", remedy, "E-MISMATCH")]


def _fixed_coordinates(sites: Sequence[Draws], labels: Sequence[str], name: str) -> list[Problem]:
    """Return which sites have draws of a matrix or vector that do not vary in some coordinate, a line each."""
    constraint = sites[0].constraints[name]
    called = constraint.coordinate_names(sites[0].entry_names(name), sites[0].variables[name].shape[2:])
    problems = []
    for label, values in zip(labels, _flat(sites, name), strict=True):
        if len(fixed := np.flatnonzero(~_varies(constraint.unconstrain(values)))):
            text = f"has the same value in all draws of {listed([called[place] for place in fixed])}"
            remedy = f"state `constraints={{{name!r}: 'real'}}`, which carries constants over"
            problems.append(Problem(label, text, remedy, "E-NUMBER"))
    return problems
