"""Exact arrival and removal of a site: its sums are added to those of all, or taken out again.

Removal is exact to rounding, eps |S_all| / |S_left|, and is refused where that exceeds 1e-8. Fusing the sums of the
others again is better where they are at hand: it is what never having seen the site gives. Two results that differ by a
site give that site's sums to whoever has both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Array, Json
from consilience.core.caller import warn_caller
from consilience.core.details import Status
from consilience.core.min_count import MIN_COUNT
from consilience.core.provenance import make_provenance, result_record
from consilience.errors import InputError, UnsupportedError, WithheldWarning
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.average import among_classes, average, in_categories, moments_named
from consilience.estimators.describe import withhold
from consilience.estimators.details import EstimatorDetails
from consilience.estimators.fuse import match_classes
from consilience.estimators.fusion import EstimatorFusion
from consilience.estimators.inputs import disagreements, read_sums
from consilience.estimators.rebuild import rebuild
from consilience.estimators.statistics import CATEGORIES, SIGNED, WITHOUT_UNWEIGHTED, Statistics
from consilience.estimators.verdict import judge
from consilience.families.centred_moments import MAX_REMOVAL_ERROR

DIFFERENCING = ("add", "remove")
"""What the provenance of such results says in place of a method."""


def differencing_of(method: str | None) -> str | None:
    """Return why publishing a result of `add` or `remove` discloses a single site; None for other results."""
    if method not in DIFFERENCING:
        return None
    done = "added to" if method == "add" else "removed from"
    return (
        f"is a result from which a site was {done} others: whoever has the one before it too gets that site's sums by"
        " subtraction"
    )


def add(fused: Any, model: Any) -> EstimatorFusion:
    """Return a fusion of estimators with one site more.

    Parameters
    ----------
    fused : EstimatorFusion, Statistics or path
        What was fused before.
    model : fitted estimator, Statistics, path, or mapping of one name to such
        What the site sends, and its name; of an estimator that does not keep its sums, ``cs.describe(model,
        data=...)``. Default name: the beginning of its digest.

    Returns
    -------
    EstimatorFusion
        What fusing the site with all the others at once gives, to rounding.

    Raises
    ------
    InputError
        Where the two are not of one kind, or the site is among the others already.
    """
    (whole, provenance), (part, of_part) = _read(fused, "the fusion"), _read(model, "the model")
    _require_agreement(whole, part)
    known = _digests(provenance)
    if part.digest in known:
        text = f"is {known[part.digest]}, which is in the fusion already: it would count twice"
        raise InputError("the model", text, code="E-TWICE")
    if shared := [known[digest] for digest in _digests(of_part) if digest in known]:
        text = f"was fused from {shared[0]}, which is in the fusion already: it would count twice"
        raise InputError("the model", text, code="E-TWICE")
    left, withheld = withhold(part, _min_count(provenance))
    for problem in withheld:
        warn_caller(problem.about("the model"), WithheldWarning)
    joined = average([whole, left])
    names = [record["name"] for record in _records(provenance)]
    name = next(iter(model)) if isinstance(model, Mapping) else f"added {part.digest[:12]}"
    if name in names:
        raise InputError("the model", f"is called {name}, as another site in the fusion is", "give it another name")
    of_its_parts = {digest: f"{name} > {theirs}" for digest, theirs in _digests(of_part).items()}
    digests = {**known, **of_its_parts, part.digest: name}
    record = {"name": name, "components": part.n_components, "weight": part.n_observations}
    return _result("add", joined, provenance, digests, [*_records(provenance), record], _n_sites(provenance) + 1)


def remove(fused: Any, model: Any) -> EstimatorFusion:
    """Return a fusion of estimators without one of its sites, as if it had never been there.

    Parameters
    ----------
    fused : EstimatorFusion, Statistics or path
        What was fused.
    model : fitted estimator, Statistics or path
        What the site had sent.

    Returns
    -------
    EstimatorFusion
        What fusing the others gives, to rounding.

    Raises
    ------
    InputError
        Where the site is no part of the fusion, or rounding would leave fewer than eight digits of the others.
    UnsupportedError
        For estimators made of extremes, and refined ones, which nothing can be taken out of.
    """
    whole, provenance = _read(fused, "the fusion")
    names = [record["name"] for record in _records(provenance)]
    if isinstance(model, str) and model in names and not Path(model).exists():
        text = f"is the name of a site, {model}, and the fusion does not keep its sums apart"
        raise InputError("the model", text, "give what the site had sent, or fuse the others")
    part, _ = _read(model, "the model")
    _require_agreement(whole, part)
    whole = whole.without_fourth_moments()  # which are of these very rows
    known = _digests(provenance)
    if known and part.digest not in known:
        text = "is none of those that were fused, by its digest"
        raise InputError("the model", text, "give what the site had sent", "E-MISMATCH")
    if "refinement" in provenance.get("result", {}):
        text = "was refined, so that its information is no sum of what sites had sent"
        raise UnsupportedError("the fusion", text, "fuse the others, and refine that")
    if set(whole.maxima) - {CATEGORIES}:
        raise UnsupportedError(f"a {whole.kind}", "is made of extremes, which cannot be taken out", "fuse the others")
    left = _difference(whole, withhold(part, _min_count(provenance))[0])
    gone = known.get(part.digest, "")
    # With what was fused from several go all of them; with one of them what was fused from it can no longer go whole.
    is_gone = {name: f"{name} > ".startswith(f"{gone} > ") or gone.startswith(f"{name} > ") for name in known.values()}
    digests = {digest: name for digest, name in known.items() if not is_gone[name]}
    records = [record for record in _records(provenance) if record["name"] != gone]
    return _result("remove", left, provenance, digests, records, max(_n_sites(provenance) - 1, 1))


def _difference(whole: Statistics, part: Statistics) -> Statistics:
    """Return the statistics of the rows of `whole` that are not of `part`; classes without rows are gone."""
    if whole.classes is not None and part.classes is not None:
        if odd := [name for name in part.classes.names if name not in whole.classes.names]:
            raise InputError("the model", f"has the class {odd[0]}, which the fusion does not know", code="E-MISMATCH")
        part = among_classes(part, whole.classes)
    if CATEGORIES in whole.maxima:
        if np.any(part.maxima[CATEGORIES] > whole.maxima[CATEGORIES]):
            text = "has categories that the fusion does not know: it is no part of the fusion"
            raise InputError("the model", text, code="E-MISMATCH")
        part = in_categories(part, whole.maxima[CATEGORIES])
    if WITHOUT_UNWEIGHTED in (*whole.approximations, *part.approximations):  # then those of the others are not known
        whole = whole.without_unweighted()
    moments = {name: record.remove(moments_named(part, name)) for name, record in whole.moments.items()}
    counts = {
        name: _less(name, values, part.counts[name]) if name in part.counts else values
        for name, values in whole.counts.items()
    }
    n_withheld = max(whole.n_withheld - part.n_withheld, 0)
    left = replace(whole, moments=moments, counts=counts, n_withheld=n_withheld)
    if left.classes is None:
        return left
    adapter = adapter_of_kind(left.kind)
    remaining = np.flatnonzero(left.row_counts > 0)
    if not len(remaining):
        raise InputError("the model", "is all that was fused: nothing is left", code="E-MISMATCH")
    return adapter.trimmed(left if len(remaining) == len(left.classes) else left.some_classes(remaining))


def _less(name: str, values: Array, part: Array) -> Array:
    """Return counts without those of a part."""
    left = values - part
    if name in SIGNED:
        if np.finfo(np.float64).eps * np.abs(values).max() > MAX_REMOVAL_ERROR * np.abs(left).max():
            text = "is so much of the fusion that rounding is what would be left"
            raise InputError("the model", text, "fuse the others", "E-MISMATCH")
        return left
    if np.any(left < -1e-9 * np.maximum(values.max(initial=0.0), 1.0)):
        text = "has more counts than there are to take them from: it is no part of the fusion"
        raise InputError("the model", text, code="E-MISMATCH")
    return np.maximum(left, 0.0)


def _read(value: Any, called: str) -> tuple[Statistics, dict[str, Any]]:
    """Return statistics, with their provenance; empty where nothing says."""
    statistics, provenance = read_sums(value, called)
    return statistics, provenance or {}


def _require_agreement(whole: Statistics, part: Statistics) -> None:
    if problems := disagreements([("the fusion", whole), ("the model", part)], {}):
        raise InputError(problems)


def _digests(provenance: dict[str, Any]) -> dict[str, str]:
    """Return the names of what was fused, by digests of contents."""
    return dict(provenance.get("result", {}).get("site_digests", {}))


def _min_count(provenance: dict[str, Any]) -> float:
    """Return the rows that a class needed in the fusion, below which a site's are not in it."""
    return float(provenance.get("options", {}).get("min_count", MIN_COUNT))


def _n_sites(provenance: dict[str, Any]) -> int:
    return len(_records(provenance)) if provenance else 1


def _records(provenance: dict[str, Any]) -> list[dict[str, Json]]:
    """Return the records of what was fused."""
    return list(provenance.get("inputs", []))


def _result(
    method: str,
    statistics: Statistics,
    provenance: dict[str, Any],
    digests: dict[str, str],
    records: list[dict[str, Json]],
    n_sites: int,
) -> EstimatorFusion:
    """Return sums as a fusion whose record says what was done, and what of the sites is in it."""
    details: EstimatorDetails = {"rows": statistics.n_observations}
    result = result_record(statistics.n_components, Status.CONVERGED, details, site_digests=digests)
    return EstimatorFusion(
        statistics=statistics,
        matching=match_classes(statistics, [("all", statistics)]),
        details=details,
        provenance=make_provenance(method, {"min_count": _min_count(provenance)}, None, records, result),
        _model=rebuild(statistics),
        _verdict=judge(statistics, n_sites, details),
    )
