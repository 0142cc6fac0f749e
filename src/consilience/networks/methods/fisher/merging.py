"""Fisher merging: the mode of the product of the sites' Gaussian posteriors.

The posterior of site k is N(theta_k, P_k^-1), P_k = F_k + alpha_k I with F_k its Fisher information and alpha_k the
precision of its prior. With w_k how often it counts, the mode theta solves

    (sum_k w_k P_k - excess I) theta = sum_k w_k P_k theta_k,

(5) of Recasens et al. (2023), whose K - 1 surplus priors are the excess. With P_k = I that is the mean (isotropic).
With diagonal F_k and without priors it is a mean weighted entry by entry (Matena and Raffel 2022). With low-rank
F_k = G_k^T G_k + diag(r_k) the equations are solved by conjugate gradients, by products with G_k only, or directly as a
P x P system. The status says where the equations were not solved within the limit of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import is_count, is_number
from consilience.core.details import Status
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.errors import Problem
from consilience.networks.details import NetworkDetails
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.methods.fisher.informed import FisherMethod, MergedParameters, Prior
from consilience.networks.methods.fisher.parameter_vectors import AlignedSites
from consilience.networks.methods.fisher.precision import (
    PosteriorProduct,
    conjugate_gradients,
    diagonal_average,
    least_precision,
)

Structure = Literal["isotropic", "diagonal", "low_rank", "full"]

MAX_DENSE_PARAMETERS = 8192
"""Parameters of which a full matrix is made at most: half a gibibyte in float64. Chosen by hand."""

RIDGE = 1e-8
"""Directions without information are held at the diagonal merge by this fraction of the mean precision. Chosen by hand;
nobody has measured other values."""


@dataclass(frozen=True)
class FisherMerging(FisherMethod):
    """Merge networks by the Fisher information of every parameter, and of correlations between parameters.

    Parameters
    ----------
    prior : {"removed", "kept", "ignored"}, optional
        Treatment of the sites' priors. "removed": the fused posterior has one prior, as each site's has, (5). "kept":
        the product of the posteriors, (1), with all priors. "ignored": likelihoods alone. Default: ignored for a
        diagonal or isotropic merge, as published; otherwise removed, or kept where the priors differ: then sites of one
        weight decay give what training with that decay on all observations would.
    prior_precision : float, optional
        alpha of the fused network's prior. Default: the sites', if they have the same.
    shrinkage : float, optional
        Fraction of the off-diagonal information that is left out, 0 to 1; at 1 the merge is diagonal. Default: 0 for
        networks that are linear in their parameters, for which the merge then is the product of their posteriors
        (of all data, for a gaussian likelihood), and 0.9 for others.
    normalize : bool
        Whether each site's information is divided by the norm of its diagonal, as Matena and Raffel do: networks that
        are unsure of everything, because they were trained briefly, have large information, and would otherwise
        outweigh the others. Default: False.
    aligned : bool, optional
        Whether units are matched first, by weights. Default: where the symmetry is known.
    restarts : int
        Descents of that matching. Default: 2.
    tolerance : float
        Bound on the residual of the equations, relative to the right-hand side. Default: 1e-8, chosen by hand.
    max_iterations : int
        Steps of conjugate gradients at most. Default: 1000.
    structure : {"isotropic", "diagonal", "low_rank", "full"}, optional
        "isotropic": the mean. "diagonal": the diagonal of F. "low_rank": factors and a diagonal. "full": the same with
        a P x P matrix, up to 8192 parameters. Default: low_rank where the sites sent factors, else diagonal.
    floor : float
        Least value of a diagonal entry (diagonal only): where no site has information, the merge is the mean. Default:
        1e-20, as in the published code of Recasens et al.
    favor_target : int, optional
        Number of a model to which alone the floor, then at least 1e-6, applies, so that where no site has information
        the merge is its value (diagonal only; Matena and Raffel's, with the first model). Default: none.

    References
    ----------
    Matena, Raffel (2022), "Merging models with Fisher-weighted averaging", NeurIPS. Recasens et al. (2023), "Beyond
    parameter averaging in model aggregation", (1)-(5). Low rank by conjugate gradients, shrinkage and alignment are
    this library's.
    """

    name: ClassVar[str] = "fisher"
    summary: ClassVar[str] = "weigh parameters by Fisher information: diagonal, low rank or full"
    needs: ClassVar[str] = "networks of the same widths, and of each what consilience.fisher gives"
    gives: ClassVar[str] = "one network; for linear regressions, the posterior of all data"
    paper: ClassVar[str] = "matena2022, recasens2023"

    structure: Structure | None = None
    floor: float = 1e-20
    favor_target: int | None = None

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        structures = (None, "isotropic", "diagonal", "low_rank", "full")
        yield ("structure", self.structure in structures, "'isotropic', 'diagonal', 'low_rank', 'full' or None")
        target = self.favor_target
        is_model = target is None or (target == 0 and not isinstance(target, bool)) or is_count(target)
        yield ("favor_target", is_model, "the number of a model, or None")
        yield ("floor", is_number(self.floor) and self.floor > 0, "a positive number")

    @property
    def wants_information(self) -> bool:
        """Whether the method needs Fisher information: all but the isotropic merge."""
        return self.structure != "isotropic"

    def default_prior(self, sites: Sequence[FisherInformation]) -> Prior:
        """Return the default treatment of priors: ignored by a diagonal merge, else removed."""
        return "ignored" if self._choose_structure(sites) == "diagonal" else "removed"

    def refuse_information(self, sites: Sequence[FisherInformation]) -> list[Problem]:
        """Return further problems, a line each: a favoured model that is not there, and too large a full matrix."""
        reasons: list[Problem] = []
        if self.favor_target is not None and self.favor_target >= len(sites):
            text = f"there are {len(sites)} models, from 0; found {self.favor_target}"
            reasons.append(Problem("favor_target", text, code="E-NUMBER"))
        if self.structure == "full":
            size = sum(prod(values.shape) for values in sites[0].diagonal.values())
            if size > MAX_DENSE_PARAMETERS:
                text = (
                    f"structure 'full' makes a matrix of {size} x {size} parameters, at most {MAX_DENSE_PARAMETERS} "
                    "are allowed; structure 'low_rank' solves the same equations"
                )
                reasons.append(Problem("", text))
        return reasons

    def _choose_structure(self, sites: Sequence[FisherInformation]) -> Structure:
        if self.structure is not None:
            return self.structure
        return "low_rank" if any(information.factors for information in sites) else "diagonal"

    def merge(self, sites: AlignedSites, rng: np.random.Generator, progress: Progress) -> MergedParameters:
        """Return the merged parameters."""
        del rng
        structure = self._choose_structure(sites.information)
        product, details = self.posterior_product(sites)
        details |= {"structure": structure}
        if structure == "diagonal":
            del details["shrinkage"]  # shrinkage keeps diagonals
            return self._merge_diagonal(sites, product, details)
        # Solved for the step from the diagonal merge: where a ridge is needed, it holds parameters there, not at 0.
        start, ridge = product.diagonal_merge(), _ridge(product, details)
        b = product.negative_gradient(start)
        if structure == "full":
            dense = product.dense()  # (P, P)
            xp = array_namespace(dense)
            dense = dense + ridge * xp.eye(dense.shape[0], dtype=dense.dtype, device=dense.device)
            theta = start + xp.linalg.solve(dense, b[:, None])[:, 0]
            return MergedParameters(theta, product.energy(theta), details=details)
        solution = conjugate_gradients(
            lambda step: product.times(step) + ridge * step,
            b,
            product.diagonal + ridge,
            self.tolerance,
            self.max_iterations,
            progress,
        )
        status = Status.CONVERGED if solution.converged else Status.UNSOLVED
        theta, start_energy = start + solution.x, product.energy(start)
        details |= {"residual": solution.residual}
        return MergedParameters(theta, product.energy(theta), start_energy + solution.history, status, details)

    def _merge_diagonal(
        self, sites: AlignedSites, product: PosteriorProduct, details: NetworkDetails
    ) -> MergedParameters:
        """Return the mean weighted entry by entry by the diagonals of the precisions, less the surplus priors."""
        has_target = self.favor_target is not None
        xp = array_namespace(product.means[0])
        precisions = []  # (P,) each
        shares: list[float] = (sites.weights / sites.weights.max()).tolist()
        for number, share, precision, count in zip(
            sites.input_numbers, shares, product.precisions, product.counts, strict=True
        ):
            least = least_precision(share, self.floor, has_target, number == self.favor_target)
            weighted = count * precision.diagonal
            floor = xp.asarray(least, dtype=weighted.dtype, device=weighted.device)
            precisions.append(xp.where(weighted > floor, weighted, floor))
        theta = diagonal_average(product.means, precisions, product.counts, product.excess)
        return MergedParameters(theta, product.energy(theta), details=details)


def _ridge(product: PosteriorProduct, details: NetworkDetails) -> float:
    """Return the ridge for directions without information, 0 where none is needed; add it and a note to the details."""
    xp = array_namespace(product.means[0])
    # The diagonal part less the excess bounds the Hessian's smallest eigenvalue from below.
    diagonal_part = sum(
        count * precision.diagonal_part for precision, count in zip(product.precisions, product.counts, strict=True)
    )
    least, typical = float(xp.min(diagonal_part)) - product.excess, float(xp.mean(product.diagonal))
    if least > RIDGE * typical:
        return 0.0
    details["ridge"] = RIDGE * typical
    details["notes"] = [
        *details.get("notes", ()),
        "without a prior, directions of which sites know little are held by next to nothing and may end far away; "
        "a prior precision or more shrinkage holds them",
    ]
    return RIDGE * typical
