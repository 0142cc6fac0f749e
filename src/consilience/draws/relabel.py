"""Relabelling of mixture components whose numbers switch between draws, chains and sites.

Every draw has K components with p features each: the entries of its exchangeable variables, logarithms of positive ones
and of weights. With labels z_t, a permutation for each draw, centres c_k and standard deviations s_i that all labels
share, the objective is the negative log-likelihood

    F = 1/2 sum_t sum_k sum_i (x_{t z_t(k) i} - c_{k i})^2 / s_i^2 + N K sum_i log s_i,

which is lowered in turn by assigning each draw to the centres (linear assignment, ``matching.assignment``) and by
taking means and deviations anew, until no label changes: the k-means form of Stephens (2000). Chains are relabelled
first, then the centres of chains against each other, then those of sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.draws.constraints import Bound, IntervalConstraint, Ordered, Simplex
from consilience.draws.containers import other_groups, to_container
from consilience.draws.draws import Draws, as_draws
from consilience.draws.matrix_constraints import MatrixConstraint
from consilience.errors import InputError, OptionError, Problem
from consilience.matching.assignment import assign_blocks

MAX_PASSES = 100
"""A bound on passes; the objective falls with each and labels are finitely many. 2 to 6 were seen."""
COMPONENT_AXES = (("component",), ("components",), ("cluster",))
"""First axes of variables that are taken to be by component where nothing is said."""
CLOSE_COST = 1.0
"""Difference of costs, in nats, below which a draw's second-best labels are nearly as good."""
MIN_DEVIATION = 1e-9
"""Least standard deviation of a feature, relative to that over all components: of one that does not vary within any."""


@dataclass(frozen=True, eq=False)
class Relabelling:
    """Labels of the components of draws, and how sure they are.

    Parameters
    ----------
    labels : ndarray of int of shape (C, T, K)
        The new component of every component of every draw.
    centres : ndarray of shape (K, p)
        Mean features of the new components.
    deviations : ndarray of shape (p,)
        Standard deviations within components.
    objective : float
        F at the end.
    history : ndarray of shape (passes,)
        F after every pass, over all chains.
    close_share : float
        Share of draws whose second-best labels cost less than `CLOSE_COST` more.
    switched_share : float
        Share of draws whose labels are not those of most draws.
    """

    labels: Labels
    centres: Array
    deviations: Array
    objective: float
    history: Array
    close_share: float
    switched_share: float


def relabel(
    draws: Any, exchangeable: Sequence[str] | None = None, *, constraints: Any = None, details: bool = False
) -> Any:
    """Return draws of a mixture with components numbered alike in all draws, chains and, of a list, sites.

    Parameters
    ----------
    draws : InferenceData, DataTree, mapping of arrays, Draws, or list of such
        The draws of one site, or of several.
    exchangeable : sequence of str, optional
        Variables whose first own axis are the components, such as ``("mu", "sigma", "weights")``. Default: what
        ``Draws`` say, else the variables whose first own axis is called "component", "components" or "cluster".
    constraints : mapping of str to constraint, optional
        Where variables lie: see ``Draws``. Logarithms are compared of positive ones and of simplexes.
    details : bool
        Whether to return what was found too. Default: the draws alone.

    Returns
    -------
    draws
        In the container that they came in, with its other groups; a list of them for a list. With `details`, a
        tuple of this and of a `Relabelling` for each site.

    Raises
    ------
    InputError
        For draws without the variables, or with other numbers of components.
    OptionError
        Where no variables are named.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> mu = np.array([-2.0, 1.0]) + 0.1 * rng.normal(size=(2, 400, 2))
    >>> mu[:, ::2] = mu[:, ::2, ::-1]                                       # every second draw is switched
    >>> fixed = relabel({"mu": mu}, ["mu"])
    >>> [abs(round(float(m), 1)) for m in sorted(fixed["mu"].mean(axis=(0, 1)))]
    [2.0, 1.0]
    """
    is_list = isinstance(draws, list | tuple) and not all(isinstance(one, str) for one in draws)
    originals = draws if is_list else [draws]
    relabelled, relabellings = relabel_sites([_stated(one, exchangeable, constraints) for one in originals])
    results = [
        new if isinstance(old, Draws) else to_container(new, other_groups(old))
        for old, new in zip(originals, relabelled, strict=True)
    ]
    answer = results if is_list else results[0]
    return (answer, relabellings if is_list else relabellings[0]) if details else answer


