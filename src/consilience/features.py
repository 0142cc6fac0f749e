"""Feature maps of heads: random convolutions and random Fourier features, which need no data, and frozen ones."""

from __future__ import annotations

from consilience.estimators.heads.feature_maps import FeatureMap, frozen
from consilience.estimators.heads.random_features import (
    RandomConvolutions,
    RandomFourier,
    random_convolutions,
    random_fourier,
)

__all__ = ["FeatureMap", "RandomConvolutions", "RandomFourier", "frozen", "random_convolutions", "random_fourier"]
