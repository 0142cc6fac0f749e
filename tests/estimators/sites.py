"""Rows split over sites, and fitted estimators compared attribute by attribute."""

from __future__ import annotations

import warnings

import numpy as np

from consilience.estimators import describe as room
from consilience.estimators.average import average
from consilience.estimators.rebuild import rebuild

ZERO = 1e-3
"""Attributes below this are compared absolutely: the mean of columns that a step has centred is rounding."""


def weights_of(case, n, seed):
    return np.random.default_rng(seed + 1).uniform(0.2, 3.0, n) if case.weighted else None


def owners(rng, n, n_sites, y=None):
    """Return the site of every row: unequal sites, none without rows; with `y`, classes live at a few sites each."""
    owner = np.empty(n, dtype=np.int64)
    groups = [np.arange(n)] if y is None else [np.flatnonzero(y == label) for label in np.unique(y)]
    for members in groups:
        shares = rng.dirichlet(np.full(n_sites, 0.3)) + 1e-3
        owner[members] = rng.choice(n_sites, len(members), p=shares / shares.sum())
    owner[rng.choice(n, n_sites, replace=False)] = np.arange(n_sites)
    return owner


def has_classes(y):
    return y is not None and y.ndim == 1 and len(np.unique(y)) < 10


def site_statistics(monkeypatch, model, X, y, weights, owner):
    """Return the statistics of the rows of every site.

    A site of few rows may have no model of its own (one class, fewer rows than columns), so its sums are taken for a
    model of all rows, whose columns and hyper-parameters are the same; that it is the site's own is not asked here.
    """
    monkeypatch.setattr(room, "_require_same_fit", lambda *_: None)
    sites = []
    for site in np.unique(owner):
        rows = np.flatnonzero(owner == site)
        data = X[rows] if y is None else (X[rows], y[rows])
        found = room.describe_all(model, data, sample_weight=None if weights is None else weights[rows])
        sites.append(room.withhold(found, 0.0)[0])  # without classes of no rows
    return sites


def fused_of(sites):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rebuild(average(sites))


def fitted(model):
    """Return the fitted attributes of an estimator by name, of a Pipeline those of all its steps."""
    if hasattr(model, "steps"):
        return {
            f"{name}.{key}": value
            for name, step in model.steps
            if not isinstance(step, str)
            for key, value in fitted(step).items()
        }
    return {name: value for name, value in vars(model).items() if name.endswith("_") and not name.startswith("_")}


def differences(fused, pooled, relative, ignored=()):
    """Return which fitted attributes differ by more than `relative` of the largest entry, with the difference."""
    found, expected = fitted(fused), fitted(pooled)
    problems = [f"{name} is missing" for name in sorted(set(expected) - set(found))]
    for name in sorted(set(expected) & set(found)):
        if name.rpartition(".")[2] not in ignored:
            problems += _differences(name, found[name], expected[name], relative)
    return problems


def _differences(name, found, expected, relative):
    if isinstance(expected, list):
        if len(found) != len(expected):
            return [f"{name} has {len(found)} entries, expected {len(expected)}"]
        pairs = enumerate(zip(found, expected, strict=True))
        return [text for k, (a, b) in pairs for text in _differences(f"{name}[{k}]", a, b, relative)]
    if expected is None or isinstance(expected, str):
        return [] if found == expected else [f"{name} is {found!r}, expected {expected!r}"]
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape:
        return [f"{name} has shape {a.shape}, expected {b.shape}"]
    if b.dtype.kind in "OUS":
        return [] if a.tolist() == b.tolist() else [f"{name} differs"]
    scale = max(float(np.abs(b).max(initial=0.0)), ZERO)
    gap = float(np.abs(a.astype(float) - b.astype(float)).max(initial=0.0))
    return [] if gap <= relative * scale else [f"{name} differs by {gap / scale:.1e}"]
