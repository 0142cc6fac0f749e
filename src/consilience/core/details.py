"""How a fusion ended, and records of what a method found on its way, as far as several kinds have them.

``fusion.details`` is a plain dictionary of JSON values, which is written into the fused file as it is. Which keys it
may have each kind states here or in its own ``details``, and a type checker knows them. A method of others that reports
more extends the record of its kind.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NotRequired, Required, TypedDict


class Status(Enum):
    """How a fusion ended; the value says what to do about it, after a semicolon."""

    CONVERGED = "converged"
    MAX_ITERATIONS = "stopped at max_iterations before the matching settled; raise max_iterations"
    UNSOLVED = (
        "stopped before the equations were solved; raise max_iterations (steps, where there are such) or tolerance"
    )
    INDISTINCT = (
        "a copy tells less of its component than which one it is a copy of, so that matches mean little; raise mass, "
        "or give within_variance with `optimize=False`"
    )
    OUT_OF_TIME = "stopped at max_seconds before all was done; raise max_seconds"
    AT_CAPACITY = "every one of max_components is in use, so the true number may be larger; raise max_components"

    @property
    def remedy(self) -> str | None:
        """What to do about it; None where nothing is to be done."""
        return self.value.partition("; ")[2] or None


class LeftOut(TypedDict, total=False):
    """A site that ``robust=True`` left out.

    ``model`` is its name, ``step`` the test that it failed, and ``score`` its distance in units of the usual one.
    """

    model: Required[str]
    step: Required[str]
    score: float


def why_left_out(record: LeftOut) -> str:
    """Return why a site was left out, in words of a reader who does not know the tests by name."""
    step = str(record["step"])
    return {"gate": "far from most models"}.get(step, step)


class RobustDetails(TypedDict):
    """What ``robust=True`` did: the sites that were left out, and how many hostile ones are ``tolerated`` at most.

    ``unseen_error_ratio`` is what these can do within what honest sites differ by, where nobody sees them: the error of
    a parameter over that of the honest sites' mean is at least that in the worst case, whatever the rule
    (``core.robust.minimax_ratio``). ``weak`` says where more than that is lost, of models such as these.
    """

    left_out: list[LeftOut]
    tolerated: int
    unseen_error_ratio: float
    weak: NotRequired[str]


class WithheldComponent(TypedDict):
    """A component, or a class of an estimator, with too few observations to take part, and the model it is of."""

    model: str
    component: int | str


class Withheld(TypedDict):
    """Components with fewer than ``min_count`` observations: their ``count``, and the first of them."""

    min_count: float
    count: int
    components: list[WithheldComponent]


class Details(TypedDict, total=False):
    """What any kind may report: the method or candidate that was ``chosen``, and the ``then``: requests after it."""

    chosen: str
    aligned_columns: list[str]  # how columns of sites were aligned by name, a sentence each
    then: dict[str, Any]
