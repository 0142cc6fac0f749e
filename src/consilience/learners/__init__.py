"""Local learners that no well-kept library offers: what a site runs on its own data."""

from __future__ import annotations

from consilience.bayesian.learners.mean_field import FittedBNN, GaussianBNN, HorseshoeBNN
from consilience.posteriors.hidden_markov.learner import StickyHDPHMM
from consilience.posteriors.sparse_gp.learner import TitsiasGP
from consilience.posteriors.topics.learner import GaussianTopics

__all__ = ["FittedBNN", "GaussianBNN", "GaussianTopics", "HorseshoeBNN", "StickyHDPHMM", "TitsiasGP"]
