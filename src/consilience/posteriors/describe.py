"""Describe: the posterior over the components of a fitted model, by the adapter of its class.

Components with few observations can betray who was observed, so ``describe`` withholds them
(docs/sites/threat_model.md), and a warning at the site says which.

Numbers of observations that libraries do not record are counted from data or stated, or the model is refused. The
natural parameters of such a model (scikit-learn's GaussianMixture, hmmlearn's point estimates) are counts times
moments, so a wrong number is a wrong weight in every average. Nothing is guessed: a site states the number when it
describes or saves its model, whoever fuses states it, or all models are said to count alike (``"equal"``).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Array, is_number
from consilience.core.caller import warn_caller
from consilience.core.features import Features, final_model, is_pipeline
from consilience.core.min_count import MIN_COUNT
from consilience.core.observations import ExpectedColumns, read_observations
from consilience.drawing.words import first_names
from consilience.errors import InputError, OptionError, Problem, UnsupportedError, WithheldWarning
from consilience.files.tables import as_named_table, read_named_table
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.adapters.table import adapter_of, known_adapters
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.scaling import describe_pipeline
from consilience.posteriors.thin_components import (
    nothing_left_in,
    remaining_components,
    thin_components,
    withheld_text,
    without_components,
)
from consilience.posteriors.topics.rounded_counts import with_rounded_counts
from consilience.posteriors.unsupported import unsupported_model

_MAX_NAMED = 8
"""Withheld components that a warning names at most; more are counted. Chosen by hand."""


def describe(
    model: Any,
    data: Any = None,
    *,
    n_observations: float | None = None,
    sample_weight: Any = None,
    features: Features | None = None,
    min_count: float = MIN_COUNT,
    round_counts: float | None = None,
) -> Posterior:
    """Return the posterior over the components of a fitted model: what a site sends.

    Options are as `consilience.describe` takes them. A scikit-learn Pipeline of affine scalings and a model is
    described in the units of the data before any scaling. Data are counted,
    and leave nothing else in the posterior; without them and without `n_observations`, a model that does not record the
    number (GaussianMixture, GaussianHMM, CategoricalHMM) has a posterior that says so, and fusing asks for it.

    Examples
    --------
    >>> from sklearn.cluster import KMeans
    >>> rows = [[0.0], [0.1], [0.2], [0.3], [0.4], [5.0], [5.1], [5.2], [5.3], [5.4]]
    >>> describe(KMeans(n_clusters=2, n_init=1, random_state=0).fit(rows)).counts
    array([5., 5.])
    """
    if sample_weight is not None and data is None:
        raise OptionError("sample_weight", "weighs rows of data; give data too")
    if not is_number(min_count):
        raise OptionError("min_count", f"expected a number that is not negative, found {min_count!r}")
    if n_observations is not None and not (is_number(n_observations) and n_observations > 0):
        raise InputError(
            "n_observations", f"expected a positive number of observations, found {n_observations!r}", code="E-NUMBER"
        )
    posterior = describe_all(model, data, n_observations, sample_weight)
    if unusable := unusable_components(model):
        named = first_names(list(map(str, unusable)), _MAX_NAMED)
        text = f"{len(unusable)} components have no usable parameters and were left out: {named}"
        warn_caller(text, WithheldWarning)
    if features is not None:
        posterior = _with_features(posterior, features, is_told=isinstance(model, Posterior))
    if round_counts is not None:
        posterior = with_rounded_counts(posterior, round_counts)
    return withhold(posterior, min_count)


def describe_all(
    model: Any, data: Any = None, n_observations: float | None = None, sample_weight: Any = None
) -> Posterior:
    """Return the posterior of a model with all its components, its observations counted or stated; see ``describe``."""
    if isinstance(model, Posterior):
        if data is None and n_observations is None:
            return model
        adapter, posterior = adapter_of(model), model
        if adapter is None:
            text = "are for fitted models; this Posterior says what it says by its counts"
            raise OptionError("data, n_observations", text)
    else:
        adapter = _adapter_for(model)
        posterior = _describe_fitted(model, adapter, n_observations)
    if data is not None:
        counted = count_observations(model, adapter, posterior, data, sample_weight)
        if n_observations is not None and n_observations != counted:
            raise OptionError("n_observations", f"is {n_observations:g}, but data has {counted:g} observations")
        n_observations = counted
        posterior = _with_names_of(data, posterior, adapter)
    if n_observations is None:
        return posterior
    subject = "n_observations" if data is None else "the number of rows of data"
    if not adapter.records_n_observations:
        if not isinstance(model, Posterior):
            return _with_names_of(data, _describe_fitted(model, adapter, n_observations), adapter)
        if not posterior.states_observations:
            return adapter.recount(posterior, n_observations)
    require_same_as_recorded(adapter, posterior, n_observations, subject)
    return posterior


def _describe_fitted(model: Any, adapter: Adapter, n_observations: float | None) -> Posterior:
    """Return the posterior of a fitted model, or of a Pipeline in the units of the data."""
    if is_pipeline(model):
        return describe_pipeline(model, adapter, n_observations)
    return adapter.describe(model, n_observations)


def _with_names_of(data: Any, posterior: Posterior, adapter: Adapter) -> Posterior:
    """Return a posterior with the names of the columns of its data, where they have some and its model kept none."""
    if posterior.features.names is not None or not (adapter.follows_units or adapter.follows_order):
        return posterior
    table = read_named_table(Path(data)) if isinstance(data, str | Path) else as_named_table(data)
    if table is None or len(table.header) != adapter.n_columns(posterior):
        return posterior
    return replace(posterior, features=replace(posterior.features, names=table.header))


def _adapter_for(model: Any) -> Adapter:
    """Return the adapter that accepts a model, or the last step of a Pipeline."""
    if is_pipeline(model):
        model = final_model(model)
    for adapter in known_adapters():
        if adapter.accepts(model):
            return adapter
    raise UnsupportedError(unsupported_model(model))


def _with_features(posterior: Posterior, features: Features, *, is_told: bool) -> Posterior:
    """Return a posterior whose columns mean what `features` say; those of a model must not contradict its own."""
    if is_told:
        return replace(posterior, features=features)
    if not isinstance(features, Features):
        raise InputError("features", f"expected consilience.Features, found {type(features).__name__}", code="E-TYPE")
    recorded = posterior.features
    if differences := recorded.differences(features):
        text = f"what is stated {differences[0]}, as the model itself was trained"
        raise InputError("features", text, code="E-MISMATCH")
    names = recorded.names if features.names is None else features.names
    return replace(posterior, features=replace(features, names=names, from_columns=recorded.from_columns))


def withhold(posterior: Posterior, min_count: float) -> Posterior:
    """Return a posterior without its components of fewer than `min_count` effective observations, and warn of them.

    What is attached follows; see ``thin_components``. Raises InputError when nothing would be left.
    """
    thin = thin_components(posterior, min_count)
    if not len(thin):
        return posterior
    if problems := nothing_left_in("", posterior, min_count):
        raise InputError(problems)
    warn_caller(f"{withheld_text(posterior, min_count)}; `min_count=0` keeps them", WithheldWarning)
    return without_components(posterior, remaining_components(posterior, min_count))


def unusable_components(model: Any) -> list[int]:
    """Return the numbers of the components of a fitted model that no description has; see the adapters."""
    if isinstance(model, Posterior):
        return []
    fitted = final_model(model) if is_pipeline(model) else model
    return _adapter_for(fitted).unusable_components(fitted).tolist()


RECORDED_ROUNDING = 0.05
"""Relative difference from what a model records up to which a stated number is the same. Wide, since withheld
components are not counted, and expected counts of variational fits miss whole numbers. Chosen by hand."""


def count_observations(model: Any, adapter: Adapter, posterior: Posterior, data: Any, sample_weight: Any) -> float:
    """Return the number of observations in the data that a model was fitted to: rows, or the sum of their weights.

    The data, which ``core.observations.read_observations`` takes, must have the columns of the posterior that the model
    was described as. Weights of rows are one number that is not negative for each, and only of models that do not
    record them.
    """
    n_columns = adapter.n_columns(posterior)
    dim = getattr(posterior.family, "dim", None)
    names = posterior.features.names if n_columns == dim else None  # a column of symbols has no name
    rows = read_observations(data, None, ExpectedColumns(n_columns, names, adapter.takes_counts)).values
    n_rows = int(rows.shape[0])
    if sample_weight is None:
        return float(n_rows)
    if adapter.records_n_observations:
        text = f"a {type(model).__name__} records the weight of its observations itself; leave it out"
        raise OptionError("sample_weight", text)
    weights: Array = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n_rows,) or not np.all(np.isfinite(weights) & (weights >= 0)) or not np.any(weights > 0):
        raise OptionError(
            "sample_weight",
            f"expected one finite number that is not negative for each of the {n_rows} rows, found shape"
            f" {weights.shape}",
        )
    return float(weights.sum())


def require_same_as_recorded(
    adapter: Adapter, posterior: Posterior, n_observations: float, subject: str = "n_observations"
) -> None:
    """Raise InputError where a number contradicts the observations that a posterior records.

    Only models whose counts are of rows can be compared: those of topic models are tokens.
    """
    if not adapter.counts_are_rows or posterior.counts is None or not posterior.states_observations:
        return
    recorded = float(posterior.counts.sum())
    # Components with less than one observation count as one, so K of them may add up to K more.
    if abs(recorded - n_observations) > posterior.n_components + RECORDED_ROUNDING * max(recorded, n_observations):
        text = f"is {n_observations:g}, but the model records {recorded:g} observations"
        raise InputError(subject, text, "leave it out, or give what the model was fitted to", "E-MISMATCH")


def unknown_number(label: str | Path, kind: str) -> Problem:
    """Return that a model's number of observations is not known, and what to do about it."""
    return Problem(
        label,
        f"does not say how many observations it was fitted to, which a {kind} does not record and by which it counts",
        "give n_observations, one number for each model, save it with `n_observations=` or `data=`, or say"
        " `n_observations='equal'` if all models are to count alike",
        "E-OBSERVATIONS",
    )
