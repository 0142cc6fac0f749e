"""Merging by Kronecker-factored information: K-FAC, and the merges of FedFisher and FedLPA.

All three minimise the quadratic of ``kronecker_quadratic``, the expected increase of the sites' losses, layer by layer.
They differ in what holds the directions that no site informs: K-FAC merging by damping towards the average, FedFisher
by stopping a descent from the average, FedLPA by a ridge on both factors. None asks for labels; the published codes of
FedFisher and FedLPA choose iterates and variants by labelled images at the server and by test accuracy, and these do
not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from consilience.checks import Array, is_count, is_number
from consilience.core.details import Status
from consilience.core.methods import Requirement
from consilience.core.progress import Progress, silent
from consilience.errors import Problem
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.fisher.kronecker import KroneckerFactors, arrays_of_layer, matrix_of_layer
from consilience.networks.method import Road
from consilience.networks.methods.fisher.informed import InformedMethod, MergedParameters
from consilience.networks.methods.fisher.kronecker_quadratic import LayerQuadratic, adam_descent
from consilience.networks.methods.fisher.parameter_vectors import AlignedSites
from consilience.networks.network import convert_like, to_numpy

if TYPE_CHECKING:
    from consilience.networks.choice.sites import Sites

DAMPINGS = (0.01, 0.1, 1.0, 10.0)
"""Dampings that are compared where the sites describe their inputs. Over 26 federated settings none was best
everywhere: 0.01 or 0.1 under strong skew, 10 for a strong site with a weak one and for IID sites of own starts."""

DEFAULT_DAMPING = 0.1
"""Damping where nothing tells which is best: the best fixed one over the same 26 settings (62.0 % in the mean; 1 has
60.3, the best of the four in each 64.5)."""


Minimum = tuple[list[Array], Array, bool]
"""The matrices of all quadratics, the objective that was descended by step, and whether equations were solved."""


@dataclass(frozen=True, eq=False)
class KroneckerProblem:
    """The quadratics of all layers of a network, and of single parameters that have no Kronecker factors."""

    factors: Mapping[str, KroneckerFactors]  # by path of a layer, those of the first site, which say sizes
    shapes: Mapping[str, tuple[int, ...]]  # of all parameters, by name
    layers: Mapping[str, LayerQuadratic]  # by path of a layer
    rest: Mapping[str, LayerQuadratic]  # by name of a parameter without factors: groups of one entry each

    @classmethod
    def of(
        cls, weights: Array, arrays: Sequence[Mapping[str, Array]], information: Sequence[FisherInformation]
    ) -> KroneckerProblem:
        """Return the problem of sites of these weights, which sum to one, units aligned."""
        first, layers, rest = information[0], {}, {}
        for layer in first.layers:
            factors = [of_site.layers[layer] for of_site in information]
            means = [matrix_of_layer(layer, one, of_site) for one, of_site in zip(factors, arrays, strict=True)]
            inputs, outputs = [one.inputs for one in factors], [one.outputs for one in factors]
            layers[layer] = LayerQuadratic.of(weights, means, inputs, outputs)
        for key in first.residual:
            diagonals = [
                to_numpy(one.residual[key]).reshape(-1, 1, 1) / (one.observations or 1.0) for one in information
            ]
            means = [of_site[key].reshape(-1, 1, 1) for of_site in arrays]
            rest[key] = LayerQuadratic.of(weights, means, diagonals, [np.ones_like(one) for one in diagonals])
        shapes = {key: tuple(arrays[0][key].shape) for key in first.parameters}
        return cls(first.layers, shapes, layers, rest)

    @property
    def quadratics(self) -> list[LayerQuadratic]:
        """All quadratics: of layers, then of the rest."""
        return [*self.layers.values(), *self.rest.values()]

    def arrays(self, matrices: Sequence[Array]) -> dict[str, Array]:
        """Return parameters by name, from the matrices of all quadratics."""
        arrays: dict[str, Array] = {}
        for layer, matrix in zip(self.layers, matrices, strict=False):
            arrays |= arrays_of_layer(layer, self.factors[layer], matrix, self.shapes)
        for key, matrix in zip(self.rest, matrices[len(self.layers) :], strict=True):
            arrays[key] = matrix.reshape(self.shapes[key])
        return arrays

    def value(self, matrices: Sequence[Array]) -> float:
        """Return the expected increase of the sites' losses, the sum of Q over all quadratics."""
        return sum(layer.value(matrix) for layer, matrix in zip(self.quadratics, matrices, strict=True))

    def minimise(self, damping: float, tolerance: float, max_iterations: int, progress: Progress) -> Minimum:
        """Return the minimum that is held by damping to the average."""
        starts = [layer.average for layer in self.quadratics]
        objective = self.value(starts)
        matrices, history, is_converged = [], [], True
        for number, (layer, of) in enumerate(zip(self.quadratics, starts, strict=True), 1):
            solution = layer.minimise(of, damping, tolerance, max_iterations, silent)
            matrices.append(solution.x)
            is_converged &= solution.converged
            objective += float(solution.history[-1]) if len(solution.history) else 0.0
            history.append(objective)
            progress(number, len(starts))
        return matrices, np.array(history), is_converged


