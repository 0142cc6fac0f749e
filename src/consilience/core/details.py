"""Records of what a method found on its way, as far as several kinds have them.

``fusion.details`` is a plain dictionary of JSON values, which is written into the fused file as it is. Which keys it
may have each kind states here or in its own ``details``, and a type checker knows them. A method of others that reports
more extends the record of its kind.
"""

from __future__ import annotations

from typing import Any, Required, TypedDict


class LeftOut(TypedDict, total=False):
    """A site that ``robust=True`` left out.

    ``model`` is its name, ``step`` the test that it failed, and ``score`` its distance in units of the usual one.
    """

    model: Required[str]
    step: Required[str]
    score: float


class RobustDetails(TypedDict):
    """What ``robust=True`` did: the sites that were left out, and how many hostile ones are ``tolerated`` at most."""

    left_out: list[LeftOut]
    tolerated: int


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
    then: dict[str, Any]
