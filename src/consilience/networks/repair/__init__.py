"""Repair of averaged networks: channel statistics, refitted layers, layer moments, and synthetic inputs for these."""

from __future__ import annotations

from consilience.networks.repair.anchor import anchor
from consilience.networks.repair.channel_statistics import reestimate_batch_norm
from consilience.networks.repair.layer_moments import LayerMoments, layer_moments
from consilience.networks.repair.refit import refit
from consilience.networks.repair.regression import regmean
from consilience.networks.repair.repair import Repaired, repair
from consilience.networks.repair.synthetic_inputs import synthetic_inputs

__all__ = [
    "LayerMoments",
    "Repaired",
    "anchor",
    "layer_moments",
    "reestimate_batch_norm",
    "refit",
    "regmean",
    "repair",
    "synthetic_inputs",
]
