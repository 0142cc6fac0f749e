"""Checks of draws: values, chains, and what must agree between sites."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.core.agreement import Doubt, twice
from consilience.core.inspection import listed
from consilience.draws.constraints import Elementwise, Simplex, SumToZero
from consilience.draws.diagnostics import (
    MAX_DIVERGENT,
    MAX_RHAT,
    MIN_CHAIN_LENGTH,
    distant_chains,
    divergent_chains,
    rank_rhat,
)
from consilience.draws.draws import Draws
from consilience.draws.matrix_constraints import Correlation, Covariance
from consilience.draws.structure import structure_of
from consilience.draws.tied_entries import TiedEntries
from consilience.errors import Problem

MAX_NAMED = 5
"""Variables and chains that a message names at most. Chosen by hand."""


def value_problems(draws: Draws) -> list[Problem]:
    """Return what is wrong with the values of one site's draws, a line each."""
    length = draws.shape[1]
    problems = []
    if length < MIN_CHAIN_LENGTH:
        text = f"has chains of {length} draws, expected at least {MIN_CHAIN_LENGTH}"
        problems.append(Problem("", text, "sample longer chains", "E-FEW"))
    for name, values in draws.variables.items():
        finite = np.isfinite(values)
        if not finite.all():
            chain, draw = np.argwhere(~finite)[0][:2]
            text = f"is {values[~finite][0]} in draw {draw} of chain {chain}, expected finite numbers"
            problems.append(Problem(name, text, code="E-NUMBER"))
            continue
        constraint = draws.constraints[name]
        inside = constraint.is_inside(values)
        if isinstance(constraint, Elementwise) and name not in draws.exchangeable:
            inside = inside | (np.ptp(values, axis=(0, 1)) == 0)  # constants are no parameters, and are carried over
        if not np.all(inside):
            where = np.argwhere(~inside)[0]
            text = (
                f"lies outside of its constraint, {constraint.to_json()}, in draw {where[1]} of chain {where[0]}:"
                f" {np.asarray(values[tuple(where)]).ravel()[:3].tolist()}"
            )
            problems.append(Problem(name, text, _right_constraint(name, values), "E-NUMBER"))
        elif (discrete := _discrete_entries(values)).any():
            problems.append(_discrete(name, discrete, [other for other in draws.variables if other != name]))
    if problems:
        return problems
    if all(np.all(np.ptp(values, axis=(0, 1)) == 0) for values in draws.variables.values()):
        text = f"has the same value in all draws of {listed(draws.names)}"
        problems.append(Problem("", text, "give draws of its parameters", "E-NUMBER"))
    return problems


def _right_constraint(name: str, values: Array) -> str:
    """Return what to state of a variable whose draws (C, T, ...) lie outside of what is stated."""
    structure = structure_of(values.reshape(-1, *values.shape[2:]))
    return "mend `constraints=" + ("" if structure is None else f"{{{name!r}: {structure.name!r}}}") + "`"


def chain_problems(draws: Draws) -> list[Problem]:
    """Return the chains of one site that are copies, stand still, diverged or did not mix, a line each."""
    chains = draws.shape[0]
    problems = _stuck_problems(draws)
    remedy = "sample again (a smaller step, another parametrisation), or give `allow_divergent=True`"
    for chain in divergent_chains(draws.diverging):
        share = 100 * float(np.mean(draws.diverging[chain]))
        text = f"diverged in {share:.1f} % of its draws, more than {100 * MAX_DIVERGENT:g} %"
        problems.append(Problem(f"chain {chain}", text, remedy, "E-NUMBER"))
    rhat = rank_rhat(draws.unconstrained)
    odd = np.flatnonzero(rhat > MAX_RHAT)
    if len(odd):
        worst = odd[np.argsort(-rhat[odd])][:MAX_NAMED]
        figures = ", ".join(f"{draws.coordinate_names[place]} {rhat[place]:.2f}" for place in worst)
        more = f" and {len(odd) - len(worst)} more" if len(odd) > len(worst) else ""
        apart = distant_chains(draws.unconstrained, worst.tolist())
        subject = f"chain {', '.join(map(str, apart[:MAX_NAMED]))}" if 0 < len(apart) < chains else "its chains"
        verb = "did not mix with the others" if 0 < len(apart) < chains else "did not mix"
        text = f"{verb}: R-hat is above {MAX_RHAT} for {figures}{more}"
        problems.append(Problem(subject, text, f"{remedy}; of a mixture, state `exchangeable=(...)`", "E-NUMBER"))
    return problems


