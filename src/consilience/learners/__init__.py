"""Local learners that no well-kept library offers: what a site runs on its own data."""

from __future__ import annotations

from consilience.learners.bayesian_networks import GaussianBNN, HorseshoeBNN
from consilience.learners.gaussian_topics import GaussianTopics
from consilience.learners.hdp_hmm import StickyHDPHMM
from consilience.learners.sparse_gp import TitsiasGP

__all__ = ["GaussianBNN", "GaussianTopics", "HorseshoeBNN", "StickyHDPHMM", "TitsiasGP"]
