"""Fisher merging: every site's posterior as a Gaussian around its parameters, and the mode of their product.

    (sum_k w_k P_k - excess I) theta = sum_k w_k P_k theta_k,    P_k = F_k + alpha_k I,

(5) of Recasens et al. (2023), whose K - 1 surplus priors are the excess. With P_k = I that is the mean (isotropic);
with diagonal F_k, without priors, a mean weighted entry by entry (Matena and Raffel 2022); with
F_k = G_k^T G_k + diag(r_k) the equations are solved by conjugate gradients, products with G_k only, or as they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, is_count, is_number
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.methods.fisher.base import InformedMethod, Merged, Prior
from consilience.networks.methods.fisher.conjugate_gradients import conjugate_gradients
from consilience.networks.methods.fisher.parameter_vectors import Sites
from consilience.networks.methods.fisher.precision import Posteriors

Structure = Literal["isotropic", "diagonal", "low_rank", "full"]

_DENSE = 8192
"""Parameters of which a full matrix is made at most (half a gigabyte)."""

RIDGE = 1e-8
"""Where nothing is known of a direction, it is held at the diagonal merge by this share of the mean precision."""

_TARGET_FLOOR = 1e-6

_NOTHING = 1e-12
"""Less than this share of what went in is left of the precision where priors cancel: rounding."""


@dataclass(frozen=True)
class FisherMerging(InformedMethod):
    """Merge networks by what each site's data say of every parameter, and of how parameters hang together.

    Parameters
    ----------
    prior
        "removed": every site's posterior has the prior once, the fused one too, (5). "kept": the product of the
        posteriors, (1), with all priors. "ignored": likelihoods alone. None ignores it for a diagonal or isotropic
        merge, as published, and otherwise removes it, or keeps all where they differ: then sites of one weight decay
        give what training with that decay on all observations would.
    prior_precision
        alpha of the fused network's prior; None takes the sites', if they have the same.
    shrinkage
        Part of the off-diagonal information that is not trusted, 0 to 1; at 1 the merge is diagonal. None takes 0 for
        networks that are linear in their parameters, for which the merge then is the product of their posteriors
        (of all data, for a gaussian likelihood), and 0.9 for others.
    normalize
        Whether each site counts less the larger its information is, divided by the norm of its diagonal, as Matena and
        Raffel do: networks that are unsure of everything, trained briefly, would else outweigh those that are sure.
    aligned
        Whether units are matched first, by weights; None does where it is known which axes move together.
    restarts
        Descents of that matching.
    tolerance
        Of the residual of the equations, as a share.
    max_iterations
        Steps of conjugate gradients at most.
    structure
        "isotropic": the mean. "diagonal": the diagonal of F. "low_rank": factors and a diagonal. "full": the same with
        a P x P matrix, up to 8192 parameters. None takes low_rank where the sites sent factors, else diagonal.
    floor
        Least value of a diagonal entry (diagonal only): where no site knows anything, the merge is the mean.
    favor_target
        Number of a model: the floor, then at least 1e-6, holds for that one only, so that where no site knows anything
        the merge is its value (diagonal only; Matena and Raffel's, with the first model). None for none.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        known = (None, "isotropic", "diagonal", "low_rank", "full")
        self.require("structure", self.structure in known, "'isotropic', 'diagonal', 'low_rank', 'full' or None")
        target = self.favor_target
        self.require(
            "favor_target",
            target is None or (target == 0 and not isinstance(target, bool)) or is_count(target),
            "the number of a model, or None",
        )
        self.require("floor", is_number(self.floor) and self.floor > 0, "a positive number")

    @property
    def wants_information(self) -> bool:
        """Whether it needs Fisher information."""
        return self.structure != "isotropic"

    def prior_of(self, sites: Sequence[FisherInformation]) -> Prior:
        """Return that the prior is ignored by a diagonal merge, and removed otherwise."""
        return "ignored" if self._structure(sites) == "diagonal" else "removed"

    def refuse_information(self, sites: Sequence[FisherInformation]) -> list[str]:
        """Return what else is in the way of merging by what sites know, a line each."""
        reasons = [
            f"{one.name}: has the published code's sums, which only method 'ssf' reads" for one in sites if one.compat
        ]
        if self.favor_target is not None and self.favor_target >= len(sites):
            reasons.append(f"favor_target: there are {len(sites)} models, from 0; found {self.favor_target}")
        if self.structure == "full":
            size = sum(prod(values.shape) for values in sites[0].residual.values())
            if size > _DENSE:
                reasons.append(
                    f"structure 'full' makes a matrix of {size} x {size} parameters, at most {_DENSE} are allowed; "
                    "structure 'low_rank' solves the same equations"
                )
        return reasons

    def _structure(self, sites: Sequence[FisherInformation]) -> Structure:
        if self.structure is not None:
            return self.structure
        return "low_rank" if any(one.factors for one in sites) else "diagonal"

    def merge(self, sites: Sites, rng: np.random.Generator, progress: Progress) -> Merged:
        """Return the merged parameters."""
        del rng
        structure = self._structure(sites.information)
        posteriors, details = self.posteriors(sites)
        details |= {"structure": structure}
        if structure == "diagonal":
            del details["shrinkage"]  # which changes no diagonal
            return self._diagonal(sites, posteriors, details)
        start, ridge = diagonal_merge(posteriors), _ridge(posteriors, details)
        b = posteriors.downhill(start)
        if structure == "full":
            dense = posteriors.dense()
            xp = array_namespace(dense)
            dense = dense + ridge * xp.eye(dense.shape[0], dtype=dense.dtype, device=dense.device)
            theta = start + xp.linalg.solve(dense, b[:, None])[:, 0]
            return Merged(theta, posteriors.energy(theta), details=details)
        found = conjugate_gradients(
            lambda step: posteriors.times(step) + ridge * step,
            b,
            posteriors.diagonal + ridge,
            self.tolerance,
            self.max_iterations,
            progress,
        )
        status = Status.CONVERGED if found.converged else Status.UNSOLVED
        theta, first = start + found.x, posteriors.energy(start)
        details |= {"residual": found.residual}
        return Merged(theta, posteriors.energy(theta), first + found.history, status, details)

    def _diagonal(self, sites: Sites, posteriors: Posteriors, details: dict[str, Any]) -> Merged:
        """Return the mean weighted entry by entry."""
        above, below = 0.0, -posteriors.excess
        favored = self.favor_target is not None
        least = max(self.floor, _TARGET_FLOOR) if favored else self.floor
        first = posteriors.means[0]
        xp = array_namespace(first)
        shares: list[float] = (sites.weights / sites.weights.max()).tolist()
        for number, share, mean, precision, count in zip(
            sites.given, shares, posteriors.means, posteriors.precisions, posteriors.counts, strict=True
        ):
            weight = count * precision.diagonal
            if not favored or number == self.favor_target:
                floor = xp.asarray(share * least, dtype=weight.dtype, device=weight.device)
                weight = xp.where(weight > floor, weight, floor)
            # differences to one of them, so that equal parameters stay as they are to the last bit
            above, below = above + weight * (mean - first), below + weight
        theta = first + _quotient(above + posteriors.excess * first, below, posteriors)
        return Merged(theta, posteriors.energy(theta), details=details)


def diagonal_merge(posteriors: Posteriors) -> AnyArray:
    """Return the mean weighted by the diagonals of precisions, without regard to surplus priors: where to start."""
    first = posteriors.means[0]
    above, below = 0.0, 0.0
    for mean, precision, count in zip(posteriors.means, posteriors.precisions, posteriors.counts, strict=True):
        above, below = above + count * precision.diagonal * (mean - first), below + count * precision.diagonal
    return first + _quotient(above, below, posteriors)


def _quotient(above: AnyArray, below: AnyArray, posteriors: Posteriors) -> AnyArray:
    """Return above / below, and where nothing is below the mean of the sites less the first."""
    first = posteriors.means[0]
    mean = sum(count * (one - first) for one, count in zip(posteriors.means, posteriors.counts, strict=True))
    xp = array_namespace(first)
    known = below > _NOTHING * (below + posteriors.excess)
    return xp.where(known, above / xp.where(known, below, xp.ones_like(below)), mean / sum(posteriors.counts))


def _ridge(posteriors: Posteriors, details: dict[str, Any]) -> float:
    """Return what holds directions of which nothing is known, where something must, and say so."""
    xp = array_namespace(posteriors.means[0])
    own = sum(count * one.own for one, count in zip(posteriors.precisions, posteriors.counts, strict=True))
    least, typical = float(xp.min(own)) - posteriors.excess, float(xp.mean(posteriors.diagonal))
    if least > RIDGE * typical:
        return 0.0
    details["ridge"] = RIDGE * typical
    details["notes"] = [
        *details.get("notes", ()),
        "without a prior, directions of which sites know little are held by next to nothing and may end far away; "
        "a prior precision or more shrinkage holds them",
    ]
    return RIDGE * typical
