"""Charts of fused posteriors on a matplotlib axis, by name: what draws each, or why it cannot be drawn."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.findings import findings_of
from consilience.drawing.plots import Chart, draw_components, draw_number
from consilience.errors import InputError, reason_of
from consilience.posteriors.details import PosteriorDetails
from consilience.posteriors.report.planar_components import plane_of

if TYPE_CHECKING:
    from consilience.posteriors.posterior import Posterior


def components_chart(fused: Posterior, local: Array | None, labels: Labels) -> Chart | str:
    """Return what draws the fused components and the local ones (L, P), or why they have no place."""
    if "kernel" in fused.source:
        return "inducing points of a Gaussian process are no components of data"
    natural = np.zeros((0, fused.family.size)) if local is None else local
    plane = plane_of(fused, natural, labels if local is not None else np.zeros(0, dtype=np.int64))
    if plane is None:
        return f"{fused.family.name} components have no place that can be drawn"
    fused_parts, local_parts = (
        [(one.component, one.centre, one.covariance) for one in ellipses] for ellipses in (plane.fused, plane.local)
    )
    share = "" if plane.share is None else f", {100 * plane.share:.0f} % of the differences between means"
    axes = (f"{plane.axes[0]}{share}" if plane.kind == "projected" else plane.axes[0], plane.axes[1])
    return partial(draw_components, kind=plane.kind, axes=axes, fused=fused_parts, local=local_parts)


def number_chart(details: PosteriorDetails, n_components: int) -> Chart | str:
    """Return what draws the support of each number of components, or why there is none."""
    findings = findings_of(details)
    if findings.number is not None and len(findings.number.probabilities) > 1:
        values = {int(number): probability for number, probability in findings.number.probabilities}
        return partial(draw_number, values=values, chosen=n_components, what="probability")
    if len(findings.path) > 1:
        values = {point.n_components: point.value for point in findings.path}
        return partial(draw_number, values=values, chosen=n_components, what=findings.measure)
    return "the number of components was given, or the method does not choose it"


def forest_chart(fusion: Any) -> Chart | str:
    """Return what draws the intervals of the components' means, or why there are none."""
    try:
        return fusion.intervals()._charts()["forest"]
    except InputError as error:
        return reason_of(error)