@dataclass(frozen=True)
class KroneckerMethod(InformedMethod, ABC):
    """Base class of merges by Kronecker-factored information; ``InformedMethod`` documents its options."""

    reads_layers: ClassVar[bool] = True
    describes_information: ClassVar[bool] = True
    needs: ClassVar[str] = "networks of the same widths that describe their layers, or consilience.fisher of each"
    gives: ClassVar[str] = "one network"

    def observed_shares(self, information: Sequence[FisherInformation] | None, weights: Array) -> Array:
        """Return the sites' shares (J,) of the observations behind their information; `weights` where one says none."""
        observations = np.array([of_site.observations or np.nan for of_site in information or ()])
        is_unsaid = not len(observations) or np.isnan(observations).any()
        return weights if is_unsaid else observations / observations.sum()

    def site_weights(self, sites: Sites) -> Array:
        """Return the weights (J,) of the sites, by their numbers of observations."""
        return sites.weights

    @abstractmethod
    def minimise(self, problem: KroneckerProblem, progress: Progress) -> Minimum:
        """Return the merged parameters."""

    def refuse_information(self, sites: Sequence[FisherInformation]) -> list[Problem]:
        """Return the sites without Kronecker factors, a line each."""
        text = f"has no Kronecker factors, which method {self.name!r} needs"
        remedy = "compute them with `consilience.fisher(..., kind='kronecker')`"
        return [Problem(site.name, text, remedy, "E-NEEDED") for site in sites if not site.layers]

    def merge(self, sites: AlignedSites, rng: np.random.Generator, progress: Progress) -> MergedParameters:
        """Return the merged parameters."""
        del rng
        arrays = [{key: to_numpy(values) for key, values in sites.layout.arrays(mean).items()} for mean in sites.means]
        problem = KroneckerProblem.of(sites.weights, arrays, sites.information)
        matrices, history, is_converged = self.minimise(problem, progress)
        merged = problem.arrays(matrices)
        vector = np.concatenate([merged[name].ravel() for name in sites.layout.shapes])
        status, details = Status.CONVERGED if is_converged else Status.UNSOLVED, list(problem.factors)
        vector = convert_like(vector, sites.means[0])
        return MergedParameters(vector, problem.value(matrices), history, status, {"layers": details})


@dataclass(frozen=True)
class KFAC(KroneckerMethod):
    """Merge networks by Kronecker-factored Fisher information, held to their average by damping.

    The weights and bias W (o, i + 1) of a layer minimise, with A_j the second moments of what the layer reads at site
    j, B_j those of the gradients at what it answers, p_j the weight of the site and W_0 the average,

        1/2 sum_j p_j tr[ (W - W_j)^T B_j (W - W_j) A_j ] + mu / 2 |W - W_0|^2.

    Sites count by their numbers of observations, where these are known, unless `weights` says otherwise.

    Parameters
    ----------
    damping : float, optional
        mu over the mean eigenvalue of the information: 0.01 trusts the information, 10 hardly leaves the average.
        Default: where every site describes its inputs (consilience.describe), the best of 0.01, 0.1, 1 and 10 by the
        choice of the default fusion, without labels; else 0.1. `fusion.verdict` says which and why.
    aligned : bool, optional
        Whether units are matched first, by weights. Default: where the symmetry is known.
    restarts : int
        Descents of that matching. Default: 2.
    tolerance : float
        Bound on the residual of the equations, relative to that of the average. Default: 1e-8, chosen by hand.
    max_iterations : int
        Steps of conjugate gradients for a layer at most. Default: 1000.

    References
    ----------
    Kronecker factors: Martens, Grosse (2015), "Optimizing neural networks with Kronecker-factored approximate
    curvature"; Grosse, Martens (2016) for convolutions. Merging by them: Jhunjhunwala, Wang, Joshi (2024), "FedFisher".
    Damping free of scale and its choice without labels are this library's.
    """

    name: ClassVar[str] = "kfac"
    summary: ClassVar[str] = "weigh what layers compute by Kronecker-factored information, damped to the average"
    paper: ClassVar[str] = "martens2015, grosse2016, jhunjhunwala2024"

    damping: float | None = None

    @property
    def road(self) -> Road:
        """By the damping that is best on what the sites describe, where none is given."""
        return "damped" if self.damping is None else "matched"

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        is_valid = self.damping is None or (is_number(self.damping) and self.damping > 0)
        yield ("damping", is_valid, "a positive number or None")

    def minimise(self, problem: KroneckerProblem, progress: Progress) -> Minimum:
        """Return the damped minimum, layer by layer, by conjugate gradients."""
        damping = DEFAULT_DAMPING if self.damping is None else self.damping
        return problem.minimise(damping, self.tolerance, self.max_iterations, progress)


