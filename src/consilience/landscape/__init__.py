"""Barriers between networks, planes through them, couplings and alignments, and the repair of what averaging did."""

from __future__ import annotations

from consilience.landscape.alignment import LayerDistances, layer_distances, variance_collapse
from consilience.landscape.barrier import Barrier, barrier, barrier_matrix
from consilience.landscape.bound import InterpolationBound, OneHiddenLayer, interpolation_bound
from consilience.landscape.couplings import CouplingDiagnostics, coupling_diagnostics
from consilience.landscape.evaluation import BatchedEvaluation, Classification
from consilience.landscape.moments import Moments, layer_moments
from consilience.landscape.parameters import Layout, interpolate
from consilience.landscape.plane import Marker, Plane, plane
from consilience.landscape.posterior_paths import posterior_between
from consilience.landscape.predictive_barrier import PredictiveBarrier, predictive_barrier
from consilience.landscape.refit import refit
from consilience.landscape.regression import regmean
from consilience.landscape.repair import Repaired, repair, repair_from_moments
from consilience.landscape.statistics import reestimate_batch_norm
from consilience.landscape.synthetic import synthetic_inputs

__all__ = [
    "Barrier",
    "BatchedEvaluation",
    "Classification",
    "CouplingDiagnostics",
    "InterpolationBound",
    "LayerDistances",
    "Layout",
    "Marker",
    "Moments",
    "OneHiddenLayer",
    "Plane",
    "PredictiveBarrier",
    "Repaired",
    "barrier",
    "barrier_matrix",
    "coupling_diagnostics",
    "interpolate",
    "interpolation_bound",
    "layer_distances",
    "layer_moments",
    "plane",
    "posterior_between",
    "predictive_barrier",
    "reestimate_batch_norm",
    "refit",
    "regmean",
    "repair",
    "repair_from_moments",
    "synthetic_inputs",
    "variance_collapse",
]
