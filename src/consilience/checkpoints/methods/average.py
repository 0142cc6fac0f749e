"""Weighted averages of checkpoints: model soups, and the Fisher-weighted mean.

    average:  theta = sum_k w_k theta_k / sum_k w_k
    fisher:   theta = sum_k w_k F_k theta_k / sum_k w_k F_k      (Matena and Raffel 2022)

with theta_k the entries of model k, w_k its weight, and F_k its Fisher diagonal, entry by entry. The second is
`FisherMerging` of networks with structure "diagonal", floors and normalisation included, on tensors that stream.
Tensors without a diagonal (buffers, frozen parameters), and entries where all diagonals vanish, take the mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from consilience.checkpoints.methods.base import Facts, Floats, TensorBlock, TensorMethod, TensorSetting, linear
from consilience.checks import is_count, is_number
from consilience.core.methods import Requirement
from consilience.networks.methods.fisher.precision import diagonal_average, least_precision


@dataclass(frozen=True)
class TensorAverage(TensorMethod):
    """The weighted mean: right for models of one common start.

    Parameters
    ----------
    normalize : bool
        Whether weights, which may be negative, are divided by their sum. Default: True.

    References
    ----------
    Wortsman et al. (2022), "Model soups", ICML; McMahan et al. (2017), federated averaging, one round.
    """

    name: ClassVar[str] = "average"
    summary: ClassVar[str] = "the weighted mean of every entry"
    needs: ClassVar[str] = "checkpoints of one common start, or a symmetry to align them by"
    paper: ClassVar[str] = "mcmahan2017"
    double: ClassVar[bool] = False
    shows: ClassVar[bool] = True

    normalize: bool = True

    @property
    def signed(self) -> bool:
        """A model may be taken away."""
        return True

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return the mean, or the sum (n,)."""
        return _mean(block, setting) if self.normalize else linear(block.models, setting.weights)


@dataclass(frozen=True)
class TensorFisher(TensorMethod):
    """The mean weighted by Fisher diagonals; tensors without information (buffers, frozen ones) are averaged.

    Parameters
    ----------
    floor : float
        Least value of a diagonal entry: where no model has information, the merge is the mean. Default: 1e-20.
    favor_target : int, optional
        Number of a model to which alone the floor, then at least 1e-6, applies, so that where no model has information
        the merge is its value. Default: none.
    normalize : bool
        Whether each diagonal is divided by its Euclidean norm over the whole model. Default: False.

    References
    ----------
    Matena, Raffel (2022), "Merging models with Fisher-weighted averaging", NeurIPS.
    """

    name: ClassVar[str] = "fisher"
    summary: ClassVar[str] = "the mean of every entry, weighted by its Fisher information in every model"
    needs: ClassVar[str] = "checkpoints of one common start, and a Fisher diagonal of each"
    paper: ClassVar[str] = "matena2022"
    needs_information: ClassVar[bool] = True

    # The same default as FisherMerging: as in the published code of Recasens et al. (2023).
    floor: float = 1e-20
    favor_target: int | None = None
    normalize: bool = False

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("floor", is_number(self.floor) and self.floor > 0, "a positive number")
        target = self.favor_target
        is_number_of_model = target is None or (target == 0 and not isinstance(target, bool)) or is_count(target)
        yield ("favor_target", is_number_of_model, "the number of a model, or None")

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return the mean weighted entry by entry (n,).

        Facts "norm 0", "norm 1", ... are what the diagonal of each model is divided by; 1 where they are missing.
        """
        if not block.information:
            return _mean(block, setting)
        weighted = [number for number, weight in enumerate(setting.weights) if weight]
        if len(weighted) == 1:  # to the last bit, negative zeros included
            return block.models[weighted[0]]
        # Weights relative to the largest, so that the floor means the same whatever unit the user's weights have.
        shares = [setting.weights[number] / max(setting.weights) for number in weighted]
        has_target = self.favor_target is not None
        precisions = (  # (n,) each
            np.maximum(
                block.information[number] * (share / facts.get(f"norm {number}", 1.0)),
                least_precision(share, self.floor, has_target, number == self.favor_target),
            )
            for number, share in zip(weighted, shares, strict=True)
        )
        return diagonal_average([block.models[number] for number in weighted], precisions, shares)


def _mean(block: TensorBlock, setting: TensorSetting) -> Floats:
    """Return the weighted mean; of equal models it is the model, to the last bit once it is rounded to their type."""
    if block.models[0].dtype == np.float64 and sum(weight != 0 for weight in setting.weights) > 1:
        return _mean_of_differences(block, setting)
    return linear(block.models, setting.normalised_weights)


def _mean_of_differences(block: TensorBlock, setting: TensorSetting) -> Floats:
    """Return theta_r + sum_k w_k (theta_k - theta_r), r the model of most weight, weights summing to 1.

    Models that are stored in 64 bits are not rounded to a narrower type after this, so sum_k w_k theta_k of equal
    models would show its own rounding; their differences are exactly 0.
    """
    weights = setting.normalised_weights
    heaviest = max(range(len(weights)), key=weights.__getitem__)
    reference = block.models[heaviest]  # (n,)
    change: Any = 0.0
    for weight, model in zip(weights, block.models, strict=True):
        if weight and model is not reference:
            change = change + weight * (model - reference)
    total: Floats = reference + change
    np.copyto(total, reference, where=change == 0.0)  # -0.0 + 0.0 would be 0.0
    return total
