"""Local learners: Bayesian networks, sticky HDP-HMMs, Titsias Gaussian processes and Gaussian topics.

A site runs them on its own data, where no well-kept library offers such a model. Each returns a model that ``fuse``
takes.
"""

from __future__ import annotations

from consilience.bayesian.learners.mean_field import FittedBNN, GaussianBNN, HorseshoeBNN
from consilience.posteriors.hidden_markov.learner import StickyHDPHMM
from consilience.posteriors.sparse_gp.learner import TitsiasGP
from consilience.posteriors.topics.learner import GaussianTopics

__all__ = ["FittedBNN", "GaussianBNN", "GaussianTopics", "HorseshoeBNN", "StickyHDPHMM", "TitsiasGP"]
