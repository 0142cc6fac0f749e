"""What every fusion returns."""

from consilience.result.base import Fusion
from consilience.result.networks import NetworkFusion, NetworkInput
from consilience.result.posteriors import FusionInput, PosteriorFusion

__all__ = ["Fusion", "FusionInput", "NetworkFusion", "NetworkInput", "PosteriorFusion"]
