"""Laws of matchings: how likely a group of n members from J sites is before anything is seen of them.

Both are sums over groups, log prior = sum_g level(n_g) + constant, so that one search serves both:

- ``strict_prior``: every component has an inclusion probability of its own, uniform on (0, 1), and one more component
  needs very strong evidence, level(n) = log[n! (J - n)! / (J + 1)!] - 5;
- ``lenient_prior``: the two-parameter Indian buffet process (Griffiths & Ghahramani, JMLR 12, 2011; Thibaux & Jordan,
  AISTATS 2007), level(n) = log[gamma c B(n, J - n + c)] and constant -gamma H, H = sum_{j=1..J} c / (c + j - 1), B the
  beta function. Components of a site are told apart by their data, so the factorials of the textbook formula, which
  counts columns alike, are absent.

The strict prior charges fifteen components of one site each, five sites in all, 126 nats, and three components of all
five sites 20; the lenient one hardly anything. The strict one therefore merges what sites do not share, however clear
it is; the lenient one keeps every blend of overlapping fits as a component.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, digamma, gammaln

from consilience.checks import Array, Labels

COMPONENT_LOG_ODDS = 5.0
"""Log odds against one more component under the strict prior: 2 log B > 10, "very strong", in Kass & Raftery (1995)."""
CONCENTRATIONS = np.exp(np.linspace(-1.4, 6.0, 16))
"""Values of c that are tried: from 1/4, components of all sites or of one, to 400, all of like shares."""
CONCENTRATION_LOG_SD = 2.0
"""Standard deviation of log c beforehand: c from 1/50 to 50 is unsurprising. A guess, weak against any data."""


@dataclass(frozen=True, eq=False)
class MatchingPrior:
    """The log prior of a matching, sum_g level(n_g) + constant.

    Parameters
    ----------
    level : Array of shape (J + 1,)
        Log prior of a group of n = 0 ... J members; that of n = 0 is never used.
    constant : float
        What does not depend on the groups.
    """

    level: Array
    constant: float = 0.0

    def total(self, sizes: Labels) -> float:
        """Return the log prior of a matching with groups of these sizes (G,)."""
        return float(self.level[sizes].sum()) + self.constant


def strict_prior(n_sites: int) -> MatchingPrior:
    """Return the prior under which components of few sites are unlikely."""
    n_members = np.arange(n_sites + 1.0)
    # log of the beta integral of p^n (1 - p)^(J - n): inclusion probabilities are uniform on (0, 1).
    inclusion = gammaln(n_members + 1.0) + gammaln(n_sites - n_members + 1.0) - gammaln(n_sites + 2.0)
    return MatchingPrior(inclusion - COMPONENT_LOG_ODDS)


def lenient_prior(n_sites: int, intensity: float, concentration: float) -> MatchingPrior:
    """Return the two-parameter Indian buffet process: gamma components a site, shared the more the smaller c is.

    Parameters
    ----------
    n_sites : int
        Number J of sites.
    intensity : float
        gamma, the expected number of components of one site.
    concentration : float
        c; its own log law, a normal of mean 0, is in the constant.
    """
    n_members = np.arange(1.0, n_sites + 1.0)
    level = np.log(intensity * concentration) + betaln(n_members, n_sites - n_members + concentration)
    expected = intensity * _expected_share(n_sites, concentration)
    log_law = -0.5 * (np.log(concentration) / CONCENTRATION_LOG_SD) ** 2
    return MatchingPrior(np.concatenate([[-np.inf], level]), log_law - expected)


def fit_lenient_prior(sizes: Labels, n_sites: int) -> MatchingPrior:
    """Return the lenient prior of the greatest probability for a matching with groups of these sizes (G,).

    gamma = G / H in closed form (empirical Bayes) for every c that is tried.
    """
    n_groups = len(sizes)
    priors = [lenient_prior(n_sites, n_groups / _expected_share(n_sites, c), c) for c in CONCENTRATIONS]
    return max(priors, key=lambda prior: prior.total(sizes))


def _expected_share(n_sites: int, concentration: float) -> float:
    """Return H = sum_{j=1..J} c / (c + j - 1): components expected in all, for one expected at each site."""
    return float(concentration * (digamma(concentration + n_sites) - digamma(concentration)))
