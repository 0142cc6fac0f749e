"""Evaluation of posteriors: a fused model and a site's own, scored on the site's data, observation by observation.

Both models score the same observations, so the difference of their mean scores has a paired standard error
(``core.scores``). Models that cannot be compared are refused with a line for each disagreement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.core.evaluation import MIN_OBSERVATIONS, ComponentUsage, Evaluation, Score
from consilience.core.features import Features
from consilience.core.fusion import Fusion
from consilience.core.inputs import NamedInput
from consilience.core.observations import ExpectedColumns, read_observations
from consilience.core.scores import ScoreKind, Scores, paired_difference
from consilience.errors import ConsilienceError, InputError, OptionError, Problem, UnsupportedError
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.adapters.table import adapter_of, known_adapters
from consilience.posteriors.describe import describe_all
from consilience.posteriors.files import read_posterior
from consilience.posteriors.mixture_density import MixtureDensity
from consilience.posteriors.model_ensemble import ModelEnsemble, ensemble_scores, mixture_values
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.rebuild import rebuild
from consilience.posteriors.scaling import is_of_pipeline, without_pipeline
from consilience.posteriors.topics.adapter import TopicAdapter
from consilience.posteriors.topics.coherence import N_WORDS, npmi
from consilience.posteriors.vocabulary import is_topic_posterior, restrict_vocabulary

MIN_UNUSED_WEIGHT = 0.01
"""Weight of the fused components without data here above which a note states it. Chosen by hand."""

COUNT_ROUNDING = 1e-6
"""Relative difference below which two totals of observations are the same number: rounding only. Chosen by hand."""

NATS_PER_ROW = "nats per row"
"""Unit of log densities of rows."""

_GUESSED_COUNTS = (
    "without the number of observations of a GaussianMixture (`n_observations=` of cs.describe and cs.save)"
)

_HELD_OUT_NOTE = "use data that neither model was trained on; scores on a model's own training data favour that model"


@dataclass(frozen=True)
class _ComparedModel:
    """One of the two models: its name in messages, the fitted model, its posterior, and its adapter."""

    name: str
    model: Any
    posterior: Posterior
    adapter: Adapter

    @property
    def dim(self) -> int:
        """Dimension D of the family; 0 for a family without one."""
        return int(getattr(self.posterior.family, "dim", 0))


def evaluate_posteriors(fused: NamedInput, local: NamedInput, data: Any, labels: Any) -> Evaluation:
    """Compare a fused model with a site's own, neither of them a network, on the site's observations; see ``evaluate``.

    Models that cannot be compared, or that no adapter knows, and data that do not fit them are refused by name.
    """
    fused_model, own_model = _compared_model(fused), _compared_model(local)
    fused_model = _restrict_to_words(fused_model, own_model)
    problems = _disagreements(fused_model, own_model)
    if problems:
        raise InputError(problems)
    values, classes, data_name = _read_data(fused_model, own_model, data, labels)
    fused_scores, own_scores = (_all_scores(compared, values, data_name) for compared in (fused_model, own_model))
    if len(fused_scores) != len(own_scores):
        # Only one of the models knows its observations: then there are no two predictive densities to compare.
        kinds = {scores.kind for scores in min(fused_scores, own_scores, key=len)}
        fused_scores, own_scores = (
            [scores for scores in either if scores.kind in kinds] for either in (fused_scores, own_scores)
        )
    first_fused, first_own = fused_scores[0], own_scores[0]
    scores = [
        Score(b.name, b.unit, b.larger_is_better, a.mean, b.mean, b.kind)
        for a, b in zip(fused_scores, own_scores, strict=True)
    ]
    scores += _topic_scores(fused_model, own_model, values, first_fused, first_own)
    if classes is not None:
        by_fused, by_own = (_mutual_information(classes, one.labels) for one in (first_fused, first_own))
        name = "adjusted mutual information with the classes"
        scores.append(Score(name, "", True, by_fused, by_own, ScoreKind.AGREEMENT))
    return Evaluation(
        tuple(scores),
        paired_difference(first_fused.values, first_own.values, first_own.weights),
        _notes(fused_model, own_model, first_fused, first_own),
        observations=first_own.observations,
        skipped=int(np.count_nonzero(first_own.weights == 0)),
        usage=ComponentUsage(first_fused.usage, first_own.usage, first_own.usage_unit),
    )


def log_density_of(model: NamedInput, data: Any, kind: ScoreKind) -> Array:
    """Return the log density of every row (n,) under a model, in nats; see ``log_density``."""
    compared = _compared_model(model)
    values, _, data_name = _read_data(compared, compared, data, None)
    densities = {
        scores.kind: scores.values
        for scores in _all_scores(compared, values, data_name)
        if scores.unit == NATS_PER_ROW and scores.kind is not None
    }
    if kind not in densities:
        names = ", ".join(densities) or "none"
        because = _GUESSED_COUNTS if _guesses_counts(compared) and kind is ScoreKind.PREDICTIVE else "of such models"
        raise OptionError(f"kind {str(kind)!r} is not known {because}; expected one of: {names}")
    return densities[kind]


def topic_coherence_of(model: NamedInput, documents: Any, n_words: int) -> Array:
    """Return the coherence of every topic (K,) of a model by reference documents; see ``topic_coherence``."""
    compared = _compared_model(model)
    if not isinstance(compared.adapter, TopicAdapter):
        raise UnsupportedError(compared.name, f"is a {compared.adapter.kind}, which has no topics of words")
    values, _, _ = _read_data(compared, compared, documents, None)
    return np.concatenate([npmi(topics, values, n_words=n_words) for topics in _topics(compared)])


def _read_data(
    fused: _ComparedModel, own: _ComparedModel, data: Any, labels: Any
) -> tuple[Any, NDArray[Any] | None, str]:
    """Return observations (n, D), their classes (n,) where known, and the name of the data in messages."""
    adapter = fused.adapter
    n_columns = adapter.n_columns(fused.posterior)
    names = fused.posterior.features.names or own.posterior.features.names
    # Names are those of the family's D dimensions. Where a column holds symbols instead, its name is not known.
    columns = ExpectedColumns(n_columns, names if n_columns == fused.dim else None, adapter.takes_counts)
    observations = read_observations(data, labels, columns)
    return observations.values, observations.labels, str(data) if isinstance(data, str | Path) else "data"


def _compared_model(model: NamedInput) -> _ComparedModel:
    """Return an input with its fitted model, posterior and adapter: a fusion, a file, a posterior or a fitted model."""
    name, value = model.label, model.model
    try:
        if isinstance(value, Fusion):
            posterior, fitted = value.posterior, value.model
        elif model.file is not None or isinstance(value, Posterior):
            posterior = value if model.file is None else read_posterior(model.file)[0]
            fitted = rebuild(posterior)
        else:
            posterior, fitted = describe_all(value), value
        if is_of_pipeline(posterior):  # scored in the units of the data, whatever scaling each model has of its own
            posterior = without_pipeline(posterior)
            fitted = rebuild(posterior)
    except ConsilienceError as error:
        # The readers of files already say the file's name; everybody else's problems get the input's.
        is_named = model.file is not None
        raise type(error)(
            problem if is_named and problem.subject == name else problem.about(name) for problem in error.problems
        ) from error
    member_adapter = adapter_of(posterior) if isinstance(fitted, ModelEnsemble) else None
    if member_adapter is not None:
        return _ComparedModel(name, fitted, posterior, member_adapter)
    for adapter in known_adapters():
        if adapter.accepts(fitted):
            return _ComparedModel(name, fitted, posterior, adapter)
    kinds = ", ".join(adapter.kind for adapter in known_adapters())
    raise UnsupportedError(name, f"is {posterior.family} of no library's model, which has no score; known: {kinds}")


def _restrict_to_words(fused: _ComparedModel, own: _ComparedModel) -> _ComparedModel:
    """Return fused topics conditional on the words of the site's own model, in its order; other models as they are."""
    words = own.posterior.features.names
    if words is None or not (is_topic_posterior(own.posterior) and is_topic_posterior(fused.posterior)):
        return fused
    if words == fused.posterior.features.names or not set(words) <= set(fused.posterior.features.names or ()):
        return fused
    if isinstance(fused.model, ModelEnsemble):
        reason = f"its models have words that {own.name} lacks; evaluate what method 'concatenate' gives"
        raise UnsupportedError(fused.name, f"{reason}")
    posterior = restrict_vocabulary(fused.posterior, words)
    return replace(fused, model=rebuild(posterior), posterior=posterior)


