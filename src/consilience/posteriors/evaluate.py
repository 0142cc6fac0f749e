"""Score a fused model and a site's own on the site's data, observation by observation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Labels
from consilience.core.fusion import Fusion
from consilience.core.inputs import NamedInput
from consilience.core.paired import paired_difference
from consilience.errors import ConsilienceError, InputError, UnsupportedError
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.adapters.table import ADAPTERS
from consilience.posteriors.describe import describe
from consilience.posteriors.evaluation import Evaluation, Score
from consilience.posteriors.files import read_posterior
from consilience.posteriors.model_ensemble import ModelEnsemble, ensemble_scores
from consilience.posteriors.observations import ExpectedColumns, read_observations
from consilience.posteriors.posterior import Features, Posterior
from consilience.posteriors.rebuild import adapter_of, rebuild
from consilience.posteriors.scores import Scores
from consilience.posteriors.vocabulary import is_topic_posterior, restrict_vocabulary

FEW = 50
"""Fewer observations than this give an interval that is easily too narrow."""

_HELD_OUT = "use data that neither model was trained on; scores on a model's own training data favour that model"


@dataclass(frozen=True)
class _Given:
    """One of the two models: what to call it in messages, the model, its posterior, its adapter."""

    name: str
    model: Any
    posterior: Posterior
    adapter: Adapter

    @property
    def dim(self) -> int:
        """Number of columns."""
        return int(getattr(self.posterior.family, "dim", 0))


def evaluate_posteriors(fused: NamedInput, local: NamedInput, data: Any, labels: Any) -> Evaluation:
    """Compare a fused model with a site's own, neither of them a network; see ``evaluate`` for what it takes.

    Raises
    ------
    InputError
        When the models cannot be compared or the data do not fit them, naming what is at fault.
    UnsupportedError
        For models that no adapter knows.
    """
    theirs, mine = _given(fused), _given(local)
    both = (_in_words_of(mine, theirs), mine)
    problems = _disagreements(*both)
    if problems:
        raise InputError(problems)
    named = [one.posterior.features.names for one in both]
    adapter = both[0].adapter
    count = adapter.n_columns(both[0].posterior)
    names = (named[0] or named[1]) if count == both[0].dim else None  # of a symbol's column, nobody knows the name
    columns = ExpectedColumns(count, names, adapter.takes_counts)
    found = read_observations(data, labels, columns)
    name = str(data) if isinstance(data, str | Path) else "data"
    fused_scores, own_scores = (_scored(one, found.values, name) for one in both)
    scores = [Score(own_scores.name, own_scores.unit, own_scores.larger_is_better, fused_scores.mean, own_scores.mean)]
    if found.labels is not None:
        informations = [_mutual_information(found.labels, one.labels) for one in (fused_scores, own_scores)]
        scores.append(Score("adjusted mutual information with the classes", "", True, *informations))
    return Evaluation(
        scores=tuple(scores),
        difference=paired_difference(fused_scores.values, own_scores.values, own_scores.weights),
        observations=own_scores.observations,
        fused_usage=fused_scores.usage,
        own_usage=own_scores.usage,
        usage_unit=own_scores.usage_unit,
        skipped=int(np.count_nonzero(own_scores.weights == 0)),
        notes=_notes(both[0], both[1], fused_scores, own_scores),
    )


def _given(model: NamedInput) -> _Given:
    """Return an input as what is scored, whatever form it came in."""
    name, given = model.label, model.model
    try:
        if isinstance(given, Fusion):
            posterior, fitted = given.posterior, given.model
        elif model.file is not None or isinstance(given, Posterior):
            posterior = given if model.file is None else read_posterior(model.file)[0]
            fitted = rebuild(posterior)
        else:
            posterior, fitted = describe(given), given
    except ConsilienceError as error:
        problems = error.problems if isinstance(error, InputError) else (str(error),)
        lines = [
            text if model.file is not None and text.startswith(f"{name}: ") else f"{name}: {text}" for text in problems
        ]
        raise type(error)(lines if isinstance(error, InputError) else lines[0]) from error
    of_members = adapter_of(posterior) if isinstance(fitted, ModelEnsemble) else None
    if of_members is not None:
        return _Given(name, fitted, posterior, of_members)
    for adapter in ADAPTERS:
        if adapter.accepts(fitted):
            return _Given(name, fitted, posterior, adapter)
    known = ", ".join(adapter.kind for adapter in ADAPTERS)
    raise UnsupportedError(f"{name}: is {posterior.family} of no library's model, which has no score; known: {known}")


def _in_words_of(own: _Given, fused: _Given) -> _Given:
    """Return fused topics given that only the words of the site's own model are looked at, in its order."""
    words = own.posterior.features.names
    if words is None or not (is_topic_posterior(own.posterior) and is_topic_posterior(fused.posterior)):
        return fused
    if words == fused.posterior.features.names or not set(words) <= set(fused.posterior.features.names or ()):
        return fused
    if isinstance(fused.model, ModelEnsemble):
        why = f"its models have words that {own.name} lacks; evaluate what method 'concatenate' gives"
        raise UnsupportedError(f"{fused.name}: {why}")
    posterior = restrict_vocabulary(fused.posterior, words)
    return replace(fused, model=rebuild(posterior), posterior=posterior)