def _stated(draws: Any, exchangeable: Sequence[str] | None, constraints: Any) -> Draws:
    """Return draws with the variables that are by component: as stated, or by the name of their first own axis."""
    site = as_draws(draws)
    if exchangeable is not None:
        site = replace(site, exchangeable=())
    site = site.stated(exchangeable=exchangeable, constraints=constraints)
    if not site.exchangeable:
        by_axis = tuple(name for name in site.variables if site.dims_of(name)[:1] in COMPONENT_AXES)
        site = site.stated(exchangeable=by_axis)
    if not site.exchangeable:
        raise OptionError("exchangeable", "names no variables by component, such as `exchangeable=('mu', 'sigma')`")
    return site


def relabel_sites(sites: Sequence[Draws]) -> tuple[list[Draws], list[Relabelling]]:
    """Return draws of sites whose components are numbered alike, and the labels."""
    first = sites[0]
    problems = []
    expected = f"{first.n_components} in {', '.join(first.exchangeable)}"
    for number, site in enumerate(sites):
        if (set(site.exchangeable), site.n_components) != (set(first.exchangeable), first.n_components):
            its = f"{site.n_components} components in {', '.join(site.exchangeable)}"
            text = f"have {its}, expected {expected}"
            problems.append(Problem(f"draws {number}", text, "fit the same mixture at all sites", "E-MISMATCH"))
    if problems:
        raise InputError(problems)
    features = [component_features(site, first.exchangeable) for site in sites]
    relabellings = [_relabel_site(one) for one in features]
    if len(sites) > 1:
        relabellings = _align_sites(relabellings)
    return [apply_labels(site, one.labels) for site, one in zip(sites, relabellings, strict=True)], relabellings


def component_features(draws: Draws, names: Sequence[str]) -> Array:
    """Return features (C, T, K, p) of the components of every draw."""
    columns = []
    for name in names:
        values, constraint = draws.variables[name], draws.constraints[name]
        if isinstance(constraint, Ordered):
            raise InputError(name, "is ordered, so that its components cannot be switched", "leave it out")
        if not np.all(constraint.is_inside(values)):
            raise InputError(name, f"has values outside of its constraint, {constraint.name}", code="E-NUMBER")
        shape = values.shape[3:]  # of one component
        flat = values.reshape(-1, *shape)
        if isinstance(constraint, Bound | IntervalConstraint | MatrixConstraint):
            features = constraint.unconstrain(flat)
        elif isinstance(constraint, Simplex):
            features = np.log(flat).reshape(len(flat), -1)
        else:
            features = flat.reshape(len(flat), -1)
        columns.append(features.reshape(*values.shape[:3], -1))
    return np.concatenate(columns, axis=3)


def _relabel_site(features: Array) -> Relabelling:
    """Return the labels of one site: within chains, then between chains, then of all draws together."""
    n_chains, length, n_components, _ = features.shape
    fits = [_cluster(chain) for chain in features]
    scale = np.mean([deviations for _, _, deviations in fits], axis=0)
    reference = fits[0][1]
    labels = np.empty((n_chains, length, n_components), dtype=np.int64)
    for number, (own, centres, _) in enumerate(fits):
        labels[number] = assign_components((centres / scale)[None], reference / scale)[0][own]
    flat = features.reshape(-1, n_components, features.shape[3])
    together, centres, deviations, history = _descend(flat, labels.reshape(-1, n_components))
    codes = np.unique(together, axis=0, return_counts=True)[1]
    return Relabelling(
        together.reshape(labels.shape),
        centres,
        deviations,
        float(history[-1]),
        history,
        _close_share(flat, centres, deviations),
        float(1.0 - codes.max() / len(together)),
    )


def _cluster(draws: Array) -> tuple[Labels, Array, Array]:
    """Return labels (T, K), centres and deviations of one chain (T, K, p), from the best of several starts.

    Starts: numbers as they are, and the components of each draw sorted by each feature.
    """
    order = np.arange(draws.shape[1])
    starts = [np.tile(order, (len(draws), 1))]
    starts += [np.argsort(np.argsort(draws[:, :, i], axis=1), axis=1) for i in range(draws.shape[2])]
    fits = [_descend(draws, start) for start in starts]
    labels, centres, deviations, _ = min(fits, key=lambda fit: float(fit[3][-1]))
    return labels, centres, deviations


