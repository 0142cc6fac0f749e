"""The method of estimators: sums of sufficient statistics are added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from consilience.core.methods import MethodTable, Options, Requirement


@dataclass(frozen=True)
class Sums(Options):
    """Add the sufficient statistics of all sites: what comes out is the fit on all of their rows.

    Hyper-parameters of the estimator, such as ``alpha=``, are keywords of the call beside it.

    Parameters
    ----------
    robust : bool, optional
        True is for sites that are not trusted: sites whose sums are copies of another's or far from most are left out,
        and no site counts for more than the median number of rows. Default: every site is trusted.
    absent_columns : {"zeros"}, optional
        "zeros" takes named columns that a site lacks for zero in all of its rows, as the dummy of a level is which none
        of them has. Default: such sites are refused, but for the levels of a formula, which say so themselves.
    """

    name: ClassVar[str] = "sums"
    summary: ClassVar[str] = "add sufficient statistics: the estimator that all rows together give"
    needs: ClassVar[str] = "estimators of one class, described at their sites, or files of their sums"
    gives: ClassVar[str] = "an estimator of that class, with a verdict that says whether it is exact"
    paper: ClassVar[str] = "none: sums of sufficient statistics"
    keeps_models: ClassVar[bool] = False

    robust: bool | None = None
    absent_columns: str | None = None

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield (
            "robust",
            self.robust is None or isinstance(self.robust, bool),
            "True, False or None (sums cannot be trimmed)",
        )
        yield "absent_columns", self.absent_columns in (None, "zeros"), "'zeros' or None"


ESTIMATOR_METHODS: tuple[type[Sums], ...] = (Sums,)
"""Every method for estimators."""

make_estimator_method = MethodTable(ESTIMATOR_METHODS, Sums, "estimators").make
"""Returns the method of a name with options, a method as it is, `Sums` for None; see `MethodTable.make`."""
