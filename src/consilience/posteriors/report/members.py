"""Summaries of sites and of fused components: counts, weights, members, confidences, entropies, words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError, UnsupportedError
from consilience.families import Family
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.report.illustration import has_states

_N_WORDS = 10
"""Most probable words of a topic that are shown. Chosen by hand."""


@dataclass(frozen=True)
class SiteSummary:
    """One model that went in; what only its posterior says is None without it."""

    name: str  # what it is called here
    full_name: str
    components: int  # their number L_j
    weight: float
    sha256: str | None  # of its file, if it was one
    labels: tuple[int, ...] | None  # the fused component of each (L_j,), -1 for dropped; None in files that do not say
    confidence: tuple[float | None, ...] | None  # of each of these matches, from 0 to 1 (L_j,)
    observations: float | None  # sum of its counts
    smallest: float | None  # of its counts
    outlier: str | None  # why the method took it for an outlier; None if it did not

    @property
    def n_dropped(self) -> int:
        """Number of its components that are in no fused one."""
        return sum(label < 0 for label in self.labels or ())

    def numbers_by_label(self) -> dict[int, list[int]]:
        """Return the numbers of its components by the fused one that they became, -1 for dropped."""
        numbers: dict[int, list[int]] = {}
        for number, label in enumerate(self.labels or ()):
            numbers.setdefault(label, []).append(number)
        return numbers

    def confidences_of(self, numbers: Sequence[int]) -> list[float]:
        """Return the confidences of some of its components, those that are not known left out."""
        return [] if self.confidence is None else [v for i in numbers if (v := self.confidence[i]) is not None]


@dataclass(frozen=True)
class ComponentSummary:
    """One fused component."""

    number: int
    # For each site that has any, its name and the numbers of its components; None where the matching is not known.
    members: tuple[tuple[str, tuple[int, ...]], ...] | None
    observations: float | None  # its effective count
    weight: float | None  # in a mixture
    confidence: float | None  # mean of the matches behind it
    entropy: float | None  # in nats; None where it does not exist
    local_entropies: tuple[float, ...]  # of the local components behind it
    words: tuple[tuple[str, float], ...]  # the most probable ones of a topic, with their probabilities
    parameters: tuple[tuple[str, float], ...]  # standard ones by name, where each is one number

    @property
    def n_members(self) -> int | None:
        """Number of local components behind it."""
        return None if self.members is None else sum(len(numbers) for _, numbers in self.members)


def site_of(record: Mapping[str, Any], name: str, posterior: Posterior | None, outlier: str | None) -> SiteSummary:
    """Return the site of an input's record in a provenance."""
    counts = None if posterior is None else posterior.counts
    labels, confidence = record.get("labels"), record.get("confidence")
    return SiteSummary(
        name=name,
        full_name=record["name"],
        components=record["components"],
        weight=record["weight"],
        sha256=record.get("sha256"),
        labels=None if labels is None else tuple(labels),
        confidence=None if confidence is None else tuple(_clip_confidence(value) for value in confidence),
        observations=None if counts is None else float(counts.sum()),
        smallest=None if counts is None else float(counts.min()),
        outlier=outlier,
    )


def _clip_confidence(value: float | None) -> float | None:
    """Return a confidence clipped to [0, 1], None for one that is not known."""
    return None if value is None or not np.isfinite(value) else min(1.0, max(0.0, float(value)))


def labels_of(site: SiteSummary) -> Labels:
    """Return which fused component each of the site's became (L_j,), -1 where that is not known."""
    return np.array((-1,) * site.components if site.labels is None else site.labels, dtype=np.int64)


def components_of(
    fused: Posterior, sites: Sequence[SiteSummary], local: Array, labels: Labels
) -> tuple[ComponentSummary, ...]:
    """Return the fused components, given natural parameters (L, P) and `labels` (L,) of the known local ones."""
    members: list[list[tuple[str, tuple[int, ...]]]] = [[] for _ in range(fused.n_components)]
    confidences: list[list[float]] = [[] for _ in range(fused.n_components)]
    for site in sites:
        for label, numbers in site.numbers_by_label().items():
            if label >= 0:
                members[label].append((site.name, tuple(numbers)))
                confidences[label] += site.confidences_of(numbers)
    all_matched = all(site.labels is not None for site in sites)
    entropies, local_entropies = (_entropies(fused.family, natural) for natural in (fused.natural, local))
    top_words, scalar_parameters = _top_words(fused), _parameters(fused)
    return tuple(
        ComponentSummary(
            number=g,
            members=tuple(members[g]) if all_matched else None,
            observations=None if fused.counts is None else float(fused.counts[g]),
            weight=None if fused.weights is None else float(fused.weights[g]),
            confidence=float(np.mean(confidences[g])) if confidences[g] else None,
            entropy=float(entropies[g]) if np.isfinite(entropies[g]) else None,
            local_entropies=tuple(_finite_values(local_entropies[labels == g])),
            words=top_words[g],
            parameters=scalar_parameters[g],
        )
        for g in range(fused.n_components)
    )


def _entropies(family: Family, natural: Array) -> Array:
    """Return entropies (n,), NaN where they do not exist or say nothing: all the same for a known covariance."""
    if family.has_width and family.name != "known-covariance-gaussian" and len(natural):
        # Matrices may be at the edge of what can be factorised, or a block a point; what overflows is left out later.
        with suppress(InputError, UnsupportedError), np.errstate(all="ignore"):
            return family.entropy(natural)
    return np.full(len(natural), np.nan)


def _finite_values(values: Array) -> list[float]:
    finite: list[float] = values[np.isfinite(values)].tolist()
    return finite


def _top_words(fused: Posterior) -> list[tuple[tuple[str, float], ...]]:
    """Return the most probable categories of every component of a family of probabilities."""
    parameters = fused.parameters()
    table = parameters.get("concentration", parameters.get("probabilities"))
    if table is None:
        return [()] * fused.n_components
    probabilities = table / table.sum(axis=1, keepdims=True)
    noun = "symbol" if has_states(fused) else "feature"
    names = fused.features.names or tuple(f"{noun} {i}" for i in range(probabilities.shape[1]))
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :_N_WORDS]
    return [tuple((names[i], float(row[i])) for i in top) for row, top in zip(probabilities, order, strict=True)]


def _parameters(fused: Posterior) -> list[tuple[tuple[str, float], ...]]:
    """Return the standard parameters of every component of a family in which each is one number."""
    parameters = fused.parameters()
    if any(np.shape(values) != (fused.n_components,) for values in parameters.values()):
        return [()] * fused.n_components
    return [tuple((name, float(values[g])) for name, values in parameters.items()) for g in range(fused.n_components)]
