"""Admission of a posterior whose sender is not trusted: what can be known of one file, before it is fused.

Readers accept every member of a family. A member may still be so extreme that its log normaliser, or a divergence from
it, overflows, and then no fusion with it has a result. What is checked here is found where it can be named, in one
file:

- sums of counts and of weights are finite, and counts are no more than floating-point numbers tell apart (2^53);
- the log normaliser A is finite, and the divergence of each component to itself is 0 up to the rounding of A;
- correlation matrices have a condition number that Cholesky's factorisation in float64 survives;
- counts agree with the posterior of a model that was fitted, not fused: pseudo-observations beyond the prior's are the
  counts.

``check``, ``fuse`` and the rounds of ``consilience.federated`` refuse such files; ``fuse`` takes models in memory as
they are, and with ``robust=True`` it judges files among one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from consilience.checks import Array, Json
from consilience.core.kind import Extent, root_mean_square
from consilience.core.min_count import MAX_NAMED
from consilience.errors import Problem
from consilience.families.linalg import variances_of
from consilience.posteriors.mixture_density import place_of
from consilience.posteriors.posterior import Posterior

MAX_COUNT = 2.0**53
"""Counts beyond are not told apart by one in float64, and sums of 1e308 overflow."""

SELF_DIVERGENCE = 1e-6
"""Divergence of a component to itself, relative to its log normaliser, that is rounding; honest ones have 1e-15."""

MAX_CONDITION = 1e12
"""Condition number of a correlation matrix: with four of sixteen digits left, a factorisation still has a sign."""

CONJUGACY_ROUNDING = 1e-6
"""Relative difference of counts and pseudo-observations that is rounding. Fits of scikit-learn have none: all four
types of covariance at 1 to 30 columns."""

CONJUGATE_KINDS = ("sklearn.BayesianGaussianMixture",)
"""Sources whose kappa is the prior's and their counts: variational mixtures of Gaussians (Bishop 2006, eq. 10.60)."""


def inadmissible(posterior: Posterior, *, is_fused: bool = False) -> list[Problem]:
    """Return why a posterior that its own checks accept may not be fused, a line each; empty where it may.

    One that was fused of others has the counts of all and the width of one, as averages do.

    Examples
    --------
    >>> from consilience.families import Gamma
    >>> eta = Gamma().to_natural(shape=[2.0], rate=[1.0])
    >>> inadmissible(Posterior(Gamma(), eta, counts=[3.0])), len(inadmissible(Posterior(Gamma(), eta, counts=[1e16])))
    ([], 1)
    """
    problems = []
    with np.errstate(all="ignore"):
        for name in ("counts", "weights"):
            values = getattr(posterior, name)
            if values is not None and not float(values.sum()) <= MAX_COUNT:
                text = f"has {name} that add up to {float(values.sum()):.3g}, and {MAX_COUNT:.3g} is the most"
                problems.append(Problem(name, text, "state the observations behind each component"))
        problems += _density_problems(posterior) or _covariance_problems(posterior)
        if not problems and not is_fused:
            problems += _count_problems(posterior)
    named = problems[:MAX_NAMED]
    return named if len(named) == len(problems) else [*named, Problem("", f"and {len(problems) - len(named)} more")]


