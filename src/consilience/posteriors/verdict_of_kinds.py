"""What the verdict says of kinds without a density in closed form: cluster centres, and hidden Markov chains.

Of centres c_k that are the means of n_k rows each, the rows' sum of squared distances grows, when every row goes to the
fused centre f nearest to its own, by exactly

    sum_k n_k |c_k - f_k|^2

and with the fused centre nearest to each row by at most that. With each site's own centres it is the sum of the sites'
inertias W. Where a site's model was fused itself, its inertia is too small, and the share of W is a bound all the more;
where it withheld small clusters, its inertia is cut to the share of the rows that remain.

Chains are compared as mixtures of their states' emissions, without the order of the states.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from consilience.drawing.words import all_of, format_count
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.posterior import Posterior

INERTIA = "inertia"
"""What is attached to centres: the sum of squared distances of a site's rows to their own."""
ROWS_TELL = (
    "whether the fused model is better than each site's own, rows that sites hold out tell (`held_out=`, in a round"
    " `--then choose`, or `consilience evaluate`)"
)
"""What would tell whether a fused model is better."""
MAX_CENTRES = 5000
"""Centres up to which distances to the fused ones are computed, as many as other verdicts judge."""


LARGE_SHARE = 0.1
"""Share of the sum of squares up to which centres are said to be as near. Chosen by hand."""


class Known(NamedTuple):
    """What is known of a fused model."""

    text: str  # a clause, its first letter small
    standing: str  # the same in few words, a sentence without its end


def known_of_centres(ensemble: Ensemble, fused: Posterior, *, has_means: bool) -> Known | None:
    """Return by how much the sum of squares grows from each site's own centres to the fused ones; None if unknown.

    `has_means` says whether centres are the means of their rows.
    """
    counts = ensemble.column("counts")
    given = [posterior.attached.get(INERTIA) for posterior in ensemble.posteriors]
    if counts is None or len(ensemble.natural) > MAX_CENTRES or any(one is None for one in given):
        return None
    if not has_means:
        return Known(
            f"centres of such models are no means of rows, so that no sum of squares is known; {ROWS_TELL}", ""
        )
    own_sum = float(sum(float(one.values) for one in given if one is not None))
    own, centres = (one.family.from_natural(one.natural)["mean"] for one in (ensemble, fused))
    nearest = np.array([np.square(centres - centre).sum(axis=1).min() for centre in own])  # (L,)
    more = float(counts @ nearest)
    if not own_sum > 0.0 or not np.isfinite(more):
        return None
    rows = f"{format_count(round(float(counts.sum())), 'row')} of {all_of(ensemble.n_sites, 'sites')}"
    share = _percent(more / own_sum)
    text = (
        f"by the sites' counts, centres and inertias, the squared distances of the {rows} to the nearest fused centre"
        f" add up to {'no more' if share is None else f'at most {share} more'} than those to each site's own centres;"
        f" {ROWS_TELL}"
    )
    if more <= LARGE_SHARE * own_sum:
        within = "" if share is None else f", to within {share}"
        standing = f"By squared distance its centres are as near to the sites' rows as each site's own are{within}"
    else:
        standing = f"Its centres are further from the sites' rows than each site's own: by up to {share} in squares"
    return Known(text, standing)


def known_of_chain(lost: str | None, unit: str) -> Known:
    """Return what a fused chain loses, `lost` as the verdict on a mixture says it; None where that is not known."""
    order = f"parameters do not say how well the order of its states fits; {ROWS_TELL}"
    if lost is None:
        return Known(order, "")
    with_unit = lost if "nats" in lost else lost.replace(" against", f" nats per {unit} against", 1)
    said = with_unit.replace("loses", "lose", 1)
    return Known(
        f"the states of the fused chain, compared without their order, {said}; {order}",
        f"Its states, compared without their order, {said}",
    )


def _percent(share: float) -> str | None:
    """Return a share in percent, rounded up; None for one that is rounding alone."""
    if share < 1e-9:
        return None
    percent = 100.0 * share
    digits = 0 if percent >= 10 else 1
    return f"{max(np.ceil(percent * 10**digits) / 10**digits, 0.1):.{digits}f} %"
