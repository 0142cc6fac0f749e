"""Input of a meta-analysis: estimates with covariances by site, from values, fitted results or a CSV table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Array
from consilience.errors import InputError, Problem
from consilience.estimators.inference import site_estimate
from consilience.estimators.meta_analysis.between_sites import SiteEstimates
from consilience.estimators.meta_analysis.counts import Measure, effects_of_counts
from consilience.estimators.meta_analysis.tables import Site, read_table
from consilience.estimators.statistics import Statistics
from consilience.files.tables import as_named_table, read_named_table

_ASYMMETRY = 1e-8
"""Asymmetry of a covariance, as a part of its largest entry, that rounding of a printed table may leave."""


def read_estimates(
    estimates: Any, names: Sequence[str] | None, measure: Measure = "log_odds_ratio"
) -> tuple[tuple[str, ...], tuple[str, ...], SiteEstimates]:
    """Return the names of sites, those of coefficients, and the estimates with their covariances."""
    by_site: dict[str, Site] = {}
    problems: list[Problem] = []
    if isinstance(estimates, str | Path):
        table = read_named_table(Path(estimates))
        if table is None:
            raise InputError(estimates, "is no table with named columns", "give .csv, .tsv or .parquet", "E-FILE")
        by_site = read_table(table, estimates, measure)
    elif (frame := as_named_table(estimates)) is not None:
        by_site = read_table(frame, "estimates", measure)
    elif isinstance(estimates, Mapping):
        for site, value in estimates.items():
            try:
                by_site[str(site)] = _site(_counted(value, measure), names)
            except InputError as error:
                problems += [problem.about(site) for problem in error.problems]
    else:
        text = (
            f"expected a mapping from sites to (estimate, covariance), or a table or its path, found"
            f" {type(estimates).__name__}"
        )
        raise InputError("estimates", text, code="E-TYPE")
    if not problems and len(by_site) < 2:
        problems = [Problem("estimates", f"of {len(by_site)} sites, expected two or more", code="E-FEW")]
    if problems := problems or _other_names(by_site):
        raise InputError(problems)
    return _joined(by_site)


def _other_names(by_site: Mapping[str, Site]) -> list[Problem]:
    """Return the sites whose coefficients are named otherwise than the first's, or are more or fewer without names."""
    first, (of_first, _, _) = next(iter(by_site.items()))
    return [
        Problem(
            site, f"names its coefficients otherwise than {first}: {_said(known)}, {_said(of_first)}", code="E-MISMATCH"
        )
        for site, (known, _, _) in by_site.items()
        if (known[0] is None) != (of_first[0] is None) or (known[0] is None and len(known) != len(of_first))
    ]


def _said(names: Sequence[Any]) -> str:
    return f"{len(names)} without names" if names[0] is None else ", ".join(map(str, names[:4]))


def _joined(by_site: Mapping[str, Site]) -> tuple[tuple[str, ...], tuple[str, ...], SiteEstimates]:
    """Return estimates over the union of all coefficients, in the order in which they are met."""
    union = list(dict.fromkeys(name for known, _, _ in by_site.values() for name in known if name is not None))
    unnamed = not union
    p = len(next(iter(by_site.values()))[0]) if unnamed else len(union)
    labels = tuple(f"coefficient {number}" if p > 1 else "effect" for number in range(p)) if unnamed else tuple(union)
    y, v = np.zeros((len(by_site), p)), np.zeros((len(by_site), p, p))
    known = np.zeros((len(by_site), p), dtype=bool)
    for k, (site_names, mean, covariance) in enumerate(by_site.values()):
        places = np.arange(p) if unnamed else np.array([union.index(name) for name in site_names])
        y[k, places], known[k, places] = mean, True
        v[k][np.ix_(places, places)] = covariance
    return tuple(by_site), labels, SiteEstimates(y, v, known)


