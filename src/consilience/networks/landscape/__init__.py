"""Loss barriers and linear mode connectivity: lines and planes between networks, distances, coupling diagnostics."""

from __future__ import annotations

from consilience.networks.landscape.alignment import CouplingDiagnostics, coupling_diagnostics, variance_collapse
from consilience.networks.landscape.barrier import Barrier, barrier
from consilience.networks.landscape.evaluation import BatchedEvaluation, Classification
from consilience.networks.landscape.parameters import ParameterLayout, interpolate
from consilience.networks.landscape.plane import Marker, Plane, plane

__all__ = [
    "Barrier",
    "BatchedEvaluation",
    "Classification",
    "CouplingDiagnostics",
    "Marker",
    "ParameterLayout",
    "Plane",
    "barrier",
    "coupling_diagnostics",
    "interpolate",
    "plane",
    "variance_collapse",
]