def _disagreements(fused: _Given, own: _Given) -> list[str]:
    """Return why two models cannot be compared."""
    if own.adapter.kind != fused.adapter.kind:
        return [f"{own.name}: is a {own.adapter.kind}, expected a {fused.adapter.kind} as {fused.name}"]
    if own.dim != fused.dim:
        return [f"{own.name}: has {own.dim} columns, expected {fused.dim} as {fused.name}"]
    # Not the order of classes, which no score depends on.
    mine, theirs = (
        Features(names=f.names, units=f.units, scaling=f.scaling)
        for f in (fused.posterior.features, own.posterior.features)
    )
    return [f"{own.name}: {text} ({fused.name})" for text in mine.differences(theirs)]


def _scored(given: _Given, values: Any, name: str) -> Scores:
    """Return what a model says of the data, all of it finite."""
    with np.errstate(over="ignore", invalid="ignore"):  # data beyond float64's range are named below
        if isinstance(given.model, ModelEnsemble):
            scores = ensemble_scores(given.model, given.adapter, values)
        else:
            scores = given.adapter.scores(given.model, values)
    if not np.any(scores.weights > 0):
        raise InputError(f"{name}: none of the {scores.observations} can be scored; a document needs two tokens")
    bad = np.flatnonzero(~np.isfinite(scores.values) & (scores.weights > 0))
    if len(bad):
        raise InputError(f"{name}: row {bad[0]}, counted from 0: is too far from every component of {given.name}")
    return scores


def _mutual_information(classes: Labels, labels: Labels) -> float:
    """Return the adjusted mutual information of classes and components, over observations that have a component."""
    from sklearn.metrics import adjusted_mutual_info_score

    known = labels >= 0
    return float(adjusted_mutual_info_score(classes[known], labels[known]))


def _notes(fused: _Given, own: _Given, theirs: Scores, mine: Scores) -> tuple[str, ...]:
    """Return what the reader of the numbers should know."""
    notes = [_HELD_OUT]
    trained, given = own.posterior.counts, int(mine.usage.sum())
    known = own.posterior.source.get("samples") != "assumed"
    if known and trained is not None and abs(float(trained.sum()) - given) < 1e-6 * max(given, 1):
        notes.append(f"your own model was trained on as many {mine.usage_unit} as these, {given}: are they the same?")
    scored = int(np.count_nonzero(mine.weights > 0))
    skipped = len(mine.weights) - scored
    if 1 < scored < FEW:
        notes.append(f"only {scored} {mine.observations}: the interval is rough")
    if skipped:
        notes.append(f"{skipped} {mine.observations} were skipped: fewer than two tokens cannot be split")
    weights = getattr(fused.model, "weights_", None)
    if weights is not None and 0.01 < (elsewhere := float(np.sum(weights[theirs.usage == 0]))) < 1.0:
        notes.append(
            f"the components never seen here hold {100 * elsewhere:.0f} % of the fused model's weight, which costs"
            f" it about {-math.log1p(-elsewhere):.2g} nats a row; they are for rows that this site has not met yet"
        )
    if not mine.larger_is_better and len(theirs.usage) != len(mine.usage):
        notes.append(
            f"distances shrink with every centre added, and the models have {len(theirs.usage)} (fused) and"
            f" {len(mine.usage)} (your own)"
        )
    return tuple(notes)