def _discrete_entries(values: Array) -> NDArray[np.bool_]:
    """Return which entries (...) of a variable's draws (C, T, ...) are whole numbers in all of them, and vary."""
    return np.all(values == np.round(values), axis=(0, 1)) & (np.ptp(values, axis=(0, 1)) > 0)


def _discrete(name: str, discrete: NDArray[np.bool_], others: Sequence[str]) -> Problem:
    """Return that a variable is discrete, and what to do: its draws have no density that could be multiplied."""
    which = "is discrete" if discrete.all() else f"has {np.count_nonzero(discrete)} discrete entries"
    remedy = "sum it out of the model, or leave it out" + (f": `only={list(others[:MAX_NAMED])!r}`" if others else "")
    text = f"{which}: whole numbers in all draws, and methods multiply densities of real numbers"
    return Problem(name, text, remedy, "E-NUMBER")


def shared_chains(sites: Sequence[tuple[str, Draws]]) -> list[Doubt]:
    """Return which sites have a chain of an earlier one: no two samplers draw the same numbers."""
    doubts = []
    first_owner: dict[str, tuple[str, int]] = {}
    for label, site in sites:
        owners = [first_owner.setdefault(digest, (label, chain)) for chain, digest in enumerate(chain_digests(site))]
        shared = {chain: owner for chain, owner in enumerate(owners) if owner[0] != label}
        if not shared:
            continue
        other, place = shared[min(shared)]
        are_all = len(shared) == len(owners) and all(owner == other for owner, _ in shared.values())
        what = (
            f"has the same draws as {other}"
            if are_all
            else f"has in chain {min(shared)} the same draws as {other} in chain {place}"
        )
        doubts.append(twice(label, f"{what}: the same rows count twice"))
    return doubts


def chain_digests(draws: Draws) -> list[str]:
    """Return a digest of the values of each chain, variables in alphabetical order."""
    digests = []
    for chain in range(draws.shape[0]):
        digest = hashlib.sha256()
        for name in sorted(draws.variables):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(draws.variables[name][chain] + 0.0).tobytes())
        digests.append(digest.hexdigest())
    return digests


def _stuck_problems(draws: Draws) -> list[Problem]:
    """Return the chains that repeat an earlier one, and those in which a coordinate never moves, a line each."""
    first: dict[str, int] = {}
    problems = []
    for chain, digest in enumerate(chain_digests(draws)):
        if (earlier := first.setdefault(digest, chain)) != chain:
            text = f"has the same draws as chain {earlier}"
            problems.append(Problem(f"chain {chain}", text, "give every chain once", "E-TWICE"))
        fixed = np.flatnonzero(np.ptp(draws.unconstrained[chain], axis=0) == 0)
        if len(fixed):
            names = ", ".join(draws.coordinate_names[place] for place in fixed[:MAX_NAMED])
            text = f"has the same value in all its draws of {names}: it never moved"
            problems.append(Problem(f"chain {chain}", text, "sample again, or leave the chain out", "E-NUMBER"))
    return problems


def disagreements(sites: Sequence[tuple[str, Draws]]) -> list[Problem]:
    """Return how draws differ in what must agree, a line each; sites are called by labels."""
    problems: list[Problem] = []
    for label, site in sites[1:]:
        first_label, first = sites[0]
        problems += variable_disagreements(first_label, first, label, site)
        if set(site.variables) == set(first.variables):
            problems += _statement_disagreements(first_label, first, label, site)
    return problems


def _differs(label: str, what: str, found: object, expected: object, first_label: str, remedy: str = "") -> Problem:
    return Problem(label, f"{what} {found}, expected {expected} as in {first_label}", remedy, "E-MISMATCH")


def in_order_of(site: Draws, first: Draws) -> Draws | None:
    """Return a site's draws with the labels of its axes in the order of another's; None where they already are.

    And where they cannot be: with other labels, labels that stand twice, a prior of its own, and constraints that know
    an order, such as those of Cholesky factors.
    """
    shared = sorted(set(site.coords) & set(first.coords) & first.all_dims())
    orders = {name: _order_of(site.coords[name].tolist(), first.coords[name].tolist()) for name in shared}
    moves = {name: order for name, order in orders.items() if order is not None}
    moved = [name for name in site.variables if not moves.keys().isdisjoint(site.dims_of(name))]
    if not moves or not all(_may_move(site, name, moves) for name in moved):
        return None
    variables = dict(site.variables)
    for name in moved:
        for axis, dim in enumerate(site.dims_of(name), 2):
            if dim in moves:
                variables[name] = np.take(variables[name], moves[dim], axis=axis)
    labels = {name: first.coords[name] for name in moves}
    return replace(site, variables=variables, coords={**site.coords, **labels})


