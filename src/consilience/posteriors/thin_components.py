"""Components behind which there are too few observations: withheld by a site, left out of a fusion.

A component of few rows can betray them, and says little. One number decides, ``min_count`` of ``describe``, ``save``
and ``fuse``: a component with fewer effective observations does not leave its site, and takes no part in a fusion
(label -1). What is attached to a model follows the components that remain. Of hidden Markov models these are counts of
transitions: rows and columns of thin states are dropped, and rebuilt rows are normalised, which makes them transitions
given that no thin state is entered. (Following the chain through the thin states instead would add their visits to
transitions that were never seen; there are fewer of these than `min_count` for each such state.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from consilience.checks import Json, Labels
from consilience.core.details import WithheldComponent
from consilience.core.min_count import MAX_NAMED
from consilience.drawing.words import first_names
from consilience.errors import Problem
from consilience.posteriors.adapters.table import has_labels
from consilience.posteriors.details import PosteriorDetails
from consilience.posteriors.posterior import Posterior


def thin_components(posterior: Posterior, min_count: float) -> Labels:
    """Return which components have fewer than `min_count` effective observations, as far as these are known.

    A model that does not say how many observations it was fitted to has no counts, only shares.
    """
    if posterior.counts is None or not posterior.states_observations:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(posterior.counts < min_count)


def remaining_components(posterior: Posterior, min_count: float) -> Labels:
    """Return which components have at least `min_count` effective observations, or do not say."""
    thin = thin_components(posterior, min_count)
    return np.setdiff1d(np.arange(posterior.n_components), thin) if len(thin) else _all_rows(posterior.n_components)


@cache
def _all_rows(n_components: int) -> Labels:
    """Return the numbers of all components, one array for all models of that size."""
    rows = np.arange(n_components)
    rows.setflags(write=False)
    return rows


def withheld_text(posterior: Posterior, min_count: float) -> str:
    """Return which components of a posterior, of some, are withheld, with their effective observations."""
    thin = thin_components(posterior, min_count)
    assert posterior.counts is not None  # noqa: S101  (narrows the type; without counts no component is thin)
    named = first_names([f"{number} ({posterior.counts[number]:.3g})" for number in thin], MAX_NAMED)
    have, were = ("has", "was") if len(thin) == 1 else ("have", "were")
    of = "the only component" if posterior.n_components == 1 else f"{len(thin)} of {posterior.n_components} components"
    return f"{of} {have} fewer than {min_count:g} effective observations and {were} withheld: {named}"


def without_components(posterior: Posterior, remaining: Labels) -> Posterior:
    """Return a posterior of its `remaining` components, with their labels; the same object where these are all.

    What the others had is not shown as a difference: weights sum to one again, and sums over all components are cut to
    the share of the observations that remains.
    """
    if len(remaining) == posterior.n_components:
        return posterior
    taken, labels = _without_totals(posterior.take(remaining), posterior), posterior.features.classes
    if labels is None or len(labels) != posterior.n_components or not has_labels(posterior):
        return taken
    classes = tuple(labels[component] for component in remaining)
    return replace(taken, features=replace(posterior.features, classes=classes))


def provenance_of_remaining(provenance: Mapping[str, Json] | None, n_components: int) -> Mapping[str, Json] | None:
    """Return the provenance of a fused posterior of which `n_components` are left: what it says by component goes."""
    result, inputs = (provenance or {}).get("result"), (provenance or {}).get("inputs")
    if not isinstance(result, Mapping) or not isinstance(inputs, Sequence) or result["n_components"] == n_components:
        return provenance
    records = [{**record, "labels": None, "confidence": None} for record in inputs if isinstance(record, Mapping)]
    kept = {name: result[name] for name in ("status", "site_digests") if name in result}
    return {**(provenance or {}), "inputs": records, "result": {**kept, "n_components": n_components}}


def _without_totals(taken: Posterior, posterior: Posterior) -> Posterior:
    """Return some components of a posterior with weights and sums that do not tell what the others have."""
    weights = taken.weights
    if weights is not None and weights.sum() > 0:
        weights = weights / weights.sum()
    share = 1.0
    if taken.counts is not None and posterior.counts is not None and posterior.counts.sum() > 0:
        share = float(taken.counts.sum() / posterior.counts.sum())
    attached = {
        name: replace(array, values=array.values * share)
        if array.rule == "sum" and "component" not in array.axes
        else array
        for name, array in taken.attached.items()
    }
    return replace(taken, weights=weights, attached=attached)


def nothing_left(label: object, n_components: int, largest: float, min_count: float) -> Problem:
    """Return that every component of a model is thin, the largest of so many observations, and what to do about it."""
    return Problem(
        label,
        f"none of its {n_components} components has {min_count:g} effective observations, the largest has"
        f" {largest:.3g}",
        "fit fewer components to more data, or give a smaller min_count",
        "E-FEW",
    )


def nothing_left_in(label: object, posterior: Posterior, min_count: float) -> list[Problem]:
    """Return that nothing of a posterior remains, where it is so."""
    thin = thin_components(posterior, min_count)
    if len(thin) < posterior.n_components or posterior.counts is None:
        return []
    return [nothing_left(label, posterior.n_components, float(posterior.counts.max()), min_count)]


def left_out_record(
    names: Sequence[str], posteriors: Sequence[Posterior], remaining: Sequence[Labels], min_count: float
) -> PosteriorDetails:
    """Return the record of the components that a fusion leaves out, all but the `remaining`; empty where none is.

    How few they are stays untold.
    """
    records: list[WithheldComponent] = [
        {"model": name, "component": int(component)}
        for name, posterior, rows in zip(names, posteriors, remaining, strict=True)
        if posterior.counts is not None and len(rows) < posterior.n_components
        for component in np.setdiff1d(np.arange(posterior.n_components), rows)
    ]
    if not records:
        return {}
    records.sort(key=lambda record: (str(record["model"]), record["component"]))
    return {"withheld": {"min_count": float(min_count), "count": len(records), "components": records}}


def rows_of(posteriors: Sequence[Posterior], remaining: Sequence[Labels]) -> Labels:
    """Return the rows of the remaining components of every model among all components, model by model."""
    starts = np.cumsum([0, *(posterior.n_components for posterior in posteriors)])[:-1]
    return np.concatenate([start + kept for start, kept in zip(starts, remaining, strict=True)])
