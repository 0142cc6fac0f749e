"""Local learners: heads, Bayesian networks, sticky HDP-HMMs, Titsias Gaussian processes and Gaussian topics.

A site runs them on its own data, where no well-kept library offers such a model. Each returns a model that ``fuse``
takes. For networks that a site trains itself there are a loss and a correction that take the frequencies of its classes
out of the logits.
"""

from __future__ import annotations

from consilience.estimators.heads.alignment import AlignedHeads, align
from consilience.estimators.heads.head import Head
from consilience.estimators.heads.privacy import GaussianMechanism
from consilience.estimators.heads.ridge_choice import ErrorCurve, choose_ridge
from consilience.networks.classes.logit_adjustment import logit_adjusted_loss, remove_prior
from consilience.networks.gaussian.learners.mean_field import FittedBNN, GaussianBNN, HorseshoeBNN
from consilience.posteriors.hidden_markov.learner import StickyHDPHMM
from consilience.posteriors.sparse_gp.learner import TitsiasGP
from consilience.posteriors.topics.gaussian_topics import GaussianTopics

__all__ = [
    "AlignedHeads",
    "ErrorCurve",
    "FittedBNN",
    "GaussianBNN",
    "GaussianMechanism",
    "GaussianTopics",
    "Head",
    "HorseshoeBNN",
    "StickyHDPHMM",
    "TitsiasGP",
    "align",
    "choose_ridge",
    "logit_adjusted_loss",
    "remove_prior",
]
