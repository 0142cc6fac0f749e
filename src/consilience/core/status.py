"""How a fusion ended, and what to do about it."""

from __future__ import annotations

from enum import Enum


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
