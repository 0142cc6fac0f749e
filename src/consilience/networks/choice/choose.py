"""The rule that chooses among scored candidates, and what it proves about harm.

Candidates that were fitted to drawn inputs do better on others of their kind than on real ones. So a candidate counts
only where it is better than the best site's own network by a standard error of the paired difference and by a margin, a
share of that network's loss; where none is, the site's own network is taken. On images matched to batch normalisation
several of these beside each other, in a network that is as wide, count as one. The margin is waived where the ensemble
of all sites, which was fitted to nothing, is clearly better than that network as well; where sites have their classes
alike, only if something that was fused loses no more than that network before any distillation: else the networks do
not go into one, and the ensemble says nothing of what is made of them. Of candidates that count, and whose losses on
the same n held-out inputs differ by no more than one standard error from the least, the one of least effort is taken:
an average before a matched one, and so on. Of equal effort, the one that breaks ties best.

Drawn inputs stand for real ones as far as sites' networks err as often on those drawn as their site describes them as
they do on their own. Half of the excess is a least margin, too, and all of it for candidates that were fitted where
sites have their classes alike: where classes are far from Gaussian, nothing is chosen by them. Where the ensemble
waives that, a quarter of the excess is left.

Harm is excluded where on labelled inputs every other site is worse by two standard errors and the margin, of candidates
that were fitted, and the mean of the excesses over all observations. That mean, not the excess of the single site: what
a network of few observations learned by heart is no property of the drawn inputs, and most of these are drawn as larger
sites describe theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array
from consilience.networks.choice.candidate import Effort

STANDARD_ERRORS_OF_TIES = 1.0
"""Candidates within so many standard errors of the best are not told apart. Chosen by hand, before the battery."""
STANDARD_ERRORS_OF_HARM = 2.0
"""Standard errors by which every site's own network must be worse, for the choice to be known as harmless: a 95 %
interval."""
MARGIN = 0.125
"""Share of a site's own error, on inputs drawn with their classes, that must be gained beyond standard errors. Where
sites differ in their classes, networks distilled on drawn inputs gained 18 to 90 % on others of their kind, and on real
ones too (first half of experiments/network_battery)."""
MARGIN_OF_ALIKE = 0.25
"""The same, of candidates that were fitted, where sites have all classes alike. Networks distilled on drawn inputs are
fitted to them there, and little else is to be gained: drawn gains of 13 to 20 % were -13 to +4 % on real inputs, one of
37 % was 3 % (four cells of the first half, two of experiments/synthetic_inputs)."""
GAP_SHARE = 0.5
"""Share of the excess of errors on drawn inputs that a choice must gain; for harm to be excluded, all of it. A gain of
a third of it was lost on real inputs (two moons), one of 0.7 was real (a recurrent network of texts, in the first half
of experiments/network_battery)."""
GAP_SHARE_OF_ALIKE = 1.0
"""The same, of candidates that were fitted, where sites have all classes alike and little is to be gained. Of two alike
VGG11 with batch normalisation (first pair of experiments/synthetic_inputs) a distilled network gained 0.6 of it, and
was 3 points worse on real images. None of eight choices of alike sites in the first halves of the batteries changes
(experiments/network_battery)."""
STANDARD_ERRORS_OF_ENSEMBLE = 3.0
"""Standard errors by which the ensemble of all sites must be better than a site's own network, for a candidate that was
fitted to need no margin over it; it must be better itself by `STANDARD_ERRORS_OF_HARM`. Over 37 small networks of
tables (experiments/network_battery/tabular.py, first half) 73 % of choices were then within a point of the best
candidate, 57 % without, and 95 % not worse than the best site, 92 % without. By two standard errors it was 76 % and
97 %, but of two alike sites of images (first half of the battery) one was a point better than what was distilled."""
ENSEMBLE_GAP_SHARE = 0.25
"""Share of the excess of errors on drawn inputs that such a candidate must gain. A half was 8 points of those 73
dearer, none the same as a quarter: chosen so that not all is trusted where classes are far from Gaussian. Where sites
are alike the ensemble must gain it, too: in the third pair of alike VGG11 it gained 0.14 of the excess, what was
distilled 0.7, and lost 5 points on real images. Asked where sites differ, it took 19 points from one of 24 tables."""
MARGIN_OF_STATISTICS = 0.5
"""As `MARGIN`, of candidates whose batch normalisation learned its statistics from drawn inputs: these look twice as
good on others of their kind as they are. No ensemble waives it. Of twelve ensembles gains of 0.27 to 0.43 of a site's
error were -9 to +6 points on real images, those of 0.53 to 0.9 were 1 to 50 (experiments/synthetic_inputs/described.py
and experiments/one_shot)."""
MAX_SKEW_OF_ALIKE = 0.1
"""Skew up to which sites have their classes alike: over 26 fusions those of one distribution had 0.02, the mildest of
those that differed 0.38."""
MARGIN_OF_IMAGES = 0.45
"""The same share, of a site's disagreement with the ensemble, of candidates that were fitted to images matched to batch
normalisation, where sites have their classes alike. Over seven ensembles such gains of 0 to 0.37 were losses of 2 to 5
points, and it kept a site, rightly, in three more that did not shape it (docs/evidence/synthetic_inputs.md). Where
classes differ no site stands for all, and none may be chosen."""
MARGIN_OF_HALFWAY = 0.2
"""As `MARGIN_OF_IMAGES`, of the mean of a site's network and of what it became by distillation. Pairs gained 0.03 to
0.14 on images and moved -0.3 to 0.1 points, four ResNet-8 gained 0.28 and 0.8 points. Of ensembles that did not shape
it: two pairs 0.15 and 0.16 for -0.3 and 0.3 points, eight and four other ResNet-8 0.27 for 0.8 and 0.2, five in the
battery 0.25 for -0.7, which were not taken (experiments/synthetic_inputs/halfway.py, experiments/network_battery)."""
MAX_ESTIMATED_SKEW_OF_ALIKE = 0.2
"""The same where counts of classes are estimated on matched images: of one distribution they had 0.04 and 0.06, the
mildest of those that differed 0.32. Of ensembles that did not shape it: 0.03 and 0.06; 0.22, where the fused network
was 4 points below the better site, and 0.37 to 0.60, where it was above every site."""
TEXT_MARGIN = 0.25
"""The same on texts drawn with their classes, which are further from real ones: gains of 14 to 21 % were 2 % at most on
real texts, those of 38 % and more were 10 % at least (five cells of the first half, three seeds each). Chosen after the
other half had been run once with an eighth, under which nothing was harmed there either."""


@dataclass(frozen=True, eq=False)
class CandidateScores:
    """Losses of K candidates on n held-out inputs."""

    # `losses`, `ties`: (K, n), losses, and losses that break ties, of every candidate on every input.
    losses: Array
    ties: Array
    efforts: Sequence[int]  # effort of each candidate
    is_site: Sequence[bool]  # whether it is a site's own network
    # By candidate, the share of a site's loss by which it must be better than it; None for 0.
    margins: Sequence[float] | None = None
    is_eligible: Sequence[bool] | None = None  # whether it may be chosen; None for all
    # By site's own network, by how much more it errs on inputs drawn as its site describes them than on its own:
    # what drawn inputs cannot tell. None for 0.
    gaps: Sequence[float] | None = None
    # By site's own network, what it counts: of sites that cannot be told apart that of the most is taken.
    sizes: Sequence[float] | None = None
    mean_gap: float = 0.0  # the mean of the sites' gaps over all observations: what drawn inputs of all cannot tell
    # Whether a candidate was fitted to drawn inputs; only these need their margin for harm to be excluded. None: none.
    is_fitted: Sequence[bool] | None = None
    ensemble: Array | None = None  # (n,), losses of the ensemble of all sites
    is_waivable: Sequence[bool] | None = None  # whether the ensemble may waive a margin; None for all
    is_alike: bool = False  # whether sites have their classes alike
    # Whether what was fitted needs its margin over it, as over a site's own network. None for `is_site`.
    stands_for_sites: Sequence[bool] | None = None

    @property
    def means(self) -> Array:
        """Mean loss (K,) of every candidate."""
        means: Array = self.losses.mean(axis=1)
        return means

    @property
    def _eligible(self) -> list[int]:
        """Numbers of the candidates that may be chosen."""
        return [k for k in range(len(self.losses)) if self.is_eligible is None or self.is_eligible[k]]

    def excess(self, number: int, over: int) -> tuple[float, float]:
        """Return by how much one candidate's loss exceeds another's, and the standard error of that, paired."""
        return _paired(self.losses[number], self.losses[over])

    def choose(self) -> int:
        """Return the number of the candidate to take."""
        means = self.means
        eligible = self._eligible
        stands_for_sites = self.is_site if self.stands_for_sites is None else self.stands_for_sites
        sites = [k for k in eligible if stands_for_sites[k]]
        pool = [k for k in eligible if not stands_for_sites[k]]
        if sites:
            site = self.best_site(sites)
            pool = [k for k in pool if self.counts(k, site)]
            if not pool:
                return site
        best = min(pool, key=lambda k: (means[k], self.ties[k].mean()))
        excesses = {k: self.excess(k, best) for k in pool}
        tied = [k for k, (excess, error) in excesses.items() if excess <= STANDARD_ERRORS_OF_TIES * error]
        return min(tied, key=lambda k: (self.efforts[k], means[k], self.ties[k].mean()))

    def best_site(self, sites: Sequence[int]) -> int:
        """Return the site's own network of the least loss; of those it cannot be told from, that of the most."""
        best = min(sites, key=lambda k: (self.means[k], self.ties[k].mean()))
        if self.sizes is None:
            return best
        sizes, gaps = self.sizes, self.gaps or [0.0] * len(self.means)
        excesses = {k: self.excess(k, best) for k in sites}
        tied = [k for k, (excess, error) in excesses.items() if excess <= STANDARD_ERRORS_OF_TIES * error + gaps[k]]
        return min(tied, key=lambda k: (-sizes[k], self.means[k], self.ties[k].mean()))

    def counts(self, number: int, site: int) -> bool:
        """Return whether a candidate may be taken instead of a site's own network."""
        excess, error = self.excess(site, number)
        margin = 0.0 if self.margins is None else self.margins[number] * self.means[site]
        is_fitted = self.is_fitted is not None and self.is_fitted[number]
        gap_share = GAP_SHARE_OF_ALIKE if self.is_alike and is_fitted else GAP_SHARE
        site_gap = 0.0 if self.gaps is None else self.gaps[site]
        if excess > STANDARD_ERRORS_OF_TIES * error + max(margin, gap_share * site_gap):
            return True
        if self.ensemble is None or not is_fitted or not (self.is_waivable is None or self.is_waivable[number]):
            return False
        if self.is_alike and not self._is_level_before_distillation(site):
            return False
        gap = ENSEMBLE_GAP_SHARE * min(site_gap, self.mean_gap)
        of_ensemble, ensemble_error = _paired(self.losses[site], self.ensemble)
        least = STANDARD_ERRORS_OF_ENSEMBLE * ensemble_error + (gap if self.is_alike else 0.0)
        return of_ensemble > least and excess > STANDARD_ERRORS_OF_HARM * error + gap

    def _is_level_before_distillation(self, site: int) -> bool:
        """Return whether something that was fused loses no more than a site's own network without being distilled.

        Of one pair of alike ResNet-14 with group normalisation, on which this was set, refitted networks lost a tenth
        more than a site's, and what was distilled of them was 2.7 points worse on real images. Of the alike tables and
        perceptrons whose waived choices are better than the site, refitted ones lose less (record 42).
        """
        means = self.means
        fused = (k for k in self._eligible if not self.is_site[k] and self.efforts[k] < Effort.DISTILLED)
        return any(means[k] <= means[site] for k in fused)

    def is_clearly_better(self, number: int, site: int) -> bool:
        """Return whether a candidate is better than a site's own network by all that drawn inputs leave open.

        That is two standard errors and the mean gap, or the margin of a candidate that was fitted where that is larger.
        """
        excess, error = self.excess(site, number)
        needs_margin = self.margins is not None and self.is_fitted is not None and self.is_fitted[number]
        margin = self.margins[number] * self.means[site] if needs_margin and self.margins is not None else 0.0
        return excess > STANDARD_ERRORS_OF_HARM * error + max(margin, self.mean_gap)

    def is_harmless(self, chosen: int) -> bool:
        """Return whether every site's own network is known to be worse than the chosen one, or is the same."""
        for k in range(len(self.losses)):
            is_same = np.array_equal(self.losses[k], self.losses[chosen]) and np.array_equal(
                self.ties[k], self.ties[chosen]
            )
            if not self.is_site[k] or k == chosen or is_same:
                continue
            if not self.is_clearly_better(chosen, k):
                return False
        return any(self.is_site)  # nothing is known of sites that were not compared

    def is_harmful(self, chosen: int) -> bool:
        """Return whether a site's own network is known to be better than the chosen one, beyond the mean gap."""
        sites = [k for k in range(len(self.losses)) if self.is_site[k] and k != chosen]
        excesses = (self.excess(chosen, k) for k in sites)
        return any(excess > STANDARD_ERRORS_OF_HARM * error + self.mean_gap for excess, error in excesses)


def _paired(losses: Array, others: Array) -> tuple[float, float]:
    """Return the mean difference of losses (n,) on the same inputs, and its standard error."""
    differences = losses - others
    return float(differences.mean()), float(differences.std(ddof=1) / len(differences) ** 0.5)
