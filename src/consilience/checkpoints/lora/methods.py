"""The method of LoRA adapters in memory and in rounds: the mean of their products, stacked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from consilience.checks import is_count
from consilience.core.methods import MethodTable, Options, Requirement


@dataclass(frozen=True)
class AdapterAverage(Options):
    """The weighted mean of the products B A of adapters, exactly, by stacking their ranks; or of a lower rank.

    Parameters
    ----------
    rank : int or float, optional
        Highest rank of a module, or a share of energy between 0 and 1 that every module keeps. Default: the sum of the
        adapters' ranks, which is exact.
    allow_differences : bool
        Whether adapters whose configurations name different bases are taken to be of one. Default: False.
    """

    name: ClassVar[str] = "average"
    summary: ClassVar[str] = "the mean of the products B A of adapters, by stacking their ranks"
    needs: ClassVar[str] = "LoRA adapters of one base: folders of peft, files of kohya's trainer or of diffusers"
    gives: ClassVar[str] = "one adapter, exact or of a rank with its error"
    paper: ClassVar[str] = "none: stacked factors"
    keeps_models: ClassVar[bool] = False

    rank: int | float | None = None
    allow_differences: bool = False

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        is_share = isinstance(self.rank, float) and 0 < self.rank < 1
        yield "rank", self.rank is None or is_count(self.rank) or is_share, "a positive integer, or between 0 and 1"


ADAPTER_METHODS: tuple[type[AdapterAverage], ...] = (AdapterAverage,)
"""Every method for adapters."""

make_adapter_method = MethodTable(ADAPTER_METHODS, AdapterAverage, "LoRA adapters").make
"""Returns the method of a name with options, a method as it is, `AdapterAverage` for None; see `MethodTable.make`."""
