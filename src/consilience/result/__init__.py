"""What every fusion returns."""

from consilience.result.base import Fusion
from consilience.result.bayesian import BayesianFusion
from consilience.result.networks import NetworkFusion, NetworkInput
from consilience.result.posteriors import FusionInput, PosteriorFusion

__all__ = ["BayesianFusion", "Fusion", "FusionInput", "NetworkFusion", "NetworkInput", "PosteriorFusion"]