def _order_of(own: list[object], wanted: list[object]) -> Labels | None:
    """Return where each label that is wanted stands; None where they are in order, or are not the same labels once."""
    if own == wanted or len(set(own)) < len(own) or set(own) != set(wanted):
        return None
    return np.array([own.index(label) for label in wanted], dtype=np.int64)


def _may_move(site: Draws, name: str, moves: Mapping[str, Labels]) -> bool:
    """Return whether the entries of a variable may be put in another order: both axes alike of matrices."""
    constraint = site.constraints[name]
    has_law = isinstance(site.prior, dict) and name in site.prior
    if has_law or name in site.exchangeable or isinstance(constraint, TiedEntries):
        return False
    if isinstance(constraint, Covariance | Correlation):
        orders = [moves[dim].tolist() if dim in moves else None for dim in site.dims_of(name)[-2:]]
        return orders[0] is not None and orders[0] == orders[-1]
    return isinstance(constraint, Elementwise | Simplex | SumToZero)


def variable_disagreements(first_label: str, first: Draws, label: str, site: Draws) -> list[Problem]:
    """Return how two sites differ in their variables: names, shapes, dims and labels, a line each."""
    if set(site.variables) != set(first.variables):
        its, expected = (", ".join(sorted(draws.variables))[:200] for draws in (site, first))
        remedy = "fit the same model, or choose with `only=(...)`"
        return [_differs(label, "has the variables", its, expected, first_label, remedy)]
    problems = []
    for name, values in first.variables.items():
        found, shape = site.variables[name].shape[2:], values.shape[2:]
        if found != shape:
            problems.append(_differs(label, f"{name} has shape", found, shape, first_label, "fit the same model"))
        elif site.dims_of(name) != first.dims_of(name):
            its, expected = (", ".join(draws.dims_of(name)) for draws in (site, first))
            remedy = f"name axes alike: `dims={{{name!r}: {first.dims_of(name)!r}}}`"
            problems.append(_differs(label, f"{name} has the dims", its, expected, first_label, remedy))
    remedy = "give all sites the same coords, in one order"
    problems += [
        _differs(
            label,
            f"labels {name}",
            site.coords[name][:3].tolist(),
            first.coords[name][:3].tolist(),
            first_label,
            remedy,
        )
        for name in sorted(set(site.coords) & set(first.coords) & first.all_dims())
        if not np.array_equal(site.coords[name], first.coords[name])
    ]
    return problems


def _statement_disagreements(first_label: str, first: Draws, label: str, site: Draws) -> list[Problem]:
    """Return how two sites differ in what they state of their variables and priors, a line each."""
    problems = []
    for name in first.variables:
        if site.constraints[name] != first.constraints[name]:
            its, expected = (draws.constraints[name].to_json() for draws in (site, first))
            problems.append(_differs(label, f"{name} is", its, expected, first_label, "state the same constraints"))
    problems += [
        _differs(label, f"states {name}", getattr(site, name), getattr(first, name), first_label)
        for name in ("jacobian", "exchangeable", "likelihood_power")
        if getattr(site, name) != getattr(first, name)
    ]
    if (site.prior is None) != (first.prior is None):
        silent, stating = (first_label, label) if first.prior is None else (label, first_label)
        text = f"does not say what of the prior its draws hold, and {stating} does"
        problems.append(Problem(silent, text, "state `prior=` there too"))
    elif _prior_kind(site) != _prior_kind(first):
        kinds = _prior_kind(site), _prior_kind(first)
        problems.append(_differs(label, "states a prior that is", *kinds, first_label, "sample all sites alike"))
    return problems


def _prior_kind(draws: Draws) -> object:
    """Return what must agree of priors: laws whole, powers not."""
    if isinstance(draws.prior, float):
        return "a power"
    if isinstance(draws.prior, dict):
        return {name: draws.prior[name] for name in sorted(draws.prior)}
    return draws.prior
