"""The verdict on fused estimators: whether what came out is what the rows of all sites would have given."""

from __future__ import annotations

from consilience.core.verdict import Verdict
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.statistics import WITHOUT_UNWEIGHTED, Statistics


def judge(statistics: Statistics, n_sites: int) -> Verdict:
    """Return the verdict on the estimator of all sites' sums.

    Parameters
    ----------
    statistics : Statistics
        The sums of all sites.
    n_sites : int
        Number of sites.
    """
    adapter = adapter_of_kind(statistics.kind)
    name = adapter.class_name if statistics.last_step is None else f"Pipeline of a {adapter.class_name}"
    rows = f"the {statistics.n_observations:,.0f} rows of all {n_sites} sites"
    withheld = statistics.n_withheld
    if withheld:
        rows += f", without {withheld:,} {'class' if withheld == 1 else 'classes'} of too few rows at their sites"
    if statistics.approximations:
        return Verdict(
            "approximate",
            f"near the {name} that fit gives on {rows}, and how near is not known: {statistics.approximations[0]}.",
            None,
            remedy="min_count=0 at the sites and here sends what is missing"
            if statistics.approximations[0] == WITHOUT_UNWEIGHTED
            else "describe the models where their data are: cs.describe(model, data=...)",
        )
    how = "" if adapter.mark == "exact" else ", as its iteration ends there"
    return Verdict(
        adapter.mark,
        f"{adapter.mark}: this is the {name} that fit gives on {rows}{how}.",
        None if withheld else True,
        remedy="min_count=0 at the sites and here keeps small classes" if withheld else None,
    )
