"""Loss barriers and linear mode connectivity: lines and planes between networks, distances, coupling diagnostics."""

from __future__ import annotations

from consilience.networks.landscape.alignment import (
    CouplingDiagnostics,
    LayerDistances,
    coupling_diagnostics,
    layer_distances,
    variance_collapse,
)
from consilience.networks.landscape.barrier import Barrier, barrier, barrier_matrix
from consilience.networks.landscape.bound import InterpolationBound, OneHiddenLayer, interpolation_bound
from consilience.networks.landscape.evaluation import BatchedEvaluation, Classification
from consilience.networks.landscape.parameters import ParameterLayout, interpolate
from consilience.networks.landscape.plane import Marker, Plane, plane

__all__ = [
    "Barrier",
    "BatchedEvaluation",
    "Classification",
    "CouplingDiagnostics",
    "InterpolationBound",
    "LayerDistances",
    "Marker",
    "OneHiddenLayer",
    "ParameterLayout",
    "Plane",
    "barrier",
    "barrier_matrix",
    "coupling_diagnostics",
    "interpolate",
    "interpolation_bound",
    "layer_distances",
    "plane",
    "variance_collapse",
]
