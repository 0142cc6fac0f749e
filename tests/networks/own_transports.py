"""Transports and methods that the library does not have: units merged within a model (ZipIt), and rotations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from consilience.core.progress import Progress
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.symmetry.transport import Transport
from consilience.networks.symmetry.unit_rows import unit_rows


@dataclass(frozen=True, eq=False)
class Merge(Transport):
    """Many units to one: a new unit receives the mean of its members, and sends what they send together."""

    places: np.ndarray
    n_new: int

    @cached_property
    def sending(self) -> np.ndarray:
        matrix = np.zeros((self.n_new, len(self.places)))
        matrix[self.places, np.arange(len(self.places))] = 1.0
        return matrix

    @cached_property
    def receiving(self) -> np.ndarray:
        return self.sending / np.maximum(self.sending.sum(axis=1, keepdims=True), 1.0)


@dataclass(frozen=True)
class ZipIt(NetworkMethod):
    """Merge the most correlated of all units of all models, of one model or of two (Stoica et al. 2024)."""

    name: ClassVar[str] = "zipit"
    summary: ClassVar[str] = "merge the units whose activations correlate most, within models too"
    needs: ClassVar[str] = "networks of one architecture, and inputs"
    gives: ClassVar[str] = "one network of the same widths"
    paper: ClassVar[str] = "-"

    @property
    def wants_activations(self) -> bool:
        return True

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        del rng, progress
        assert ensemble.activations is not None
        transports: list[dict[str, Transport]] = [{} for _ in ensemble.networks]
        for name, width in ensemble.target_units.items():
            by_model = [model[name] for model in ensemble.activations]
            places = merged(np.corrcoef(np.concatenate(by_model)), width)
            edges = np.cumsum([len(rows) for rows in by_model])[:-1]
            for model, part in enumerate(np.split(places, edges)):
                transports[model][name] = Merge(part, width)
        return Alignment(tuple(transports))


def merged(correlations: np.ndarray, width: int) -> np.ndarray:
    """Return the cluster of every unit when the most correlated pairs are joined until `width` are left."""
    clusters = np.arange(len(correlations))
    upper = np.triu_indices(len(correlations), 1)
    for pair in np.argsort(-correlations[upper]):
        if len(set(clusters)) == width:
            break
        first, second = (clusters[side[pair]] for side in upper)
        clusters[clusters == second] = first
    return np.unique(clusters, return_inverse=True)[1]


@dataclass(frozen=True, eq=False)
class Rotation(Transport):
    """New units are the old ones turned by an orthogonal matrix, as units without a nonlinearity may be."""

    matrix: np.ndarray

    @property
    def receiving(self) -> np.ndarray:
        return self.matrix

    @property
    def sending(self) -> np.ndarray:
        return self.matrix


@dataclass(frozen=True)
class Procrustes(NetworkMethod):
    """Turn the units of every model to those of the first: min_Q |A - Q B|, an SVD of A B'."""

    name: ClassVar[str] = "procrustes"
    summary: ClassVar[str] = "rotate units to those of the first model"
    needs: ClassVar[str] = "networks without nonlinearities"
    gives: ClassVar[str] = "one network"
    paper: ClassVar[str] = "-"

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        del rng, progress
        transports: list[dict[str, Transport]] = [{} for _ in ensemble.networks]
        for name in ensemble.target_units:
            place = next(p for p in ensemble.symmetry.places(name) if p.side == "output")
            layout = ensemble.symmetry.layouts[place.array]
            rows = [np.asarray(unit_rows(n.working[place.array], layout, place, n.units)) for n in ensemble.networks]
            for model, values in enumerate(rows):
                left, _, right = np.linalg.svd(rows[0] @ values.T)
                transports[model][name] = Rotation(left @ right)
        return Alignment(tuple(transports))
