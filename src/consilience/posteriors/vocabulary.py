"""Vocabularies of different sites, aligned by word: what a topic model says of words that its site never met.

Before data every word of a topic has the same prior concentration, and a word that a site never had has nothing else: a
Dirichlet over the site's words becomes one over a larger vocabulary by the prior concentration for each further word.
The other way round, a Dirichlet given that only some words are looked at is the Dirichlet of their concentrations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from consilience.checks import Labels
from consilience.errors import InputError
from consilience.families import Dirichlet
from consilience.posteriors.adapters import ADAPTERS
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.topics.adapter import require_unique_words

LOW_SHARED_FRACTION = 0.1
"""A site that shares less than this part of its words with any other one is pointed out."""

_SAME = 1e-9  # a prior that is the mean of several has the rounding of each word
_REMEDY = "give features=cs.Features(names=vocabulary)"


@dataclass(frozen=True)
class VocabularyAlignment:
    """What was done so that all models have the same words.

    Parameters
    ----------
    size
        Number V of words that some model has.
    missing
        Number of these that a model lacks, by its name; models that lack none are left out.
    apart
        Part of its words that any other model has, by the name of each model for which it is little.
    """

    size: int
    missing: Mapping[str, int]
    apart: Mapping[str, float]

    def details(self) -> dict[str, Any]:
        """Return it as JSON values."""
        found: dict[str, Any] = {"size": self.size, "missing": dict(self.missing)}
        return {**found, "apart": dict(self.apart)} if self.apart else found


def is_topic_posterior(posterior: Posterior) -> bool:
    """Return whether this is a topic model: components over the words of a vocabulary."""
    kinds = {adapter.kind for adapter in ADAPTERS if adapter.has_vocabulary}
    return posterior.source.get("kind") in kinds and isinstance(posterior.family, Dirichlet)


def align_vocabularies(
    names: Sequence[str], posteriors: Sequence[Posterior]
) -> tuple[list[Posterior], VocabularyAlignment | None, list[str]]:
    """Return topic models over the union of their words, what was missing where, and why this cannot be done.

    The words of the union are sorted, so that they do not depend on who came first. Models that agree, or that are not
    all topic models of one kind, are returned as they are, with None.

    Parameters
    ----------
    names
        What to call each model.
    posteriors
        The models.
    """
    same = list(posteriors)
    stated = [one.features.names for one in same]
    if len({one.source.get("kind") for one in same}) != 1 or not all(is_topic_posterior(one) for one in same):
        return same, None, []
    if empty := [f"{name}: has no words" for name, one in zip(names, same, strict=True) if one.family.size == 0]:
        return same, None, empty
    if len({words for words in stated if words is not None}) <= 1 and len({one.family for one in same}) == 1:
        return same, None, []
    problems = [
        f"{name}: does not say which words its {one.family.size} columns are, and the vocabularies differ; {_REMEDY}"
        for name, one in zip(names, same, strict=True)
        if one.features.names is None
    ]
    if problems:
        return same, None, problems
    owners = Counter(word for words in stated for word in set(words or ()))
    union = tuple(sorted(owners))
    missing, apart, placed = {}, {}, []
    for name, one in zip(names, same, strict=True):
        words = one.features.names or ()
        shared = sum(owners[word] > 1 for word in words)
        if not shared:
            problems.append(
                f"{name}: shares none of its {len(words)} words with any other model; are they of another language, or"
                " made from text in another way?"
            )
        elif shared < LOW_SHARED_FRACTION * len(words):
            apart[name] = shared / len(words)
        if len(words) < len(union):
            missing[name] = len(union) - len(words)
        try:
            placed.append(expand_vocabulary(one, union))
        except InputError as error:
            problems += [f"{name}: {text}" for text in error.problems]
    return (same, None, problems) if problems else (placed, VocabularyAlignment(len(union), missing, apart), [])


def expand_vocabulary(posterior: Posterior, words: Sequence[str]) -> Posterior:
    """Return the topics over a vocabulary that has all their words; others have the topics' prior.

    Raises
    ------
    InputError
        When a word is there twice or not in `words`, when words need a prior that is not known, or when something else
        is stated column by column.
    """
    own = posterior.features.names or ()
    places = _places(own, words)
    if posterior.features.units is not None or posterior.features.scaling is not None:
        raise InputError("states units or scaling of its columns, which word counts do not have; leave them out")
    value = 0.0
    if len(words) > len(own):
        lacks = f"lacks {len(words) - len(own)} of {len(words)} words, which take its prior, but"
        remedy = "train on all words, with one prior for all of them"
        if posterior.prior is None:
            raise InputError(f"{lacks} it states none; {remedy}")
        if np.ptp(posterior.prior) > _SAME * (1.0 + np.abs(posterior.prior).max()):
            raise InputError(f"{lacks} that differs from word to word; {remedy}")
        value = float(np.median(posterior.prior))
    natural = np.full((posterior.n_components, len(words)), value)
    natural[:, places] = posterior.natural
    prior = None
    if posterior.prior is not None:
        prior = np.full(len(words), value)
        prior[places] = posterior.prior
    features = replace(posterior.features, names=tuple(words))
    return replace(posterior, family=Dirichlet(len(words)), natural=natural, prior=prior, features=features)


def restrict_vocabulary(posterior: Posterior, words: Sequence[str]) -> Posterior:
    """Return the topics given that only `words` are looked at, all of which they have; counts are left as they are.

    Raises
    ------
    InputError
        When a word is there twice or not among those of the topics.
    """
    places = _places(words, posterior.features.names or ())
    return replace(
        posterior,
        family=Dirichlet(len(words)),
        natural=posterior.natural[:, places],
        prior=None if posterior.prior is None else posterior.prior[places],
        features=replace(posterior.features, names=tuple(words)),
    )


def _places(words: Sequence[str], vocabulary: Sequence[str]) -> Labels:
    """Return where each of `words` is in `vocabulary`."""
    require_unique_words("vocabulary", words)
    require_unique_words("vocabulary", vocabulary)
    where = {word: place for place, word in enumerate(vocabulary)}
    strange = [word for word in words if word not in where]
    if strange:
        raise InputError(f"has the word {strange[0]!r}, which is not in the other vocabulary ({len(strange)} such)")
    return np.array([where[word] for word in words], dtype=np.int64)
