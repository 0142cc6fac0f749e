"""Laws of exponential families."""

from __future__ import annotations

import json

import numpy as np

from consilience.checks import Array
from consilience.families.base import Family
from consilience.testing.law import require, require_equal

DIFFERENCE_STEP = 1e-6
"""Step of central differences, relative to the move between two members: its square is below their tolerance."""
DIFFERENCE_TOLERANCE = 1e-4
"""Relative error of a central difference: truncation, and rounding divided by the step. Chosen by hand."""
DIVERGENCE_ROUNDING = 1e-7
"""Relative error of the definition of a divergence, whose terms cancel: A(b) - A(a) - <mu, b - a>. Chosen by hand."""
ROUNDING_OF_ZERO = 1e-9
"""Divergence of a member from itself that is rounding. Chosen by hand."""
N_DRAWS = 4000
"""Draws from every member for the law of sampling. Chosen by hand, for a moment's work."""
STANDARD_ERRORS = 6.0
"""Standard errors by which a mean of draws may miss: one failure in a billion honest draws."""


def check_family(family: Family, natural: Array, rng: np.random.Generator | int = 0) -> None:
    """Hold a family to the laws of exponential families, on some of its members.

    Parameters
    ----------
    family : Family
        The family.
    natural : array_like of shape (n, P)
        Natural parameters of at least two members that differ, well inside the domain.
    rng : Generator or int, optional
        Draws for the law of sampling. Default: 0.

    Raises
    ------
    BrokenLawError
        Naming the first law that does not hold.

    Examples
    --------
    >>> from consilience.families import Gamma
    >>> check_family(Gamma(), Gamma().to_natural(shape=[2.0, 3.0], rate=[1.0, 4.0]))
    """
    eta = np.asarray(natural, dtype=np.float64)
    law = "members are rows of natural parameters"
    require(law, eta.ndim == 2 and len(eta) > 1, f"expected (n, P) with n > 1, found {eta.shape}")
    require(law, eta.shape[1] == family.size, f"{family} has size {family.size}, found rows of {eta.shape[1]}")
    require(law, family.check(eta) == [], f"{family} finds fault with a member: {family.check(eta)[:1]}")
    broken = eta.copy()
    broken[0, 0] = np.nan
    require("NaN is no member", family.check(broken), f"{family} finds nothing wrong with a row that has NaN")
    _check_configuration(family)
    _check_parameters(family, eta)
    _check_divergence(family, eta)
    _check_places(family, eta)
    _check_draws(family, eta, np.random.default_rng(rng))


def _check_configuration(family: Family) -> None:
    """Hold a family to what files need of it."""
    law = "the configuration makes the family"
    configuration = family.config()
    require(law, json.loads(json.dumps(configuration)) == configuration, f"{configuration!r} are no JSON values")
    if "blocks" not in configuration:  # a product is made of its blocks
        require(law, type(family)(**configuration) == family, f"{configuration} makes another family than {family}")


def _check_parameters(family: Family, eta: Array) -> None:
    """Hold a family to its two other parametrisations."""
    natural = family.to_natural(**family.from_natural(eta))
    require_equal("from_natural inverts to_natural", natural, eta, "what comes back")
    means = family.mean_parameters(eta)
    require_equal("from_mean inverts mean_parameters", family.from_mean(means), eta, "what comes back", 1e-6)
    # Along the segment to another member, which lies in the convex domain.
    law, direction = "the mean parameters are the gradient of the log normaliser", np.roll(eta, 1, axis=0) - eta
    step = DIFFERENCE_STEP * direction
    rise = (family.log_normalizer(eta + step) - family.log_normalizer(eta - step)) / (2.0 * DIFFERENCE_STEP)  # (n,)
    slope = (means * direction).sum(axis=1)
    require_equal(law, rise, slope, "the derivative towards another member", DIFFERENCE_TOLERANCE)


def _check_divergence(family: Family, eta: Array) -> None:
    """Hold a family to what divergences and barycenters are."""
    divergences = family.kl(eta, eta)  # (n, n)
    require("divergences are not negative", (divergences >= 0).all(), f"{family} has {divergences.min():.3g}")
    diagonal = float(np.abs(np.diag(divergences)).max())
    require("no member diverges from itself", diagonal <= ROUNDING_OF_ZERO, f"{family} has {diagonal:.3g}")
    other = np.roll(eta, 1, axis=0)
    log_normalizers, log_normalizers_of_other = family.log_normalizer(eta), family.log_normalizer(other)
    inner = (family.mean_parameters(eta) * (other - eta)).sum(axis=1)
    definition = log_normalizers_of_other - log_normalizers - inner
    law = "the divergence is that of the log normaliser"
    scale = float(max(np.abs(log_normalizers).max(), np.abs(inner).max(), 1.0))
    pairs = family.kl_pairs(eta, other)
    difference = float(np.abs(pairs - definition).max())
    text = f"kl_pairs misses A(b) - A(a) - <mu, b - a> by {difference:.3g}"
    require(law, difference <= DIVERGENCE_ROUNDING * scale, text)
    require_equal("the matrix of divergences has those of its pairs", divergences, _all_pairs(family, eta), "kl", 1e-6)
    middle = 0.5 * (eta + other)
    require("the domain is convex", family.check(middle) == [], f"{family} finds fault with the mean of two members")


def _check_places(family: Family, eta: Array) -> None:
    """Hold a family to the places of its members: points for matching, and ellipses to draw where there are any."""
    points = np.asarray(family.points(eta))
    law = "every member has a point"
    require(law, points.ndim == 2 and len(points) == len(eta), f"expected ({len(eta)}, D), found {points.shape}")
    require(law, np.isfinite(points).all(), f"{family} has points that are not finite")
    if (drawn := family.locations_and_spreads(eta)) is None:
        return
    law, (locations, spreads) = "locations and spreads go together", (np.asarray(part) for part in drawn)
    require(law, locations.ndim == 2 and len(locations) == len(eta), f"locations have shape {locations.shape}")
    expected = {locations.shape, (*locations.shape, locations.shape[1])}
    require(law, spreads.shape in expected, f"spreads have shape {spreads.shape}, expected one of {sorted(expected)}")


def _all_pairs(family: Family, eta: Array) -> Array:
    """Return the divergences (n, n) pair by pair."""
    n = len(eta)
    first, second = np.repeat(np.arange(n), n), np.tile(np.arange(n), n)
    return family.kl_pairs(eta[first], eta[second]).reshape(n, n)


def _check_draws(family: Family, eta: Array, rng: np.random.Generator) -> None:
    """Hold a family to what its draws are."""
    law = "draws have the mean parameters as their mean statistics"
    statistics = family.sufficient_statistics(family.sample(eta, N_DRAWS, rng))  # (N, n, P)
    require(law, statistics.shape == (N_DRAWS, *eta.shape), f"statistics of draws have shape {statistics.shape}")
    means = family.mean_parameters(eta)
    errors = statistics.std(axis=0) / np.sqrt(N_DRAWS)
    excess = np.abs(statistics.mean(axis=0) - means) - STANDARD_ERRORS * errors - 1e-9 * np.abs(means)
    require(law, excess.max() <= 0, f"the mean of {N_DRAWS} draws from {family} misses by {excess.max():.3g} more")