def _site(value: Any, names: Sequence[str] | None) -> Site:
    """Return the estimates of one site: of a pair, or of a fitted result with ``params`` and ``cov_params()``."""
    estimate, covariance = _pair(value)
    labels: list[Any] | None = None if names is None else list(names)
    if isinstance(estimate, Mapping):
        labels, estimate = [str(name) for name in estimate], list(estimate.values())
    elif hasattr(estimate, "index") and hasattr(estimate, "to_numpy"):  # a pandas Series
        labels = list(map(str, estimate.index))
        if hasattr(covariance, "index"):
            told = list(map(str, covariance.index))
            if told != labels or list(map(str, covariance.columns)) != labels:
                text = f"is of {_said(told)}, and the estimates are of {_said(labels)}"
                raise InputError("covariance", text, code="E-MISMATCH")
    try:
        mean = np.atleast_1d(np.asarray(estimate, dtype=np.float64))
        matrix = np.asarray(covariance, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("", "expected numbers as estimate and covariance", code="E-TYPE") from None
    return _checked(labels, mean, matrix)


def _pair(value: Any) -> Any:
    """Return the estimate and the covariance of one site, as they were given."""
    if isinstance(value, Statistics):
        return site_estimate(value)
    if callable(getattr(value, "cov_params", None)) and hasattr(value, "params"):
        if np.ndim(value.params) != 1:
            text = f"have shape {np.shape(value.params)}; give (estimate, covariance) of one vector"
            raise InputError("params", text, code="E-SHAPE")
        return value.params, value.cov_params()
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise InputError("", f"expected (estimate, covariance), found {type(value).__name__}", code="E-TYPE")
    return value


def _checked(labels: list[Any] | None, mean: Array, matrix: Array) -> Site:
    """Return an estimate (p,) with its covariance (p, p) under names, where these go together."""
    p = len(mean)
    if matrix.ndim < 2 and p == 1 == matrix.size:
        matrix = matrix.reshape(1, 1)
    if mean.ndim != 1 or p == 0 or matrix.shape != (p, p):
        text = f"has shape {matrix.shape}, expected {(p, p)}"
        raise InputError("covariance", text, "of standard errors se: `np.diag(se ** 2)`", "E-SHAPE")
    if labels is not None and (len(labels) != p or len(set(labels)) != p):
        raise InputError("names", f"expected {p} different ones, found {', '.join(labels[:8])}", code="E-SHAPE")
    if not np.isfinite(np.append(mean, matrix)).all():
        text = "has values that are not finite"
        raise InputError("", text, "leave out what could not be estimated, by name", "E-NUMBER")
    if np.abs(matrix - matrix.T).max() > _ASYMMETRY * np.abs(matrix).max():
        raise InputError("covariance", "is not symmetric", code="E-NUMBER")
    matrix = (matrix + matrix.T) / 2.0
    _refuse_improper(labels, matrix)
    return [None] * p if labels is None else labels, mean, matrix


def _refuse_improper(labels: list[Any] | None, matrix: Array) -> None:
    """Raise for a covariance (p, p) with a variance that is not positive, or that is not positive definite."""
    p = len(matrix)
    if not np.all(np.diag(matrix) > 0.0):
        place = int(np.flatnonzero(~(np.diag(matrix) > 0.0))[0])
        which = "variance" if p == 1 else f"variance of {place if labels is None else labels[place]}"
        text = f"the {which} is {matrix[place, place]:g}, expected above 0"
        raise InputError("", text, "leave it out, or give what it is known to", "E-NUMBER")
    deviations = np.sqrt(np.diag(matrix))  # in units of which one rounding holds for all
    correlation = matrix / np.outer(deviations, deviations)
    if np.linalg.eigvalsh(correlation)[0] < p * np.finfo(np.float64).eps:
        text = "is not positive definite"
        raise InputError("covariance", text, "leave out coefficients that others determine", "E-NUMBER")


def _counted(value: Any, measure: Measure) -> Any:
    """Return the effect and variance of two by two counts, [[events, others], [events, others]]; else what is given.

    Counts are a list of two lists, or an array: a tuple is an estimate with its covariance.
    """
    is_table = isinstance(value, list) and all(isinstance(row, list | tuple | np.ndarray) for row in value)
    if isinstance(value, np.ndarray) or is_table:
        counts = np.asarray(value, dtype=object)
        if counts.shape == (2, 2):
            effect, variance = effects_of_counts(counts.astype(np.float64)[None], measure)
            return float(effect[0]), float(variance[0])
    return value
