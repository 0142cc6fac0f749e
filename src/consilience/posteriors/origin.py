"""Posteriors about an origin, for components whose means dwarf their widths: timestamps, positions, coordinates.

A Normal-Wishart is kept by its natural parameters, W^-1 + kappa m m^T among them. Where m is 1e8 deviations from zero,
float64 has no digit left for W^-1. No divergence, average or evidence depends on where zero is, so such components are
described as laws of x - o, with an origin o near their means that travels along as an attached array. Models are
brought to one origin before they are matched, and what is told in units of the data has it added again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from consilience.checks import Array
from consilience.families.linalg import variances_of
from consilience.posteriors.posterior import ORIGIN, Attached, Posterior, shares_of

FAR = 1e4
"""Deviations from zero to a mean from which on components are described about an origin: with fewer, float64 keeps
eight digits of a covariance beside the squared mean."""


def origin_of(means: Array, variances: Array, counts: Array) -> dict[str, Attached]:
    """Return the origin of components as an attached array by its name; none where no mean is far from zero.

    Of means (K, D), with variances (K, D) and observations (K,), it is the mean by observations.
    """
    with np.errstate(all="ignore"):
        is_far = np.abs(means) > FAR * np.sqrt(variances)
    if not (np.any(is_far) and np.all(np.isfinite(means)) and np.all(variances > 0)):
        return {}
    return {ORIGIN: Attached(shares_of(counts) @ means, ("fixed",), "keep")}


def about(posterior: Posterior, origin: Array, *, is_cut: bool = False) -> Posterior:
    """Return the same posterior about another origin (D,).

    Where widths would be lost beside the distance this raises InputError, or, `is_cut`, puts it no farther than they
    are kept: far from all others, too.
    """
    family, shift = posterior.family, posterior.origin - origin
    if is_cut:
        parts = family.plug_in(posterior.natural)
        assert parts is not None  # noqa: S101  (narrows the type: posteriors with an origin are of Gaussian data)
        farthest = FAR * np.sqrt(variances_of(np.asarray(parts[1]))).max(axis=0)  # (D,)
        shift = np.clip(shift, -farthest, farthest)
    rows = posterior.natural if posterior.prior is None else np.vstack([posterior.natural, posterior.prior])
    with np.errstate(all="ignore"):  # of what is too far, which is no member then
        moved = family.affine_image(rows, np.eye(len(origin)), shift)
    return replace(
        posterior,
        natural=moved[: posterior.n_components],
        prior=None if posterior.prior is None else moved[-1],
        attached={**posterior.attached, ORIGIN: Attached(origin, ("fixed",), "keep")},
    )


def common_origin(posteriors: Sequence[Posterior]) -> Array | None:
    """Return the one origin (D,) of posteriors of the same columns; None where each is about zero.

    It is the median over the posteriors of their means, so that no single one can move it far.
    """
    if not any(ORIGIN in posterior.attached for posterior in posteriors):
        return None
    origins = [posterior.attached[ORIGIN].values for posterior in posteriors if ORIGIN in posterior.attached]
    if len(origins) == len(posteriors) and all(np.array_equal(origin, origins[0]) for origin in origins):
        return origins[0]
    places = []
    for posterior in posteriors:
        parts = posterior.family.plug_in(posterior.natural)
        assert parts is not None  # noqa: S101  (narrows the type: posteriors with an origin are of Gaussian data)
        places.append(posterior.shares @ parts[0] + posterior.origin)
    return np.asarray(np.median(places, axis=0))
