"""Alignment of the vocabularies of topic models, by word: union, expansion and restriction.

Before data every word of a topic has the same prior concentration beta_0, and a word that a site never had has nothing
else. So a Dirichlet over the site's words is expanded to a larger vocabulary by beta_0 for each further word. The other
way round, a Dirichlet restricted to some of its words is the Dirichlet of their concentrations: pi ~ Dirichlet(alpha)
implies pi_S / sum pi_S ~ Dirichlet(alpha_S).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from consilience.checks import Labels
from consilience.errors import InputError, Problem
from consilience.families import Dirichlet
from consilience.families.base import Family
from consilience.posteriors.adapters.table import known_adapters
from consilience.posteriors.details import VocabularyDetails
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.topics.adapter import require_unique_words

LOW_SHARED_FRACTION = 0.1
"""A site that shares less than this part of its words with all others together is pointed out. Chosen by hand; nobody
has measured other values."""

_PRIOR_ROUNDING = 1e-9
"""Relative difference between words up to which a prior is the same for all: a prior that is the mean of several has
the rounding of each word. Chosen by hand, far above the rounding of float64."""


@dataclass(frozen=True)
class VocabularyAlignment:
    """The common vocabulary of several topic models, and how far each was from it."""

    size: int  # words that some model has
    missing: Mapping[str, int]  # how many of these a model lacks, by its name; only of those that lack some
    apart: Mapping[str, float]  # part of its words that any other model has, by name where it is small

    def details(self) -> VocabularyDetails:
        """Return the fields as JSON values."""
        details: VocabularyDetails = {"size": self.size, "missing": dict(self.missing)}
        if self.apart:
            details["apart"] = dict(self.apart)
        return details


def is_topic_posterior(posterior: Posterior) -> bool:
    """Return whether this is a topic model: components over the words of a vocabulary."""
    kinds = {adapter.kind for adapter in known_adapters() if adapter.has_vocabulary}
    return posterior.source.get("kind") in kinds and isinstance(posterior.family, Dirichlet)


def unnamed_words(name: object, family: Family) -> Problem:
    """Return that a topic model does not name its words."""
    text = f"does not say which words its {family.size} columns are, and as many columns are not the same words"
    remedy = "name them: `cs.describe(model, features=words)`, of gensim also `id2word=` when it is trained"
    return Problem(name, text, remedy, "E-NEEDED")


def align_vocabularies(
    names: Sequence[str], posteriors: Sequence[Posterior]
) -> tuple[list[Posterior], VocabularyAlignment | None, list[Problem]]:
    """Return topic models over the union of their words, the alignment, and the problems that prevent it.

    The words of the union are sorted, so that they do not depend on the order of the models. Models that agree, or that
    are not all topic models of one kind, are returned as they are, with None; so are those with a problem, which names
    them.
    """
    unaligned, models = list(posteriors), list(zip(names, posteriors, strict=True))
    kinds = {posterior.source.get("kind") for posterior in unaligned}
    if len(kinds) != 1 or not all(is_topic_posterior(posterior) for posterior in unaligned):
        return unaligned, None, []
    problems = [
        Problem(name, "has no words", code="E-NEEDED") for name, posterior in models if posterior.family.size == 0
    ]
    problems = problems or [
        unnamed_words(name, posterior.family) for name, posterior in models if posterior.features.names is None
    ]
    if problems or _agree(unaligned):
        return unaligned, None, problems
    aligned, alignment, problems = _over_union(models)
    return (unaligned, None, problems) if problems else (aligned, alignment, [])


def _agree(posteriors: Sequence[Posterior]) -> bool:
    """Return whether topic models are over as many words, and those that name them over the same."""
    vocabularies = {posterior.features.names for posterior in posteriors} - {None}
    return len(vocabularies) <= 1 and len({posterior.family for posterior in posteriors}) == 1


def _over_union(models: Sequence[tuple[str, Posterior]]) -> tuple[list[Posterior], VocabularyAlignment, list[Problem]]:
    """Return named topic models over the union of their words, how far each was from it, and what prevents it."""
    owner_counts = Counter(word for _, posterior in models for word in set(posterior.features.names or ()))
    union = tuple(sorted(owner_counts))
    problems: list[Problem] = []
    missing, apart, aligned = {}, {}, []
    for name, posterior in models:
        words = posterior.features.names or ()
        shared = sum(owner_counts[word] > 1 for word in words)  # with any other model
        if not shared:
            text = (
                f"shares none of its {len(words)} words with any other model; are they of another language, or"
                " made from text in another way?"
            )
            problems.append(Problem(name, text, code="E-MISMATCH"))
        elif shared < LOW_SHARED_FRACTION * len(words):
            apart[name] = shared / len(words)
        if len(words) < len(union):
            missing[name] = len(union) - len(words)
        try:
            aligned.append(expand_vocabulary(posterior, union))
        except InputError as error:
            problems += [problem.about(name) for problem in error.problems]
    return aligned, VocabularyAlignment(len(union), missing, apart), problems


def expand_vocabulary(posterior: Posterior, words: Sequence[str]) -> Posterior:
    """Return the topics over a vocabulary that has all their words; the other words get the topics' prior.

    A word that is there twice or not in `words`, words that need a prior that is not known, and anything else that is
    stated column by column are an InputError.
    """
    site_words = posterior.features.names or ()
    columns = _columns_of_words(site_words, words)
    if posterior.features.units is not None or posterior.features.scaling is not None:
        raise InputError("states units or scaling of its columns, which word counts do not have; leave them out")
    word_prior = 0.0  # natural parameter beta_0 - 1 of a word that the site lacks
    if len(words) > len(site_words):
        problem = f"lacks {len(words) - len(site_words)} of {len(words)} words, which take its prior, but"
        remedy = "train on all words, with one prior for all of them"
        if posterior.prior is None:
            raise InputError("", f"{problem} it states none; {remedy}", code="E-NEEDED")
        if np.ptp(posterior.prior) > _PRIOR_ROUNDING * (1.0 + np.abs(posterior.prior).max()):
            raise InputError("", f"{problem} that differs from word to word; {remedy}", code="E-MISMATCH")
        word_prior = float(np.median(posterior.prior))
    natural = np.full((posterior.n_components, len(words)), word_prior)  # (K, V)
    natural[:, columns] = posterior.natural
    prior = None
    if posterior.prior is not None:
        prior = np.full(len(words), word_prior)
        prior[columns] = posterior.prior
    features = replace(posterior.features, names=tuple(words))
    return replace(posterior, family=Dirichlet(len(words)), natural=natural, prior=prior, features=features)


def restrict_vocabulary(posterior: Posterior, words: Sequence[str]) -> Posterior:
    """Return the topics restricted to `words`, all of which they have, in this order; counts are left as they are."""
    columns = _columns_of_words(words, posterior.features.names or ())
    prior = None if posterior.prior is None else posterior.prior[columns]
    features = replace(posterior.features, names=tuple(words))
    return replace(
        posterior, family=Dirichlet(len(words)), natural=posterior.natural[:, columns], prior=prior, features=features
    )


def _columns_of_words(words: Sequence[str], vocabulary: Sequence[str]) -> Labels:
    """Return the number of each of `words` in `vocabulary`."""
    require_unique_words("vocabulary", words)
    require_unique_words("vocabulary", vocabulary)
    column_of_word = {word: column for column, word in enumerate(vocabulary)}
    unknown = [word for word in words if word not in column_of_word]
    if unknown:
        raise InputError(f"has the word {unknown[0]!r}, which is not in the other vocabulary ({len(unknown)} such)")
    return np.array([column_of_word[word] for word in words], dtype=np.int64)