def _density_problems(posterior: Posterior) -> list[Problem]:
    """Return the components whose log normaliser or divergence to themselves is no number that can be used."""
    family, natural = posterior.family, posterior.natural
    if not natural.shape[1]:  # no words, no columns: said by whoever compares what they mean
        return []
    try:
        normalizers = family.log_normalizer(natural)  # (L,)
        divergences = family.kl_pairs(natural, natural)  # (L,)
        matrix = family.kl(natural, natural).diagonal()  # (L,): by the products that matching uses
    except (ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
        return [Problem("", f"has parameters with which nothing can be calculated ({error})")]
    scale = SELF_DIVERGENCE * (1.0 + np.abs(normalizers))
    is_bad = ~np.isfinite(normalizers) | ~(np.abs(divergences) <= scale) | ~(np.abs(matrix) <= scale)
    return [
        Problem(
            f"component {row}",
            f"has parameters too extreme to calculate with: A = {normalizers[row]:.3g}",
            "scale the columns, the same at all sites, and fit again",
        )
        for row in np.flatnonzero(is_bad)
    ]


def _covariance_problems(posterior: Posterior) -> list[Problem]:
    """Return the components whose correlation matrix is too near to a singular one."""
    gaussians = posterior.family.plug_in(posterior.natural)
    if gaussians is None:
        return []
    covariances = np.asarray(gaussians[1])
    variances = variances_of(covariances)
    if bad := np.flatnonzero(~(np.isfinite(variances) & (variances > 0)).all(axis=1)).tolist():
        return [Problem(f"component {row}", "has a variance that is not positive and finite") for row in bad]
    if covariances.ndim == 2:
        return []
    deviations = np.sqrt(variances)
    correlations = covariances / deviations[:, :, None] / deviations[:, None, :]
    eigenvalues = np.linalg.eigvalsh(correlations)  # (L, D), ascending
    is_bad = ~(eigenvalues[:, -1] <= MAX_CONDITION * eigenvalues[:, 0])
    return [
        Problem(
            f"component {row}",
            f"has a correlation matrix whose condition number is above {MAX_CONDITION:.0e}",
            "leave out columns that are sums of others, or regularise the fit",
        )
        for row in np.flatnonzero(is_bad)
    ]


def _count_problems(posterior: Posterior) -> list[Problem]:
    """Return the components whose counts are not what their posterior has learned beyond the prior."""
    if posterior.source.get("kind") not in CONJUGATE_KINDS or posterior.prior is None or posterior.counts is None:
        return []
    learned = _pseudo_observations(posterior)
    if learned is None:
        return []
    is_bad = ~(np.abs(learned - posterior.counts) <= CONJUGACY_ROUNDING * (1.0 + posterior.counts))
    return [
        Problem(
            f"component {row}",
            f"states {posterior.counts[row]:.6g} observations, and its posterior is that of {learned[row]:.6g}",
            "state the counts of the fit",
        )
        for row in np.flatnonzero(is_bad)
    ]


def _pseudo_observations(posterior: Posterior) -> Array | None:
    """Return kappa - kappa_0 (L,) of Normal-Wisharts and Normal-gammas; None for other families."""
    standard: Any = getattr(posterior.family, "standard", None)
    if standard is None or posterior.prior is None:
        return None
    return standard(posterior.natural)[1] - standard(posterior.prior[None])[1]


def parameter_scales(posterior: Posterior) -> dict[str, float]:
    """Return the root mean square of each standard parameter and of the counts, by name."""
    with np.errstate(all="ignore"):
        scales = dict(_scales("", posterior.parameters()))
    return scales if posterior.counts is None else {**scales, "counts": root_mean_square(posterior.counts)}


def _scales(prefix: str, parameters: Mapping[str, Json]) -> Iterator[tuple[str, float]]:
    """Yield names and sizes of parameters, those of a product's factors after the names of the factors."""
    for name, values in parameters.items():
        if isinstance(values, Mapping):
            yield from _scales(f"{prefix}{name} ", values)
        else:
            yield f"{prefix}{name}", root_mean_square(values)


def extent_of(posterior: Posterior) -> Extent | None:
    """Return where the components of an admissible posterior lie; None for families without a place."""
    gaussians = posterior.family.plug_in(posterior.natural)
    if gaussians is None:
        return None
    means, covariances = (np.asarray(part) for part in gaussians)
    means = means + posterior.origin
    mean, deviation = place_of(means, covariances, posterior.shares)
    eigenvalues = covariances if covariances.ndim == 2 else np.linalg.eigvalsh(covariances)
    return Extent(
        tuple(mean.tolist()),
        tuple(deviation.tolist()),
        tuple(means.min(axis=0).tolist()),
        tuple(means.max(axis=0).tolist()),
        (float(eigenvalues.min()), float(eigenvalues.max())),
    )
