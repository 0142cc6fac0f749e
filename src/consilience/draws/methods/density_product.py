"""Products of density estimates of the subposteriors, sampled by Metropolis within Gibbs over which draws are combined.

A kernel density estimate of every site with bandwidth h makes the product a mixture of T^J Gaussians, one for every
choice of draws t. = (t_1, ..., t_J), with the mean tbar of the draws chosen and the weight (Neiswanger et al. 2014)

    nonparametric    w = prod_j N(theta_j,tj | tbar, h^2)                           a draw: N(tbar, h^2 / J)
    semiparametric   w * N(tbar | mu, C + h^2 / J) / prod_j N(theta_j,tj | mu_j, S_j)  a draw: N(m, S),
                     S = (J / h^2 + C^-1)^-1,  m = S (J / h^2 tbar + C^-1 mu)

with N(mu, C) the product of N(mu_j, S_j). A prior or Jacobian that is counted J times divides the weight at tbar.

Departures from the paper. Coordinates are whitened by J C, since its h has no units. Many chains run beside one
another, each with bandwidths that fall from 1 to T^(-1/(4 + D)) over the first half of the sweeps and then stay, where
the paper has one chain whose h = i^(-1/(4 + D)) falls for ever: the early draws of that are too smooth, and one chain
stays in one mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from consilience.checks import Array, is_count
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.draws.methods.base import CombinedDraws, DrawsMethod
from consilience.draws.subposteriors import Subposteriors

N_CHAINS = 100
"""Chains beside one another. NumPy's cost of a step hardly depends on it; chosen by hand."""

LOW_ACCEPTANCE = 0.05
"""Share of proposals below which few choices of draws are seen, and widths are not to be trusted: of five settings of a
logistic regression with 9, 3, 3.5, 1.5 and 1 % the standard deviations were 0.66 to 1.4 of the right ones. More sweeps
do not help (2,000 and 10,000 on five Gaussian coordinates: distances of 0.20 and 0.24): draws near the product lack."""