@dataclass(frozen=True)
class FedFisher(KroneckerMethod):
    """Merge networks by descending their Kronecker-factored Fisher information from the average (FedFisher).

    Steps of Adam on 1/2 sum_j p_j tr[ (W - W_j)^T B_j (W - W_j) A_j ], from the average of the sites; of all iterates,
    the average among them, that of least objective is kept. The published code keeps the one that is best on 500
    labelled images at the server, and needs them.

    Parameters
    ----------
    steps : int
        Steps of Adam. Default: 2000, as in the published code.
    learning_rate : float
        Length of a step, by entry. Default: 0.001, Adam's own; 0.01 goes further from the average and was worse in all
        cells of experiments/network_battery/kronecker.py.
    aligned : bool, optional
        Whether units are matched first, by weights. Default: where the symmetry is known.
    restarts : int
        Descents of that matching. Default: 2.
    tolerance, max_iterations
        Not used: the descent has its steps.

    References
    ----------
    Jhunjhunwala, Wang, Joshi (2024), "FedFisher: leveraging Fisher information for one-shot federated learning",
    AISTATS.
    """

    name: ClassVar[str] = "fedfisher"
    summary: ClassVar[str] = "descend Kronecker-factored information from the average (FedFisher), without labels"
    paper: ClassVar[str] = "jhunjhunwala2024"

    steps: int = 2000
    learning_rate: float = 0.001

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("steps", is_count(self.steps), "a positive integer")
        yield ("learning_rate", is_number(self.learning_rate) and self.learning_rate > 0, "a positive number")

    def minimise(self, problem: KroneckerProblem, progress: Progress) -> Minimum:
        """Return the best iterate."""
        starts = [layer.average for layer in problem.quadratics]
        matrices, history = adam_descent(problem.quadratics, starts, self.steps, self.learning_rate, progress)
        return matrices, history, True


@dataclass(frozen=True)
class FedLPA(KroneckerMethod):
    """Merge networks by layer-wise Laplace posteriors with a ridge on both Kronecker factors (FedLPA).

    The mode of the product of the posteriors N(W_j, (A_j + s I)^-1 (x) (B_j + s I)^-1), s = sqrt(ridge), in closed
    form: sum_j p_j (B_j + s I) W (A_j + s I) = sum_j p_j (B_j + s I) W_j (A_j + s I), solved by conjugate gradients.
    The published code keeps the better of two aggregates by test accuracy; this is the one of the paper's equations.

    Parameters
    ----------
    ridge : float
        Square of what is added to the diagonals of both factors, in their units. Default: 0.001, as published.
    aligned : bool, optional
        Whether units are matched first, by weights. Default: where the symmetry is known.
    restarts : int
        Descents of that matching. Default: 2.
    tolerance : float
        Bound on the residual of the equations, relative to that of the average. Default: 1e-8, chosen by hand.
    max_iterations : int
        Steps of conjugate gradients for a layer at most. Default: 1000.

    References
    ----------
    Liu, Liu, Ye, Shen, Li, Jiang, Li (2024), "FedLPA: one-shot federated learning with layer-wise posterior
    aggregation", NeurIPS.
    """

    name: ClassVar[str] = "fedlpa"
    summary: ClassVar[str] = "product of layer-wise Laplace posteriors with a ridge on both factors (FedLPA)"
    paper: ClassVar[str] = "liu2024"

    ridge: float = 0.001

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("ridge", is_number(self.ridge) and self.ridge > 0, "a positive number")

    def minimise(self, problem: KroneckerProblem, progress: Progress) -> Minimum:
        """Return the mode of the product of the posteriors."""
        root = self.ridge**0.5
        ridged = replace(
            problem,
            layers={name: layer.with_ridge(root) for name, layer in problem.layers.items()},
            rest={name: layer.with_ridge(root) for name, layer in problem.rest.items()},
        )
        return ridged.minimise(0.0, self.tolerance, self.max_iterations, progress)