def _disagreements(fused: _ComparedModel, own: _ComparedModel) -> list[Problem]:
    """Return why two models cannot be compared."""
    if own.adapter.kind != fused.adapter.kind:
        return [
            Problem(
                own.name, f"is a {own.adapter.kind}, expected a {fused.adapter.kind} as {fused.name}", code="E-MISMATCH"
            )
        ]
    if own.dim != fused.dim:
        return [Problem(own.name, f"has {own.dim} columns, expected {fused.dim} as {fused.name}", code="E-SHAPE")]
    # Without the order of classes, on which no score depends.
    fused_features, own_features = (
        Features(names=features.names, units=features.units, scaling=features.scaling)
        for features in (fused.posterior.features, own.posterior.features)
    )
    return [Problem(own.name, f"{text} ({fused.name})") for text in fused_features.differences(own_features)]


def _all_scores(compared: _ComparedModel, values: Any, data_name: str) -> list[Scores]:
    """Return the scores of a model on observations (n, D), the one that models are compared by first.

    Mixtures have a predictive density, where they know their numbers of observations, and one at point estimates, and
    after these what their library gives. Where no observation can be scored, or a score that counts is not finite, that
    is an error.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # data beyond float64's range are named below
        if isinstance(compared.model, ModelEnsemble):
            library_scores = ensemble_scores(compared.model, compared.adapter, values)
        else:
            library_scores = compared.adapter.scores(compared.model, values)
        scores = [*_mixture_scores(compared, values, library_scores), library_scores]
    if not np.any(library_scores.weights > 0):
        text = f"none of the {library_scores.observations} can be scored; a document needs two tokens"
        raise InputError(data_name, text, code="E-NEEDED")
    for one in scores:
        infinite_rows = np.flatnonzero(~np.isfinite(one.values) & (one.weights > 0))
        if len(infinite_rows):
            where = f"row {infinite_rows[0]}, counted from 0"
            raise InputError(data_name, f"{where}: is too far from every component of {compared.name}")
    return scores


def _mixture_scores(compared: _ComparedModel, values: Any, library_scores: Scores) -> list[Scores]:
    """Return the densities of a mixture at rows (n, D) that its library does not give; none for other models."""
    if compared.adapter.mixture(compared.posterior) is None:
        return []
    log_densities: dict[ScoreKind, Callable[[MixtureDensity], Array]] = {
        ScoreKind.PREDICTIVE: lambda mixture: mixture.log_predictive(values),
        ScoreKind.PLUG_IN: lambda mixture: mixture.log_plug_in(values),
    }
    if _guesses_counts(compared):
        del log_densities[ScoreKind.PREDICTIVE]
    log_densities.pop(library_scores.kind, None)  # type: ignore[arg-type]  # None is in no table
    scores = []
    for kind, log_density in log_densities.items():
        if isinstance(compared.model, ModelEnsemble):
            densities = mixture_values(compared.model, compared.adapter, log_density)
        else:
            mixture = compared.adapter.mixture(compared.posterior)
            densities = None if mixture is None else log_density(mixture)
        if densities is not None:
            scores.append(replace(library_scores, name=f"log {kind} density", values=densities, kind=kind))
    return scores


def _guesses_counts(compared: _ComparedModel) -> bool:
    """Return whether a mixture does not know the numbers of observations that its predictive density needs."""
    if compared.adapter.mixture(compared.posterior) is None:
        return False
    if isinstance(compared.model, ModelEnsemble):  # members are fitted models, which record what their class records
        posteriors = [compared.adapter.describe(member, None) for member in compared.model.members]
    else:
        posteriors = [compared.posterior]
    mixtures = [compared.adapter.mixture(posterior) for posterior in posteriors]
    return any(mixture is not None and not mixture.knows_counts for mixture in mixtures)


def _topics(compared: _ComparedModel) -> list[Array]:
    """Return the concentrations (K, V) of a topic model, or of each member of an ensemble of them."""
    assert isinstance(compared.adapter, TopicAdapter)  # noqa: S101  (narrows the type; callers have asked)
    models = compared.model.members if isinstance(compared.model, ModelEnsemble) else (compared.model,)
    return [compared.adapter.topics(model)[0] for model in models]


def _topic_scores(
    fused: _ComparedModel, own: _ComparedModel, documents: Any, fused_scores: Scores, own_scores: Scores
) -> list[Score]:
    """Return perplexity of held-out tokens, and mean coherence of topics by these documents; none for other models."""
    if not isinstance(own.adapter, TopicAdapter):
        return []
    by_fused, by_own = (float(np.exp(-one.mean)) for one in (fused_scores, own_scores))
    scores = [Score("perplexity of held-out tokens", "", False, by_fused, by_own, ScoreKind.COMPLETION)]
    n_words = min(N_WORDS, documents.shape[1])
    if n_words > 1:
        by_fused, by_own = (
            float(np.concatenate([npmi(topics, documents, n_words=n_words) for topics in _topics(compared)]).mean())
            for compared in (fused, own)
        )
        name = f"NPMI of {n_words} words, mean over topics"
        scores.append(Score(name, "", True, by_fused, by_own, ScoreKind.COHERENCE))
    return scores


def _mutual_information(classes: Labels, labels: Labels) -> float:
    """Return the adjusted mutual information of classes and components, over observations that have a component."""
    from sklearn.metrics import adjusted_mutual_info_score

    has_component = labels >= 0  # (n,)
    return float(adjusted_mutual_info_score(classes[has_component], labels[has_component]))


def _notes(fused: _ComparedModel, own: _ComparedModel, fused_scores: Scores, own_scores: Scores) -> tuple[str, ...]:
    """Return the limits of the comparison, a sentence each."""
    notes = [_HELD_OUT_NOTE]
    roles = {"the fused model": fused, "your own model": own}  # not by file, so that every form has one text
    guessing = [role for role, compared in roles.items() if _guesses_counts(compared)]
    if guessing:
        notes.append(f"no predictive density is compared, {_GUESSED_COUNTS}: {', '.join(guessing)}")
    counts, n_used = own.posterior.counts, int(own_scores.usage.sum())
    if (
        own.posterior.states_observations
        and counts is not None
        and abs(float(counts.sum()) - n_used) < COUNT_ROUNDING * max(n_used, 1)
    ):
        unit = own_scores.usage_unit
        notes.append(f"your own model was trained on as many {unit} as these, {n_used}: are they the same?")
    n_scored = int(np.count_nonzero(own_scores.weights > 0))
    n_skipped = len(own_scores.weights) - n_scored
    if 1 < n_scored < MIN_OBSERVATIONS:
        notes.append(f"only {n_scored} {own_scores.observations}: the interval is rough")
    if n_skipped:
        notes.append(f"{n_skipped} {own_scores.observations} were skipped: fewer than two tokens cannot be split")
    weights = getattr(fused.model, "weights_", None)  # (G,)
    unused = 0.0 if weights is None else float(np.sum(weights[fused_scores.usage == 0]))
    if MIN_UNUSED_WEIGHT < unused < 1.0:
        # A mixture whose used components had all the weight, divided by 1 - unused, would gain -log(1 - unused) a row.
        notes.append(
            f"the components never seen here hold {100 * unused:.0f} % of the fused model's weight, which costs"
            f" it about {-math.log1p(-unused):.2g} nats a row; they are for rows that this site has not met yet"
        )
    if not own_scores.larger_is_better and len(fused_scores.usage) != len(own_scores.usage):
        notes.append(
            f"distances shrink with every centre added, and the models have {len(fused_scores.usage)} (fused) and"
            f" {len(own_scores.usage)} (your own)"
        )
    return tuple(notes)