@dataclass(frozen=True)
class DensityProduct(DrawsMethod):
    """Multiply density estimates of the subposteriors: keeps skewness and modes, and needs many draws.

    Parameters
    ----------
    parametric : bool
        Whether kernel estimates correct a Gaussian of the same moments (semiparametric), or stand alone.
    sweeps : int
        Sweeps over all sites of each of 100 chains; the second half is kept, evenly spaced.

    References
    ----------
    Neiswanger, Wang and Xing (2014), sections 3.2 and 3.3.
    """

    parametric: bool = True
    sweeps: int = 2000
    name: ClassVar[str] = "semiparametric"
    summary: ClassVar[str] = "multiply density estimates of the subposteriors (nonparametric too: `parametric=False`)"
    needs: ClassVar[str] = "many draws of the same few parameters, and what of the prior they hold"
    gives: ClassVar[str] = "draws that keep skewness and modes"
    paper: ClassVar[str] = "neiswanger2014"
    takes_modes: ClassVar[bool] = True
    assumes_normality: ClassVar[bool] = False

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield "sweeps", is_count(self.sweeps) and self.sweeps >= 2, "an integer of at least 2"

    def combine(self, stack: Subposteriors, rng: np.random.Generator, progress: Progress) -> CombinedDraws:
        """Return draws of the product of density estimates."""
        count, n_sites, dim = self.count(stack), stack.n_sites, stack.n_coordinates
        mean, precision = stack.density_product
        whitener = np.linalg.cholesky(precision / n_sites)  # z = L^T (u - mu) for J C = (L L^T)^-1
        sites = [(draws - mean) @ whitener for draws in stack.draws]  # C is I / J here
        corrections = [self._correction(stack, j) for j in range(n_sites)]
        back = np.linalg.inv(whitener)
        n_chains = min(N_CHAINS, count)
        per_chain = -(-count // n_chains)
        burn_in = self.sweeps // 2
        last_bandwidth = min(len(draws) for draws in sites) ** (-1.0 / (4.0 + dim))
        recorded = set(np.linspace(burn_in, self.sweeps - 1, per_chain).round().astype(int).tolist())
        recorded_draws: list[Array] = []
        current = np.zeros((n_sites, n_chains, dim))  # the draws chosen
        current_correction = np.zeros((n_sites, n_chains))
        for j, draws in enumerate(sites):
            chosen = rng.integers(len(draws), size=n_chains)
            current[j], current_correction[j] = draws[chosen], corrections[j][chosen]
        accepted = proposed = 0
        for sweep in range(self.sweeps):
            bandwidth = last_bandwidth ** min(1.0, sweep / max(burn_in - 1, 1))
            centre = current.mean(axis=0)
            at_centre = self._at_centre(stack, centre, mean, back, bandwidth)
            for j, draws in enumerate(sites):
                chosen = rng.integers(len(draws), size=n_chains)
                candidate = draws[chosen]
                moved = centre + (candidate - current[j]) / n_sites
                at_moved = self._at_centre(stack, moved, mean, back, bandwidth)
                # sum_j |theta_j - tbar|^2 = sum_j |theta_j|^2 - J |tbar|^2
                squares = np.sum(candidate**2, axis=1) - np.sum(current[j] ** 2, axis=1)
                squares -= n_sites * (np.sum(moved**2, axis=1) - np.sum(centre**2, axis=1))
                gain = -0.5 * squares / bandwidth**2 + at_moved - at_centre
                gain += corrections[j][chosen] - current_correction[j]
                is_accepted = np.log(rng.random(n_chains)) < gain
                current[j][is_accepted] = candidate[is_accepted]
                centre = np.where(is_accepted[:, None], moved, centre)
                at_centre = np.where(is_accepted, at_moved, at_centre)
                current_correction[j] = np.where(is_accepted, corrections[j][chosen], current_correction[j])
                if sweep >= burn_in:
                    accepted, proposed = accepted + int(is_accepted.sum()), proposed + n_chains
            if sweep in recorded:
                shrunk = 1.0 + bandwidth**2 if self.parametric else 1.0
                noise = rng.standard_normal((n_chains, dim)) * bandwidth / np.sqrt(n_sites * shrunk)
                recorded_draws.append(centre / shrunk + noise)
            progress(sweep + 1, self.sweeps)
        while len(recorded_draws) < per_chain:  # fewer sweeps than draws of a chain are wanted
            recorded_draws.append(recorded_draws[len(recorded_draws) % len(recorded)])
        kept = np.concatenate(recorded_draws)[rng.permutation(per_chain * n_chains)[:count]]
        return _described(mean + kept @ back, accepted / max(proposed, 1), last_bandwidth)

    def _correction(self, stack: Subposteriors, j: int) -> Array:
        """Return -log N(theta_j | mu_j, S_j) of every draw of a site, up to a constant; 0 without a parametric part."""
        draws = stack.draws[j]
        if not self.parametric:
            return np.zeros(len(draws))
        centred = draws - stack.means[j]
        return 0.5 * np.einsum("ta,ab,tb->t", centred, stack.precisions[j], centred)

    def _at_centre(self, stack: Subposteriors, centre: Array, mean: Array, back: Array, bandwidth: float) -> Array:
        """Return what the weight says of tbar (R, D): N(tbar | 0, (1 + h^2) / J), less what is counted J times."""
        result = np.zeros(len(centre))
        if self.parametric:
            result -= 0.5 * stack.n_sites / (1.0 + bandwidth**2) * np.sum(centre**2, axis=1)
        if not stack.factor.is_constant:
            result -= (stack.n_sites - 1) * stack.factor.value(mean + centre @ back)
        return result


def _described(draws: Array, rate: float, bandwidth: float) -> CombinedDraws:
    """Return draws with the rate at which proposals were accepted, and a note where it is low."""
    notes = {}
    if rate < LOW_ACCEPTANCE:
        notes[f"{100 * rate:.1f} % of the proposals were accepted, so that widths are not to be trusted"] = (
            "draw more at the sites, or take `method='consensus_mc'` where there is one mode"
        )
    return CombinedDraws(draws, {"acceptance_rate": round(rate, 4), "bandwidth": float(f"{bandwidth:.6g}")}, notes)
