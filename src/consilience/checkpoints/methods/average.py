"""Means of checkpoints entry by entry: weighted by one number a model, or by what each model's data say of an entry.

    average:  theta = sum_k w_k theta_k / sum_k w_k
    fisher:   theta = sum_k w_k F_k theta_k / sum_k w_k F_k      (entry by entry; Matena and Raffel 2022)

The second is `FisherMerging` with structure "diagonal", whose floors and scales it shares, on tensors that stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from consilience.checkpoints.methods.base import Block, Facts, Floats, Setting, TensorMethod, linear
from consilience.checks import is_count, is_number

_TARGET_FLOOR = 1e-6


@dataclass(frozen=True)
class TensorAverage(TensorMethod):
    """The weighted mean: right for models of one common start.

    References
    ----------
    Wortsman et al. (2022), "Model soups", ICML; McMahan et al. (2017), federated averaging, one round.
    """

    name: ClassVar[str] = "average"
    summary: ClassVar[str] = "the weighted mean of every entry"
    needs: ClassVar[str] = "checkpoints of one common start, or a symmetry to align them by"
    gives: ClassVar[str] = "one checkpoint"
    paper: ClassVar[str] = "mcmahan2017"
    double: ClassVar[bool] = False
    shows: ClassVar[bool] = True

    def merge(self, block: Block, setting: Setting, facts: Facts) -> Floats:
        """Return the mean."""
        return _mean(block, setting)


@dataclass(frozen=True)
class TensorFisher(TensorMethod):
    """The mean weighted by Fisher diagonals; tensors without information (buffers, frozen ones) are averaged.

    Parameters
    ----------
    floor
        Least value of a diagonal entry: where no model knows anything, the merge is the mean.
    favor_target
        Number of a model: the floor, then at least 1e-6, holds for that one only, so that where nobody knows anything
        the merge is its value. None for none.
    normalize
        Whether each model counts less the larger its information is, divided by the norm of its diagonal.

    References
    ----------
    Matena, Raffel (2022), "Merging models with Fisher-weighted averaging", NeurIPS.
    """

    name: ClassVar[str] = "fisher"
    summary: ClassVar[str] = "the mean of every entry, weighted by its Fisher information in every model"
    needs: ClassVar[str] = "checkpoints of one common start, and a Fisher diagonal of each"
    gives: ClassVar[str] = "one checkpoint"
    paper: ClassVar[str] = "matena2022"
    needs_information: ClassVar[bool] = True

    floor: float = 1e-20
    favor_target: int | None = None
    normalize: bool = False

    def __post_init__(self) -> None:
        self.require(
            ("floor", is_number(self.floor) and self.floor > 0, "a positive number"),
        )
        target = self.favor_target
        self.require(
            (
                "favor_target",
                target is None or (target == 0 and not isinstance(target, bool)) or is_count(target),
                "the number of a model, or None",
            ),
            ("normalize", isinstance(self.normalize, bool), "true or false"),
        )

    def merge(self, block: Block, setting: Setting, facts: Facts) -> Floats:
        """Return the mean weighted entry by entry.

        Facts "norm 0", "norm 1", ... are what each model's information is divided by; 1 where there are none.
        """
        if not block.information:
            return _mean(block, setting)
        favored = self.favor_target is not None
        least = max(self.floor, _TARGET_FLOOR) if favored else self.floor
        most = max(setting.weights)
        counted = [number for number, weight in enumerate(setting.weights) if weight]
        if len(counted) == 1:
            return block.models[counted[0]]
        above: Any = 0.0
        below: Any = 0.0
        for number in counted:
            share = setting.weights[number] / most
            weight = block.information[number] * (share / facts.get(f"norm {number}", 1.0))
            if not favored or number == self.favor_target:
                weight = np.maximum(weight, share * least)
            above, below = above + weight * block.models[number], below + weight
        known = below > 0
        if known.all():
            return above / below
        return np.where(known, above / np.where(known, below, 1.0), _mean(block, setting))


def _mean(block: Block, setting: Setting) -> Floats:
    """Return the weighted mean; of equal models it is the model, to the last bit once it is rounded to their type."""
    if block.models[0].dtype == np.float64 and sum(weight > 0 for weight in setting.weights) > 1:
        return _mean_of_differences(block, setting)
    return linear(block.models, setting.shares)


def _mean_of_differences(block: Block, setting: Setting) -> Floats:
    """Return the mean as the model of most weight and differences to it: exact for equal models without rounding."""
    shares = setting.shares
    most = max(range(len(shares)), key=shares.__getitem__)
    first = block.models[most]
    change: Any = 0.0
    for share, model in zip(shares, block.models, strict=True):
        if share and model is not first:
            change = change + share * (model - first)
    total: Floats = first + change
    np.copyto(total, first, where=change == 0.0)  # negative zeros too
    return total