def _descend(draws: Array, labels: Labels) -> tuple[Labels, Array, Array, Array]:
    """Return labels (N, K), centres, deviations and the objective after every pass, of draws (N, K, p)."""
    n_draws, n_components, _ = draws.shape
    floor = MIN_DEVIATION * np.maximum(draws.reshape(-1, draws.shape[2]).std(axis=0), np.finfo(np.float64).tiny)
    history = []
    for _ in range(MAX_PASSES):
        ordered = np.take_along_axis(draws, np.argsort(labels, axis=1)[:, :, None], axis=1)  # by new label
        centres = ordered.mean(axis=0)
        deviations = np.maximum(np.sqrt(np.mean((ordered - centres) ** 2, axis=(0, 1))), floor)
        squares = np.sum(((ordered - centres) / deviations) ** 2)
        history.append(0.5 * squares + n_draws * n_components * np.log(deviations).sum())
        updated = assign_components(draws / deviations, centres / deviations)
        if np.array_equal(updated, labels):
            break
        labels = updated
    return labels, centres, deviations, np.array(history)


def _costs(draws: Array, centres: Array) -> Array:
    """Return half the squared distances (N, K, K) of components from centres, in units of the deviations."""
    squares = np.sum(draws**2, axis=2)[:, :, None] + np.sum(centres**2, axis=1) - 2.0 * draws @ centres.T
    return 0.5 * np.maximum(squares, 0.0)


def assign_components(draws: Array, centres: Array) -> Labels:
    """Return the centre of every component (N, K) of draws (N, K, p), each of a draw another one."""
    n_draws, n_components, _ = draws.shape
    offsets = np.arange(n_draws + 1) * n_components
    flat = _costs(draws, centres).reshape(-1, n_components)
    return assign_blocks(flat, offsets).reshape(n_draws, n_components)


def _close_share(draws: Array, centres: Array, deviations: Array) -> float:
    """Return the share of draws whose second-best assignment costs less than `CLOSE_COST` more than the best.

    The second-best one lacks at least one pair of the best: each is forbidden in turn.
    """
    n_draws, n_components, _ = draws.shape
    if n_components == 1:
        return 0.0
    costs = _costs(draws / deviations, centres / deviations)  # (N, K, K)
    offsets = np.arange(n_draws + 1) * n_components
    best = assign_blocks(costs.reshape(-1, n_components), offsets).reshape(n_draws, n_components)
    rows = np.arange(n_draws)

    def total(of: Array, labels: Labels) -> Array:
        return np.take_along_axis(of, labels[:, :, None], axis=2)[:, :, 0].sum(axis=1)

    lowest = total(costs, best)
    second = np.full(n_draws, np.inf)
    for component in range(n_components):
        without = costs.copy()
        without[rows, component, best[:, component]] += 1e6 + lowest
        other = assign_blocks(without.reshape(-1, n_components), offsets).reshape(n_draws, n_components)
        second = np.minimum(second, total(without, other))
    return float(np.mean(second - lowest < CLOSE_COST))


def _align_sites(relabellings: Sequence[Relabelling]) -> list[Relabelling]:
    """Return labels of sites so that equal numbers are nearest centres: each site against the mean of those before."""
    scale = np.sqrt(np.mean([one.deviations**2 for one in relabellings], axis=0))
    total, aligned = np.zeros_like(relabellings[0].centres), []
    for number, one in enumerate(relabellings):
        labels = np.arange(len(one.centres))
        if number:
            labels = assign_components((one.centres / scale)[None], total / number / scale)[0]
        centres = one.centres[np.argsort(labels)]
        total += centres
        aligned.append(replace(one, labels=labels[one.labels], centres=centres))
    return aligned


def apply_labels(draws: Draws, labels: Labels) -> Draws:
    """Return draws whose exchangeable variables are in the order of labels (C, T, K)."""
    order = np.argsort(labels, axis=2)
    variables = dict(draws.variables)
    for name in draws.exchangeable:
        values = variables[name]
        index = order.reshape(*order.shape, *[1] * (values.ndim - 3))
        variables[name] = np.take_along_axis(values, index, axis=2)
    return replace(draws, variables=variables)
